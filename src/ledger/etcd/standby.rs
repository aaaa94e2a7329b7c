//! An instance that does not own the prefix: it looks who does, and stands for it when nobody does.
//!
//! It decides by transactions alone: the one that makes it the owner compares that there is no owner, and that the
//! marker and the identity are still those that were read. Called by `life.rs`.

use std::time::{Duration, Instant};

use etcd_client::{
    Compare, CompareOp, GetResponse, KeyValue, PutOptions, Txn, TxnOp, TxnOpResponse, TxnResponse,
};

use super::OpenError;
use super::cluster::{Answer, Cluster};
use super::failure::Failure;
use super::history::{History, Origin, Standing};
use super::pause::Pause;
use super::settings::DEADLINE;
use super::tenure::Tenure;
use super::values::{self, Flaw, IdentityValue, Keys, MarkerValue, OwnerValue, random_id};
use crate::base::clock::{boot_now, wall_ms};
use crate::owner::{Marker, Revision, Validity, take_over};

/// What stands below the prefix, marks apart.
#[derive(Clone, Debug)]
pub(super) struct Seen {
    pub(super) origin: Origin,
    /// Who owns it, for people.
    pub(super) owner: Option<String>,
    pub(super) marker: Option<(MarkerValue, i64)>,
    pub(super) identity: Option<(IdentityValue, i64)>,
}

/// Why nothing is seen that counts.
#[derive(Debug)]
pub(super) enum Unseen {
    /// Nobody answers.
    Away,
    /// Nobody answers but those with another history.
    Doubtful(String),
    /// It can't be read, now or later.
    Fatal(OpenError),
}

/// An election that was won.
pub(super) struct Won {
    pub(super) tenure: Tenure,
    pub(super) validity: Validity,
    /// What the earlier run left.
    pub(super) found: Option<Marker>,
    /// When the answer to the transaction came.
    pub(super) answered_at: Instant,
}

/// Looks at the prefix.
pub(super) async fn look(cluster: &Cluster, keys: &Keys) -> Result<Seen, Unseen> {
    let read =
        Txn::new().and_then([keys.owner(), keys.marker(), keys.identity()].map(|key| TxnOp::get(key, None)));
    let (mut away, mut doubtful) = (None, None);
    for at in cluster.order() {
        let before = cluster.history.lock().latest();
        let answer = cluster
            .on(at, DEADLINE, async |mut client| client.txn(read.clone()).await)
            .await;
        let answer = match answer {
            Ok(answer) => answer,
            Err(failure) => {
                away = Some(failure);
                continue;
            }
        };
        let origin = answer.origin().map_err(|_| Unseen::Away)?;
        match judge(cluster, before, origin, &answer)? {
            Ok(seen) => {
                cluster.answered(at);
                return Ok(seen);
            }
            Err(why) => {
                cluster.doubts(at, &why);
                doubtful = Some((why, origin));
            }
        }
    }
    match (doubtful, away) {
        (Some((why, origin)), _) => {
            cluster.history.lock().doubt(origin);
            Err(Unseen::Doubtful(why))
        }
        (None, Some(failure)) => {
            cluster.unanswered(&failure);
            Err(Unseen::Away)
        }
        (None, None) => unreachable!("there is an endpoint: Settings::check"),
    }
}

/// Takes an answer of the known history, or of one that an operator has adopted.
fn judge(
    cluster: &Cluster,
    before: Option<Origin>,
    origin: Origin,
    answer: &TxnResponse,
) -> Result<Result<Seen, String>, Unseen> {
    let allowed = History::allows(before, origin);
    let [owner, marker, identity] = single_values(answer)?;
    let identity = match identity {
        Some(kv) => match values::read::<IdentityValue>(kv.value()) {
            Ok(value) => Some((value, kv.mod_revision())),
            Err(flaw) if allowed.is_ok() => return Err(Unseen::Fatal(OpenError::of(kv.key(), flaw))),
            Err(_) => return Ok(Err("the prefix's identity can't be read".to_owned())),
        },
        None => None,
    };
    let mut history = cluster.history.lock();
    match history.standing(allowed, origin, identity.as_ref().map(|(value, _)| value)) {
        Standing::Doubtful(why) => return Ok(Err(why)),
        Standing::Adopted => {
            tracing::warn!(
                cluster = values::shown_cluster(origin.cluster),
                revision = origin.revision,
                "an operator has adopted the prefix: its history begins anew"
            );
            history.begin_again(origin);
        }
        Standing::Known => history.note(origin),
    }
    if let Some((value, _)) = &identity {
        history.belongs_to(value);
    }
    drop(history);
    let marker = match marker {
        Some(kv) => {
            let value =
                values::read(kv.value()).map_err(|flaw| Unseen::Fatal(OpenError::of(kv.key(), flaw)))?;
            Some((value, kv.mod_revision()))
        }
        None => None,
    };
    Ok(Ok(Seen {
        origin,
        owner: owner.map(|kv| who(kv.value())),
        marker,
        identity,
    }))
}

/// The one value of each of three reads.
fn single_values(answer: &TxnResponse) -> Result<[Option<KeyValue>; 3], Unseen> {
    let values: Vec<Option<KeyValue>> = gets(answer)
        .into_iter()
        .map(|mut get| get.take_kvs().into_iter().next())
        .collect();
    values.try_into().map_err(|_| Unseen::Away)
}

/// The answers to a transaction's reads.
pub(super) fn gets(answer: &TxnResponse) -> Vec<GetResponse> {
    let answers = answer.op_responses().into_iter();
    answers
        .filter_map(|answer| match answer {
            TxnOpResponse::Get(get) => Some(get),
            TxnOpResponse::Put(_) | TxnOpResponse::Delete(_) | TxnOpResponse::Txn(_) => None,
        })
        .collect()
}

