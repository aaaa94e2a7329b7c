//! TLS over a socket, by readiness. rustls does the protocol; this moves its bytes.
//!
//! What [`Session::try_write`] says was taken has left by a system call, to its last encrypted byte: the commit
//! point of a write is asked for before each call that could carry the record with its last byte (S5), and a record
//! that the kernel holds in part only can't be opened by the peer.

use std::cell::RefCell;
use std::io::{self, BufRead, Read as _, Write as _};
use std::task::{Context, Poll, ready};

use rustls::{CommonState, Connection};
use socket2::SockRef;
use tokio::io::Interest;
use tokio::net::TcpStream;

use super::would_block;
use crate::base::Buf;
use crate::base::buf::BUF_MAX;

/// So many bytes become records at once: they leave by one system call.
const SEAL_MAX: usize = 64 * 1024;
/// So many bytes are read at once.
const READ_MAX: usize = 64 * 1024;
/// So many reads that bring nothing to the reader (tickets, new keys, empty records) before others get their turn.
const BARREN_MAX: u32 = 16;

/// A TLS connection whose handshake is through.
#[derive(Debug)]
pub struct Session {
    socket: TcpStream,
    tls: Connection,
    /// Bytes that came and that rustls had no room for yet.
    raw: Buf,
    /// Plain bytes that rustls has ready.
    plain: usize,
    /// The peer has said that nothing follows what came.
    ended: bool,
    /// Encrypted bytes on their way to the socket. What rustls makes while records of ours are here stays in
    /// rustls: so these have left whole exactly when this is empty.
    out: Buf,
    /// Plain bytes whose records are in `out`.
    sealed: usize,
    /// Between two requests: dropping it then is an end in order.
    resting: bool,
}

