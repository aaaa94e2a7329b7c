//! One tenure: from the transaction that made this instance the owner to whatever ended it. What the callers' threads
//! ask at the commit point, and how the lease is renewed.
//!
//! A renewal counts from before it was sent, for as long as its answer says, and only where the owner's key is still
//! the tenure's own, read at the same member after it. Called by `life.rs`; [`Tenure::owned`] by every gate.

use std::cell::Cell;
use std::pin::pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use etcd_client::{LeaseKeepAliveStream, LeaseKeeper};
use parking_lot::Mutex;

use super::cluster::Cluster;
use super::failure::Failure;
use super::pause::Pause;
use crate::base::Moment;
use crate::base::clock::boot_now;
use crate::owner::{Revision, Turn, Validity};

/// What the agent's thread and the callers' share.
#[derive(Debug)]
pub(super) struct Tenure {
    /// As it stands in the owner's key.
    pub(super) id: String,
    pub(super) lease: i64,
    /// When the owner's key was made.
    pub(super) revision: Revision,
    /// Until when this instance is sure to be the owner, by [`boot_now`]; zero where it is not. Pairs the store of
    /// whoever renews with the load before each byte that matters.
    valid_until: AtomicU64,
    over: Mutex<Option<String>>,
}

impl Tenure {
    pub(super) fn new(id: String, lease: i64, revision: Revision, until: Moment) -> Tenure {
        Tenure {
            id,
            lease,
            revision,
            valid_until: AtomicU64::new(until.0),
            over: Mutex::new(None),
        }
    }

    /// Whether a fenced byte may leave now.
    pub(super) fn owned(&self) -> bool {
        boot_now().0 < self.valid_until.load(Ordering::Acquire)
    }

    /// Why it is over, if it is.
    pub(super) fn over(&self) -> Option<String> {
        self.over.lock().clone()
    }

    /// Ends it for ever. The first reason stays.
    pub(super) fn end(&self, reason: &str) {
        let mut over = self.over.lock();
        over.get_or_insert_with(|| reason.to_owned());
        self.valid_until.store(0, Ordering::Release);
    }

    fn publish(&self, until: Moment) {
        let over = self.over.lock();
        if over.is_none() {
            self.valid_until.store(until.0, Ordering::Release);
        }
    }
}

/// Watches over the validity while other work is done.
pub(super) struct Watch<'t> {
    tenure: &'t Tenure,
    validity: Validity,
    tell: &'t dyn Fn(Turn),
}

impl<'t> Watch<'t> {
    pub(super) fn new(tenure: &'t Tenure, validity: Validity, tell: &'t dyn Fn(Turn)) -> Watch<'t> {
        Watch {
            tenure,
            validity,
            tell,
        }
    }

    fn look(&mut self) {
        if let Some(turn) = self.validity.look(boot_now()) {
            self.tenure.publish(Moment(0));
            (self.tell)(turn);
        }
    }

    fn renewed(&mut self, sent_at: Moment, ttl: Duration) {
        // Before it, so that a lapse is never passed over.
        self.look();
        let now = boot_now();
        let turn = self.validity.renewed(sent_at, ttl, now);
        if self.validity.holds(now) {
            self.tenure.publish(self.validity.until());
        }
        if let Some(turn) = turn {
            (self.tell)(turn);
        }
    }

    /// Does the work, and says at once when the validity lapses meanwhile. In slices, because the runtime's clock
    /// stops while the machine is suspended.
    async fn while_looking<T>(&mut self, work: impl Future<Output = T>) -> T {
        let mut work = pin!(work);
        loop {
            let left = self.validity.until().since(boot_now());
            let slice = if left.is_zero() { SLICE } else { left.min(SLICE) };
            tokio::select! {
                biased;
                out = &mut work => return out,
                () = tokio::time::sleep(slice) => self.look(),
            }
        }
    }
}

/// Renews the lease of a tenure.
pub(super) struct Renewal<'t> {
    pub(super) cluster: &'t Cluster,
    pub(super) tenure: &'t Tenure,
    pub(super) owner_key: String,
    pub(super) ttl: Duration,
    pub(super) deadline: Duration,
    /// Set where the tenure ends because its renewals come too late.
    pub(super) too_slow: &'t Cell<bool>,
}

/// An open stream of renewals, with no question on its way.
struct Stream {
    at: usize,
    keeper: LeaseKeeper,
    answers: LeaseKeepAliveStream,
}

/// Why a renewal failed.
enum Missed {
    /// The tenure is over.
    Over(String),
    /// Another try may succeed.
    Failure(Failure),
}

