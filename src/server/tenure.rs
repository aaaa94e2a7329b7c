//! The tenures of an owned store: each brings its own keeper, and what was under way at its end is over with it.
//! One task, from the start to the very end: also while a stop waits for what is in flight.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::mpsc::UnboundedReceiver;
use tokio::task::JoinHandle;

use super::core::{Cores, Message};
use super::{Failure, end_hold, hold_of};
use crate::keeper::{Keeper, Marks, Seat};
use crate::ledger::etcd::{EtcdLedger, Event, OpenError};
use crate::ledger::{Found, Ledger, Mark};
use crate::observe::events::Role;
use crate::observe::{Metrics, Turn};
use crate::rules::{Kinds, Misfits};

/// What follows the tenures.
pub struct Tenures {
    pub seat: Arc<Seat>,
    pub cores: Cores,
    pub metrics: Arc<Metrics>,
    /// What tokens the rules read: a store with others is not served.
    pub kinds: Kinds,
    pub settle_after: Duration,
    /// Comes back when the wait after an unclean end is over.
    hold: Option<JoinHandle<()>>,
}

impl Tenures {
    pub fn new(
        seat: Arc<Seat>,
        cores: Cores,
        metrics: Arc<Metrics>,
        kinds: Kinds,
        settle_after: Duration,
    ) -> Tenures {
        Tenures {
            seat,
            cores,
            metrics,
            kinds,
            settle_after,
            hold: None,
        }
    }

    /// Does what the store's events ask for; ends with one that this instance can't live with.
    pub async fn follow(mut self, mut events: UnboundedReceiver<Event>) -> Failure {
        while let Some(event) = events.recv().await {
            match event {
                Event::Elected {
                    ledger,
                    marks,
                    found,
                    answered_at,
                } => {
                    if let Err(failure) = self.begin(ledger, marks, found, answered_at) {
                        return failure;
                    }
                }
                Event::Lapsed => {
                    self.note(Turn::Lapsed, "it could not renew its lease in time");
                    tracing::warn!(
                        "this instance can't be sure to be the owner any more: all connections to the backends are reset"
                    );
                    self.seat.keeper().lapse();
                    self.cores.tell(|| Message::Disown);
                }
                Event::Regained => {
                    self.note(Turn::Regained, "its lease was renewed after all");
                    tracing::info!("this instance is sure again to be the owner, and goes on");
                }
                Event::Ended(why) => self.end(&why),
                Event::Fatal(error) => return Failure::OpenEtcd(error),
            }
        }
        // Its other end outlives this task, unless it has failed.
        Failure::OpenEtcd(OpenError::Failed(
            "the thread of the store in etcd has ended by itself; this is a bug".to_owned(),
        ))
    }

    fn begin(
        &mut self,
        ledger: Arc<EtcdLedger>,
        stored: Vec<(String, Mark)>,
        found: Found,
        answered_at: Instant,
    ) -> Result<(), Failure> {
        let mut marks = Marks::default();
        let mut misfits = Misfits::default();
        for (name, mark) in &stored {
            misfits.look(&self.kinds, name, mark.format);
            marks.load(name, mark.token);
        }
        if let Some(complaint) = misfits.complaint() {
            // Nothing was sent: what the owner before left stays as it was.
            ledger.close(found.clean)?;
            return Err(Failure::OtherKinds(complaint));
        }
        let hold = hold_of(found, self.settle_after);
        let keeper = Keeper::since(answered_at, marks, ledger, Arc::clone(&self.metrics), hold);
        if hold.is_zero() {
            tracing::info!(fences = keeper.fences(), "this instance is the owner now");
        } else {
            tracing::warn!(
                fences = keeper.fences(),
                ?hold,
                "this instance is the owner now; the one before did not stop cleanly: raises wait until what it had sent has settled"
            );
        }
        self.note(Turn::Elected, "it owns the store");
        self.forget_hold();
        self.hold = Some(tokio::spawn(end_hold(Arc::clone(&keeper), self.settle_after)));
        self.seat.pass_to(keeper);
        Ok(())
    }

    fn end(&mut self, why: &str) {
        tracing::warn!(why, "this instance is not the owner any more: it stands by");
        self.note(Turn::Ended, why);
        self.forget_hold();
        self.seat.pass_to(Keeper::vacant(Arc::clone(&self.metrics)));
        self.cores.tell(|| Message::Disown);
    }

    /// Counts it, and tells whoever listens.
    fn note(&self, turn: Turn, why: &str) {
        let role = match turn {
            Turn::Elected | Turn::Regained => Role::Active,
            Turn::Lapsed | Turn::Ended => Role::Standby,
        };
        self.metrics.owner.count(turn);
        self.metrics.events.ownership(role, why);
    }

    fn forget_hold(&mut self) {
        if let Some(hold) = self.hold.take() {
            hold.abort();
        }
    }
}

impl Drop for Tenures {
    fn drop(&mut self) {
        self.forget_hold();
    }
}
