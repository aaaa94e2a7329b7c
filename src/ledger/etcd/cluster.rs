//! The members of etcd, each with a client of its own, asked one after the other until one answers in time.
//!
//! The client's own balancing over several endpoints is not used: a member that hangs would keep its share of the
//! questions. And nothing that another history says gets through here. Every question may be asked of several members:
//! whoever writes must compare something that its own success changes.
//! Called by everything here that talks to etcd.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use etcd_client::{Client, ConnectOptions, GetResponse, LeaseGrantResponse, ResponseHeader, TxnResponse};
use parking_lot::Mutex;

use super::failure::Failure;
use super::history::{History, Origin};
use super::settings::{DEADLINE, Settings};

/// All members.
pub(super) struct Cluster {
    settings: Settings,
    members: Vec<Member>,
    /// The member that answered last.
    preferred: AtomicUsize,
    pub(super) history: Mutex<History>,
    /// Why the last question had no answer, if it had none.
    trouble: Mutex<Option<String>>,
}

struct Member {
    endpoint: String,
    client: Mutex<Option<Client>>,
    /// Whether it has been said that it has another history.
    foreign: Mutex<bool>,
}

/// An answer that says where it comes from.
pub(super) trait Answer {
    fn header(&self) -> Option<&ResponseHeader>;

    fn origin(&self) -> Result<Origin, Failure> {
        let header = self
            .header()
            .ok_or_else(|| Failure::Away("an answer without a header".to_owned()))?;
        Ok(Origin {
            cluster: header.cluster_id(),
            revision: header.revision(),
        })
    }
}

impl Answer for TxnResponse {
    fn header(&self) -> Option<&ResponseHeader> {
        TxnResponse::header(self)
    }
}

impl Answer for GetResponse {
    fn header(&self) -> Option<&ResponseHeader> {
        GetResponse::header(self)
    }
}

impl Answer for LeaseGrantResponse {
    fn header(&self) -> Option<&ResponseHeader> {
        LeaseGrantResponse::header(self)
    }
}

impl Cluster {
    pub(super) fn new(settings: Settings) -> Cluster {
        let members = settings.endpoints.iter().map(|endpoint| Member {
            endpoint: endpoint.clone(),
            client: Mutex::new(None),
            foreign: Mutex::new(false),
        });
        Cluster {
            members: members.collect(),
            preferred: AtomicUsize::new(0),
            history: Mutex::default(),
            trouble: Mutex::new(None),
            settings,
        }
    }

    pub(super) fn settings(&self) -> &Settings {
        &self.settings
    }

    pub(super) fn trouble(&self) -> Option<String> {
        self.trouble.lock().clone()
    }

    /// The members in the order in which they are asked.
    pub(super) fn order(&self) -> impl Iterator<Item = usize> + use<> {
        let (first, count) = (self.preferred.load(Ordering::Relaxed), self.members.len());
        (0..count).map(move |n| (first + n) % count)
    }

    /// Asks one member after the other. What one said that is of another history is passed over.
    ///
    /// Only where all that answered have another history is that the failure.
    pub(super) async fn ask<T, F>(&self, question: F) -> Result<T, Failure>
    where
        T: Answer,
        F: AsyncFn(Client) -> Result<T, etcd_client::Error>,
    {
        let mut failure = None;
        for at in self.order() {
            let found = match self.ask_at(at, DEADLINE, &question).await {
                Ok(answer) => {
                    self.answered(at);
                    return Ok(answer);
                }
                Err(found) => found,
            };
            if found.is_of_the_cluster() {
                // An answer after all.
                self.answered(at);
                return Err(found);
            }
            failure = Some(match failure {
                Some(Failure::Away(what)) => Failure::Away(what),
                Some(_) | None => found,
            });
        }
        let failure = failure.expect("there is an endpoint: Settings::check");
        self.unanswered(&failure);
        Err(failure)
    }

    /// Asks one member, and takes its answer only if it is of the known history.
    pub(super) async fn ask_at<T, F>(&self, at: usize, deadline: Duration, question: F) -> Result<T, Failure>
    where
        T: Answer,
        F: AsyncFn(Client) -> Result<T, etcd_client::Error>,
    {
        let before = self.history.lock().latest();
        let answer = self.on(at, deadline, question).await?;
        let origin = answer.origin()?;
        match History::allows(before, origin) {
            Ok(()) => {
                self.history.lock().note(origin);
                *self.members[at].foreign.lock() = false;
                Ok(answer)
            }
            Err(why) => Err(self.is_foreign(at, why)),
        }
    }

