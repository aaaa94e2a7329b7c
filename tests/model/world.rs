//! A small world: who asks for what, and how much may go wrong. It decides nothing; `steps.rs` moves it.

use fencegate::base::{Moment, Token};
use fencegate::fence::{Claim, Core, Door, Persist};
use smallvec::SmallVec;

use super::mutants::Mutant;

/// One tick of the model's clock: as long as the fence waits before it asks the ledger again.
pub const TICK: u64 = 500_000_000;

/// One client's request. Each is presented once, at any time, before or after a crash.
#[derive(Clone, Debug)]
pub struct Request {
    /// What it presents for each fence; `None` where it doesn't name that fence.
    pub claims: [Option<Claim>; 2],
    /// Reads are compared and drain, but are never flights.
    pub read: bool,
    /// By how much it may raise a fence at most.
    pub max_step: Option<u64>,
}

/// What a run of the model starts from, and its bounds.
#[derive(Clone, Debug)]
pub struct World {
    /// One resource or two.
    pub fences: usize,
    /// All clients' requests.
    pub requests: Vec<Request>,
    /// `settle_after` in ticks: of the first run, of the second, and of all later ones.
    pub settle_ticks: [u64; 3],
    /// How often the gate may crash.
    pub crashes: u8,
    /// How often it may stop cleanly.
    pub stops: u8,
    /// How often the ledger may say that it doesn't know.
    pub store_failures: u8,
    /// How often the socket may not take the last byte.
    pub short_writes: u8,
    /// An operator's resets, in this order: a fence and its new mark.
    pub resets: Vec<(usize, Token)>,
    /// Whether a request may be turned away because too many wait.
    pub overload: bool,
    /// Whether a waiting request may run into its `drain_timeout`.
    pub give_up: bool,
    /// The rule that the shell breaks.
    pub mutant: Option<Mutant>,
}

impl World {
    /// A world where nothing goes wrong but lost answers.
    pub fn calm(fences: usize, requests: Vec<Request>) -> World {
        World {
            fences,
            requests,
            settle_ticks: [2, 2, 2],
            crashes: 0,
            stops: 0,
            store_failures: 0,
            short_writes: 0,
            resets: Vec::new(),
            overload: false,
            give_up: false,
            mutant: None,
        }
    }

    /// Whether the shell breaks this rule.
    pub fn breaks(&self, rule: Mutant) -> bool {
        self.mutant == Some(rule)
    }

    /// `settle_after` of a run, as the clock counts.
    pub fn settle_after(&self, run: u8) -> u64 {
        self.settle_ticks[usize::from(run).min(2)] * TICK
    }

    /// The state before anything has happened.
    pub fn start(&self) -> State {
        State {
            now: Moment(0),
            run: 0,
            hold: Moment(0),
            beside_marker: self.settle_after(0),
            fences: (0..self.fences)
                .map(|_| Fence::restored(Rank::default()))
                .collect(),
            flights: self.requests.iter().map(|_| Flight::default()).collect(),
            left: Left {
                crashes: self.crashes,
                stops: self.stops,
                store_failures: self.store_failures,
                short_writes: self.short_writes,
                resets: 0,
            },
            broken: 0,
        }
    }
}

/// A write with a token on the first fence.
pub fn write(token: u128) -> Request {
    on_first(Claim::Token(Token(token)), false)
}

/// A read with a token on the first fence.
pub fn read(token: u128) -> Request {
    on_first(Claim::Token(Token(token)), true)
}

/// A write without a token on the first fence.
pub fn tokenless(until_fenced: bool) -> Request {
    on_first(Claim::Without { until_fenced }, false)
}

/// A write that names both fences.
pub fn write_both(first: u128, second: u128) -> Request {
    Request {
        claims: [first, second].map(|t| Some(Claim::Token(Token(t)))),
        read: false,
        max_step: None,
    }
}

/// A write that names the second fence alone.
pub fn write_second(token: u128) -> Request {
    Request {
        claims: [None, Some(Claim::Token(Token(token)))],
        read: false,
        max_step: None,
    }
}

