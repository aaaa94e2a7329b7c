//! What an owner writes: raises that wait at the same time in one transaction, resets, the marker, and at its end the
//! owner's key.
//!
//! A transaction without an answer is asked again, of the next member too. That is safe, because it compares what its
//! own success changes: where it had landed, the second one is refused, and reads what stands there. Called by `life.rs`.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::mpsc::SyncSender;
use std::time::{Duration, Instant};

use etcd_client::{Compare, CompareOp, KeyValue, Txn, TxnOp, TxnResponse};
use tokio::sync::mpsc::UnboundedReceiver;

use super::batch::{Bounds, Marks, Pending, held};
use super::cluster::{Answer, Cluster};
use super::failure::Failure;
use super::pages::{Unread, audit_trail, scan};
use super::pause::Pause;
use super::settings::DEADLINE;
use super::standby::gets;
use super::tenure::Tenure;
use super::values::{self, Keys, MarkerValue, NAME_BYTES_MAX};
use crate::base::clock::wall_ms;
use crate::ledger::{AuditEntry, Mark, StoreError};
use crate::owner::{Marker, Revision, Verdict, at_the_end, judge, settled_in};

/// What the callers' threads ask of the agent's. There are as many changes at once as raises wait, which the keeper
/// bounds.
pub(super) enum Job {
    Change(Pending),
    Scan {
        prefix: String,
        after: Option<String>,
        limit: usize,
        reply: SyncSender<Result<Vec<(String, Mark)>, StoreError>>,
    },
    AuditTrail(usize, SyncSender<Result<Vec<AuditEntry>, StoreError>>),
    Settle(Duration, SyncSender<Result<(), StoreError>>),
    Close(bool, SyncSender<Result<(), StoreError>>),
}

/// Why the writing has ended.
pub(super) enum Written {
    /// The tenure is over.
    Over(String),
    /// The ledger was closed; its caller hears how that went once all is done.
    Closed(SyncSender<Result<(), StoreError>>, Result<(), StoreError>),
}

pub(super) struct Writer {
    pub(super) cluster: Arc<Cluster>,
    pub(super) keys: Keys,
    pub(super) tenure: Arc<Tenure>,
    pub(super) marks: Marks,
    pub(super) bounds: Bounds,
    pub(super) next_audit: u64,
    pub(super) on_commit: Arc<dyn Fn(Duration) + Send + Sync>,
}

/// The tenure is over, because of this.
struct Over(String);

impl Writer {
    /// Does what is asked until the tenure is over or the ledger is closed.
    pub(super) async fn run(&mut self, jobs: &mut UnboundedReceiver<Job>) -> Written {
        let mut later: VecDeque<Job> = VecDeque::new();
        loop {
            let Some(job) = (match later.pop_front() {
                Some(job) => Some(job),
                None => jobs.recv().await,
            }) else {
                // Nobody holds the ledger any more: nobody lets anything through.
                return Written::Over("the ledger was dropped".to_owned());
            };
            match job {
                Job::Change(first) => {
                    while let Ok(job) = jobs.try_recv() {
                        later.push_back(job);
                    }
                    let mut changes = VecDeque::from([first]);
                    while matches!(later.front(), Some(Job::Change(_)))
                        && let Some(Job::Change(next)) = later.pop_front()
                    {
                        changes.push_back(next);
                    }
                    if let Err(Over(reason)) = self.changes(changes).await {
                        return Written::Over(reason);
                    }
                }
                Job::Close(clean, reply) => {
                    let result = self.resign(clean).await;
                    return Written::Closed(reply, result);
                }
                Job::Settle(wait, reply) => {
                    let _gone = reply.send(self.settle(wait).await);
                }
                Job::Scan { .. } | Job::AuditTrail(..) => self.read(job),
            }
        }
    }

