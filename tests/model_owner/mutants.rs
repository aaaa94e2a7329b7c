//! The rules that a broken shell breaks, one each. `shell.rs`, `tenure.rs` and `store.rs` ask for them where the rule
//! stands.

/// One rule broken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mutant {
    // ---- for how long an instance is the owner
    /// The lease counts from the answer to a renewal.
    ValidFromTheAnswer,
    /// No margin for clocks of different speeds.
    NoMargin,
    /// A clock that stops with the process.
    ClockStopsWithTheProcess,
    /// The commit point doesn't ask for the ownership; on arrival it is asked.
    CommitsWithoutOwnership,
    /// Reads don't ask for it.
    ReadsWithoutOwnership,
    /// The lapse resets nothing: only the news that the tenure is over does.
    ResetsOnlyWhenTold,
    /// What a lapse has reset is not in doubt.
    LapseLeavesNoDoubt,
    /// A lapsed owner renews its lease and never serves again.
    NeverRegains,
    /// The process may be stopped between the commit point and the system call.
    StopsAfterTheCheck,

    // ---- taking over
    /// Nobody takes over.
    NeverAsks,
    /// The owner's key isn't compared.
    TakesOverFromAnOwner,
    /// The marker that was read isn't compared.
    TakesOverAnotherMarker,
    /// An answer that did not come is taken for yes.
    TimedOutTakeOverIsWon,
    /// The marks are read before the owner's key is there.
    MarksReadBefore,
    /// The marks of the tenure before are kept, none are read.
    MarksNotRead,
    /// No raise waits.
    NoHold,
    /// The wait counts from the question.
    HoldCountsFromTheQuestion,
    /// It waits only as long as its own configuration says.
    HoldOfThisConfigOnly,
    /// The larger one isn't left beside the marker.
    HoldIsNotInherited,
    /// It is told over before it is.
    HoldIsOverTooEarly,
    /// The marker stays clean.
    MarkerStaysClean,

    // ---- raises
    /// A raise doesn't compare the owner's key.
    RaisesWithoutOwnerCompare,
    /// A raise doesn't compare the mark's revision.
    RaisesWithoutRevisionCompare,
    /// A raise without an answer is taken for done.
    TimedOutIsDone,
    /// A raise without an answer is taken for not done, and forgotten.
    TimedOutIsForgotten,
    /// A raise that was refused is taken for done.
    RefusedIsDone,
    /// A raise that was refused is tried again with the revision that was wrong.
    RevisionNotLearnt,

    // ---- the end
    /// The marker is written clean with writes in flight.
    CleanInFlight,
    /// The marker is written clean with writes in doubt.
    CleanInDoubt,
    /// The marker is written clean within the wait.
    CleanWithinHold,
    /// The owner's key is deleted before the drain.
    KeyDeletedBeforeDrain,
    /// An end that is not clean writes that it is.
    UncleanEndWritesClean,
    /// The last transaction doesn't compare the owner's key.
    EndsAnothersTenure,
}
