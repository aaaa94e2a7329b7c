//! A running gate: assembles the parts from the checked configuration, and takes them down in order.
//!
//! The start: the ledger (its marker goes dirty, durably, before a listener opens) → the marks → the keeper → the
//! listeners → the cores → ready. The stop: not ready → listeners closed → idle connections closed → requests
//! finished and doubts waited out, up to `shutdown_timeout` → the ledger closed, clean or not.

mod accept;
mod certificates;
mod core;
mod files;
mod signals;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::watch;

use self::accept::{accept, listen};
use self::certificates::Certificates;
use self::core::{Cores, Message};
use self::signals::Signals;
use crate::admin::{self, Admin, Effective, Ready};
use crate::config::{Config, Store};
use crate::http::Gate;
use crate::keeper::{Keeper, Marks, Seat};
use crate::ledger::file::{FileLedger, OpenError};
use crate::ledger::memory::MemoryLedger;
use crate::ledger::{Found, Ledger, StoreError};
use crate::observe::Metrics;
use crate::rules::{Kinds, Misfits};

/// Why a gate could not start, or ended other than it should.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// The store is damaged, taken by another instance, or out of reach.
    #[error(transparent)]
    Open(#[from] OpenError),
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
    let settle_after = config.settle_after_max();
    let (ledger, marks, found) = open_store(&config, settle_after, &metrics)?;
    let hold = if found.clean {
        Duration::ZERO
    } else {
        found.settle_after.max(settle_after)
    };
    if !hold.is_zero() {
        tracing::warn!(
            ?hold,
            "the earlier run did not stop cleanly: raises wait until what it had sent has settled"
        );
    }
    let keeper = Keeper::new(marks, ledger, Arc::clone(&metrics), hold);
    let seat = Seat::new(Arc::clone(&keeper));
    let outcome = operate(config, &seat, metrics, &mut signals, settle_after).await;
    let clean = keeper.is_settled();
    let closed = keeper.close(clean);
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

fn open_store(
    config: &Config,
    settle_after: Duration,
    metrics: &Arc<Metrics>,
) -> Result<(Arc<dyn Ledger>, Marks, Found), Failure> {
    let mut marks = Marks::default();
    match &config.store {
        Store::Memory => {
            let found = Found {
                clean: true,
                settle_after: Duration::ZERO,
            };
            Ok((Arc::new(MemoryLedger::new()), marks, found))
        }
        Store::File { path } => {
            let is_new = !path.join("marks").exists();
            let metrics = Arc::clone(metrics);
            let on_commit = Arc::new(move |took| metrics.commit_seconds.observe(took));
            let folder: &PathBuf = path;
            let kinds = Kinds::of(config.listeners.iter().map(|listener| &*listener.rules));
            let mut misfits = Misfits::default();
            let (ledger, found) = FileLedger::open(folder, settle_after, on_commit, &mut |name, mark| {
                misfits.look(&kinds, name, mark.format);
                marks.load(name, mark.token)
            })?;
            if let Some(complaint) = misfits.complaint() {
                // Nothing was sent: what the earlier run left stays as it was.
                ledger.close(found.clean)?;
                return Err(Failure::OtherKinds(complaint));
            }
            let folder = std::path::absolute(path).unwrap_or_else(|_| path.clone());
            if is_new {
                tracing::warn!(folder = %folder.display(), "a new, empty store: right only where this backend was never fenced before");
            } else {
                tracing::info!(folder = %folder.display(), "marks are read");
            }
            Ok((Arc::new(ledger), marks, found))
        }
    }
}

/// Everything between the open store and the closed one.
async fn operate(
    config: Config,
    seat: &Arc<Seat>,
    metrics: Arc<Metrics>,
    signals: &mut Signals,
    settle_after: Duration,
) -> Result<(), Failure> {
    let shutdown_timeout = config.shutdown_timeout;
    let effective = Arc::new(Effective::of(&config));
    let certificates = Certificates::of(&config, &metrics);
    let mut sockets = Vec::new();
    for listener in config.listeners {
        let socket = listen(listener.bind).map_err(|source| Failure::Bind {
            what: format!("listener {}", listener.name),
            address: listener.bind,
            source,
        })?;
        sockets.push((
            socket,
            Gate::new(listener, Arc::clone(seat), Arc::clone(&metrics)),
        ));
    }
    let bind = config.admin.bind;
    let admin_socket = tokio::net::TcpListener::bind(bind)
        .await
        .map_err(|source| Failure::Bind {
            what: "the admin address".into(),
            address: bind,
            source,
        })?;
    let gates: Vec<Arc<Gate>> = sockets.iter().map(|(_, gate)| Arc::clone(gate)).collect();
    let cores = Cores::start(&gates)?;
    let (stop, stopped) = watch::channel(false);
    let mut accepting = tokio::task::JoinSet::new();
    for (index, (socket, gate)) in sockets.into_iter().enumerate() {
        tracing::info!(listener = &*gate.listener().name, bind = %gate.listener().bind, backend = %gate.listener().upstream, "listening");
        accepting.spawn(accept(socket, index, cores.clone(), stopped.clone()));
    }
    let ready = Arc::new(Ready::default());
    let admin = Admin {
        seat: Arc::clone(seat),
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
    tracing::info!(fences = keeper.fences(), admin = %bind, "ready");

    signals.stop().await;
    tracing::info!(
        ?shutdown_timeout,
        "stopping: no new connections, what is under way is finished"
    );
    ready.set(false);
    let _nobody_left = stop.send(true);
    accepting.join_all().await;
    gates.iter().for_each(|gate| gate.close());
    cores.tell(|| Message::Close);
    let deadline = Instant::now() + shutdown_timeout;
    tokio::select! {
        () = settle(&keeper, &cores, deadline) => {}
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
    Ok(())
}

/// Waits until nothing is under way and nothing may still take effect, or the deadline is over.
async fn settle(keeper: &Keeper, cores: &Cores, deadline: Instant) {
    while Instant::now() < deadline && (cores.connections() > 0 || !keeper.is_settled()) {
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
