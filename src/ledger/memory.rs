//! Marks in memory: lost at exit. For trying things out, and for tests. Called like any other [`Ledger`].

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;
use std::sync::mpsc::{Sender, SyncSender, channel, sync_channel};
use std::thread::JoinHandle;
use std::time::Duration;

use parking_lot::Mutex;

use super::{Audit, AuditEntry, Change, Done, Ledger, Mark, StoreError};

/// A ledger that forgets. Its `done`s come from a thread of its own, so that a caller may hold a lock in
/// `submit` that its `done` takes.
pub struct MemoryLedger {
    held: Arc<Mutex<Held>>,
    jobs: Sender<Job>,
    answerer: Option<JoinHandle<()>>,
}

enum Job {
    Change(Change, Done),
    Close(SyncSender<()>),
    Stop,
}

#[derive(Default)]
struct Held {
    marks: BTreeMap<String, Mark>,
    resets: Vec<AuditEntry>,
    closed: bool,
}

impl MemoryLedger {
    /// An empty ledger.
    ///
    /// # Panics
    /// Where the system gives no thread.
    #[must_use]
    #[allow(clippy::new_without_default)]
    pub fn new() -> MemoryLedger {
        let held = Arc::new(Mutex::new(Held::default()));
        let (jobs, coming) = channel::<Job>();
        let answerer = std::thread::Builder::new().name("ledger".into()).spawn({
            let held = held.clone();
            move || {
                while let Ok(job) = coming.recv() {
                    match job {
                        Job::Change(change, done) => {
                            // The lock is given back before `done`, which may read the ledger.
                            let result = held.lock().apply(change);
                            done(result);
                        }
                        Job::Close(closed) => {
                            held.lock().closed = true;
                            let _ = closed.send(());
                        }
                        Job::Stop => break,
                    }
                }
            }
        });
        MemoryLedger {
            held,
            jobs,
            answerer: Some(answerer.expect("the system has a thread for the ledger")),
        }
    }
}

impl Held {
    fn apply(&mut self, change: Change) -> Result<(), StoreError> {
        if self.closed {
            return Err(StoreError::Closed);
        }
        match change {
            Change::Raise { name, mark } => {
                let held = self.marks.entry(name.as_ref().to_owned()).or_insert(mark);
                if held.token < mark.token {
                    *held = mark;
                }
            }
            Change::Reset { name, mark, audit } => {
                self.marks.insert(name.as_ref().to_owned(), mark);
                self.note(&name, mark, audit);
            }
            Change::Note { name, mark, audit } => self.note(&name, mark, audit),
        }
        Ok(())
    }

    fn note(&mut self, name: &str, mark: Mark, audit: Audit) {
        self.resets.push(AuditEntry {
            sequence: self.resets.len() as u64,
            name: name.to_owned(),
            mark,
            audit,
        });
    }
}

impl Ledger for MemoryLedger {
    fn submit(&self, change: Change, done: Done) {
        self.jobs
            .send(Job::Change(change, done))
            .expect("the thread ends only when the ledger is dropped");
    }

    fn scan(
        &self,
        prefix: &str,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Vec<(String, Mark)>, StoreError> {
        let start = match after {
            Some(after) if after >= prefix => Bound::Excluded(after),
            _ => Bound::Included(prefix),
        };
        let held = self.held.lock();
        let from = held.marks.range::<str, _>((start, Bound::Unbounded));
        let matching = from.take_while(|(name, _)| name.starts_with(prefix)).take(limit);
        Ok(matching.map(|(name, mark)| (name.clone(), *mark)).collect())
    }

    fn audit_trail(&self, limit: usize) -> Result<Vec<AuditEntry>, StoreError> {
        Ok(self
            .held
            .lock()
            .resets
            .iter()
            .rev()
            .take(limit)
            .cloned()
            .collect())
    }

    fn hold_is_over(&self, _settle_after: Duration) -> Result<(), StoreError> {
        Ok(())
    }

    fn close(&self, _clean: bool) -> Result<(), StoreError> {
        // Through the queue, so that what was submitted before is taken.
        let (closed, answer) = sync_channel(1);
        let _ = self.jobs.send(Job::Close(closed));
        answer.recv().map_err(|_| StoreError::Closed)
    }
}

impl Drop for MemoryLedger {
    fn drop(&mut self) {
        let _ = self.jobs.send(Job::Stop);
        if let Some(answerer) = self.answerer.take() {
            let _ = answerer.join();
        }
    }
}
