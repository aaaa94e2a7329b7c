//! One client connection and the server's connection that belongs to it: one task drives both.
//!
//! The loop moves what can be moved and waits only when nothing did. `commands.rs` takes commands, `ordinary.rs` decides
//! about the server's own, `words.rs` which of them the gate itself has to understand, `quick.rs` takes the usual ones in one
//! go, `admit.rs` compares and waits, `up.rs` sends, `down.rs` finds each reply's command, `wait.rs` knows what is waited
//! for, `owed.rs` is the row of answers, `subscribed.rs` what is listened to.

mod admit;
mod commands;
mod down;
mod ordinary;
mod owed;
mod quick;
mod subscribed;
mod up;
mod wait;
mod words;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use self::admit::Queued;
use self::owed::{Named, Owed, What};
use self::subscribed::Subscribed;
pub use self::words::{taken, waits};
use super::answer::Refusal;
use super::{Core, Gate, Peer};
use crate::base::{Buf, Idle, Reason};
use crate::keeper::{Keeper, Lost, Place};
use crate::net::{Alarm, Stream, linger};
use crate::observe::events;
use crate::rules::redis::{Identity, Notes, Table};
use crate::upstream::Conn;
use crate::wire::resp::{Replies, Requests, write_error};

/// A client connection.
pub struct Session<'a, 'k> {
    gate: &'a Gate,
    core: &'a Core,
    keeper: &'k Arc<Keeper>,
    peer: &'a Peer,
    idle: &'a Idle,
    stream: Stream,
    /// What came from the client and was not taken yet.
    inbox: Buf,
    requests: Requests,
    course: Course,
    /// What goes to the server.
    outbox: Buf,
    conn: Option<Conn>,
    table: Option<Arc<Table>>,
    owed: VecDeque<Owed<'k>>,
    /// How many of the owed have gone to the server whole, or need not.
    gone: usize,
    replies: Replies,
    target: Option<down::Target>,
    /// What goes to the client.
    reply: Buf,
    alarm: Alarm,
    state: State,
    /// Wakes this task when this instance ceases to be the owner.
    place: Option<Place>,
    notes: Notes,
    /// The rule of the commands that were admitted last, and how many of them are not counted yet: for all of a pipeline at
    /// once, before it goes out.
    admitted: (usize, u64),
    /// When something of a reply came last.
    heard: Instant,
    /// When the server took something last.
    pushed: Instant,
    /// Not all of a command has come.
    hungry: bool,
    /// A command is out of the inbox, and what becomes of it is not decided.
    deciding: bool,
    /// When a raise was first seen to wait for the command that blocks.
    waking: Option<Instant>,
    /// The client takes nothing any more.
    client_gone: bool,
    /// The client sends nothing any more.
    client_ended: bool,
    /// Nothing is read from the client any more: its connection ends once it has got what it is owed.
    ending: Option<Ending>,
}

/// How a connection ends once everything owed is through.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Ending {
    /// In order.
    Order,
    /// A half-streamed command was cut: the server's connection is reset.
    Cut,
}

/// What the client's next bytes are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Course {
    /// Commands.
    Commands,
    /// More of a large command on its way.
    Streaming,
    /// More of a large command that was refused.
    Skipping,
}

/// What belongs to the connection, as far as the gate has to know.
#[derive(Debug, Default)]
struct State {
    identity: Identity,
    /// A transaction is open.
    queued: Option<Queued>,
    resp3: bool,
    /// Whether the server does anything for the client: it is authenticated, or need not be. `None`: nobody has seen.
    welcome: Option<bool>,
    subscribed: Subscribed,
    monitor: bool,
    /// The client is a replica: what comes from the server is passed on as it is.
    replica: bool,
    /// The client wants no replies, or not the next one.
    mute: bool,
    mute_next: bool,
    /// The connection's number at the server; the inner `None` where it doesn't tell.
    client_id: Option<Option<i64>>,
    asked_for_id: bool,
}

/// Why a session ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum End {
    /// In order: everything that was owed has been given.
    Order,
    /// The client has left, or doesn't read.
    Gone,
    /// What is owed can't be given any more.
    Lost(Reason),
}

/// Rounds in which something moved before others get their turn.
const BUSY_MAX: u32 = 16;
/// So long a client may send commands that nobody takes before it reads that its connection has ended.
const READS_ITS_END: Duration = Duration::from_secs(2);
/// Commands under way at once.
const OWED_MAX: usize = 64 * 1024;

