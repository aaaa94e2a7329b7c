//! The store in etcd, for the command line: looked at without owning it, filled as its owner, adopted. Called by
//! `seat.rs` and `store.rs`.

use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

use super::plan::{Plan, marker};
use super::seat::Held;
use crate::cli::failed::Failed;
use crate::ledger::etcd::{
    self, Agent, EtcdLedger, Event, NAME_BYTES_MAX, OpenError, Reader, Settings, View,
};
use crate::ledger::{Change, Contents, Found, Ledger, StoreError};

/// A prefix in etcd.
pub(super) struct Shared {
    settings: Settings,
}

impl Shared {
    pub(super) fn new(settings: Settings) -> Shared {
        Shared { settings }
    }

    pub(super) fn place(&self) -> String {
        format!(
            "{} at {}",
            self.settings.prefix,
            self.settings.endpoints.join(", ")
        )
    }

    pub(super) fn absent(&self) -> Failed {
        Failed::now(format!(
            "{}: no store was ever made here; look at store.prefix",
            self.place()
        ))
    }

    /// What stands there, at one revision; `None` where the prefix was never used.
    pub(super) fn look(&self) -> Result<Option<Held>, Failed> {
        let reader = Reader::open(self.settings.clone()).map_err(|error| not_read(&error))?;
        let View {
            owner,
            found,
            cluster,
            made_in,
            revision,
        } = reader.view().clone();
        let Some(found) = found else { return Ok(None) };
        let marks = reader
            .scan("", None, usize::MAX)
            .map_err(|error| not_read(&error))?;
        let mut resets = reader.audit_trail(usize::MAX).map_err(|error| not_read(&error))?;
        resets.reverse();
        let contents = Contents {
            marks: marks.into_iter().collect(),
            resets,
            found,
        };
        let mut more = vec![
            ("owner", owner.clone().unwrap_or_else(|| "none".into())),
            ("cluster", cluster.clone()),
        ];
        if let Some(made_in) = made_in.filter(|made_in| *made_in != cluster) {
            more.push(("made_in", made_in));
        }
        more.push(("revision", revision.to_string()));
        Ok(Some(Held {
            contents,
            format: FORMAT,
            more,
            owner,
        }))
    }

    /// Takes the ownership like an instance, so that none runs meanwhile, and gives it up at the end.
    pub(super) fn take_in(
        &self,
        offered: Found,
        plan: impl FnOnce(&Contents) -> Result<Plan, Failed>,
    ) -> Result<Plan, Failed> {
        let reader = Reader::open(self.settings.clone()).map_err(|error| not_read(&error))?;
        if let Some(owner) = &reader.view().owner {
            return Err(owned(owner));
        }
        let found = reader.view().found.unwrap_or(Contents::default().found);
        drop(reader);
        // What stands beside the marker from the first moment on, also if this ends in the middle.
        let settings = Settings {
            settle_after: marker(found, offered).settle_after,
            instance: format!("fencegate store import, {}", self.settings.instance),
            ..self.settings.clone()
        };
        let (tell, events) = unbounded_channel();
        let agent = Agent::start(settings, Arc::new(|_| ()), tell).map_err(|error| not_read(&error))?;
        let done = elected(&agent, events).and_then(|(ledger, contents)| fill(&ledger, &contents, plan));
        agent.stop();
        done
    }

    pub(super) fn adopt(&self, reason: &str) -> Result<String, Failed> {
        let by = &self.settings.instance;
        let adopted = etcd::adopt(self.settings.clone(), reason, by).map_err(|error| not_read(&error))?;
        let from = adopted
            .from
            .map_or_else(String::new, |from| format!(" (before: {from})"));
        Ok(format!(
            "{}: belongs to the cluster {}{from}, from revision {} on; the next owner waits as after an unclean stop",
            self.place(),
            adopted.cluster,
            adopted.revision
        ))
    }
}

/// Waits until this process owns the prefix, and reads what it holds.
fn elected(
    agent: &Agent,
    mut events: UnboundedReceiver<Event>,
) -> Result<(Arc<EtcdLedger>, Contents), Failed> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| Failed::now(format!("the system gives no runtime: {error}")))?;
    let event = runtime.block_on(async { tokio::time::timeout(ELECTION_PATIENCE, events.recv()).await });
    let (ledger, marks, found) = match event {
        Ok(Some(Event::Elected {
            ledger, marks, found, ..
        })) => (ledger, marks, found),
        Ok(Some(Event::Fatal(error))) => return Err(not_read(&error)),
        Ok(Some(Event::Ended(why))) => return Err(Failed::now(format!("nothing was changed: {why}"))),
        Ok(Some(Event::Lapsed | Event::Regained) | None) | Err(_) => return Err(not_elected(agent)),
    };
    let mut resets = ledger
        .audit_trail(usize::MAX)
        .map_err(|error| Failed::now(error.to_string()))?;
    resets.reverse();
    let contents = Contents {
        marks: marks.into_iter().collect(),
        resets,
        found,
    };
    Ok((ledger, contents))
}

