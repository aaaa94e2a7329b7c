//! What operators do with a prefix: look at it without owning it, and adopt it where its history was lost. Called by
//! `cli/`.

use etcd_client::{Compare, CompareOp, Txn, TxnOp};
use tokio::runtime::Runtime;

use super::OpenError;
use super::cluster::Cluster;
use super::history::Origin;
use super::pages::{Unread, audit_trail, next_audit, scan};
use super::settings::Settings;
use super::standby::gets;
use super::values::{self, IdentityValue, Keys, MarkerValue, OwnerValue, shown_cluster};
use crate::base::clock::wall_ms;
use crate::ledger::{AuditEntry, Found, Mark};
use crate::owner::Marker;

/// A prefix as it stood at one revision, read without owning it.
pub struct Reader {
    runtime: Runtime,
    cluster: Cluster,
    keys: Keys,
    view: View,
}

/// What stands below a prefix, marks apart.
#[derive(Clone, Debug)]
pub struct View {
    /// Who owns it now, for people.
    pub owner: Option<String>,
    /// How the last run ended, or that one runs; `None` where the prefix was never used.
    pub found: Option<Found>,
    /// The id of the cluster that answered.
    pub cluster: String,
    /// The id of the cluster that the prefix was made or adopted in.
    pub made_in: Option<String>,
    /// etcd's revision.
    pub revision: i64,
}

/// What an adoption has done.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Adopted {
    /// The cluster that the prefix belongs to from now on.
    pub cluster: String,
    /// The one that it belonged to before; `None` where it had none.
    pub from: Option<String>,
    /// etcd's revision after it.
    pub revision: i64,
}

/// What the three keys hold, with the revisions of their latest change; zero where there is none.
struct Head {
    origin: Origin,
    owner: Option<String>,
    marker: (Option<MarkerValue>, i64),
    identity: (Option<IdentityValue>, i64),
}

impl Reader {
    /// Reads what stands below the prefix now. All that is read later is of the same revision.
    ///
    /// # Errors
    /// [`OpenError`] where etcd can't be asked, or holds what can't be read.
    pub fn open(settings: Settings) -> Result<Reader, OpenError> {
        let (runtime, cluster, keys) = begin(settings)?;
        let head = runtime.block_on(head(&cluster, &keys))?;
        let found = head.marker.0.as_ref().map(|value| {
            let marker = value.marker();
            Found {
                clean: marker.clean,
                settle_after: marker.settle_after,
            }
        });
        let view = View {
            owner: head.owner,
            found,
            cluster: shown_cluster(head.origin.cluster),
            made_in: head.identity.0.map(|identity| identity.cluster),
            revision: head.origin.revision,
        };
        Ok(Reader {
            runtime,
            cluster,
            keys,
            view,
        })
    }

    /// What was found.
    #[must_use]
    pub fn view(&self) -> &View {
        &self.view
    }

    /// Up to `limit` marks whose names start with `prefix` and come after `after`, in the order of their bytes.
    ///
    /// # Errors
    /// [`OpenError`] where etcd can't be asked, holds what can't be read, or has compacted the revision away meanwhile.
    pub fn scan(
        &self,
        prefix: &str,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Vec<(String, Mark)>, OpenError> {
        let revision = self.view.revision;
        self.runtime
            .block_on(scan(&self.cluster, &self.keys, (prefix, after), limit, revision))
            .map_err(Unread::opened)
    }

    /// The latest `limit` resets, the newest first.
    ///
    /// # Errors
    /// Like [`Reader::scan`].
    pub fn audit_trail(&self, limit: usize) -> Result<Vec<AuditEntry>, OpenError> {
        self.runtime
            .block_on(audit_trail(&self.cluster, &self.keys, limit, self.view.revision))
            .map_err(Unread::opened)
    }
}

impl std::fmt::Debug for Reader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Reader")
            .field("view", &self.view)
            .finish_non_exhaustive()
    }
}

impl Unread {
    fn opened(self) -> OpenError {
        match self {
            Unread::Failure(failure) => OpenError::Failed(failure.to_string()),
            Unread::Fatal(error) => error,
        }
    }
}

