//! A word in the log about each backend that is not there, or not what is configured, once after the start. Nothing waits
//! for it, and nothing is decided by it: a backend may as well come later.

use tokio::task::JoinSet;

use super::gates::Gate;

/// Looks at the backends of all gates. Dropping it ends that.
pub fn probe(gates: &[Gate]) -> JoinSet<()> {
    gates.iter().cloned().map(probe_one).collect()
}

async fn probe_one(gate: Gate) {
    let found = gate.probe().await;
    let (listener, backend) = gate.place();
    match found {
        Ok(()) => tracing::debug!(listener, %backend, "the backend is there"),
        Err(amiss) => {
            tracing::warn!(listener, %backend, problem = %amiss, "the backend can't be used as it is configured");
        }
    }
}