impl<'a, 'k> Session<'a, 'k> {
    pub fn new(
        gate: &'a Gate,
        core: &'a Core,
        keeper: &'k Arc<Keeper>,
        stream: Stream,
        peer: &'a Peer,
        idle: &'a Idle,
    ) -> Self {
        Session {
            gate,
            core,
            keeper,
            peer,
            idle,
            stream,
            inbox: Buf::default(),
            requests: Requests::default(),
            course: Course::Commands,
            outbox: Buf::default(),
            conn: None,
            table: None,
            owed: VecDeque::new(),
            gone: 0,
            replies: Replies::default(),
            target: None,
            reply: Buf::default(),
            alarm: Alarm::default(),
            state: State::default(),
            place: None,
            notes: Notes::default(),
            admitted: (0, 0),
            heard: Instant::now(),
            pushed: Instant::now(),
            hungry: true,
            deciding: false,
            waking: None,
            client_gone: false,
            client_ended: false,
            ending: None,
        }
    }

    /// Serves the connection until it ends.
    pub async fn serve(mut self) {
        let end = loop {
            match self.round().await {
                Ok(()) => {}
                Err(end) => break end,
            }
        };
        self.note_admitted();
        let Session {
            stream,
            conn,
            owed,
            ending,
            client_ended,
            course,
            mut alarm,
            ..
        } = self;
        match (end, conn) {
            (End::Order, Some(conn)) if ending != Some(Ending::Cut) && owed.is_empty() => conn.close(),
            // Dropped, it is reset, and after it each flight is cut or in doubt.
            (End::Order | End::Gone | End::Lost(_), conn) => drop(conn),
        }
        let gate = self.gate;
        owed.into_iter().for_each(|owed| give_up(gate, owed, end));
        match end {
            // It may still be sending, and would lose what it was told by a reset.
            End::Order if ending.is_some() && !client_ended => match course {
                Course::Commands => linger::close_within(stream, &mut alarm, READS_ITS_END).await,
                // It may send the rest of a large value before it reads.
                Course::Streaming | Course::Skipping => linger::close(stream, &mut alarm).await,
            },
            End::Order => stream.close(),
            End::Gone => stream.reset(),
            End::Lost(reason) => {
                tracing::info!(
                    listener = &*gate.listener.name,
                    reason = reason.as_str(),
                    "a connection is given up with its commands"
                );
                stream.reset();
            }
        }
    }

    /// Moves what can be moved, or waits.
    async fn round(&mut self) -> Result<(), End> {
        let mut busy = 0;
        loop {
            let relayed = self.relay()?;
            let mut moved = self.take_commands().await?;
            if self.waking.is_some() {
                self.wake_blocked().await?;
                moved = true;
            }
            if !(moved || relayed && self.has_left()) {
                return self.wait().await;
            }
            busy += 1;
            if busy % BUSY_MAX == 0 {
                tokio::task::yield_now().await;
            }
        }
    }

    /// Everything but the client's commands: to the server, from it, to the client.
    fn relay(&mut self) -> Result<bool, End> {
        let mut moved = self.push_commands()?;
        moved |= self.pull_replies()?;
        moved |= self.push_replies()?;
        if self.is_over() {
            return Err(End::Order);
        }
        Ok(moved)
    }

    /// Whether something may stand where the kernel does not tell of it, or go on at once.
    fn has_left(&self) -> bool {
        let replies = self.conn.as_ref().is_none_or(|conn| !conn.inbox.is_empty());
        replies || !self.outbox.is_empty() || !self.reply.is_empty() || !self.inbox.is_empty()
    }

    /// Whether the connection has to end, and nothing is owed any more.
    fn is_over(&self) -> bool {
        let ends = self.ending.is_some() || self.client_ended && self.course == Course::Commands;
        let through = match self.ending {
            // What was half sent never gets a reply.
            Some(Ending::Cut) => self.owed.iter().all(|owed| owed.ride.ends == u64::MAX),
            Some(Ending::Order) | None => self.owed.is_empty(),
        };
        let read = self.ending.is_some() || !self.has_command() && !self.deciding;
        ends && through && read && (self.reply.is_empty() || self.client_gone)
    }

    // ---- refusals

    /// Answers the next command itself, in its place.
    fn answer(&mut self, bytes: Vec<u8>) {
        let muted = self.take_mute();
        self.owed.push_back(Owed::own(bytes, muted));
        self.settle_own();
    }

