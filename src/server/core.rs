//! The cores: one thread each, with a runtime of its own. A connection stays on its core from first byte to last.

use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::task::{AbortHandle, Id, JoinSet};

use super::gates::{Gate, Part};
use crate::base::Idle;

/// What a core is told.
#[derive(Debug)]
pub enum Message {
    /// Serve this connection.
    Serve {
        /// The client's socket, non-blocking.
        stream: std::net::TcpStream,
        /// Where the client is.
        peer: SocketAddr,
        /// Which of the gates.
        gate: usize,
    },
    /// Close idle connections; the others close after the request that they are at.
    Close,
    /// Reset idle connections to the backends: this instance has ceased to be the owner.
    Disown,
    /// End all connections now, and the core with them.
    Abort,
}

/// All cores of the process.
#[derive(Clone, Debug)]
pub struct Cores(Arc<Vec<Handle>>);

#[derive(Debug)]
struct Handle {
    tell: mpsc::UnboundedSender<Message>,
    /// Connections that were handed over and have not ended.
    connections: Arc<AtomicUsize>,
    ended: tokio::sync::Semaphore,
}

impl Cores {
    /// Starts a thread for each core of the machine that this process may use.
    pub fn start(gates: &[Gate]) -> io::Result<Cores> {
        let count = std::thread::available_parallelism().map_or(1, usize::from);
        let mut handles = Vec::new();
        let mut receivers = Vec::new();
        for _ in 0..count {
            let (tell, told) = mpsc::unbounded_channel();
            let connections = Arc::new(AtomicUsize::new(0));
            receivers.push((told, Arc::clone(&connections)));
            handles.push(Handle {
                tell,
                connections,
                ended: tokio::sync::Semaphore::new(0),
            });
        }
        let cores = Cores(Arc::new(handles));
        for (index, (told, connections)) in receivers.into_iter().enumerate() {
            let parts: Vec<Part> = gates.iter().map(Gate::part).collect();
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()?;
            let cores = cores.clone();
            std::thread::Builder::new()
                .name(format!("fencegate-core-{index}"))
                .spawn(move || {
                    runtime.block_on(run(told, parts, connections));
                    drop(runtime);
                    cores.0[index].ended.add_permits(1);
                })?;
        }
        Ok(cores)
    }

    /// Hands a connection to the core with the fewest.
    pub fn least_busy(&self, message: Message) {
        let handle = self
            .0
            .iter()
            .min_by_key(|handle| handle.connections.load(Ordering::Relaxed))
            .expect("a machine has at least one core");
        handle.connections.fetch_add(1, Ordering::Relaxed);
        if handle.tell.send(message).is_err() {
            // The core has ended, and so does the process.
            handle.connections.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Tells every core.
    pub fn tell(&self, message: impl Fn() -> Message) {
        for handle in self.0.iter() {
            let _ended_already = handle.tell.send(message());
        }
    }

    /// Connections that have not ended.
    #[must_use]
    pub fn connections(&self) -> usize {
        self.0
            .iter()
            .map(|handle| handle.connections.load(Ordering::Acquire))
            .sum()
    }

    /// Waits until every core has ended: all flights are settled, cut, or in doubt then.
    pub async fn join(&self) {
        for handle in self.0.iter() {
            handle
                .ended
                .acquire()
                .await
                .expect("the semaphore is never closed")
                .forget();
        }
    }
}

/// One core's life.
async fn run(mut told: mpsc::UnboundedReceiver<Message>, parts: Vec<Part>, connections: Arc<AtomicUsize>) {
    let mut tasks = JoinSet::new();
    let mut idle: HashMap<Id, (AbortHandle, Arc<Idle>)> = HashMap::new();
    let mut tick = tokio::time::interval(Duration::from_secs(1));
    loop {
        tokio::select! {
            message = told.recv() => match message {
                Some(Message::Serve { stream, peer, gate }) => {
                    let Ok(stream) = tokio::net::TcpStream::from_std(stream) else {
                        connections.fetch_sub(1, Ordering::Release);
                        continue;
                    };
                    let state = Arc::new(Idle::default());
                    let handle = parts[gate].serve(&mut tasks, stream, peer, Arc::clone(&state));
                    idle.insert(handle.id(), (handle, state));
                }
                Some(Message::Close) => {
                    for (handle, state) in idle.values() {
                        if state.doom() {
                            handle.abort();
                        }
                    }
                }
                Some(Message::Disown) => parts.iter().for_each(Part::reset),
                Some(Message::Abort) | None => break,
            },
            Some(ended) = tasks.join_next_with_id() => {
                let id = match ended {
                    Ok((id, ())) => id,
                    Err(error) => {
                        if error.is_panic() {
                            tracing::error!(%error, "a connection's task has failed: its connections are closed");
                        }
                        error.id()
                    }
                };
                idle.remove(&id);
                connections.fetch_sub(1, Ordering::Release);
            }
            _ = tick.tick() => parts.iter().for_each(Part::sweep),
        }
    }
    tasks.shutdown().await;
    connections.store(0, Ordering::Release);
    parts.iter().for_each(Part::close);
}
