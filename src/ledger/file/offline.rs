//! The store while no instance runs on it: looked at without a change, or changed in one transaction. Both hold
//! the lock that keeps instances out. Called by `cli/store/`.

use std::collections::BTreeMap;
use std::fs;
use std::io::ErrorKind;
use std::path::Path;
use std::time::Duration;

use super::disk::Disk;
use super::folder::Folder;
use super::make_if_never_made;
use super::record::{Head, ms_up};
use super::store::Store;
use super::trouble::{OpenError, Trouble};
use crate::ledger::{Change, Contents, Found, Mark};

/// A store that is open for one change, or none.
pub struct Offline {
    folder: Folder,
    store: Store,
    head: Head,
}

impl Offline {
    /// Verifies and reads all of the store in the folder `path`. Leaves its files and its marker as they are, also
    /// where the process is killed meanwhile.
    ///
    /// # Errors
    /// [`OpenError`]: there is none, an instance has it, or it can't be trusted.
    pub fn look(path: &Path) -> Result<Contents, OpenError> {
        let (_lock, used_before) = Folder::visit(path)?;
        let file = Folder::marks_in(path);
        stands(path, &file, used_before)?;
        let mut marks = BTreeMap::new();
        Disk::open_to_look(&file)
            .and_then(|disk| {
                let (store, head) = Store::look(disk, &mut into(&mut marks))?;
                contents(marks, &store, &head)
            })
            .map_err(|trouble| trouble.at(&file))
    }

    /// Opens the store in the folder `path` for a change, or makes one where the folder never held any, and gives
    /// what it holds.
    ///
    /// # Errors
    /// [`OpenError`]: an instance has it, or it can't be trusted.
    pub fn open(path: &Path) -> Result<(Offline, Contents), OpenError> {
        let mut folder = Folder::claim(path)?;
        let file = folder.marks();
        make_if_never_made(&folder)?;
        let mut marks = BTreeMap::new();
        let (store, head) = Store::open(&file, &mut into(&mut marks)).map_err(|trouble| trouble.at(&file))?;
        folder
            .sign()
            .map_err(|e| Trouble::from_write("write to the lock file", &e).at(path))?;
        let contents = contents(marks, &store, &head).map_err(|trouble| trouble.at(&file))?;
        Ok((Offline { folder, store, head }, contents))
    }

    /// Makes all changes in one durable transaction, the marker among them: after a crash either all are found or
    /// none.
    ///
    /// # Errors
    /// [`OpenError`]: it is not known whether the changes are durable.
    pub fn change(self, changes: &[Change], marker: Found) -> Result<(), OpenError> {
        let file = self.folder.marks();
        let head = Head {
            clean: marker.clean,
            settle_ms: ms_up(marker.settle_after),
            ..self.head
        };
        let committed = self
            .store
            .commit(&head, changes.iter())
            .map_err(|unfinished| unfinished.trouble);
        let result = match committed {
            Ok(_) => self.folder.stands(&self.store.disk()).and(self.store.close()),
            Err(trouble) => {
                self.store.abandon(&trouble);
                Err(trouble)
            }
        };
        result.map_err(|trouble| trouble.at(&file))
    }
}

/// Whether there is a store to look at.
fn stands(path: &Path, file: &Path, used_before: bool) -> Result<(), OpenError> {
    let missing = |state| OpenError::Missing {
        file: file.to_owned(),
        state,
    };
    match fs::metadata(file) {
        Ok(meta) if meta.len() == 0 => Err(missing("empty")),
        Ok(_) => Ok(()),
        Err(error) if !matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {
            Err(Trouble::from_read("look at it", &error).at(file))
        }
        Err(_) if used_before => Err(missing("missing")),
        Err(_) => Err(OpenError::Absent {
            folder: path.to_owned(),
        }),
    }
}

fn into(marks: &mut BTreeMap<String, Mark>) -> impl FnMut(&str, Mark) {
    |name, mark| {
        marks.insert(name.to_owned(), mark);
    }
}

fn contents(marks: BTreeMap<String, Mark>, store: &Store, head: &Head) -> Result<Contents, Trouble> {
    let mut resets = store.audit_trail(usize::MAX)?;
    resets.reverse();
    Ok(Contents {
        marks,
        resets,
        found: Found {
            clean: head.clean,
            settle_after: Duration::from_millis(head.settle_ms),
        },
    })
}
