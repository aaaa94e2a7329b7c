//! Small worlds, explored to the last state: the fence's own functions, called as the gate's shell calls them.
//!
//! Nothing of the fence is written again here: `model/shell.rs` calls [`fencegate::fence`], and `model/truth.rs`
//! judges it by what happens at the backend. A model proves nothing unless it finds faults: each rule is broken once, in the shell
//! (`model/mutants.rs`), and the checker must find a counter-example. `FENCEGATE_LONG=1` explores larger worlds.

#[path = "model/checks.rs"]
mod checks;
#[path = "model/mutants.rs"]
mod mutants;
#[path = "model/restart.rs"]
mod restart;
#[path = "model/shell.rs"]
mod shell;
#[path = "model/steps.rs"]
mod steps;
#[path = "model/truth.rs"]
mod truth;
#[path = "model/world.rs"]
mod world;

use std::collections::BTreeSet;
use std::time::Instant;

use fencegate::base::Token;
use stateright::{Checker, HasDiscoveries, Model};

use checks::{
    ALL_ENDS, F1, F2, F3, F4, GETS_THROUGH, MAX_STEP, NO_RAISE_IS_LEFT, NO_REQUEST_SLEEPS, PROMISE,
    RAISES_NOTHING, S2, S3,
};
use mutants::Mutant;
use steps::Action;
use world::{World, read, stepping, tokenless, write, write_both, write_second};

// ---- the worlds ------------------------------------------------------------------------------------------------

/// `FENCEGATE_LONG=1`: worlds where more goes wrong: about a million states in place of a few hundred thousand.
fn long() -> bool {
    std::env::var_os("FENCEGATE_LONG").is_some_and(|value| value == "1")
}

/// A new holder, an old one and a reader, a crash, and a ledger that once doesn't know.
fn handover() -> World {
    World {
        crashes: if long() { 2 } else { 1 },
        store_failures: if long() { 2 } else { 1 },
        ..World::calm(1, vec![write(1), read(2), write(2), write(3)])
    }
}

/// Holders after one another; answers get lost, the socket is full once.
fn holders() -> World {
    World {
        crashes: u8::from(long()),
        short_writes: if long() { 2 } else { 1 },
        ..World::calm(1, vec![write(1), write(1), write(2), write(3)])
    }
}

/// Both kinds of writes without a token beside two holders.
fn without_tokens() -> World {
    World {
        crashes: 1,
        short_writes: u8::from(long()),
        ..World::calm(1, vec![tokenless(false), tokenless(true), write(1), write(2)])
    }
}

/// Requests that name two fences, and are stale on either, both or none.
fn two_fences() -> World {
    World {
        crashes: u8::from(long()),
        short_writes: u8::from(long()),
        ..World::calm(
            2,
            vec![write_both(1, 1), write_both(2, 1), write_second(2), write(2)],
        )
    }
}

/// Two fences and a ledger that finds either, both or none of two marks again.
fn two_fences_in_a_crash() -> World {
    World {
        crashes: 1,
        store_failures: 1,
        ..World::calm(2, vec![write_both(1, 1), write_both(1, 2), write(2)])
    }
}

/// An operator takes a mark down while a higher token is about.
fn reset() -> World {
    World {
        crashes: 1,
        store_failures: u8::from(long()),
        resets: vec![(0, Token(1))],
        ..World::calm(1, vec![write(3), write(1), write(2)])
    }
}

/// Holders that may raise by a bounded step only, while a mark goes up, down, and is lost on its way to the ledger.
fn bounded_steps() -> World {
    World {
        crashes: 1,
        store_failures: u8::from(long()),
        resets: vec![(0, Token(1))],
        ..World::calm(1, vec![write(1), stepping(write(2), 1), stepping(write(4), 2)])
    }
}

/// A leap on one of two fences.
fn bounded_steps_on_two_fences() -> World {
    World::calm(
        2,
        vec![
            write_second(1),
            stepping(write_both(1, 3), 1),
            stepping(write_both(2, 2), 1),
        ],
    )
}

