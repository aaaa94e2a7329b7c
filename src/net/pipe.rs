//! A connection inside of the process: one stream of an HTTP/2 connection is served as a connection of its own.
//!
//! The [`Near`] end is what the relay works with, as with a socket; the [`Far`] end is the HTTP/2 stream's. Each way
//! is bounded: who is ahead waits.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use bytes::{Buf as _, Bytes};
use parking_lot::Mutex;

use crate::base::Buf;
use crate::base::buf::BUF_MAX;

/// From here on a way takes no more until something was taken off.
const WAY_MAX: usize = 64 * 1024;
/// So many pieces fill the request's way too, however small they are: each takes more room than its bytes.
const PIECES_MAX: usize = 256;

/// The relay's end.
#[derive(Debug)]
pub struct Near(Arc<Mutex<Ways>>);

/// The HTTP/2 stream's end.
#[derive(Debug)]
pub struct Far(Arc<Mutex<Ways>>);

#[derive(Debug, Default)]
struct Ways {
    request: VecDeque<Bytes>,
    request_len: usize,
    answer: Vec<u8>,
    near: State,
    far: State,
    near_waker: Option<Waker>,
    far_waker: Option<Waker>,
}

impl Ways {
    fn has_room(&self) -> bool {
        self.request_len < WAY_MAX && self.request.len() < PIECES_MAX
    }
}

/// What an end still sends.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
enum State {
    #[default]
    Open,
    /// Nothing more, and what came is whole.
    Ended,
    /// Nothing more, and what came may be cut off.
    Reset,
    /// Nothing more, since what came last has no place in a request.
    Malformed,
}

/// What the far end finds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Came {
    /// Bytes, in the buffer.
    Bytes,
    /// The near end has ended in order.
    End,
    /// The near end broke off.
    Reset,
}

/// Both ends of a new pipe.
#[must_use]
pub fn pipe() -> (Near, Far) {
    let ways = Arc::new(Mutex::new(Ways::default()));
    (Near(Arc::clone(&ways)), Far(ways))
}

impl Near {
    pub(super) fn try_read(&mut self, buf: &mut Buf, max: usize) -> io::Result<usize> {
        let mut ways = self.0.lock();
        let Some(first) = ways.request.front_mut() else {
            return match ways.far {
                State::Open => Err(io::ErrorKind::WouldBlock.into()),
                State::Ended => Ok(0),
                State::Reset => Err(io::ErrorKind::ConnectionReset.into()),
                State::Malformed => Err(io::ErrorKind::InvalidInput.into()),
            };
        };
        let (end, room) = buf.room(BUF_MAX);
        let taken = first.len().min(room).min(max);
        end.extend_from_slice(&first[..taken]);
        first.advance(taken);
        if first.is_empty() {
            ways.request.pop_front();
        }
        ways.request_len -= taken;
        if ways.has_room() {
            wake(&mut ways.far_waker);
        }
        Ok(taken)
    }

    pub(super) fn try_write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut ways = self.0.lock();
        if ways.far == State::Reset {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        let taken = bytes.len().min(WAY_MAX.saturating_sub(ways.answer.len()));
        if taken == 0 {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        ways.answer.extend_from_slice(&bytes[..taken]);
        wake(&mut ways.far_waker);
        Ok(taken)
    }

    pub(super) fn poll_read_ready(&self, cx: &mut Context<'_>) -> Poll<()> {
        let mut ways = self.0.lock();
        if ways.request_len > 0 || ways.far != State::Open {
            return Poll::Ready(());
        }
        register(&mut ways.near_waker, cx)
    }

    /// Ready once the far end has left.
    pub(super) fn poll_gone(&self, cx: &mut Context<'_>) -> Poll<()> {
        let mut ways = self.0.lock();
        if ways.far == State::Reset {
            return Poll::Ready(());
        }
        register(&mut ways.near_waker, cx)
    }

    pub(super) fn poll_write_ready(&self, cx: &mut Context<'_>) -> Poll<()> {
        let mut ways = self.0.lock();
        if ways.answer.len() < WAY_MAX || ways.far == State::Reset {
            return Poll::Ready(());
        }
        register(&mut ways.near_waker, cx)
    }

    pub(super) fn end(&mut self) {
        self.leave(State::Ended);
    }

    pub(super) fn reset(&mut self) {
        self.leave(State::Reset);
    }

    fn leave(&mut self, state: State) {
        let mut ways = self.0.lock();
        if ways.near == State::Open {
            ways.near = state;
            wake(&mut ways.far_waker);
        }
    }
}

impl Drop for Near {
    fn drop(&mut self) {
        // Whoever has not said that the answer was whole did not get to its end.
        self.leave(State::Reset);
    }
}

impl Far {
    /// Ready where [`Far::send`] may be called.
    pub fn poll_room(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let mut ways = self.0.lock();
        if ways.has_room() {
            return Poll::Ready(());
        }
        register(&mut ways.far_waker, cx)
    }

    /// A piece of the request. After the near end has left it goes nowhere.
    pub fn send(&mut self, piece: Bytes) {
        let mut ways = self.0.lock();
        if piece.is_empty() || ways.near != State::Open {
            return;
        }
        ways.request_len += piece.len();
        ways.request.push_back(piece);
        wake(&mut ways.near_waker);
    }

