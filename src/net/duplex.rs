//! A stream for libraries that read and write by tokio's traits: HTTP/2 and the admin address. Nothing that goes to a
//! backend takes this way: what is written here may wait for the next flush.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::{Io, Stream};
use crate::base::Buf;

/// A stream, and what was read of it before.
#[derive(Debug)]
pub struct Duplex {
    stream: Stream,
    inbox: Buf,
}

impl Duplex {
    /// Reads what is in `inbox` first.
    #[must_use]
    pub fn new(stream: Stream, inbox: Buf) -> Duplex {
        Duplex { stream, inbox }
    }
}

impl AsyncRead for Duplex {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, out: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let Duplex { stream, inbox } = self.get_mut();
        loop {
            if !inbox.is_empty() {
                let taken = inbox.len().min(out.remaining());
                out.put_slice(&inbox.filled()[..taken]);
                inbox.consume(taken);
                return Poll::Ready(Ok(()));
            }
            match stream.try_read(inbox, usize::MAX) {
                Ok(0) => return Poll::Ready(Ok(())),
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    // An idle connection holds no room.
                    *inbox = Buf::default();
                    ready!(stream.poll_read_ready(cx));
                }
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
    }
}

impl AsyncWrite for Duplex {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let stream = &mut self.get_mut().stream;
        loop {
            let wrote = match &mut stream.0 {
                Io::Tls(session) => session.try_buffer(bytes),
                Io::Tcp(_) | Io::Unix(_) | Io::Pipe(_) => stream.try_write(bytes),
            };
            match wrote {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    ready!(stream.poll_write_ready(cx));
                }
                wrote => return Poll::Ready(wrote),
            }
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.get_mut().stream.0 {
            Io::Tls(session) => session.poll_flush(cx),
            Io::Tcp(_) | Io::Unix(_) | Io::Pipe(_) => Poll::Ready(Ok(())),
        }
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.as_mut().poll_flush(cx))?;
        Poll::Ready(match self.get_mut().stream.end_writes() {
            // The peer was faster.
            Err(error) if error.kind() == io::ErrorKind::NotConnected => Ok(()),
            ended => ended,
        })
    }
}
