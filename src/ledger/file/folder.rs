//! The store's folder: its lock, the sign of earlier use, the names of the files in it, and whether these are
//! still the files that stand there. A file gets its final name only when it is whole and on the disk. Called by
//! `file.rs`, `writer.rs` and `offline.rs`.

use std::ffi::CString;
use std::fs::{self, File, Metadata, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use super::disk::{Disk, lock_exclusively, lock_to_look};
use super::trouble::{OpenError, Trouble};

/// A locked folder; unlocked when dropped, and by the kernel when the process ends.
pub(super) struct Folder {
    path: PathBuf,
    lock: File,
    used_before: bool,
}

impl Folder {
    /// Makes the folder where there is none, and locks it. A lock file left behind means nothing; only its
    /// lock counts, and the sign in it.
    pub(super) fn claim(path: &Path) -> Result<Folder, OpenError> {
        let io = |e: io::Error| Trouble::from_write("prepare the folder", &e).at(path);
        make_durably(path).map_err(io)?;
        warn_if_remote(path);
        let file = path.join(LOCK);
        let mut lock = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(&file)
            .map_err(|e| Trouble::from_write("open it", &e).at(&file))?;
        lock_exclusively(&lock).map_err(|trouble| trouble.at(&file))?;
        let mut sign = Vec::new();
        lock.read_to_end(&mut sign)
            .map_err(|e| Trouble::from_read("read it", &e).at(&file))?;
        let folder = Folder {
            path: fixed(path),
            lock,
            // Any content counts, also a sign that was half written.
            used_before: !sign.is_empty(),
        };
        folder.discard_unfinished().map_err(io)?;
        Ok(folder)
    }

    /// Keeps instances out of the folder while its store is looked at, and changes nothing in it. Gives the lock
    /// file, if there is one, and whether the folder was used before.
    pub(super) fn visit(path: &Path) -> Result<(Option<File>, bool), OpenError> {
        let file = path.join(LOCK);
        let mut lock = match File::open(&file) {
            Ok(lock) => lock,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok((None, false)),
            Err(error) => return Err(Trouble::from_read("open it", &error).at(&file)),
        };
        lock_to_look(&lock).map_err(|trouble| trouble.at(&file))?;
        let mut sign = Vec::new();
        lock.read_to_end(&mut sign)
            .map_err(|e| Trouble::from_read("read it", &e).at(&file))?;
        Ok((Some(lock), !sign.is_empty()))
    }

    /// Where the marks of this folder would be.
    pub(super) fn marks_in(path: &Path) -> PathBuf {
        path.join(MARKS)
    }

    /// The store's file.
    pub(super) fn marks(&self) -> PathBuf {
        self.path.join(MARKS)
    }

    /// Where a new store is made before it takes the place of [`Folder::marks`].
    pub(super) fn unfinished(&self) -> PathBuf {
        self.path.join(UNFINISHED)
    }

    pub(super) fn used_before(&self) -> bool {
        self.used_before
    }

    /// Removes what an earlier start or recovery left half made. It never had the final name, so nobody was
    /// ever told that what it holds is durable.
    pub(super) fn discard_unfinished(&self) -> io::Result<()> {
        match fs::remove_file(self.unfinished()) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }

    /// Gives the new store, which is whole and synced, its final name.
    pub(super) fn publish(&self) -> io::Result<()> {
        self.replace()?;
        self.sync()
    }

    /// The first half of [`Folder::publish`]: the name is there, but not yet on the disk.
    pub(super) fn replace(&self) -> io::Result<()> {
        fs::rename(self.unfinished(), self.marks())
    }

    /// Whether the lock and the marks that this instance holds are those that the next one would find. A folder
    /// removed or renamed under a running instance leaves it files that nobody finds again, and no lock against
    /// a second instance that starts with an empty store.
    pub(super) fn stands(&self, marks: &Disk) -> Result<(), Trouble> {
        stands(&self.path.join(LOCK), self.lock.metadata())?;
        stands(&self.marks(), marks.metadata())
    }

    /// Writes the sign, after the marks are in place and before anything counts on them.
    pub(super) fn sign(&mut self) -> io::Result<()> {
        if !self.used_before {
            self.lock.write_all(SIGN)?;
            self.lock.sync_all()?;
            self.sync()?;
            self.used_before = true;
        }
        Ok(())
    }

    pub(super) fn sync(&self) -> io::Result<()> {
        File::open(&self.path)?.sync_all()
    }
}

/// The path as it is now: a working directory that is renamed later must not hide that the path leads elsewhere.
fn fixed(path: &Path) -> PathBuf {
    let absolute = std::path::absolute(path);
    // Not where a folder above the working directory can't be passed.
    let absolute = absolute.ok().filter(|absolute| absolute.is_dir());
    absolute.unwrap_or_else(|| path.to_owned())
}

/// Whether the open file is the one that stands at the path. What can't be looked at does not.
fn stands(path: &Path, open: io::Result<Metadata>) -> Result<(), Trouble> {
    let what = match (open, fs::metadata(path)) {
        (Err(error), _) => format!("the open file can't be looked at: {error}"),
        (Ok(open), Ok(found)) if same(&open, &found) => return Ok(()),
        (Ok(open), _) if open.nlink() == 0 => "the open file was removed".into(),
        (Ok(_), Ok(_)) => "another file than the open one stands there".into(),
        (Ok(_), Err(error)) => format!("the open file is not found there any more: {error}"),
    };
    let folder = path.parent().unwrap_or(path);
    Err(Trouble::Displaced(format!(
        "{}: {what}; the folder {} was removed, renamed or replaced under this running instance, or the file in it",
        path.display(),
        folder.display()
    )))
}

fn same(open: &Metadata, found: &Metadata) -> bool {
    open.nlink() > 0 && (open.dev(), open.ino()) == (found.dev(), found.ino())
}

fn make_durably(path: &Path) -> io::Result<()> {
    if path.is_dir() {
        return Ok(());
    }
    let parent = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    make_durably(parent)?;
    match fs::create_dir(path) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists || !path.is_dir() => Err(error),
        _ => File::open(parent)?.sync_all(),
    }
}

fn warn_if_remote(path: &Path) {
    if let Some(kind) = remote_kind(path) {
        tracing::warn!(
            folder = %path.display(),
            kind,
            "the store lies on a file system whose locks and fsync may not hold; use a local disk"
        );
    }
}

fn remote_kind(path: &Path) -> Option<&'static str> {
    let path = CString::new(path.as_os_str().as_bytes()).ok()?;
    let mut stat = std::mem::MaybeUninit::<libc::statfs>::zeroed();
    // SAFETY: the path is a C string, and the kernel fills the struct that it is given.
    let known = unsafe { libc::statfs(path.as_ptr(), stat.as_mut_ptr()) } == 0;
    // The field has another width on other targets.
    #[allow(clippy::unnecessary_cast)]
    // SAFETY: zeroed, and all its fields are integers.
    let magic = unsafe { stat.assume_init() }.f_type as i64 & 0xffff_ffff;
    let kinds = [
        (0x6969, "nfs"),
        (0x517b, "smb"),
        (0xff53_4d42, "cifs"),
        (0xfe53_4d42, "smb2"),
        (0x6573_5546, "fuse"),
        (0x0102_1997, "9p"),
        (0x00c3_6400, "ceph"),
    ];
    kinds
        .iter()
        .find(|(m, _)| known && *m == magic)
        .map(|(_, kind)| *kind)
}

const LOCK: &str = "lock";
const MARKS: &str = "marks";
const UNFINISHED: &str = "marks.new";
const SIGN: &[u8] = b"initialised\n";
