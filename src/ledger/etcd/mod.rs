//! The ledger in etcd: marks that several instances share, one of which owns them by a leased key and may admit.
//!
//! An [`Agent`] stands by on a thread of its own until nobody owns the prefix; then it makes this instance the owner in
//! one transaction with the marker, reads the marks, and hands out an [`EtcdLedger`] that is good for that tenure alone.
//! It never lets an instance be the owner for longer than etcd keeps others out, and never takes what another history
//! of etcd says. What stands below the prefix is described in `docs/store-etcd.md`.
//! Called by the assembly of the server, and by `keeper/` through [`Ledger`].

mod adopt;
mod batch;
mod cluster;
mod failure;
mod history;
mod life;
mod pages;
mod pause;
mod settings;
mod standby;
mod tenure;
mod values;
mod writer;

use std::cell::Cell;
use std::sync::Arc;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio::sync::mpsc::UnboundedSender;
use tokio::sync::watch;

pub use self::adopt::{Adopted, Reader, View, adopt};
use self::batch::Pending;
use self::cluster::Cluster;
use self::life::Life;
pub use self::settings::{Login, Settings, Tls};
use self::tenure::Tenure;
use self::values::Keys;
pub use self::values::NAME_BYTES_MAX;
use self::writer::Job;
use super::{AuditEntry, Change, Done, Found, Ledger, Mark, StoreError};

/// What happens to the ownership, in the order in which it happens.
pub enum Event {
    /// This instance owns the prefix.
    Elected {
        /// Bound to this tenure: once that has ended it owns nothing, and takes nothing, for ever.
        ledger: Arc<EtcdLedger>,
        /// All marks, read after the ownership was taken.
        marks: Vec<(String, Mark)>,
        /// What the earlier owner left.
        found: Found,
        /// When the answer came to the transaction that made this instance the owner: the wait counts from it.
        answered_at: Instant,
    },
    /// The ownership could not be renewed in time. All connections to the backend are to be reset. The lease may still
    /// live, so [`Event::Regained`] may follow.
    Lapsed,
    /// It was renewed after all, and nobody owned the prefix meanwhile: the same ledger goes on.
    Regained,
    /// The tenure is over, because of this. Another [`Event::Elected`] may follow.
    Ended(String),
    /// This instance can't serve; nothing follows.
    Fatal(OpenError),
}

/// Why there is no ledger in etcd.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// What is configured can't be used.
    #[error("{0}")]
    Settings(String),
    /// A value is not what this program writes.
    #[error("etcd: the key {key:?} can't be read: {what}; {WAY_OUT}")]
    Unreadable {
        /// The key.
        key: String,
        /// What is wrong with its value.
        what: String,
    },
    /// A value is of another version of this program.
    #[error("etcd: the key {key:?} has format {found}, this version reads 1; run the version that wrote it")]
    Version {
        /// The key.
        key: String,
        /// Its format.
        found: u64,
    },
    /// A key is gone.
    #[error("etcd: the key {key:?} is missing beside {beside:?}; {WAY_OUT}")]
    Incomplete {
        /// The missing key.
        key: String,
        /// One that shows that the prefix was in use.
        beside: String,
    },
    /// The system gave no thread, or etcd could not be asked.
    #[error("{0}")]
    Failed(String),
}

/// The one safe way out of marks that can't be read.
const WAY_OUT: &str = "give this gate a new prefix, once no client holds a lock from before or the token source has \
     been raised above every token ever issued (never put back an older copy: it would admit stale tokens)";

/// What this instance is to the prefix.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Role {
    /// Another one owns it, or nobody does, or etcd can't be asked.
    Standby,
    /// It has won, and reads the marks.
    Candidate,
    /// It owns the prefix.
    Owner,
    /// It may own the prefix still, but is not sure.
    Lapsed,
    /// It stands for nothing any more.
    Closed,
}

/// How things stand, for people and for readiness.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Status {
    /// What this instance is.
    pub role: Role,
    /// Who owns the prefix, where that is known.
    pub owner: Option<String>,
    /// Why etcd can't be asked, if it can't.
    pub unreachable: Option<String>,
    /// Why nothing that etcd says is taken, until an operator adopts it.
    pub history: Option<String>,
}

