//! Metrics: what is counted, under which names. No resource name is ever a label, and every label's set is closed.
//! `events.rs` tells one by one what is counted here, to those who listen.
//!
//! Counting is an atomic addition; text is made when someone asks.

pub mod events;
mod histogram;
mod owner;
mod tls;

use std::sync::atomic::AtomicU64;

use parking_lot::Mutex;
use prometheus_client::encoding::{EncodeLabelSet, prometheus_text, text};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::{Registry, Unit};

pub use self::events::Events;
pub use self::histogram::Histogram;
pub use self::owner::{OwnerMetrics, Turn};
pub use self::tls::{NO_LISTENER, Side, TlsFiles, TlsMetrics};
use crate::base::Reason;

/// What became of a request, as `fencegate_requests_total` counts it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Decision {
    /// Let through; its token was the highest seen.
    Admitted,
    /// Let through; it was the first with its token.
    Raised,
    /// Refused: a higher token was seen.
    Stale,
    /// Refused: no token came.
    Missing,
    /// Refused: the token or the request could not be read without doubt.
    Malformed,
    /// Refused: no rule allows it.
    Unmatched,
    /// Not now: draining, store, ownership, overload.
    Unavailable,
    /// Let through without a comparison.
    Passed,
}

impl Decision {
    /// How a refusal is counted. A failure of the backend is not a decision of the gate: it was counted when it was
    /// admitted.
    #[must_use]
    pub fn of(reason: Reason) -> Option<Decision> {
        match reason {
            Reason::StaleToken => Some(Decision::Stale),
            Reason::MissingToken => Some(Decision::Missing),
            Reason::MalformedToken
            | Reason::AmbiguousPath
            | Reason::MethodOverride
            | Reason::BadRequest
            | Reason::StepTooLarge => Some(Decision::Malformed),
            Reason::UnmatchedWrite | Reason::NotAllowed | Reason::UpgradeRefused => Some(Decision::Unmatched),
            Reason::Draining | Reason::StoreUnavailable | Reason::NotOwner | Reason::Overloaded => {
                Some(Decision::Unavailable)
            }
            Reason::UpstreamUnreachable | Reason::UpstreamFailed | Reason::UpstreamTimeout => None,
        }
    }
}

const DECISIONS: [(Decision, &str); 8] = [
    (Decision::Admitted, "admitted"),
    (Decision::Raised, "raised"),
    (Decision::Stale, "stale"),
    (Decision::Missing, "missing"),
    (Decision::Malformed, "malformed"),
    (Decision::Unmatched, "unmatched"),
    (Decision::Unavailable, "unavailable"),
    (Decision::Passed, "passed"),
];

/// The counters of one rule, or of what no rule matches.
#[derive(Clone, Debug)]
pub struct Decisions {
    by_decision: [Counter<u64, AtomicU64>; 8],
    unfenced_writes: Counter<u64, AtomicU64>,
}

impl Decisions {
    /// Counts a request once.
    pub fn count(&self, decision: Decision) {
        self.by_decision[decision as usize].inc();
    }

    /// The same for so many requests.
    pub fn count_many(&self, decision: Decision, n: u64) {
        self.by_decision[decision as usize].inc_by(n);
    }

    /// Counts what is refused for this reason or, `observed`, would be and goes through.
    pub fn count_refused(&self, reason: Reason, observed: bool) {
        if let Some(decision) = Decision::of(reason) {
            self.count(decision);
        }
        if observed && reason == Reason::MissingToken {
            self.count_unfenced();
        }
    }

    /// Counts a request that goes through without a token, and whether it is a write, as [`Decisions::count_unfenced`]
    /// does.
    pub fn count_free(&self, unfenced_write: bool) {
        self.count(Decision::Passed);
        if unfenced_write {
            self.count_unfenced();
        }
    }

    /// Counts a write that goes through without a token that the rule has a place for, or that no rule takes. It was
    /// counted by its decision too.
    pub fn count_unfenced(&self) {
        self.unfenced_writes.inc();
    }
}

