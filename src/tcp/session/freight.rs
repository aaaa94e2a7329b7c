//! What was read from one side and not taken by the other: in a buffer, or, once a session has turned out to be a long
//! stream between plain sockets, in a pipe of the kernel's.

use std::io;

use crate::base::{Buf, Spare};
use crate::keeper::Flight;
use crate::net::{Chute, Stream};
use crate::upstream::{Conn, Sent};

/// One direction's bytes.
#[derive(Debug, Default)]
pub struct Freight {
    buf: Buf,
    /// In use, the buffer is empty.
    chute: Option<Chute>,
    /// The system had none to give.
    without: bool,
}

/// A stream that fills a buffer of this size gets a pipe.
const LONG_BYTES: usize = 64 * 1024;

impl From<Buf> for Freight {
    fn from(buf: Buf) -> Freight {
        Freight {
            buf,
            ..Freight::default()
        }
    }
}

impl Freight {
    /// Whether everything that was read has been taken.
    pub fn is_empty(&self) -> bool {
        self.buf.is_empty() && self.chute.as_ref().is_none_or(Chute::is_empty)
    }

    /// Throws away what was not taken.
    pub fn clear(&mut self) {
        self.buf.clear();
        self.chute = None;
    }

    /// Gives the room of one that is empty away.
    pub fn rest(&mut self, spare: &Spare) {
        if self.is_empty() {
            (self.chute, self.without) = (None, false);
            spare.take_back(&mut self.buf);
        }
    }

    /// One read of a client, when all that came before was taken.
    pub fn read_client(&mut self, client: &mut Stream, spare: &Spare) -> io::Result<usize> {
        if let Some(chute) = &mut self.chute {
            return chute.fill(client);
        }
        spare.lend(&mut self.buf);
        client.try_read(&mut self.buf, usize::MAX)
    }

    /// The same, of the backend.
    pub fn read_backend(&mut self, conn: &mut Conn, spare: &Spare) -> io::Result<usize> {
        if let Some(chute) = &mut self.chute {
            return chute.fill(conn.stream());
        }
        spare.lend(&mut self.buf);
        conn.read_into(&mut self.buf, usize::MAX)
    }

    /// One write to the backend, of a session that may send it.
    pub fn carry(&mut self, conn: &mut Conn, flight: &mut Flight<'_>, client: Option<&Stream>) -> Sent {
        if let Some(chute) = &mut self.chute {
            return conn.pour(flight, chute);
        }
        let full = self.is_full();
        let sent = conn.carry(flight, &mut self.buf);
        if full
            && matches!(sent, Sent::All)
            && let Some(client) = client
        {
            self.grow(client, conn.stream());
        }
        sent
    }

    /// One write to the client.
    pub fn give(&mut self, client: &mut Stream, backend: &Stream) -> io::Result<usize> {
        if let Some(chute) = &mut self.chute {
            return chute.pour(client);
        }
        let full = self.is_full();
        let taken = client.try_write(self.buf.filled())?;
        self.buf.consume(taken);
        if full && self.buf.is_empty() {
            self.grow(backend, client);
        }
        Ok(taken)
    }

    fn is_full(&self) -> bool {
        self.buf.len() == self.buf.capacity()
    }

    /// A read has filled the buffer, and all of it was taken: this is a stream.
    fn grow(&mut self, from: &Stream, to: &Stream) {
        if self.buf.capacity() >= LONG_BYTES && !self.without {
            self.chute = Chute::between(from, to);
            self.without = self.chute.is_none();
        }
        match self.chute {
            Some(_) => drop(self.buf.take_room()),
            None => self.buf.grow_for_a_stream(),
        }
    }
}
