//! Small worlds of several instances and one store, explored to the last state: the ownership's own functions and the
//! fence's, called as the shell calls them.
//!
//! Nothing of either is written again here: `model_owner/tenure.rs` calls [`fencegate::owner`], `model_owner/shell.rs`
//! calls [`fencegate::fence`], and `model_owner/truth.rs` judges both by what may take effect at the backend. Instances
//! are stopped, crash, and are cut off; their clocks run at different speeds; transactions land late, without an answer, or
//! never. Each rule is broken once (`model_owner/mutants.rs`), and the checker must find a counter-example.
//! `FENCEGATE_LONG=1` explores larger worlds.

#[path = "model_owner/checks.rs"]
mod checks;
#[path = "model_owner/mutants.rs"]
mod mutants;
#[path = "model_owner/shell.rs"]
mod shell;
#[path = "model_owner/steps.rs"]
mod steps;
#[path = "model_owner/store.rs"]
mod store;
#[path = "model_owner/tenure.rs"]
mod tenure;
#[path = "model_owner/truth.rs"]
mod truth;
#[path = "model_owner/world.rs"]
mod world;

use std::time::Instant;

use fencegate::base::Token;
use stateright::{Checker, HasDiscoveries, Model};

use checks::{ALL_ENDS, F1, F2, F3, F4, F5, PROMISE, S2};
use mutants::Mutant;
use world::{Faults, World, read, write};

// ---- the worlds ------------------------------------------------------------------------------------------------

/// `FENCEGATE_LONG=1`: worlds where more goes wrong.
fn long() -> bool {
    std::env::var_os("FENCEGATE_LONG").is_some_and(|value| value == "1")
}

/// An owner is stopped, or its renewals are late, or it is cut off; its clock is a slow one, the next owner's a fast one.
fn lost_owner() -> World {
    World {
        rates: [940, 1060, 1000],
        faults: Faults {
            stops: if long() { 2 } else { 1 },
            late_renewals: 1,
            ..Faults::default()
        },
        calm_from: 5,
        ..World::calm(vec![write(1), write(2)])
    }
}

/// A lease outlives the owner's certainty: the owner goes on.
fn lapse_and_go_on() -> World {
    World {
        faults: Faults {
            stops: 1,
            extensions: 1,
            losses: u8::from(long()),
            timeouts: u8::from(long()),
            ..Faults::default()
        },
        ..World::calm(vec![write(1), write(2)])
    }
}

/// Raises and a reset whose answers don't come.
fn raises_without_answers() -> World {
    World {
        faults: Faults {
            timeouts: 2,
            crashes: u8::from(long()),
            ..Faults::default()
        },
        resets: vec![Token(1)],
        calm_from: 2,
        ..World::calm(vec![write(2), write(3)])
    }
}

/// Raises without an answer, across a change of owners.
fn raises_across_owners() -> World {
    World {
        faults: Faults {
            timeouts: 1,
            crashes: 1,
            stops: u8::from(long()),
            ..Faults::default()
        },
        calm_from: if long() { 4 } else { 3 },
        ..World::calm(vec![write(1), write(2), read(3)])
    }
}

/// A reset without an answer, across a change of owners.
fn reset_across_owners() -> World {
    World {
        faults: Faults {
            timeouts: 1,
            crashes: 1,
            stops: u8::from(long()),
            ..Faults::default()
        },
        resets: vec![Token(1)],
        calm_from: if long() { 4 } else { 3 },
        ..World::calm(vec![write(3), write(1)])
    }
}

/// Instances end and start again, planned and not, with answers lost and not; their `settle_after` differ.
fn ends() -> World {
    World {
        settle: [3, 1, 1],
        faults: Faults {
            quits: 2,
            losses: 1,
            crashes: u8::from(long()),
            ..Faults::default()
        },
        calm_from: 3,
        ..World::calm(vec![write(1), write(2)])
    }
}

