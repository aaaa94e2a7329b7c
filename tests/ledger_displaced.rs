//! The folder, the marks or the lock are taken away under a running ledger. Nothing is acknowledged then that
//! the next start would not find.

mod ledger_common;

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::{Arc, LazyLock, Mutex};

use fencegate::ledger::file::OpenError;
use fencegate::ledger::{Ledger as _, StoreError};
use ledger_common::{Opened, SETTLE, all, change, fast_folder, open, raise};

/// An open ledger with the mark a=1, in the folder `store` of a place of its own.
fn running() -> (tempfile::TempDir, PathBuf, Opened) {
    let place = fast_folder();
    let folder = place.path().join("store");
    let opened = open(&folder).unwrap();
    change(&opened.ledger, raise("a", 1)).unwrap();
    (place, folder, opened)
}

/// A raise is refused with words that name the folder.
fn refused(opened: &Opened, folder: &Path, token: u128) {
    match change(&opened.ledger, raise("a", token)) {
        Err(StoreError::Failed(what)) => assert!(what.contains(folder.to_str().unwrap()), "{what}"),
        other => panic!("{token}: {other:?}"),
    }
}

#[test]
fn a_renamed_folder_stops_raises_until_it_is_back() {
    let (place, folder, opened) = running();
    let away = place.path().join("away");
    for round in 1..=2 {
        fs::rename(&folder, &away).unwrap();
        for token in 2..10 {
            refused(&opened, &folder, round * 10 + token);
        }
        assert!(opened.ledger.hold_is_over(SETTLE).is_err());
        assert!(!folder.exists(), "nothing is made in its place");
        // It is still held, wherever it is.
        assert!(matches!(open(&away), Err(OpenError::InUse { .. })));
        fs::rename(&away, &folder).unwrap();
        change(&opened.ledger, raise("a", round * 10 + 2)).unwrap();
        assert_eq!(all(&opened.ledger)["a"], round * 10 + 2);
    }
    drop(opened);
    assert_eq!(open(&folder).unwrap().marks["a"], 22);
}

#[test]
fn a_removed_folder_stops_raises_for_ever_and_is_not_made_anew() {
    let (_place, folder, opened) = running();
    fs::remove_dir_all(&folder).unwrap();
    refused(&opened, &folder, 2);
    assert!(!folder.exists());
    // Somebody else starts there: this one goes on refusing, and touches nothing.
    let second = open(&folder).unwrap();
    assert!(second.found.clean && second.marks.is_empty());
    change(&second.ledger, raise("b", 1)).unwrap();
    refused(&opened, &folder, 3);
    assert!(opened.ledger.close(true).is_err());
    change(&second.ledger, raise("b", 2)).unwrap();
    drop((opened, second));
    assert_eq!(open(&folder).unwrap().marks, [("b".to_owned(), 2)].into());
}

#[test]
fn a_close_while_the_folder_is_elsewhere_is_not_clean() {
    let (place, folder, opened) = running();
    let away = place.path().join("away");
    fs::rename(&folder, &away).unwrap();
    assert!(matches!(opened.ledger.close(true), Err(StoreError::Failed(_))));
    drop(opened);
    fs::rename(&away, &folder).unwrap();
    let next = open(&folder).unwrap();
    assert!(!next.found.clean);
    assert_eq!(next.marks["a"], 1);
}

#[test]
fn other_marks_in_the_place_of_the_open_ones_stop_raises() {
    let (place, folder, opened) = running();
    let (marks, aside) = (folder.join("marks"), place.path().join("aside"));
    fs::rename(&marks, &aside).unwrap();
    refused(&opened, &folder, 2);
    // A copy has the right content, but it is not what is written to.
    fs::copy(&aside, &marks).unwrap();
    refused(&opened, &folder, 3);
    assert_eq!(fs::read(&aside).unwrap(), fs::read(&marks).unwrap());
    fs::rename(&aside, &marks).unwrap();
    change(&opened.ledger, raise("a", 4)).unwrap();
    drop(opened);
    assert_eq!(open(&folder).unwrap().marks["a"], 4);
}

#[test]
fn marks_that_changed_while_they_were_elsewhere_are_not_trusted() {
    let (place, folder, opened) = running();
    let (marks, aside) = (folder.join("marks"), place.path().join("aside"));
    let earlier = fs::read(&marks).unwrap();
    change(&opened.ledger, raise("a", 2)).unwrap();
    fs::rename(&marks, &aside).unwrap();
    refused(&opened, &folder, 3);
    fs::write(&aside, earlier).unwrap();
    fs::rename(&aside, &marks).unwrap();
    for token in 4..8 {
        assert!(change(&opened.ledger, raise("a", token)).is_err());
    }
    assert!(opened.ledger.close(true).is_err());
}

#[test]
fn a_removed_lock_stops_raises_and_a_second_instance_is_still_refused() {
    let (_place, folder, opened) = running();
    fs::remove_file(folder.join("lock")).unwrap();
    refused(&opened, &folder, 2);
    assert!(matches!(open(&folder), Err(OpenError::InUse { .. })));
    // That one has left a lock file of its own.
    assert!(folder.join("lock").exists());
    refused(&opened, &folder, 3);
    drop(opened);
    let next = open(&folder).unwrap();
    assert_eq!(next.marks["a"], 1);
    change(&next.ledger, raise("a", 4)).unwrap();
}

#[test]
fn a_person_is_told_once_each_time() {
    LazyLock::force(&LOG);
    let (place, folder, opened) = running();
    let away = place.path().join("away");
    for spell in 1..=2 {
        fs::rename(&folder, &away).unwrap();
        for token in 2..6 {
            refused(&opened, &folder, token);
        }
        assert_eq!(errors_about(&folder), spell);
        fs::rename(&away, &folder).unwrap();
        change(&opened.ledger, raise("a", 10 * spell as u128)).unwrap();
    }
    assert_eq!(errors_about(&folder), 2);
}

/// How many errors the log of this process holds so far that name the folder and the way out.
fn errors_about(folder: &Path) -> usize {
    let written = LOG.0.lock().unwrap().clone();
    let log = String::from_utf8(written).unwrap();
    let ours = log.lines().filter(|line| line.contains(folder.to_str().unwrap()));
    ours.filter(|line| line.contains("ERROR") && line.contains("Put them back"))
        .count()
}

#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// The whole process's: a ledger logs from a thread of its own.
static LOG: LazyLock<Log> = LazyLock::new(|| {
    let log = Log::default();
    let writer = log.clone();
    tracing_subscriber::fmt()
        .with_ansi(false)
        .with_writer(move || writer.clone())
        .init();
    log
});
