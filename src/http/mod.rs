//! The HTTP gate: our own relay, one task for both sockets of a request. What comes by HTTP/2 is made HTTP/1.1 of in
//! `h2/`, and goes the same way.
//!
//! A request is one line down and one up, in [`client::Client::handle`]: match the rule → read the tokens →
//! [`Keeper::quick`](crate::keeper::Keeper::quick) or [`Keeper::admit`](crate::keeper::Keeper::admit) (compare, drain, make durable) → send,
//! holding back the last piece → [`Flight::commit`](crate::keeper::Flight::commit) → answer → settle.

mod answer;
mod client;
mod exchange;
mod h2;
mod request;
mod welcome;

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use prometheus_client::metrics::counter::Counter;
use tokio::net::TcpStream;
use tokio::sync::Notify;

pub use self::answer::{Answer, Applied};
pub use self::client::Peer;
use self::client::{Client, End, First};
use crate::base::{Buf, Idle, Spare};
use crate::config::{CommitPoint, HttpListener};
use crate::keeper::{Room, Seat};
use crate::net::Duplex;
use crate::observe::{Decisions, Metrics};
use crate::rules::{Mode, Rule};
use crate::upstream::{Backend, Pool, Slots};

/// One listener's gate: what all its connections share.
#[derive(Debug)]
pub struct Gate {
    seat: Arc<Seat>,
    metrics: Arc<Metrics>,
    listener: HttpListener,
    room: Room,
    slots: Arc<Slots>,
    /// The counters of each rule, by its index.
    by_rule: Vec<Decisions>,
    unmatched: Decisions,
    handshake_failures: Counter,
    /// Set once: requests that have begun are finished, and connections are not kept.
    closing: AtomicBool,
    /// Told when it is set.
    told: Notify,
}

impl Gate {
    /// The gate of a listener.
    #[must_use]
    pub fn new(listener: HttpListener, seat: Arc<Seat>, metrics: Arc<Metrics>) -> Arc<Gate> {
        let decisions = |rule: &str, mode: Mode| metrics.decisions(&listener.name, rule, mode.as_str());
        Arc::new(Gate {
            room: Room::new(listener.limits.max_waiting),
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
    pub fn listener(&self) -> &HttpListener {
        &self.listener
    }

    /// From now on connections are closed after the request that they are at.
    pub fn close(&self) {
        self.closing.store(true, Ordering::SeqCst);
        self.told.notify_waiters();
    }

    /// Waits for [`Gate::close`].
    async fn closed(&self) {
        let told = self.told.notified();
        if !self.is_closing() {
            told.await;
        }
    }

    fn is_closing(&self) -> bool {
        self.closing.load(Ordering::SeqCst)
    }

    fn decisions(&self, rule: Option<&Rule>) -> &Decisions {
        rule.map_or(&self.unmatched, |rule| &self.by_rule[rule.index])
    }

    fn commits_at_first_byte(&self) -> bool {
        self.listener.commit_point == CommitPoint::FirstByte
    }
}

/// What one core keeps for one gate: idle upstream connections, spare buffers.
#[derive(Debug)]
pub struct Core {
    pool: Pool,
    spare: Spare,
}

impl Core {
    /// A core's part of `gate`.
    #[must_use]
    pub fn new(gate: &Gate) -> Arc<Core> {
        let upstream = &gate.listener.upstream;
        Arc::new(Core {
            pool: Pool::new(Backend::of(upstream), Arc::clone(&gate.slots)),
            spare: Spare::default(),
        })
    }

    /// Closes what has been idle for too long. Called about once a second.
    pub fn sweep(&self) {
        self.pool.sweep();
    }

    /// Closes all idle connections.
    pub fn close(&self) {
        self.pool.close();
    }

    /// Resets all idle connections: this instance has ceased to be the owner.
    pub fn reset(&self) {
        self.pool.reset();
    }

    /// Room for a connection that has something to read.
    fn lend(&self, buf: &mut Buf) {
        self.spare.lend(buf);
    }

    /// An idle connection holds no room.
    fn take_back(&self, buf: &mut Buf) {
        self.spare.take_back(buf);
    }
}

/// Serves one client connection until it ends.
pub async fn serve(
    gate: Arc<Gate>,
    core: Arc<Core>,
    socket: TcpStream,
    address: SocketAddr,
    idle: Arc<Idle>,
) {
    let Some((stream, mut peer)) = welcome::welcome(&gate, socket, address, &idle).await else {
        return;
    };
    let client = Client::new(&gate, &core, stream, &peer, &idle);
    if let End::SpeaksHttp2 { stream, inbox } = client.serve(First::Awaited).await {
        peer.version = "2.0";
        h2::serve(gate, core, Duplex::new(stream, inbox), Arc::new(peer)).await;
    }
}
