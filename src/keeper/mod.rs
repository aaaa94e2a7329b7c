//! The shell around the fences: the only caller of fence transitions and of the ledger.
//!
//! It owns the table, the timers and what waits. Gates see three things of it: [`Keeper::quick`] and
//! [`Keeper::admit`], which give a [`Flight`], and the flight, which commits, settles, or leaves a doubt.
//!
//! Locks: entries' mutexes are taken in the order of their keys, held for a few dozen instructions, and never
//! over an await or a call into the ledger or the table.

mod admission;
mod berth;
mod flight;
mod observed;
mod operator;
mod roll;
mod seat;
mod slow;
mod tally;
mod timer;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Waker;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use smallvec::SmallVec;

pub use self::admission::{Admission, Admitted, Ask, Refused, Room};
pub use self::flight::{Cut, Flight, Lost, Watch};
use self::observed::Observed;
pub use self::observed::{OBSERVED_MAX, Sighting};
pub use self::operator::{FenceView, OperatorError, Page, Reset};
pub use self::roll::Place;
use self::roll::Roll;
pub use self::seat::Seat;
use self::slow::Slow;
use self::tally::Tally;
use self::timer::Timer;
use crate::base::clock::wall_ms;
use crate::base::{Clock, Moment, Token, TokenFormat};
use crate::fence::{Effects, Entry, Key, Persist, Step, Table};
use crate::ledger::vacant::Vacant;
use crate::ledger::{Audit, Change, Ledger, Mark, StoreError};
use crate::observe::{Metrics, events};

/// One fence as the keeper holds it.
type Fence = Arc<Entry<Slow>>;

/// The state of all fences of this process.
pub struct Keeper {
    table: Table<Slow>,
    ledger: Arc<dyn Ledger>,
    /// Whether ownership may lapse: else nobody asks for it.
    leased: bool,
    roll: Roll,
    metrics: Arc<Metrics>,
    clock: Clock,
    /// The end of the wait after a crash; zero where there is none.
    hold: Moment,
    /// Writes that were admitted and have not ended.
    in_flight: Tally,
    /// When the doubts end; those that have ended are dropped when someone looks.
    doubts: Mutex<Vec<Moment>>,
    observed: Observed,
    timer: Timer,
    /// Raises that the ledger refused and has not taken since.
    unstored: AtomicUsize,
}

impl Keeper {
    /// A keeper over a ledger whose marks are in `table` already. `hold` is how long raises wait from now because
    /// the earlier run did not stop cleanly; zero where it did.
    #[must_use]
    pub fn new(marks: Marks, ledger: Arc<dyn Ledger>, metrics: Arc<Metrics>, hold: Duration) -> Arc<Keeper> {
        Keeper::since(Instant::now(), marks, ledger, metrics, hold)
    }

    /// The same, where the wait counts from `begun`, which is past.
    #[must_use]
    pub fn since(
        begun: Instant,
        marks: Marks,
        ledger: Arc<dyn Ledger>,
        metrics: Arc<Metrics>,
        hold: Duration,
    ) -> Arc<Keeper> {
        let clock = Clock::new();
        let left = hold.saturating_sub(begun.elapsed());
        let hold = if left.is_zero() {
            Moment::default()
        } else {
            clock.now().plus(left)
        };
        let keeper = Arc::new(Keeper {
            table: marks.table,
            leased: ledger.is_leased(),
            roll: Roll::default(),
            ledger,
            metrics,
            clock,
            hold,
            in_flight: Tally::default(),
            doubts: Mutex::new(Vec::new()),
            observed: Observed::default(),
            timer: Timer::new(clock),
            unstored: AtomicUsize::new(0),
        });
        Timer::start(&keeper);
        keeper
    }

    /// The keeper of an instance that stands by: it admits nothing that is fenced.
    #[must_use]
    pub fn vacant(metrics: Arc<Metrics>) -> Arc<Keeper> {
        Keeper::new(Marks::default(), Arc::new(Vacant), metrics, Duration::ZERO)
    }

    /// Whether this instance may let fenced requests through at this moment.
    #[must_use]
    pub fn is_owner(&self) -> bool {
        !self.leased || self.ledger.owned()
    }

    /// This instance is not sure any more that it is the owner: everything that is under way is over, whether it is
    /// sure again later or not. What was past its commit point is in doubt.
    pub fn lapse(&self) {
        self.roll.call();
    }

