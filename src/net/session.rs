//! TLS over a socket, by readiness. rustls does the protocol; this moves its bytes.
//!
//! What [`Session::try_write`] says was taken has left by a system call, to its last encrypted byte: the commit
//! point of a write is asked for before each call that could carry the record with its last byte (S5), and a record
//! that the kernel holds in part only can't be opened by the peer.

use std::cell::RefCell;
use std::io::{self, BufRead, Write as _};
use std::task::{Context, Poll, ready};

use rustls::{CommonState, Connection};
use socket2::SockRef;
use tokio::net::TcpStream;

use crate::base::Buf;
use crate::base::buf::BUF_MAX;

/// So many bytes become records at once: they leave by one system call.
const SEAL_MAX: usize = 64 * 1024;
/// So many bytes are read at once.
const READ_MAX: usize = 64 * 1024;

/// A TLS connection whose handshake is through.
#[derive(Debug)]
pub struct Session {
    socket: TcpStream,
    tls: Connection,
    /// Bytes that came and that rustls had no room for yet.
    raw: Buf,
    /// Plain bytes that rustls has ready.
    plain: usize,
    /// Plain bytes that were made records of and whose records have not left whole.
    sealed: usize,
}

thread_local! {
    /// Where a core reads into: what rustls doesn't take at once moves to the session.
    static READ: RefCell<Vec<u8>> = RefCell::new(Vec::with_capacity(READ_MAX));
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
            sealed: 0,
        };
        session.tls.set_buffer_limit(None);
        std::future::poll_fn(|cx| session.poll_handshake(cx)).await?;
        Ok(session)
    }

    fn poll_handshake(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        loop {
            if self.tls.wants_write() {
                match self.flush() {
                    Ok(()) => continue,
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                        ready!(self.socket.poll_write_ready(cx))?;
                        continue;
                    }
                    Err(error) => return Poll::Ready(Err(error)),
                }
            }
            if !self.tls.is_handshaking() {
                return Poll::Ready(Ok(()));
            }
            match self.fill() {
                Ok(0) => return Poll::Ready(Err(io::ErrorKind::UnexpectedEof.into())),
                Ok(_) => self.digest()?,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    ready!(self.socket.poll_read_ready(cx))?;
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
        loop {
            if self.plain > 0 {
                let (end, room) = buf.room(BUF_MAX);
                let mut reader = self.tls.reader();
                let chunk = reader.fill_buf()?;
                let taken = chunk.len().min(room).min(max);
                end.extend_from_slice(&chunk[..taken]);
                reader.consume(taken);
                self.plain -= taken;
                return Ok(taken);
            }
            if self.raw.is_empty() && self.fill()? == 0 {
                // `Ok` only after the peer's own word that this was all.
                return self.tls.reader().fill_buf().map(<[u8]>::len);
            }
            self.digest()?;
            if self.has_heard_the_end() {
                return Ok(0);
            }
        }
    }

    /// The peer has said that this was all, and nothing is left to be read.
    fn has_heard_the_end(&mut self) -> bool {
        self.plain == 0 && matches!(self.tls.reader().fill_buf(), Ok([]))
    }

    pub fn try_write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.sealed == 0 {
            let next = &bytes[..bytes.len().min(SEAL_MAX)];
            self.tls.writer().write_all(next)?;
            self.sealed = next.len();
        }
        debug_assert!(
            self.sealed <= bytes.len(),
            "a write begins with what the last one began with"
        );
        let Self { socket, tls, .. } = self;
        tls.write_tls(&mut Raw(socket))?;
        // One system call and no more: the next one asks the flight again.
        Ok(if tls.wants_write() {
            0
        } else {
            std::mem::take(&mut self.sealed)
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
        if self.plain > 0 || !self.raw.is_empty() {
            return Poll::Ready(());
        }
        self.socket.poll_read_ready(cx).map(drop)
    }

    pub fn poll_write_ready(&self, cx: &mut Context<'_>) -> Poll<()> {
        self.socket.poll_write_ready(cx).map(drop)
    }

    /// Whether neither bytes nor an end have come. TLS's own messages (tickets, new keys) don't count.
    pub fn is_silent(&mut self) -> bool {
        let mut came = [std::mem::MaybeUninit::uninit(); 1];
        while SockRef::from(&self.socket).peek(&mut came).is_ok() {
            // Read past the runtime, which may not have noticed them yet.
            match self.fill_now() {
                Ok(1..) if self.digest().is_ok() && self.raw.is_empty() => {}
                Ok(_) | Err(_) => return false,
            }
        }
        self.plain == 0 && self.raw.is_empty() && !self.has_heard_the_end()
    }

    /// TLS's own end, as far as the socket takes it at once.
    pub fn say_goodbye(&mut self) {
        if self.sealed == 0 {
            self.tls.send_close_notify();
            let _best_effort = self.flush();
        }
    }

    /// One read from the socket to `raw`, or straight to rustls.
    fn fill(&mut self) -> io::Result<usize> {
        self.fill_by(|socket, buf| socket.try_read_buf(buf))
    }

    fn fill_now(&mut self) -> io::Result<usize> {
        self.fill_by(|socket, buf| {
            let read = SockRef::from(socket).recv(buf.spare_capacity_mut())?;
            // SAFETY: the kernel has just written so many bytes there.
            unsafe { buf.set_len(buf.len() + read) };
            Ok(read)
        })
    }

    fn fill_by(
        &mut self,
        read: impl FnOnce(&TcpStream, &mut Vec<u8>) -> io::Result<usize>,
    ) -> io::Result<usize> {
        READ.with_borrow_mut(|buf| {
            buf.clear();
            let read = read(&self.socket, buf)?;
            if read == 0 {
                // So that rustls can tell an end in order from one that was cut off.
                self.tls.read_tls(&mut io::empty())?;
            }
            self.raw.end().extend_from_slice(buf);
            Ok(read)
        })
    }

    /// Gives rustls what has come, as far as it has room.
    fn digest(&mut self) -> io::Result<()> {
        while !self.raw.is_empty() && self.plain == 0 {
            let mut rest = self.raw.filled();
            let taken = self.tls.read_tls(&mut rest)?;
            self.raw.consume(taken);
            let state = self.tls.process_new_packets().map_err(|error| {
                let _alert = self.tls.write_tls(&mut Raw(&self.socket));
                io::Error::new(io::ErrorKind::InvalidData, error)
            })?;
            self.plain = state.plaintext_bytes_to_read();
            if taken == 0 {
                break;
            }
        }
        if self.raw.is_empty() {
            self.raw = Buf::default();
        }
        // Answers of TLS's own. Behind a record of ours they leave with it: only who holds the flight may send that.
        if self.sealed == 0 && !self.tls.is_handshaking() && self.tls.wants_write() {
            match self.flush() {
                Err(error) if error.kind() != io::ErrorKind::WouldBlock => return Err(error),
                Ok(()) | Err(_) => {}
            }
        }
        Ok(())
    }

    fn flush(&mut self) -> io::Result<()> {
        while self.tls.wants_write() {
            self.tls.write_tls(&mut Raw(&self.socket))?;
        }
        Ok(())
    }
}

/// The socket, as rustls writes to it.
struct Raw<'a>(&'a TcpStream);

impl io::Write for Raw<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.try_write(bytes)
    }

    fn write_vectored(&mut self, bytes: &[io::IoSlice<'_>]) -> io::Result<usize> {
        self.0.try_write_vectored(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
