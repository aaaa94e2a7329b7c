//! What the agent does, from its start to its stop: it stands by, stands for the prefix, reads the marks, owns, ends,
//! and stands by again. Runs on a thread of its own, so that nothing delays a renewal. Called by `mod.rs`.

use std::cell::Cell;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};
use tokio::sync::watch;

use super::batch::{Bounds, Marks};
use super::cluster::Cluster;
use super::pages::{all_marks, next_audit};
use super::pause::Pause;
use super::standby::{Unseen, Won, look, stand};
use super::tenure::{Renewal, Tenure, Watch};
use super::values::Keys;
use super::writer::{Job, Writer, Written};
use super::{EtcdLedger, Event, OpenError, Role, Status};
use crate::ledger::{Found, Mark};
use crate::owner::{Marker, Turn};

pub(super) struct Life {
    pub(super) cluster: Arc<Cluster>,
    pub(super) keys: Keys,
    pub(super) events: UnboundedSender<Event>,
    pub(super) status: Arc<Mutex<Status>>,
    pub(super) on_commit: Arc<dyn Fn(Duration) + Send + Sync>,
    pub(super) stop: watch::Receiver<bool>,
    /// Whether the marks were read once, to see that they can be.
    pub(super) could_read: Cell<bool>,
    /// Whether the latest tenure ended because its renewals came too late.
    pub(super) too_slow: Cell<bool>,
}

/// What comes after a step.
enum Next {
    /// Standing by goes on, after so long.
    Wait(Duration),
    /// This instance has won.
    Own(Box<Won>),
    /// Nothing comes any more.
    End,
}

impl Life {
    pub(super) async fn run(mut self) {
        let mut failing = Pause::new(POLL, POLL_MAX);
        loop {
            let mut stop = self.stop.clone();
            let next = tokio::select! {
                () = stopped(&mut stop) => Next::End,
                next = self.step(&mut failing) => next,
            };
            let goes_on = match next {
                Next::Wait(wait) => tokio::select! {
                    () = stopped(&mut stop) => false,
                    () = tokio::time::sleep(wait) => true,
                },
                Next::Own(won) => self.own(*won).await && self.let_others_stand(&mut stop).await,
                Next::End => false,
            };
            if !goes_on {
                self.status.lock().role = Role::Closed;
                return;
            }
        }
    }

    /// Whoever has just lost the prefix because its renewals came too late leaves it to the others for a while. False
    /// where it is stopped meanwhile.
    async fn let_others_stand(&self, stop: &mut watch::Receiver<bool>) -> bool {
        if !self.too_slow.take() {
            return true;
        }
        tokio::select! {
            () = stopped(stop) => false,
            () = tokio::time::sleep(self.cluster.settings().owner_ttl) => true,
        }
    }

    /// Looks who owns the prefix, and stands for it where nobody does.
    async fn step(&self, failing: &mut Pause) -> Next {
        let seen = match look(&self.cluster, &self.keys).await {
            Ok(seen) => seen,
            Err(Unseen::Fatal(error)) => return self.fatal(error),
            Err(Unseen::Doubtful(why)) => {
                self.doubt(Some(why));
                return Next::Wait(failing.next());
            }
            Err(Unseen::Away) => {
                self.status.lock().owner = None;
                return Next::Wait(failing.next());
            }
        };
        self.doubt(None);
        self.status.lock().owner.clone_from(&seen.owner);
        if let Err(error) = whole(&self.keys, &seen) {
            return self.fatal(error);
        }
        if seen.owner.is_some() {
            // Whoever can't take over is to end at its start, and not when it is needed.
            if !self.could_read.replace(true)
                && let Err(error) = all_marks(&self.cluster, &self.keys, seen.origin.revision).await
            {
                return self.fatal(error);
            }
            failing.reset();
            return Next::Wait(failing.jittered(POLL));
        }
        match stand(&self.cluster, &self.keys, &seen).await {
            Ok(Some(won)) => {
                failing.reset();
                Next::Own(Box::new(won))
            }
            Ok(None) => Next::Wait(failing.jittered(POLL)),
            Err(failure) => {
                self.cluster.unanswered(&failure);
                Next::Wait(failing.next())
            }
        }
    }

