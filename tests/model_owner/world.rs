//! A small world of several instances and their store: who asks for what, and how much may go wrong. It decides
//! nothing; `steps.rs` moves it.

use std::time::Duration;

use fencegate::base::{Moment, Token};
use fencegate::fence::{Core, Door, Persist};
use fencegate::owner::{Held, Marker, Revision, Validity};
use smallvec::SmallVec;

use super::mutants::Mutant;

/// One tick of real time, which the store and the backend count in.
pub const TICK: Duration = Duration::from_secs(5);

/// One client's request on the one resource. Each is presented once, at any instance that serves.
#[derive(Clone, Copy, Debug)]
pub struct Request {
    pub token: Token,
    /// Reads are compared and drain, but are never flights.
    pub read: bool,
}

/// What a run of the model starts from, and its bounds.
#[derive(Clone, Debug)]
pub struct World {
    pub requests: Vec<Request>,
    /// Two or three instances. The first is the owner from the beginning.
    pub instances: usize,
    /// How long a lease lasts, in ticks.
    pub ttl: u8,
    /// `settle_after` of each instance, in ticks.
    pub settle: [u8; 3],
    /// How fast each instance's clock runs, in thousandths of the store's.
    pub rates: [u64; 3],
    /// What may go wrong, and how often.
    pub faults: Faults,
    /// Until this tick things go wrong, are late, or rest. From then on time passes only where nothing else is left to do:
    /// whatever is to end at all ends before [`World::end`].
    pub calm_from: u8,
    /// Whether each order is explored also once it is calm, and not one.
    pub every_order: bool,
    /// Where time ends.
    pub end: u8,
    /// An operator's resets, in this order.
    pub resets: Vec<Token>,
    /// A standby asks for the ownership also while it sees another owner.
    pub asks_blindly: bool,
    /// The rule that the shell breaks.
    pub mutant: Option<Mutant>,
}

/// What may still go wrong.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Faults {
    /// An instance is stopped, and goes on later.
    pub stops: u8,
    /// An instance crashes, and starts again.
    pub crashes: u8,
    /// An instance is told to end, and starts again.
    pub quits: u8,
    /// A transaction's answer doesn't come in time. It may have landed, or land later.
    pub timeouts: u8,
    /// A renewal's answer comes late.
    pub late_renewals: u8,
    /// The store's leader changes: every lease begins anew.
    pub extensions: u8,
    /// A connection to the backend breaks after the commit point.
    pub losses: u8,
    /// How many of the world's resets were asked for already.
    pub resets_asked: u8,
}

impl Faults {
    /// Whether a tenure may end by them.
    pub fn ends_tenures(&self) -> bool {
        self.stops + self.crashes + self.quits > 0
    }
}

impl World {
    /// A world where nothing goes wrong.
    pub fn calm(requests: Vec<Request>) -> World {
        World {
            requests,
            instances: 2,
            ttl: 2,
            settle: [1, 1, 1],
            rates: [1000; 3],
            faults: Faults::default(),
            calm_from: 4,
            every_order: false,
            end: 16,
            resets: Vec::new(),
            asks_blindly: false,
            mutant: None,
        }
    }

    pub fn breaks(&self, rule: Mutant) -> bool {
        self.mutant == Some(rule)
    }

    pub fn ttl(&self) -> Duration {
        TICK * u32::from(self.ttl)
    }

    pub fn settle_after(&self, instance: usize) -> Duration {
        TICK * u32::from(self.settle[instance])
    }

    /// What an instance's clock says. It goes on while the instance is stopped.
    pub fn clock(&self, state: &State, instance: usize) -> Moment {
        let missed = if self.breaks(Mutant::ClockStopsWithTheProcess) {
            state.instances[instance].ticks_stopped
        } else {
            0
        };
        let tick = u64::try_from(TICK.as_nanos()).expect("a tick is short");
        Moment(u64::from(state.now - missed) * tick / 1000 * self.rates[instance])
    }

    /// The state before anything has happened: the first instance owns the store, and 1 is the mark.
    pub fn start(&self) -> State {
        let mark = Rank {
            resets: 0,
            token: Token(1),
        };
        let tenure = Revision(1);
        let settle_after = self.settle_after(0);
        let mut instances: SmallVec<[Instance; 3]> =
            (0..self.instances).map(|_| Instance::standby()).collect();
        let validity = Validity::granted(Moment(0), self.ttl());
        instances[0].role = Role::Owner(Box::new(Tenure::new(
            tenure,
            validity,
            Moment(0),
            mark.token,
            Revision(1),
        )));
        State {
            now: 0,
            store: Store {
                owner: Some(OwnerKey {
                    by: 0,
                    tenure,
                    lease_end: self.ttl,
                }),
                tenures: 1,
                marker: Marker {
                    clean: false,
                    settle_after,
                },
                marker_revision: Revision(1),
                mark,
                mark_revision: Revision(1),
            },
            instances,
            network: SmallVec::new(),
            flights: self.requests.iter().map(|_| Flight::default()).collect(),
            let_through: mark,
            left: self.faults,
            broken: 0,
        }
    }
}

/// A write.
pub fn write(token: u128) -> Request {
    Request {
        token: Token(token),
        read: false,
    }
}

/// A read.
pub fn read(token: u128) -> Request {
    Request {
        read: true,
        ..write(token)
    }
}

/// How old something is, as the promise counts: resets first, then tokens.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Rank {
    pub resets: u8,
    pub token: Token,
}

