//! The marks in the embedded store: make, open with full verification, commit, read, copy.
//!
//! Nothing here retries, and nothing here panics on what a disk may hold: the embedded store is entered through
//! [`entered`]. Called by `file.rs` at the start, by `writer.rs` and by `offline.rs`.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

use redb::{
    Database, ReadableDatabase as _, ReadableTable, StorageBackend, TableDefinition, WriteTransaction,
};

use super::disk::Disk;
use super::overlay::Overlay;
use super::record::{Digest, Head, open_audit, open_head, open_mark, seal_audit, seal_head, seal_mark};
use super::trouble::Trouble;
use crate::ledger::{Audit, AuditEntry, Change, Mark};

/// An open store.
pub(super) struct Store {
    // Dropped before `disk`'s last clone, which holds the file's lock.
    database: Database,
    disk: Disk,
}

/// A commit that did not come to its end.
pub(super) struct Unfinished {
    pub(super) trouble: Trouble,
    /// What the store holds if the commit has taken effect all the same.
    pub(super) attempted: Option<Box<Head>>,
}

impl Store {
    /// Makes a new store in a new file, durable but for the file's name.
    pub(super) fn create(path: &Path, head: &Head) -> Result<Store, Trouble> {
        Store::filled(path, |txn| {
            put_head(txn, head)?;
            txn.open_table(MARKS).map_err(said)?;
            txn.open_table(AUDITS).map_err(said)?;
            Ok(*head)
        })
    }

    /// Opens a store as [`Store::read`] does.
    pub(super) fn open(path: &Path, on_mark: &mut dyn FnMut(&str, Mark)) -> Result<(Store, Head), Trouble> {
        Store::read(Disk::open(path)?, on_mark)
    }

    /// Reads every record of a store: `on_mark` gets each mark, before the whole is known to be good. An error
    /// means that none of them counts.
    pub(super) fn read(disk: Disk, on_mark: &mut dyn FnMut(&str, Mark)) -> Result<(Store, Head), Trouble> {
        let witness = disk.title()?;
        let database = attach(&disk, disk.clone())?;
        Store { database, disk }.verified(witness, on_mark)
    }

    /// Reads every record as [`Store::read`] does, and never writes to the file: what the embedded store has to
    /// repair after a crash is repaired in memory alone.
    pub(super) fn look(disk: Disk, on_mark: &mut dyn FnMut(&str, Mark)) -> Result<(Store, Head), Trouble> {
        let witness = disk.title()?;
        let database = attach(&disk, Overlay::over(disk.clone())?)?;
        Store { database, disk }.verified(witness, on_mark)
    }

    fn verified(self, witness: u64, on_mark: &mut dyn FnMut(&str, Mark)) -> Result<(Store, Head), Trouble> {
        let store = self;
        match entered(&store.disk, || trusted(&store.database, witness, on_mark)) {
            Ok(head) => Ok((store, head)),
            Err(trouble) => {
                store.abandon(&trouble);
                Err(trouble)
            }
        }
    }

    /// The file it lies in.
    pub(super) fn disk(&self) -> Disk {
        self.disk.clone()
    }