/// The same, and it may raise by no more than `max_step`.
pub fn stepping(request: Request, max_step: u64) -> Request {
    Request {
        max_step: Some(max_step),
        ..request
    }
}

fn on_first(claim: Claim, read: bool) -> Request {
    Request {
        claims: [Some(claim), None],
        read,
        max_step: None,
    }
}

/// How old something is on one resource, as the promise counts: resets first, then tokens. A write that passes
/// without a token has no token of its own; see [`Sent::ranks`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Rank {
    /// How many resets are durable.
    pub resets: u8,
    /// The token.
    pub token: Option<Token>,
}

/// Everything at one moment: the gate, the ledger, the clients and what is on its way to the backend.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct State {
    /// The clock of this run: it starts again at zero with each process.
    pub now: Moment,
    /// How often the gate was started before.
    pub run: u8,
    /// The end of the wait after a crash.
    pub hold: Moment,
    /// The `settle_after` that stands beside the marker.
    pub beside_marker: u64,
    /// Each resource.
    pub fences: SmallVec<[Fence; 2]>,
    /// Each request, in the order of [`World::requests`].
    pub flights: SmallVec<[Flight; 4]>,
    /// What may still go wrong.
    pub left: Left,
    /// One bit for each rule that was seen broken: see `checks.rs`.
    pub broken: u16,
}

/// What may still go wrong.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Left {
    pub crashes: u8,
    pub stops: u8,
    pub store_failures: u8,
    pub short_writes: u8,
    /// How many of the world's resets were asked for already.
    pub resets: usize,
}

/// One resource: the gate's two parts, what the shell keeps for them, and the truth that they are judged by.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Fence {
    pub door: Door,
    pub core: Core,
    /// When the shell comes back to it.
    pub timers: SmallVec<[Moment; 2]>,
    /// At the ledger, not answered yet.
    pub asked: Option<Persist>,
    /// Truth: what a restart finds.
    pub ledger: Rank,
    /// Truth: the highest that was let through.
    pub let_through: Rank,
    /// Truth: the highest token presented in this run that was not refused.
    pub seen: Option<Token>,
    /// Truth: a reset to this mark is under way. What comes meanwhile is judged when it is durable.
    pub resetting: Option<Token>,
}

impl Fence {
    /// A fence as the table holds it after a start.
    pub fn restored(ledger: Rank) -> Fence {
        let door = Door::new(ledger.token);
        Fence {
            core: Core::at_rest(&door),
            door,
            timers: SmallVec::new(),
            asked: None,
            ledger,
            let_through: Rank::default(),
            seen: ledger.token,
            resetting: None,
        }
    }
}

/// One request on its way through the gate.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub struct Flight {
    pub phase: Phase,
    /// The fences whose doors count it: one bit each.
    pub counted: u8,
    /// Truth: its last byte has left, and it is not known to have ended.
    pub sent: Option<Sent>,
}

/// How far a request has come, as the shell sees it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Phase {
    /// Its client hasn't sent it.
    #[default]
    New,
    /// It waits for its fences to move.
    Waiting { woken: bool },
    /// Its head is on its way, its last piece is held back.
    Admitted,
    /// Past its commit point; the answer is awaited.
    Committed,
    /// It has its answer.
    Ended(End),
}

/// How a request ended.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum End {
    /// It reached the backend.
    Through,
    /// Refused or cut: it is too old.
    Refused,
    /// Turned away or lost: 503, or the gate crashed.
    Away,
}

/// A message that has left the gate whole.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Sent {
    /// How old it is on each fence that it names. A write that passes without a token, also over a mark, counts
    /// as old as the mark that was durable when it was committed.
    pub ranks: [Option<Rank>; 2],
    /// It hasn't taken effect, and may.
    pub pending: bool,
    /// Its connection is lost: from this moment on it never takes effect (A4).
    pub deadline: Option<Moment>,
}
