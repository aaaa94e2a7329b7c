//! The checked configuration: what cannot be wrong. Built by `build.rs` alone; read by everything above.

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use crate::base::Secret;
use crate::net::{ClientTls, ServerTls};
use crate::rules::RuleSet;

/// A whole configuration, checked.
#[derive(Debug)]
pub struct Config {
    /// Where marks are durable.
    pub store: Store,
    /// The admin address.
    pub admin: Admin,
    /// How the log is written.
    pub log: Log,
    /// How long a stop waits for what is in flight or in doubt.
    pub shutdown_timeout: Duration,
    /// The addresses that take requests: at least one.
    pub listeners: Vec<Listener>,
}

impl Config {
    /// The largest `settle_after` of all listeners: what a crash of this run has to be waited out for.
    #[must_use]
    pub fn settle_after_max(&self) -> Duration {
        self.listeners
            .iter()
            .map(|l| l.upstream.settle_after)
            .max()
            .unwrap_or_default()
    }
}

/// Where marks are durable.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Store {
    /// In a folder of this machine.
    File {
        /// The folder.
        path: PathBuf,
    },
    /// Nowhere: they are lost at exit.
    Memory,
}

/// The admin address.
#[derive(Clone, Debug)]
pub struct Admin {
    /// Where it listens: a loopback address, unless its clients must show a token or a certificate.
    pub bind: SocketAddr,
    /// TLS towards its clients.
    pub tls: Option<Arc<ServerTls>>,
    /// What its clients must show, if anything.
    pub token: Option<Secret>,
}

/// How the log is written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Log {
    /// Lines for people or for machines.
    pub format: LogFormat,
    /// The least level that is written.
    pub level: LogLevel,
}

/// How one line of the log looks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LogFormat {
    /// For people.
    Text,
    /// One JSON object a line.
    Json,
}

/// The least level that is written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LogLevel {
    /// A person must act.
    Error,
    /// Something is not as it should be.
    Warn,
    /// Refusals and raises too.
    Info,
    /// For finding out what goes wrong.
    Debug,
    /// Everything.
    Trace,
}

impl LogLevel {
    /// The level's name in the configuration.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            LogLevel::Error => "error",
            LogLevel::Warn => "warn",
            LogLevel::Info => "info",
            LogLevel::Debug => "debug",
            LogLevel::Trace => "trace",
        }
    }
}

/// One address that takes requests for one backend.
#[derive(Debug)]
pub struct Listener {
    /// Its name, for metrics and logs.
    pub name: Arc<str>,
    /// Where it listens.
    pub bind: SocketAddr,
    /// TLS towards clients.
    pub tls: Option<Arc<ServerTls>>,
    /// The backend.
    pub upstream: Upstream,
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

/// A backend.
#[derive(Clone, Debug)]
pub struct Upstream {
    /// Where it is.
    pub target: Target,
    /// TLS towards it; over TCP alone.
    pub tls: Option<Arc<ClientTls>>,
    /// How long a connect may take.
    pub connect_timeout: Duration,
    /// From the commit point to the answer's head, then between its pieces.
    pub response_timeout: Duration,
    /// How long a write whose answer is lost may still take effect.
    pub settle_after: Duration,
    /// The answers that are an intermediary's word, not the backend's.
    pub in_doubt_statuses: Vec<u16>,
    /// When a write counts as committed.
    pub commit_point: CommitPoint,
    /// How many connections may be open at once: at least one.
    pub max_connections: usize,
}

/// Where a backend is.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Target {
    /// At a port of a machine.
    Tcp {
        /// A name or an address, without brackets.
        host: String,
        /// The port.
        port: u16,
    },
    /// Behind a Unix socket.
    Unix {
        /// The socket's path.
        path: PathBuf,
    },
}

impl fmt::Display for Upstream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = if self.tls.is_some() { "https" } else { "http" };
        match &self.target {
            Target::Tcp { host, port } if host.contains(':') => write!(f, "{scheme}://[{host}]:{port}"),
            Target::Tcp { host, port } => write!(f, "{scheme}://{host}:{port}"),
            Target::Unix { path } => write!(f, "unix:{}", path.display()),
        }
    }
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
