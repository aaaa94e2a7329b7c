//! A flight: an admitted request until it is settled.
//!
//! Forwarding takes a flight, so that sending without an admission doesn't compile. Dropping one is always safe:
//! before its commit point it is cut, after it, it leaves a doubt.

use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use smallvec::SmallVec;

use super::berth::{Berth, Berths};
use super::roll::Place;
use super::slow::{self, SleeperId, Sleeps};
use super::{Fence, Keeper};
use crate::base::{Token, TokenFormat};
use crate::fence::Claim;
use crate::observe::events::InDoubt;

/// An admitted request that may be sent.
#[derive(Debug)]
pub struct Flight<'k> {
    /// `None` where no fence binds it.
    keeper: Option<&'k Arc<Keeper>>,
    /// How often ownership had lapsed when it was admitted.
    born: u64,
    berths: Berths,
    kind: Kind,
    committed: bool,
    /// In nanoseconds; the largest number is for ever.
    settle_after: u64,
}

/// What is held against a raise, and what ownership is needed for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    /// No fence binds it.
    Free,
    /// Admitted like a write, and never held against a raise (S11).
    Read,
    Write,
}

/// Why a flight may not commit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Cut {
    /// A higher token came for the resource of ask `index`.
    Stale {
        /// Which of the asks, in the order of the flight's fences.
        index: usize,
        /// The highest token seen.
        highest: Token,
    },
    /// A write without a token, and a token came.
    Fenced {
        /// Which of the asks.
        index: usize,
    },
    /// An operator's reset is under way.
    Reset,
    /// This instance does not own the fences any more.
    NotOwner,
}

/// What only a gate knows of a flight whose answer is lost: for those who listen, and for no decision.
#[derive(Clone, Copy)]
pub struct Lost<'a> {
    /// Why.
    pub reason: &'static str,
    /// The listener's name.
    pub listener: &'a str,
    /// The rule's name.
    pub rule: Option<&'a str>,
    /// The resource of each ask, and how its tokens are written.
    pub resource: &'a dyn Fn(usize) -> Option<(&'a str, TokenFormat)>,
}