/// One instance's part in the ownership of a prefix.
pub struct Agent {
    cluster: Arc<Cluster>,
    status: Arc<Mutex<Status>>,
    stop: watch::Sender<bool>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Agent {
    /// Stands by from now on. Whether etcd can be reached makes no difference.
    ///
    /// `on_commit` gets the time that each commit took. `events` closes when nothing follows.
    ///
    /// # Errors
    /// [`OpenError`] where the settings can't be used.
    pub fn start(
        settings: Settings,
        on_commit: Arc<dyn Fn(Duration) + Send + Sync>,
        events: UnboundedSender<Event>,
    ) -> Result<Agent, OpenError> {
        settings.check()?;
        let keys = Keys::below(&settings.prefix);
        let cluster = Arc::new(Cluster::new(settings));
        let status = Arc::new(Mutex::new(Status {
            role: Role::Standby,
            owner: None,
            unreachable: None,
            history: None,
        }));
        let (stop, stopped) = watch::channel(false);
        let life = Life {
            cluster: cluster.clone(),
            keys,
            events,
            status: status.clone(),
            on_commit,
            stop: stopped,
            could_read: Cell::new(false),
            too_slow: Cell::new(false),
        };
        let thread = spawn(|| life.run())?;
        Ok(Agent {
            cluster,
            status,
            stop,
            thread: Mutex::new(Some(thread)),
        })
    }

    /// How things stand.
    #[must_use]
    pub fn status(&self) -> Status {
        Status {
            unreachable: self.cluster.trouble(),
            ..self.status.lock().clone()
        }
    }

    /// Ends it, within some seconds. An ownership that was not given up by [`Ledger::close`] before is given up as an
    /// unclean stop.
    pub fn stop(&self) {
        let _gone = self.stop.send(true);
        if let Some(thread) = self.thread.lock().take()
            && thread.join().is_err()
        {
            tracing::error!("the thread of the store in etcd panicked; this is a bug");
        }
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        self.stop();
    }
}

impl std::fmt::Debug for Agent {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Agent").field("status", &self.status()).finish()
    }
}

/// Runs it on a thread of its own.
fn spawn<F: Future<Output = ()>>(
    work: impl FnOnce() -> F + Send + 'static,
) -> Result<JoinHandle<()>, OpenError> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| OpenError::Failed(format!("the thread of the store can't be made: {error}")))?;
    std::thread::Builder::new()
        .name("fencegate-etcd".into())
        .spawn(move || tokio::task::LocalSet::new().block_on(&runtime, work()))
        .map_err(|error| OpenError::Failed(format!("the system gives no thread for the store: {error}")))
}

/// The marks in etcd, for one tenure.
pub struct EtcdLedger {
    tenure: Arc<Tenure>,
    jobs: UnboundedSender<Job>,
}

impl EtcdLedger {
    fn new(tenure: Arc<Tenure>, jobs: UnboundedSender<Job>) -> EtcdLedger {
        EtcdLedger { tenure, jobs }
    }

    /// Why the tenure is over, if it is.
    #[must_use]
    pub fn over(&self) -> Option<String> {
        self.tenure.over()
    }

    fn ask<T>(&self, job: impl FnOnce(SyncSender<Result<T, StoreError>>) -> Job) -> Result<T, StoreError> {
        if self.tenure.over().is_some() {
            return Err(StoreError::NotOwner);
        }
        let (reply, answer) = sync_channel(1);
        self.jobs.send(job(reply)).map_err(|_| StoreError::NotOwner)?;
        answer.recv().unwrap_or(Err(StoreError::NotOwner))
    }
}

impl std::fmt::Debug for EtcdLedger {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("EtcdLedger")
            .field("tenure", &self.tenure)
            .finish_non_exhaustive()
    }
}

impl Ledger for EtcdLedger {
    fn submit(&self, change: Change, done: Done) {
        // Where the thread has ended, the change comes back, and its answer with it.
        let _refused = self.jobs.send(Job::Change(Pending::new(change, done)));
    }

    fn scan(
        &self,
        prefix: &str,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Vec<(String, Mark)>, StoreError> {
        self.ask(|reply| Job::Scan {
            prefix: prefix.to_owned(),
            after: after.map(ToOwned::to_owned),
            limit,
            reply,
        })
    }

    fn audit_trail(&self, limit: usize) -> Result<Vec<AuditEntry>, StoreError> {
        self.ask(|reply| Job::AuditTrail(limit, reply))
    }

    fn is_leased(&self) -> bool {
        true
    }

    fn owned(&self) -> bool {
        self.tenure.owned()
    }

    fn hold_is_over(&self, settle_after: Duration) -> Result<(), StoreError> {
        self.ask(|reply| Job::Settle(settle_after, reply))
    }

    fn close(&self, clean: bool) -> Result<(), StoreError> {
        self.ask(|reply| Job::Close(clean, reply))
    }
}
