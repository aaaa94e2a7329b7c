//! The file ledger in fair weather, and its lock, marker and first start.

mod ledger_common;

use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use fencegate::ledger::file::{FileLedger, OpenError};
use fencegate::ledger::memory::MemoryLedger;
use fencegate::ledger::{Ledger, StoreError};
use ledger_common::{SETTLE, all, change, fast_folder, mark, open, open_with, raise, reset, submit};

#[test]
fn a_raised_mark_is_found_after_the_next_start() {
    let folder = tempfile::tempdir().unwrap();
    let first = open(folder.path()).unwrap();
    assert!(first.marks.is_empty());
    change(&first.ledger, raise("bucket/orders", 34)).unwrap();
    drop(first);
    let second = open(folder.path()).unwrap();
    assert_eq!(second.marks, [("bucket/orders".to_owned(), 34)].into());
}

#[test]
fn a_raise_never_lowers_also_within_one_batch() {
    let folder = fast_folder();
    let opened = open(folder.path()).unwrap();
    let answers = [5, 9, 7, 9, 1].map(|token| submit(&opened.ledger, raise("a", token)));
    for answer in answers {
        answer.recv().unwrap().unwrap();
    }
    change(&opened.ledger, raise("a", 8)).unwrap();
    assert_eq!(all(&opened.ledger), [("a".to_owned(), 9)].into());
    drop(opened);
    assert_eq!(open(folder.path()).unwrap().marks, [("a".to_owned(), 9)].into());
}

#[test]
fn a_reset_lowers_and_is_in_the_trail_newest_first_after_a_restart() {
    let folder = fast_folder();
    let opened = open(folder.path()).unwrap();
    change(&opened.ledger, raise("a", 90)).unwrap();
    change(&opened.ledger, reset("a", 3, "restored")).unwrap();
    change(&opened.ledger, reset("b", 4, "second")).unwrap();
    drop(opened);
    let opened = open(folder.path()).unwrap();
    assert_eq!(opened.marks, [("a".to_owned(), 3), ("b".to_owned(), 4)].into());
    change(&opened.ledger, reset("a", 5, "third")).unwrap();
    let trail = opened.ledger.audit_trail(2).unwrap();
    let told: Vec<_> = trail
        .iter()
        .map(|entry| {
            (
                entry.sequence,
                entry.name.as_str(),
                entry.mark,
                entry.audit.reason.as_str(),
            )
        })
        .collect();
    assert_eq!(told, [(2, "a", mark(5), "third"), (1, "b", mark(4), "second")]);
    assert_eq!(trail[0].audit.from, "99");
    assert_eq!(trail[0].audit.by, "127.0.0.1:5");
}

fn scan_pages_in_the_order_of_bytes(ledger: &dyn Ledger) {
    for name in ["b/1", "a/2", "a/10", "a/1", "a", "é"] {
        change(ledger, raise(name, 1)).unwrap();
    }
    let names = |prefix: &str, after: Option<&str>, limit| -> Vec<String> {
        let found = ledger.scan(prefix, after, limit).unwrap();
        found.into_iter().map(|(name, _)| name).collect()
    };
    assert_eq!(names("", None, 99), ["a", "a/1", "a/10", "a/2", "b/1", "é"]);
    assert_eq!(names("a/", None, 2), ["a/1", "a/10"]);
    assert_eq!(names("a/", Some("a/10"), 2), ["a/2"]);
    assert_eq!(names("a/", Some("Z"), 9), ["a/1", "a/10", "a/2"]);
    assert!(names("a/", Some("b"), 9).is_empty());
    assert!(names("", None, 0).is_empty());
}

#[test]
fn the_file_is_scanned_in_pages() {
    let folder = fast_folder();
    scan_pages_in_the_order_of_bytes(&open(folder.path()).unwrap().ledger);
}

#[test]
fn memory_is_scanned_in_the_same_pages() {
    scan_pages_in_the_order_of_bytes(&MemoryLedger::new());
}