impl<'k> Flight<'k> {
    pub(super) fn new(keeper: &'k Arc<Keeper>, berths: Berths, write: bool) -> Flight<'k> {
        let kind = match (berths.is_empty(), write) {
            (true, _) => Kind::Free,
            (false, false) => Kind::Read,
            (false, true) => Kind::Write,
        };
        Flight::of(keeper, kind, berths)
    }

    /// For a read whose tokens are open: no fence has to know of it.
    pub(super) fn read(keeper: &'k Arc<Keeper>) -> Flight<'k> {
        Flight::of(keeper, Kind::Read, Berths::None)
    }

    /// For a write that is bound to one fence.
    #[inline(always)]
    pub(super) fn of_one(keeper: &'k Arc<Keeper>, berth: Berth) -> Flight<'k> {
        Flight::of(keeper, Kind::Write, Berths::One(berth))
    }

    #[inline(always)]
    fn of(keeper: &'k Arc<Keeper>, kind: Kind, berths: Berths) -> Flight<'k> {
        if kind == Kind::Write {
            keeper.in_flight.begin();
        }
        Flight {
            keeper: Some(keeper),
            born: keeper.lapses(),
            berths,
            kind,
            committed: false,
            settle_after: u64::MAX,
        }
    }

    /// For a request that no rule binds to a fence: it commits freely and leaves no doubt.
    #[must_use]
    pub fn unfenced() -> Flight<'k> {
        Flight {
            keeper: None,
            born: 0,
            berths: Berths::None,
            kind: Kind::Free,
            committed: false,
            settle_after: u64::MAX,
        }
    }

    /// How long a doubt of this flight lasts, should it come to that (A4).
    #[inline(always)]
    #[must_use]
    pub fn settles_after(mut self, settle_after: Duration) -> Flight<'k> {
        self.settle_after = u64::try_from(settle_after.as_nanos()).unwrap_or(u64::MAX);
        self
    }

    /// Whether this is a write that is bound to a fence.
    #[inline]
    #[must_use]
    pub fn is_fenced_write(&self) -> bool {
        self.kind == Kind::Write
    }

    /// Where a write is bound to one fence.
    #[inline]
    pub(super) fn only_berth(&self) -> Option<&Berth> {
        match (&self.berths[..], self.kind) {
            ([berth], Kind::Write) => Some(berth),
            (_, Kind::Free | Kind::Read | Kind::Write) => None,
        }
    }

    /// Whether it is past its commit point.
    #[must_use]
    pub fn is_committed(&self) -> bool {
        self.committed
    }

    /// The commit point (S5): call it right before each system call that could carry the last byte, and
    /// [`Flight::uncommit`] if that byte was not taken. Compares the token once more, and asks for ownership.
    ///
    /// # Errors
    /// [`Cut`]: the last byte must not go out.
    pub fn commit(&mut self) -> Result<(), Cut> {
        if self.kind == Kind::Free || self.committed {
            return Ok(());
        }
        if !self.may_go_on() {
            return Err(Cut::NotOwner);
        }
        if self.kind == Kind::Read {
            return Ok(());
        }
        let shut = |berth: &Berth| !berth.fence.door.commit(berth.claim());
        if let Some(at) = self.berths.iter().position(shut) {
            self.release(at);
            return Err(self.why_cut(at));
        }
        self.committed = true;
        Ok(())
    }

    /// For a session, of which every byte counts, before each system call that sends some of it. The first time it is
    /// the commit point; from then on a raise waits for the session, and it may send no more once one does.
    ///
    /// # Errors
    /// [`Cut`]: nothing more may go out.
    pub fn go_on(&mut self) -> Result<(), Cut> {
        match self.committed {
            true => self.check(),
            false => self.commit(),
        }
    }

    /// Whether a session may go on, past its commit point or before it: nothing changes.
    ///
    /// # Errors
    /// [`Cut`]: it may not.
    pub fn check(&self) -> Result<(), Cut> {
        match (self.may_go_on(), self.is_current()) {
            (false, _) => Err(Cut::NotOwner),
            (true, false) => Err(self.cut()),
            (true, true) => Ok(()),
        }
    }

    /// Whether this instance owns the fences, and has been sure of it since the flight was admitted.
    fn may_go_on(&self) -> bool {
        let sure = |keeper: &Keeper| keeper.lapses() == self.born && keeper.is_owner();
        self.keeper.is_none_or(|keeper| sure(keeper))
    }

    /// Where ownership may lapse, a place in the roll: it says when that has happened.
    #[must_use]
    pub fn enroll(&self) -> Option<Place> {
        let keeper = self.keeper.filter(|keeper| keeper.leased)?;
        (self.kind != Kind::Free).then(|| keeper.roll.enter(self.born))
    }

    /// The socket did not take the last byte: the flight is where it was before [`Flight::commit`].
    pub fn uncommit(&mut self) {
        if std::mem::take(&mut self.committed) {
            self.release(self.berths.len());
        }
    }

    /// The whole answer has come, or the flight was cut before its commit point: it is over.
    #[inline]
    pub fn settle(mut self) {
        self.uncommit();
    }

    /// The same, where it stands: dropped later, it leaves nothing more behind.
    #[inline]
    pub fn settle_here(&mut self) {
        self.uncommit();
    }

    /// The answer is lost. A flight past its commit point is in doubt from now on (S6); one before it is cut.
    pub fn lose(self) {
        drop(self);
    }

    /// The same, told with what the gate knows.
    pub fn lose_known(mut self, lost: &Lost<'_>) {
        if let Some(keeper) = self.keeper
            && std::mem::take(&mut self.committed)
        {
            self.leave_doubt(keeper, Some(lost));
        }
    }

    /// Whether it could commit at this moment: the token is compared, nothing changes.
    #[must_use]
    pub fn is_current(&self) -> bool {
        self.berths.iter().all(Berth::is_open) && self.may_go_on()
    }

    /// Registers with the fences, to be woken at once when one of them shuts: as what it is now, before its commit point
    /// or past it.
    #[must_use]
    pub fn watch(&self) -> Watch {
        let posts = self
            .berths
            .iter()
            .map(|berth| (Arc::clone(&berth.fence), berth.claim(), None))
            .collect();
        let kind = match self.committed {
            true => Sleeps::Committed,
            false => Sleeps::Uncommitted,
        };
        Watch { posts, kind }
    }

    /// Why this flight is cut, for its answer. [`Cut::Reset`] where nothing else explains it.
    #[must_use]
    pub fn cut(&self) -> Cut {
        if self.berths.is_empty() || !self.may_go_on() {
            return Cut::NotOwner;
        }
        let at = self.berths.iter().position(|berth| !berth.is_open()).unwrap_or(0);
        self.why_cut(at)
    }

    fn why_cut(&self, at: usize) -> Cut {
        let berth = &self.berths[at];
        let mut slot = berth.fence.slow.lock();
        let highest = match slot.as_deref_mut() {
            Some(slow) => {
                slow.refused += 1;
                slow.core.highest()
            }
            None => berth.fence.door.mark(),
        };
        match (berth.claim(), highest) {
            (Claim::Token(token), Some(highest)) if token < highest => Cut::Stale { index: at, highest },
            (Claim::Token(_), _) => Cut::Reset,
            (Claim::Without { .. }, _) => Cut::Fenced { index: at },
        }
    }

    /// Counts the first `n` berths out, and goes on for whoever waited for the last flight.
    fn release(&mut self, n: usize) {
        let Some(keeper) = self.keeper else { return };
        for berth in &self.berths[..n] {
            if berth.fence.door.settle() {
                keeper.advance(&berth.fence);
            }
        }
    }

    fn leave_doubt(&mut self, keeper: &Arc<Keeper>, lost: Option<&Lost<'_>>) {
        let now = keeper.clock.now();
        let until = now.plus(Duration::from_nanos(self.settle_after));
        keeper.add_doubt(until);
        for berth in self.berths.iter() {
            let mut slot = berth.fence.slow.lock();
            let slow = slow::open(&mut slot, &berth.fence);
            let effects = slow.core.doubt(&berth.fence.door, until, now, keeper.hold);
            let chores = slow.chores(effects);
            drop(slot);
            keeper.carry_out(&berth.fence, chores);
        }
        // Behind all that counts.
        if keeper.metrics.events.wanted() {
            for (index, berth) in self.berths.iter().enumerate() {
                self.tell_doubt(keeper, index, berth, lost);
            }
        }
    }

    /// A fence knows its name only while something is under way there: the gate knows it always.
    fn tell_doubt(&self, keeper: &Keeper, index: usize, berth: &Berth, lost: Option<&Lost<'_>>) {
        let slot = berth.fence.slow.lock();
        let of_fence = slot
            .as_deref()
            .and_then(|slow| Some((slow.name.clone()?, slow.format)));
        drop(slot);
        let named = lost
            .and_then(|lost| (lost.resource)(index))
            .or_else(|| of_fence.as_ref().map(|(name, format)| (&**name, *format)));
        keeper.metrics.events.in_doubt(InDoubt {
            listener: lost.map(|lost| lost.listener),
            rule: lost.and_then(|lost| lost.rule),
            resource: named.map(|(name, _)| name),
            token: match berth.claim() {
                Claim::Token(token) => named.map(|_| token),
                Claim::Without { .. } => None,
            },
            format: named.map_or(TokenFormat::Integer, |(_, format)| format),
            reason: lost.map_or("given-up", |lost| lost.reason),
            lasts: Duration::from_nanos(self.settle_after),
        });
    }
}

impl Drop for Flight<'_> {
    #[inline]
    fn drop(&mut self) {
        let Some(keeper) = self.keeper else { return };
        if std::mem::take(&mut self.committed) {
            self.leave_doubt(keeper, None);
        }
        if self.kind == Kind::Write {
            keeper.in_flight.end();
        }
        if self.berths.iter().any(Berth::may_be_bare) {
            match std::mem::replace(&mut self.berths, Berths::None) {
                Berths::None => {}
                Berths::One(berth) => berth.leave(keeper),
                Berths::Several(berths) => berths.into_iter().for_each(|berth| berth.leave(keeper)),
            }
        }
    }
}

/// A flight's registration with its fences; see [`Flight::watch`].
#[derive(Debug)]
pub struct Watch {
    posts: SmallVec<[(Fence, Claim, Option<SleeperId>); 1]>,
    kind: Sleeps,
}

impl Watch {
    /// Ready when one of the fences has shut, or shows another token: a flight that has not committed is cut, and
    /// one that has is waited for.
    pub fn poll_shut(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        for (fence, claim, sleeper) in &mut self.posts {
            // Under the lock in which a raise shuts the door and takes the wakers: nothing is missed.
            let mut slot = fence.slow.lock();
            if !fence.door.admits(*claim) {
                return Poll::Ready(());
            }
            slow::open(&mut slot, fence).sleep(sleeper, self.kind, cx.waker());
        }
        Poll::Pending
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        for (fence, _, sleeper) in self.posts.drain(..) {
            let Some(id) = sleeper else { continue };
            let mut slot = fence.slow.lock();
            if let Some(slow) = slot.as_deref_mut() {
                slow.forget(id);
                slow::rest(&mut slot);
            }
        }
    }
}