    /// Applies the changes and the marker in one durable transaction.
    pub(super) fn commit<'c>(
        &self,
        head: &Head,
        changes: impl Iterator<Item = &'c Change>,
    ) -> Result<Head, Unfinished> {
        let mut attempted = None;
        let result = entered(&self.disk, || {
            let txn = self.database.begin_write().map_err(said)?;
            let mut next = *head;
            next.sequence += 1;
            apply(&txn, &mut next, changes)?;
            put_head(&txn, &next)?;
            attempted = Some(Box::new(next));
            txn.commit().map_err(said)?;
            Ok(next)
        });
        match result.and_then(|next| self.disk.witness(next.sequence).map(|()| next)) {
            Ok(next) => Ok(next),
            Err(trouble) => {
                self.disk.seal(&trouble);
                Err(Unfinished { trouble, attempted })
            }
        }
    }

    /// Carries the witness of the latest commit to the disk.
    pub(super) fn settle_witness(&self) -> Result<(), Trouble> {
        self.disk.sync()
    }

    /// A copy of everything, read record by record, in a new file: durable but for the file's name.
    pub(super) fn copy_to(&self, path: &Path, head: &Head) -> Result<Store, Trouble> {
        Store::filled(path, |txn| {
            let from = self.database.begin_read().map_err(said)?;
            let (mut marks, mut audits) = (Digest::default(), Digest::default());
            let mut to = txn.open_table(MARKS).map_err(said)?;
            for entry in from.open_table(MARKS).map_err(said)?.iter().map_err(said)? {
                let (name, value) = entry.map_err(said)?;
                marks.add(
                    open_mark(name.value(), value.value())
                        .map_err(Trouble::Damaged)?
                        .1,
                );
                to.insert(name.value(), value.value()).map_err(said)?;
            }
            let mut to = txn.open_table(AUDITS).map_err(said)?;
            for entry in from.open_table(AUDITS).map_err(said)?.iter().map_err(said)? {
                let (at, value) = entry.map_err(said)?;
                audits.add(open_audit(at.value(), value.value()).map_err(Trouble::Damaged)?.1);
                to.insert(at.value(), value.value()).map_err(said)?;
            }
            agree(head, marks, audits)?;
            put_head(txn, head)?;
            Ok(*head)
        })
    }

    /// Closes the embedded store in good order.
    pub(super) fn close(self) -> Result<(), Trouble> {
        let Store { database, disk } = self;
        entered(&disk, || database.close().map_err(said))?;
        disk.sync()
    }

    /// Closes without another byte written.
    pub(super) fn abandon(self, why: &Trouble) {
        self.disk.seal(why);
        let Store { database, disk } = self;
        let _ = entered(&disk, || {
            drop(database);
            Ok(())
        });
    }

    pub(super) fn scan(
        &self,
        prefix: &str,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Vec<(String, Mark)>, Trouble> {
        use std::ops::Bound::{Excluded, Included, Unbounded};
        entered(&self.disk, || {
            let table = self
                .database
                .begin_read()
                .map_err(said)?
                .open_table(MARKS)
                .map_err(said)?;
            let start = match after {
                Some(after) if after >= prefix => Excluded(after.as_bytes()),
                _ => Included(prefix.as_bytes()),
            };
            let mut found = Vec::new();
            for entry in table.range::<&[u8]>((start, Unbounded)).map_err(said)? {
                let (name, value) = entry.map_err(said)?;
                if found.len() == limit || !name.value().starts_with(prefix.as_bytes()) {
                    break;
                }
                let (mark, _) = open_mark(name.value(), value.value()).map_err(Trouble::Damaged)?;
                found.push((text(name.value())?.to_owned(), mark));
            }
            Ok(found)
        })
    }

    pub(super) fn audit_trail(&self, limit: usize) -> Result<Vec<AuditEntry>, Trouble> {
        entered(&self.disk, || {
            let table = self
                .database
                .begin_read()
                .map_err(said)?
                .open_table(AUDITS)
                .map_err(said)?;
            let entries = table.iter().map_err(said)?.rev().take(limit);
            entries
                .map(|entry| {
                    let (at, value) = entry.map_err(said)?;
                    let opened = open_audit(at.value(), value.value());
                    opened.map(|(entry, _)| entry).map_err(Trouble::Damaged)
                })
                .collect()
        })
    }

    fn filled(
        path: &Path,
        fill: impl FnOnce(&WriteTransaction) -> Result<Head, Trouble>,
    ) -> Result<Store, Trouble> {
        let disk = Disk::create(path)?;
        let database = attach(&disk, disk.clone())?;
        let store = Store { database, disk };
        let head = entered(&store.disk, || {
            let txn = store.database.begin_write().map_err(said)?;
            let head = fill(&txn)?;
            txn.commit().map_err(said)?;
            Ok(head)
        })?;
        store.disk.witness(head.sequence)?;
        store.disk.sync()?;
        Ok(store)
    }
}