#[test]
fn memory_raises_resets_and_closes_like_the_file() {
    let ledger = MemoryLedger::new();
    change(&ledger, raise("a", 9)).unwrap();
    change(&ledger, raise("a", 8)).unwrap();
    assert_eq!(all(&ledger), [("a".to_owned(), 9)].into());
    change(&ledger, reset("a", 2, "why")).unwrap();
    assert_eq!(all(&ledger), [("a".to_owned(), 2)].into());
    assert_eq!(ledger.audit_trail(9).unwrap()[0].audit.reason, "why");
    let last = submit(&ledger, raise("a", 3));
    ledger.close(true).unwrap();
    last.recv().unwrap().unwrap();
    assert!(matches!(change(&ledger, raise("a", 4)), Err(StoreError::Closed)));
}

fn done_may_take_the_lock_that_submit_is_called_under(ledger: &dyn Ledger) {
    let lock = Arc::new(Mutex::new(0));
    let (told, answer) = std::sync::mpsc::channel();
    let held = lock.lock().unwrap();
    let of_done = lock.clone();
    ledger.submit(
        raise("a", 1),
        Box::new(move |result| {
            *of_done.lock().unwrap() += 1;
            told.send(result).unwrap();
        }),
    );
    drop(held);
    answer.recv_timeout(Duration::from_secs(60)).unwrap().unwrap();
    assert_eq!(*lock.lock().unwrap(), 1);
}

#[test]
fn done_never_comes_on_the_submitting_thread() {
    let folder = fast_folder();
    let opened = open(folder.path()).unwrap();
    done_may_take_the_lock_that_submit_is_called_under(&opened.ledger);
    done_may_take_the_lock_that_submit_is_called_under(&MemoryLedger::new());
    opened.ledger.close(true).unwrap();
    // Closed, it still answers from its own thread.
    let lock = Arc::new(Mutex::new(()));
    let held = lock.lock().unwrap();
    let of_done = lock.clone();
    let (told, answer) = std::sync::mpsc::channel();
    opened.ledger.submit(
        raise("a", 2),
        Box::new(move |result| {
            let _held = of_done.lock().unwrap();
            told.send(result).unwrap();
        }),
    );
    drop(held);
    let result = answer.recv_timeout(Duration::from_secs(60)).unwrap();
    assert!(matches!(result, Err(StoreError::Closed)));
}

#[test]
fn a_panicking_done_harms_no_other() {
    let folder = fast_folder();
    let opened = open(folder.path()).unwrap();
    opened
        .ledger
        .submit(raise("a", 1), Box::new(|_| panic!("on purpose")));
    change(&opened.ledger, raise("a", 2)).unwrap();
    assert_eq!(all(&opened.ledger)["a"], 2);
}

#[test]
fn raises_that_wait_at_the_same_time_share_commits() {
    let folder = tempfile::tempdir().unwrap();
    let commits = Arc::new(AtomicUsize::new(0));
    let counted = commits.clone();
    let on_commit = Arc::new(move |_| {
        counted.fetch_add(1, Ordering::Relaxed);
    });
    let (ledger, _) = FileLedger::open(folder.path(), SETTLE, on_commit, &mut |_, _| ()).unwrap();
    let answers: Vec<_> = (0..2000)
        .map(|n| submit(&ledger, raise(&format!("r/{n}"), 1)))
        .collect();
    for answer in answers {
        answer.recv().unwrap().unwrap();
    }
    let commits = commits.load(Ordering::Relaxed);
    assert!((1..500).contains(&commits), "{commits} commits for 2000 raises");
    assert_eq!(all(&ledger).len(), 2000);
}

#[test]
fn a_first_start_counts_as_clean_and_a_drop_as_unclean() {
    let folder = fast_folder();
    let first = open(folder.path()).unwrap();
    assert!(first.found.clean);
    assert_eq!(first.found.settle_after, Duration::ZERO);
    drop(first);
    let second = open(folder.path()).unwrap();
    assert!(!second.found.clean);
    assert_eq!(second.found.settle_after, SETTLE);
    second.ledger.close(true).unwrap();
    drop(second);
    assert!(open(folder.path()).unwrap().found.clean);
}

#[test]
fn close_without_clean_is_found_as_unclean() {
    let folder = fast_folder();
    let opened = open(folder.path()).unwrap();
    let last = submit(&opened.ledger, raise("a", 1));
    opened.ledger.close(false).unwrap();
    last.recv().unwrap().unwrap();
    drop(opened);
    let opened = open(folder.path()).unwrap();
    assert!(!opened.found.clean);
    assert_eq!(opened.marks["a"], 1);
}

