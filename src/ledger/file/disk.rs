//! The store's one file: a page of our own, then what the embedded store sees as its file from offset zero.
//!
//! Our page tells what the file is, and holds the *witness*: the sequence number of the latest commit that was
//! acknowledged. The embedded store, finding its newest commit damaged, falls back to the one before; that is a
//! lower mark. The witness shows it. It is written after the commit's fsync and is carried to the disk by the
//! next one, or by a quiet moment, so it costs no raise a second fsync.
//!
//! After the first failed call nothing reaches the file any more: what a failed write or fsync has left is
//! unknown, and the embedded store's own clean-up must not write over it. Called by `store.rs`; `writer.rs` keeps
//! one to tell the file from another that stands in its place.

use std::fs::{File, Metadata, OpenOptions, TryLockError};
use std::io;
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use redb::StorageBackend;

use super::record::checksum;
use super::trouble::Trouble;

/// An open store file. Clones share it.
#[derive(Clone, Debug)]
pub(super) struct Disk(Arc<Opened>);

#[derive(Debug)]
struct Opened {
    file: File,
    fault: Mutex<Option<Trouble>>,
}

impl Disk {
    /// Makes a new file with our page, and nothing of the embedded store yet.
    pub(super) fn create(path: &Path) -> Result<Disk, Trouble> {
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create_new(true)
            .open(path)
            .map_err(|e| Trouble::from_write("create it", &e))?;
        let disk = Disk::locked(file)?;
        let mut page = vec![0; PAGE];
        page[..MAGIC.len()].copy_from_slice(MAGIC);
        page[MAGIC.len()..TITLE - 8].copy_from_slice(&VERSION.to_le_bytes());
        let sum = checksum(KIND_TITLE, &page[..TITLE - 8]);
        page[TITLE - 8..TITLE].copy_from_slice(&sum.to_le_bytes());
        for slot in SLOTS {
            page[slot..slot + 16].copy_from_slice(&witness_bytes(0));
        }
        disk.noted(disk.0.file.write_all_at(&page, 0), "write")?;
        Ok(disk)
    }

    /// Opens an existing file.
    pub(super) fn open(path: &Path) -> Result<Disk, Trouble> {
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .open(path)
            .map_err(|e| Trouble::from_read("open it", &e))?;
        Disk::locked(file)
    }

    /// Opens an existing file to look at it, also one that may not be written to.
    pub(super) fn open_to_look(path: &Path) -> Result<Disk, Trouble> {
        let file = File::open(path).map_err(|e| Trouble::from_read("open it", &e))?;
        lock_to_look(&file)?;
        Ok(Disk::new(file))
    }

    /// The same file without the fault, to be read anew. Its lock is not let go in between.
    pub(super) fn again(&self) -> Result<Disk, Trouble> {
        let file = self.0.file.try_clone();
        file.map(Disk::new)
            .map_err(|e| Trouble::from_read("open it again", &e))
    }

    /// Reads our page: what the file is, and its witness.
    pub(super) fn title(&self) -> Result<u64, Trouble> {
        let len = self
            .metadata()
            .map_err(|e| Trouble::from_read("ask its size", &e))?
            .len();
        // Exactly our page would look like a new, empty file to the embedded store.
        if len <= PAGE as u64 {
            return Err(Trouble::Damaged(format!("it is only {len} bytes long")));
        }
        let mut page = vec![0; PAGE];
        self.0
            .file
            .read_exact_at(&mut page, 0)
            .map_err(|e| Trouble::from_read("read it", &e))?;
        read_page(&page)
    }

    /// The open file's, wherever its name is by now.
    pub(super) fn metadata(&self) -> io::Result<Metadata> {
        self.0.file.metadata()
    }

    /// Notes that the commit with this number is durable and will be acknowledged.
    pub(super) fn witness(&self, sequence: u64) -> Result<(), Trouble> {
        self.usable()?;
        let slot = SLOTS[(sequence % 2) as usize] as u64;
        self.noted(self.0.file.write_all_at(&witness_bytes(sequence), slot), "write")
    }