    /// Says once a spell that nobody of the known history answers, and once that it is over.
    fn doubt(&self, why: Option<String>) {
        let mut status = self.status.lock();
        match (&status.history, &why) {
            (None, Some(why)) => tracing::error!(
                "the marks in etcd may be older than what was acknowledged: {why}; nothing is let through until that \
                 history is back, or an operator says: fencegate store adopt -c FILE --reason WHY"
            ),
            (Some(_), None) => tracing::warn!("etcd's history is the known one again, or was adopted"),
            (None, None) | (Some(_), Some(_)) => {}
        }
        status.history = why;
        if status.history.is_some() {
            status.owner = None;
        }
    }

    fn fatal(&self, error: OpenError) -> Next {
        let _gone = self.events.send(Event::Fatal(error));
        Next::End
    }

    /// One tenure. Whether standing by goes on after it.
    async fn own(&mut self, won: Won) -> bool {
        self.status.lock().role = Role::Candidate;
        let tenure = Arc::new(won.tenure);
        // Also where this is left by a panic.
        let _ending = Ending(&tenure);
        let (jobs, mut queue) = unbounded_channel();
        let announced = Cell::new(false);
        let tell = |turn| self.turn(&announced, turn);
        let renewal = Renewal {
            cluster: &self.cluster,
            tenure: &tenure,
            owner_key: self.keys.owner(),
            ttl: self.cluster.settings().owner_ttl,
            deadline: self.cluster.settings().renewal_deadline(),
            too_slow: &self.too_slow,
        };
        let mut renewing = std::pin::pin!(renewal.run(Watch::new(&tenure, won.validity, &tell)));
        let mut stop = self.stop.clone();
        let loaded = tokio::select! {
            reason = &mut renewing => Err(Some(reason)),
            () = stopped(&mut stop) => Err(None),
            loaded = self.load(&tenure, won.found) => Ok(loaded),
        };
        let mut writer = self.writer(&tenure);
        let written = match loaded {
            Err(Some(reason)) => Written::Over(reason),
            Err(None) => return self.release(writer, won.found).await,
            Ok(Err(error)) => {
                self.release(writer, won.found).await;
                self.fatal(error);
                return false;
            }
            Ok(Ok(loaded)) => {
                writer.marks = loaded.known;
                writer.next_audit = loaded.next_audit;
                self.announce(&tenure, jobs, loaded.marks, won.found, won.answered_at);
                announced.set(true);
                if !tenure.owned() {
                    // It lapsed while the marks were read.
                    self.turn(&announced, Turn::Lapsed);
                }
                tokio::select! {
                    reason = &mut renewing => Written::Over(reason),
                    () = stopped(&mut stop) => {
                        let _known = writer.resign(false).await;
                        return false;
                    }
                    written = writer.run(&mut queue) => written,
                }
            }
        };
        match written {
            Written::Over(reason) => {
                self.lost(&tenure, &reason, announced.get());
                // Where the owner's key is still this tenure's, the next one need not wait for the lease to run out.
                let _known = writer.resign(false).await;
                // Whoever still holds the ledger is told, for as long as somebody does.
                tokio::task::spawn_local(async move { while queue.recv().await.is_some() {} });
                true
            }
            Written::Closed(reply, result) => {
                self.status.lock().role = Role::Closed;
                let _gone = reply.send(result);
                false
            }
        }
    }

    fn turn(&self, announced: &Cell<bool>, turn: Turn) {
        if !announced.get() {
            return;
        }
        let (role, event) = match turn {
            Turn::Lapsed => (Role::Lapsed, Event::Lapsed),
            Turn::Regained => (Role::Owner, Event::Regained),
        };
        self.status.lock().role = role;
        let _gone = self.events.send(event);
    }