#[test]
fn what_is_queued_at_a_close_is_committed_and_later_submits_are_refused() {
    let folder = fast_folder();
    let opened = open(folder.path()).unwrap();
    let answers: Vec<_> = (1..100).map(|t| submit(&opened.ledger, raise("a", t))).collect();
    opened.ledger.close(true).unwrap();
    for answer in answers {
        answer.recv().unwrap().unwrap();
    }
    assert!(matches!(
        change(&opened.ledger, raise("a", 100)),
        Err(StoreError::Closed)
    ));
    assert!(matches!(opened.ledger.scan("", None, 1), Err(StoreError::Closed)));
    assert!(matches!(
        opened.ledger.hold_is_over(SETTLE),
        Err(StoreError::Closed)
    ));
    drop(opened);
    assert_eq!(open(folder.path()).unwrap().marks["a"], 99);
}

#[test]
fn the_longest_settle_after_is_inherited_until_the_hold_is_over() {
    let folder = fast_folder();
    drop(open_with(folder.path(), Duration::from_secs(60)).unwrap());
    // Unclean, and this run ends before its wait is over: the next one must still wait 60 s.
    drop(open_with(folder.path(), Duration::from_millis(1)).unwrap());
    let third = open_with(folder.path(), Duration::from_millis(5)).unwrap();
    assert_eq!(third.found.settle_after, Duration::from_secs(60));
    third.ledger.hold_is_over(Duration::from_micros(4_001)).unwrap();
    drop(third);
    let fourth = open_with(folder.path(), Duration::from_millis(1)).unwrap();
    assert!(!fourth.found.clean);
    assert_eq!(
        fourth.found.settle_after,
        Duration::from_millis(5),
        "rounded up, never down"
    );
    fourth.ledger.close(true).unwrap();
    drop(fourth);
    // After a clean stop nothing is inherited.
    drop(open_with(folder.path(), Duration::from_millis(2)).unwrap());
    let sixth = open_with(folder.path(), Duration::from_millis(1)).unwrap();
    assert_eq!(sixth.found.settle_after, Duration::from_millis(2));
}

#[test]
fn a_second_instance_is_refused_and_told_the_folder() {
    let folder = fast_folder();
    let first = open(folder.path()).unwrap();
    let refusal = open(folder.path()).err().unwrap();
    assert!(matches!(refusal, OpenError::InUse { .. }), "{refusal}");
    assert!(
        refusal.to_string().contains(folder.path().to_str().unwrap()),
        "{refusal}"
    );
    change(&first.ledger, raise("a", 1)).unwrap();
    drop(first);
    assert_eq!(open(folder.path()).unwrap().marks["a"], 1);
}

#[test]
fn a_second_instance_is_refused_also_while_the_marks_are_elsewhere() {
    let folder = fast_folder();
    let first = open(folder.path()).unwrap();
    fs::rename(folder.path().join("marks"), folder.path().join("elsewhere")).unwrap();
    let refusal = open(folder.path()).err().unwrap();
    assert!(matches!(refusal, OpenError::InUse { .. }), "{refusal}");
    drop(first);
}

#[test]
fn a_lock_file_left_behind_means_nothing() {
    let folder = fast_folder();
    fs::write(folder.path().join("lock"), "").unwrap();
    drop(open(folder.path()).unwrap());
    assert!(open(folder.path()).is_ok());
}

#[test]
fn missing_folders_are_made() {
    let folder = fast_folder();
    let deep = folder.path().join("a/b/c");
    drop(open(&deep).unwrap());
    assert!(deep.join("marks").is_file());
    let file = folder.path().join("file");
    fs::write(&file, "").unwrap();
    let refusal = open(&file).err().unwrap();
    assert!(matches!(refusal, OpenError::Io { .. }), "{refusal}");
}

/// A store that was used: one mark, and stopped.
fn used(folder: &Path) {
    change(&open(folder).unwrap().ledger, raise("a", 1)).unwrap();
}

