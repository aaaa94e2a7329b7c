//! Whether a client connection can be closed at once: what a stop asks of each, and what its task says of itself.

use std::sync::atomic::{AtomicU8, Ordering};

/// Whether a connection is between two requests: then it can be closed at once.
#[derive(Debug, Default)]
pub struct Idle(AtomicU8);

const BUSY: u8 = 0;
const IDLE: u8 = 1;
const DOOMED: u8 = 2;

impl Idle {
    /// True if the connection is between two requests, and from now on stays so: its task may be ended.
    #[must_use]
    pub fn doom(&self) -> bool {
        self.0
            .compare_exchange(IDLE, DOOMED, Ordering::AcqRel, Ordering::Acquire)
            .is_ok()
    }

    /// Between two requests from here on.
    pub fn rest(&self) {
        self.0.store(IDLE, Ordering::Release);
    }

    /// False if the connection's task is about to be ended: nothing may be begun.
    #[must_use]
    pub fn wake(&self) -> bool {
        self.0.swap(BUSY, Ordering::AcqRel) != DOOMED
    }
}