/// Owners that crash within the wait which the one before has left them.
fn crashes() -> World {
    World {
        settle: [2, 1, 1],
        faults: Faults {
            crashes: 2,
            ..Faults::default()
        },
        calm_from: 5,
        ..World::calm(vec![write(1), write(2)])
    }
}

/// Three instances, of which two may be lost.
fn three_instances() -> World {
    World {
        instances: 3,
        faults: Faults {
            stops: 1,
            quits: u8::from(long()),
            crashes: u8::from(long()),
            ..Faults::default()
        },
        calm_from: if long() { 4 } else { 3 },
        ..World::calm(vec![write(1), write(2)])
    }
}

/// A standby asks while there is an owner: its transaction may land once there is none.
fn asks_early() -> World {
    World {
        asks_blindly: true,
        faults: Faults {
            stops: u8::from(long()),
            timeouts: 1,
            ..Faults::default()
        },
        calm_from: 3,
        ..World::calm(vec![write(1), write(2)])
    }
}

fn explore(name: &str, world: World) {
    let every_order = long();
    let world = World { every_order, ..world };
    let start = Instant::now();
    let checker = world.checker().spawn_bfs().join();
    println!(
        "{name}: {} states, {} steps, depth {}, {:.1?}",
        checker.unique_state_count(),
        checker.state_count(),
        checker.max_depth(),
        start.elapsed()
    );
    checker.assert_properties();
}

#[test]
fn the_promise_holds_when_an_owner_is_stopped_or_cut_off() {
    explore("lost owner", lost_owner());
    explore("three instances", three_instances());
}

#[test]
fn an_owner_whose_lease_outlives_its_certainty_goes_on() {
    explore("lapse and go on", lapse_and_go_on());
}

#[test]
fn raises_without_an_answer_are_neither_done_nor_forgotten() {
    explore("raises without answers", raises_without_answers());
    explore("raises across owners", raises_across_owners());
    explore("reset across owners", reset_across_owners());
}

#[test]
fn an_end_hands_over_at_once_only_if_all_is_settled() {
    explore("ends", ends());
    explore("crashes", crashes());
}

#[test]
fn who_asks_early_waits_from_the_answer() {
    explore("asks early", asks_early());
}

// ---- the faults that it must find ------------------------------------------------------------------------------