#[derive(Clone, PartialEq, Eq, Hash, Debug, EncodeLabelSet)]
struct RequestLabels {
    listener: String,
    rule: String,
    mode: &'static str,
    decision: &'static str,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug, EncodeLabelSet)]
struct RuleLabels {
    listener: String,
    rule: String,
    mode: &'static str,
}

/// All metrics of the process.
#[derive(Debug)]
pub struct Metrics {
    registry: Mutex<Registry>,
    requests: Family<RequestLabels, Counter>,
    unfenced_writes: Family<RuleLabels, Counter>,
    in_flight: Gauge,
    in_doubt: Gauge,
    fences: Gauge,
    observed: Gauge,
    /// From the moment that a higher token was seen until its mark was durable and open.
    pub drain_seconds: Histogram,
    /// One commit of the ledger, however many marks shared it.
    pub commit_seconds: Histogram,
    /// From the commit point to the end of the backend's answer.
    pub upstream_seconds: Histogram,
    /// Of TLS.
    pub tls: TlsMetrics,
    /// Of ownership.
    pub owner: OwnerMetrics,
    /// What happens, one by one: whoever counts it here tells it there.
    pub events: Events,
}

/// Gauges, read when someone asks for the metrics.
#[derive(Clone, Copy, Debug)]
pub struct Levels {
    /// Admitted writes that have not ended.
    pub in_flight: i64,
    /// Writes whose answer is lost.
    pub in_doubt: i64,
    /// Fences in memory.
    pub fences: i64,
    /// Resources that rules in observe mode have marks of.
    pub observed: i64,
    /// Whether this instance may let fenced requests through.
    pub owner: bool,
}

impl Default for Metrics {
    fn default() -> Self {
        Metrics::new()
    }
}

impl Metrics {
    /// All metrics, at zero.
    #[must_use]
    pub fn new() -> Metrics {
        let mut registry = Registry::with_prefix("fencegate");
        let (requests, unfenced_writes, in_flight, in_doubt, fences, observed) = (
            Family::default(),
            Family::default(),
            Gauge::default(),
            Gauge::default(),
            Gauge::default(),
            Gauge::default(),
        );
        let (drain, commit, upstream) = (Histogram::default(), Histogram::default(), Histogram::default());
        registry.register(
            "requests",
            "Requests by what was decided",
            Family::clone(&requests),
        );
        registry.register(
            "unfenced_writes",
            "Writes that went through without a token where their rule has a place for one, or that no rule takes",
            Family::clone(&unfenced_writes),
        );
        registry.register(
            "in_flight_writes",
            "Admitted writes that have not ended",
            Gauge::clone(&in_flight),
        );
        registry.register(
            "in_doubt_writes",
            "Writes whose answer is lost and that may still take effect",
            Gauge::clone(&in_doubt),
        );
        registry.register("fences", "Fences in memory", Gauge::clone(&fences));
        registry.register(
            "observed_fences",
            "Resources that rules in observe mode have marks of",
            Gauge::clone(&observed),
        );
        registry.register_with_unit(
            "drain",
            "From a higher token's arrival until its mark is open",
            Unit::Seconds,
            drain.clone(),
        );
        registry.register_with_unit(
            "store_commit",
            "One commit of the store",
            Unit::Seconds,
            commit.clone(),
        );
        registry.register_with_unit(
            "upstream",
            "From the commit point to the end of the answer",
            Unit::Seconds,
            upstream.clone(),
        );
        Metrics {
            tls: TlsMetrics::register(&mut registry),
            owner: OwnerMetrics::register(&mut registry),
            registry: Mutex::new(registry),
            requests,
            unfenced_writes,
            in_flight,
            in_doubt,
            fences,
            observed,
            drain_seconds: drain,
            commit_seconds: commit,
            upstream_seconds: upstream,
            events: Events::default(),
        }
    }

