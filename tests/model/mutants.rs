//! The rules that a broken shell breaks, one each. `shell.rs` and `restart.rs` ask for them where the rule stands.

/// One rule broken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mutant {
    /// Refuses whatever comes.
    RefusesEverything,
    /// S2: takes the ledger's word before the ledger has given it.
    ForwardsBeforeDurable,
    /// S2: takes "not known to be durable" for durable.
    TakesFailureForStored,
    /// S2: stores the token as soon as it is seen, before the drain.
    StoresBeforeDrain,
    /// S3: lets the old mark's writes through while a raise waits.
    AdmitsLowerWhileRaiseWaits,
    /// S4: a flight counts only until its last byte has left.
    SettlesAtCommit,
    /// S5: sends the last byte without asking again.
    SkipsCommitPoint,
    /// S5: counts a last write as not taken though the socket took it.
    TakenCountsAsShort,
    /// S6: a lost answer settles at once.
    DoubtEndsAtOnce,
    /// S6: a doubt ends a tick too early.
    DoubtEndsEarly,
    /// S7: raises first and turns away afterwards.
    OverloadRaises,
    /// S8: forgets a committed write when its client leaves.
    ForgetsWhenClientLeaves,
    /// S10: raises go at once after a crash.
    NoHold,
    /// S10: waits only as long as the new configuration says.
    HoldOfThisConfigOnly,
    /// S10: a run that ends within its wait leaves only its own `settle_after`.
    HoldIsNotInherited,
    /// S10: stops cleanly with writes in flight.
    CleanInFlight,
    /// S10: stops cleanly with writes in doubt.
    CleanInDoubt,
    /// S10: stops cleanly while the wait after a crash runs.
    CleanWithinHold,
    /// F2: starts without the ledger's marks.
    ForgetsMarks,
    /// S11: lets a read through before the drain.
    ReadsDontDrain,
    /// S12: compares and raises one fence after the other.
    ComparesOneAtATime,
    /// Raises by whatever step.
    IgnoresMaxStep,
    /// S12: asks one fence only at the commit point.
    CommitsFirstFenceOnly,
    /// S12: cut at the second fence, it stays counted at the first.
    LeaksFirstFence,
    /// S15: doesn't count writes without a token.
    TokenlessNotDrained,
    /// S15: doesn't cut writes without a token.
    TokenlessNotCut,
    /// A reset opens at once, with older writes in flight.
    ResetDoesNotDrain,
    /// The last flight out says nothing.
    LastOutSaysNothing,
    /// Nobody is woken.
    NobodyIsWoken,
    /// No timer is set.
    NoTimers,
}
