//! What the embedded store sees as its file while it is only looked at: the file on the disk, with everything that
//! is written kept in memory beside it. The file itself is never written to, so that whoever looks may be killed at
//! any moment and leaves it as it was. Called by `store.rs`.

use std::collections::HashMap;
use std::io;

use parking_lot::Mutex;
use redb::StorageBackend;

use super::disk::Disk;
use super::trouble::Trouble;

/// A file and the changes to it that nobody else sees.
#[derive(Debug)]
pub(super) struct Overlay {
    disk: Disk,
    changes: Mutex<Changes>,
}

#[derive(Debug)]
struct Changes {
    /// As long as the file would be.
    len: u64,
    /// So much of the file itself still counts.
    kept: u64,
    /// Pages in place of the file's.
    pages: HashMap<u64, Page>,
}

type Page = Box<[u8; PAGE]>;

impl Overlay {
    pub(super) fn over(disk: Disk) -> Result<Overlay, Trouble> {
        let len = disk.len().map_err(|e| Trouble::from_read("ask its size", &e))?;
        let changes = Mutex::new(Changes {
            len,
            kept: len,
            pages: HashMap::new(),
        });
        Ok(Overlay { disk, changes })
    }

    fn page(&self, changes: &Changes, number: u64) -> io::Result<Page> {
        if let Some(page) = changes.pages.get(&number) {
            return Ok(page.clone());
        }
        let mut page = Box::new([0; PAGE]);
        let start = number * PAGE as u64;
        let of_the_file = changes.kept.saturating_sub(start).min(PAGE as u64) as usize;
        self.disk.read(start, &mut page[..of_the_file])?;
        Ok(page)
    }
}

impl StorageBackend for Overlay {
    fn len(&self) -> io::Result<u64> {
        Ok(self.changes.lock().len)
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let changes = self.changes.lock();
        within(offset, out.len(), changes.len)?;
        for (number, at, piece) in pieces(offset, out.len()) {
            let page = self.page(&changes, number)?;
            out[piece.clone()].copy_from_slice(&page[at..at + piece.len()]);
        }
        Ok(())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        let mut changes = self.changes.lock();
        let (last, used) = (len / PAGE as u64, (len % PAGE as u64) as usize);
        if len < changes.len {
            changes.kept = changes.kept.min(len);
            changes.pages.retain(|number, _| number * (PAGE as u64) < len);
            // What comes back when it grows again is zero.
            if let Some(page) = changes.pages.get_mut(&last) {
                page[used..].fill(0);
            }
        }
        changes.len = len;
        Ok(())
    }

    fn sync_data(&self) -> io::Result<()> {
        Ok(())
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        let mut changes = self.changes.lock();
        within(offset, data.len(), changes.len)?;
        for (number, at, piece) in pieces(offset, data.len()) {
            let mut page = self.page(&changes, number)?;
            page[at..at + piece.len()].copy_from_slice(&data[piece]);
            changes.pages.insert(number, page);
        }
        Ok(())
    }
}

fn within(offset: u64, len: usize, end: u64) -> io::Result<()> {
    match offset.checked_add(len as u64) {
        Some(last) if last <= end => Ok(()),
        Some(_) | None => Err(io::ErrorKind::UnexpectedEof.into()),
    }
}

/// The pages that a stretch touches: each page's number, where in it the piece begins, and which of the stretch's
/// bytes it is.
fn pieces(offset: u64, len: usize) -> impl Iterator<Item = (u64, usize, std::ops::Range<usize>)> {
    let mut done = 0;
    std::iter::from_fn(move || {
        let place = offset + done as u64;
        let at = (place % PAGE as u64) as usize;
        let piece = done..len.min(done + PAGE - at);
        done = piece.end;
        (!piece.is_empty()).then_some((place / PAGE as u64, at, piece))
    })
}

const PAGE: usize = 4096;

#[cfg(test)]
mod tests {
    use std::fs;

    use redb::StorageBackend as _;

    use super::{Disk, Overlay};

    fn over(content: &[u8]) -> (tempfile::TempDir, Overlay) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("store");
        let disk = Disk::create(&path).unwrap();
        disk.set_len(content.len() as u64).unwrap();
        disk.write(0, content).unwrap();
        drop(disk);
        let overlay = Overlay::over(Disk::open_to_look(&path).unwrap()).unwrap();
        (folder, overlay)
    }

    fn read(overlay: &Overlay, offset: u64, len: usize) -> Vec<u8> {
        let mut out = vec![0; len];
        overlay.read(offset, &mut out).unwrap();
        out
    }

    #[test]
    fn what_is_written_is_read_back_and_the_file_stays() {
        let content: Vec<u8> = (0..10_000_u32).map(|n| (n % 251) as u8).collect();
        let (folder, overlay) = over(&content);
        let before = fs::read(folder.path().join("store")).unwrap();
        assert_eq!(read(&overlay, 0, 10_000), content);
        let mut expected = content;
        expected[4_000..8_200].fill(7);
        overlay.write(4_000, &[7; 4_200]).unwrap();
        assert_eq!(read(&overlay, 0, 10_000), expected);
        overlay.sync_data().unwrap();
        drop(overlay);
        assert_eq!(fs::read(folder.path().join("store")).unwrap(), before);
    }

    #[test]
    fn what_was_cut_off_comes_back_as_zeros() {
        let (_folder, overlay) = over(&[5; 9_000]);
        overlay.write(8_500, &[6; 500]).unwrap();
        overlay.set_len(8_600).unwrap();
        assert!(overlay.read(8_600, &mut [0]).is_err());
        overlay.set_len(20_000).unwrap();
        assert_eq!(read(&overlay, 8_598, 4), [6, 6, 0, 0]);
        assert_eq!(read(&overlay, 8_999, 11_001), vec![0; 11_001]);
        overlay.set_len(4_000).unwrap();
        overlay.set_len(4_200).unwrap();
        assert_eq!(read(&overlay, 3_999, 201), [&[5][..], &[0; 200]].concat());
        assert!(overlay.write(4_199, &[1; 2]).is_err());
        assert_eq!(overlay.len().unwrap(), 4_200);
    }
}