/// Explores the world with one rule broken until each of `found` has a counter-example.
fn must_find(mutant: Mutant, world: World, found: &[&'static str]) {
    let world = World {
        mutant: Some(mutant),
        ..world
    };
    let start = Instant::now();
    let checker = world
        .checker()
        .finish_when(HasDiscoveries::AllOf(found.iter().copied().collect()))
        .spawn_bfs()
        .join();
    let (states, took) = (checker.unique_state_count(), start.elapsed());
    println!("{mutant:?}: {states} states, {took:.1?}");
    for rule in found {
        let way = checker.discovery(rule);
        let way = way.unwrap_or_else(|| panic!("{mutant:?} passes for right: nothing breaks {rule:?}"));
        println!("  breaks {rule:?}: {:?}", way.into_actions());
    }
}

/// The same world, and it is calm from this tick on.
fn calm_from(world: World, calm_from: u8) -> World {
    World { calm_from, ..world }
}

#[test]
fn a_lease_that_is_trusted_for_too_long_is_found() {
    must_find(Mutant::ValidFromTheAnswer, lost_owner(), &[PROMISE, F5]);
    let world = || calm_from(lost_owner(), 4);
    must_find(Mutant::NoMargin, world(), &[PROMISE, F5]);
    must_find(Mutant::ClockStopsWithTheProcess, world(), &[PROMISE, F1, F5]);
}

#[test]
fn bytes_that_leave_without_ownership_are_found() {
    let world = || calm_from(lost_owner(), 4);
    must_find(Mutant::CommitsWithoutOwnership, world(), &[PROMISE, F1, F5]);
    must_find(Mutant::ReadsWithoutOwnership, raises_across_owners(), &[F5]);
    must_find(Mutant::StopsAfterTheCheck, world(), &[PROMISE, F1, F5]);
}

#[test]
fn a_lapse_that_resets_nothing_or_forgets_it_is_found() {
    let world = calm_from(lost_owner(), 4);
    must_find(Mutant::ResetsOnlyWhenTold, world, &[PROMISE, F3]);
    must_find(Mutant::LapseLeavesNoDoubt, lapse_and_go_on(), &[PROMISE, F3, F4]);
}

#[test]
fn two_owners_are_found() {
    must_find(Mutant::TakesOverFromAnOwner, asks_early(), &[PROMISE, F5]);
    must_find(
        Mutant::TakesOverAnotherMarker,
        calm_from(ends(), 2),
        &[PROMISE, F3],
    );
    must_find(Mutant::TimedOutTakeOverIsWon, asks_early(), &[PROMISE, F5]);
}

#[test]
fn marks_that_are_read_too_early_or_not_at_all_are_found() {
    must_find(Mutant::MarksReadBefore, asks_early(), &[PROMISE, F1, F2]);
    let world = calm_from(lost_owner(), 4);
    must_find(Mutant::MarksNotRead, world, &[PROMISE, F1, F2]);
}

#[test]
fn a_wait_that_is_too_short_is_found() {
    must_find(Mutant::NoHold, calm_from(lost_owner(), 4), &[PROMISE, F3, F4]);
    must_find(Mutant::HoldCountsFromTheQuestion, asks_early(), &[PROMISE, F3]);
    let world = || calm_from(ends(), 2);
    must_find(Mutant::HoldOfThisConfigOnly, world(), &[PROMISE, F3]);
    must_find(Mutant::HoldIsNotInherited, world(), &[PROMISE, F3]);
    must_find(Mutant::HoldIsOverTooEarly, world(), &[PROMISE, F3]);
}

#[test]
fn a_marker_that_is_clean_though_something_may_take_effect_is_found() {
    let world = || calm_from(ends(), 2);
    must_find(Mutant::MarkerStaysClean, world(), &[PROMISE, F3]);
    must_find(Mutant::CleanInFlight, world(), &[PROMISE, F3]);
    must_find(Mutant::CleanInDoubt, world(), &[PROMISE, F3]);
    must_find(Mutant::CleanWithinHold, world(), &[PROMISE, F3]);
    must_find(Mutant::UncleanEndWritesClean, world(), &[PROMISE, F3]);
}

#[test]
fn a_raise_that_compares_too_little_is_found() {
    must_find(Mutant::RaisesWithoutOwnerCompare, raises_across_owners(), &[F4]);
    must_find(
        Mutant::RaisesWithoutRevisionCompare,
        raises_without_answers(),
        &[F2],
    );
}

#[test]
fn a_raise_without_an_answer_that_is_taken_for_anything_is_found() {
    must_find(Mutant::TimedOutIsDone, raises_across_owners(), &[PROMISE, S2]);
    must_find(Mutant::TimedOutIsForgotten, raises_across_owners(), &[F1]);
    must_find(Mutant::RefusedIsDone, raises_without_answers(), &[S2]);
    must_find(Mutant::RevisionNotLearnt, raises_without_answers(), &[ALL_ENDS]);
}

#[test]
fn an_owners_key_that_is_deleted_at_the_wrong_time_is_found() {
    let world = || World {
        settle: [1; 3],
        ..ends()
    };
    let mut one_end = calm_from(world(), 2);
    one_end.faults = Faults {
        quits: 1,
        ..Faults::default()
    };
    must_find(Mutant::KeyDeletedBeforeDrain, one_end, &[PROMISE, F5]);
    must_find(Mutant::EndsAnothersTenure, world(), &[PROMISE, F5]);
}

#[test]
fn writes_that_never_flow_again_are_found() {
    must_find(Mutant::NeverAsks, calm_from(lost_owner(), 4), &[ALL_ENDS]);
    must_find(Mutant::NeverRegains, lapse_and_go_on(), &[ALL_ENDS]);
}