/// Who an owner is, for people. Of another version it may say nothing that is understood here.
fn who(value: &[u8]) -> String {
    values::read::<OwnerValue>(value)
        .map_or_else(|_| "an instance of another version".to_owned(), |owner| owner.who)
}

/// Stands for a prefix that was seen without an owner. `None` where somebody else was faster.
pub(super) async fn stand(cluster: &Cluster, keys: &Keys, seen: &Seen) -> Result<Option<Won>, Failure> {
    let ttl = cluster.settings().ttl_seconds();
    // The lease counts from before it is asked for.
    let sent_at = boot_now();
    let granted = cluster
        .ask(async |mut client| client.lease_grant(ttl, None).await)
        .await?;
    let validity = Validity::granted(sent_at, Duration::from_secs(granted.ttl().unsigned_abs()));
    let id = random_id();
    let won = elect(cluster, keys, seen, &id, granted.id(), validity).await;
    if !matches!(won, Ok(Some(_))) {
        revoke(cluster, granted.id()).await;
    }
    won
}

/// The transaction. One without an answer is asked again for as long as the lease holds: only what is read tells what
/// has become of it.
async fn elect(
    cluster: &Cluster,
    keys: &Keys,
    seen: &Seen,
    id: &str,
    lease: i64,
    validity: Validity,
) -> Result<Option<Won>, Failure> {
    let identity = match &seen.identity {
        Some((value, _)) => value.clone(),
        None => IdentityValue::new(seen.origin.cluster, wall_ms()),
    };
    let election = election(cluster, keys, seen, (id, lease), &identity);
    let mut pause = Pause::new(PAUSE_MIN, PAUSE_MAX);
    loop {
        let answer = cluster
            .ask(async |mut client| client.txn(election.clone()).await)
            .await;
        let answer = match answer {
            Ok(answer) => answer,
            Err(failure) if failure.is_of_the_cluster() || !validity.holds(boot_now()) => {
                return Err(failure);
            }
            Err(_) => {
                tokio::time::sleep(pause.next()).await;
                continue;
            }
        };
        let made = if answer.succeeded() {
            Some(answer.origin()?.revision)
        } else {
            made_by(id, &answer)
        };
        if made.is_some() {
            // Also one that this transaction has made: else an adoption would not be told from it later.
            cluster.history.lock().belongs_to(&identity);
        }
        return Ok(made.map(|revision| Won {
            tenure: Tenure::new(id.to_owned(), lease, Revision(revision), validity.until()),
            validity,
            found: seen.marker.as_ref().map(|(value, _)| value.marker()),
            answered_at: Instant::now(),
        }));
    }
}

fn election(
    cluster: &Cluster,
    keys: &Keys,
    seen: &Seen,
    (id, lease): (&str, i64),
    made_in: &IdentityValue,
) -> Txn {
    let now = wall_ms();
    let (marker, identity) = (seen.marker.as_ref(), seen.identity.as_ref());
    let owner = OwnerValue {
        format: values::FORMAT,
        id: id.to_owned(),
        who: cluster.settings().instance.clone(),
        since_ms: now,
    };
    let begun = take_over(
        marker.map(|(value, _)| value.marker()),
        cluster.settings().settle_after,
    );
    let dirty = MarkerValue::new(begun.marker, id, now);
    let mut writes = vec![
        TxnOp::put(
            keys.owner(),
            values::json(&owner),
            Some(PutOptions::new().with_lease(lease)),
        ),
        TxnOp::put(keys.marker(), values::json(&dirty), None),
    ];
    if identity.is_none() {
        writes.push(TxnOp::put(keys.identity(), values::json(made_in), None));
    }
    let revision = |of: Option<i64>| of.unwrap_or(0);
    Txn::new()
        .when([
            Compare::create_revision(keys.owner(), CompareOp::Equal, 0),
            Compare::mod_revision(
                keys.marker(),
                CompareOp::Equal,
                revision(marker.map(|(_, at)| *at)),
            ),
            Compare::mod_revision(
                keys.identity(),
                CompareOp::Equal,
                revision(identity.map(|(_, at)| *at)),
            ),
        ])
        .and_then(writes)
        .or_else([TxnOp::get(keys.owner(), None)])
}

/// When the owner's key was made, if it is this candidate's own: the transaction had landed before.
fn made_by(id: &str, answer: &TxnResponse) -> Option<i64> {
    let owner = gets(answer).into_iter().next()?.take_kvs().into_iter().next()?;
    let value: OwnerValue = values::read(owner.value()).ok()?;
    (value.id == id).then(|| owner.create_revision())
}

/// Gives a lease back. Where that fails it runs out.
pub(super) async fn revoke(cluster: &Cluster, lease: i64) {
    for at in cluster.order() {
        let revoked = cluster
            .on(at, DEADLINE, async move |mut client| {
                client.lease_revoke(lease).await
            })
            .await;
        match revoked {
            Ok(_) | Err(Failure::LeaseGone) => return,
            Err(failure) => tracing::debug!(%failure, "a lease was not given back; it runs out"),
        }
    }
}

impl OpenError {
    /// What is wrong with the value of a key.
    pub(super) fn of(key: &[u8], flaw: Flaw) -> OpenError {
        let key = String::from_utf8_lossy(key).into_owned();
        match flaw {
            Flaw::Format(found) => OpenError::Version { key, found },
            Flaw::Unreadable(what) => OpenError::Unreadable { key, what },
        }
    }
}

const PAUSE_MIN: Duration = Duration::from_millis(50);
const PAUSE_MAX: Duration = Duration::from_secs(1);
