//! The harness of the black-box tests: the built binary as a child process on a folder of its own, a store behind
//! it that keeps a journal, and HTTP/1.1 by hand in front of it, or HTTP/2.
//!
//! It knows nothing of the gate's insides. Nothing here sleeps to wait for something: the store tells when a
//! request has arrived or taken effect, and holds one back until the test lets it go.

#![allow(dead_code, unused_imports, reason = "each test binary uses a part of it")]

mod client;
pub mod dice;
pub mod frames;
mod front;
pub mod h2;
mod process;
mod raw;
pub mod sessions;
mod stub;
mod tls;

use std::time::{Duration, Instant};

pub use self::client::{Ask, Conn, Reply, ask, head};
pub use self::front::Front;
pub use self::process::{Gate, RULE, Setup};
pub use self::raw::{RawBackend, Request, ends_by_reset, read_head, read_request, read_rest};
pub use self::stub::{Applied, Place, Stub};
pub use self::tls::{Pki, client_config_of};

/// How long a test waits for what must come. Generous: the machine may be busy with other tests.
pub const PATIENCE: Duration = Duration::from_secs(20);

/// A store with its journal, and a gate in front of it.
pub fn start_with(setup: Setup) -> (Stub, Gate) {
    let stub = Stub::start();
    let gate = setup.start(stub.port);
    (stub, gate)
}

/// Long runs, for a machine that has the night.
pub fn is_long_run() -> bool {
    std::env::var_os("FENCEGATE_LONG").is_some_and(|value| value != "0")
}

/// Looks again and again until it is so.
#[track_caller]
pub fn wait_until(what: &str, mut is: impl FnMut() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !is() {
        assert!(Instant::now() < end, "{what} never came");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Sleeps until `moment`. For scenarios that are about time itself.
pub fn sleep_until(moment: Instant) {
    std::thread::sleep(moment.saturating_duration_since(Instant::now()));
}

/// The promise: on each resource the tokens that took effect never go down.
pub fn assert_never_backwards(journal: &[Applied]) {
    let mut highest = std::collections::HashMap::new();
    for applied in journal {
        let ends = [
            (applied.resource(), applied.token),
            (applied.other_resource(), applied.other_token),
        ];
        for (resource, token) in ends {
            let Some(token) = token else { continue };
            let mark = highest.entry(resource).or_insert(token);
            assert!(
                token >= *mark,
                "{resource}: token {token} took effect after {mark}: {journal:#?}"
            );
            *mark = token;
        }
    }
}
