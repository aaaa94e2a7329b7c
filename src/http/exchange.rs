//! One request on its way to the backend and its answer on the way back: one task drives both sockets.
//!
//! The loop moves what can be moved in the four directions and waits only when nothing did. Its way out is always
//! an [`Ended`]; the flight is settled, lost or cut on each of them (a flight that is dropped takes care of
//! itself).

use std::future::poll_fn;
use std::io;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use super::answer::{Answer, Applied};
use super::client::Side;
use super::request::{Facts, Upload};
use super::{Core, Gate};
use crate::base::Reason;
use crate::base::buf::BUF_MAX;
use crate::keeper::{Cut, Flight, Watch};
use crate::upstream::{Conn, Sent, read_some};
use crate::wire::http1::{
    BodyReader, CHUNK_END, Framing, HeaderStorage, Piece, ResponseOptions, Version, find_head_end,
    parse_response, write_chunk_head, write_last_chunk, write_response_head,
};

/// How an exchange ended.
#[derive(Debug)]
pub enum Ended<'k> {
    /// The whole answer went to the client.
    Answered {
        /// The connection can take another request.
        keep: bool,
    },
    /// The backend answered before the request was through; the answer went to the client, and the rest of the
    /// request is still to come.
    AnsweredEarly,
    /// The client has left, or does not read.
    ClientGone,
    /// The answer broke off after its head had gone to the client.
    Broken,
    /// A newer holder came before the commit point. Nothing has gone to the client.
    Cut {
        /// Why.
        cut: Cut,
        /// How much of the body had come.
        upload: Upload,
    },
    /// It failed, and nothing has gone to the client.
    Failed {
        /// What to tell it.
        answer: Answer,
        /// How much of the body had come.
        upload: Upload,
    },
    /// Not one byte was taken by a connection that turned out to be closed: it may be sent on another.
    Unsent {
        /// The flight, not committed.
        flight: Flight<'k>,
        /// How much of the body had come.
        upload: Upload,
    },
    /// A read got no answer on a connection that turned out to be closed: it may be sent again.
    Unanswered {
        /// The flight.
        flight: Flight<'k>,
    },
}

/// A request under way.
#[derive(Debug)]
pub struct Exchange<'a, 'k> {
    gate: &'k Gate,
    core: &'a Core,
    side: &'a mut Side,
    facts: Facts,
    upload: Upload,
    /// `None` once it is over: settled, or lost.
    flight: Option<Flight<'k>>,
    /// `None` once it is given up, or given back.
    conn: Option<Conn>,
    answer: Progress,
    /// Wakes this task when a fence of the flight shuts.
    watch: Option<Watch>,
    first_byte: bool,
    /// Nothing more is sent to the backend: it has answered, or does not take it.
    stop_sending: bool,
    /// The client is waiting for a 100 that it has not got yet.
    owes_continue: bool,
    client_gone: bool,
    keep_client: bool,
    /// A raise waits for the end of this answer.
    raise_waits: Option<RaiseWait>,
    /// Bytes that the client has taken.
    taken: usize,
    /// When the last byte of the request had been taken.
    sent_at: Option<Instant>,
    moved: Moved,
}

/// When something last moved, by direction: what the time-outs count from.
#[derive(Clone, Copy, Debug)]
struct Moved {
    from_client: Instant,
    to_client: Instant,
    to_backend: Instant,
    from_backend: Instant,
}

/// A raise that waits for the end of an answer.
#[derive(Clone, Copy, Debug)]
struct RaiseWait {
    since: Instant,
    /// From here on the client's reading is measured, and what it had taken then.
    window: (Instant, usize),
}

/// How far the answer has come.
#[derive(Debug)]
enum Progress {
    /// Its head is awaited; so many bytes of it were searched for its end.
    Head { searched: usize },
    /// Its body is on its way.
    Body {
        reader: BodyReader,
        from: Framing,
        to: Framing,
        reusable: bool,
        doubtful: bool,
    },
    /// It has come whole.
    Done,
}

/// What a step of the loop did.
enum Step<'k> {
    Moved,
    Blocked,
    End(Ended<'k>),
}

