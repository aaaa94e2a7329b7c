//! One face for everything that bytes come from and go to: TCP, a Unix socket, TLS over TCP, and a pipe inside of
//! the process. Readiness based, as the relay works: nothing here waits by itself, and nothing is buffered on the
//! way to a socket that its owner could take for sent.
//!
//! Called by `upstream/` for the backend's side, and by `http/` for the clients'.

mod alarm;
mod chute;
mod duplex;
pub mod linger;
mod pipe;
mod session;
mod tls;

use std::io;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::BufMut;
use socket2::{SockRef, TcpKeepalive};
use tokio::io::Interest;
use tokio::net::{TcpStream, UnixStream};

pub use self::alarm::Alarm;
pub use self::chute::Chute;
pub use self::duplex::Duplex;
pub use self::pipe::{Came, Far, Near, pipe};
pub use self::session::Session;
pub use self::tls::{ClientFiles, ClientTls, Refreshed, ServerFiles, ServerTls, Unfit, Watched};
use crate::base::buf::BUF_MAX;
use crate::base::{Buf, ClientCert};

/// A connection.
#[derive(Debug)]
pub struct Stream(Io);

#[derive(Debug)]
enum Io {
    Tcp(TcpStream),
    Unix(UnixStream),
    /// Boxed: most connections are plain, and idle ones should be small.
    Tls(Box<Session>),
    Pipe(Near),
}

impl Stream {
    /// Over TCP.
    #[must_use]
    pub fn tcp(socket: TcpStream) -> Stream {
        Stream(Io::Tcp(socket))
    }

    /// Over a Unix socket.
    #[must_use]
    pub fn unix(socket: UnixStream) -> Stream {
        Stream(Io::Unix(socket))
    }

    /// TLS over TCP.
    #[must_use]
    pub fn tls(session: Session) -> Stream {
        Stream(Io::Tls(Box::new(session)))
    }

    /// One end of a pipe.
    #[must_use]
    pub fn pipe(end: Near) -> Stream {
        Stream(Io::Pipe(end))
    }

    /// What TLS has agreed on; `None` without TLS.
    #[must_use]
    pub fn secured(&self) -> Option<&rustls::CommonState> {
        match &self.0 {
            Io::Tls(session) => Some(session.state()),
            Io::Tcp(_) | Io::Unix(_) | Io::Pipe(_) => None,
        }
    }

    /// What the peer's certificate says of it, once it was verified; `None` where none was shown.
    #[must_use]
    pub fn peer_names(&self) -> Option<ClientCert> {
        let chain = self.secured()?.peer_certificates()?;
        chain.first().map(tls::names)
    }

    /// One read of at most `max` bytes to the end of `buf`. Zero bytes: the peer has ended its side.
    ///
    /// # Errors
    /// Those of the socket, `WouldBlock` among them; `UnexpectedEof` where TLS was ended by less than TLS's own end,
    /// so that what came may have been cut off by somebody on the way.
    pub fn try_read(&mut self, buf: &mut Buf, max: usize) -> io::Result<usize> {
        match &mut self.0 {
            Io::Tcp(socket) => {
                let (end, room) = buf.room(BUF_MAX);
                let asked = room.min(max);
                let read = socket.try_read_buf(&mut end.limit(asked))?;
                if read < asked {
                    // The kernel has no more: say so to the runtime, so that the next look costs no system call.
                    // What arrives from here on is a new event of the kernel's, and the end of the peer's side is
                    // never forgotten.
                    let _cleared = socket.try_io(Interest::READABLE, would_block);
                }
                Ok(read)
            }
            Io::Unix(socket) => {
                let (end, room) = buf.room(BUF_MAX);
                socket.try_read_buf(&mut end.limit(room.min(max)))
            }
            Io::Tls(session) => session.try_read(buf, max),
            Io::Pipe(end) => end.try_read(buf, max),
        }
    }