/// An operator's word that the marks below the prefix count, although they may be older than what was acknowledged: the
/// prefix belongs to the cluster that answers from now on, and instances that wait for it go on. The next owner waits
/// as after an unclean stop.
///
/// # Errors
/// [`OpenError`]: an owner is active, the prefix was never used, or etcd can't be asked.
pub fn adopt(settings: Settings, reason: &str, by: &str) -> Result<Adopted, OpenError> {
    let settle_after = settings.settle_after;
    let (runtime, cluster, keys) = begin(settings)?;
    runtime.block_on(async {
        let found = head(&cluster, &keys).await?;
        if let Some(owner) = &found.owner {
            let what =
                format!("{owner} owns the prefix; adopt it once that instance is stopped or has given it up");
            return Err(OpenError::Failed(what));
        }
        let (Some(marker), at) = &found.marker else {
            return Err(OpenError::Failed(format!(
                "there is no marker at {:?}: the prefix was never used, and there is nothing to adopt",
                keys.marker()
            )));
        };
        let now = wall_ms();
        let origin = found.origin;
        let (identity, identity_at) = found.identity;
        let from = identity.as_ref().map(|identity| identity.cluster.clone());
        let adopted = match identity {
            Some(identity) => identity.adopted(origin.cluster, now),
            None => IdentityValue::new(origin.cluster, now),
        };
        let dirty = Marker {
            clean: false,
            settle_after: marker.marker().settle_after.max(settle_after),
        };
        let record = keys.audit(next_audit(&cluster, &keys).await.map_err(failed)?);
        let transaction = Txn::new()
            .when([
                Compare::create_revision(keys.owner(), CompareOp::Equal, 0),
                Compare::mod_revision(keys.marker(), CompareOp::Equal, *at),
                Compare::mod_revision(keys.identity(), CompareOp::Equal, identity_at),
                Compare::create_revision(record.clone(), CompareOp::Equal, 0),
            ])
            .and_then([
                TxnOp::put(keys.identity(), values::json(&adopted), None),
                TxnOp::put(
                    keys.marker(),
                    values::json(&MarkerValue::new(dirty, &adopted.adoption, now)),
                    None,
                ),
                TxnOp::put(record, values::write_adoption(reason, by, now), None),
            ])
            .or_else([TxnOp::get(keys.identity(), None)]);
        let answer = cluster
            .ask(async |mut client| client.txn(transaction.clone()).await)
            .await
            .map_err(failed)?;
        let stands = gets(&answer)
            .into_iter()
            .next()
            .and_then(|mut get| get.take_kvs().into_iter().next());
        let stands = stands.and_then(|kv| values::read::<IdentityValue>(kv.value()).ok());
        // One without an answer was asked again: then its own words stand there.
        if !answer.succeeded() && stands.as_ref() != Some(&adopted) {
            let what = "the prefix has changed meanwhile: look at it again".to_owned();
            return Err(OpenError::Failed(what));
        }
        let revision = super::cluster::Answer::origin(&answer).map_err(failed)?.revision;
        Ok(Adopted {
            cluster: adopted.cluster,
            from,
            revision,
        })
    })
}

fn begin(settings: Settings) -> Result<(Runtime, Cluster, Keys), OpenError> {
    settings.check()?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| OpenError::Failed(format!("the client of etcd can't be started: {error}")))?;
    let keys = Keys::below(&settings.prefix);
    Ok((runtime, Cluster::new(settings), keys))
}

async fn head(cluster: &Cluster, keys: &Keys) -> Result<Head, OpenError> {
    let read =
        Txn::new().and_then([keys.owner(), keys.marker(), keys.identity()].map(|key| TxnOp::get(key, None)));
    let answer = cluster
        .ask(async |mut client| client.txn(read.clone()).await)
        .await
        .map_err(failed)?;
    let origin = super::cluster::Answer::origin(&answer).map_err(failed)?;
    let mut found = gets(&answer)
        .into_iter()
        .map(|mut get| get.take_kvs().into_iter().next());
    let mut next = || found.next().flatten();
    let (owner, marker, identity) = (next(), next(), next());
    let who = |kv: etcd_client::KeyValue| {
        values::read::<OwnerValue>(kv.value())
            .map_or_else(|_| "another version".to_owned(), |owner| owner.who)
    };
    Ok(Head {
        origin,
        owner: owner.map(who),
        marker: value_of(marker)?,
        identity: value_of(identity)?,
    })
}

fn value_of<T: serde::de::DeserializeOwned>(
    kv: Option<etcd_client::KeyValue>,
) -> Result<(Option<T>, i64), OpenError> {
    let Some(kv) = kv else { return Ok((None, 0)) };
    let value = values::read(kv.value()).map_err(|flaw| OpenError::of(kv.key(), flaw))?;
    Ok((Some(value), kv.mod_revision()))
}

fn failed(failure: super::failure::Failure) -> OpenError {
    OpenError::Failed(failure.to_string())
}