/// How long the gate waits for the backend's 100 before it gives its own, so that a client that insists goes on.
const CONTINUE_AFTER: Duration = Duration::from_secs(1);
/// While a raise waits, a client must take so much of its answer in so long a time; else it is dropped, and the
/// answer read on without it.
const RAISE_WINDOW: (Duration, usize) = (Duration::from_millis(200), 64 * 1024);
/// Rounds in which something moved before others get their turn.
const BUSY_MAX: u32 = 16;
/// How much of an answer waits for its client in the gate.
const REPLY_MAX: usize = 64 * 1024;
/// The largest head of an answer.
const ANSWER_HEAD_MAX: usize = 256 * 1024;

impl<'a, 'k> Exchange<'a, 'k> {
    /// An exchange about to begin; the outbox holds what has come of the request.
    #[must_use]
    pub fn new(
        gate: &'k Gate,
        core: &'a Core,
        side: &'a mut Side,
        facts: Facts,
        upload: Upload,
        flight: Flight<'k>,
        conn: Conn,
    ) -> Self {
        let now = Instant::now();
        Exchange {
            gate,
            core,
            side,
            facts,
            first_byte: facts.write && (facts.is_partial || gate.commits_at_first_byte()),
            owes_continue: facts.expect_continue && !upload.is_done(),
            upload,
            flight: Some(flight),
            conn: Some(conn),
            answer: Progress::Head { searched: 0 },
            watch: None,
            stop_sending: false,
            client_gone: false,
            keep_client: facts.keep_alive,
            raise_waits: None,
            taken: 0,
            sent_at: None,
            moved: Moved {
                from_client: now,
                to_client: now,
                to_backend: now,
                from_backend: now,
            },
        }
    }

