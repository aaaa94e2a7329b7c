//! What an entry of the table keeps while something is under way there: the core, the resource's name, who is to
//! be woken. Thrown away when the fence is at rest and nothing would be lost.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::Waker;

use tokio::sync::oneshot;

use super::Fence;
use crate::base::{Moment, Token, TokenFormat};
use crate::fence::Core;
use crate::ledger::Audit;

/// The slow state of one fence, under its entry's mutex.
#[derive(Debug)]
pub struct Slow {
    pub core: Core,
    /// The resource's name, once someone came who knows it. Whatever raises the fence does.
    pub name: Option<Arc<str>>,
    pub format: TokenFormat,
    /// Requests refused here since the start.
    pub refused: u64,
    /// When the raise that is under way was seen first.
    pub since: Option<Moment>,
    /// Whether the ledger's last answer was a failure.
    pub unstored: bool,
    pub reset: Option<PendingReset>,
    /// The latest token that an operator asked to raise to.
    pub operators: Option<Token>,
    sleepers: Vec<Sleeper>,
}

/// A reset that is not durable yet.
#[derive(Debug)]
pub struct PendingReset {
    pub audit: Audit,
    pub done: oneshot::Sender<()>,
}

/// Someone who is woken when the fence moves.
#[derive(Debug)]
struct Sleeper {
    id: SleeperId,
    kind: Sleeps,
    waker: Waker,
}

/// What someone who is woken is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Sleeps {
    /// A request that waits to be admitted.
    Waiting,
    /// A flight before its commit point.
    Uncommitted,
    /// A flight that the door has in its count.
    Committed,
}

/// A place in a fence's list of sleepers. Unique in the process: a slow state comes and goes, and whoever holds an
/// old place must not be taken for someone in the new list.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SleeperId(u64);

impl SleeperId {
    fn new() -> SleeperId {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        SleeperId(NEXT.fetch_add(1, Ordering::Relaxed))
    }
}

impl Slow {
    fn new(core: Core) -> Slow {
        Slow {
            core,
            name: None,
            format: TokenFormat::Integer,
            refused: 0,
            since: None,
            unstored: false,
            reset: None,
            operators: None,
            sleepers: Vec::new(),
        }
    }

    /// Notes the resource's name and format, as whoever arrives knows them.
    pub fn is_named(&mut self, name: &str, format: TokenFormat) {
        if self.name.is_none() {
            self.name = Some(name.into());
            self.format = format;
        }
    }

    /// Registers a waker, in its old place if it has one.
    pub fn sleep(&mut self, id: &mut Option<SleeperId>, kind: Sleeps, waker: &Waker) {
        if let Some(old) = self.sleepers.iter_mut().find(|s| Some(s.id) == *id) {
            old.waker.clone_from(waker);
            return;
        }
        let new = SleeperId::new();
        *id = Some(new);
        self.sleepers.push(Sleeper {
            id: new,
            kind,
            waker: waker.clone(),
        });
    }

    /// Takes a sleeper off the list.
    pub fn forget(&mut self, id: SleeperId) {
        self.sleepers.retain(|s| s.id != id);
    }

    /// All wakers; those that still care register again.
    pub fn take_wakers(&mut self) -> Vec<Waker> {
        self.sleepers.drain(..).map(|s| s.waker).collect()
    }

    /// How many requests wait here.
    pub fn waiting(&self) -> usize {
        self.count(Sleeps::Waiting)
    }

    /// How many admitted flights that have not committed are registered here.
    pub fn uncommitted(&self) -> usize {
        self.count(Sleeps::Uncommitted)
    }

    fn count(&self, kind: Sleeps) -> usize {
        self.sleepers.iter().filter(|s| s.kind == kind).count()
    }

    /// Tells the operator that the reset is durable, and gives what stands in the audit trail.
    pub fn reset_is_durable(&mut self) -> Option<Audit> {
        let reset = self.reset.take()?;
        // An operator who has gone needs no answer.
        let _gone = reset.done.send(());
        Some(reset.audit)
    }
}

/// The slow state of `fence`, made from its door where there is none.
pub fn open<'g>(slot: &'g mut Option<Box<Slow>>, fence: &Fence) -> &'g mut Slow {
    slot.get_or_insert_with(|| Box::new(Slow::new(fence.core_at_rest())))
}

/// Throws the slow state away if nothing is lost by it.
pub fn rest(slot: &mut Option<Box<Slow>>) {
    if slot
        .as_ref()
        .is_some_and(|s| s.core.is_at_rest() && s.sleepers.is_empty() && s.refused == 0 && s.reset.is_none())
    {
        *slot = None;
    }
}
