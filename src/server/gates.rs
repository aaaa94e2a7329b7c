//! One gate a listener, of the listener's protocol: the only place that knows which protocols there are gates for.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::TcpStream;
use tokio::task::{AbortHandle, JoinSet};

use crate::base::Idle;
use crate::config::{Listener, Upstream};
use crate::http;
use crate::keeper::Seat;
use crate::observe::Metrics;
use crate::redis;
use crate::tcp;
use crate::upstream::{Amiss, Backend};

/// A listener's gate.
#[derive(Clone, Debug)]
pub enum Gate {
    /// HTTP/1.1 and HTTP/2.
    Http(Arc<http::Gate>),
    /// RESP.
    Redis(Arc<redis::Gate>),
    /// Any protocol over TCP, by the session.
    Tcp(Arc<tcp::Gate>),
}

/// What one core has of a gate.
#[derive(Debug)]
pub enum Part {
    /// HTTP/1.1 and HTTP/2.
    Http(Arc<http::Gate>, Arc<http::Core>),
    /// RESP.
    Redis(Arc<redis::Gate>, Arc<redis::Core>),
    /// Any protocol over TCP, by the session.
    Tcp(Arc<tcp::Gate>, Arc<tcp::Core>),
}

impl Gate {
    /// The gate of a listener.
    pub fn of(
        listener: Listener,
        seat: &Arc<Seat>,
        metrics: &Arc<Metrics>,
        shutdown_timeout: Duration,
    ) -> Gate {
        let (seat, metrics) = (Arc::clone(seat), Arc::clone(metrics));
        match listener {
            Listener::Http(listener) => Gate::Http(http::Gate::new(listener, seat, metrics)),
            Listener::Redis(listener) => Gate::Redis(redis::Gate::new(listener, seat, metrics)),
            Listener::Tcp(listener) => Gate::Tcp(tcp::Gate::new(listener, seat, metrics, shutdown_timeout)),
        }
    }

    /// From now on nothing new is begun: what is under way is finished.
    pub fn close(&self) {
        match self {
            Gate::Http(gate) => gate.close(),
            Gate::Redis(gate) => gate.close(),
            Gate::Tcp(gate) => gate.close(),
        }
    }

    /// The name of its listener, and where its backend is.
    pub fn place(&self) -> (&str, &Upstream) {
        match self {
            Gate::Http(gate) => (&gate.listener().name, &gate.listener().upstream),
            Gate::Redis(gate) => (&gate.listener().name, &gate.listener().upstream),
            Gate::Tcp(gate) => (&gate.listener().name, &gate.listener().upstream),
        }
    }

    /// Looks once whether the backend is there, and is one for this protocol as far as that can be seen by asking for
    /// nothing. It changes nothing there.
    pub async fn probe(&self) -> Result<(), Amiss> {
        match self {
            Gate::Redis(gate) => redis::probe(gate.listener()).await,
            Gate::Http(_) | Gate::Tcp(_) => Backend::of(self.place().1).probe().await,
        }
    }

    /// One core's part of it.
    pub fn part(&self) -> Part {
        match self {
            Gate::Http(gate) => Part::Http(Arc::clone(gate), http::Core::new(gate)),
            Gate::Redis(gate) => Part::Redis(Arc::clone(gate), redis::Core::new(gate)),
            Gate::Tcp(gate) => Part::Tcp(Arc::clone(gate), tcp::Core::new(gate)),
        }
    }
}

impl Part {
    /// Serves one client connection until it ends, as a task of its own.
    pub fn serve(
        &self,
        tasks: &mut JoinSet<()>,
        socket: TcpStream,
        peer: SocketAddr,
        idle: Arc<Idle>,
    ) -> AbortHandle {
        match self {
            Part::Http(gate, core) => tasks.spawn(http::serve(
                Arc::clone(gate),
                Arc::clone(core),
                socket,
                peer,
                idle,
            )),
            Part::Redis(gate, core) => tasks.spawn(redis::serve(
                Arc::clone(gate),
                Arc::clone(core),
                socket,
                peer,
                idle,
            )),
            Part::Tcp(gate, core) => {
                tasks.spawn(tcp::serve(Arc::clone(gate), Arc::clone(core), socket, peer, idle))
            }
        }
    }

    /// Closes what has been idle for too long. Called about once a second.
    pub fn sweep(&self) {
        match self {
            Part::Http(_, core) => core.sweep(),
            // Each connection is one client's, and ends with it.
            Part::Redis(..) => {}
            // A session has its connection to itself.
            Part::Tcp(..) => {}
        }
    }

    /// Resets all that is idle: this instance has ceased to be the owner.
    pub fn reset(&self) {
        match self {
            Part::Http(_, core) => core.reset(),
            // Whatever is fenced on one is reset by its own task; the rest may go on.
            Part::Redis(..) => {}
            Part::Tcp(..) => {}
        }
    }

    /// Closes all that is idle, at the end.
    pub fn close(&self) {
        match self {
            Part::Http(_, core) => core.close(),
            Part::Redis(_, core) => core.close(),
            Part::Tcp(..) => {}
        }
    }
}