impl Renewal<'_> {
    /// Renews until the tenure is over, and says why it is.
    pub(super) async fn run(&self, mut watch: Watch<'_>) -> String {
        let mut stream: Option<Stream> = None;
        let mut pause = Pause::new(PAUSE_MIN, (self.ttl / 10).clamp(PAUSE_MIN, PAUSE_MAX));
        let mut order = self.cluster.order().collect::<Vec<_>>();
        let mut wait = self.ttl / 3;
        loop {
            watch.while_looking(tokio::time::sleep(wait)).await;
            let at = stream.as_ref().map_or(order[0], |open| open.at);
            let sent_at = boot_now();
            match watch.while_looking(self.renew(at, stream.take())).await {
                Ok((open, ttl)) => {
                    watch.renewed(sent_at, ttl);
                    stream = Some(open);
                    pause.reset();
                    wait = (self.ttl / 3).min(ttl / 3);
                }
                Err(Missed::Over(reason)) => return reason,
                Err(Missed::Failure(failure)) => {
                    tracing::debug!(%failure, "the lease was not renewed; the next member is asked");
                    // At once while some were not asked; then with pauses.
                    order.rotate_left(1);
                    wait = pause.next();
                    // Its questions may arrive all the same, and keep the lease alive: then nobody would be active for as
                    // long as the answers come too late.
                    let lapsed_for = boot_now().since(watch.validity.until());
                    if !lapsed_for.is_zero() {
                        self.cluster.unanswered(&failure);
                    }
                    if lapsed_for > self.ttl / 2 {
                        self.too_slow.set(true);
                        return format!("its lease could not be renewed in time: {failure}");
                    }
                }
            }
        }
    }

    /// One renewal at one member.
    async fn renew(&self, at: usize, stream: Option<Stream>) -> Result<(Stream, Duration), Missed> {
        let stream = match stream {
            Some(open) => open,
            None => self.open(at).await?,
        };
        let (stream, ttl) = self.ask(stream).await?;
        self.still_owner(at).await?;
        Ok((stream, ttl))
    }

    /// The answer to the first question of a stream is not seen here, so it counts for nothing.
    async fn open(&self, at: usize) -> Result<Stream, Missed> {
        let lease = self.tenure.lease;
        let opened = self
            .cluster
            .on(at, self.deadline, async move |mut client| {
                client.lease_keep_alive(lease).await
            })
            .await;
        match opened {
            Ok((keeper, answers)) => Ok(Stream { at, keeper, answers }),
            Err(failure) => Err(self.missed(at, failure).await),
        }
    }

    async fn ask(&self, mut stream: Stream) -> Result<(Stream, Duration), Missed> {
        let at = stream.at;
        let answer = tokio::time::timeout(self.deadline, async {
            stream.keeper.keep_alive().await?;
            stream.answers.message().await
        });
        // Dropped with the stream, an answer that comes later is never taken for that to a later question.
        let failure = match answer.await {
            Ok(Ok(Some(answer))) if answer.ttl() > 0 => {
                let ttl = Duration::from_secs(answer.ttl().unsigned_abs());
                return Ok((stream, ttl));
            }
            Ok(Ok(Some(_))) => Failure::LeaseGone,
            Ok(Ok(None)) => Failure::Away("the stream of renewals has ended".to_owned()),
            Ok(Err(error)) => Failure::of(&error),
            Err(_) => Failure::Away("a renewal had no answer in time".to_owned()),
        };
        Err(self.missed(at, failure).await)
    }

    /// A lease that is gone ends the tenure, if the member that says so is of the known history.
    async fn missed(&self, at: usize, failure: Failure) -> Missed {
        match failure {
            Failure::LeaseGone => match self.still_owner(at).await {
                Ok(()) => Missed::Over("the lease has run out or was revoked".to_owned()),
                Err(missed) => missed,
            },
            failure => Missed::Failure(failure),
        }
    }

    /// Reads the owner's key at the member that has answered.
    async fn still_owner(&self, at: usize) -> Result<(), Missed> {
        // No transaction: while the database is full, some versions refuse even those that only read.
        let answer = self
            .cluster
            .ask_at(at, self.deadline, async |mut client| {
                client.get(self.owner_key.clone(), None).await
            })
            .await
            .map_err(|failure| match failure {
                // Of one that is alone there is nothing to wait for: what it has forgotten is forgotten.
                Failure::Foreign(why) if self.cluster.order().count() == 1 => {
                    Missed::Over(Failure::Foreign(why).to_string())
                }
                failure => Missed::Failure(failure),
            })?;
        self.cluster.answered(at);
        let made = answer.kvs().first().map(etcd_client::KeyValue::create_revision);
        match made {
            Some(revision) if Revision(revision) == self.tenure.revision => Ok(()),
            Some(_) => Err(Missed::Over("another instance owns the store".to_owned())),
            None => Err(Missed::Over(
                "the owner's key is gone: its lease has run out, or somebody deleted it".to_owned(),
            )),
        }
    }
}

/// At most so late is a lapse noticed that happens while the machine is suspended.
const SLICE: Duration = Duration::from_millis(100);
const PAUSE_MIN: Duration = Duration::from_millis(20);
const PAUSE_MAX: Duration = Duration::from_secs(1);
