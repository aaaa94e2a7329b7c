//! A byte buffer that is filled at its end and consumed from its front, and the room that buffers share.

use parking_lot::Mutex;

/// Starts small and grows only for those who need it: the first size, and the largest that a body gets.
pub const BUF_MIN: usize = 8 * 1024;
/// The largest size that a body gets.
pub const BUF_MAX: usize = 512 * 1024;

/// Room that a core keeps for its connections: an idle one holds none. Its lock is its own core's, and so free.
#[derive(Debug, Default)]
pub struct Spare(Mutex<Vec<Vec<u8>>>);

/// Spare buffers that a core keeps.
const SPARE_MAX: usize = 64;
/// Up to so many spare buffers, a large one is kept too.
const SPARE_LARGE_MAX: usize = 8;

impl Spare {
    /// Room for a connection that has something to read.
    pub fn lend(&self, buf: &mut Buf) {
        if buf.capacity() == 0 {
            let room = self.0.lock().pop();
            buf.put_room(room.unwrap_or_else(|| Vec::with_capacity(BUF_MIN)));
        }
    }

    /// The room of a buffer that is empty; of another it takes nothing.
    pub fn take_back(&self, buf: &mut Buf) {
        if buf.capacity() == 0 || !buf.is_empty() {
            return;
        }
        let mut room = buf.take_room();
        room.clear();
        let mut spare = self.0.lock();
        let spare_max = if room.capacity() > BUF_MIN {
            SPARE_LARGE_MAX
        } else {
            SPARE_MAX
        };
        if spare.len() < spare_max {
            spare.push(room);
        }
    }
}

/// Bytes that came and were not taken yet.
#[derive(Debug, Default)]
pub struct Buf {
    data: Vec<u8>,
    start: usize,
}

impl Buf {
    /// The bytes that were not taken yet.
    #[must_use]
    pub fn filled(&self) -> &[u8] {
        &self.data[self.start..]
    }

    /// How many they are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.data.len() - self.start
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Takes `n` bytes off the front.
    pub fn consume(&mut self, n: usize) {
        debug_assert!(n <= self.len());
        self.start += n;
        if self.start == self.data.len() {
            self.clear();
        }
    }

    /// Forgets all bytes, keeps the room.
    pub fn clear(&mut self) {
        self.data.clear();
        self.start = 0;
    }

    /// The end to append to, where content is appended that was never empty in between: what was taken makes room once it
    /// is more than what is left.
    pub fn tail(&mut self) -> &mut Vec<u8> {
        if self.start > self.len() {
            self.data.drain(..self.start);
            self.start = 0;
        }
        &mut self.data
    }

    /// The end to append to, without room made.
    pub fn end(&mut self) -> &mut Vec<u8> {
        &mut self.data
    }

    /// The end to read into, with room made: all of it where the last read filled what there was (it doubles, up
    /// to `max` bytes of content), and never less than a quarter of the smallest size. Gives the room's size too.
    pub fn room(&mut self, max: usize) -> (&mut Vec<u8>, usize) {
        if self.start > 0 && self.data.capacity() - self.data.len() < BUF_MIN / 4 {
            self.data.copy_within(self.start.., 0);
            self.data.truncate(self.data.len() - self.start);
            self.start = 0;
        }
        if self.data.capacity() - self.data.len() < BUF_MIN / 4 {
            let wanted = (self.data.capacity() * 2).clamp(BUF_MIN, max.max(BUF_MIN));
            self.data
                .reserve_exact(wanted.saturating_sub(self.data.len()).max(BUF_MIN / 4));
        }
        let room = self.data.capacity() - self.data.len();
        (&mut self.data, room)
    }

    /// Doubles an empty buffer that a read has just filled whole, up to [`BUF_MAX`].
    pub fn grow_for_a_stream(&mut self) {
        if self.is_empty() && self.data.capacity() < BUF_MAX {
            let wanted = (self.data.capacity() * 2).clamp(BUF_MIN, BUF_MAX);
            self.data = Vec::with_capacity(wanted);
            self.start = 0;
        }
    }

    /// How many bytes it has room for in all.
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.data.capacity()
    }

    /// Gives the room of an empty buffer away.
    pub fn take_room(&mut self) -> Vec<u8> {
        debug_assert!(self.is_empty());
        self.start = 0;
        std::mem::take(&mut self.data)
    }

    /// Takes room back in.
    pub fn put_room(&mut self, room: Vec<u8>) {
        debug_assert!(self.data.capacity() == 0 && room.is_empty());
        self.data = room;
        self.start = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::{BUF_MAX, BUF_MIN, Buf};

    #[test]
    fn bytes_come_out_as_they_went_in_across_compaction_and_growth() {
        let mut buf = Buf::default();
        let (mut put, mut took) = (0u32, 0u32);
        for step in 0..2_000 {
            let (end, room) = buf.room(BUF_MAX);
            assert!(room >= BUF_MIN / 4);
            for _ in 0..room.min(1 + step % 700) {
                end.push(put as u8);
                put += 1;
            }
            let take = buf.len().min(step % 650);
            for byte in &buf.filled()[..take] {
                assert_eq!(*byte, took as u8);
                took += 1;
            }
            buf.consume(take);
        }
        assert_eq!(buf.len() as u32, put - took);
    }

    #[test]
    fn what_is_never_empty_does_not_grow_for_ever() {
        let mut buf = Buf::default();
        for n in 0..10_000u32 {
            buf.tail().extend_from_slice(&[n as u8; 100]);
            if n > 3 {
                assert_eq!(buf.filled()[0], (n - 4) as u8);
                buf.consume(100);
            }
        }
        assert!(buf.capacity() < 4_000, "{}", buf.capacity());
    }

    #[test]
    fn a_stream_gets_the_largest_size_and_no_more() {
        let mut buf = Buf::default();
        for _ in 0..20 {
            buf.grow_for_a_stream();
        }
        assert_eq!(buf.capacity(), BUF_MAX);
    }
}
