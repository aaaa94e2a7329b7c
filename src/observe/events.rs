//! What happens, told one by one to those who listen: raises, resets, refusals, doubts, ownership. Metrics count the
//! same things; this says which.
//!
//! Events are only built while somebody listens, and for [`LINGER`] after the last one has left, so that who comes
//! back has missed nothing. They stand in one ring of [`KEPT_MAX`] that all listeners read at their own pace: nobody who
//! tells an event ever waits for a listener, and a slow one costs no memory. It misses what the ring has dropped, and
//! is told how much that was. Every text is cut at [`TEXT_BYTES_MAX`]. Told by `keeper/`, by the gates and by whoever
//! owns the store; `follow.rs` is the listeners' side, read by `admin/`.

mod follow;
mod happening;

use std::collections::VecDeque;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Waker;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

pub use self::follow::{Follower, Gap, Note};
pub use self::happening::{Doubt, Event, Happening, InDoubt, Raise, Refusal, Refused, Reset, Role};
use crate::base::clock::wall_ms;

/// How many of the latest events are kept.
pub const KEPT_MAX: usize = 1024;
/// How many refusals are told in a second; the others are counted, and the number is told.
pub const REFUSALS_PER_SECOND_MAX: u32 = 100;
/// How many may listen at once.
pub const FOLLOWERS_MAX: usize = 32;
/// How long events are kept for a listener that comes back, where nobody else listens.
pub const LINGER: Duration = Duration::from_secs(60);
/// Longer texts are cut there, and end with `…`.
pub const TEXT_BYTES_MAX: usize = 512;

/// Where events are told and listened to. A handle: its clones are the same.
#[derive(Clone, Debug)]
pub struct Events(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    /// Orders nothing: who reads an old value builds an event too many or tells one too few, around the moment at
    /// which someone begins to listen.
    wanted: AtomicBool,
    /// Tells this process' numbers from those of an earlier one.
    run: u64,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    /// The number of the next event; the first is 1.
    next: u64,
    /// The latest events, without a gap.
    kept: VecDeque<Arc<Event>>,
    /// Every event from this number on was counted. Of those before it some may never have been.
    counted_from: u64,
    followers: usize,
    next_follower: u64,
    /// When the last listener left.
    left_at: Instant,
    /// Those who wait for the next event.
    waiting: Vec<(u64, Waker)>,
    refusals: Pace,
    /// What was told last, for those who begin to listen.
    ownership: Option<(u64, Happening)>,
}

/// Refusals of the second under way.
#[derive(Debug)]
struct Pace {
    since: Instant,
    told: u32,
    left_out: u64,
}

impl Default for Events {
    fn default() -> Self {
        let now = Instant::now();
        Events(Arc::new(Shared {
            wanted: AtomicBool::new(false),
            run: wall_ms(),
            state: Mutex::new(State {
                next: 1,
                kept: VecDeque::new(),
                counted_from: 1,
                followers: 0,
                next_follower: 0,
                left_at: now,
                waiting: Vec::new(),
                refusals: Pace {
                    since: now,
                    told: 0,
                    left_out: 0,
                },
                ownership: None,
            }),
        }))
    }
}

impl Events {
    /// Whether somebody listens. Ask it before anything is built that only an event needs.
    #[must_use]
    pub fn wanted(&self) -> bool {
        self.0.wanted.load(Ordering::Relaxed)
    }

    /// A mark has become durable.
    pub fn raise(&self, raise: Raise<'_>) {
        if self.wanted() {
            let shown = |token| boxed(raise.format.show(token));
            self.tell(Happening::Raised {
                resource: cut(raise.resource),
                token: shown(raise.token),
                highest: raise.highest.map(shown),
                drained: raise.drained,
                by_operator: raise.by_operator,
            });
        }
    }

    /// An operator's reset has become durable.
    pub fn reset(&self, reset: Reset<'_>) {
        if self.wanted() {
            self.tell(Happening::Reset {
                resource: cut(reset.resource),
                token: boxed(reset.format.show(reset.token)),
                before: cut(reset.before),
                reason: cut(reset.reason),
                by: cut(reset.by),
            });
        }
    }

    /// A request was refused. Of more than [`REFUSALS_PER_SECOND_MAX`] only the number is told.
    pub fn refusal(&self, refusal: Refusal<'_>) {
        if !self.wanted() {
            return;
        }
        let mut wakers = Vec::new();
        let mut state = self.0.state.lock();
        // Before the next second begins: the number belongs to the last one.
        self.note_left_out(&mut state, &mut wakers);
        if state.refusals.has_room(Instant::now()) {
            let what = Happening::Refused(Box::new(Refused::of(refusal)));
            self.note(&mut state, what, &mut wakers);
        } else {
            state.refusals.left_out += 1;
        }
        drop(state);
        wakers.into_iter().for_each(Waker::wake);
    }

