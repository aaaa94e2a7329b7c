//! One thread that comes back to a fence at a moment: the end of a doubt, of the wait after a crash, the next try
//! of the ledger. It may come late, never early.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::{Arc, Weak};

use parking_lot::{Condvar, Mutex};

use super::{Fence, Keeper};
use crate::base::{Clock, Moment};

/// The moments that are still to come.
#[derive(Debug)]
pub struct Timer {
    clock: Clock,
    agenda: Mutex<Agenda>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Agenda {
    due: BinaryHeap<Reverse<Appointment>>,
    stopped: bool,
}

#[derive(Debug)]
struct Appointment {
    at: Moment,
    fence: Fence,
}

impl Timer {
    /// A timer that nothing drives yet; see [`Timer::start`].
    pub fn new(clock: Clock) -> Timer {
        Timer {
            clock,
            agenda: Mutex::default(),
            changed: Condvar::new(),
        }
    }

    /// Drives the timer of `keeper` from a thread that ends with [`Timer::stop`] or with the keeper.
    pub fn start(keeper: &Arc<Keeper>) {
        let weak = Arc::downgrade(keeper);
        std::thread::Builder::new()
            .name("fencegate-timer".into())
            .spawn(move || run(&weak))
            .expect("a thread can be started at the start of the process");
    }

    /// Comes back to `fence` at `at`.
    pub fn at(&self, at: Moment, fence: Fence) {
        let mut agenda = self.agenda.lock();
        agenda.due.push(Reverse(Appointment { at, fence }));
        drop(agenda);
        self.changed.notify_one();
    }

    /// Ends the thread.
    pub fn stop(&self) {
        self.agenda.lock().stopped = true;
        self.changed.notify_one();
    }

    /// Waits for the next appointment, at most a second so that a keeper that is gone is noticed.
    fn next(&self) -> Next {
        let mut agenda = self.agenda.lock();
        if agenda.stopped {
            return Next::Stopped;
        }
        let now = self.clock.now();
        match agenda.due.peek() {
            Some(Reverse(first)) if first.at <= now => {
                let Reverse(first) = agenda.due.pop().expect("peeked");
                return Next::Due(first.fence);
            }
            Some(Reverse(first)) => {
                let until = self
                    .clock
                    .instant(first.at)
                    .min(self.clock.instant(now.plus(PATIENCE)));
                self.changed.wait_until(&mut agenda, until);
            }
            None => {
                self.changed.wait_for(&mut agenda, PATIENCE);
            }
        }
        Next::Nothing
    }
}

enum Next {
    Due(Fence),
    Nothing,
    Stopped,
}

const PATIENCE: std::time::Duration = std::time::Duration::from_secs(1);

fn run(keeper: &Weak<Keeper>) {
    while let Some(keeper) = keeper.upgrade() {
        match keeper.timer.next() {
            Next::Due(fence) => keeper.advance(&fence),
            Next::Nothing => {}
            Next::Stopped => return,
        }
    }
}

impl PartialEq for Appointment {
    fn eq(&self, other: &Self) -> bool {
        self.at == other.at
    }
}

impl Eq for Appointment {}

impl PartialOrd for Appointment {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Appointment {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.at.cmp(&other.at)
    }
}
