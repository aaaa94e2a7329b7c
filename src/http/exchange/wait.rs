//! Waiting: for which of the four directions, for whose sake, and for how long.

use std::future::poll_fn;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use super::super::answer::Answer;
use super::{Ended, Exchange, Progress, RaiseWait, Step};
use crate::base::Reason;
use crate::keeper::Cut;
use crate::wire::http1::Version;

/// How long the gate waits for the backend's 100 before it gives its own, so that a client that insists goes on.
const CONTINUE_AFTER: Duration = Duration::from_secs(1);
/// While a raise waits, a client must take so much of its answer in so long a time; else it is dropped, and the
/// answer read on without it.
const RAISE_WINDOW: (Duration, usize) = (Duration::from_millis(200), 64 * 1024);

impl<'k> Exchange<'_, 'k> {
    /// Nothing can be moved: waits until something can, a fence shuts, or time is over.
    pub(super) async fn wait(&mut self) -> Option<Ended<'k>> {
        self.watch_if_needed();
        let (deadline, why) = self.deadline();
        let woken = poll_fn(|cx| self.poll_wait(cx, deadline)).await;
        match woken {
            Woken::Ready => None,
            Woken::Shut => self.shut(),
            Woken::Disowned => Some(self.disowned()),
            Woken::Late => self.late(why),
        }
    }

    /// Only who waits registers: before the commit point to be cut at once, in the answer's body to hear that a
    /// raise waits for its end.
    fn watch_if_needed(&mut self) {
        let Some(flight) = &self.flight else { return };
        if self.place.is_none() {
            self.place = flight.enroll();
        }
        let waits = self.sent_at.is_none() || matches!(self.answer, Progress::Body { .. });
        if self.watch.is_none() && flight.is_fenced_write() && waits && self.raise_waits.is_none() {
            self.watch = Some(flight.watch());
        }
    }

    fn poll_wait(&mut self, cx: &mut Context<'_>, deadline: Instant) -> Poll<Woken> {
        if let Some(watch) = &mut self.watch
            && watch.poll_shut(cx).is_ready()
        {
            return Poll::Ready(Woken::Shut);
        }
        if self.flight.is_some()
            && let Some(place) = &mut self.place
            && place.poll_lapsed(cx).is_ready()
        {
            return Poll::Ready(Woken::Disowned);
        }
        let mut ready = false;
        if self.wants_request() {
            ready |= self.side.stream.poll_read_ready(cx).is_ready();
        }
        if !self.side.reply.is_empty() {
            ready |= self.side.stream.poll_write_ready(cx).is_ready();
        }
        if let Some(conn) = &self.conn {
            if !self.stop_sending && !self.side.outbox.is_empty() {
                ready |= conn.stream().poll_write_ready(cx).is_ready();
            }
            if self.wants_answer() {
                ready |= conn.stream().poll_read_ready(cx).is_ready();
            }
        }
        if ready {
            return Poll::Ready(Woken::Ready);
        }
        self.side.alarm.poll(cx, deadline).map(|()| Woken::Late)
    }

    /// What time is waited for, and whose it is.
    fn deadline(&self) -> (Instant, Late) {
        let listener = &self.gate.listener;
        let (patience, answering) = (listener.limits.idle_timeout, listener.response_timeout);
        let moved = self.moved;
        let mut first = match (&self.answer, self.sent_at) {
            (Progress::Head { .. }, None) if !self.stop_sending && self.side.outbox.is_empty() => {
                (moved.from_client.max(moved.to_backend) + patience, Late::Upload)
            }
            (Progress::Head { .. }, None) => {
                (moved.from_client.max(moved.to_backend) + answering, Late::Answer)
            }
            (Progress::Head { .. }, Some(sent_at)) => (sent_at + answering, Late::Answer),
            (Progress::Body { .. }, _) => match self.raise_waits {
                Some(raise) => (raise.since + answering, Late::Answer),
                // It is the client that is late, and no doubt comes of that.
                None if !self.wants_answer() => {
                    (moved.to_client.max(moved.from_backend) + patience, Late::Reading)
                }
                None => (moved.from_backend.max(moved.to_client) + answering, Late::Answer),
            },
            (Progress::Switched | Progress::Done, _) => {
                (moved.to_client.max(moved.from_backend) + patience, Late::Reading)
            }
        };
        let mut sooner = |other: (Instant, Late)| {
            if other.0 < first.0 {
                first = other;
            }
        };
        if self.owes_continue && self.facts.version == Version::V11 {
            sooner((moved.to_backend + CONTINUE_AFTER, Late::Continue));
        }
        if !self.side.reply.is_empty() {
            let since = moved.to_client.max(moved.from_backend);
            sooner((since + patience, Late::Reading));
            if let (Some(raise), Progress::Body { .. }) = (self.raise_waits, &self.answer) {
                sooner((raise.window.0 + RAISE_WINDOW.0, Late::Window));
            }
        }
        first
    }

    fn shut(&mut self) -> Option<Ended<'k>> {
        self.watch = None;
        match &self.flight {
            Some(flight) if !flight.is_committed() => Some(self.cut(flight.cut())),
            _ => {
                let since = Instant::now();
                self.raise_waits = Some(RaiseWait {
                    since,
                    window: (since, self.taken),
                });
                None
            }
        }
    }

    /// This instance is not the owner any more: the connection is reset with whatever it carries.
    fn disowned(&mut self) -> Ended<'k> {
        match &self.flight {
            Some(flight) if !flight.is_committed() && flight.is_fenced_write() => self.cut(Cut::NotOwner),
            _ => self.lose(
                Reason::UpstreamFailed,
                "this instance ceased to be the owner before the answer came",
            ),
        }
    }

    fn late(&mut self, why: Late) -> Option<Ended<'k>> {
        match why {
            Late::Continue => {
                self.owes_continue = false;
                self.core.lend(&mut self.side.reply);
                self.side
                    .reply
                    .end()
                    .extend_from_slice(b"HTTP/1.1 100 Continue\r\n\r\n");
                None
            }
            Late::Upload => {
                let mut answer = Answer::new(
                    Reason::BadRequest,
                    "the body stopped for longer than idle_timeout",
                );
                answer.status = Some(408);
                Some(self.fail(answer))
            }
            Late::Answer => Some(self.lose(
                Reason::UpstreamTimeout,
                "the backend's answer did not come within response_timeout",
            )),
            Late::Window => match &mut self.raise_waits {
                Some(raise) if self.taken - raise.window.1 >= RAISE_WINDOW.1 => {
                    raise.window = (Instant::now(), self.taken);
                    None
                }
                _ => self.late(Late::Reading),
            },
            Late::Reading => match self.drop_client() {
                Step::End(ended) => Some(ended),
                Step::Moved | Step::Blocked => None,
            },
        }
    }
}

/// What ended a wait.
enum Woken {
    Ready,
    Shut,
    Disowned,
    Late,
}

/// Which deadline is over.
#[derive(Clone, Copy, Debug)]
enum Late {
    /// The backend gave no 100.
    Continue,
    /// The client stopped in its body.
    Upload,
    /// The backend takes or answers nothing.
    Answer,
    /// The client does not read.
    Reading,
    /// The client reads, perhaps too slowly for the raise that waits.
    Window,
}