    /// A write is in doubt from now on.
    pub fn in_doubt(&self, doubt: InDoubt<'_>) {
        if self.wanted() {
            let lasts_ms = u64::try_from(doubt.lasts.as_millis()).unwrap_or(u64::MAX);
            self.tell(Happening::InDoubt(Box::new(Doubt {
                listener: doubt.listener.map(cut),
                rule: doubt.rule.map(cut),
                resource: doubt.resource.map(cut),
                token: doubt.token.map(|token| boxed(doubt.format.show(token))),
                reason: doubt.reason,
                until_ms: wall_ms().saturating_add(lasts_ms),
            })));
        }
    }

    /// What this instance is from now on, and why. Who begins to listen is told the latest.
    pub fn ownership(&self, role: Role, why: &str) {
        let what = Happening::Ownership { role, why: cut(why) };
        self.0.state.lock().ownership = Some((wall_ms(), what.clone()));
        if self.wanted() {
            self.tell(what);
        }
    }

    fn tell(&self, what: Happening) {
        let mut wakers = Vec::new();
        self.note(&mut self.0.state.lock(), what, &mut wakers);
        // Without the lock: a waker may run code of its own.
        wakers.into_iter().for_each(Waker::wake);
    }

    /// Tells of the refusals that were left out, once their second is over.
    fn note_left_out(&self, state: &mut State, wakers: &mut Vec<Waker>) {
        if state.refusals.left_out > 0 && state.refusals.is_over(Instant::now()) {
            let refusals = std::mem::take(&mut state.refusals.left_out);
            self.note(state, Happening::LeftOut { refusals }, wakers);
        }
    }

    /// Numbers an event and keeps it. Gives the wakers of those who wait for it.
    fn note(&self, state: &mut State, what: Happening, wakers: &mut Vec<Waker>) {
        if state.followers == 0 && state.left_at.elapsed() > LINGER {
            self.0.wanted.store(false, Ordering::Relaxed);
            // This one and those to come are not counted: its number is given to none.
            state.next += 1;
            state.kept = VecDeque::new();
            return;
        }
        if state.kept.len() == KEPT_MAX {
            state.kept.pop_front();
        }
        state.kept.push_back(Arc::new(Event {
            sequence: state.next,
            at_ms: wall_ms(),
            what,
        }));
        state.next += 1;
        wakers.extend(state.waiting.drain(..).map(|(_, waker)| waker));
    }
}

impl Pace {
    fn is_over(&self, now: Instant) -> bool {
        now.duration_since(self.since) >= Duration::from_secs(1)
    }

    /// Whether one more is told, and counts it; begins the next second where this one is over.
    fn has_room(&mut self, now: Instant) -> bool {
        if self.is_over(now) {
            (self.since, self.told) = (now, 0);
        }
        let room = self.told < REFUSALS_PER_SECOND_MAX;
        self.told += u32::from(room);
        room
    }
}

impl Refused {
    fn of(refusal: Refusal<'_>) -> Refused {
        Refused {
            listener: cut(refusal.listener),
            rule: refusal.rule.map(cut),
            reason: refusal.reason,
            observed: refusal.observed,
            status: refusal.status,
            resource: refusal.resource.map(cut),
            token: refusal.token.map(cut),
            highest: refusal.highest.map(cut),
            client: refusal.client,
            method: refusal.method.map(cut),
            path: refusal.path.map(cut),
        }
    }
}

/// A place in the events of one run: everything up to it was seen.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Position {
    /// Which run of which process.
    pub run: u64,
    /// The number of the last event seen.
    pub sequence: u64,
}

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:x}-{}", self.run, self.sequence)
    }
}

/// It is not one that was given out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NoPosition;

impl FromStr for Position {
    type Err = NoPosition;

    fn from_str(text: &str) -> Result<Position, NoPosition> {
        let (run, sequence) = text.split_once('-').ok_or(NoPosition)?;
        let position = Position {
            run: u64::from_str_radix(run, 16).map_err(|_| NoPosition)?,
            sequence: sequence.parse().map_err(|_| NoPosition)?,
        };
        // As it was written, and in no other way.
        (position.to_string() == text)
            .then_some(position)
            .ok_or(NoPosition)
    }
}

fn boxed(shown: impl fmt::Display) -> Box<str> {
    shown.to_string().into()
}