    /// Carries everything written so far to the disk.
    pub(super) fn sync(&self) -> Result<(), Trouble> {
        self.usable()?;
        self.noted(self.0.file.sync_data(), "fsync")
    }

    /// The first call that failed, if any.
    pub(super) fn fault(&self) -> Option<Trouble> {
        self.0.fault.lock().clone()
    }

    /// Stops every later write, because what the file holds is not known any more.
    pub(super) fn seal(&self, trouble: &Trouble) {
        self.0.fault.lock().get_or_insert_with(|| trouble.clone());
    }

    /// A lock on the file itself too: the folder's lock file could have been removed by hand.
    fn locked(file: File) -> Result<Disk, Trouble> {
        lock_exclusively(&file)?;
        Ok(Disk::new(file))
    }

    fn new(file: File) -> Disk {
        Disk(Arc::new(Opened {
            file,
            fault: Mutex::new(None),
        }))
    }

    fn usable(&self) -> Result<(), Trouble> {
        self.fault().map_or(Ok(()), Err)
    }

    fn noted(&self, result: io::Result<()>, call: &'static str) -> Result<(), Trouble> {
        result.map_err(|error| {
            let trouble = match call {
                // Also for want of room: which of the pages written before are on the disk is unknown.
                "fsync" => Trouble::Broken(format!("fsync: {error}")),
                _ => Trouble::from_write(call, &error),
            };
            self.seal(&trouble);
            trouble
        })
    }
}

/// Lets the kernel forget what it holds of the file, so that the next read comes from the disk.
pub(super) fn forget_cache(path: &Path) {
    if let Ok(file) = File::open(path) {
        // SAFETY: a plain system call on an open descriptor; it is advice, so its result doesn't matter.
        unsafe { libc::posix_fadvise(file.as_raw_fd(), 0, 0, libc::POSIX_FADV_DONTNEED) };
    }
}

/// Takes the lock, waiting a moment for a process that is just going away.
pub(super) fn lock_exclusively(file: &File) -> Result<(), Trouble> {
    lock(|| file.try_lock())
}

/// A lock that others who only look may have as well, and no instance.
pub(super) fn lock_to_look(file: &File) -> Result<(), Trouble> {
    lock(|| file.try_lock_shared())
}

fn lock(attempt: impl Fn() -> Result<(), TryLockError>) -> Result<(), Trouble> {
    for _ in 0..LOCK_TRIES {
        match attempt() {
            Ok(()) => return Ok(()),
            Err(TryLockError::WouldBlock) => std::thread::sleep(LOCK_PAUSE),
            Err(TryLockError::Error(error)) => return Err(Trouble::from_read("lock it", &error)),
        }
    }
    Err(Trouble::InUse)
}

impl StorageBackend for Disk {
    fn len(&self) -> io::Result<u64> {
        let len = self.metadata()?.len();
        Ok(len.saturating_sub(PAGE as u64))
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.0.file.read_exact_at(out, place(offset)?)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.usable().map_err(io::Error::other)?;
        let result = place(len).and_then(|len| self.0.file.set_len(len));
        self.noted(result, "resize").map_err(io::Error::other)
    }

    fn sync_data(&self) -> io::Result<()> {
        self.sync().map_err(io::Error::other)
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.usable().map_err(io::Error::other)?;
        let result = place(offset).and_then(|at| self.0.file.write_all_at(data, at));
        self.noted(result, "write").map_err(io::Error::other)
    }
}

fn place(offset: u64) -> io::Result<u64> {
    offset
        .checked_add(PAGE as u64)
        .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, "an offset is out of range"))
}

fn read_page(page: &[u8]) -> Result<u64, Trouble> {
    if page[..MAGIC.len()] != *MAGIC {
        return Err(Trouble::Damaged(
            "it does not begin like a store of fencegate".into(),
        ));
    }
    if page[TITLE - 8..TITLE] != checksum(KIND_TITLE, &page[..TITLE - 8]).to_le_bytes() {
        return Err(Trouble::Damaged("its title's checksum does not match".into()));
    }
    let version = u32::from_le_bytes(
        page[MAGIC.len()..TITLE - 8]
            .try_into()
            .expect("four bytes lie there"),
    );
    if version != VERSION {
        return Err(Trouble::Version(version));
    }
    // One of the two may be half written: they are written in turn, so the other is the one before.
    SLOTS
        .iter()
        .filter_map(|slot| read_witness(&page[*slot..slot + 16]))
        .max()
        .ok_or_else(|| Trouble::Damaged("neither copy of its witness can be read".into()))
}