    /// The tenure is over: nothing is done any more, not even what would come by itself.
    fn retire(&self) {
        self.lapse();
        self.timer.stop();
    }

    /// How often ownership has lapsed; nobody counts where it can't.
    fn lapses(&self) -> u64 {
        if self.leased { self.roll.lapses() } else { 0 }
    }

    /// The clock that all moments of this keeper are on.
    #[must_use]
    pub fn clock(&self) -> Clock {
        self.clock
    }

    /// How many fences there are.
    #[must_use]
    pub fn fences(&self) -> usize {
        self.table.len()
    }

    /// Writes that were admitted and have not ended. While some begin and end it may be too many, never too few.
    #[must_use]
    pub fn in_flight(&self) -> i64 {
        i64::try_from(self.in_flight.count()).unwrap_or(i64::MAX)
    }

    /// Writes whose answer is lost and that may still take effect.
    #[must_use]
    pub fn in_doubt(&self) -> usize {
        let now = self.clock.now();
        let mut doubts = self.doubts.lock();
        doubts.retain(|until| *until > now);
        doubts.len()
    }

    /// How much of the wait after a crash is left.
    #[must_use]
    pub fn hold_left(&self) -> Duration {
        self.hold.since(self.clock.now())
    }

    /// Whether the last thing that the ledger said was that it can't make a mark durable.
    #[must_use]
    pub fn store_is_failing(&self) -> bool {
        self.unstored.load(Ordering::Acquire) > 0
    }

    /// What enforcing would do with a request of a rule that only observes: compared with the marks of such rules.
    #[must_use]
    pub fn observe(&self, asks: &[Ask<'_>]) -> Sighting {
        let keys: SmallVec<[Key; 2]> = asks.iter().map(|ask| self.table.key(ask.name)).collect();
        self.observed.see(asks, &keys)
    }

    /// How many resources rules in observe mode have marks of.
    #[must_use]
    pub fn observed(&self) -> usize {
        self.observed.count()
    }

    /// The last stop was clean if this is true now, with every listener closed: nothing may still take effect.
    #[must_use]
    pub fn is_settled(&self) -> bool {
        self.in_flight() == 0 && self.in_doubt() == 0 && self.hold_left().is_zero()
    }

    /// Ends the timers and closes the ledger. Raises that are on their way are committed first.
    ///
    /// # Errors
    /// Those of the ledger: the next start then takes this stop as unclean.
    pub fn close(&self, clean: bool) -> Result<(), StoreError> {
        self.timer.stop();
        self.ledger.close(clean)
    }

    /// Tells the ledger that the wait after a crash is over.
    ///
    /// # Errors
    /// Those of the ledger; a later start then waits longer than it must.
    pub fn hold_is_over(&self, settle_after: Duration) -> Result<(), StoreError> {
        self.ledger.hold_is_over(settle_after)
    }

    /// Something may have let this fence go on: a timer, or the last flight that it waited for.
    fn advance(self: &Arc<Self>, fence: &Fence) {
        let mut slot = fence.slow.lock();
        let Some(slow) = slot.as_deref_mut() else { return };
        let effects = slow.core.advance(&fence.door, self.clock.now(), self.hold);
        let chores = slow.chores(effects);
        slow::rest(&mut slot);
        drop(slot);
        self.carry_out(fence, chores);
    }

    /// The ledger's answer to a persist.
    fn durable(self: &Arc<Self>, fence: &Fence, persist: Persist, answer: &Result<(), StoreError>) {
        let now = self.clock.now();
        let mut slot = fence.slow.lock();
        let slow = slot
            .as_deref_mut()
            .expect("a fence that commits keeps its slow state");
        let was_unstored = std::mem::replace(&mut slow.unstored, answer.is_err());
        let effects = slow.core.durable(&fence.door, answer.is_ok(), now, self.hold);
        let name = slow.named();
        let raise = (answer.is_ok() && !persist.reset).then(|| slow.raised(&name, persist.token, now));
        if slow.core.step() == Step::Open
            && let Some(since) = slow.since.take()
        {
            self.metrics.drain_seconds.observe(now.since(since));
        }
        let reset = if persist.reset && answer.is_ok() {
            slow.reset_is_durable().map(|audit| (audit, slow.format))
        } else {
            None
        };
        let chores = slow.chores(effects);
        slow::rest(&mut slot);
        drop(slot);
        if let Some(raise) = raise {
            self.metrics.events.raise(raise);
        }
        if let Some((audit, format)) = reset {
            self.tell_reset(&name, persist.token, format, &audit);
        }
        self.note_store(&name, was_unstored, answer);
        self.carry_out(fence, chores);
    }

    /// Here, so that it is told also where the operator has gone. Their words are escaped.
    fn tell_reset(&self, name: &str, token: Token, format: TokenFormat, audit: &Audit) {
        let Audit { from, reason, by } = audit;
        tracing::warn!(resource = ?name, from, to = %format.show(token), ?reason, peer = by, "an operator has reset a fence");
        self.metrics.events.reset(events::Reset {
            resource: name,
            token,
            format,
            before: from,
            reason,
            by,
        });
    }

    fn note_store(&self, name: &str, was_unstored: bool, answer: &Result<(), StoreError>) {
        match (was_unstored, answer) {
            (false, Err(error)) => {
                // Once a spell, not once a raise.
                if self.unstored.fetch_add(1, Ordering::AcqRel) == 0 {
                    tracing::error!(resource = name, %error, "a mark could not be made durable: raises get 503 until the store takes it");
                }
            }
            (true, Ok(())) => {
                if self.unstored.fetch_sub(1, Ordering::AcqRel) == 1 {
                    tracing::info!("the store takes marks again");
                }
            }
            (false, Ok(())) | (true, Err(_)) => {}
        }
    }

    /// Does what a transition asked for, with no lock held.
    fn carry_out(self: &Arc<Self>, fence: &Fence, chores: Chores) {
        for waker in chores.wake {
            waker.wake();
        }
        if let Some(at) = chores.timer {
            self.timer.at(at, Arc::clone(fence));
        }
        if let Some((persist, change)) = chores.persist {
            let (keeper, fence) = (Arc::clone(self), Arc::clone(fence));
            self.ledger.submit(
                change,
                Box::new(move |answer| keeper.durable(&fence, persist, &answer)),
            );
        }
    }

    fn add_doubt(&self, until: Moment) {
        let now = self.clock.now();
        let mut doubts = self.doubts.lock();
        // Before it grows, not each time: a lost connection may leave thousands, one by one.
        if doubts.len() == doubts.capacity() {
            doubts.retain(|until| *until > now);
        }
        doubts.push(until);
    }
}

impl std::fmt::Debug for Keeper {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Keeper")
            .field("fences", &self.fences())
            .field("in_flight", &self.in_flight())
            .finish_non_exhaustive()
    }
}

