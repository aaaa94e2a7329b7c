//! What can be wrong with the store, inside and at its edge. Called by the rest of `file/`.

use std::io;
use std::path::{Path, PathBuf};

use super::disk::VERSION;
use crate::ledger::StoreError;

/// Why a file ledger doesn't open. Each says which file and what to do.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// Another instance has the folder.
    #[error("{}: another instance has this store open; stop it, or give this one a folder of its own", .folder.display())]
    InUse {
        /// The folder.
        folder: PathBuf,
    },
    /// There is nothing to look at.
    #[error("{}: no store was ever made here; look at store.path, which is taken from the folder that fencegate is started in", .folder.display())]
    Absent {
        /// The folder.
        folder: PathBuf,
    },
    /// The folder was used before, and the marks are gone.
    #[error("{}: the file is {state}, but this folder was in use before; {WAY_OUT}", .file.display())]
    Missing {
        /// Where the marks should be.
        file: PathBuf,
        /// "missing" or "empty".
        state: &'static str,
    },
    /// The marks can't be trusted.
    #[error("{}: the store is damaged: {what}; {WAY_OUT}", .file.display())]
    Damaged {
        /// The store's file.
        file: PathBuf,
        /// What was found.
        what: String,
    },
    /// The file is of another version of this program.
    #[error("{}: the store has format {found}, this version reads {VERSION}; run the version that wrote it", .file.display())]
    Version {
        /// The store's file.
        file: PathBuf,
        /// The format it has.
        found: u32,
    },
    /// No room to write the marker of this run.
    #[error("{}: no room on the device ({what}); make some and start again", .file.display())]
    Full {
        /// The store's file or folder.
        file: PathBuf,
        /// The failed call.
        what: String,
    },
    /// The system refused.
    #[error("{}: {what}; repair the device or the permissions and start again", .file.display())]
    Io {
        /// The file or folder.
        file: PathBuf,
        /// The failed call and the system's words.
        what: String,
    },
}

/// The one safe way out of a store that can't be read: an older copy would let stale holders in.
pub(super) const WAY_OUT: &str = "repair the disk; or, once no client holds a lock from before or the token \
     source has been raised above every token ever issued, move the folder away and start with an empty one \
     (never put back an older copy: it would admit stale tokens)";

/// What went wrong with the file.
#[derive(Clone, Debug, thiserror::Error)]
pub(super) enum Trouble {
    /// No room: it may come.
    #[error("{0}")]
    Full(String),
    /// A call failed; what is on the disk is not known.
    #[error("{0}")]
    Broken(String),
    /// What is on the disk is not what was written.
    #[error("{0}")]
    Damaged(String),
    /// Another format.
    #[error("format {0} instead of {VERSION}")]
    Version(u32),
    /// Other files stand at the store's path, or none: what is written to the open ones may be found by nobody.
    #[error("{0}")]
    Displaced(String),
    /// Another process has it.
    #[error("another instance has it open")]
    InUse,
}

impl Trouble {
    pub(super) fn from_write(call: &str, error: &io::Error) -> Trouble {
        let text = format!("{call}: {error}");
        match error.raw_os_error() {
            Some(libc::ENOSPC | libc::EDQUOT | libc::EFBIG) => Trouble::Full(text),
            _ => Trouble::Broken(text),
        }
    }

    pub(super) fn from_read(call: &str, error: &io::Error) -> Trouble {
        Trouble::Broken(format!("{call}: {error}"))
    }

    /// As those see it who have the ledger open.
    pub(super) fn told(&self) -> StoreError {
        match self {
            Trouble::Full(what) => StoreError::Full(what.clone()),
            other => StoreError::Failed(other.to_string()),
        }
    }

    /// As the one sees it who opens the ledger.
    pub(super) fn at(self, file: &Path) -> OpenError {
        let file = file.to_owned();
        match self {
            Trouble::Full(what) => OpenError::Full { file, what },
            Trouble::Broken(what) | Trouble::Displaced(what) => OpenError::Io { file, what },
            Trouble::Damaged(what) => OpenError::Damaged { file, what },
            Trouble::Version(found) => OpenError::Version { file, found },
            Trouble::InUse => OpenError::InUse {
                folder: file.parent().map_or(file.clone(), Path::to_owned),
            },
        }
    }
}
