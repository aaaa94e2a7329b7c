//! Waiting for a request's head on a client connection: with bounds, and holding no room while nothing comes.

use std::future::poll_fn;
use std::io;
use std::task::Poll;
use std::time::Instant;

use super::{Client, Side};
use crate::base::Reason;
use crate::http::answer::Answer;
use crate::wire::http1::find_head_end;

/// What waiting for a head brought.
pub(super) enum Head {
    Complete(usize),
    Ended,
    Refused(Box<Answer>),
    SpeaksHttp2,
}

/// What an HTTP/2 client sends first looks like a head, on purpose (RFC 9113, 3.4).
const HTTP2_PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\n";

impl Client<'_> {
    /// Waits for a whole head in the inbox.
    pub(super) async fn next_head(&mut self, at_first_byte: bool) -> Head {
        let limits = self.gate.listener.limits;
        let since = Instant::now();
        let mut begun = (!self.side.inbox.is_empty()).then_some(since);
        let mut searched = 0;
        loop {
            if matches!(self.side.inbox.filled(), b"\r\n") {
                // Some old clients send an empty line after a body: that begins nothing.
                self.side.inbox.clear();
                (begun, searched) = (None, 0);
            }
            if let Some(end) = find_head_end(self.side.inbox.filled(), searched) {
                return if at_first_byte && self.side.inbox.filled()[..end] == *HTTP2_PREFACE {
                    Head::SpeaksHttp2
                } else if end > limits.max_header_bytes {
                    too_large()
                } else {
                    Head::Complete(end)
                };
            }
            searched = self.side.inbox.len();
            if searched > limits.max_header_bytes {
                return too_large();
            }
            let deadline = begun.map_or(since + limits.idle_timeout, |begun| begun + limits.header_timeout);
            if begun.is_none() && !self.rest() {
                return Head::Ended;
            }
            let ready = self.readable(deadline).await;
            if begun.is_none() {
                if !self.idle.wake() {
                    return Head::Ended;
                }
                self.side.stream.rest(false);
            }
            if !ready {
                return match begun {
                    Some(_) => timed_out("the head did not come within header_timeout"),
                    None => Head::Ended,
                };
            }
            self.core.lend(&mut self.side.inbox);
            match self.side.stream.try_read(&mut self.side.inbox, usize::MAX) {
                Ok(0) => return Head::Ended,
                Ok(_) => begun = begun.or_else(|| Some(Instant::now())),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(_) => return Head::Ended,
            }
        }
    }

    /// Between two requests: gives the room away. False where the gate closes.
    fn rest(&mut self) -> bool {
        for buf in [&mut self.side.inbox, &mut self.side.outbox, &mut self.side.reply] {
            self.core.take_back(buf);
        }
        // A stop that finds the connection here ends its task.
        self.side.stream.rest(true);
        self.idle.rest();
        !self.gate.is_closing()
    }

    async fn readable(&mut self, deadline: Instant) -> bool {
        let Side { stream, alarm, .. } = &mut self.side;
        poll_fn(|cx| match stream.poll_read_ready(cx) {
            Poll::Ready(()) => Poll::Ready(true),
            Poll::Pending => alarm.poll(cx, deadline).map(|()| false),
        })
        .await
    }
}

fn too_large() -> Head {
    let mut answer = Answer::new(Reason::BadRequest, "the head is larger than max_header_bytes");
    answer.status = Some(431);
    Head::Refused(Box::new(answer))
}

fn timed_out(detail: &str) -> Head {
    let mut answer = Answer::new(Reason::BadRequest, detail);
    answer.status = Some(408);
    Head::Refused(Box::new(answer))
}