/// The marks that a ledger held at the start, on their way to a [`Keeper`].
#[derive(Debug, Default)]
pub struct Marks {
    table: Table<Slow>,
}

impl Marks {
    /// One mark of the ledger.
    pub fn load(&mut self, name: &str, token: Token) {
        self.table.load(self.table.key(name), token);
    }
}

/// What a transition asked for, gathered under the entry's lock and done without it.
#[derive(Default)]
struct Chores {
    persist: Option<(Persist, Change)>,
    timer: Option<Moment>,
    wake: Vec<Waker>,
}

impl Slow {
    /// What is told of a raise that has become durable.
    fn raised<'n>(&mut self, resource: &'n str, token: Token, now: Moment) -> events::Raise<'n> {
        events::Raise {
            resource,
            token,
            highest: self.core.highest(),
            format: self.format,
            drained: self.since.map_or(Duration::ZERO, |since| now.since(since)),
            by_operator: self.operators.take_if(|asked| *asked <= token) == Some(token),
        }
    }

    fn chores(&mut self, effects: Effects) -> Chores {
        Chores {
            persist: effects.persist.map(|persist| (persist, self.change(persist))),
            timer: effects.timer,
            wake: if effects.wake {
                self.take_wakers()
            } else {
                Vec::new()
            },
        }
    }

    /// The name of a fence that is being raised or reset.
    fn named(&self) -> Arc<str> {
        Arc::clone(
            self.name
                .as_ref()
                .expect("whoever raises or resets a fence names it first"),
        )
    }

    fn change(&self, persist: Persist) -> Change {
        let name = self.named();
        let mark = Mark {
            token: persist.token,
            format: self.format,
            raised_at_ms: wall_ms(),
        };
        match (&self.reset, persist.reset) {
            (Some(reset), true) => Change::Reset {
                name,
                mark,
                audit: reset.audit.clone(),
            },
            (None, true) => unreachable!("a reset is persisted while its operator's words are kept"),
            (_, false) => Change::Raise { name, mark },
        }
    }
}
