//! A histogram of durations whose observation is two atomic additions: the library's takes a lock.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use prometheus_client::encoding::{EncodeMetric, MetricEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;

/// Upper bounds of the buckets, in microseconds; one more bucket takes the rest.
const BOUNDS_US: [u64; 16] = [
    100, 250, 500, 1_000, 2_500, 5_000, 10_000, 25_000, 50_000, 100_000, 250_000, 500_000, 1_000_000,
    2_500_000, 10_000_000, 60_000_000,
];

/// A histogram of durations.
#[derive(Clone, Debug, Default)]
pub struct Histogram(Arc<Cells>);

#[derive(Debug, Default)]
struct Cells {
    buckets: [AtomicU64; BOUNDS_US.len() + 1],
    sum_ns: AtomicU64,
}

impl Histogram {
    /// Counts one duration.
    pub fn observe(&self, took: Duration) {
        self.observe_many(took, 1);
    }

    /// Counts a duration that so many took.
    pub fn observe_many(&self, took: Duration, n: u64) {
        let us = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        let at = BOUNDS_US.partition_point(|bound| *bound < us);
        self.0.buckets[at].fetch_add(n, Ordering::Relaxed);
        self.0.sum_ns.fetch_add(
            u64::try_from(took.as_nanos()).unwrap_or(0).saturating_mul(n),
            Ordering::Relaxed,
        );
    }
}

impl EncodeMetric for Histogram {
    fn encode(&self, mut encoder: MetricEncoder<'_>) -> Result<(), std::fmt::Error> {
        let bound = |at: usize| BOUNDS_US.get(at).map_or(f64::INFINITY, |us| *us as f64 / 1e6);
        let buckets: Vec<(f64, u64)> = self
            .0
            .buckets
            .iter()
            .enumerate()
            .map(|(at, n)| (bound(at), n.load(Ordering::Relaxed)))
            .collect();
        let count = buckets.iter().map(|(_, n)| n).sum();
        let sum = self.0.sum_ns.load(Ordering::Relaxed) as f64 / 1e9;
        encoder.encode_histogram::<NoLabelSet>(sum, count, &buckets, None)
    }

    fn metric_type(&self) -> MetricType {
        MetricType::Histogram
    }
}