#[test]
fn a_first_start_that_broke_off_at_any_step_is_made_again() {
    let whole = fast_folder();
    drop(open(whole.path()).unwrap());
    let store = fs::read(whole.path().join("marks")).unwrap();
    // Nothing but the folder; the lock; a new file of any length, not yet renamed.
    for len in [
        None,
        Some(0),
        Some(1),
        Some(512),
        Some(4096),
        Some(5000),
        Some(store.len()),
    ] {
        let folder = fast_folder();
        fs::write(folder.path().join("lock"), "").unwrap();
        if let Some(len) = len {
            fs::write(folder.path().join("marks.new"), &store[..len]).unwrap();
        }
        let opened = open(folder.path()).unwrap();
        assert!(opened.found.clean && opened.marks.is_empty(), "{len:?}");
        assert!(!folder.path().join("marks.new").exists(), "{len:?}");
    }
    // Renamed, and the sign not yet written.
    let folder = fast_folder();
    fs::write(folder.path().join("lock"), "").unwrap();
    fs::write(folder.path().join("marks"), &store).unwrap();
    assert!(open(folder.path()).unwrap().marks.is_empty());
    assert!(!fs::read(folder.path().join("lock")).unwrap().is_empty());
}

#[test]
fn marks_that_are_gone_from_a_used_folder_stop_the_start() {
    for half_written in [false, true] {
        let folder = fast_folder();
        used(folder.path());
        if half_written {
            fs::write(folder.path().join("lock"), "i").unwrap();
        }
        fs::remove_file(folder.path().join("marks")).unwrap();
        // A half-made new file beside it changes nothing.
        fs::write(folder.path().join("marks.new"), "x").unwrap();
        for _ in 0..2 {
            let refusal = open(folder.path()).err().unwrap();
            assert!(matches!(refusal, OpenError::Missing { .. }), "{refusal}");
            let text = refusal.to_string();
            assert!(
                text.contains(folder.path().join("marks").to_str().unwrap()),
                "{text}"
            );
            assert!(text.contains("move the folder away"), "{text}");
        }
    }
}

#[test]
fn an_empty_marks_file_stops_the_start() {
    let folder = fast_folder();
    used(folder.path());
    fs::write(folder.path().join("marks"), "").unwrap();
    assert!(matches!(open(folder.path()), Err(OpenError::Missing { .. })));
    fs::write(folder.path().join("lock"), "").unwrap();
    assert!(matches!(open(folder.path()), Err(OpenError::Missing { .. })));
}

#[test]
fn an_unfinished_new_file_is_removed() {
    let folder = fast_folder();
    used(folder.path());
    fs::write(folder.path().join("marks.new"), "half a copy").unwrap();
    assert_eq!(open(folder.path()).unwrap().marks["a"], 1);
    assert!(!folder.path().join("marks.new").exists());
}

#[test]
fn a_file_that_is_no_store_is_refused_with_the_way_out() {
    let folder = fast_folder();
    used(folder.path());
    let file = folder.path().join("marks");
    let mut bytes = fs::read(&file).unwrap();
    bytes[0] ^= 1;
    fs::write(&file, &bytes).unwrap();
    let refusal = open(folder.path()).err().unwrap();
    assert!(matches!(refusal, OpenError::Damaged { .. }), "{refusal}");
    assert!(
        refusal.to_string().contains("never put back an older copy"),
        "{refusal}"
    );
}

#[test]
fn the_file_stays_small_under_many_raises() {
    let folder = fast_folder();
    let opened = open(folder.path()).unwrap();
    let raises: u128 = if ledger_common::long() { 1_000_000 } else { 50_000 };
    let mut answers = Vec::new();
    for token in 1..=raises {
        let name = format!("bucket/resource-{:04}", token % 1000);
        answers.push(submit(&opened.ledger, raise(&name, token)));
        if answers.len() == 128 {
            for answer in answers.drain(..) {
                answer.recv().unwrap().unwrap();
            }
        }
    }
    for answer in answers {
        answer.recv().unwrap().unwrap();
    }
    let size = fs::metadata(folder.path().join("marks")).unwrap().len();
    println!("{raises} raises on 1000 names: {size} bytes");
    assert!(size < 8 << 20, "{size} bytes");
}
