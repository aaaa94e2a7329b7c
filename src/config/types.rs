//! The checked configuration: what cannot be wrong. Built by `build.rs` alone; read by everything above.

mod http;
mod redis;
mod tcp;

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

pub use self::http::{CommitPoint, Errors, HttpListener, Limits};
pub use self::redis::{Credentials, RedisListener};
pub use self::tcp::{ProxyProtocol, TcpLimits, TcpListener};
use crate::base::Secret;
use crate::net::{ClientTls, ServerTls};
use crate::rules::Fenced;

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
            .map(|l| l.upstream().settle_after)
            .max()
            .unwrap_or_default()
    }

    /// The fences of all rules, whatever protocol they are for.
    pub fn fences(&self) -> impl Iterator<Item = Fenced> {
        self.listeners.iter().flat_map(Listener::fences)
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
    /// In etcd, for several instances of which one is active.
    Etcd(EtcdStore),
    /// Nowhere: they are lost at exit.
    Memory,
}

/// Where an etcd is, and what of it is this store.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct EtcdStore {
    /// Its members' URLs, all `http://` or all `https://`.
    pub endpoints: Vec<String>,
    /// What all keys start with; ends in a slash.
    pub prefix: String,
    /// How long the owner's lease lasts without a renewal: whole seconds.
    pub owner_ttl: Duration,
    /// The user, where etcd asks for one.
    pub user: Option<EtcdUser>,
    /// TLS towards it, for `https://`.
    pub tls: EtcdTls,
}

/// Who this instance is to etcd.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct EtcdUser {
    /// The name.
    pub name: String,
    /// The password.
    pub password: Password,
}

/// Where a password stands.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Password {
    /// In the configuration, or in a variable that it takes.
    Given(Secret),
    /// In a file, which is read with each login: a new one needs no restart.
    File(PathBuf),
}

/// The files of TLS towards etcd.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct EtcdTls {
    /// The authorities that vouch for etcd; this machine's where there is none.
    pub ca_file: Option<PathBuf>,
    /// The certificate that etcd is shown, and its key.
    pub pair: Option<(PathBuf, PathBuf)>,
    /// What etcd's certificate must be for; an endpoint's host where there is none.
    pub server_name: Option<String>,
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

/// One address that takes requests for one backend, in one protocol. What the protocols have in common can be asked
/// of it; everything else is for the gate of that protocol.
#[derive(Debug)]
pub enum Listener {
    /// HTTP/1.1 and HTTP/2.
    Http(HttpListener),
    /// RESP.
    Redis(RedisListener),
    /// Any protocol over TCP, by the session.
    Tcp(TcpListener),
}

impl Listener {
    /// Its name, for metrics and logs.
    #[must_use]
    pub fn name(&self) -> &Arc<str> {
        match self {
            Listener::Http(http) => &http.name,
            Listener::Redis(redis) => &redis.name,
            Listener::Tcp(tcp) => &tcp.name,
        }
    }

    /// Where it listens.
    #[must_use]
    pub fn bind(&self) -> SocketAddr {
        match self {
            Listener::Http(http) => http.bind,
            Listener::Redis(redis) => redis.bind,
            Listener::Tcp(tcp) => tcp.bind,
        }
    }

    /// TLS towards clients.
    #[must_use]
    pub fn tls(&self) -> Option<&Arc<ServerTls>> {
        match self {
            Listener::Http(http) => http.tls.as_ref(),
            Listener::Redis(redis) => redis.tls.as_ref(),
            Listener::Tcp(tcp) => tcp.tls.as_ref(),
        }
    }

    /// The backend.
    #[must_use]
    pub fn upstream(&self) -> &Upstream {
        match self {
            Listener::Http(http) => &http.upstream,
            Listener::Redis(redis) => &redis.upstream,
            Listener::Tcp(tcp) => &tcp.upstream,
        }
    }

    /// How many rules it has.
    #[must_use]
    pub fn rules(&self) -> usize {
        match self {
            Listener::Http(http) => http.rules.rules.len(),
            Listener::Redis(redis) => redis.rules.rules.len(),
            Listener::Tcp(_) => 1,
        }
    }

    /// The fences of its rules.
    #[must_use]
    pub fn fences(&self) -> Vec<Fenced> {
        match self {
            Listener::Http(http) => http.rules.fences().collect(),
            Listener::Redis(redis) => redis.rules.fences().collect(),
            Listener::Tcp(tcp) => tcp.rule.fences().collect(),
        }
    }

    /// What is for HTTP alone, where it speaks that.
    #[must_use]
    pub fn http(&self) -> Option<&HttpListener> {
        match self {
            Listener::Http(http) => Some(http),
            Listener::Redis(_) => None,
            Listener::Tcp(_) => None,
        }
    }
}

/// A backend.
#[derive(Clone, Debug)]
pub struct Upstream {
    /// Where it is.
    pub target: Target,
    /// The scheme of its URL, where it has one.
    pub scheme: &'static str,
    /// TLS towards it; over TCP alone.
    pub tls: Option<Arc<ClientTls>>,
    /// How long a connect may take.
    pub connect_timeout: Duration,
    /// How long a write whose answer is lost may still take effect.
    pub settle_after: Duration,
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
        let scheme = self.scheme;
        match &self.target {
            Target::Tcp { host, port } if host.contains(':') => write!(f, "{scheme}://[{host}]:{port}"),
            Target::Tcp { host, port } => write!(f, "{scheme}://{host}:{port}"),
            Target::Unix { path } => write!(f, "unix:{}", path.display()),
        }
    }
}