fn witness_bytes(sequence: u64) -> [u8; 16] {
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&sequence.to_le_bytes());
    let sum = checksum(KIND_WITNESS, &bytes[..8]);
    bytes[8..].copy_from_slice(&sum.to_le_bytes());
    bytes
}

fn read_witness(bytes: &[u8]) -> Option<u64> {
    let (sequence, sum) = bytes.split_first_chunk::<8>()?;
    (sum == checksum(KIND_WITNESS, sequence).to_le_bytes()).then(|| u64::from_le_bytes(*sequence))
}

const PAGE: usize = 4096;
const MAGIC: &[u8] = b"fencegate marks\n";
/// The format of the whole file. Another one is never guessed at.
pub const VERSION: u32 = 1;
/// Magic, version, checksum.
const TITLE: usize = MAGIC.len() + 4 + 8;
/// The witness's two copies, in sectors of their own.
const SLOTS: [usize; 2] = [512, 1024];
const KIND_TITLE: u8 = 11;
const KIND_WITNESS: u8 = 12;
const LOCK_TRIES: u32 = 20;
const LOCK_PAUSE: Duration = Duration::from_millis(10);

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::FileExt as _;

    use redb::StorageBackend as _;

    use super::{Disk, KIND_TITLE, MAGIC, PAGE, SLOTS, TITLE, Trouble, checksum};

    fn made() -> (tempfile::TempDir, std::path::PathBuf) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("store");
        let disk = Disk::create(&path).unwrap();
        disk.set_len(100).unwrap();
        for sequence in 1..=8 {
            disk.witness(sequence).unwrap();
        }
        (folder, path)
    }

    fn witness(path: &std::path::Path) -> Result<u64, Trouble> {
        Disk::open(path)?.title()
    }

    #[test]
    fn the_latest_witness_is_read_and_the_one_before_where_it_is_damaged() {
        let (_folder, path) = made();
        assert_eq!(witness(&path).unwrap(), 8);
        let file = fs::File::options().write(true).open(&path).unwrap();
        file.write_all_at(b"x", SLOTS[0] as u64).unwrap();
        assert_eq!(witness(&path).unwrap(), 7);
        file.write_all_at(b"x", SLOTS[1] as u64).unwrap();
        assert!(matches!(witness(&path), Err(Trouble::Damaged(_))));
    }

    #[test]
    fn another_format_is_named_and_refused() {
        let (_folder, path) = made();
        let mut bytes = fs::read(&path).unwrap();
        bytes[MAGIC.len()] = 9;
        let sum = checksum(KIND_TITLE, &bytes[..TITLE - 8]);
        bytes[TITLE - 8..TITLE].copy_from_slice(&sum.to_le_bytes());
        fs::write(&path, &bytes).unwrap();
        assert!(matches!(witness(&path), Err(Trouble::Version(9))));
    }

    #[test]
    fn a_file_of_our_page_alone_is_damage_and_not_a_new_store() {
        let (_folder, path) = made();
        fs::File::options()
            .write(true)
            .open(&path)
            .unwrap()
            .set_len(PAGE as u64)
            .unwrap();
        assert!(matches!(witness(&path), Err(Trouble::Damaged(_))));
    }

    #[test]
    fn after_a_fault_nothing_is_written_any_more() {
        let (_folder, path) = made();
        let disk = Disk::open(&path).unwrap();
        disk.seal(&Trouble::Full("no room".into()));
        assert!(matches!(disk.witness(9), Err(Trouble::Full(_))));
        assert!(disk.sync_data().is_err());
        assert!(disk.write(0, b"x").is_err());
        assert!(disk.set_len(0).is_err());
        drop(disk);
        assert_eq!(witness(&path).unwrap(), 8);
    }
}
