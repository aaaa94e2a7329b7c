//! What is counted of ownership, where several instances share a store.

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

/// What happens to an instance's ownership.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Turn {
    /// It became the owner.
    Elected,
    /// It could not be sure any more, and reset what was under way.
    Lapsed,
    /// It was sure again, by the same lease.
    Regained,
    /// It is not the owner any more.
    Ended,
}

impl Turn {
    fn as_str(self) -> &'static str {
        match self {
            Turn::Elected => "elected",
            Turn::Lapsed => "lapsed",
            Turn::Regained => "regained",
            Turn::Ended => "ended",
        }
    }
}

#[derive(Clone, PartialEq, Eq, Hash, Debug, EncodeLabelSet)]
struct TurnLabel {
    event: &'static str,
}

/// The metrics of ownership.
#[derive(Debug, Default)]
pub struct OwnerMetrics {
    turns: Family<TurnLabel, Counter>,
    owner: Gauge,
}

impl OwnerMetrics {
    pub(super) fn register(registry: &mut Registry) -> OwnerMetrics {
        let metrics = OwnerMetrics::default();
        registry.register(
            "owner",
            "1 while this instance may let fenced requests through",
            Gauge::clone(&metrics.owner),
        );
        registry.register(
            "ownership_changes",
            "What has happened to this instance's ownership",
            Family::clone(&metrics.turns),
        );
        metrics
    }

    /// Counts what has happened.
    pub fn count(&self, turn: Turn) {
        self.of(turn).inc();
    }

    /// Shows all counts, at zero: the first time is a change too. Where nobody else can own the store there are none.
    pub fn show(&self) {
        for turn in [Turn::Elected, Turn::Lapsed, Turn::Regained, Turn::Ended] {
            let _at_zero = self.of(turn);
        }
    }

    fn of(&self, turn: Turn) -> Counter {
        let label = TurnLabel { event: turn.as_str() };
        self.turns.get_or_create(&label).clone()
    }

    pub(super) fn set(&self, owner: bool) {
        self.owner.set(i64::from(owner));
    }
}
