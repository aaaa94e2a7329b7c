//! From the server: whose reply it is that comes, what it changes, and on to the client.

use std::io;
use std::time::Instant;

use super::admit::Queued;
use super::owed::{Owed, What};
use super::subscribed::Subscription;
use super::{End, Ending, Session, State};
use crate::base::Reason;
use crate::base::buf::BUF_MAX;
use crate::wire::resp::Frame;

/// What becomes of the reply that is coming.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Target {
    /// It is nobody's reply: the client gets it.
    Unasked,
    /// The first that is owed; the client gets it.
    Client,
    /// The first that is owed; nobody gets it.
    Nobody,
}

/// So much may wait for a client that doesn't read.
pub(super) const REPLY_BYTES_MAX: usize = 16 * 1024 * 1024;

impl<'k> Session<'_, 'k> {
    pub(super) fn wants_replies(&self) -> bool {
        self.conn.is_some() && (self.client_gone || self.reply.len() < REPLY_BYTES_MAX)
    }

    /// Takes what the server has said.
    pub(super) fn pull_replies(&mut self) -> Result<bool, End> {
        let mut moved = false;
        while self.wants_replies() {
            while self.take_replies_quickly() || self.take_reply()? {
                moved = true;
            }
            let Some(conn) = &mut self.conn else { break };
            match conn.read() {
                Ok(0) => {
                    self.server_left()?;
                    return Ok(true);
                }
                Ok(_) => {
                    self.heard = Instant::now();
                    moved = true;
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) => {
                    tracing::debug!(%error, "the backend's connection broke");
                    self.server_left()?;
                    return Ok(true);
                }
            }
        }
        Ok(moved)
    }

    /// Nothing more comes. Where nothing was owed the client reads the end as well.
    fn server_left(&mut self) -> Result<(), End> {
        let in_order = self.owed.iter().all(|owed| !owed.what.is_the_servers()) && self.replies.is_between();
        if !in_order {
            return Err(End::Lost(Reason::UpstreamFailed));
        }
        self.conn = None;
        self.inbox.clear();
        self.ending = self.ending.or(Some(Ending::Order));
        Ok(())
    }

    /// Takes a piece of a reply; false where more must come first.
    fn take_reply(&mut self) -> Result<bool, End> {
        let Some(conn) = &self.conn else {
            return Ok(false);
        };
        if conn.inbox.is_empty() {
            return Ok(false);
        }
        if self.is_replication(conn.inbox.filled()[0]) {
            self.pass_replication();
            return Ok(true);
        }
        let target = match self.target {
            Some(target) => target,
            None => match self.aim(conn.inbox.filled())? {
                Some(target) => target,
                None => return Ok(false),
            },
        };
        let Some(conn) = &mut self.conn else {
            return Ok(false);
        };
        let bytes = conn.inbox.filled();
        let (taken, ended) = self.replies.read(bytes).map_err(|error| {
            tracing::warn!(%error, "the backend's reply can't be read");
            End::Lost(Reason::UpstreamFailed)
        })?;
        if target != Target::Nobody && !self.client_gone {
            self.reply.tail().extend_from_slice(&bytes[..taken]);
        }
        conn.inbox.consume(taken);
        self.heard = Instant::now();
        self.target = Some(target).filter(|_| !ended);
        if ended {
            let replies = std::mem::take(&mut self.replies);
            let done = self.complete(replies.frame(), target);
            self.replies = replies;
            done?;
        }
        Ok(true)
    }

    /// Whether what comes is no reply, but what the server tells its replicas. That begins at once, with any reply to `SYNC`
    /// that is no error.
    fn is_replication(&self, first: u8) -> bool {
        let begins =
            self.target.is_none() && matches!(self.owed.front().map(|owed| &owed.what), Some(What::Sync));
        self.state.replica || begins && first != b'-'
    }

    fn pass_replication(&mut self) {
        if !self.state.replica {
            self.state.replica = true;
            // No fence binds it.
            drop(self.owed.pop_front());
            self.gone = self.gone.saturating_sub(1);
        }
        let Some(conn) = &mut self.conn else { return };
        if !self.client_gone {
            self.reply.tail().extend_from_slice(conn.inbox.filled());
        }
        conn.inbox.clear();
    }

    /// Whose reply starts with these bytes; `None` where they are too few to tell.
    fn aim(&self, bytes: &[u8]) -> Result<Option<Target>, End> {
        let first = self.owed.front();
        let subscribing = matches!(
            first.map(|owed| &owed.what),
            Some(What::Subscriptions { .. } | What::Shards { .. })
        );
        if self.state.monitor {
            // What it tells starts with a time.
            return Ok(match bytes {
                [_] => None,
                [b'+', b'0'..=b'9', ..] => Some(Target::Unasked),
                _ => Some(Target::Client),
            });
        }
        if bytes[0] == b'>' {
            return Ok(Some(Target::Unasked));
        }
        let listening = subscribing || self.state.subscribed.is_any();
        if bytes[0] == b'*' && listening && !self.state.resp3 {
            match is_of_a_subscription(bytes) {
                Some(true) => return Ok(Some(Target::Unasked)),
                Some(false) => {}
                None => return Ok(None),
            }
        }
        let Some(owed) = first.filter(|owed| owed.what.is_the_servers()) else {
            tracing::warn!("the backend said something that nobody asked for");
            return Err(End::Lost(Reason::UpstreamFailed));
        };
        let is_error = matches!(bytes[0], b'-' | b'!');
        let dropped = match owed.what {
            What::Swallowed | What::ClientId | What::Welcome => true,
            What::Shards { confirmed, failed } => confirmed || failed || !is_error,
            What::Blocking { woken } => woken && is_error,
            What::Reply
            | What::Own(_)
            | What::Subscriptions { .. }
            | What::Multi
            | What::Exec
            | What::Discard
            | What::Reset
            | What::Quit
            | What::Monitor
            | What::Sync
            | What::Named(_) => false,
        };
        Ok(Some(match dropped || owed.muted {
            true => Target::Nobody,
            false => Target::Client,
        }))
    }

    /// A reply has come whole.
    fn complete(&mut self, frame: &Frame, target: Target) -> Result<(), End> {
        if target == Target::Unasked {
            self.note_unasked(frame)?;
            self.settle_own();
            return Ok(());
        }
        let Some(owed) = self.owed.front_mut() else {
            return Ok(());
        };
        if let What::Shards { confirmed, failed } = &mut owed.what
            && !*confirmed
            && !*failed
            && frame.is_error()
        {
            // The reply to the PING is still to come.
            *failed = true;
            return Ok(());
        }
        let early = owed.ride.ends > self.conn.as_ref().map_or(0, |conn| conn.sent());
        let Some(owed) = self.owed.pop_front() else {
            return Ok(());
        };
        self.gone = self.gone.saturating_sub(1);
        if early {
            // It has not got all of the command and never will.
            self.owed.clear();
            self.outbox.clear();
            self.gone = 0;
            self.ending = Some(Ending::Cut);
            return Ok(());
        }
        check_queue(&owed, frame)?;
        self.settled(owed, frame);
        self.settle_own();
        Ok(())
    }

    /// What the reply to a command changes.
    fn settled(&mut self, mut owed: Owed<'k>, frame: &Frame) {
        if let (Some(sent), true) = (owed.sent, owed.ride.flight.is_fenced_write()) {
            self.gate.metrics.upstream_seconds.observe(sent.elapsed());
        }
        let fine = !frame.is_error();
        if fine {
            self.state.welcome = Some(true);
        }
        match std::mem::replace(&mut owed.what, What::Reply) {
            What::Reply | What::Own(_) | What::Swallowed => {}
            What::Subscriptions { .. } | What::Shards { .. } => {}
            // Any other error is one to a client that it has let in.
            What::Welcome => self.state.welcome = Some(!frame.starts_with(b"-NOAUTH")),
            What::ClientId => self.state.client_id = Some(frame.integer()),
            What::Multi if fine => self.state.queued = Some(Queued::default()),
            What::Exec => {
                self.state.queued = None;
                if !fine && !frame.starts_with(b"-EXECABORT") {
                    // An old server may have kept the queue.
                    self.send_own(What::Swallowed, &[b"DISCARD"]);
                }
            }
            What::Discard if fine => self.state.queued = None,
            What::Reset if fine => {
                self.state = State {
                    client_id: self.state.client_id,
                    asked_for_id: self.state.asked_for_id,
                    ..State::default()
                };
            }
            What::Quit => self.ending = Some(Ending::Order),
            What::Monitor if fine => self.state.monitor = true,
            What::Named(naming) if fine => {
                for change in &naming.changes {
                    self.state.identity.apply(change);
                }
                if naming.hello {
                    self.state.resp3 = frame.kind() == b'%';
                }
            }
            What::Blocking { woken } => {
                self.waking = None;
                if woken && !fine && !owed.muted && !self.client_gone {
                    let refusal = self.woken_refusal(&owed);
                    let bytes = self.written(&refusal);
                    self.reply.tail().extend_from_slice(&bytes);
                }
            }
            What::Multi | What::Discard | What::Reset | What::Monitor | What::Sync | What::Named(_) => {}
        }
        owed.ride.flight.settle();
    }

    /// A message, a confirmation, or something that only version 3 has.
    fn note_unasked(&mut self, frame: &Frame) -> Result<(), End> {
        let Some(kind) = frame.word().and_then(Subscription::of) else {
            return Ok(());
        };
        let count = frame.integer().unwrap_or_default();
        self.state.subscribed.note(kind, count);
        self.state.welcome = Some(true);
        let mut all = false;
        if let Some(owed) = self.owed.front_mut() {
            if let What::Shards { confirmed, .. } = &mut owed.what {
                *confirmed = true;
            }
            if let What::Subscriptions { kind: awaited, left } = &mut owed.what
                && *awaited == kind
            {
                *left -= 1;
                all = *left == 0;
            }
        }
        if all && let Some(owed) = self.owed.pop_front() {
            self.gone = self.gone.saturating_sub(1);
            if owed.sent.is_none() {
                // A reply to what it has not got: whose will the next one be?
                return Err(End::Lost(Reason::UpstreamFailed));
            }
            owed.ride.flight.settle();
        }
        Ok(())
    }

    /// The gate's own answers whose turn it is; not in the middle of a reply that is on its way.
    pub(super) fn settle_own(&mut self) {
        while self.target.is_none()
            && matches!(
                self.owed.front(),
                Some(Owed {
                    what: What::Own(_),
                    ..
                })
            )
        {
            let Some(Owed {
                what: What::Own(bytes),
                muted,
                ..
            }) = self.owed.pop_front()
            else {
                return;
            };
            self.gone = self.gone.saturating_sub(1);
            if !muted && !self.client_gone {
                self.reply.tail().extend_from_slice(&bytes);
            }
        }
    }

    /// Gives the client what it takes.
    pub(super) fn push_replies(&mut self) -> Result<bool, End> {
        let mut moved = false;
        while !self.reply.is_empty() && !self.client_gone {
            match self.stream.try_write(self.reply.filled()) {
                Ok(taken) => {
                    self.reply.consume(taken);
                    moved = true;
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(_) => self.client_gone = true,
            }
        }
        if self.reply.is_empty() && self.reply.capacity() > BUF_MAX {
            drop(self.reply.take_room());
        }
        if self.client_gone {
            self.reply.clear();
            self.leave()?;
        }
        Ok(moved)
    }

    /// Without its client a session goes on for the sake of writes that have gone to the server (S8).
    fn leave(&mut self) -> Result<(), End> {
        let awaited = |owed: &Owed<'_>| owed.ride.flight.is_fenced_write() && owed.ride.flight.is_committed();
        if !self.owed.iter().any(awaited) {
            return Err(End::Gone);
        }
        if self.is_blocked() {
            self.waking = Some(Instant::now());
        }
        Ok(())
    }
}

