//! The listeners' side: a place in the ring, and what was missed on the way.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, Waker};
use std::time::Instant;

use super::{Event, Events, FOLLOWERS_MAX, Happening, Position, State};

/// Someone who listens. Whoever drops it has left.
#[derive(Debug)]
pub struct Follower {
    events: Events,
    id: u64,
    /// The last event that was seen, or missed.
    seen: u64,
    /// What was missed before it came.
    missed: Option<Gap>,
    /// Whether it was told who owns the fences: after what it had missed, so that the latest word comes last.
    greeted: bool,
}

/// What a listener is told.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Note {
    /// An event.
    Event(Arc<Event>),
    /// What this instance is, for one who has just come. `at_ms` is when it became that.
    Ownership {
        /// In milliseconds since 1970.
        at_ms: u64,
        /// A [`Happening::Ownership`].
        what: Happening,
    },
    /// Events that it will not see.
    Missed(Gap),
}

/// A gap in what a listener sees.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Gap {
    /// It came back too late for so many.
    NotKept(u64),
    /// It came back after a time that nothing was kept of, or from another run: nobody knows how many.
    Unknown,
    /// It reads more slowly than things happen: so many.
    TooSlow(u64),
}

impl Events {
    /// Begins to listen: to what comes from now on, or to what came after `since`, as far as that is kept. `None`
    /// where [`FOLLOWERS_MAX`] listen already. `since` is `Some(None)` for a place that nobody gave out.
    #[must_use]
    pub fn follow(&self, since: Option<Option<Position>>) -> Option<Follower> {
        let mut state = self.0.state.lock();
        if state.followers >= FOLLOWERS_MAX {
            return None;
        }
        if !self.wanted() {
            state.counted_from = state.next;
            self.0.wanted.store(true, Ordering::Relaxed);
        }
        state.followers += 1;
        state.next_follower += 1;
        let (seen, missed) = match since {
            None => (state.next - 1, None),
            Some(position) => state.resume(position.filter(|place| place.run == self.0.run)),
        };
        Some(Follower {
            events: self.clone(),
            id: state.next_follower,
            seen,
            missed,
            greeted: false,
        })
    }
}

impl State {
    /// The number of the oldest event that is kept.
    fn oldest(&self) -> u64 {
        self.next - self.kept.len() as u64
    }

    /// Where one goes on who has seen everything up to `position`, and what is lost of what lies between.
    fn resume(&self, position: Option<Position>) -> (u64, Option<Gap>) {
        let oldest = self.oldest();
        match position.map(|place| place.sequence) {
            Some(seen) if seen >= self.next => (oldest - 1, Some(Gap::Unknown)),
            Some(seen) if seen + 1 >= oldest && seen + 1 >= self.counted_from => (seen, None),
            Some(seen) if seen + 1 >= self.counted_from => {
                (oldest - 1, Some(Gap::NotKept(oldest - 1 - seen)))
            }
            Some(_) | None => (oldest - 1, Some(Gap::Unknown)),
        }
    }

    fn after(&self, seen: u64) -> Option<&Arc<Event>> {
        let at = usize::try_from(seen + 1 - self.oldest()).ok()?;
        self.kept.get(at)
    }
}

impl Follower {
    /// The place up to which everything was seen or told as missed.
    #[must_use]
    pub fn position(&self) -> Position {
        Position {
            run: self.events.0.run,
            sequence: self.seen,
        }
    }

    /// The next thing to tell it. Pending means that its waker is registered.
    pub fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Note> {
        let mut wakers = Vec::new();
        let events = self.events.clone();
        let mut state = events.0.state.lock();
        // Nobody refuses any more: someone must still tell how many were left out.
        events.note_left_out(&mut state, &mut wakers);
        let next = self.next(&state);
        if next.is_none() {
            state.waiting.retain(|(id, _)| *id != self.id);
            state.waiting.push((self.id, cx.waker().clone()));
        }
        drop(state);
        wakers.into_iter().for_each(Waker::wake);
        next.map_or(Poll::Pending, Poll::Ready)
    }

    fn next(&mut self, state: &State) -> Option<Note> {
        if let Some(gap) = self.missed.take() {
            return Some(Note::Missed(gap));
        }
        let oldest = state.oldest();
        if self.seen + 1 < oldest {
            let gap = Gap::TooSlow(oldest - 1 - self.seen);
            self.seen = oldest - 1;
            return Some(Note::Missed(gap));
        }
        if let Some(event) = state.after(self.seen) {
            self.seen = event.sequence;
            return Some(Note::Event(Arc::clone(event)));
        }
        if !std::mem::replace(&mut self.greeted, true)
            && let Some((at_ms, what)) = state.ownership.clone()
        {
            return Some(Note::Ownership { at_ms, what });
        }
        None
    }
}

impl Drop for Follower {
    fn drop(&mut self) {
        let mut state = self.events.0.state.lock();
        state.waiting.retain(|(id, _)| *id != self.id);
        state.followers -= 1;
        state.left_at = Instant::now();
    }
}
