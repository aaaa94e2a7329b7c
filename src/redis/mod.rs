//! The Redis gate: each client has a connection of its own to the server, opened with its first command, so that what
//! belongs to a connection (database, user, transaction, subscriptions) stays its own.
//!
//! A command is one line down and one up, in [`session::Session`]: find its keys in the server's own table → match the
//! rules → [`Keeper::quick`](crate::keeper::Keeper::quick) or [`Keeper::admit`](crate::keeper::Keeper::admit) → send,
//! committing each before the write that carries its last byte → its reply → settle. Commands and replies keep their
//! order; a refusal stands in its place among the replies.
//!
//! `asker.rs` is the gate's own connection to the server, `tables.rs` reads what it says of its commands, `found.rs` what
//! that makes of one, `answer.rs` turns refusals into RESP.

mod answer;
mod asker;
mod found;
mod session;
mod tables;

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use prometheus_client::metrics::counter::Counter;
use smallvec::SmallVec;
use tokio::net::TcpStream;
use tokio::sync::Notify;

pub use self::asker::{Asker, Unasked};
pub use self::found::{Described, Kind, describe};
use self::session::Session;
pub use self::session::taken;
use crate::base::{ClientCert, Idle, Token};
use crate::config::RedisListener;
use crate::keeper::{Room, Seat};
use crate::net::Stream;
use crate::observe::{Decision, Decisions, Metrics};
use crate::rules::Mode;
use crate::rules::redis::Notes;
use crate::upstream::{Amiss, Backend, Pool, Slots};

/// One listener's gate: what all its connections share.
#[derive(Debug)]
pub struct Gate {
    seat: Arc<Seat>,
    metrics: Arc<Metrics>,
    listener: RedisListener,
    room: Room,
    slots: Arc<Slots>,
    /// The counters of each rule, by its index.
    by_rule: Vec<Decisions>,
    unmatched: Decisions,
    handshake_failures: Counter,
    /// Set once: what has begun is finished, and connections are not kept.
    closing: AtomicBool,
    /// Told when it is set.
    told: Notify,
}

impl Gate {
    /// The gate of a listener.
    #[must_use]
    pub fn new(listener: RedisListener, seat: Arc<Seat>, metrics: Arc<Metrics>) -> Arc<Gate> {
        let decisions = |rule: &str, mode: Mode| metrics.decisions(&listener.name, rule, mode.as_str());
        Arc::new(Gate {
            room: Room::new(listener.max_waiting),
            slots: Slots::new(listener.upstream.max_connections),
            by_rule: listener
                .rules
                .rules
                .iter()
                .map(|rule| decisions(&rule.name, rule.mode))
                .collect(),
            unmatched: decisions("", Mode::Enforce),
            handshake_failures: metrics.tls.handshake_failures(&listener.name),
            closing: AtomicBool::new(false),
            told: Notify::new(),
            seat,
            metrics: Arc::clone(&metrics),
            listener,
        })
    }

    /// The checked configuration of this listener.
    #[must_use]
    pub fn listener(&self) -> &RedisListener {
        &self.listener
    }

    /// From now on connections are closed after what is under way on them.
    pub fn close(&self) {
        self.closing.store(true, Ordering::SeqCst);
        self.told.notify_waiters();
    }

    fn is_closing(&self) -> bool {
        self.closing.load(Ordering::SeqCst)
    }

    fn decisions(&self, rule: Option<usize>) -> &Decisions {
        rule.map_or(&self.unmatched, |rule| &self.by_rule[rule])
    }

    /// Counts commands that were admitted by a rule.
    fn count_admitted(&self, rule: usize, n: u64) {
        if n > 0 {
            self.decisions(Some(rule)).count_many(Decision::Admitted, n);
        }
    }

    /// Counts a command that goes through with nothing to compare.
    fn count_free(&self, notes: &Notes) {
        self.decisions(notes.rule).count(Decision::Passed);
        if notes.unmatched_write {
            self.unmatched.count_unfenced();
        }
    }