    /// An error in the server's own manner.
    fn complain(&mut self, text: &str) {
        let mut bytes = Vec::new();
        write_error(&mut bytes, text);
        self.answer(bytes);
    }

    /// Refuses the next command, in its place. A transaction is aborted by it.
    fn refuse(&mut self, refusal: &Refusal) {
        let bytes = self.written(refusal);
        if let Some(queued) = &mut self.state.queued {
            queued.aborted = true;
        }
        self.answer(bytes);
        if refusal.reason == Reason::NotOwner && !Arc::ptr_eq(&self.gate.seat.keeper(), self.keeper) {
            // Another tenure has begun: a new connection belongs to it.
            self.ending = self.ending.or(Some(Ending::Order));
        }
    }

    /// A refusal as the client reads it; it is counted and logged.
    fn written(&self, refusal: &Refusal) -> Vec<u8> {
        self.tell(refusal, false);
        let rule = refusal
            .rule
            .map(|index| &*self.gate.listener.rules.rules[index].name);
        let mut bytes = Vec::new();
        refusal.write(rule, &mut bytes);
        bytes
    }

    /// Counts and logs a refusal, or what would have been one, and tells those who listen.
    fn tell(&self, refusal: &Refusal, observed: bool) {
        let gate = self.gate;
        gate.decisions(refusal.rule)
            .count_refused(refusal.reason, observed);
        let rule = refusal.rule.map(|index| &*gate.listener.rules.rules[index].name);
        tracing::info!(
            listener = &*gate.listener.name,
            client = %self.peer.ip,
            command = refusal.command.as_deref().unwrap_or_default(),
            reason = refusal.reason.as_str(),
            resource = refusal.resource.as_deref().unwrap_or_default(),
            token = refusal.token.as_deref().unwrap_or_default(),
            highest = refusal.highest.as_deref().unwrap_or_default(),
            rule = rule.unwrap_or_default(),
            detail = refusal.detail,
            "{}",
            if observed { "observed: would be refused" } else { "refused" }
        );
        gate.metrics.events.refusal(events::Refusal {
            listener: &gate.listener.name,
            rule,
            reason: refusal.reason,
            status: None,
            resource: refusal.resource.as_deref(),
            token: refusal.token.as_deref(),
            highest: refusal.highest.as_deref(),
            client: self.peer.ip,
            observed,
            method: refusal.command.as_deref(),
            path: None,
        });
    }

    fn take_mute(&mut self) -> bool {
        std::mem::take(&mut self.state.mute_next) || self.state.mute
    }

    /// Whether the client wants no reply to this. What belongs to a subscription it is told all the same, and that a
    /// `RESET` has put replies on again, as by Redis.
    fn take_mute_of(&mut self, what: &What) -> bool {
        let skipped = std::mem::take(&mut self.state.mute_next);
        match what {
            What::Subscriptions { .. } | What::Shards { .. } => false,
            What::Reset => skipped,
            _ => skipped || self.state.mute,
        }
    }

    /// Says which resource and token a refusal is about.
    fn name(&self, refusal: &mut Refusal, named: Option<&Named>) {
        let Some(named) = named else { return };
        let fence = &self.gate.listener.rules.rules[named.rule].fences[named.fence];
        refusal.resource = Some(named.resource().to_owned());
        refusal.token = named.token.map(|token| fence.format.show(token).to_string());
        refusal.rule = Some(named.rule);
    }

    fn show_highest(&self, named: Option<&Named>, highest: crate::base::Token) -> Option<String> {
        let named = named?;
        let fence = &self.gate.listener.rules.rules[named.rule].fences[named.fence];
        Some(fence.format.show(highest).to_string())
    }
}

/// Nobody answers it any more: a write that has gone is in doubt from now on.
fn give_up(gate: &Gate, owed: Owed<'_>, end: End) {
    let reason = match end {
        End::Order | End::Gone => "given-up",
        End::Lost(reason) => reason.as_str(),
    };
    let rules = &gate.listener.rules.rules;
    let Owed { ride, names, .. } = owed;
    ride.flight.lose_known(&Lost {
        reason,
        listener: &gate.listener.name,
        rule: names.first().map(|named| &*rules[named.rule].name),
        resource: &|index| {
            let named = names.get(index)?;
            let format = rules[named.rule].fences[named.fence].format;
            Some((named.resource(), format))
        },
    });
}
