//! Idle connections of one core to one backend, and the bound on connections of all cores.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::{Backend, Conn};
use crate::base::Buf;

/// Many servers close a connection that was idle for 5 s: ours are not kept so long.
const IDLE_MAX: Duration = Duration::from_secs(4);

/// How many connections to a backend are open, and may be.
#[derive(Debug)]
pub struct Slots {
    open: AtomicUsize,
    open_max: usize,
}

/// One open connection, as counted.
#[derive(Debug)]
pub struct Slot(Arc<Slots>);

impl Slots {
    /// Room for `open_max` connections.
    #[must_use]
    pub fn new(open_max: usize) -> Arc<Slots> {
        Arc::new(Slots {
            open: AtomicUsize::new(0),
            open_max,
        })
    }

    fn take(self: &Arc<Self>) -> Option<Slot> {
        let free = |open| (open < self.open_max).then_some(open + 1);
        self.open
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, free)
            .ok()?;
        Some(Slot(Arc::clone(self)))
    }

    /// Whether every connection is in use or idle elsewhere.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.open.load(Ordering::Acquire) >= self.open_max
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.0.open.fetch_sub(1, Ordering::AcqRel);
    }
}

/// One core's connections to one backend. Its lock is its own core's, and so free.
#[derive(Debug)]
pub struct Pool {
    backend: Backend,
    slots: Arc<Slots>,
    idle: Mutex<Vec<Conn>>,
}

/// Why there is no connection.
#[derive(Debug, thiserror::Error)]
pub enum NoConn {
    /// `max_connections` are open.
    #[error("max_connections are open")]
    Full,
    /// It could not be connected.
    #[error("the backend can't be connected: {0}")]
    Unreachable(#[from] io::Error),
}

impl Pool {
    /// A pool without connections.
    #[must_use]
    pub fn new(backend: Backend, slots: Arc<Slots>) -> Pool {
        Pool {
            backend,
            slots,
            idle: Mutex::new(Vec::new()),
        }
    }

    /// The connection that was used last, if one is idle and still good.
    #[must_use]
    pub fn take(&self) -> Option<Conn> {
        let mut idle = self.idle.lock();
        while let Some(mut conn) = idle.pop() {
            if conn.is_fresh(IDLE_MAX) {
                conn.sent = 0;
                return Some(conn);
            }
        }
        None
    }

    /// Connects anew.
    ///
    /// # Errors
    /// [`NoConn`]; nothing was sent.
    pub async fn connect(&self) -> Result<Conn, NoConn> {
        let slot = self.slots.take().ok_or(NoConn::Full)?;
        let stream = self.backend.connect().await?;
        Ok(Conn {
            stream,
            inbox: Buf::default(),
            sent: 0,
            reused: false,
            idle_since: Instant::now(),
            _slot: slot,
        })
    }

    /// Whether a request that needs a connection would find none.
    #[must_use]
    pub fn is_exhausted(&self) -> bool {
        self.slots.is_full() && self.idle.lock().is_empty()
    }

    /// Takes a connection back whose last answer has come whole.
    pub fn put(&self, mut conn: Conn, now: Instant) {
        conn.reused = true;
        conn.idle_since = now;
        self.idle.lock().push(conn);
    }

    /// Closes those that have been idle for too long. Called about once a second.
    pub fn sweep(&self) {
        let old: Vec<Conn> = {
            let mut idle = self.idle.lock();
            // The one used last is at the end, so the old ones are at the front.
            let fresh = idle
                .iter()
                .position(|conn| conn.idle_since.elapsed() <= IDLE_MAX)
                .unwrap_or(idle.len());
            idle.drain(..fresh).collect()
        };
        old.into_iter().for_each(Conn::close);
    }

    /// Closes all that are idle.
    pub fn close(&self) {
        std::mem::take(&mut *self.idle.lock())
            .into_iter()
            .for_each(Conn::close);
    }
}
