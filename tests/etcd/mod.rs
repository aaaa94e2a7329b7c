//! Real members of etcd on loopback, instances of the gate's ledger on them, and a forwarder that can cut one off.
#![allow(dead_code, unused_imports)]

pub mod forwarder;
pub mod instance;
pub mod member;

use std::time::{Duration, Instant};

pub use forwarder::{Forwarder, Mode};
pub use instance::{Instance, Owner, brief, mark, raise, reset, settings};
pub use member::{Control, Etcd, Setup};

/// Longer than anything takes that goes well.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// Looks again and again until there is something to see.
#[track_caller]
pub fn wait_for<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let started = Instant::now();
    loop {
        if let Some(seen) = look() {
            return seen;
        }
        assert!(started.elapsed() < PATIENCE, "there was never {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}