    /// Runs it to its end.
    pub async fn run(mut self) -> Ended<'k> {
        let mut busy = 0;
        loop {
            let mut moved = false;
            for step in [
                Self::pull_request,
                Self::push_request,
                Self::pull_answer,
                Self::push_answer,
            ] {
                match step(&mut self) {
                    Step::Moved => moved = true,
                    Step::Blocked => {}
                    Step::End(ended) => return ended,
                }
            }
            if matches!(self.answer, Progress::Done) && (self.side.reply.is_empty() || self.client_gone) {
                return self.answered();
            }
            if !moved {
                busy = 0;
                if let Some(ended) = self.wait().await {
                    return ended;
                }
                continue;
            }
            busy += 1;
            if busy % BUSY_MAX == 0 {
                // A stream that is never short of bytes never waits: others on this core get their turn, and a
                // newer holder is heard.
                tokio::task::yield_now().await;
                if let Some(ended) = self.cut_if_stale() {
                    return ended;
                }
            }
        }
    }

    fn cut_if_stale(&mut self) -> Option<Ended<'k>> {
        let flight = self.flight.as_ref()?;
        let stale = flight.is_fenced_write() && !flight.is_committed() && !flight.is_current();
        let cut = stale.then(|| flight.cut())?;
        Some(self.cut(cut))
    }

    fn answered(&self) -> Ended<'k> {
        match (self.client_gone, self.stop_sending) {
            (true, _) => Ended::ClientGone,
            (false, true) => Ended::AnsweredEarly,
            (false, false) => Ended::Answered {
                keep: self.keep_client,
            },
        }
    }

    // ---- client → outbox

    fn wants_request(&self) -> bool {
        !self.stop_sending && !self.upload.is_done() && self.side.outbox.len() < BUF_MAX
    }

    fn pull_request(&mut self) -> Step<'k> {
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
            let read = read_some(stream, outbox, straight);
            if let Ok(1..) = read {
                self.upload.took_straight(&outbox.filled()[before..]);
            }
            (read, true)
        } else {
            self.core.lend(inbox);
            (read_some(stream, inbox, usize::MAX), false)
        };
        match read {
            Ok(0) => return Step::End(self.client_left()),
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Step::Blocked,
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

    fn push_request(&mut self) -> Step<'k> {
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

    // ---- backend → reply

    fn wants_answer(&self) -> bool {
        self.conn.is_some()
            && match self.answer {
                Progress::Head { .. } => true,
                Progress::Body { .. } => self.client_gone || self.side.reply.len() < REPLY_MAX,
                Progress::Done => false,
            }
    }

    fn pull_answer(&mut self) -> Step<'k> {
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
                Progress::Head { searched } => match find_head_end(conn.inbox.filled(), *searched) {
                    Some(end) => {
                        if let Err(what) = self.take_head(end) {
                            return Step::End(self.lose(Reason::UpstreamFailed, what));
                        }
                    }
                    None if conn.inbox.len() > ANSWER_HEAD_MAX => {
                        return Step::End(self.lose(
                            Reason::UpstreamFailed,
                            "the head of the backend's answer is too large",
                        ));
                    }
                    None => {
                        *searched = conn.inbox.len();
                        return Step::Moved;
                    }
                },
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
                Progress::Done => return Step::Moved,
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
            let wanted = head.status != 100 || std::mem::take(&mut self.owes_continue);
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
            return Err("the backend switched protocols unasked");
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
        let doubtful = self
            .gate
            .listener
            .upstream
            .in_doubt_statuses
            .contains(&head.status);
        let reusable =
            head.keep_alive && !head.connection_auth && !self.facts.connection_auth && !self.stop_sending;
        let reader = BodyReader::new(head.framing, ANSWER_HEAD_MAX);
        self.answer = Progress::Body {
            reader,
            from: head.framing,
            to,
            reusable,
            doubtful,
        };
        conn.inbox.consume(end);
        Ok(())
    }

    /// The whole answer has come: the flight is settled, whatever the client does.
    fn finish(&mut self) {
        let Progress::Body {
            reusable, doubtful, ..
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
        match self.flight.take() {
            // An intermediary's word: the backend may still be at it (S6).
            Some(flight) if doubtful => flight.lose(),
            Some(flight) => flight.settle(),
            None => {}
        }
        let Some(mut conn) = self.conn.take() else { return };
        if reusable && conn.inbox.is_empty() && self.sent_at.is_some() {
            self.core.take_back(&mut conn.inbox);
            self.core.pool.put(conn, now);
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

    fn push_answer(&mut self) -> Step<'k> {
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
    fn drop_client(&mut self) -> Step<'k> {
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

    // ---- endings

    /// The answer is lost: a committed flight is in doubt from now on, and the connection is reset.
    fn lose(&mut self, reason: Reason, what: &str) -> Ended<'k> {
        let committed = self.flight.as_ref().is_some_and(Flight::is_committed);
        let sent = self.facts.write && (self.sent_at.is_some() || committed);
        self.watch = None;
        self.conn = None;
        if let Some(flight) = self.flight.take() {
            flight.lose();
        }
        if self.client_gone {
            return Ended::ClientGone;
        }
        if !matches!(self.answer, Progress::Head { .. }) || !self.side.reply.is_empty() {
            return Ended::Broken;
        }
        let mut answer = Answer::new(reason, what);
        if sent {
            answer.applied = Applied::Unknown;
        }
        Ended::Failed {
            answer,
            upload: self.take_upload(),
        }
    }

    /// Its flight may not commit: the connection is reset with what it holds, and the client is told at once.
    fn cut(&mut self, cut: Cut) -> Ended<'k> {
        self.watch = None;
        self.conn = None;
        self.flight = None;
        Ended::Cut {
            cut,
            upload: self.take_upload(),
        }
    }

    /// The request turned out to be malformed on its way.
    fn fail(&mut self, answer: Answer) -> Ended<'k> {
        let Ended::Failed { answer: lost, upload } = self.lose(answer.reason, "") else {
            return Ended::Broken;
        };
        Ended::Failed {
            answer: Answer {
                applied: lost.applied,
                ..answer
            },
            upload,
        }
    }

    fn take_upload(&mut self) -> Upload {
        std::mem::replace(&mut self.upload, Upload::new(Framing::None, 0))
    }

    // ---- waiting

    /// Nothing can be moved: waits until something can, a fence shuts, or time is over.
    async fn wait(&mut self) -> Option<Ended<'k>> {
        self.watch_if_needed();
        let (deadline, why) = self.deadline();
        let woken = poll_fn(|cx| self.poll_wait(cx, deadline)).await;
        match woken {
            Woken::Ready => None,
            Woken::Shut => self.shut(),
            Woken::Late => self.late(why),
        }
    }

    /// Only who waits registers: before the commit point to be cut at once, in the answer's body to hear that a
    /// raise waits for its end.
    fn watch_if_needed(&mut self) {
        let Some(flight) = &self.flight else { return };
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
        let (patience, answering) = (listener.limits.idle_timeout, listener.upstream.response_timeout);
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
            (Progress::Done, _) => (moved.to_client.max(moved.from_backend) + patience, Late::Reading),
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

fn put_piece(out: &mut Vec<u8>, payload: &[u8], chunked: bool) {
    if chunked {
        write_chunk_head(out, payload.len());
    }
    out.extend_from_slice(payload);
    if chunked {
        out.extend_from_slice(CHUNK_END);
    }
}
