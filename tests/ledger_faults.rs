//! The disk fails or is full while the ledger runs. The ledger runs in a process of its own, under a small
//! library that makes system calls fail; it takes orders on its standard input.

mod ledger_common;

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead as _, BufReader, Lines, Write as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command};
use std::sync::LazyLock;
use std::time::{Duration, Instant};

use fencegate::ledger::file::OpenError;
use fencegate::ledger::{Ledger as _, StoreError};
use ledger_common::{Seeded, all, change, child, folder_of_child, long, open, raise};

/// A ledger in a process of its own.
struct Remote {
    process: Child,
    answers: Lines<BufReader<ChildStdout>>,
    control: PathBuf,
    folder: PathBuf,
    acknowledged: BTreeMap<String, u128>,
}

impl Remote {
    fn start(place: &Path) -> Remote {
        let mut remote = Remote::launch(place, "-");
        assert_eq!(remote.answer().as_deref(), Some("opened"));
        remote
    }

    /// Starts it with system calls that fail from the beginning.
    fn launch(place: &Path, how: &str) -> Remote {
        let (folder, control) = (place.join("store"), place.join("shim-control"));
        fs::write(&control, how).unwrap();
        let mut process = child(
            "takes_orders",
            &folder,
            &[
                ("LD_PRELOAD", shim().to_owned()),
                ("FENCEGATE_SHIM", control.clone()),
            ],
        );
        let answers = BufReader::new(process.stdout.take().unwrap()).lines();
        Remote {
            process,
            answers,
            control,
            folder,
            acknowledged: BTreeMap::new(),
        }
    }

    /// From now on system calls fail as the shim's letter says.
    fn fail(&self, how: &str) {
        fs::write(&self.control, how).unwrap();
    }

    fn order(&mut self, order: &str) -> String {
        let told = writeln!(self.process.stdin.as_mut().expect("it is piped"), "{order}");
        let answer = told.ok().and_then(|()| self.answer());
        answer.unwrap_or_else(|| "died".into())
    }

    /// The next answer, or none where the process has died.
    fn answer(&mut self) -> Option<String> {
        let mut lines = self.answers.by_ref().map_while(Result::ok);
        lines.find_map(|line| line.strip_prefix("> ").map(str::to_owned))
    }

    fn raise(&mut self, name: &str, token: u128) -> String {
        let answer = self.order(&format!("raise {name} {token}"));
        if answer == "ok" {
            self.acknowledged.insert(name.to_owned(), token);
        }
        answer
    }

    /// Submits the raise again and again, as a client would, until it is taken.
    fn raise_until_taken(&mut self, name: &str, token: u128) {
        let end = Instant::now() + Duration::from_secs(60);
        loop {
            match self.raise(name, token).as_str() {
                "ok" => return,
                answer => assert!(Instant::now() < end, "still: {answer}"),
            }
            std::thread::yield_now();
        }
    }

    /// Kills it, and checks what is found by the next start.
    fn kill_and_check(mut self) {
        self.process.kill().unwrap();
        self.check();
    }

    /// Waits for its end and checks what the next start finds: the marks.
    fn check(mut self) -> BTreeMap<String, u128> {
        self.process.wait().unwrap();
        let opened = open(&self.folder).unwrap_or_else(|e| panic!("{e}"));
        for (name, token) in &self.acknowledged {
            let found = opened.marks.get(name);
            assert!(
                found >= Some(token),
                "{name} acknowledged {token}, found {found:?}"
            );
        }
        assert_eq!(all(&opened.ledger), opened.marks);
        opened.marks
    }

    fn inode(&self) -> u64 {
        fs::metadata(self.folder.join("marks")).unwrap().ino()
    }
}

