//! What the ledger's tests share: opening, raising and waiting for the answer, a seeded generator, re-running
//! this test binary as a child that can be killed.
#![allow(dead_code)]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use fencegate::base::{Token, TokenFormat};
use fencegate::ledger::file::{FileLedger, OpenError};
use fencegate::ledger::{Audit, Change, Found, Ledger, Mark, StoreError};

pub const SETTLE: Duration = Duration::from_secs(7);

pub struct Opened {
    pub ledger: FileLedger,
    pub found: Found,
    pub marks: BTreeMap<String, u128>,
}

pub fn open(folder: &Path) -> Result<Opened, OpenError> {
    open_with(folder, SETTLE)
}

pub fn open_with(folder: &Path, settle_after: Duration) -> Result<Opened, OpenError> {
    let mut marks = BTreeMap::new();
    let (ledger, found) = FileLedger::open(folder, settle_after, Arc::new(|_| ()), &mut |name, mark| {
        assert!(
            marks.insert(name.to_owned(), mark.token.0).is_none(),
            "{name} came twice"
        );
    })?;
    Ok(Opened { ledger, found, marks })
}

pub fn mark(token: u128) -> Mark {
    Mark {
        token: Token(token),
        format: TokenFormat::Integer,
        raised_at_ms: 1_700_000_000_000,
    }
}

pub fn raise(name: &str, token: u128) -> Change {
    Change::Raise {
        name: name.into(),
        mark: mark(token),
    }
}

pub fn reset(name: &str, token: u128, reason: &str) -> Change {
    Change::Reset {
        name: name.into(),
        mark: mark(token),
        audit: Audit {
            from: "99".into(),
            reason: reason.into(),
            by: "127.0.0.1:5".into(),
        },
    }
}

/// Submits, and gives the place where the answer will come.
pub fn submit(ledger: &dyn Ledger, change: Change) -> Receiver<Result<(), StoreError>> {
    let (told, answer) = channel();
    ledger.submit(change, Box::new(move |result| told.send(result).unwrap()));
    answer
}

/// Submits and waits for the answer.
pub fn change(ledger: &dyn Ledger, change: Change) -> Result<(), StoreError> {
    submit(ledger, change)
        .recv_timeout(Duration::from_secs(60))
        .expect("every submitted change is answered")
}

/// All marks, as the open ledger reads them.
pub fn all(ledger: &dyn Ledger) -> BTreeMap<String, u128> {
    let marks = ledger.scan("", None, usize::MAX).unwrap();
    marks
        .into_iter()
        .map(|(name, mark)| (name, mark.token.0))
        .collect()
}

/// True where the long versions are asked for.
pub fn long() -> bool {
    std::env::var_os("FENCEGATE_LONG").is_some()
}

/// A folder in memory where there is one: these tests open stores thousands of times.
pub fn fast_folder() -> tempfile::TempDir {
    tempfile::tempdir_in("/dev/shm")
        .or_else(|_| tempfile::tempdir())
        .unwrap()
}

/// A small seeded generator: the same numbers at every run.
pub struct Seeded(pub u64);

impl Seeded {
    pub fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % end
    }
}

/// Runs the ignored test `name` of this binary as a process of its own, with `FENCEGATE_FOLDER` set.
pub fn child(name: &str, folder: &Path, more: &[(&str, PathBuf)]) -> Child {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .args([name, "--exact", "--ignored", "--nocapture"])
        .env("FENCEGATE_FOLDER", folder)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped());
    for (key, value) in more {
        command.env(key, value);
    }
    command.spawn().unwrap()
}

/// The folder that [`child`] has set.
pub fn folder_of_child() -> PathBuf {
    std::env::var_os("FENCEGATE_FOLDER")
        .expect("run by a test of this file, not by hand")
        .into()
}
