//! The roll of those who wait for a backend while this instance's ownership may lapse: they are woken at once when it
//! does. In several parts, so that cores don't meet at one lock; only a store with an owner calls the roll at all.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::task::{Context, Poll, Waker};

use parking_lot::Mutex;

/// As many cores as this wait without meeting.
const PARTS: usize = 16;

/// Who is to be woken, and how often ownership has lapsed.
#[derive(Debug)]
pub struct Roll {
    lapses: Arc<AtomicU64>,
    parts: Vec<Arc<Part>>,
}

type Part = Mutex<Vec<Option<Waker>>>;

/// A place in the roll: see [`Roll::enter`]. Dropped, it is free for another.
#[derive(Debug)]
pub struct Place {
    lapses: Arc<AtomicU64>,
    born: u64,
    part: Arc<Part>,
    index: Option<usize>,
}

impl Default for Roll {
    fn default() -> Roll {
        Roll {
            lapses: Arc::default(),
            parts: (0..PARTS).map(|_| Arc::default()).collect(),
        }
    }
}

impl Roll {
    /// How often ownership has lapsed so far: what began before a lapse is over with it.
    pub fn lapses(&self) -> u64 {
        // Acquire: pairs with `call`, so that whoever sees the new number sees what was done before it.
        self.lapses.load(Ordering::Acquire)
    }

    /// A place for something that began when there had been `born` lapses.
    pub fn enter(&self, born: u64) -> Place {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        thread_local! {
            static MINE: usize = NEXT.fetch_add(1, Ordering::Relaxed) % PARTS;
        }
        Place {
            lapses: Arc::clone(&self.lapses),
            born,
            part: Arc::clone(&self.parts[MINE.with(|mine| *mine)]),
            index: None,
        }
    }

    /// Ownership has lapsed: wakes everybody.
    pub fn call(&self) {
        // Before the wakers are taken: whoever registers after that sees it.
        self.lapses.fetch_add(1, Ordering::AcqRel);
        for part in &self.parts {
            let wakers: Vec<Waker> = part.lock().iter_mut().filter_map(Option::take).collect();
            wakers.into_iter().for_each(Waker::wake);
        }
    }
}

impl Place {
    /// Ready once ownership has lapsed since this began.
    pub fn poll_lapsed(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let mut part = self.part.lock();
        // Under the lock in which a lapse takes the wakers: nothing is missed.
        if self.lapses.load(Ordering::Acquire) != self.born {
            return Poll::Ready(());
        }
        let index = *self.index.get_or_insert_with(|| {
            let free = part.iter().position(Option::is_none);
            free.unwrap_or_else(|| {
                part.push(None);
                part.len() - 1
            })
        });
        match &mut part[index] {
            Some(waker) => waker.clone_from(cx.waker()),
            empty => *empty = Some(cx.waker().clone()),
        }
        Poll::Pending
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if let Some(index) = self.index {
            self.part.lock()[index] = None;
        }
    }
}
