//! Where marks are durable. A ledger keeps, for each resource, the highest token whose predecessors have all
//! settled; it decides nothing. Called by `keeper/`; while no gate runs, `cli/store/` reads and fills one.
//!
//! The contract of a [`Ledger`]:
//! - `done` is called exactly once for each submitted change, from a thread of the ledger, in no promised order.
//!   `Ok` means that the change will be found again after a crash of the process or of the machine.
//! - `Err` means *not known to be durable*: it may or may not be found again. A raise may be submitted again.
//! - Changes submitted while a commit runs share the next one.
//! - A raise never lowers a mark that the ledger holds already; only a reset does.

pub mod etcd;
pub mod file;
pub mod memory;
pub mod vacant;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use crate::base::{Token, TokenFormat};

/// A durable mark.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Mark {
    /// The token.
    pub token: Token,
    /// How the resource's tokens are written.
    pub format: TokenFormat,
    /// When it was raised: milliseconds since 1970 on the wall clock, for people.
    pub raised_at_ms: u64,
}

/// One change of one mark.
#[derive(Clone, Debug)]
pub enum Change {
    /// The mark goes up.
    Raise {
        /// The resource's name.
        name: Arc<str>,
        /// The new mark.
        mark: Mark,
    },
    /// An operator sets the mark, also down. Recorded in the audit trail in the same transaction.
    Reset {
        /// The resource's name.
        name: Arc<str>,
        /// The new mark.
        mark: Mark,
        /// What stands in the audit trail.
        audit: Audit,
    },
    /// A reset that another ledger saw is taken over into the audit trail. No mark changes.
    Note {
        /// The resource's name.
        name: Arc<str>,
        /// The mark as it was set there.
        mark: Mark,
        /// What stood in the audit trail there.
        audit: Audit,
    },
}

/// Why a mark was reset, as it stands in the audit trail.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Audit {
    /// The highest token seen before, in the resource's format; empty where there was none.
    pub from: String,
    /// The operator's words.
    pub reason: String,
    /// Who asked: the peer's address at the admin address.
    pub by: String,
}

/// One line of the audit trail.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct AuditEntry {
    /// Grows by one with each reset of this ledger.
    pub sequence: u64,
    /// The resource's name.
    pub name: String,
    /// The mark as it was set.
    pub mark: Mark,
    /// Who, why and from where.
    pub audit: Audit,
}

/// What the ledger says when a change is durable, or is not.
pub type Done = Box<dyn FnOnce(Result<(), StoreError>) + Send>;

/// The change could not be made durable now. The caller must take it as undecided.
#[derive(Clone, Debug, thiserror::Error)]
pub enum StoreError {
    /// No room on the device: it recovers when there is some.
    #[error("the store's device is full: {0}")]
    Full(String),
    /// A write or an fsync failed; the store reads itself again before it takes anything more.
    #[error("the store failed: {0}")]
    Failed(String),
    /// The store did not answer, or not in time.
    #[error("the store can't be reached: {0}")]
    Away(String),
    /// Another instance owns the store, or nobody does.
    #[error("this instance does not own the store")]
    NotOwner,
    /// The ledger is closed.
    #[error("the store is closed")]
    Closed,
}

/// The run before this one, as its marker tells.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Found {
    /// True where nothing can be in flight from an earlier run: it stopped cleanly, or there was none.
    pub clean: bool,
    /// The largest `settle_after` of the earlier run (or the still larger one it had inherited); zero if none.
    pub settle_after: Duration,
}

/// All that a ledger holds, as it was at one moment while no instance used it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Contents {
    /// Each resource's mark, in the order of the names' bytes.
    pub marks: BTreeMap<String, Mark>,
    /// The audit trail, the oldest first.
    pub resets: Vec<AuditEntry>,
    /// The marker.
    pub found: Found,
}

impl Default for Contents {
    /// Of a ledger that was never made.
    fn default() -> Contents {
        Contents {
            marks: BTreeMap::new(),
            resets: Vec::new(),
            found: Found {
                clean: true,
                settle_after: Duration::ZERO,
            },
        }
    }
}

/// A place where marks are durable.
pub trait Ledger: Send + Sync + 'static {
    /// Takes a change; never blocks on I/O.
    fn submit(&self, change: Change, done: Done);

    /// Up to `limit` marks whose names start with `prefix` and come after `after`, in the order of their bytes.
    ///
    /// # Errors
    /// [`StoreError`] where the store can't be read now.
    fn scan(
        &self,
        prefix: &str,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Vec<(String, Mark)>, StoreError>;

    /// The latest `limit` resets, the newest first.
    ///
    /// # Errors
    /// [`StoreError`] where the store can't be read now.
    fn audit_trail(&self, limit: usize) -> Result<Vec<AuditEntry>, StoreError>;

    /// Whether the store is owned by a lease, so that this instance may cease to own it. Never changes.
    fn is_leased(&self) -> bool {
        false
    }

    /// Whether this instance may let fenced bytes through at this very moment: asked before each system call
    /// that could carry a last byte. Always true for a store that only one instance can have open.
    fn owned(&self) -> bool {
        true
    }

    /// The wait after a crash is over: what stands beside the marker becomes `settle_after` of this run alone.
    ///
    /// # Errors
    /// [`StoreError`]; the larger value then stays, which only makes a later wait longer.
    fn hold_is_over(&self, settle_after: Duration) -> Result<(), StoreError>;

    /// Commits what is queued and closes. With `clean` the marker says that nothing is in flight.
    ///
    /// # Errors
    /// [`StoreError`] where the marker could not be written: the next start then takes this stop as unclean.
    fn close(&self, clean: bool) -> Result<(), StoreError>;
}
