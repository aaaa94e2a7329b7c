//! A running gate: assembles the parts from the checked configuration, and takes them down in order.
//!
//! The start: the ledger (its marker goes dirty, durably, before a listener opens) → the marks → the keeper → the
//! listeners → the cores → ready. The stop: not ready → listeners closed → idle connections closed → requests
//! finished and doubts waited out, up to `shutdown_timeout` → the ledger closed, clean or not.

mod accept;
mod certificates;
mod core;
mod files;
mod gates;
mod probe;
mod signals;
mod store;
mod tenure;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::mpsc::UnboundedReceiver;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use self::accept::{accept, listen};
use self::certificates::Certificates;
use self::core::{Cores, Message};
pub use self::files::outlive_size_limit;
use self::gates::Gate;
use self::signals::Signals;
pub use self::store::settings;
use self::store::{Opened, hold_of};
use self::tenure::Tenures;
use crate::admin::{self, Admin, Effective, Ready};
use crate::config::Config;
use crate::keeper::{Keeper, Seat};
use crate::ledger::StoreError;
use crate::ledger::etcd::{self, Agent, Event};
use crate::ledger::file;
use crate::observe::Metrics;

/// Why a gate could not start, or ended other than it should.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// The store is damaged, taken by another instance, or out of reach.
    #[error(transparent)]
    Open(#[from] file::OpenError),
    /// The store in etcd can't be read, or what is configured for it can't be used.
    #[error(transparent)]
    OpenEtcd(#[from] etcd::OpenError),
    /// The store has marks of another kind of token than the rules read.
    #[error("{0}")]
    OtherKinds(String),
    /// An address can't be listened on.
    #[error("{what} can't listen on {address}: {source}")]
    Bind {
        /// Which listener.
        what: String,
        /// The address.
        address: SocketAddr,
        /// Why.
        source: std::io::Error,
    },
    /// The system gives no runtime or signal handler.
    #[error("the system refuses what a start needs: {0}")]
    System(#[from] std::io::Error),
    /// The store could not be closed cleanly.
    #[error("the store could not be closed: {0}")]
    Close(#[from] StoreError),
    /// Something was still in flight or in doubt: the next start waits `settle_after`.
    #[error(
        "stopped with {in_flight} writes in flight, {in_doubt} in doubt and {hold_ms} ms of the wait after a crash left: \
         the next start lets no raise through for settle_after"
    )]
    Unclean {
        /// Writes that were admitted and had not ended.
        in_flight: i64,
        /// Writes whose answer was lost.
        in_doubt: usize,
        /// What was left of the wait after a crash, in milliseconds.
        hold_ms: u128,
    },
}

/// Runs a gate until it is told to stop.
///
/// # Errors
/// [`Failure`]: it could not start, or its stop was unclean.
pub fn run(config: Config) -> Result<(), Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime.block_on(serve(config))
}

async fn serve(config: Config) -> Result<(), Failure> {
    let mut signals = Signals::new()?;
    match files::raise_limit() {
        Ok(files_max) => tracing::debug!(files_max, "as many files may be open"),
        Err(error) => tracing::warn!(%error, "the bound on open files can't be raised"),
    }
    let metrics = Arc::new(Metrics::new());
    let Opened { seat, shared } = store::open(&config, &metrics)?;
    let (agent, events) = shared.unzip();
    let outcome = operate(config, &seat, agent.clone(), events, metrics, &mut signals).await;
    let keeper = seat.keeper();
    let clean = keeper.is_settled();
    let closed = keeper.close(clean);
    if let Some(agent) = agent {
        agent.stop();
    }
    outcome?;
    closed?;
    if !clean {
        return Err(Failure::Unclean {
            in_flight: keeper.in_flight(),
            in_doubt: keeper.in_doubt(),
            hold_ms: keeper.hold_left().as_millis(),
        });
    }
    tracing::info!("stopped cleanly");
    Ok(())
}

