//! The ledger in a folder of a local disk: one file of an embedded store, one thread that commits to it, and a
//! lock against a second instance.
//!
//! What it refuses to do: start from marks that it can't prove to be all of what was acknowledged. Damage, a
//! lost file, an older commit than the latest acknowledged one are errors at the start, each with the way out.
//! And acknowledge what the next start would not find, because other files stand at the path by then.
//! Called by the assembly of the server, and by `keeper/` through [`Ledger`].

mod disk;
mod folder;
mod offline;
mod overlay;
mod record;
mod store;
mod trouble;
mod writer;

use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::Duration;

pub use self::disk::VERSION as FORMAT;
use self::folder::Folder;
pub use self::offline::Offline;
use self::record::{Head, ms_up};
use self::store::Store;
pub use self::trouble::OpenError;
use self::trouble::Trouble;
use self::writer::{Job, Shared, State, Writer};
use super::{AuditEntry, Change, Done, Found, Ledger, Mark, StoreError};

/// Marks in a folder. Dropped without [`Ledger::close`] it commits what is queued and counts as an unclean stop.
pub struct FileLedger {
    shared: Arc<Shared>,
    writer: Option<JoinHandle<()>>,
}

impl FileLedger {
    /// Opens the store in the folder `path`, or makes one where the folder never held any, verifies all of it,
    /// and durably marks this run as not cleanly ended, with the larger of `settle_after` and what an unclean
    /// earlier run left.
    ///
    /// `on_mark` gets each mark while it is read; after an error none of them counts. `on_commit` gets the time
    /// that each commit took.
    ///
    /// # Errors
    /// [`OpenError`]: another instance has the folder, or the store can't be trusted.
    pub fn open(
        path: &Path,
        settle_after: Duration,
        on_commit: Arc<dyn Fn(Duration) + Send + Sync>,
        on_mark: &mut dyn FnMut(&str, Mark),
    ) -> Result<(FileLedger, Found), OpenError> {
        let mut folder = Folder::claim(path)?;
        let marks = folder.marks();
        make_if_never_made(&folder)?;
        let (store, before) = Store::open(&marks, on_mark).map_err(|trouble| trouble.at(&marks))?;
        folder
            .sign()
            .map_err(|e| Trouble::from_write("write to the lock file", &e).at(path))?;
        let head = begin_run(&store, &before, settle_after).map_err(|trouble| trouble.at(&marks))?;
        let disk = store.disk();
        folder.stands(&disk).map_err(|trouble| trouble.at(path))?;
        let shared = Shared::new(store);
        let writer = Writer {
            shared: shared.clone(),
            folder,
            disk,
            head,
            state: State::Open,
            witness_pending: false,
            on_commit,
        };
        let writer = std::thread::Builder::new()
            .name("ledger".into())
            .spawn(move || writer.run())
            .map_err(|e| Trouble::from_read("start its thread", &e).at(&marks))?;
        let found = Found {
            clean: before.clean,
            settle_after: Duration::from_millis(before.settle_ms),
        };
        let ledger = FileLedger {
            shared,
            writer: Some(writer),
        };
        Ok((ledger, found))
    }

    fn ask(&self, job: impl FnOnce(SyncSender<Result<(), StoreError>>) -> Job) -> Result<(), StoreError> {
        let (reply, answer) = sync_channel(1);
        self.shared.push(job(reply));
        answer.recv().unwrap_or(Err(StoreError::Closed))
    }
}

impl Ledger for FileLedger {
    fn submit(&self, change: Change, done: Done) {
        self.shared.push(Job::Change(change, done));
    }

    fn scan(
        &self,
        prefix: &str,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Vec<(String, Mark)>, StoreError> {
        self.shared.read(|store| store.scan(prefix, after, limit))
    }

    fn audit_trail(&self, limit: usize) -> Result<Vec<AuditEntry>, StoreError> {
        self.shared.read(|store| store.audit_trail(limit))
    }

    fn hold_is_over(&self, settle_after: Duration) -> Result<(), StoreError> {
        self.ask(|reply| Job::Settle(settle_after, reply))
    }

    fn close(&self, clean: bool) -> Result<(), StoreError> {
        self.ask(|reply| Job::Close(clean, reply))
    }
}

impl Drop for FileLedger {
    fn drop(&mut self) {
        self.shared.push(Job::Stop);
        if let Some(writer) = self.writer.take() {
            let _ = writer.join();
        }
    }
}

/// Makes the first store of a folder, under another name until it is whole. Marks that are gone from a folder
/// that was in use are never taken for marks that never were.
fn make_if_never_made(folder: &Folder) -> Result<(), OpenError> {
    let file = folder.marks();
    match std::fs::metadata(&file) {
        Ok(meta) if meta.len() > 0 => return Ok(()),
        Ok(_) => return Err(OpenError::Missing { file, state: "empty" }),
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            return Err(Trouble::from_read("look at it", &error).at(&file));
        }
        Err(_) if folder.used_before() => {
            return Err(OpenError::Missing {
                file,
                state: "missing",
            });
        }
        Err(_) => {}
    }
    let unfinished = folder.unfinished();
    let clean = Head {
        clean: true,
        ..Head::default()
    };
    Store::create(&unfinished, &clean)
        .and_then(Store::close)
        .map_err(|trouble| trouble.at(&unfinished))?;
    folder
        .publish()
        .map_err(|e| Trouble::from_write("put it in place", &e).at(&file))
}

/// The marker goes before anything else happens, and the longest wait that anyone still has to expect stays.
fn begin_run(store: &Store, before: &Head, settle_after: Duration) -> Result<Head, Trouble> {
    let inherited = if before.clean { 0 } else { before.settle_ms };
    let dirty = Head {
        clean: false,
        settle_ms: ms_up(settle_after).max(inherited),
        ..*before
    };
    let head = store
        .commit(&dirty, std::iter::empty())
        .map_err(|unfinished| unfinished.trouble)?;
    store.settle_witness()?;
    Ok(head)
}