/// Raises never lower; only a reset does. The digests follow.
fn apply<'c>(
    txn: &WriteTransaction,
    next: &mut Head,
    changes: impl Iterator<Item = &'c Change>,
) -> Result<(), Trouble> {
    let mut marks = txn.open_table(MARKS).map_err(said)?;
    let mut audits = txn.open_table(AUDITS).map_err(said)?;
    let mut note = |next: &mut Head, name: &str, mark: &Mark, audit: &Audit| {
        // Audit entries are never removed, so their count numbers them.
        let at = next.audits.count;
        let sealed = seal_audit(at, name, mark, audit);
        next.audits.add(sealed.hash);
        audits.insert(at, sealed.bytes.as_slice()).map(drop).map_err(said)
    };
    for change in changes {
        let (name, mark) = match change {
            Change::Raise { name, mark } | Change::Reset { name, mark, .. } => (name, mark),
            Change::Note { name, mark, audit } => {
                note(next, name, mark, audit)?;
                continue;
            }
        };
        let key = name.as_bytes();
        let held = match marks.get(key).map_err(said)? {
            Some(value) => Some(open_mark(key, value.value()).map_err(Trouble::Damaged)?),
            None => None,
        };
        if let (Change::Raise { .. }, Some((held, _))) = (change, &held)
            && held.token >= mark.token
        {
            continue;
        }
        if let Some((_, hash)) = held {
            next.marks.remove(hash);
        }
        let sealed = seal_mark(key, mark);
        next.marks.add(sealed.hash);
        marks.insert(key, sealed.bytes.as_slice()).map_err(said)?;
        if let Change::Reset { audit, .. } = change {
            note(next, name, mark, audit)?;
        }
    }
    Ok(())
}

fn put_head(txn: &WriteTransaction, head: &Head) -> Result<(), Trouble> {
    let mut table = txn.open_table(HEAD).map_err(said)?;
    table.insert((), seal_head(head).as_slice()).map_err(said)?;
    Ok(())
}

/// Reads everything; an error means that something of what was acknowledged may be missing.
fn trusted(database: &Database, witness: u64, on_mark: &mut dyn FnMut(&str, Mark)) -> Result<Head, Trouble> {
    let txn = database.begin_read().map_err(said)?;
    let head = match txn.open_table(HEAD).map_err(said)?.get(()).map_err(said)? {
        Some(value) => open_head(value.value()).map_err(Trouble::Damaged)?,
        None => return Err(Trouble::Damaged("its head record is gone".into())),
    };
    let (mut marks, mut audits) = (Digest::default(), Digest::default());
    for entry in txn.open_table(MARKS).map_err(said)?.iter().map_err(said)? {
        let (name, value) = entry.map_err(said)?;
        let (mark, hash) = open_mark(name.value(), value.value()).map_err(Trouble::Damaged)?;
        marks.add(hash);
        on_mark(text(name.value())?, mark);
    }
    for entry in txn.open_table(AUDITS).map_err(said)?.iter().map_err(said)? {
        let (at, value) = entry.map_err(said)?;
        audits.add(open_audit(at.value(), value.value()).map_err(Trouble::Damaged)?.1);
    }
    agree(&head, marks, audits)?;
    if head.sequence < witness {
        return Err(Trouble::Damaged(format!(
            "commit {witness} was acknowledged, but the latest that can be read is {}",
            head.sequence
        )));
    }
    Ok(head)
}

fn agree(head: &Head, marks: Digest, audits: Digest) -> Result<(), Trouble> {
    if (head.marks, head.audits) == (marks, audits) {
        return Ok(());
    }
    Err(Trouble::Damaged(format!(
        "its records don't add up: {} marks and {} resets found, {} and {} noted",
        marks.count, audits.count, head.marks.count, head.audits.count
    )))
}

fn attach(disk: &Disk, backend: impl StorageBackend) -> Result<Database, Trouble> {
    entered(disk, || {
        let mut builder = Database::builder();
        builder
            .set_cache_size(CACHE_BYTES)
            .set_check_integrity_on_open(true);
        builder.create_with_backend(backend).map_err(said)
    })
}

/// Enters the embedded store: a panic of it becomes damage, and a failed system call, which it reports in its
/// own words, becomes what the disk saw.
fn entered<T>(disk: &Disk, work: impl FnOnce() -> Result<T, Trouble>) -> Result<T, Trouble> {
    let result = catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|panic| {
        let words = panic.downcast_ref::<&str>().map(|s| (*s).to_owned());
        let words = words.or_else(|| panic.downcast_ref::<String>().cloned());
        Err(Trouble::Damaged(format!(
            "reading it failed ({})",
            words.unwrap_or_default()
        )))
    });
    result.map_err(|trouble| disk.fault().unwrap_or(trouble))
}