/// A command in a transaction is queued or refused, every other one is neither queued: else the gate and the server
/// have different views of what is going on, and nothing more may be sent.
fn check_queue(owed: &Owed<'_>, frame: &Frame) -> Result<(), End> {
    let queued = frame.starts_with(b"+QUEUED\r\n");
    let right = match (owed.queued, &owed.what) {
        (true, What::Reply) => queued || frame.is_error(),
        (_, _) => !queued,
    };
    if !right {
        tracing::warn!(
            "the backend takes a command for a part of a transaction, or does not, otherwise than the gate"
        );
        return Err(End::Lost(Reason::UpstreamFailed));
    }
    Ok(())
}

/// Whether an array is a message or a confirmation; `None` where its first word has not come.
fn is_of_a_subscription(bytes: &[u8]) -> Option<bool> {
    const WORDS: [&[u8]; 9] = [
        b"message",
        b"pmessage",
        b"smessage",
        b"subscribe",
        b"psubscribe",
        b"ssubscribe",
        b"unsubscribe",
        b"punsubscribe",
        b"sunsubscribe",
    ];
    let mut lines = bytes.split(|byte| *byte == b'\n');
    let (_array, text, word) = (lines.next()?, lines.next(), lines.next());
    let whole = bytes.iter().filter(|byte| **byte == b'\n').count();
    if whole >= 2 && !text.is_some_and(|text| text.starts_with(b"$")) {
        return Some(false);
    }
    if whole >= 1 && bytes.starts_with(b"*0\r\n") || bytes.starts_with(b"*-1\r\n") {
        return Some(false);
    }
    match (whole, word) {
        (3.., Some(word)) => Some(word.strip_suffix(b"\r").is_some_and(|word| WORDS.contains(&word))),
        // Longer than any of them.
        _ if bytes.len() > 64 => Some(false),
        _ => None,
    }
}
