//! What is counted of TLS: handshakes that failed, certificates that expire, files that could not be taken.

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::{Registry, Unit};

/// Towards whom TLS is spoken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Side {
    /// The clients of a listener.
    Clients,
    /// A listener's backend.
    Backend,
    /// Those of the admin address.
    Admin,
}

/// The label `listener` of what belongs to none, the admin address: no listener's name is empty.
pub const NO_LISTENER: &str = "";

impl Side {
    /// Its word in metrics and logs.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Side::Clients => "clients",
            Side::Backend => "backend",
            Side::Admin => "admin",
        }
    }
}

#[derive(Clone, PartialEq, Eq, Hash, Debug, EncodeLabelSet)]
struct ListenerLabel {
    listener: String,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug, EncodeLabelSet)]
struct FileLabels {
    listener: String,
    side: &'static str,
}

/// The metrics of TLS.
#[derive(Debug, Default)]
pub struct TlsMetrics {
    handshake_failures: Family<ListenerLabel, Counter>,
    reload_failures: Family<FileLabels, Counter>,
    reload_successful: Family<FileLabels, Gauge>,
    expiry: Family<FileLabels, Gauge>,
}

/// The metrics of one side's files.
#[derive(Clone, Debug)]
pub struct TlsFiles {
    failures: Counter,
    successful: Gauge,
    labels: FileLabels,
    expiry: Family<FileLabels, Gauge>,
}

impl TlsMetrics {
    pub(super) fn register(registry: &mut Registry) -> TlsMetrics {
        let metrics = TlsMetrics::default();
        registry.register(
            "tls_handshake_failures",
            "TLS handshakes with clients that failed",
            Family::clone(&metrics.handshake_failures),
        );
        registry.register(
            "tls_reload_failures",
            "Changes of certificates, keys or authorities that could not be taken: what was there before stays in use",
            Family::clone(&metrics.reload_failures),
        );
        registry.register(
            "tls_last_reload_successful",
            "1 where the files of TLS are in use as they are, 0 where an earlier state of them is",
            Family::clone(&metrics.reload_successful),
        );
        registry.register_with_unit(
            "tls_certificate_expiry_timestamp",
            "When the certificate in use expires",
            Unit::Seconds,
            Family::clone(&metrics.expiry),
        );
        metrics
    }

    /// Counts a listener's handshakes that failed.
    #[must_use]
    pub fn handshake_failures(&self, listener: &str) -> Counter {
        let labels = ListenerLabel {
            listener: listener.into(),
        };
        self.handshake_failures.get_or_create(&labels).clone()
    }

    /// The metrics of one side's files, which are fine.
    #[must_use]
    pub fn files(&self, listener: &str, side: Side) -> TlsFiles {
        let labels = FileLabels {
            listener: listener.into(),
            side: side.as_str(),
        };
        let files = TlsFiles {
            failures: self.reload_failures.get_or_create(&labels).clone(),
            successful: self.reload_successful.get_or_create(&labels).clone(),
            expiry: Family::clone(&self.expiry),
            labels,
        };
        files.successful.set(1);
        files
    }
}

impl TlsFiles {
    /// They are in use, with a certificate that expires then, in seconds since 1970.
    pub fn taken(&self, not_after: Option<i64>) {
        self.successful.set(1);
        if let Some(not_after) = not_after {
            self.expiry.get_or_create(&self.labels).set(not_after);
        }
    }

    /// They have changed and can't be used.
    pub fn refused(&self) {
        self.successful.set(0);
        self.failures.inc();
    }
}