    /// Beside the writing, which must not wait for an operator's page.
    fn read(&self, job: Job) {
        let (cluster, keys) = (self.cluster.clone(), self.keys.clone());
        tokio::task::spawn_local(async move {
            match job {
                Job::Scan {
                    prefix,
                    after,
                    limit,
                    reply,
                } => {
                    let found = scan(&cluster, &keys, (&prefix, after.as_deref()), limit, 0).await;
                    let _gone = reply.send(found.map_err(|unread| unread.told()));
                }
                Job::AuditTrail(limit, reply) => {
                    let found = audit_trail(&cluster, &keys, limit, 0).await;
                    let _gone = reply.send(found.map_err(|unread| unread.told()));
                }
                Job::Change(_) | Job::Settle(..) | Job::Close(..) => unreachable!("only reads come here"),
            }
        });
    }

    /// Commits what has queued up, some transactions in a row.
    async fn changes(&mut self, mut queue: VecDeque<Pending>) -> Result<(), Over> {
        refuse_long_names(&mut queue);
        while !queue.is_empty() {
            let batch = self.bounds.take(&mut queue);
            self.commit(batch, &mut queue).await?;
        }
        Ok(())
    }

    /// Brings one batch to an end: each change stands in etcd, or its caller is told that this is not known.
    async fn commit(&mut self, mut batch: Vec<Pending>, queue: &mut VecDeque<Pending>) -> Result<(), Over> {
        let mut pause = Pause::new(BUSY_MIN, BUSY_MAX);
        for _ in 0..ROUNDS_MAX {
            let started = Instant::now();
            let transaction =
                self.marks
                    .transaction(&self.keys, self.tenure.revision, &batch, self.next_audit);
            let answer = self
                .cluster
                .ask(async |mut client| client.txn(transaction.clone()).await)
                .await;
            match answer {
                Ok(answer) if answer.succeeded() => {
                    (self.on_commit)(started.elapsed());
                    return self.landed(batch, &answer);
                }
                Ok(answer) => {
                    batch = self.refused(batch, &answer)?;
                    if batch.is_empty() {
                        return Ok(());
                    }
                }
                Err(Failure::Busy) => tokio::time::sleep(pause.next()).await,
                Err(failure) if self.shrink(&failure, &mut batch, queue) => {}
                Err(failure) => {
                    give_up(batch, &failure);
                    return Ok(());
                }
            }
        }
        give_up(batch, &Failure::Busy);
        Ok(())
    }

    fn landed(&mut self, batch: Vec<Pending>, answer: &TxnResponse) -> Result<(), Over> {
        let origin = answer.origin().map_err(|failure| Over(failure.to_string()))?;
        for pending in batch {
            let attempt = self.marks.attempt(&pending);
            // Where nothing was written, it stands there at the revision that was compared.
            if self.marks.writes(&pending) {
                let written = Revision(origin.revision);
                self.marks.learn(pending.name(), attempt.token, written);
            }
            self.next_audit += u64::from(pending.is_reset() || pending.is_note());
            pending.answer(Ok(()));
        }
        Ok(())
    }