    fn writer(&self, tenure: &Arc<Tenure>) -> Writer {
        Writer {
            cluster: self.cluster.clone(),
            keys: self.keys.clone(),
            tenure: tenure.clone(),
            marks: Marks::new(),
            bounds: Bounds::USUAL,
            next_audit: 0,
            on_commit: self.on_commit.clone(),
        }
    }

    async fn load(&self, tenure: &Tenure, found: Option<Marker>) -> Result<Loaded, OpenError> {
        let stored = all_marks(&self.cluster, &self.keys, tenure.revision.0).await?;
        if found.is_none()
            && let Some(first) = stored.first()
        {
            return Err(OpenError::Incomplete {
                key: self.keys.marker(),
                beside: self.keys.mark(&first.name),
            });
        }
        let mut pause = Pause::new(POLL, POLL_MAX);
        let next_audit = loop {
            match next_audit(&self.cluster, &self.keys).await {
                Ok(next) => break next,
                Err(_) => tokio::time::sleep(pause.next()).await,
            }
        };
        let mut known = Marks::new();
        let mut marks = Vec::with_capacity(stored.len());
        for one in stored {
            known.learn(&one.name, one.mark.token, crate::owner::Revision(one.revision));
            marks.push((one.name, one.mark));
        }
        Ok(Loaded {
            marks,
            known,
            next_audit,
        })
    }

    fn announce(
        &self,
        tenure: &Arc<Tenure>,
        jobs: UnboundedSender<Job>,
        marks: Vec<(String, Mark)>,
        found: Option<Marker>,
        answered_at: std::time::Instant,
    ) {
        if found.is_none() {
            let prefix = &self.cluster.settings().prefix;
            tracing::warn!(
                prefix,
                "a new, empty prefix of etcd: right only where this backend was never fenced before, and all its instances name this one"
            );
        }
        let found = Found {
            clean: found.is_none_or(|marker| marker.clean),
            settle_after: found.map_or(Duration::ZERO, |marker| marker.settle_after),
        };
        let mut status = self.status.lock();
        status.role = Role::Owner;
        status.owner = Some(self.cluster.settings().instance.clone());
        drop(status);
        let _gone = self.events.send(Event::Elected {
            ledger: Arc::new(EtcdLedger::new(tenure.clone(), jobs)),
            marks,
            found,
            answered_at,
        });
    }

    fn lost(&self, tenure: &Tenure, reason: &str, announced: bool) {
        tenure.end(reason);
        let mut status = self.status.lock();
        status.role = Role::Standby;
        status.owner = None;
        drop(status);
        if announced {
            let _gone = self.events.send(Event::Ended(reason.to_owned()));
        }
    }

    /// Nothing was let through in this tenure: what was found is left behind.
    async fn release(&self, writer: Writer, found: Option<Marker>) -> bool {
        let clean = found.is_none_or(|marker| marker.clean);
        let _known = writer.resign(clean).await;
        false
    }
}

struct Loaded {
    marks: Vec<(String, Mark)>,
    known: Marks,
    next_audit: u64,
}

struct Ending<'t>(&'t Arc<Tenure>);

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        self.0.end("the tenure is over");
    }
}

/// A prefix has both a marker and an identity, or neither.
fn whole(keys: &Keys, seen: &super::standby::Seen) -> Result<(), OpenError> {
    let (key, beside) = match (&seen.marker, &seen.identity) {
        (Some(_), None) => (keys.identity(), keys.marker()),
        (None, Some(_)) => (keys.marker(), keys.identity()),
        (Some(_), Some(_)) | (None, None) => return Ok(()),
    };
    Err(OpenError::Incomplete { key, beside })
}

async fn stopped(stop: &mut watch::Receiver<bool>) {
    // An error: the agent is gone, which is a stop too.
    let _gone = stop.wait_for(|stop| *stop).await;
}

/// How often who stands by looks whether there is an owner.
const POLL: Duration = Duration::from_millis(200);
/// And while etcd is away or has another history.
const POLL_MAX: Duration = Duration::from_secs(2);
