//! The door with loom: every interleaving within a bound (see `explore`), and every allowed reordering:
//!
//! ```text
//! cargo test --manifest-path tests/loom/Cargo.toml
//! ```
//!
//! The real [`Door`] and [`Core`] run; the core stands behind a lock, as in the table. A backend is a cell that
//! loom watches: if an older flight and a newer one touch it at once, or without one being known to come after
//! the other, loom stops; that is what makes the `unsafe` accesses here sound. The last tests weaken one step in
//! a copy, and loom must find it.

use fencegate_loom::base::{Moment, Token};
use fencegate_loom::fence::{Claim, Core, Door, Effects, Step};
use loom::cell::UnsafeCell;
use loom::sync::atomic::{AtomicU64, Ordering};
use loom::sync::{Arc, Mutex};
use loom::thread;

const NOW: Moment = Moment(0);
const OLD: Claim = Claim::Token(PAIR_OLD);
const NEW: Claim = Claim::Token(PAIR_NEW);

// Both halves differ, so that a torn read is neither.
const PAIR_OLD: Token = Token(1 << 64 | 9);
const PAIR_NEW: Token = Token(2 << 64 | 3);

/// One fence as the table holds it, and two places at a backend.
struct Fence {
    door: Door,
    core: Mutex<Core>,
    cells: [UnsafeCell<u32>; 2],
}

impl Fence {
    fn at(mark: Option<Token>) -> Arc<Fence> {
        let door = Door::new(mark);
        Arc::new(Fence {
            core: Mutex::new(Core::at_rest(&door)),
            door,
            cells: [UnsafeCell::new(0), UnsafeCell::new(0)],
        })
    }

    fn raise(&self) {
        let mut core = self.core.lock().unwrap();
        let effects = core.raise(&self.door, PAIR_NEW, NOW, NOW);
        self.perform(&mut core, effects);
    }

    /// A ledger that answers at once.
    fn perform(&self, core: &mut Core, effects: Effects) {
        if effects.persist.is_some() {
            let after = core.durable(&self.door, true, NOW, NOW);
            assert_eq!(after.persist, None);
        }
    }

    /// A write, from its commit point until it is settled. False where it was cut.
    fn write(&self, claim: Claim, cells: &[usize]) -> bool {
        if !self.door.commit(claim) {
            return false;
        }
        for at in cells {
            self.cells[*at].with_mut(|value| unsafe { *value += 1 });
        }
        if self.door.settle() {
            let mut core = self.core.lock().unwrap();
            let effects = core.advance(&self.door, NOW, NOW);
            self.perform(&mut core, effects);
        }
        true
    }

    fn is_raised(&self) -> bool {
        self.core.lock().unwrap().step() == Step::Open && self.door.mark() == Some(PAIR_NEW)
    }
}

/// Explores every interleaving with up to `preemptions` forced changes of the thread: nearly all faults need two
/// at most, and without a bound three threads take hours. `LOOM_MAX_PREEMPTIONS` overrides it.
fn explore(preemptions: usize, scenario: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = builder.preemption_bound.or(Some(preemptions));
    builder.check(scenario);
}

/// Runs `act` on its own thread.
fn beside<T: 'static>(fence: &Arc<Fence>, act: impl FnOnce(&Fence) -> T + 'static) -> thread::JoinHandle<T> {
    let fence = Arc::clone(fence);
    thread::spawn(move || act(&fence))
}

#[test]
fn an_older_write_is_drained_or_cut_before_a_newer_one_commits() {
    explore(2, || {
        let fence = Fence::at(Some(PAIR_OLD));
        let old = beside(&fence, |f| f.write(OLD, &[0]));
        let new = beside(&fence, |f| f.write(NEW, &[0]));
        fence.raise();
        old.join().unwrap();
        new.join().unwrap();
        assert!(fence.is_raised(), "the last one out has opened the door");
        assert!(fence.write(NEW, &[0]) && !fence.write(OLD, &[0]));
    });
}

#[test]
fn two_older_writes_and_a_raise_leave_someone_who_opens_the_door() {
    explore(2, || {
        let fence = Fence::at(Some(PAIR_OLD));
        let first = beside(&fence, |f| f.write(OLD, &[0]));
        let second = beside(&fence, |f| f.write(OLD, &[1]));
        fence.raise();
        fence.write(NEW, &[0, 1]);
        first.join().unwrap();
        second.join().unwrap();
        assert!(fence.is_raised(), "the last one out has opened the door");
    });
}

#[test]
fn what_a_reader_with_the_new_token_sees_is_final() {
    explore(2, || {
        let fence = Fence::at(Some(PAIR_OLD));
        let old = beside(&fence, |f| f.write(OLD, &[0]));
        let reader = beside(&fence, |f| {
            if f.door.admits(NEW) {
                let seen = f.cells[0].with(|value| unsafe { *value });
                assert!(!f.door.admits(OLD) && !f.door.commit(OLD));
                assert_eq!(seen, f.cells[0].with(|value| unsafe { *value }));
            }
        });
        fence.raise();
        old.join().unwrap();
        reader.join().unwrap();
    });
}

