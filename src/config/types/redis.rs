//! What a listener that speaks RESP is.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use super::Upstream;
use crate::base::Secret;
use crate::net::ServerTls;
use crate::rules::redis::RedisRules;

/// One address that takes commands for one Redis server.
#[derive(Debug)]
pub struct RedisListener {
    /// Its name, for metrics and logs.
    pub name: Arc<str>,
    /// Where it listens.
    pub bind: SocketAddr,
    /// TLS towards clients.
    pub tls: Option<Arc<ServerTls>>,
    /// The server.
    pub upstream: Upstream,
    /// Who the gate is when it asks the server about its commands.
    pub credentials: Option<Credentials>,
    /// From a command's commit point to its reply, and between the pieces of one.
    pub response_timeout: Duration,
    /// How long a client may be silent; `None` where it may be for ever.
    pub idle_timeout: Option<Duration>,
    /// How many commands may wait at once for older writes.
    pub max_waiting: usize,
    /// The rules, and what happens to what no rule matches.
    pub rules: Arc<RedisRules>,
}

/// A user of the server.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Credentials {
    /// The name; without one it is the default user.
    pub username: Option<String>,
    /// The password.
    pub password: Secret,
}