    /// The request is whole.
    pub fn end(&mut self) {
        self.leave(State::Ended);
    }

    /// The client has left: what came of the request is all that will come, and nobody takes an answer.
    pub fn reset(&mut self) {
        let mut ways = self.0.lock();
        ways.request.clear();
        ways.request_len = 0;
        ways.far = State::Reset;
        wake(&mut ways.near_waker);
    }

    /// Takes what has come of the answer.
    pub fn poll_answer(&mut self, cx: &mut Context<'_>, buf: &mut Buf) -> Poll<Came> {
        let mut ways = self.0.lock();
        if ways.answer.is_empty() {
            return match ways.near {
                State::Open => register(&mut ways.far_waker, cx).map(|()| Came::Bytes),
                State::Ended => Poll::Ready(Came::End),
                State::Reset | State::Malformed => Poll::Ready(Came::Reset),
            };
        }
        buf.end().extend_from_slice(&ways.answer);
        ways.answer.clear();
        wake(&mut ways.near_waker);
        Poll::Ready(Came::Bytes)
    }

    /// The request turned out to be malformed: the near end reads an error that says so.
    pub fn refuse(&mut self) {
        self.leave(State::Malformed);
    }

    /// Ready once the near end has broken off.
    pub fn poll_broken(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let mut ways = self.0.lock();
        if ways.near == State::Reset {
            return Poll::Ready(());
        }
        register(&mut ways.far_waker, cx)
    }

    fn leave(&mut self, state: State) {
        let mut ways = self.0.lock();
        if ways.far == State::Open {
            ways.far = state;
            wake(&mut ways.near_waker);
        }
    }
}

impl Drop for Far {
    fn drop(&mut self) {
        self.reset();
    }
}

fn wake(waker: &mut Option<Waker>) {
    if let Some(waker) = waker.take() {
        waker.wake();
    }
}

fn register(waker: &mut Option<Waker>, cx: &Context<'_>) -> Poll<()> {
    match waker {
        Some(waker) if waker.will_wake(cx.waker()) => {}
        other => *other = Some(cx.waker().clone()),
    }
    Poll::Pending
}

#[cfg(test)]
mod tests {
    use super::{Came, pipe};
    use crate::base::Buf;
    use bytes::Bytes;
    use std::io::ErrorKind;
    use std::task::{Context, Poll, Waker};

    fn came(far: &mut super::Far, buf: &mut Buf) -> Poll<Came> {
        far.poll_answer(&mut Context::from_waker(Waker::noop()), buf)
    }

    #[test]
    fn a_request_comes_out_in_pieces_and_ends_after_its_last_byte() {
        let (mut near, mut far) = pipe();
        far.send(Bytes::from_static(b"abcdef"));
        far.end();
        let mut buf = Buf::default();
        assert_eq!(near.try_read(&mut buf, 4).unwrap(), 4);
        assert_eq!(near.try_read(&mut buf, 4).unwrap(), 2);
        assert_eq!(near.try_read(&mut buf, 4).unwrap(), 0);
        assert_eq!(buf.filled(), b"abcdef");
    }

    #[test]
    fn a_request_in_small_pieces_fills_its_way_too() {
        let (mut near, mut far) = pipe();
        let cx = &mut Context::from_waker(Waker::noop());
        let mut sent = 0;
        while far.poll_room(cx).is_ready() {
            far.send(Bytes::from_static(b"x"));
            sent += 1;
        }
        assert!(sent < 1000, "{sent}");
        let mut buf = Buf::default();
        while near.try_read(&mut buf, 9).is_ok() {}
        assert_eq!(buf.len(), sent);
        assert!(far.poll_room(cx).is_ready());
    }

    #[test]
    fn a_client_that_left_is_never_taken_for_a_whole_request() {
        let (mut near, mut far) = pipe();
        far.send(Bytes::from_static(b"abc"));
        drop(far);
        let error = near.try_read(&mut Buf::default(), 9).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ConnectionReset);
        assert_eq!(near.try_write(b"x").unwrap_err().kind(), ErrorKind::BrokenPipe);
    }

    #[test]
    fn an_answer_is_bounded_and_whole_only_if_it_was_ended() {
        let (mut near, mut far) = pipe();
        let large = vec![7; 100_000];
        let taken = near.try_write(&large).unwrap();
        assert!(taken < large.len());
        assert_eq!(near.try_write(b"x").unwrap_err().kind(), ErrorKind::WouldBlock);
        let mut buf = Buf::default();
        assert_eq!(came(&mut far, &mut buf), Poll::Ready(Came::Bytes));
        assert_eq!(buf.len(), taken);
        assert_eq!(came(&mut far, &mut buf), Poll::Pending);
        drop(near);
        assert_eq!(came(&mut far, &mut buf), Poll::Ready(Came::Reset));
    }

    #[test]
    fn bytes_come_before_the_end_that_follows_them() {
        let (mut near, mut far) = pipe();
        near.try_write(b"answer").unwrap();
        near.end();
        drop(near);
        let mut buf = Buf::default();
        assert_eq!(came(&mut far, &mut buf), Poll::Ready(Came::Bytes));
        assert_eq!(came(&mut far, &mut buf), Poll::Ready(Came::End));
    }
}