fn not_elected(agent: &Agent) -> Failed {
    let status = agent.status();
    let why = status.history.or(status.unreachable);
    match (why, status.owner) {
        (Some(why), _) => Failed::now(format!("nothing was changed: {why}")),
        (None, Some(owner)) => owned(&owner),
        (None, None) => Failed::now("nothing was changed: etcd does not let this process own the prefix"),
    }
}

fn fill(
    ledger: &EtcdLedger,
    held: &Contents,
    plan: impl FnOnce(&Contents) -> Result<Plan, Failed>,
) -> Result<Plan, Failed> {
    let plan = plan(held).and_then(|plan| check_names(&plan).map(|()| plan));
    let plan = match plan {
        Ok(plan) => plan,
        Err(failed) => {
            // Nothing was written: it is left as clean as it was found.
            return match ledger.close(held.found.clean) {
                Ok(()) => Err(failed),
                Err(error) => Err(failed.and(&format!("the ownership could not be given up: {error}"))),
            };
        }
    };
    if let Err((lost, error)) = write(ledger, &plan.changes) {
        let _said_already = ledger.close(false);
        return Err(Failed::now(format!(
            "{lost} of {} changes were not taken in: {error}; start no gate before all are: import them again",
            plan.changes.len()
        )));
    }
    ledger.close(plan.marker.clean).map_err(|error| {
        Failed::now(format!(
            "all marks were taken in, but the ownership could not be given up in order, so the next start waits: {error}"
        ))
    })?;
    Ok(plan)
}

fn check_names(plan: &Plan) -> Result<(), Failed> {
    let name = |change: &Change| match change {
        Change::Raise { name, .. } | Change::Reset { name, .. } | Change::Note { name, .. } => name.len(),
    };
    match plan.changes.iter().map(name).max() {
        Some(longest) if longest > NAME_BYTES_MAX => Err(Failed::now(format!(
            "nothing was changed: a resource's name has {longest} bytes, and etcd takes {NAME_BYTES_MAX} at most"
        ))),
        Some(_) | None => Ok(()),
    }
}

/// All changes. Marks that etcd had no answer for are raised again for a while, as the gate does. What adds to the audit
/// trail is not: it has no mark that would show whether it had landed, and a second import looks.
fn write(ledger: &EtcdLedger, changes: &[Change]) -> Result<(), (usize, StoreError)> {
    let is_note = |change: &Change| matches!(change, Change::Note { .. });
    let (notes, mut marks): (Vec<Change>, Vec<Change>) = changes.iter().cloned().partition(is_note);
    let deadline = Instant::now() + WRITE_PATIENCE;
    while let Err((lost, error)) = submitted(ledger, &marks) {
        if ledger.over().is_some() || Instant::now() > deadline {
            return Err((lost.len() + notes.len(), error));
        }
        std::thread::sleep(WRITE_PAUSE);
        marks = lost;
    }
    submitted(ledger, &notes).map_err(|(lost, error)| (lost.len(), error))
}

/// Submits them, so many at once, and waits. Gives those back that may not have landed.
fn submitted(ledger: &EtcdLedger, changes: &[Change]) -> Result<(), (Vec<Change>, StoreError)> {
    let (mut lost, mut why) = (Vec::new(), None);
    for part in changes.chunks(AT_ONCE) {
        let answers = part.iter().map(|change| {
            let (told, answer) = channel();
            // The receiver waits below until it is told.
            ledger.submit(change.clone(), Box::new(move |result| drop(told.send(result))));
            (change, answer)
        });
        for (change, answer) in answers.collect::<Vec<_>>() {
            if let Err(error) = answer.recv().unwrap_or(Err(StoreError::Closed)) {
                lost.push(change.clone());
                why = Some(error);
            }
        }
    }
    why.map_or(Ok(()), |error| Err((lost, error)))
}

fn owned(owner: &str) -> Failed {
    Failed::now(format!(
        "nothing was changed: {owner} owns the prefix; stop every instance, or, where it has vanished, wait until its \
         lease has run out (owner_ttl)"
    ))
}

fn not_read(error: &OpenError) -> Failed {
    match error {
        OpenError::Settings(_) => Failed::wrong(error.to_string()),
        other => Failed::now(other.to_string()),
    }
}

/// The format of the keys and values.
const FORMAT: u32 = 1;
/// Nobody owns it: a fraction of a second is usual, and reading many marks takes some.
const ELECTION_PATIENCE: Duration = Duration::from_secs(60);
const WRITE_PATIENCE: Duration = Duration::from_secs(30);
const WRITE_PAUSE: Duration = Duration::from_millis(200);
/// So many wait at once: enough for full transactions, little enough to be counted.
const AT_ONCE: usize = 4096;