impl Drop for Remote {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

#[test]
#[ignore = "the child of the tests of this file"]
fn takes_orders() {
    let opened = open(&folder_of_child()).unwrap();
    println!("> opened");
    for line in std::io::stdin().lines() {
        let line = line.unwrap();
        let result = match line.split(' ').collect::<Vec<_>>()[..] {
            ["raise", name, token] => change(&opened.ledger, raise(name, token.parse().unwrap())),
            ["scan"] => opened.ledger.scan("", None, usize::MAX).map(drop),
            ["close"] => opened.ledger.close(true),
            ["limit", bytes] => {
                limit_file_size(bytes.parse().unwrap());
                Ok(())
            }
            _ => panic!("unknown order {line:?}"),
        };
        match result {
            Ok(()) => println!("> ok"),
            Err(StoreError::Full(_)) => println!("> full"),
            Err(StoreError::Failed(_)) => println!("> failed"),
            Err(StoreError::Closed) => println!("> closed"),
            Err(error @ (StoreError::Away(_) | StoreError::NotOwner)) => panic!("not of a file: {error}"),
        }
    }
}

#[test]
fn after_a_failed_fsync_nothing_is_acknowledged_until_a_new_file_holds_everything() {
    let place = tempfile::tempdir().unwrap();
    let mut remote = Remote::start(place.path());
    assert_eq!(remote.raise("a", 1), "ok");
    let inode = remote.inode();
    remote.fail("S");
    for token in 2..5 {
        assert_eq!(remote.raise("a", token), "failed");
        assert_eq!(remote.raise("b", token), "failed");
    }
    assert_eq!(remote.order("scan"), "failed");
    remote.fail("-");
    remote.raise_until_taken("a", 6);
    assert_ne!(remote.inode(), inode, "it goes on in a new file");
    assert_eq!(remote.raise("c", 1), "ok");
    assert_eq!(remote.order("scan"), "ok");
    remote.kill_and_check();
}

#[test]
fn a_close_brings_the_store_back_without_waiting_for_the_next_try() {
    let place = tempfile::tempdir().unwrap();
    let mut remote = Remote::start(place.path());
    remote.fail("S");
    for token in 1..4 {
        assert_eq!(remote.raise("a", token), "failed");
    }
    remote.fail("-");
    assert_eq!(remote.order("close"), "ok");
    assert_eq!(remote.raise("a", 9), "closed");
    remote.process.kill().unwrap();
    remote.process.wait().unwrap();
    assert!(open(&remote.folder).unwrap().found.clean);
}

#[test]
fn one_failed_fsync_is_enough() {
    let place = tempfile::tempdir().unwrap();
    let mut remote = Remote::start(place.path());
    assert_eq!(remote.raise("a", 42), "ok");
    let inode = remote.inode();
    remote.fail("s");
    // Taken only where the one that failed was the idle moment's after 42, and the new file is there by now.
    let answer = remote.raise("a", 43);
    assert!(answer == "failed" || remote.inode() != inode, "{answer}");
    remote.raise_until_taken("a", 43);
    assert_ne!(remote.inode(), inode, "it goes on in a new file");
    remote.kill_and_check();
}

#[test]
fn what_a_failed_fsync_has_lost_was_never_acknowledged() {
    let place = tempfile::tempdir().unwrap();
    let mut remote = Remote::start(place.path());
    for token in 1..20 {
        assert_eq!(remote.raise(&format!("r/{}", token % 3), token), "ok");
    }
    for token in 20..24 {
        remote.fail("L");
        assert_eq!(remote.raise("r/0", token), "failed");
        assert_eq!(remote.raise("r/1", token), "failed");
        remote.fail("-");
        remote.raise_until_taken("r/2", token);
    }
    remote.kill_and_check();
}

#[test]
fn a_failed_write_is_like_a_failed_fsync() {
    let place = tempfile::tempdir().unwrap();
    let mut remote = Remote::start(place.path());
    assert_eq!(remote.raise("a", 1), "ok");
    remote.fail("W");
    assert_eq!(remote.raise("a", 2), "failed");
    remote.fail("-");
    remote.raise_until_taken("a", 3);
    remote.kill_and_check();
}

#[test]
fn a_disk_that_lost_what_was_acknowledged_is_never_trusted_again() {
    let place = tempfile::tempdir().unwrap();
    let mut remote = Remote::start(place.path());
    assert_eq!(remote.raise("a", 1), "ok");
    remote.fail("R");
    assert_eq!(remote.raise("a", 2), "failed");
    remote.fail("-");
    for token in 3..50 {
        assert_eq!(remote.raise("a", token), "failed");
    }
    assert_eq!(remote.order("scan"), "failed");
    assert_eq!(remote.order("close"), "failed");
    remote.process.kill().unwrap();
    remote.process.wait().unwrap();
    assert!(matches!(open(&remote.folder), Err(OpenError::Damaged { .. })));
}

#[test]
fn a_disk_that_went_back_to_an_earlier_commit_is_never_trusted_again() {
    let place = tempfile::tempdir().unwrap();
    let mut remote = Remote::start(place.path());
    remote.fail("K");
    assert_eq!(remote.raise("a", 2), "ok");
    // A commit of its own before the next letter, so that K's last fsync is behind.
    remote.fail("-");
    for token in 3..6 {
        assert_eq!(remote.raise("a", token), "ok");
    }
    remote.fail("O");
    assert_eq!(remote.raise("a", 6), "failed");
    remote.fail("-");
    for token in 7..20 {
        assert_eq!(remote.raise("a", token), "failed");
    }
    assert_eq!(remote.order("scan"), "failed");
}

#[test]
fn a_commit_whose_folder_goes_away_meanwhile_is_not_acknowledged() {
    let place = tempfile::tempdir().unwrap();
    let mut remote = Remote::start(place.path());
    // No quiet moment's fsync is due after the start, so it is the commit's own.
    remote.fail("M");
    assert_eq!(remote.raise("a", 1), "failed");
    assert_eq!(remote.raise("a", 1), "failed");
    assert!(!remote.folder.exists());
    fs::rename(place.path().join("store.away"), &remote.folder).unwrap();
    assert_eq!(remote.raise("a", 2), "ok");
    remote.kill_and_check();
}

#[test]
fn a_recovery_never_puts_its_new_file_where_the_folder_is_another() {
    let place = tempfile::tempdir().unwrap();
    let mut remote = Remote::start(place.path());
    assert_eq!(remote.raise("a", 1), "ok");
    remote.fail("S");
    assert_eq!(remote.raise("a", 2), "failed");
    let away = place.path().join("away");
    fs::rename(&remote.folder, &away).unwrap();
    fs::create_dir(&remote.folder).unwrap();
    remote.fail("-");
    // A close tries at once.
    assert_eq!(remote.raise("a", 3), "failed");
    assert_eq!(remote.order("close"), "failed");
    assert_eq!(fs::read_dir(&remote.folder).unwrap().count(), 0);
    fs::remove_dir(&remote.folder).unwrap();
    fs::rename(&away, &remote.folder).unwrap();
    remote.kill_and_check();
}

#[test]
fn a_recovery_goes_on_when_the_folder_is_back() {
    let place = tempfile::tempdir().unwrap();
    let mut remote = Remote::start(place.path());
    assert_eq!(remote.raise("a", 1), "ok");
    let inode = remote.inode();
    remote.fail("S");
    assert_eq!(remote.raise("a", 2), "failed");
    let away = place.path().join("away");
    fs::rename(&remote.folder, &away).unwrap();
    remote.fail("-");
    assert_eq!(remote.raise("a", 3), "failed");
    fs::rename(&away, &remote.folder).unwrap();
    remote.raise_until_taken("a", 4);
    assert_ne!(remote.inode(), inode, "it goes on in a new file");
    // And the new file is the one that has to stand there from now on.
    fs::rename(&remote.folder, &away).unwrap();
    assert_eq!(remote.raise("a", 5), "failed");
    fs::rename(&away, &remote.folder).unwrap();
    assert_eq!(remote.raise("a", 6), "ok");
    remote.kill_and_check();
}

#[test]
fn every_acknowledged_mark_survives_a_power_cut() {
    let place = ledger_common::fast_folder();
    let rounds = if long() { 500 } else { 25 };
    let mut seeded = Seeded(0xca7);
    let mut acknowledged = BTreeMap::new();
    for round in 1..=rounds {
        let mut remote = Remote::start(place.path());
        remote.acknowledged = acknowledged;
        // The third fsync from then, say, be it a commit's or one of an idle moment.
        let (at, seed, skip) = (seeded.below(6), seeded.below(u64::MAX), seeded.below(5));
        for n in 0.. {
            if n == at {
                remote.fail(&format!("P {seed} {skip}"));
            }
            if remote.raise(&format!("r/{}", n % 3), u128::from(round * 100 + n)) == "died" {
                break;
            }
        }
        acknowledged = remote.check();
    }
    assert_eq!(acknowledged.len(), 3);
}

#[test]
fn a_power_cut_at_any_fsync_of_the_first_start_leaves_a_folder_that_starts() {
    let mut cuts = 0;
    for skip in 0.. {
        let place = ledger_common::fast_folder();
        let mut remote = Remote::launch(place.path(), &format!("P {} {skip}", 77 + skip));
        if remote.answer().as_deref() == Some("opened") {
            break;
        }
        cuts += 1;
        remote.fail("-");
        let folder = remote.folder.clone();
        assert!(remote.check().is_empty());
        assert!(!folder.join("marks.new").exists());
    }
    assert!(cuts > 5, "{cuts} fsyncs were hit");
}

#[test]
fn a_full_device_refuses_raises_and_recovers_by_itself() {
    let place = tempfile::tempdir().unwrap();
    let mut remote = Remote::start(place.path());
    assert_eq!(remote.raise("a", 1), "ok");
    remote.fail("F");
    for token in 2..6 {
        assert_eq!(remote.raise("a", token), "full");
    }
    remote.fail("-");
    assert_eq!(remote.raise("a", 7), "ok", "at once, when there is room");
    remote.kill_and_check();
}

#[test]
fn a_file_at_its_size_limit_is_a_full_device() {
    let place = tempfile::tempdir().unwrap();
    let mut remote = Remote::start(place.path());
    file_at_its_limit(&mut remote);
    remote.kill_and_check();
}

/// Raises ever more names until the file may not grow any more, then lets it grow again.
fn file_at_its_limit(remote: &mut Remote) {
    let limit = fs::metadata(remote.folder.join("marks")).unwrap().len() + (64 << 10);
    assert_eq!(remote.order(&format!("limit {limit}")), "ok");
    let refused = fill(remote);
    assert_eq!(remote.raise(&refused, 2), "full");
    assert_eq!(remote.order("limit -1"), "ok");
    assert_eq!(remote.raise(&refused, 3), "ok", "at once, when there is room");
    assert_eq!(remote.order("scan"), "ok");
}

#[test]
fn a_full_file_system_loses_nothing_over_a_restart() {
    let place = tempfile::tempdir().unwrap();
    let mounted = place.path().join("small");
    fs::create_dir(&mounted).unwrap();
    let Some(_mount) = Mount::tmpfs(&mounted) else {
        eprintln!("NOTE: no tmpfs may be mounted here; a limit on the file's size stands in for it");
        let mut remote = Remote::start(place.path());
        file_at_its_limit(&mut remote);
        return remote.kill_and_check();
    };
    let mut remote = Remote::start(&mounted);
    let filler = mounted.join("filler");
    fs::write(&filler, vec![7; 300 << 10]).unwrap();
    let refused = fill(&mut remote);
    assert_eq!(remote.raise(&refused, 2), "full");
    fs::remove_file(&filler).unwrap();
    assert_eq!(remote.raise(&refused, 3), "ok", "at once, when there is room");

    // Full again, and killed: the next start finds everything, or says that it needs room.
    fill(&mut remote);
    remote.process.kill().unwrap();
    remote.process.wait().unwrap();
    match open(&remote.folder) {
        Ok(opened) => assert!(
            remote
                .acknowledged
                .iter()
                .all(|(n, t)| opened.marks.get(n) >= Some(t))
        ),
        Err(OpenError::Full { .. }) => {}
        Err(other) => panic!("{other}"),
    }
    Mount::resize(&mounted, "8m");
    remote.kill_and_check();
}

/// Raises new long names until there is no room; gives the first that was refused.
fn fill(remote: &mut Remote) -> String {
    for n in 0..20_000 {
        let name = format!("r/{}/{n}", "x".repeat(900));
        match remote.raise(&name, 1).as_str() {
            "ok" => {}
            "full" => return name,
            other => panic!("{other}"),
        }
    }
    panic!("there was always room");
}

/// A mounted file system, unmounted when dropped.
struct Mount(PathBuf);

impl Mount {
    fn tmpfs(at: &Path) -> Option<Mount> {
        let done = Command::new("mount")
            .args(["-t", "tmpfs", "-o", "size=1m", "none"])
            .arg(at)
            .status();
        done.is_ok_and(|status| status.success())
            .then(|| Mount(at.to_owned()))
    }