/// Everything between the open store and the closed one.
async fn operate(
    config: Config,
    seat: &Arc<Seat>,
    agent: Option<Arc<Agent>>,
    events: Option<UnboundedReceiver<Event>>,
    metrics: Arc<Metrics>,
    signals: &mut Signals,
) -> Result<(), Failure> {
    let settle_after = config.settle_after_max();
    let kinds = store::kinds(&config);
    let shutdown_timeout = config.shutdown_timeout;
    let effective = Arc::new(Effective::of(&config));
    let certificates = Certificates::of(&config, &metrics);
    let mut sockets = Vec::new();
    for listener in config.listeners {
        let (name, bind) = (Arc::clone(listener.name()), listener.bind());
        let socket = listen(bind).map_err(|source| Failure::Bind {
            what: format!("listener {name}"),
            address: bind,
            source,
        })?;
        tracing::info!(listener = &*name, %bind, backend = %listener.upstream(), "listening");
        sockets.push((socket, Gate::of(listener, seat, &metrics, shutdown_timeout)));
    }
    let bind = config.admin.bind;
    let admin_socket = tokio::net::TcpListener::bind(bind)
        .await
        .map_err(|source| Failure::Bind {
            what: "the admin address".into(),
            address: bind,
            source,
        })?;
    let (sockets, gates): (Vec<_>, Vec<Gate>) = sockets.into_iter().unzip();
    let cores = Cores::start(&gates)?;
    let mut tenures = events.map(|events| {
        let (seat, cores, metrics) = (Arc::clone(seat), cores.clone(), Arc::clone(&metrics));
        tokio::spawn(Tenures::new(seat, cores, metrics, kinds, settle_after).follow(events))
    });
    let (stop, stopped) = watch::channel(false);
    let mut accepting = tokio::task::JoinSet::new();
    for (index, socket) in sockets.into_iter().enumerate() {
        accepting.spawn(accept(socket, index, cores.clone(), stopped.clone()));
    }
    let ready = Arc::new(Ready::default());
    let admin = Admin {
        seat: Arc::clone(seat),
        agent,
        metrics,
        ready: Arc::clone(&ready),
        tls: config.admin.tls,
        token: config.admin.token,
        effective,
    };
    let (admin_stop, admin_stopped) = tokio::sync::oneshot::channel::<()>();
    let admin = tokio::spawn(admin::serve(admin_socket, admin, async {
        drop(admin_stopped.await)
    }));
    let keeper = seat.keeper();
    let hold = tokio::spawn(end_hold(Arc::clone(&keeper), settle_after));
    let certificates = tokio::spawn(certificates.watch());
    ready.set(true);
    let role = if keeper.is_owner() { "active" } else { "standby" };
    tracing::info!(role, fences = keeper.fences(), admin = %bind, "ready");
    let probes = probe::probe(&gates);

    let outcome = tokio::select! {
        () = signals.stop() => Ok(()),
        failure = failed(&mut tenures) => Err(failure),
    };
    tracing::info!(
        ?shutdown_timeout,
        "stopping: no new connections, what is under way is finished"
    );
    ready.set(false);
    drop(probes);
    let _nobody_left = stop.send(true);
    accepting.join_all().await;
    gates.iter().for_each(Gate::close);
    cores.tell(|| Message::Close);
    let deadline = Instant::now() + shutdown_timeout;
    tokio::select! {
        () = settle(seat, &cores, deadline) => {}
        // A second signal: the process ends now, and the marker says so.
        () = signals.stop() => tracing::warn!("told to stop twice: not waiting any longer"),
    }
    let cut = cores.connections();
    if cut > 0 {
        tracing::warn!(connections = cut, "connections that had not ended are cut");
    }
    cores.tell(|| Message::Abort);
    cores.join().await;
    hold.abort();
    certificates.abort();
    drop(admin_stop);
    // A client of the admin address that keeps its connection must not keep the process.
    let _late = tokio::time::timeout(Duration::from_millis(200), admin).await;
    if let Some(tenures) = tenures {
        tenures.abort();
    }
    outcome
}

/// Why the tenures of an owned store can't go on; never with a store of one's own.
async fn failed(tenures: &mut Option<JoinHandle<Failure>>) -> Failure {
    match tenures {
        Some(tenures) => match tenures.await {
            Ok(failure) => failure,
            Err(error) => Failure::System(std::io::Error::other(error)),
        },
        None => std::future::pending().await,
    }
}

/// Waits until nothing is under way and nothing may still take effect, or the deadline is over.
async fn settle(seat: &Seat, cores: &Cores, deadline: Instant) {
    while Instant::now() < deadline && (cores.connections() > 0 || !seat.keeper().is_settled()) {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// When the wait after a crash is over, what stands beside the marker becomes this run's own.
async fn end_hold(keeper: Arc<Keeper>, settle_after: Duration) {
    let left = keeper.hold_left();
    if left.is_zero() {
        return;
    }
    tokio::time::sleep(left).await;
    while !keeper.hold_left().is_zero() {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let told = tokio::task::spawn_blocking(move || keeper.hold_is_over(settle_after)).await;
    match told {
        Ok(Ok(())) => tracing::info!("the wait after the crash is over: raises go on"),
        Ok(Err(error)) => {
            tracing::warn!(%error, "the end of the wait after the crash could not be noted: a next one may be longer")
        }
        Err(_cancelled) => {}
    }
}