    /// The counters of a rule; `rule` is empty for what no rule matches.
    #[must_use]
    pub fn decisions(&self, listener: &str, rule: &str, mode: &'static str) -> Decisions {
        let (listener, rule) = (listener.to_owned(), rule.to_owned());
        let by_decision = DECISIONS.map(|(_, decision)| {
            let labels = RequestLabels {
                listener: listener.clone(),
                rule: rule.clone(),
                mode,
                decision,
            };
            self.requests.get_or_create(&labels).clone()
        });
        let labels = RuleLabels { listener, rule, mode };
        Decisions {
            by_decision,
            unfenced_writes: self.unfenced_writes.get_or_create(&labels).clone(),
        }
    }

    /// The text of all metrics.
    #[must_use]
    pub fn text(&self, levels: Levels, format: TextFormat) -> String {
        self.in_flight.set(levels.in_flight);
        self.in_doubt.set(levels.in_doubt);
        self.fences.set(levels.fences);
        self.observed.set(levels.observed);
        self.owner.set(levels.owner);
        let mut text = String::new();
        let registry = self.registry.lock();
        match format {
            TextFormat::OpenMetrics => text::encode(&mut text, &registry),
            TextFormat::Prometheus => prometheus_text::encode(&mut text, &registry),
        }
        .expect("writing to a String can't fail");
        text
    }
}

/// How the metrics are written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TextFormat {
    /// OpenMetrics 1.0.0.
    OpenMetrics,
    /// Prometheus' own, 0.0.4.
    Prometheus,
}

impl TextFormat {
    /// What `Content-Type` says.
    #[must_use]
    pub fn content_type(self) -> &'static str {
        match self {
            TextFormat::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
            TextFormat::Prometheus => prometheus_text::CONTENT_TYPE,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{DECISIONS, Decision, Levels, Metrics, TextFormat};

    #[test]
    fn each_decision_is_counted_under_its_own_name() {
        for (at, (decision, _)) in DECISIONS.iter().enumerate() {
            assert_eq!(*decision as usize, at);
        }
        let metrics = Metrics::new();
        let rule = metrics.decisions("store", "bucket", "enforce");
        rule.count(Decision::Stale);
        rule.count(Decision::Stale);
        let text = metrics.text(
            Levels {
                in_flight: 1,
                in_doubt: 2,
                fences: 3,
                observed: 0,
                owner: true,
            },
            TextFormat::OpenMetrics,
        );
        let line =
            r#"fencegate_requests_total{listener="store",rule="bucket",mode="enforce",decision="stale"} 2"#;
        assert!(text.contains(line), "{text}");
        assert!(text.contains("fencegate_in_doubt_writes 2"), "{text}");
    }

    #[test]
    fn a_histogram_counts_in_every_bucket_from_its_value_up() {
        let metrics = Metrics::new();
        metrics.drain_seconds.observe(std::time::Duration::from_millis(3));
        let text = metrics.text(
            Levels {
                in_flight: 0,
                in_doubt: 0,
                fences: 0,
                observed: 0,
                owner: true,
            },
            TextFormat::Prometheus,
        );
        assert!(
            text.contains(r#"fencegate_drain_seconds_bucket{le="0.0025"} 0"#),
            "{text}"
        );
        assert!(
            text.contains(r#"fencegate_drain_seconds_bucket{le="0.005"} 1"#),
            "{text}"
        );
        assert!(text.contains(r#"fencegate_drain_seconds_count 1"#), "{text}");
    }

    #[test]
    fn the_last_bucket_takes_everything_in_both_formats() {
        let metrics = Metrics::new();
        metrics
            .drain_seconds
            .observe(std::time::Duration::from_secs(3600));
        let levels = Levels {
            in_flight: 0,
            in_doubt: 0,
            fences: 0,
            observed: 0,
            owner: true,
        };
        for format in [TextFormat::OpenMetrics, TextFormat::Prometheus] {
            let text = metrics.text(levels, format);
            let last = r#"fencegate_drain_seconds_bucket{le="+Inf"} 1"#;
            assert!(text.contains(last), "{text}");
        }
    }
}