/// The text, or as much of it as is kept.
fn cut(text: &str) -> Box<str> {
    if text.len() <= TEXT_BYTES_MAX {
        return text.into();
    }
    let end = text.floor_char_boundary(TEXT_BYTES_MAX);
    format!("{}…", &text[..end]).into()
}

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, Ipv4Addr};
    use std::task::{Context, Poll, Waker};
    use std::time::{Duration, Instant};

    use super::{
        Events, Gap, Happening, KEPT_MAX, LINGER, Note, Position, REFUSALS_PER_SECOND_MAX, Raise, Refusal,
        Role,
    };
    use crate::base::{Reason, Token, TokenFormat};

    fn raise(events: &Events, token: u128) {
        events.raise(Raise {
            resource: "a",
            token: Token(token),
            highest: None,
            format: TokenFormat::Integer,
            drained: Duration::ZERO,
            by_operator: false,
        });
    }

    fn refuse(events: &Events) {
        events.refusal(Refusal {
            listener: "l",
            rule: None,
            reason: Reason::StaleToken,
            observed: false,
            status: Some(412),
            resource: None,
            token: None,
            highest: None,
            client: IpAddr::V4(Ipv4Addr::LOCALHOST),
            method: None,
            path: None,
        });
    }

    /// All that a follower can be told now: numbers of events, and gaps.
    fn told(follower: &mut super::Follower) -> Vec<Result<u64, Gap>> {
        let mut cx = Context::from_waker(Waker::noop());
        let mut told = Vec::new();
        while let Poll::Ready(note) = follower.poll_next(&mut cx) {
            match note {
                Note::Event(event) => told.push(Ok(event.sequence)),
                Note::Missed(gap) => told.push(Err(gap)),
                Note::Ownership { .. } => {}
            }
        }
        told
    }

    fn nobody_for_long(events: &Events) {
        let long_ago = Instant::now().checked_sub(LINGER + Duration::from_secs(1));
        events.0.state.lock().left_at = long_ago.expect("this machine runs for longer than that");
    }

    #[test]
    fn nothing_is_kept_where_nobody_listens() {
        let events = Events::default();
        raise(&events, 1);
        events.ownership(Role::Active, "why");
        assert!(!events.wanted() && events.0.state.lock().kept.is_empty());
        let mut follower = events.follow(None).unwrap();
        assert_eq!(told(&mut follower), []);
        raise(&events, 2);
        assert_eq!(told(&mut follower), [Ok(1)]);
        drop(follower);
        raise(&events, 3);
        assert!(events.wanted(), "it may come back");
        nobody_for_long(&events);
        raise(&events, 4);
        assert!(!events.wanted() && events.0.state.lock().kept.is_empty());
    }

    #[test]
    fn what_nobody_counted_is_a_gap_of_unknown_size() {
        let events = Events::default();
        let mut follower = events.follow(None).unwrap();
        raise(&events, 1);
        assert_eq!(told(&mut follower), [Ok(1)]);
        let seen = follower.position();
        drop(follower);
        nobody_for_long(&events);
        raise(&events, 2);
        let mut follower = events.follow(Some(Some(seen))).unwrap();
        assert_eq!(told(&mut follower), [Err(Gap::Unknown)]);
        let again = follower.position();
        raise(&events, 3);
        assert_eq!(told(&mut follower), [Ok(again.sequence + 1)]);
        // Nobody was away for long: nothing is missed, however long nothing happened.
        let (seen, _) = (follower.position(), drop(follower));
        nobody_for_long(&events);
        assert_eq!(told(&mut events.follow(Some(Some(seen))).unwrap()), []);
        let of_another_run = Position { run: 1, ..seen };
        let mut follower = events.follow(Some(Some(of_another_run))).unwrap();
        assert_eq!(told(&mut follower), [Err(Gap::Unknown), Ok(again.sequence + 1)]);
    }

    #[test]
    fn a_slow_follower_costs_no_memory_and_is_told_what_it_missed() {
        let events = Events::default();
        let mut follower = events.follow(None).unwrap();
        for token in 0..KEPT_MAX as u128 + 7 {
            raise(&events, token);
        }
        assert_eq!(events.0.state.lock().kept.len(), KEPT_MAX);
        let told = told(&mut follower);
        assert_eq!((told[0], told[1]), (Err(Gap::TooSlow(7)), Ok(8)));
        assert_eq!(told.len(), KEPT_MAX + 1);
    }

    #[test]
    fn refusals_beyond_the_bound_are_counted_and_told_once_their_second_is_over() {
        let events = Events::default();
        let mut follower = events.follow(None).unwrap();
        let over = || events.0.state.lock().refusals.since -= Duration::from_secs(1);
        // The bound is of a second of the wall: far in the future it does not end by itself.
        let hold = || events.0.state.lock().refusals.since += Duration::from_secs(3600);
        refuse(&events);
        hold();
        for _ in 1..REFUSALS_PER_SECOND_MAX + 5 {
            refuse(&events);
        }
        assert_eq!(told(&mut follower).len() as u32, REFUSALS_PER_SECOND_MAX);
        events.0.state.lock().refusals.since -= Duration::from_secs(3600);
        over();
        assert_eq!(told(&mut follower).len(), 1);
        let last = events.0.state.lock().kept.back().unwrap().what.clone();
        assert_eq!(last, Happening::LeftOut { refusals: 5 });
        refuse(&events);
        assert_eq!(told(&mut follower).len(), 1, "the next second has room");
    }

    #[test]
    fn a_place_is_read_as_it_was_written_and_in_no_other_way() {
        let place = Position {
            run: 0xabc,
            sequence: 7,
        };
        assert_eq!("abc-7".parse(), Ok(place));
        for bad in [
            "",
            "-",
            "abc",
            "abc-",
            "-7",
            "ABC-7",
            "abc-07",
            "+abc-7",
            "abc-7 ",
            "abc-99999999999999999999",
        ] {
            assert!(bad.parse::<Position>().is_err(), "{bad}");
        }
    }
}