    fn resize(at: &Path, size: &str) {
        let option = format!("remount,size={size}");
        assert!(
            Command::new("mount")
                .args(["-o", &option])
                .arg(at)
                .status()
                .unwrap()
                .success()
        );
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

/// The library that makes calls fail, built once.
fn shim() -> &'static Path {
    static BUILT: LazyLock<PathBuf> = LazyLock::new(|| {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/ledger_common/shim.c");
        // Renamed when whole: another run of these tests may build it at the same time.
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
        let (unfinished, library) = (
            folder.join(format!("{}.so", std::process::id())),
            folder.join("ledger-shim.so"),
        );
        let built = Command::new("cc")
            .args(["-shared", "-fPIC", "-O1", "-o"])
            .arg(&unfinished)
            .arg(&source)
            .status();
        assert!(built.expect("a C compiler is there").success());
        fs::rename(&unfinished, &library).unwrap();
        library
    });
    &BUILT
}

fn limit_file_size(bytes: i64) {
    let soft = u64::try_from(bytes).unwrap_or(libc::RLIM_INFINITY);
    // SAFETY: plain system calls on this process's own limits.
    unsafe {
        libc::signal(libc::SIGXFSZ, libc::SIG_IGN);
        let mut limit = libc::rlimit {
            rlim_cur: 0,
            rlim_max: 0,
        };
        assert_eq!(libc::getrlimit(libc::RLIMIT_FSIZE, &mut limit), 0);
        limit.rlim_cur = soft.min(limit.rlim_max);
        assert_eq!(libc::setrlimit(libc::RLIMIT_FSIZE, &limit), 0);
    }
}