fn said(error: impl Into<redb::Error>) -> Trouble {
    match error.into() {
        // Not a refusal of the system but a finding: it ends too early, or doesn't begin as it should.
        redb::Error::Io(error) if error.raw_os_error().is_none() => Trouble::Damaged(error.to_string()),
        redb::Error::Io(error) => Trouble::from_read("read it", &error),
        redb::Error::DatabaseAlreadyOpen => Trouble::InUse,
        other => Trouble::Damaged(other.to_string()),
    }
}

fn text(name: &[u8]) -> Result<&str, Trouble> {
    std::str::from_utf8(name).map_err(|_| Trouble::Damaged("a name is not text".into()))
}

const MARKS: TableDefinition<&[u8], &[u8]> = TableDefinition::new("marks");
const AUDITS: TableDefinition<u64, &[u8]> = TableDefinition::new("audits");
const HEAD: TableDefinition<(), &[u8]> = TableDefinition::new("head");
const CACHE_BYTES: usize = 32 << 20;

#[cfg(test)]
mod tests {
    use std::path::Path;

    use redb::ReadableTable as _;

    use super::{HEAD, Head, MARKS, Store, Trouble, put_head, seal_mark};
    use crate::base::{Token, TokenFormat};
    use crate::ledger::{Change, Mark};

    fn mark(token: u128) -> Mark {
        Mark {
            token: Token(token),
            format: TokenFormat::Integer,
            raised_at_ms: 0,
        }
    }

    /// A store with the marks a=1 and b=2, and its head.
    fn two_marks(path: &Path) -> (Store, Head) {
        let store = Store::create(path, &Head::default()).unwrap();
        let raises = [("a", 1), ("b", 2)].map(|(name, token)| Change::Raise {
            name: name.into(),
            mark: mark(token),
        });
        let head = store.commit(&Head::default(), raises.iter()).ok().unwrap();
        (store, head)
    }

    /// Changes the tables behind the store's back, in a valid transaction of the embedded store.
    fn refused_after(change: impl FnOnce(&redb::WriteTransaction, Head)) -> bool {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("store");
        let (store, head) = two_marks(&path);
        let txn = store.database.begin_write().unwrap();
        change(&txn, head);
        txn.commit().unwrap();
        store.close().unwrap();
        match Store::open(&path, &mut |_, _| ()) {
            Ok((_, found)) => {
                assert_eq!(found, head);
                false
            }
            Err(Trouble::Damaged(_)) => true,
            Err(other) => panic!("{other}"),
        }
    }

    #[test]
    fn records_that_vanished_or_were_replaced_are_found() {
        assert!(!refused_after(|_, _| ()));
        assert!(refused_after(|txn, _| {
            txn.open_table(MARKS).unwrap().remove(b"a".as_slice()).unwrap();
        }));
        assert!(refused_after(|txn, _| {
            let older = seal_mark(b"b", &mark(1));
            txn.open_table(MARKS)
                .unwrap()
                .insert(b"b".as_slice(), older.bytes.as_slice())
                .unwrap();
        }));
        assert!(refused_after(|txn, _| {
            let more = seal_mark(b"c", &mark(1));
            txn.open_table(MARKS)
                .unwrap()
                .insert(b"c".as_slice(), more.bytes.as_slice())
                .unwrap();
        }));
        // A valid record under another name.
        assert!(refused_after(|txn, _| {
            let mut table = txn.open_table(MARKS).unwrap();
            let a = table.get(b"a".as_slice()).unwrap().unwrap().value().to_vec();
            table.insert(b"b".as_slice(), a.as_slice()).unwrap();
        }));
        assert!(refused_after(|txn, _| {
            txn.open_table(HEAD).unwrap().remove(()).unwrap();
        }));
        assert!(refused_after(|txn, _| {
            txn.delete_table(MARKS).unwrap();
        }));
    }

    #[test]
    fn a_commit_older_than_the_witness_is_found() {
        assert!(refused_after(|txn, head| {
            let older = Head {
                sequence: head.sequence - 1,
                ..head
            };
            put_head(txn, &older).unwrap();
        }));
    }
}
