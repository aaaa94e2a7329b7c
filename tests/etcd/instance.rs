//! One instance's agent, with what it says.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use fencegate::base::{Token, TokenFormat};
use fencegate::ledger::etcd::{Agent, EtcdLedger, Event, Settings};
use fencegate::ledger::{Audit, Change, Found, Ledger, Mark, StoreError};
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::sync::mpsc::error::TryRecvError;

use super::{PATIENCE, wait_for};

pub const PREFIX: &str = "/fencegate/test/";
pub const SETTLE: Duration = Duration::from_secs(7);

/// With a lease that outlives whatever else the machine has to do: no tenure ends by itself.
pub fn settings(endpoints: Vec<String>) -> Settings {
    Settings {
        endpoints,
        prefix: PREFIX.to_owned(),
        owner_ttl: Duration::from_secs(30),
        login: None,
        tls: None,
        settle_after: SETTLE,
        instance: "an instance".to_owned(),
    }
}

/// With a lease that runs out soon, where that is to be seen.
pub fn brief(endpoints: Vec<String>) -> Settings {
    Settings {
        owner_ttl: Duration::from_secs(3),
        ..settings(endpoints)
    }
}

pub struct Instance {
    pub agent: Agent,
    events: UnboundedReceiver<Event>,
    pub commits: Arc<AtomicUsize>,
}

/// A tenure that has begun.
pub struct Owner {
    pub ledger: Arc<EtcdLedger>,
    pub marks: BTreeMap<String, u128>,
    pub found: Found,
    pub answered_at: Instant,
}

impl Instance {
    pub fn start(settings: Settings) -> Instance {
        // Shown with RUST_LOG set.
        let _set_already = tracing_subscriber::fmt()
            .with_env_filter(tracing_subscriber::EnvFilter::from_default_env())
            .try_init();
        let (tell, events) = tokio::sync::mpsc::unbounded_channel();
        let commits = Arc::new(AtomicUsize::new(0));
        let count = commits.clone();
        let on_commit = Arc::new(move |_| {
            count.fetch_add(1, Ordering::SeqCst);
        });
        Instance {
            agent: Agent::start(settings, on_commit, tell).unwrap(),
            events,
            commits,
        }
    }

    /// An instance that has come to own the prefix.
    #[track_caller]
    pub fn owning(settings: Settings) -> (Instance, Owner) {
        let mut instance = Instance::start(settings);
        let owner = instance.elected();
        (instance, owner)
    }

    /// The next event; `None` once none follows.
    #[track_caller]
    pub fn next(&mut self) -> Option<Event> {
        wait_for("an event", || match self.events.try_recv() {
            Ok(event) => Some(Some(event)),
            Err(TryRecvError::Disconnected) => Some(None),
            Err(TryRecvError::Empty) => None,
        })
    }

    /// An event, if one is there.
    pub fn now(&mut self) -> Option<Event> {
        self.events.try_recv().ok()
    }

    /// Whether nothing has happened.
    pub fn is_quiet(&mut self) -> bool {
        self.events.is_empty()
    }

    #[track_caller]
    pub fn elected(&mut self) -> Owner {
        match self.next() {
            Some(Event::Elected {
                ledger,
                marks,
                found,
                answered_at,
            }) => Owner {
                ledger,
                marks: marks
                    .into_iter()
                    .map(|(name, mark)| (name, mark.token.0))
                    .collect(),
                found,
                answered_at,
            },
            other => panic!("{} instead of an election", shown(other.as_ref())),
        }
    }

    /// The tenure's end; a lapse may come before it.
    #[track_caller]
    pub fn ended(&mut self) -> String {
        loop {
            match self.next() {
                Some(Event::Ended(reason)) => return reason,
                Some(Event::Lapsed | Event::Regained) => {}
                other => panic!("{} instead of an end", shown(other.as_ref())),
            }
        }
    }

    #[track_caller]
    pub fn ended_or_lapsed(&mut self) {
        match self.next() {
            Some(Event::Ended(_) | Event::Lapsed) => {}
            other => panic!("{} instead of a lapse", shown(other.as_ref())),
        }
    }

    #[track_caller]
    pub fn fatal(&mut self) -> String {
        match self.next() {
            Some(Event::Fatal(error)) => error.to_string(),
            other => panic!("{} instead of a fatal error", shown(other.as_ref())),
        }
    }
}

pub fn shown(event: Option<&Event>) -> String {
    match event {
        Some(Event::Elected { .. }) => "elected".to_owned(),
        Some(Event::Lapsed) => "lapsed".to_owned(),
        Some(Event::Regained) => "regained".to_owned(),
        Some(Event::Ended(reason)) => format!("ended ({reason})"),
        Some(Event::Fatal(error)) => format!("fatal ({error})"),
        None => "the end of all".to_owned(),
    }
}

impl Owner {
    pub fn submit(&self, change: Change) -> Receiver<Result<(), StoreError>> {
        let (tell, told) = channel();
        self.ledger
            .submit(change, Box::new(move |result| drop(tell.send(result))));
        told
    }

    #[track_caller]
    pub fn make(&self, change: Change) -> Result<(), StoreError> {
        self.submit(change).recv_timeout(PATIENCE).unwrap()
    }

    /// All at once, and each again until it is taken.
    #[track_caller]
    pub fn insist_on_all(&self, changes: impl Iterator<Item = Change>) {
        let mut left: Vec<Change> = changes.collect();
        while !left.is_empty() {
            let answers: Vec<_> = left
                .into_iter()
                .map(|change| (self.submit(change.clone()), change))
                .collect();
            let failed = answers
                .into_iter()
                .filter(|(answer, _)| answer.recv_timeout(PATIENCE).unwrap().is_err());
            left = failed.map(|(_, change)| change).collect();
        }
    }

    /// As the keeper does: again until it is taken.
    #[track_caller]
    pub fn insist(&self, change: &Change) {
        let started = Instant::now();
        while let Err(error) = self.make(change.clone()) {
            assert!(
                started.elapsed() < PATIENCE,
                "{change:?} was never taken: {error}"
            );
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

pub fn mark(token: u128) -> Mark {
    Mark {
        token: Token(token),
        format: TokenFormat::Integer,
        raised_at_ms: 1_700_000_000_000,
    }
}

pub fn raise(name: &str, token: u128) -> Change {
    Change::Raise {
        name: name.into(),
        mark: mark(token),
    }
}

pub fn reset(name: &str, token: u128, reason: &str) -> Change {
    Change::Reset {
        name: name.into(),
        mark: mark(token),
        audit: Audit {
            from: "99".into(),
            reason: reason.into(),
            by: "127.0.0.1".into(),
        },
    }
}