thread_local! {
    /// Where a core reads into: what rustls doesn't take at once moves to the session.
    static READ: RefCell<Vec<u8>> = RefCell::new(vec![0; READ_MAX]);
    /// Where a core's records are made: what the socket doesn't take at once stays with the session.
    static WRITE: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

impl Session {
    /// Shakes hands.
    ///
    /// # Errors
    /// Those of the socket, and `InvalidData` where the peer's TLS or certificate is not accepted.
    pub async fn open(socket: TcpStream, tls: Connection) -> io::Result<Session> {
        let mut session = Session {
            socket,
            tls,
            raw: Buf::default(),
            plain: 0,
            ended: false,
            out: Buf::default(),
            sealed: 0,
            resting: false,
        };
        session.tls.set_buffer_limit(None);
        std::future::poll_fn(|cx| session.poll_handshake(cx)).await?;
        Ok(session)
    }

    fn poll_handshake(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        loop {
            match self.flush() {
                Ok(()) if !self.tls.is_handshaking() => return Poll::Ready(Ok(())),
                Ok(()) => match self.fill(Ask::Runtime) {
                    Ok(0) => return Poll::Ready(Err(io::ErrorKind::UnexpectedEof.into())),
                    Ok(_) => {}
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                        ready!(self.socket.poll_read_ready(cx))?;
                    }
                    Err(error) => return Poll::Ready(Err(error)),
                },
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    ready!(self.socket.poll_write_ready(cx))?;
                }
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
    }

    pub fn state(&self) -> &CommonState {
        &self.tls
    }

    pub fn socket(&self) -> &TcpStream {
        &self.socket
    }

    pub fn try_read(&mut self, buf: &mut Buf, max: usize) -> io::Result<usize> {
        for _ in 0..BARREN_MAX {
            if self.plain > 0 {
                return self.take_plain(buf, max);
            }
            if self.ended {
                return Ok(0);
            }
            if !self.raw.is_empty() {
                self.digest()?;
            } else if self.fill(Ask::Runtime)? == 0 {
                // `Ok` only after the peer's own word that this was all.
                return self.tls.reader().fill_buf().map(<[u8]>::len);
            }
            self.answer()?;
        }
        // The socket still counts as readable, so nobody waits in vain.
        would_block().map(|()| 0)
    }

    fn take_plain(&mut self, buf: &mut Buf, max: usize) -> io::Result<usize> {
        let (end, room) = buf.room(BUF_MAX);
        let mut reader = self.tls.reader();
        let chunk = reader.fill_buf()?;
        let taken = chunk.len().min(room).min(max);
        end.extend_from_slice(&chunk[..taken]);
        reader.consume(taken);
        self.plain -= taken;
        Ok(taken)
    }

    /// How many bytes at the front of the next write stand in a record that was made and not taken whole.
    pub fn sealed(&self) -> usize {
        self.sealed
    }

    pub fn try_write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.sealed == 0 {
            let next = &bytes[..bytes.len().min(SEAL_MAX)];
            self.tls.writer().write_all(next)?;
            self.sealed = next.len();
            self.collect()?;
        }
        debug_assert!(
            self.sealed <= bytes.len(),
            "a write begins with what the last one began with"
        );
        // One system call and no more: the next one asks the flight again.
        self.push()?;
        Ok(if self.out.is_empty() {
            std::mem::take(&mut self.sealed)
        } else {
            0
        })
    }

    /// As [`Session::try_write`], for bytes that no flight hangs on: what it says was taken may wait here for
    /// [`Session::poll_flush`].
    pub fn try_buffer(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.flush()?;
        let taken = bytes.len().min(SEAL_MAX);
        self.tls.writer().write_all(&bytes[..taken])?;
        match self.flush() {
            Err(error) if error.kind() != io::ErrorKind::WouldBlock => Err(error),
            Ok(()) | Err(_) => Ok(taken),
        }
    }

    pub fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        loop {
            match self.flush() {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    ready!(self.socket.poll_write_ready(cx))?;
                }
                flushed => return Poll::Ready(flushed),
            }
        }
    }

    pub fn poll_read_ready(&self, cx: &mut Context<'_>) -> Poll<()> {
        if self.plain > 0 || !self.raw.is_empty() || self.ended {
            return Poll::Ready(());
        }
        self.socket.poll_read_ready(cx).map(drop)
    }

    pub fn poll_write_ready(&self, cx: &mut Context<'_>) -> Poll<()> {
        self.socket.poll_write_ready(cx).map(drop)
    }

    /// Whether neither bytes nor an end have come. TLS's own messages (tickets, new keys) don't count.
    pub fn is_silent(&mut self, ask_kernel: bool) -> bool {
        let ask = if ask_kernel { Ask::Kernel } else { Ask::Runtime };
        for _ in 0..BARREN_MAX {
            if self.plain > 0 || !self.raw.is_empty() || self.ended {
                return false;
            }
            match self.fill(ask) {
                Ok(1..) if self.answer().is_ok() => {}
                Err(error) => return error.kind() == io::ErrorKind::WouldBlock,
                Ok(_) => return false,
            }
        }
        false
    }

    /// Whether dropping it from now on is an end in order, of which the peer is told.
    pub fn rest(&mut self, resting: bool) {
        self.resting = resting;
    }

    /// TLS's own end, as far as the socket takes it at once. After a record that left in part it would be noise.
    pub fn say_goodbye(&mut self) {
        self.resting = false;
        if self.sealed == 0 {
            self.tls.send_close_notify();
            let _best_effort = self.flush();
        }
    }

    /// One read from the socket to rustls; what it has no room for, to `raw`. Zero bytes: the socket's end, which
    /// is not TLS's.
    fn fill(&mut self, ask: Ask) -> io::Result<usize> {
        READ.with_borrow_mut(|buf| {
            let read = match ask {
                Ask::Runtime => self.socket.try_read(buf)?,
                Ask::Kernel => (&*SockRef::from(&self.socket)).read(buf)?,
            };
            if read == 0 {
                // So that rustls can tell an end in order from one that was cut off.
                self.tls.read_tls(&mut io::empty())?;
                return Ok(0);
            }
            if read < buf.len() {
                // As for plain sockets: the kernel has no more, and the next look costs no system call.
                let _cleared = self.socket.try_io(Interest::READABLE, would_block);
            }
            let mut came = &buf[..read];
            while !came.is_empty() && self.plain == 0 && self.step(&mut came)? > 0 {}
            self.raw.end().extend_from_slice(came);
            Ok(read)
        })
    }

    /// Gives rustls what came earlier, as far as it has room.
    fn digest(&mut self) -> io::Result<()> {
        let mut raw = std::mem::take(&mut self.raw);
        let mut came = raw.filled();
        let before = came.len();
        while !came.is_empty() && self.plain == 0 && self.step(&mut came)? > 0 {}
        let taken = before - came.len();
        raw.consume(taken);
        if !raw.is_empty() {
            self.raw = raw;
        }
        Ok(())
    }

    /// One piece for rustls; zero after the peer's word that there is no more.
    fn step(&mut self, came: &mut &[u8]) -> io::Result<usize> {
        let taken = self.tls.read_tls(came)?;
        match self.tls.process_new_packets() {
            Ok(state) => {
                self.plain = state.plaintext_bytes_to_read();
                self.ended = state.peer_has_closed();
                Ok(taken)
            }
            Err(error) => {
                let _alert = self.answer();
                Err(io::Error::new(io::ErrorKind::InvalidData, error))
            }
        }
    }

    /// Sends answers of TLS's own. Behind records of ours they wait: only who holds the flight may send those.
    fn answer(&mut self) -> io::Result<()> {
        if self.sealed > 0 || (self.out.is_empty() && !self.tls.wants_write()) {
            return Ok(());
        }
        match self.flush() {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(()),
            flushed => flushed,
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        self.collect()?;
        while !self.out.is_empty() {
            self.push()?;
        }
        Ok(())
    }

    /// Takes from rustls what it has made.
    fn collect(&mut self) -> io::Result<()> {
        while self.tls.wants_write() {
            if self.out.capacity() == 0 {
                self.out.put_room(WRITE.take());
            }
            self.tls.write_tls(self.out.end())?;
        }
        Ok(())
    }

    /// One system call.
    fn push(&mut self) -> io::Result<()> {
        let taken = self.socket.try_write(self.out.filled())?;
        self.out.consume(taken);
        if self.out.is_empty() {
            WRITE.set(self.out.take_room());
        }
        Ok(())
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        if self.resting {
            self.say_goodbye();
        }
    }
}

/// Whom a read asks first.
#[derive(Clone, Copy)]
enum Ask {
    /// The runtime, which mostly knows whether there is something to read.
    Runtime,
    /// The kernel itself, also about what the runtime has not noticed yet.
    Kernel,
}