    /// Counts a command that is let through, by the rule of its first claim; and by each rule whose token it lacks.
    fn count_through(&self, claims: impl Iterator<Item = (usize, Option<Token>)> + Clone, raised: bool) {
        let has_token = claims.clone().any(|(_, token)| token.is_some());
        let decision = match (raised, has_token) {
            (true, _) => Decision::Raised,
            (false, true) => Decision::Admitted,
            (false, false) => Decision::Passed,
        };
        let first = claims.clone().next().map(|(rule, _)| rule);
        self.decisions(first).count(decision);
        let mut lacking = SmallVec::<[usize; 4]>::new();
        for (rule, _) in claims.filter(|(_, token)| token.is_none()) {
            if !lacking.contains(&rule) {
                lacking.push(rule);
                self.by_rule[rule].count_unfenced();
            }
        }
    }
}

/// Where a listener's server is.
fn backend(listener: &RedisListener) -> Backend {
    let upstream = &listener.upstream;
    Backend {
        target: upstream.target.clone(),
        tls: upstream.tls.clone(),
        connect_timeout: upstream.connect_timeout,
        settle_after: upstream.settle_after,
    }
}

/// Asks the server of a listener for a person, who is told sooner where it is busy.
#[must_use]
pub fn asker(listener: &RedisListener) -> Asker {
    let patience = listener.response_timeout.min(ASK_MAX);
    Asker::new(backend(listener), listener.credentials.clone(), patience)
}

/// Looks once whether the server is there and lets the gate ask what it has to.
///
/// # Errors
/// [`Amiss`].
pub async fn probe(listener: &RedisListener) -> Result<(), Amiss> {
    let asker = asker(listener);
    let asked = asker.table().await;
    asker.close();
    match asked {
        Ok(_) => Ok(()),
        Err(unasked) => Err(unasked.into_amiss(listener.upstream.tls.is_some())),
    }
}

/// What one core keeps for one gate.
#[derive(Debug)]
pub struct Core {
    pool: Pool,
    asker: Asker,
}

/// How long a person waits for the server's answer at most.
const ASK_MAX: Duration = Duration::from_secs(5);

impl Core {
    /// A core's part of `gate`.
    #[must_use]
    pub fn new(gate: &Gate) -> Arc<Core> {
        Arc::new(Core {
            pool: Pool::new(backend(&gate.listener), Arc::clone(&gate.slots)),
            // A server that is at another client's slow command answers later: a client that waits for the gate's own
            // question waits as long as it would for its own.
            asker: Asker::new(
                backend(&gate.listener),
                gate.listener.credentials.clone(),
                gate.listener.response_timeout,
            ),
        })
    }

    /// Closes what is open.
    pub fn close(&self) {
        self.asker.close();
    }
}

/// Who is at the other end.
#[derive(Clone, Debug)]
struct Peer {
    ip: IpAddr,
    cert: Option<ClientCert>,
}

/// How long a client's TLS handshake may take.
const HANDSHAKE_MAX: Duration = Duration::from_secs(10);

/// Serves one client connection until it ends.
pub async fn serve(
    gate: Arc<Gate>,
    core: Arc<Core>,
    socket: TcpStream,
    address: SocketAddr,
    idle: Arc<Idle>,
) {
    // A client may be silent for hours; one that has gone without a word must not stay.
    let _best_effort = socket2::SockRef::from(&socket).set_keepalive(true);
    let Some((stream, peer)) = welcome(&gate, socket, address, &idle).await else {
        return;
    };
    // What this keeper admits is its own; a session does not outlive its tenure by more than a refusal.
    let keeper = gate.seat.keeper();
    Session::new(&gate, &core, &keeper, stream, &peer, &idle)
        .serve()
        .await;
}

async fn welcome(gate: &Gate, socket: TcpStream, address: SocketAddr, idle: &Idle) -> Option<(Stream, Peer)> {
    let mut peer = Peer {
        ip: address.ip().to_canonical(),
        cert: None,
    };
    let Some(tls) = &gate.listener.tls else {
        return Some((Stream::tcp(socket), peer));
    };
    // Nothing has begun: a stop may end it at any moment.
    idle.rest();
    if gate.is_closing() {
        return None;
    }
    let opened = tokio::time::timeout(HANDSHAKE_MAX, tls.accept(socket)).await;
    if !idle.wake() {
        return None;
    }
    let why = match opened {
        Ok(Ok(stream)) => {
            peer.cert = stream.peer_names();
            return Some((stream, peer));
        }
        Ok(Err(error)) => error.to_string(),
        Err(_elapsed) => "it did not end in time".to_owned(),
    };
    gate.handshake_failures.inc();
    tracing::debug!(listener = &*gate.listener.name, peer = %address, why, "a client's TLS handshake failed");
    None
}