    /// One question to one member, within the deadline, with one new login where the old one is over. What it answers
    /// may be of any history.
    pub(super) async fn on<T, F>(&self, at: usize, deadline: Duration, question: F) -> Result<T, Failure>
    where
        F: AsyncFn(Client) -> Result<T, etcd_client::Error>,
    {
        let answer = tokio::time::timeout(deadline, async {
            let client = self.client(at).await?;
            match question(client.clone())
                .await
                .map_err(|error| Failure::of(&error))
            {
                Err(Failure::LoginOver) => {
                    self.log_in(&client).await?;
                    question(client).await.map_err(|error| Failure::of(&error))
                }
                answer => answer,
            }
        });
        let answer = answer.await.unwrap_or_else(|_| {
            let what = format!(
                "{} did not answer within {:?}",
                self.members[at].endpoint, deadline
            );
            Err(Failure::Away(what))
        });
        match answer {
            // A connection on which an answer is still owed is of no use: begin with a new one.
            Err(Failure::Away(what)) => {
                self.members[at].client.lock().take();
                Err(Failure::Away(self.placed(at, &what)))
            }
            Err(Failure::LoginOver) => {
                self.members[at].client.lock().take();
                Err(Failure::Denied(match self.settings.login {
                    Some(_) => "it does not take the login that it has just given".to_owned(),
                    None => "it wants a user; set store.username and store.password_file".to_owned(),
                }))
            }
            answer => answer,
        }
    }

    fn placed(&self, at: usize, what: &str) -> String {
        let endpoint = &self.members[at].endpoint;
        if what.contains(endpoint.as_str()) {
            what.to_owned()
        } else {
            format!("{endpoint}: {what}")
        }
    }

    /// The client of a member. Connects with the first question, and logs in before it.
    async fn client(&self, at: usize) -> Result<Client, Failure> {
        let member = &self.members[at];
        if let Some(client) = &*member.client.lock() {
            return Ok(client.clone());
        }
        let mut options = ConnectOptions::new()
            .with_require_leader(true)
            .with_connect_timeout(DEADLINE);
        if member.endpoint.starts_with("https://") {
            let tls = self.settings.tls.clone().unwrap_or_default();
            options = options.with_tls(tls.options().map_err(Failure::Denied)?);
        }
        let client = Client::connect([&member.endpoint], Some(options))
            .await
            .map_err(|error| Failure::of(&error))?;
        self.log_in(&client).await?;
        *member.client.lock() = Some(client.clone());
        Ok(client)
    }

    /// All clones of a client share the login.
    async fn log_in(&self, client: &Client) -> Result<(), Failure> {
        let Some(login) = &self.settings.login else {
            return Ok(());
        };
        let password = login.password().map_err(Failure::Denied)?;
        let user = Some((login.username.clone(), password));
        match client.clone().update_user(user).await {
            Ok(()) => Ok(()),
            // As etcdctl does: who may do anything needs no login.
            Err(error) if error.to_string().contains("authentication is not enabled") => Ok(()),
            Err(error) => Err(Failure::of(&error)),
        }
    }

    fn is_foreign(&self, at: usize, why: String) -> Failure {
        let member = &self.members[at];
        if !std::mem::replace(&mut *member.foreign.lock(), true) {
            tracing::error!(
                endpoint = member.endpoint,
                "this member of etcd has another history than the known one and is left out: {why}"
            );
        }
        Failure::Foreign(self.placed(at, &why))
    }

    /// What is said of a member that has another history, for a poll that has found it.
    pub(super) fn doubts(&self, at: usize, why: &str) -> Failure {
        self.is_foreign(at, why.to_owned())
    }

    pub(super) fn answered(&self, at: usize) {
        self.preferred.store(at, Ordering::Relaxed);
        if self.trouble.lock().take().is_some() {
            tracing::info!(endpoint = self.members[at].endpoint, "etcd answers");
        }
    }

    pub(super) fn unanswered(&self, failure: &Failure) {
        // Once a spell, not once a try.
        let mut trouble = self.trouble.lock();
        if trouble.is_none() {
            tracing::warn!(%failure, "no member of etcd gives an answer that can be used");
        }
        *trouble = Some(failure.to_string());
    }
}
