//! The start's first step: the configured store, and who sits on the seat of the keeper because of it.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

use super::Failure;
use crate::config::{Config, EtcdStore, Store};
use crate::keeper::{Keeper, Marks, Seat};
use crate::ledger::etcd::{Agent, Event, Login, Settings, Tls};
use crate::ledger::file::FileLedger;
use crate::ledger::memory::MemoryLedger;
use crate::ledger::{Found, Ledger};
use crate::observe::Metrics;
use crate::observe::events::Role;
use crate::owner::{Marker, take_over};
use crate::rules::{Kinds, Misfits};

/// A store that is open.
pub struct Opened {
    /// With the keeper of this process's own store; else vacant until this instance is the owner.
    pub seat: Arc<Seat>,
    /// What watches over the ownership of a store that is shared, and what it tells.
    pub shared: Option<(Arc<Agent>, UnboundedReceiver<Event>)>,
}

/// What tokens the rules read.
pub fn kinds(config: &Config) -> Kinds {
    Kinds::of(config.fences())
}

/// How long raises wait, by what the earlier run has left (S10).
pub fn hold_of(found: Found, settle_after: Duration) -> Duration {
    let marker = Marker {
        clean: found.clean,
        settle_after: found.settle_after,
    };
    take_over(Some(marker), settle_after).hold
}

/// Opens it.
///
/// # Errors
/// It is damaged, taken, or holds what the rules can't be compared with. An etcd that can't be reached is none.
pub fn open(config: &Config, metrics: &Arc<Metrics>) -> Result<Opened, Failure> {
    let settle_after = config.settle_after_max();
    let (marks, ledger, found) = match &config.store {
        Store::Etcd(store) => return share(store, settle_after, metrics),
        Store::File { path } => open_file(path, &kinds(config), settle_after, metrics)?,
        Store::Memory => {
            let (clean, settle_after) = (true, Duration::ZERO);
            let ledger: Arc<dyn Ledger> = Arc::new(MemoryLedger::new());
            (Marks::default(), ledger, Found { clean, settle_after })
        }
    };
    let hold = hold_of(found, settle_after);
    if !hold.is_zero() {
        tracing::warn!(
            ?hold,
            "the earlier run did not stop cleanly: raises wait until what it had sent has settled"
        );
    }
    let keeper = Keeper::new(marks, ledger, Arc::clone(metrics), hold);
    metrics
        .events
        .ownership(Role::Active, "the store is this instance's own");
    Ok(Opened {
        seat: Seat::new(keeper),
        shared: None,
    })
}

fn open_file(
    path: &Path,
    kinds: &Kinds,
    settle_after: Duration,
    metrics: &Arc<Metrics>,
) -> Result<(Marks, Arc<dyn Ledger>, Found), Failure> {
    let is_new = !path.join("marks").exists();
    let metrics = Arc::clone(metrics);
    let on_commit = Arc::new(move |took| metrics.commit_seconds.observe(took));
    let (mut marks, mut misfits) = (Marks::default(), Misfits::default());
    let (ledger, found) = FileLedger::open(path, settle_after, on_commit, &mut |name, mark| {
        misfits.look(kinds, name, mark.format);
        marks.load(name, mark.token)
    })?;
    if let Some(complaint) = misfits.complaint() {
        // Nothing was sent: what the earlier run left stays as it was.
        ledger.close(found.clean)?;
        return Err(Failure::OtherKinds(complaint));
    }
    let folder = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    if is_new {
        tracing::warn!(folder = %folder.display(), "a new, empty store: right only where this backend was never fenced before");
    } else {
        tracing::info!(folder = %folder.display(), "marks are read");
    }
    Ok((marks, Arc::new(ledger), found))
}

fn share(store: &EtcdStore, settle_after: Duration, metrics: &Arc<Metrics>) -> Result<Opened, Failure> {
    let of_commits = Arc::clone(metrics);
    let on_commit = Arc::new(move |took| of_commits.commit_seconds.observe(took));
    let (tell, events) = unbounded_channel();
    metrics
        .events
        .ownership(Role::Standby, "it has not owned the store yet");
    metrics.owner.show();
    let agent = Agent::start(settings(store, settle_after), on_commit, tell)?;
    Ok(Opened {
        seat: Seat::new(Keeper::vacant(Arc::clone(metrics))),
        shared: Some((Arc::new(agent), events)),
    })
}

/// The settings of the ledger, as they are configured.
pub fn settings(store: &EtcdStore, settle_after: Duration) -> Settings {
    let EtcdStore {
        endpoints,
        prefix,
        owner_ttl,
        user,
        tls,
    } = store;
    let secure = endpoints.iter().any(|endpoint| endpoint.starts_with("https://"));
    Settings {
        endpoints: endpoints.clone(),
        prefix: prefix.clone(),
        owner_ttl: *owner_ttl,
        login: user.as_ref().map(|user| Login {
            username: user.name.clone(),
            password: user.password.clone(),
        }),
        tls: secure.then(|| Tls {
            ca_file: tls.ca_file.clone(),
            pair: tls.pair.clone(),
            server_name: tls.server_name.clone(),
        }),
        settle_after,
        instance: instance(),
    }
}

/// Who this is, for people who look at the owner's key.
fn instance() -> String {
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    format!("{} pid {}", host.trim(), std::process::id())
}
