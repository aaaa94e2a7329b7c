//! A pipe of the kernel's between two sockets: bytes of a long stream go through it without coming into this process.
//!
//! What is in it was read from the one socket and not taken by the other: like bytes in a buffer it is thrown away with
//! its owner, and nothing sends it unless [`Chute::pour`] is called. For plain TCP on both sides; `tcp/` uses it.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicUsize, Ordering};

use rustix::pipe::{PipeFlags, SpliceFlags, fcntl_setpipe_size, pipe_with, splice};
use tokio::io::Interest;

use super::{Io, Stream};

/// So many bytes go in at once. More costs hardly less, and what is in it is what a cut tears.
const CHUTE_BYTES: usize = 256 * 1024;

/// How many there are at once, so that connections always find a file to open: all others go by buffers. The kernel gives
/// no more of this size to a user without privileges.
const CHUTES_MAX: usize = 256;
static CHUTES: AtomicUsize = AtomicUsize::new(0);

/// A pipe, and how much is in it.
#[derive(Debug)]
pub struct Chute {
    _counted: Counted,
    exit: OwnedFd,
    entrance: OwnedFd,
    held: usize,
}

impl Chute {
    /// A pipe between these two, where both are plain TCP and the system gives one that is large enough.
    #[must_use]
    pub fn between(from: &Stream, to: &Stream) -> Option<Chute> {
        let (Io::Tcp(_), Io::Tcp(_)) = (&from.0, &to.0) else {
            return None;
        };
        let counted = Counted::one()?;
        let (exit, entrance) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK).ok()?;
        // Whoever has many pipes is given small ones only: a buffer is better then.
        fcntl_setpipe_size(&entrance, CHUTE_BYTES).ok()?;
        Some(Chute {
            _counted: counted,
            exit,
            entrance,
            held: 0,
        })
    }

    /// Whether nothing is in it.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.held == 0
    }

    /// One read from a socket, into the pipe, which is empty. Zero bytes: the peer has ended its side.
    ///
    /// # Errors
    /// Those of the socket, `WouldBlock` among them.
    pub fn fill(&mut self, from: &Stream) -> io::Result<usize> {
        debug_assert!(self.is_empty(), "a full pipe can't be told from a silent peer");
        let read = moved(from, Interest::READABLE, |socket| {
            splice(
                socket,
                None,
                &self.entrance,
                None,
                CHUTE_BYTES,
                SpliceFlags::NONBLOCK,
            )
        })?;
        self.held = read;
        Ok(read)
    }

    /// One write to a socket, of what is in the pipe: at most one system call.
    ///
    /// # Errors
    /// Those of the socket, `WouldBlock` among them.
    pub fn pour(&mut self, to: &Stream) -> io::Result<usize> {
        let taken = moved(to, Interest::WRITABLE, |socket| {
            splice(&self.exit, None, socket, None, self.held, SpliceFlags::NONBLOCK)
        })?;
        debug_assert!(taken <= self.held);
        self.held = self.held.saturating_sub(taken);
        Ok(taken)
    }
}

/// One of [`CHUTES_MAX`].
#[derive(Debug)]
struct Counted;

impl Counted {
    fn one() -> Option<Counted> {
        // Relaxed: it is a number, and nothing else hangs on it.
        let room = |open: usize| (open < CHUTES_MAX).then_some(open + 1);
        CHUTES
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, room)
            .ok()
            .map(|_| Counted)
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        CHUTES.fetch_sub(1, Ordering::Relaxed);
    }
}

/// One system call on a socket that the runtime takes for ready.
fn moved(
    stream: &Stream,
    interest: Interest,
    splice: impl FnOnce(BorrowedFd<'_>) -> rustix::io::Result<usize>,
) -> io::Result<usize> {
    let Io::Tcp(socket) = &stream.0 else {
        return Err(io::ErrorKind::Unsupported.into());
    };
    socket.try_io(interest, || splice(socket.as_fd()).map_err(io::Error::from))
}
