//! The gate for any protocol over TCP: the session is what is admitted, and what is in flight until the backend has
//! closed its side.
//!
//! A session's way, in [`serve`]: read what stands in front of it (`opening.rs`) → its resources and tokens →
//! [`Keeper::quick`](crate::keeper::Keeper::quick) or [`Keeper::admit`](crate::keeper::Keeper::admit) (compare, drain,
//! make durable; `entry.rs`) → connect → relay (`session.rs`), asking the flight before each read and each write →
//! settle. Nobody is answered here: who is refused is reset, and the log says why.

mod entry;
mod opening;
mod session;

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use prometheus_client::metrics::counter::Counter;
use tokio::net::TcpStream;
use tokio::sync::Notify;

use self::entry::Entry;
use self::opening::Opening;
use crate::base::{Idle, Reason, Spare};
use crate::config::TcpListener;
use crate::keeper::{Room, Seat};
use crate::net::Stream;
use crate::observe::{Decisions, Metrics, events};
use crate::upstream::{Backend, Pool, Slots};

/// One listener's gate: what all its sessions share.
#[derive(Debug)]
pub struct Gate {
    seat: Arc<Seat>,
    metrics: Arc<Metrics>,
    listener: TcpListener,
    room: Room,
    slots: Arc<Slots>,
    decisions: Decisions,
    handshake_failures: Counter,
    closing: Closing,
}

/// Whether the process stops, and since when.
#[derive(Debug)]
struct Closing {
    born: Instant,
    /// Milliseconds after `born`, plus one; zero until then.
    since_ms: AtomicU64,
    told: Notify,
    /// How long sessions may go on by themselves, of the time that the whole stop has.
    patience: Duration,
}

impl Closing {
    fn begin(&self) {
        let ms = u64::try_from(self.born.elapsed().as_millis()).unwrap_or(u64::MAX - 1);
        // Release: whoever is woken by `told` sees it.
        self.since_ms.store(ms + 1, Ordering::Release);
        self.told.notify_waiters();
    }

    fn since(&self) -> Option<Instant> {
        match self.since_ms.load(Ordering::Acquire) {
            0 => None,
            ms => Some(self.born + Duration::from_millis(ms - 1)),
        }
    }
}

impl Gate {
    /// The gate of a listener. Of a stop's time, `shutdown_timeout`, half is for sessions to end by themselves.
    #[must_use]
    pub fn new(
        listener: TcpListener,
        seat: Arc<Seat>,
        metrics: Arc<Metrics>,
        shutdown_timeout: Duration,
    ) -> Arc<Gate> {
        Arc::new(Gate {
            room: Room::new(listener.limits.max_waiting),
            slots: Slots::new(listener.upstream.max_connections),
            decisions: metrics.decisions(&listener.name, &listener.rule.name, listener.rule.mode.as_str()),
            handshake_failures: metrics.tls.handshake_failures(&listener.name),
            closing: Closing {
                born: Instant::now(),
                since_ms: AtomicU64::new(0),
                told: Notify::new(),
                patience: shutdown_timeout / 2,
            },
            seat,
            metrics,
            listener,
        })
    }

    /// The checked configuration of this listener.
    #[must_use]
    pub fn listener(&self) -> &TcpListener {
        &self.listener
    }

    /// From now on no session begins; those that are under way end, each in order.
    pub fn close(&self) {
        self.closing.begin();
    }

    /// A session that does not reach the backend, or not any longer: counted, logged, and its client reset.
    fn refuse(&self, client: Option<Stream>, who: Who, refusal: &Refusal) {
        self.decisions.count_refused(refusal.reason, false);
        let (resource, token, highest) = refusal.shown();
        tracing::info!(
            listener = &*self.listener.name,
            rule = &*self.listener.rule.name,
            client = %who.client(),
            peer = who.via().map(tracing::field::display),
            reason = refusal.reason.as_str(),
            resource,
            token,
            highest,
            detail = %refusal.detail,
            "refused"
        );
        self.tell(who, refusal, false);
        if let Some(client) = client {
            client.reset();
        }
    }
}

impl Gate {
    /// For those who listen.
    fn tell(&self, who: Who, refusal: &Refusal, observed: bool) {
        let (resource, token, highest) = refusal.shown();
        self.metrics.events.refusal(events::Refusal {
            listener: &self.listener.name,
            rule: Some(&self.listener.rule.name),
            reason: refusal.reason,
            observed,
            status: None,
            resource,
            token,
            highest,
            client: who.client(),
            method: None,
            path: None,
        });
    }
}

/// Who is at the other end of a session.
#[derive(Clone, Copy, Debug)]
struct Who {
    /// The address that connects: this one is sure.
    peer: SocketAddr,
    /// The client's, as a PROXY header says.
    told: Option<SocketAddr>,
}

impl Who {
    fn peer(&self) -> IpAddr {
        self.peer.ip().to_canonical()
    }

    /// Whose session it is, for people.
    fn client(&self) -> IpAddr {
        self.told.map_or(self.peer(), |told| told.ip().to_canonical())
    }

    /// Who connects for the client, where that is somebody else.
    fn via(&self) -> Option<IpAddr> {
        Some(self.peer()).filter(|peer| *peer != self.client())
    }
}

/// Why a session does not go through, and what is known of it.
#[derive(Debug)]
struct Refusal {
    reason: Reason,
    detail: String,
    resource: Option<String>,
    token: Option<String>,
    highest: Option<String>,
}

impl Refusal {
    fn new(reason: Reason, detail: impl Into<String>) -> Refusal {
        Refusal {
            reason,
            detail: detail.into(),
            resource: None,
            token: None,
            highest: None,
        }
    }

    /// Resource, token and highest token, as far as they are known.
    fn shown(&self) -> (Option<&str>, Option<&str>, Option<&str>) {
        (
            self.resource.as_deref(),
            self.token.as_deref(),
            self.highest.as_deref(),
        )
    }
}

/// What one core keeps for one gate.
#[derive(Debug)]
pub struct Core {
    pool: Pool,
    spare: Spare,
}

impl Core {
    /// A core's part of `gate`.
    #[must_use]
    pub fn new(gate: &Gate) -> Arc<Core> {
        Arc::new(Core {
            pool: Pool::new(Backend::of(&gate.listener.upstream), Arc::clone(&gate.slots)),
            spare: Spare::default(),
        })
    }
}

/// Serves one client connection until it ends.
pub async fn serve(gate: Arc<Gate>, core: Arc<Core>, socket: TcpStream, peer: SocketAddr, idle: Arc<Idle>) {
    // Nothing has begun: a stop may end it at any moment.
    idle.rest();
    if gate.closing.since().is_some() {
        return;
    }
    let mut who = Who { peer, told: None };
    let opened = Opening::read(&gate, socket, &mut who).await;
    if !idle.wake() {
        return;
    }
    match opened {
        Ok(opening) => Entry::new(&gate, &core, who).serve(opening).await,
        Err(opening::Failed::Ended) => {}
        Err(opening::Failed::Handshake(why)) => {
            gate.handshake_failures.inc();
            tracing::debug!(listener = &*gate.listener.name, client = %who.client(), %peer, why, "a client's TLS handshake failed");
        }
        Err(opening::Failed::Refused(client, refusal)) => gate.refuse(client, who, &refusal),
    }
}
