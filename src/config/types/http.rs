//! What a listener that speaks HTTP is.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use super::Upstream;
use crate::net::ServerTls;
use crate::rules::RuleSet;

/// One address that takes HTTP requests for one backend.
#[derive(Debug)]
pub struct HttpListener {
    /// Its name, for metrics and logs.
    pub name: Arc<str>,
    /// Where it listens.
    pub bind: SocketAddr,
    /// TLS towards clients.
    pub tls: Option<Arc<ServerTls>>,
    /// The backend.
    pub upstream: Upstream,
    /// From the commit point to the answer's head, then between its pieces.
    pub response_timeout: Duration,
    /// The answers that are an intermediary's word, not the backend's.
    pub in_doubt_statuses: Vec<u16>,
    /// When a write counts as committed.
    pub commit_point: CommitPoint,
    /// Bounds on clients.
    pub limits: Limits,
    /// Whether a connection may be upgraded to another protocol, which nothing fences.
    pub upgrades: bool,
    /// How refusals are written.
    pub errors: Errors,
    /// Whether `X-Forwarded-For`, `X-Forwarded-Proto` and `Via` are added.
    pub forwarded: bool,
    /// The rules, the safe methods, and what happens to what no rule matches.
    pub rules: Arc<RuleSet>,
}

/// How refusals are written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Errors {
    /// RFC 9457, as JSON.
    Problem,
    /// The XML of S3.
    S3,
}

/// When a write counts as committed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CommitPoint {
    /// Before its last byte: the backend drops what never arrives whole.
    LastByte,
    /// Before its first byte: the backend writes in place.
    FirstByte,
}

/// Bounds on clients.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// How long a head may take to arrive.
    pub header_timeout: Duration,
    /// How large a head may be.
    pub max_header_bytes: usize,
    /// How long a connection may stand idle.
    pub idle_timeout: Duration,
    /// How many requests may wait at once for older writes.
    pub max_waiting: usize,
}
