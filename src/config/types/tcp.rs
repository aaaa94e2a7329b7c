//! What a listener of raw TCP is.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use super::Upstream;
use crate::net::ServerTls;
use crate::rules::TcpRule;

/// One address that takes sessions of any protocol over TCP for one backend.
#[derive(Debug)]
pub struct TcpListener {
    /// Its name, for metrics and logs.
    pub name: Arc<str>,
    /// Where it listens.
    pub bind: SocketAddr,
    /// TLS towards clients, behind the PROXY header.
    pub tls: Option<Arc<ServerTls>>,
    /// Whether each connection begins with a PROXY header.
    pub accept_proxy: bool,
    /// The backend.
    pub upstream: Upstream,
    /// Whether the backend is told the client's address.
    pub proxy_protocol: ProxyProtocol,
    /// Bounds on clients.
    pub limits: TcpLimits,
    /// The rule that all sessions fall under.
    pub rule: Arc<TcpRule>,
}

/// Whether a backend is told the client's address.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ProxyProtocol {
    /// It is not.
    None,
    /// In a PROXY header of version 2, without TLVs.
    V2,
}

/// Bounds on the clients of a listener of raw TCP.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TcpLimits {
    /// How long what stands in front of a session may take to arrive, TLS's handshake included.
    pub header_timeout: Duration,
    /// How large a PROXY header or a preface may be.
    pub max_header_bytes: usize,
    /// How long a session may stand idle; `None` where it may for ever.
    pub idle_timeout: Option<Duration>,
    /// How many sessions may wait at once for older ones.
    pub max_waiting: usize,
}