#[test]
fn a_first_raise_drains_or_cuts_a_write_without_a_token() {
    explore(2, || {
        let fence = Fence::at(None);
        let until_fenced = Claim::Without { until_fenced: true };
        let without = beside(&fence, move |f| f.write(until_fenced, &[0]));
        let new = beside(&fence, |f| f.write(NEW, &[0]));
        fence.raise();
        without.join().unwrap();
        new.join().unwrap();
        assert!(fence.is_raised() && !fence.write(until_fenced, &[0]));
    });
}

#[test]
fn a_token_is_never_read_in_two_halves() {
    for torn in [Token(1 << 64 | 3), Token(2 << 64 | 9)].map(Claim::Token) {
        explore(3, move || {
            let fence = Fence::at(Some(PAIR_OLD));
            let admits = beside(&fence, move |f| f.door.admits(torn));
            let commits = beside(&fence, move |f| f.door.commit(torn));
            fence.raise();
            assert!(!admits.join().unwrap() && !commits.join().unwrap());
        });
    }
}

#[test]
fn once_the_new_token_is_admitted_the_old_one_is_not() {
    explore(3, || {
        let fence = Fence::at(Some(PAIR_OLD));
        let asks = beside(&fence, |f| {
            let (new, old) = (f.door.admits(NEW), f.door.admits(OLD));
            assert!(!(new && old), "both tokens are open");
            // Nothing higher comes: what was admitted commits.
            assert!(!new || f.write(NEW, &[0]));
        });
        fence.raise();
        asks.join().unwrap();
    });
}

#[test]
fn a_write_taken_back_and_tried_again_is_counted_once() {
    explore(3, || {
        let fence = Fence::at(Some(PAIR_OLD));
        let old = beside(&fence, |f| {
            // The socket took nothing the first time.
            f.write(OLD, &[]);
            f.write(OLD, &[0]);
        });
        fence.raise();
        fence.write(NEW, &[0]);
        old.join().unwrap();
        assert!(fence.is_raised());
    });
}

// ---- controls: a weakened copy of the count, which loom must see through ----------------------------------------

const SHUT: u64 = 1 << 63;

/// The count alone, with one step that may be weakened.
struct Count {
    word: AtomicU64,
    cell: UnsafeCell<u32>,
    weak: Weak,
}

#[derive(Clone, Copy, PartialEq)]
enum Weak {
    /// As the door does it.
    Nothing,
    /// The commit looks first and counts afterwards, in two steps.
    CommitInTwoSteps,
    /// The settle doesn't publish what the flight did.
    SettleRelaxed,
}

impl Count {
    fn commit(&self) -> bool {
        let mut word = self.word.load(Ordering::Acquire);
        loop {
            if word & SHUT != 0 {
                return false;
            }
            if self.weak == Weak::CommitInTwoSteps {
                self.word.fetch_add(1, Ordering::AcqRel);
                return true;
            }
            let swap = self
                .word
                .compare_exchange_weak(word, word + 1, Ordering::AcqRel, Ordering::Acquire);
            match swap {
                Ok(_) => return true,
                Err(now) => word = now,
            }
        }
    }

    fn settle(&self) {
        let order = match self.weak {
            Weak::SettleRelaxed => Ordering::Relaxed,
            Weak::Nothing | Weak::CommitInTwoSteps => Ordering::AcqRel,
        };
        self.word.fetch_sub(1, order);
    }
}

fn an_old_write_races_with_a_raise(weak: Weak) {
    loom::model(move || {
        let copy = Arc::new(Count {
            word: AtomicU64::new(0),
            cell: UnsafeCell::new(0),
            weak,
        });
        let old = Arc::clone(&copy);
        let old = thread::spawn(move || {
            if old.commit() {
                old.cell.with_mut(|value| unsafe { *value += 1 });
                old.settle();
            }
        });
        copy.word.fetch_or(SHUT, Ordering::AcqRel);
        if copy.word.load(Ordering::Acquire) == SHUT {
            copy.cell.with_mut(|value| unsafe { *value += 1 }); // drained: the new holder writes
        }
        old.join().unwrap();
    });
}

#[test]
fn the_copy_is_right_when_nothing_is_weakened() {
    an_old_write_races_with_a_raise(Weak::Nothing);
}

#[test]
#[should_panic(expected = "Causality violation")]
fn a_commit_in_two_steps_is_found() {
    an_old_write_races_with_a_raise(Weak::CommitInTwoSteps);
}

#[test]
#[should_panic(expected = "Causality violation")]
fn a_settle_that_publishes_nothing_is_found() {
    an_old_write_races_with_a_raise(Weak::SettleRelaxed);
}