/// Everything at one moment.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct State {
    /// Real time, in ticks.
    pub now: u8,
    pub store: Store,
    pub instances: SmallVec<[Instance; 3]>,
    /// Transactions that were sent and whose end nobody has seen.
    pub network: SmallVec<[Transaction; 3]>,
    /// Each request, in the order of [`World::requests`].
    pub flights: SmallVec<[Flight; 4]>,
    /// Truth: the highest that was let through.
    pub let_through: Rank,
    pub left: Faults,
    /// One bit for each rule that was seen broken: see `checks.rs`.
    pub broken: u16,
}

/// The store: a linearizable register.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Store {
    pub owner: Option<OwnerKey>,
    pub tenures: u8,
    pub marker: Marker,
    pub marker_revision: Revision,
    pub mark: Rank,
    pub mark_revision: Revision,
}

impl Store {
    pub fn tenure(&self) -> Option<Revision> {
        self.owner.map(|owner| owner.tenure)
    }

    pub fn held(&self) -> Held {
        Held {
            token: self.mark.token,
            revision: self.mark_revision,
        }
    }
}

/// The owner's key, with its lease's end on the store's clock.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct OwnerKey {
    pub by: usize,
    pub tenure: Revision,
    pub lease_end: u8,
}

/// A transaction on its way.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Transaction {
    pub by: usize,
    pub what: What,
    /// What has become of it at the store; nobody knows yet.
    pub outcome: Option<Outcome>,
    /// Nobody awaits its answer any more. It may still land.
    pub given_up: bool,
}

/// What a transaction compares and writes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum What {
    TakeOver {
        lease_end: u8,
        found: Revision,
        marker: Marker,
    },
    Raise {
        tenure: Revision,
        persist: Persist,
        known: Revision,
    },
    /// Deletes the owner's key; a marker is written where nothing can take effect any more.
    End {
        tenure: Revision,
        marker: Option<Marker>,
    },
}

/// A transaction's end.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Outcome {
    /// Its comparisons held; at which revision it was written.
    Written(Revision),
    /// They did not; what the owner's key and the mark were at that moment.
    Refused(Option<Revision>, Held),
}

/// One process.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Instance {
    pub stopped: bool,
    /// How many ticks it has missed so, where its clock is a wrong one.
    pub ticks_stopped: u8,
    pub role: Role,
}

impl Instance {
    pub fn standby() -> Instance {
        Instance {
            stopped: false,
            ticks_stopped: 0,
            role: Role::Standby,
        }
    }

    pub fn tenure(&self) -> Option<&Tenure> {
        match &self.role {
            Role::Owner(tenure) => Some(tenure),
            Role::Standby | Role::Asking(_) => None,
        }
    }
}

/// What an instance takes itself for.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Role {
    Standby,
    /// It has asked to be the owner.
    Asking(Asking),
    Owner(Box<Tenure>),
}

/// What an instance remembers of its question. The mark is for a shell that takes it from there: see
/// [`Mutant::MarksReadBefore`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Asking {
    pub sent_at: Moment,
    /// The marker that it had found.
    pub marker: Marker,
    pub mark: Option<(Rank, Revision)>,
}

/// One tenure as its instance sees it, with the one fence.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Tenure {
    pub since: Revision,
    pub validity: Validity,
    /// When the renewal was sent whose answer is on its way.
    pub renewal: Option<Moment>,
    /// The end of the wait of S10.
    pub hold: Moment,
    /// It was told to end.
    pub leaving: bool,
    pub door: Door,
    pub core: Core,
    /// When the shell comes back to the fence.
    pub timers: SmallVec<[Moment; 2]>,
    /// The mark's revision as it is known.
    pub known: Revision,
    /// With the ledger, which hasn't answered.
    pub asked: Option<Persist>,
}

impl Tenure {
    pub fn new(since: Revision, validity: Validity, hold: Moment, mark: Token, known: Revision) -> Tenure {
        let door = Door::new(Some(mark));
        Tenure {
            since,
            validity,
            renewal: None,
            hold,
            leaving: false,
            core: Core::at_rest(&door),
            door,
            timers: SmallVec::new(),
            known,
            asked: None,
        }
    }

    /// Whether nothing is in flight or in doubt and no wait runs (S10).
    pub fn is_settled(&self, now: Moment) -> bool {
        self.door.committed() == 0 && self.core.in_doubt(now) == 0 && now >= self.hold
    }
}

/// One request on its way.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub struct Flight {
    pub phase: Phase,
    /// Truth: it has left whole, and may take effect.
    pub sent: Option<Sent>,
}

/// How far a request has come. The number is the instance's.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Phase {
    /// Its client hasn't found an owner.
    #[default]
    New,
    Waiting(usize),
    /// Its head is on its way, its last piece is held back: the backend drops it if that never comes (A3).
    Admitted(usize),
    /// It has passed the commit point, and the system call is a step of its own: where that is taken so.
    Passed(usize),
    Committed(usize),
    Ended(End),
}

impl Phase {
    /// The instance that it is with.
    pub fn at(self) -> Option<usize> {
        match self {
            Phase::Waiting(at) | Phase::Admitted(at) | Phase::Passed(at) | Phase::Committed(at) => Some(at),
            Phase::New | Phase::Ended(_) => None,
        }
    }
}

/// How a request ended.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum End {
    /// It reached the backend, by this instance.
    Through(usize),
    /// It is too old.
    Refused,
    /// Turned away or cut: 503.
    Away,
}

/// A message that has left its gate whole.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Sent {
    pub rank: Rank,
    /// From this tick on it never takes effect (A4).
    pub deadline: Option<u8>,
}
