//! The answer's way: from the backend through the reply to the client. A flight is settled when the whole answer
//! has come, whatever the client does.

use std::io;
use std::time::Instant;

use super::{Ended, Exchange, Progress, Step};
use crate::base::Reason;
use crate::keeper::Flight;
use crate::upstream::Conn;
use crate::wire::http1::{
    BodyReader, CHUNK_END, Framing, HeaderStorage, Piece, ResponseOptions, Version, find_head_end,
    parse_response, write_chunk_head, write_last_chunk, write_response_head,
};

/// How much of an answer waits for its client in the gate.
const REPLY_MAX: usize = 64 * 1024;
/// The largest head of an answer.
const ANSWER_HEAD_MAX: usize = 256 * 1024;

impl<'k> Exchange<'_, 'k> {
    pub(super) fn wants_answer(&self) -> bool {
        self.conn.is_some()
            && match self.answer {
                Progress::Head { .. } => true,
                Progress::Body { .. } => self.client_gone || self.side.reply.len() < REPLY_MAX,
                Progress::Switched | Progress::Done => false,
            }
    }

    pub(super) fn pull_answer(&mut self) -> Step<'k> {
        if !self.wants_answer() {
            return Step::Blocked;
        }
        let straight = match &self.answer {
            Progress::Body {
                reader,
                from: Framing::Length(_),
                to: Framing::Length(_),
                ..
            } if !self.client_gone => reader
                .remaining()
                .and_then(|left| usize::try_from(left).ok())
                .unwrap_or(0),
            _ => 0,
        };
        let Some(conn) = &mut self.conn else {
            return Step::Blocked;
        };
        let read = if straight > 0 && conn.inbox.is_empty() {
            self.core.lend(&mut self.side.reply);
            let before = self.side.reply.len();
            let read = conn.read_into(&mut self.side.reply, straight);
            if let (Ok(1..), Progress::Body { reader, .. }) = (&read, &mut self.answer) {
                let _all_payload = reader.next(&self.side.reply.filled()[before..]);
            }
            read
        } else {
            self.core.lend(&mut conn.inbox);
            conn.read()
        };
        match read {
            Ok(0) => self.backend_closed(),
            Ok(_) => {
                self.moved.from_backend = Instant::now();
                self.digest()
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Step::Blocked,
            Err(error) => Step::End(self.backend_gone(&format!("the backend's connection broke: {error}"))),
        }
    }

    /// Takes what has come of the answer as far as it goes.
    fn digest(&mut self) -> Step<'k> {
        loop {
            let Some(conn) = &mut self.conn else {
                return Step::Moved;
            };
            match &mut self.answer {
                Progress::Head { searched } => {
                    let end = find_head_end(conn.inbox.filled(), *searched);
                    // Its size counts, not how many reads it came in.
                    if end.unwrap_or(conn.inbox.len()) > ANSWER_HEAD_MAX {
                        return Step::End(self.lose(
                            Reason::UpstreamFailed,
                            "the head of the backend's answer is too large",
                        ));
                    }
                    let Some(end) = end else {
                        *searched = conn.inbox.len();
                        return Step::Moved;
                    };
                    if let Err(what) = self.take_head(end) {
                        return Step::End(self.lose(Reason::UpstreamFailed, what));
                    }
                }
                Progress::Body { reader, .. } if reader.is_done() => self.finish(),
                Progress::Body { reader, to, .. } => {
                    let chunked = *to == Framing::Chunked;
                    let reply = (!self.client_gone).then_some(&mut self.side.reply);
                    match reader.next(conn.inbox.filled()) {
                        Ok(Piece::Data { skip, len }) => {
                            if let Some(reply) = reply {
                                put_piece(reply.end(), &conn.inbox.filled()[skip..skip + len], chunked);
                            }
                            conn.inbox.consume(skip + len);
                        }
                        Ok(Piece::NeedMore { skip }) => {
                            conn.inbox.consume(skip);
                            return Step::Moved;
                        }
                        Ok(Piece::End { consumed, trailers }) => {
                            if let Some(reply) = reply
                                && chunked
                            {
                                write_last_chunk(reply.end(), &conn.inbox.filled()[trailers]);
                            }
                            conn.inbox.consume(consumed);
                            self.finish();
                        }
                        Err(error) => {
                            let what = format!("the body of the backend's answer: {error}");
                            return Step::End(self.lose(Reason::UpstreamFailed, &what));
                        }
                    }
                }
                Progress::Switched | Progress::Done => return Step::Moved,
            }
        }
    }

    /// The head of an answer is there: passes an interim one on, or begins the final one.
    fn take_head(&mut self, end: usize) -> Result<(), &'static str> {
        let Some(conn) = &mut self.conn else { return Ok(()) };
        let mut storage = HeaderStorage::new();
        let method = if self.facts.head_only { "HEAD" } else { "GET" };
        let head = parse_response(&conn.inbox.filled()[..end], method, &mut storage)
            .map_err(|_| "the backend's answer is malformed")?;
        let version = self.facts.version;
        self.core.lend(&mut self.side.reply);
        if head.is_interim() {
            // A client that does not read misses some of them; they must not pile up here.
            let room = self.side.reply.len() < REPLY_MAX;
            let wanted = room && (head.status != 100 || std::mem::take(&mut self.owes_continue));
            if wanted && version == Version::V11 && !self.client_gone {
                let options = ResponseOptions {
                    client: version,
                    close: false,
                    body: Framing::None,
                };
                write_response_head(self.side.reply.end(), &head, options);
            }
            conn.inbox.consume(end);
            self.answer = Progress::Head { searched: 0 };
            return Ok(());
        }
        if head.status == 101 {
            if !self.facts.upgrade || self.sent_at.is_none() {
                return Err("the backend switched protocols unasked");
            }
            let options = ResponseOptions {
                client: version,
                close: false,
                body: Framing::None,
            };
            write_response_head(self.side.reply.end(), &head, options);
            conn.inbox.consume(end);
            self.answer = Progress::Switched;
            return Ok(());
        }
        if self.sent_at.is_none() {
            // It ends the request: nothing more is sent, and a flight before its commit point is cut.
            self.stop_sending = true;
            self.keep_client = false;
            if self.flight.as_ref().is_some_and(|flight| !flight.is_committed()) {
                self.flight = None;
                self.watch = None;
            }
        }
        let to = head.framing_for(version);
        self.keep_client &= to != Framing::UntilClose && !self.gate.is_closing();
        if !self.client_gone {
            let options = ResponseOptions {
                client: version,
                close: !self.keep_client,
                body: to,
            };
            write_response_head(self.side.reply.end(), &head, options);
        }
        let doubtful = self.gate.listener.in_doubt_statuses.contains(&head.status);
        // It is the backend's word that binds a connection to a client. The client's alone only keeps the connection
        // from all others: whoever claims to authenticate must not hold one for as long as it likes.
        let bound = conn.is_own() || head.connection_auth;
        let reusable = head.keep_alive && !self.stop_sending && (bound || !self.facts.connection_auth);
        let reader = BodyReader::new(head.framing, ANSWER_HEAD_MAX);
        self.answer = Progress::Body {
            reader,
            from: head.framing,
            to,
            reusable,
            bound,
            doubtful,
        };
        conn.inbox.consume(end);
        Ok(())
    }

    /// The whole answer has come: the flight is settled, whatever the client does.
    fn finish(&mut self) {
        let Progress::Body {
            reusable,
            bound,
            doubtful,
            ..
        } = std::mem::replace(&mut self.answer, Progress::Done)
        else {
            return;
        };
        let now = self.moved.from_backend;
        if let Some(sent_at) = self.sent_at {
            self.gate
                .metrics
                .upstream_seconds
                .observe(now.saturating_duration_since(sent_at));
        }
        self.watch = None;
        if doubtful {
            // An intermediary's word: the backend may still be at it (S6).
            self.lose_flight("in-doubt-status");
        } else if let Some(flight) = self.flight.take() {
            flight.settle();
        }
        let Some(mut conn) = self.conn.take() else { return };
        if reusable && conn.inbox.is_empty() && self.sent_at.is_some() {
            self.core.take_back(&mut conn.inbox);
            if bound {
                conn.bind();
                conn.rest(now);
                self.conn = Some(conn);
            } else {
                self.core.pool.put(conn, now);
            }
        }
    }

    fn backend_closed(&mut self) -> Step<'k> {
        if let Progress::Body { reader, to, .. } = &mut self.answer
            && reader.finish().is_ok()
        {
            if *to == Framing::Chunked && !self.client_gone {
                write_last_chunk(self.side.reply.end(), b"");
            }
            self.moved.from_backend = Instant::now();
            self.finish();
            return Step::Moved;
        }
        Step::End(self.backend_gone("the backend closed the connection before its answer was whole"))
    }

    /// No answer will come. A read that was met by silence on a connection that had been idle is sent again.
    fn backend_gone(&mut self, what: &str) -> Ended<'k> {
        let silent = matches!(self.answer, Progress::Head { .. })
            && self.conn.as_ref().is_some_and(|c| c.inbox.is_empty());
        let reused = self.conn.as_ref().is_some_and(Conn::is_reused);
        if silent
            && reused
            && self.facts.is_repeatable()
            && let Some(flight) = self.flight.take()
        {
            self.conn = None;
            return Ended::Unanswered { flight };
        }
        self.lose(Reason::UpstreamFailed, what)
    }

    // ---- reply → client

    pub(super) fn push_answer(&mut self) -> Step<'k> {
        if self.side.reply.is_empty() {
            return Step::Blocked;
        }
        if self.client_gone {
            self.side.reply.clear();
            return Step::Moved;
        }
        let full = self.side.reply.len() == self.side.reply.capacity();
        match self.side.stream.try_write(self.side.reply.filled()) {
            Ok(taken) => {
                self.side.reply.consume(taken);
                self.taken += taken;
                self.moved.to_client = Instant::now();
                if full && !matches!(self.answer, Progress::Done) {
                    self.side.reply.grow_for_a_stream();
                }
                Step::Moved
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Step::Blocked,
            Err(_) => self.drop_client(),
        }
    }

    /// The client has left or does not read. A write that was sent is followed to its answer all the same (S8).
    pub(super) fn drop_client(&mut self) -> Step<'k> {
        self.client_gone = true;
        self.side.reply.clear();
        let follow = self.facts.write && self.sent_at.is_some()
            || self.flight.as_ref().is_some_and(Flight::is_committed);
        if follow {
            Step::Moved
        } else {
            Step::End(Ended::ClientGone)
        }
    }
}

fn put_piece(out: &mut Vec<u8>, payload: &[u8], chunked: bool) {
    if chunked {
        write_chunk_head(out, payload.len());
    }
    out.extend_from_slice(payload);
    if chunked {
        out.extend_from_slice(CHUNK_END);
    }
}