    /// Something was not as it is known: judges each change by what was read, and gives those that are to be tried
    /// again.
    fn refused(&mut self, batch: Vec<Pending>, answer: &TxnResponse) -> Result<Vec<Pending>, Over> {
        let mut reads = gets(answer)
            .into_iter()
            .map(|mut get| get.take_kvs().into_iter().next());
        let owner = reads.next().flatten().map(|kv| Revision(kv.create_revision()));
        let mut again = Vec::new();
        for pending in batch {
            if pending.is_note() {
                again.extend(self.note_refused(pending, owner, reads.next().flatten())?);
                continue;
            }
            let kv = reads.next().flatten();
            let held = kv.as_ref().map(held).transpose().map_err(|flaw| {
                Over(format!(
                    "the mark of {:?} can't be read any more: {flaw:?}",
                    pending.name()
                ))
            })?;
            let recorded = if pending.is_reset() {
                reads.next().flatten()
            } else {
                None
            };
            let attempt = self.marks.attempt(&pending);
            match judge(self.tenure.revision, owner, attempt, held) {
                Verdict::Done(revision) => {
                    self.marks.learn(pending.name(), attempt.token, revision);
                    pending.answer(Ok(()));
                }
                Verdict::Again(revision) => {
                    match held {
                        Some(held) => self.marks.learn(pending.name(), held.token, revision),
                        None => self.marks.forget(pending.name()),
                    }
                    if let Some(recorded) = recorded {
                        // The reset itself had landed, or another entry has this number.
                        self.next_audit += 1;
                        if recorded.mod_revision() == revision.0 && is_record_of(&pending, recorded.value()) {
                            pending.answer(Ok(()));
                            continue;
                        }
                    }
                    again.push(pending);
                }
                Verdict::NotOwner => return Err(Over(NOT_THE_OWNER.to_owned())),
                Verdict::Foreign => {
                    let name = pending.name();
                    return Err(Over(format!("somebody else has written the mark of {name:?}")));
                }
            }
        }
        Ok(again)
    }

    /// A note needs nothing but the ownership, and a number in the audit trail that nothing has yet.
    fn note_refused(
        &mut self,
        note: Pending,
        owner: Option<Revision>,
        recorded: Option<KeyValue>,
    ) -> Result<Option<Pending>, Over> {
        if owner != Some(self.tenure.revision) {
            return Err(Over(NOT_THE_OWNER.to_owned()));
        }
        let Some(recorded) = recorded else {
            return Ok(Some(note));
        };
        self.next_audit += 1;
        if is_record_of(&note, recorded.value()) {
            // It had landed, and the answer was lost.
            note.answer(Ok(()));
            return Ok(None);
        }
        Ok(Some(note))
    }

    /// Whether less of it may be taken: then the rest goes back to the queue.
    fn shrink(&mut self, failure: &Failure, batch: &mut Vec<Pending>, queue: &mut VecDeque<Pending>) -> bool {
        if batch.len() < 2 {
            return false;
        }
        let keep = batch.len() / 2;
        match failure {
            Failure::TooManyOperations => self.bounds.count = keep,
            Failure::RequestTooLarge => self.bounds.bytes /= 2,
            _ => return false,
        }
        for pending in batch.drain(keep..).rev() {
            queue.push_front(pending);
        }
        true
    }

    /// The wait after an unclean end is over.
    async fn settle(&self, settle_after: Duration) -> Result<(), StoreError> {
        let write = self.put_marker(settled_in(settle_after));
        let transaction = Txn::new().when([self.still_owner()]).and_then([write]);
        let answer = self
            .cluster
            .ask(async |mut client| client.txn(transaction.clone()).await)
            .await
            .map_err(|failure| failure.told())?;
        if answer.succeeded() {
            Ok(())
        } else {
            Err(StoreError::NotOwner)
        }
    }

    /// Gives the ownership up: the marker, where all is settled, and the owner's key in one transaction.
    pub(super) async fn resign(&self, clean: bool) -> Result<(), StoreError> {
        // Before it, because the next owner may come with it.
        self.tenure.end("the ledger was closed");
        let settle_after = self.cluster.settings().settle_after;
        let result = self.release_in_time(at_the_end(clean, settle_after)).await;
        if clean && matches!(result, Err(StoreError::Full(_) | StoreError::Failed(_))) {
            // The key at least, so that the next owner need not wait for the lease to run out.
            let _known = self.release_in_time(None).await;
        }
        let revoking = super::standby::revoke(&self.cluster, self.tenure.lease);
        // Else the lease runs out.
        let _done = tokio::time::timeout(DEADLINE, revoking).await;
        result
    }