    /// One write from the front of `bytes`, which is not empty: at most one system call. `Ok(0)`: a part was taken
    /// of which no whole byte counts yet (TLS goes by records); the next call has to begin with the same bytes.
    ///
    /// What it says was taken, the kernel has: nothing of it waits here.
    ///
    /// # Errors
    /// Those of the socket, `WouldBlock` among them.
    pub fn try_write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match &mut self.0 {
            Io::Tcp(socket) => socket.try_write(bytes),
            Io::Unix(socket) => socket.try_write(bytes),
            Io::Tls(session) => session.try_write(bytes),
            Io::Pipe(end) => end.try_write(bytes),
        }
    }

    /// Ready where a read could bring something. An error is ready too: the read brings it.
    pub fn poll_read_ready(&self, cx: &mut Context<'_>) -> Poll<()> {
        match &self.0 {
            Io::Tcp(socket) => socket.poll_read_ready(cx).map(drop),
            Io::Unix(socket) => socket.poll_read_ready(cx).map(drop),
            Io::Tls(session) => session.poll_read_ready(cx),
            Io::Pipe(end) => end.poll_read_ready(cx),
        }
    }

    /// Ready once the peer is known to have left, where that can be known without reading what it sent before.
    pub fn poll_gone(&self, cx: &mut Context<'_>) -> Poll<()> {
        match &self.0 {
            Io::Tcp(_) | Io::Unix(_) | Io::Tls(_) => Poll::Pending,
            Io::Pipe(end) => end.poll_gone(cx),
        }
    }

    /// Waits until the connection is broken, as by the peer's reset: then nothing can be told to it. An end of the
    /// peer's side is none, and what it has sent is not looked at.
    pub async fn broken(&self) {
        let socket = match &self.0 {
            Io::Tcp(socket) => socket,
            Io::Tls(session) => session.socket(),
            Io::Unix(_) | Io::Pipe(_) => return std::future::pending().await,
        };
        // It fails only where the runtime ends.
        let _is_broken = socket.ready(Interest::ERROR).await;
    }

    /// Ready where a write could take something. An error is ready too: the write brings it.
    pub fn poll_write_ready(&self, cx: &mut Context<'_>) -> Poll<()> {
        match &self.0 {
            Io::Tcp(socket) => socket.poll_write_ready(cx).map(drop),
            Io::Unix(socket) => socket.poll_write_ready(cx).map(drop),
            Io::Tls(session) => session.poll_write_ready(cx),
            Io::Pipe(end) => end.poll_write_ready(cx),
        }
    }

    /// How many bytes at the front of the next write can't be taken back: TLS has made a record of them, of which the
    /// socket has not taken all. They go as they are, or nothing goes any more.
    #[must_use]
    pub fn sealed(&self) -> usize {
        match &self.0 {
            Io::Tls(session) => session.sealed(),
            Io::Tcp(_) | Io::Unix(_) | Io::Pipe(_) => 0,
        }
    }

    /// Whether nothing has come since the last read: neither bytes nor an end. Costs no system call, but for
    /// `ask_kernel`.
    pub fn is_silent(&mut self, ask_kernel: bool) -> bool {
        match &mut self.0 {
            Io::Tcp(socket) => {
                silent(socket.try_read(&mut [0]))
                    && (!ask_kernel || nothing_to_peek(&SockRef::from(&*socket)))
            }
            Io::Unix(socket) => {
                silent(socket.try_read(&mut [0]))
                    && (!ask_kernel || nothing_to_peek(&SockRef::from(&*socket)))
            }
            Io::Tls(session) => session.is_silent(ask_kernel),
            Io::Pipe(_) => true,
        }
    }

    /// Ends our side in order: the peer reads an end, and can still send.
    ///
    /// # Errors
    /// Those of the socket: then the peer sees a reset.
    pub fn end_writes(&mut self) -> io::Result<()> {
        match &mut self.0 {
            Io::Tcp(socket) => SockRef::from(&*socket).shutdown(std::net::Shutdown::Write),
            Io::Unix(socket) => SockRef::from(&*socket).shutdown(std::net::Shutdown::Write),
            Io::Tls(session) => {
                session.say_goodbye();
                SockRef::from(session.socket()).shutdown(std::net::Shutdown::Write)
            }
            Io::Pipe(end) => {
                end.end();
                Ok(())
            }
        }
    }

    /// Reads and throws away what the peer still sends, without looking into it. Zero bytes: it has ended its side.
    ///
    /// # Errors
    /// Those of the socket, `WouldBlock` among them.
    pub fn try_discard(&mut self, waste: &mut Vec<u8>) -> io::Result<usize> {
        waste.clear();
        match &mut self.0 {
            Io::Tcp(socket) => socket.try_read_buf(waste),
            Io::Unix(socket) => socket.try_read_buf(waste),
            Io::Tls(session) => session.socket().try_read_buf(waste),
            // Whoever holds the far end throws away by itself what nobody reads.
            Io::Pipe(_) => Ok(0),
        }
    }

    /// Ready where [`Stream::try_discard`] could bring something.
    pub fn poll_discard_ready(&self, cx: &mut Context<'_>) -> Poll<()> {
        match &self.0 {
            Io::Tcp(socket) => socket.poll_read_ready(cx).map(drop),
            Io::Unix(socket) => socket.poll_read_ready(cx).map(drop),
            Io::Tls(session) => session.socket().poll_read_ready(cx).map(drop),
            Io::Pipe(_) => Poll::Ready(()),
        }
    }

    /// Says whether dropping it from now on is an end in order, as it is between two requests: with TLS the peer is
    /// told.
    pub fn rest(&mut self, resting: bool) {
        if let Io::Tls(session) = &mut self.0 {
            session.rest(resting);
        }
    }

    /// Closes in order. With TLS the peer is told that it has got everything.
    pub fn close(mut self) {
        match &mut self.0 {
            Io::Tcp(_) | Io::Unix(_) => {}
            Io::Tls(session) => session.say_goodbye(),
            Io::Pipe(end) => end.end(),
        }
    }

    /// From now on dropping it closes it in order, where it was set up to be reset.
    pub fn forgive(&mut self) {
        match &mut self.0 {
            Io::Tcp(socket) => linger(&SockRef::from(&*socket), None),
            Io::Tls(session) => linger(&SockRef::from(session.socket()), None),
            Io::Unix(_) | Io::Pipe(_) => {}
        }
    }

    /// From now on dropping it resets it, also where the process is killed.
    pub fn reset_on_drop(&mut self) {
        if let Some(socket) = self.tcp_socket() {
            linger(&socket, Some(Duration::ZERO));
        }
    }

    /// Has the kernel find out whether the peer is still there: one that is gone without a word is known to be after
    /// two minutes.
    pub fn keep_alive(&self) {
        let often = TcpKeepalive::new()
            .with_time(Duration::from_secs(60))
            .with_interval(Duration::from_secs(15))
            .with_retries(4);
        if let Some(socket) = self.tcp_socket() {
            let _best_effort = socket.set_tcp_keepalive(&often);
        }
    }

    fn tcp_socket(&self) -> Option<SockRef<'_>> {
        match &self.0 {
            Io::Tcp(socket) => Some(SockRef::from(socket)),
            Io::Tls(session) => Some(SockRef::from(session.socket())),
            Io::Unix(_) | Io::Pipe(_) => None,
        }
    }

    /// Closes so that the peer can't take what it has got for whole, and the kernel sends nothing more.
    pub fn reset(mut self) {
        match &mut self.0 {
            Io::Tcp(socket) => linger(&SockRef::from(&*socket), Some(Duration::ZERO)),
            Io::Tls(session) => linger(&SockRef::from(session.socket()), Some(Duration::ZERO)),
            Io::Unix(_) => {}
            Io::Pipe(end) => end.reset(),
        }
    }
}

fn linger(socket: &SockRef<'_>, how_long: Option<Duration>) {
    let _best_effort = socket.set_linger(how_long);
}

fn would_block() -> io::Result<()> {
    Err(io::ErrorKind::WouldBlock.into())
}

fn silent(read: io::Result<usize>) -> bool {
    matches!(read, Err(error) if error.kind() == io::ErrorKind::WouldBlock)
}

fn nothing_to_peek(socket: &SockRef<'_>) -> bool {
    silent(socket.peek(&mut [std::mem::MaybeUninit::uninit(); 1]))
}