/// Two resets that meet: the second is asked for while the first may be on its way to the ledger.
fn two_resets() -> World {
    World {
        store_failures: 1,
        resets: vec![(0, Token(2)), (0, Token(1))],
        ..World::calm(1, vec![write(3), write(1)])
    }
}

/// `settle_after` gets smaller from run to run; crashes within the wait, and clean stops.
fn shrinking_settle_after() -> World {
    let mut requests = vec![write(1), write(2), read(3)];
    if long() {
        requests.push(write(1));
    }
    World {
        settle_ticks: [3, 1, 1],
        crashes: 2,
        stops: 1,
        ..World::calm(1, requests)
    }
}

/// Requests are turned away, on arrival and while they wait.
fn turned_away() -> World {
    World {
        overload: true,
        give_up: true,
        store_failures: 1,
        ..World::calm(1, vec![write(1), write(2), read(3)])
    }
}

fn explore(name: &str, world: World) {
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
fn the_promise_holds_in_a_handover_with_a_crash_and_a_doubting_ledger() {
    explore("handover", handover());
}

#[test]
fn the_promise_holds_for_holders_whose_answers_are_lost() {
    explore("holders", holders());
}

#[test]
fn writes_without_a_token_are_drained_and_cut() {
    explore("without tokens", without_tokens());
}

#[test]
fn two_fences_are_raised_together_or_not_at_all() {
    explore("two fences", two_fences());
    explore("two fences in a crash", two_fences_in_a_crash());
}

#[test]
fn a_reset_drains_everything_whatever_its_token() {
    explore("reset", reset());
    explore("two resets", two_resets());
}

#[test]
fn nobody_raises_by_more_than_their_step() {
    explore("bounded steps", bounded_steps());
    explore("bounded steps on two fences", bounded_steps_on_two_fences());
}

#[test]
fn the_wait_after_a_crash_is_the_largest_that_is_owed() {
    explore("shrinking settle_after", shrinking_settle_after());
}

#[test]
fn who_is_turned_away_raises_nothing_and_stops_nobody() {
    explore("turned away", turned_away());
}

// ---- the faults that it must find ------------------------------------------------------------------------------

/// Explores the world with one rule broken until each of `found` has a counter-example.
fn must_find(mutant: Mutant, world: World, found: &[&'static str]) {
    let world = World {
        mutant: Some(mutant),
        ..world
    };
    for rule in found {
        let steps = shortest(&world, rule);
        let steps = steps.unwrap_or_else(|| panic!("{mutant:?} passes for right: nothing breaks {rule:?}"));
        println!("{mutant:?} breaks {rule:?} in {} steps: {steps:?}", steps.len());
    }
}

/// The shortest way to break `rule`, if there is one.
fn shortest(world: &World, rule: &'static str) -> Option<Vec<Action>> {
    let mut best = None;
    let mut depth_max = usize::MAX;
    loop {
        let checker = world
            .clone()
            .checker()
            .finish_when(HasDiscoveries::AllOf(BTreeSet::from([rule])))
            .target_max_depth(depth_max)
            .spawn_bfs()
            .join();
        let Some(path) = checker.discovery(rule) else {
            return best;
        };
        let steps = path.into_actions();
        depth_max = steps.len() + 1; // a path of n steps ends at depth n + 1, which is not looked at next time
        best = Some(steps);
    }
}

#[test]
fn a_mark_that_is_not_durable_first_is_found() {
    must_find(Mutant::ForwardsBeforeDurable, handover(), &[PROMISE, S2]);
    must_find(Mutant::TakesFailureForStored, handover(), &[PROMISE, S2]);
    must_find(Mutant::StoresBeforeDrain, handover(), &[PROMISE, F4]);
    must_find(Mutant::ForgetsMarks, handover(), &[PROMISE, F1, F2]);
}

#[test]
fn lower_tokens_admitted_while_a_raise_waits_are_found() {
    must_find(Mutant::AdmitsLowerWhileRaiseWaits, holders(), &[PROMISE, S3]);
}

#[test]
fn a_missing_drain_is_found() {
    must_find(Mutant::SettlesAtCommit, holders(), &[PROMISE, F3, F4]);
    must_find(Mutant::ReadsDontDrain, handover(), &[PROMISE, F3]);
    must_find(Mutant::ForgetsWhenClientLeaves, holders(), &[PROMISE, F3]);
    must_find(Mutant::ResetDoesNotDrain, reset(), &[PROMISE, F4]);
}

#[test]
fn a_wrong_commit_point_is_found() {
    must_find(Mutant::SkipsCommitPoint, holders(), &[PROMISE, F1]);
    must_find(Mutant::TakenCountsAsShort, holders(), &[PROMISE, F3]);
}

#[test]
fn a_doubt_that_is_too_short_is_found() {
    must_find(Mutant::DoubtEndsAtOnce, holders(), &[PROMISE, F3]);
    must_find(Mutant::DoubtEndsEarly, holders(), &[PROMISE, F3]);
}

#[test]
fn a_wait_after_a_crash_that_is_too_short_is_found() {
    must_find(Mutant::NoHold, shrinking_settle_after(), &[PROMISE, F3]);
    must_find(
        Mutant::HoldOfThisConfigOnly,
        shrinking_settle_after(),
        &[PROMISE, F3],
    );
    must_find(
        Mutant::HoldIsNotInherited,
        shrinking_settle_after(),
        &[PROMISE, F3],
    );
}

#[test]
fn a_marker_that_is_clean_too_early_is_found() {
    must_find(Mutant::CleanInFlight, shrinking_settle_after(), &[PROMISE, F3]);
    must_find(Mutant::CleanInDoubt, shrinking_settle_after(), &[PROMISE, F3]);
    must_find(Mutant::CleanWithinHold, shrinking_settle_after(), &[PROMISE, F3]);
}

#[test]
fn several_fences_taken_one_by_one_are_found() {
    must_find(Mutant::ComparesOneAtATime, two_fences(), &[RAISES_NOTHING]);
    must_find(Mutant::CommitsFirstFenceOnly, two_fences(), &[PROMISE, F1]);
    let raised_apart = World::calm(2, vec![write_both(1, 1), write_second(2), write(2)]);
    must_find(
        Mutant::LeaksFirstFence,
        raised_apart,
        &[NO_RAISE_IS_LEFT, ALL_ENDS],
    );
}

#[test]
fn a_step_that_is_not_bounded_is_found() {
    must_find(Mutant::IgnoresMaxStep, bounded_steps(), &[MAX_STEP]);
    must_find(Mutant::IgnoresMaxStep, bounded_steps_on_two_fences(), &[MAX_STEP]);
}

#[test]
fn a_request_that_is_turned_away_and_raises_is_found() {
    must_find(Mutant::OverloadRaises, turned_away(), &[RAISES_NOTHING]);
}

#[test]
fn writes_without_a_token_that_are_not_drained_or_not_cut_are_found() {
    must_find(Mutant::TokenlessNotDrained, without_tokens(), &[PROMISE, F3, F4]);
    must_find(Mutant::TokenlessNotCut, without_tokens(), &[PROMISE, F1]);
}

#[test]
fn a_raise_or_a_request_that_waits_for_ever_is_found() {
    must_find(
        Mutant::LastOutSaysNothing,
        holders(),
        &[NO_RAISE_IS_LEFT, ALL_ENDS],
    );
    must_find(Mutant::NoTimers, holders(), &[NO_RAISE_IS_LEFT, ALL_ENDS]);
    must_find(Mutant::NobodyIsWoken, holders(), &[NO_REQUEST_SLEEPS, ALL_ENDS]);
}

#[test]
fn a_fence_that_refuses_everything_does_not_pass() {
    let world = World {
        mutant: Some(Mutant::RefusesEverything),
        ..handover()
    };
    let checker = world.checker().spawn_bfs().join();
    assert!(checker.discovery(PROMISE).is_none(), "it is safe, and of no use");
    for way in GETS_THROUGH {
        assert!(checker.discovery(way).is_none(), "{way}");
    }
}