    async fn release_in_time(&self, marker: Option<Marker>) -> Result<(), StoreError> {
        let released = tokio::time::timeout(RELEASE_MAX, self.release(marker)).await;
        released.unwrap_or_else(|_| {
            Err(StoreError::Away(
                "the ownership could not be given up in time".to_owned(),
            ))
        })
    }

    async fn release(&self, marker: Option<Marker>) -> Result<(), StoreError> {
        let mut writes: Vec<TxnOp> = marker.map(|marker| self.put_marker(marker)).into_iter().collect();
        writes.push(TxnOp::delete(self.keys.owner(), None));
        let transaction = Txn::new()
            .when([self.still_owner()])
            .and_then(writes)
            .or_else([TxnOp::get(self.keys.marker(), None)]);
        let mut pause = Pause::new(BUSY_MIN, BUSY_MAX);
        loop {
            let answer = self
                .cluster
                .ask(async |mut client| client.txn(transaction.clone()).await)
                .await;
            match answer {
                Ok(answer) if answer.succeeded() || self.had_landed(marker, &answer) => return Ok(()),
                Ok(_) => return Err(StoreError::NotOwner),
                // Another history has no owner's key of ours.
                Err(failure) if failure.is_of_the_cluster() || matches!(failure, Failure::Foreign(_)) => {
                    return Err(failure.told());
                }
                Err(_) => tokio::time::sleep(pause.next()).await,
            }
        }
    }

    /// Whether an earlier try, whose answer was lost, did it.
    fn had_landed(&self, marker: Option<Marker>, answer: &TxnResponse) -> bool {
        let Some(marker) = marker else {
            // The key is not ours any more, which is all that was wanted.
            return true;
        };
        let found = gets(answer).into_iter().next();
        let found = found.and_then(|mut get| get.take_kvs().into_iter().next());
        let found = found.and_then(|kv| values::read::<MarkerValue>(kv.value()).ok());
        found.is_some_and(|found| found.by == self.tenure.id && found.clean == marker.clean)
    }

    fn still_owner(&self) -> Compare {
        Compare::create_revision(self.keys.owner(), CompareOp::Equal, self.tenure.revision.0)
    }

    fn put_marker(&self, marker: Marker) -> TxnOp {
        let value = MarkerValue::new(marker, &self.tenure.id, wall_ms());
        TxnOp::put(self.keys.marker(), values::json(&value), None)
    }
}

impl Unread {
    fn told(&self) -> StoreError {
        match self {
            Unread::Failure(failure) => failure.told(),
            Unread::Fatal(error) => StoreError::Failed(error.to_string()),
        }
    }
}

/// What has become of it is not known, or it was refused. The keeper comes again, and then it is read.
fn give_up(batch: Vec<Pending>, failure: &Failure) {
    for pending in batch {
        pending.answer(Err(failure.told()));
    }
}

fn refuse_long_names(queue: &mut VecDeque<Pending>) {
    let fits = |pending: &Pending| pending.name().len() <= NAME_BYTES_MAX;
    let (taken, long): (Vec<_>, Vec<_>) = queue.drain(..).partition(fits);
    queue.extend(taken);
    for pending in long {
        let bytes = pending.name().len();
        let what = format!("the resource's name has {bytes} bytes, and etcd takes {NAME_BYTES_MAX} at most");
        pending.answer(Err(StoreError::Failed(what)));
    }
}

/// Whether an entry of the audit trail is exactly the one that this change adds.
fn is_record_of(pending: &Pending, value: &[u8]) -> bool {
    pending.record().is_some_and(|record| record == value)
}

const NOT_THE_OWNER: &str = "another instance owns the store, or none";
/// Refusals in a row after which a change is given back to whoever asked for it.
const ROUNDS_MAX: usize = 12;
/// A stop is not held up for longer by an etcd that is away.
const RELEASE_MAX: Duration = Duration::from_secs(5);
const BUSY_MIN: Duration = Duration::from_millis(50);
const BUSY_MAX: Duration = Duration::from_millis(800);
