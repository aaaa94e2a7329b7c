//! Idle connections of one core to one backend, and the bound on connections of all cores.

use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio::sync::Notify;

use super::{AGE_MAX, Backend, Conn};
use crate::base::Buf;

/// Many servers close a connection that was idle for 5 s: ours are not kept so long.
const IDLE_MAX: Duration = Duration::from_secs(4);

/// How many connections to a backend are open, and may be; and where idle ones are.
#[derive(Debug)]
pub struct Slots {
    open: AtomicUsize,
    open_max: usize,
    /// The idle connections of each core: one of them makes room for another core's.
    idle: Mutex<Vec<Weak<Idle>>>,
    freed: Notify,
}

/// One core's idle connections, the one used last at the end.
type Idle = Mutex<Vec<Conn>>;

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
            idle: Mutex::default(),
            freed: Notify::new(),
        })
    }

    /// A slot: a free one, or one that an idle connection gives up, or the next that is freed in time.
    async fn take(self: &Arc<Self>, patience: Duration) -> Option<Slot> {
        let wait = async {
            loop {
                let freed = self.freed.notified();
                if let Some(slot) = self.try_take() {
                    return slot;
                }
                freed.await;
            }
        };
        match self.try_take() {
            Some(slot) => Some(slot),
            None => tokio::time::timeout(patience, wait).await.ok(),
        }
    }

    fn try_take(self: &Arc<Self>) -> Option<Slot> {
        let free = |open| (open < self.open_max).then_some(open + 1);
        while self
            .open
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, free)
            .is_err()
        {
            // The last one out of its list frees its slot as it is dropped here.
            self.pop_idle()?.close();
        }
        Some(Slot(Arc::clone(self)))
    }

    fn pop_idle(&self) -> Option<Conn> {
        let lists = self.idle.lock();
        lists.iter().filter_map(Weak::upgrade).find_map(|idle| {
            let mut idle = idle.lock();
            (!idle.is_empty()).then(|| idle.remove(0))
        })
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        if self.0.open.fetch_sub(1, Ordering::AcqRel) == self.0.open_max {
            self.0.freed.notify_waiters();
        }
    }
}

/// One core's connections to one backend. Its lock is its own core's, and so free.
#[derive(Debug)]
pub struct Pool {
    backend: Backend,
    slots: Arc<Slots>,
    idle: Arc<Idle>,
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
        let idle = Arc::new(Idle::default());
        slots.idle.lock().push(Arc::downgrade(&idle));
        Pool { backend, slots, idle }
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

    /// Connects anew: waits up to `patience` for room, and up to `connect_timeout` for the connection.
    ///
    /// # Errors
    /// [`NoConn`]; nothing was sent.
    pub async fn connect(&self, patience: Duration) -> Result<Conn, NoConn> {
        let slot = self.slots.take(patience).await.ok_or(NoConn::Full)?;
        let stream = self.backend.connect().await?;
        let now = Instant::now();
        Ok(Conn {
            stream,
            inbox: Buf::default(),
            sent: 0,
            reused: false,
            own: false,
            idle_since: now,
            retires_at: (!self.backend.is_fixed()).then(|| now + AGE_MAX),
            _slot: slot,
        })
    }

    /// Takes a connection back whose last answer has come whole.
    pub fn put(&self, mut conn: Conn, now: Instant) {
        if conn.retires_at.is_some_and(|at| at <= now) {
            return conn.close();
        }
        conn.rest(now);
        self.idle.lock().push(conn);
        if self.slots.open.load(Ordering::Acquire) >= self.slots.open_max {
            self.slots.freed.notify_waiters();
        }
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

    /// Resets all that are idle.
    pub fn reset(&self) {
        self.idle.lock().clear();
    }

    /// Closes all that are idle.
    pub fn close(&self) {
        std::mem::take(&mut *self.idle.lock())
            .into_iter()
            .for_each(Conn::close);
    }
}
