//! The request's way: from the client through the outbox to the backend. The bytes leave by [`Conn::send`] alone,
//! which asks the flight.
//!
//! [`Conn::send`]: crate::upstream::Conn::send

use std::io;
use std::time::Instant;

use super::super::answer::Answer;
use super::super::client::Side;
use super::super::request::in_trailers;
use super::{Ended, Exchange, Step};
use crate::base::buf::BUF_MAX;
use crate::upstream::Sent;

impl<'k> Exchange<'_, 'k> {
    pub(super) fn wants_request(&self) -> bool {
        !self.stop_sending && !self.upload.is_done() && self.side.outbox.len() < BUF_MAX
    }

    pub(super) fn pull_request(&mut self) -> Step<'k> {
        if !self.wants_request() {
            return Step::Blocked;
        }
        if !self.side.inbox.is_empty() {
            // What came before and found the outbox full: perhaps nothing more will come.
            let before = self.side.outbox.len();
            match self.feed() {
                Ok(()) if self.upload.is_done() || self.side.outbox.len() > before => return Step::Moved,
                Ok(()) => {}
                Err(answer) => return Step::End(self.fail(answer)),
            }
        }
        let straight = self.upload.straight();
        let Side {
            stream,
            inbox,
            outbox,
            ..
        } = &mut *self.side;
        let (read, into_outbox) = if straight > 0 && inbox.is_empty() {
            let before = outbox.len();
            let read = stream.try_read(outbox, straight);
            if let Ok(1..) = read {
                self.upload.took_straight(&outbox.filled()[before..]);
            }
            (read, true)
        } else {
            self.core.lend(inbox);
            (stream.try_read(inbox, usize::MAX), false)
        };
        match read {
            Ok(0) => return Step::End(self.client_left()),
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Step::Blocked,
            // A pipe's far end says so: over HTTP/2 it is there that trailers are seen.
            Err(error) if error.kind() == io::ErrorKind::InvalidInput => {
                return Step::End(self.fail(in_trailers()));
            }
            Err(_) => return Step::End(self.client_left()),
        }
        self.moved.from_client = Instant::now();
        self.owes_continue = false;
        if into_outbox {
            return Step::Moved;
        }
        match self.feed() {
            Ok(()) => Step::Moved,
            Err(answer) => Step::End(self.fail(answer)),
        }
    }

    fn feed(&mut self) -> Result<(), Answer> {
        let Side { inbox, outbox, .. } = &mut *self.side;
        self.upload.feed(inbox, outbox, &self.gate.listener.rules)
    }

    /// Before its commit point a write ends with its client: dropped, it is cut and its connection reset.
    fn client_left(&mut self) -> Ended<'k> {
        Ended::ClientGone
    }

    // ---- outbox → backend

    pub(super) fn push_request(&mut self) -> Step<'k> {
        if self.stop_sending || self.side.outbox.is_empty() {
            return Step::Blocked;
        }
        let (Some(conn), Some(flight)) = (&mut self.conn, &mut self.flight) else {
            return Step::Blocked;
        };
        let last = self.upload.is_done();
        let full = self.side.outbox.len() == self.side.outbox.capacity();
        match conn.send(flight, &mut self.side.outbox, last, self.first_byte) {
            Sent::All => {
                self.moved.to_backend = Instant::now();
                if last {
                    self.sent_at = Some(self.moved.to_backend);
                    self.watch = None;
                } else if full {
                    self.side.outbox.grow_for_a_stream();
                }
                Step::Moved
            }
            Sent::Part => {
                self.moved.to_backend = Instant::now();
                Step::Moved
            }
            Sent::Blocked => Step::Blocked,
            Sent::Cut(cut) => Step::End(self.cut(cut)),
            Sent::Broken(error) => self.send_broke(&error),
        }
    }

    /// The backend takes no more. Perhaps it has answered first: then that answer counts.
    fn send_broke(&mut self, error: &io::Error) -> Step<'k> {
        let untouched = self
            .conn
            .as_ref()
            .is_some_and(|conn| conn.sent() == 0 && conn.is_reused());
        if untouched && let Some(flight) = self.flight.take() {
            self.conn = None;
            return Step::End(Ended::Unsent {
                flight,
                upload: self.take_upload(),
            });
        }
        tracing::debug!(%error, "the backend takes no more of the request");
        self.stop_sending = true;
        Step::Moved
    }
}
