//! What comes before a connection's first request: TLS, where the listener has it, within `header_timeout`.

use std::net::SocketAddr;
use std::sync::Arc;

use tokio::net::TcpStream;

use super::Gate;
use super::client::Peer;
use crate::base::Idle;
use crate::net::Stream;

/// The connection, ready for requests; `None` where it ended before.
pub async fn welcome(
    gate: &Gate,
    socket: TcpStream,
    address: SocketAddr,
    idle: &Idle,
) -> Option<(Stream, Peer)> {
    let mut peer = Peer {
        address: address.ip().to_canonical(),
        ip: address.ip().to_canonical().to_string(),
        secure: false,
        version: "1.1",
        cert: None,
    };
    let Some(tls) = &gate.listener.tls else {
        return Some((Stream::tcp(socket), peer));
    };
    // Nothing has begun: a stop may end it at any moment.
    idle.rest();
    if gate.is_closing() {
        return None;
    }
    let opened = tokio::time::timeout(gate.listener.limits.header_timeout, tls.accept(socket)).await;
    if !idle.wake() {
        return None;
    }
    let why = match opened {
        Ok(Ok(stream)) => {
            peer.secure = true;
            peer.cert = stream.peer_names().map(Arc::new);
            return Some((stream, peer));
        }
        Ok(Err(error)) => error.to_string(),
        Err(_elapsed) => "it did not end within header_timeout".to_owned(),
    };
    gate.handshake_failures.inc();
    tracing::debug!(listener = &*gate.listener.name, peer = %address, why, "a client's TLS handshake failed");
    None
}
