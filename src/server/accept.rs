//! Taking connections: one socket a listener, each connection handed to the core that has the fewest.
//!
//! Not SO_REUSEPORT: it would let a second process share the port, and half of the writes would miss the fence.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::time::Duration;

use socket2::{Domain, Protocol, Socket, Type};
use tokio::sync::watch;

use super::core::{Cores, Message};

/// Connections that the kernel keeps for us.
const BACKLOG: i32 = 1024;

/// A listening socket.
pub fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    // Only so that a restart need not wait for old connections to time out.
    socket.set_reuse_address(true)?;
    socket.set_nonblocking(true)?;
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    Ok(socket.into())
}

/// Takes connections until told to stop; then the socket is closed.
pub async fn accept(socket: TcpListener, gate: usize, cores: Cores, mut stopped: watch::Receiver<bool>) {
    let socket = match tokio::net::TcpListener::from_std(socket) {
        Ok(socket) => socket,
        Err(error) => {
            tracing::error!(%error, "a listener can't be waited for: it takes no connections");
            return;
        }
    };
    loop {
        let accepted = tokio::select! {
            accepted = socket.accept() => accepted,
            _ = stopped.wait_for(|stopped| *stopped) => return,
        };
        // Off this runtime, on to its core's.
        match accepted.and_then(|(stream, peer)| Ok((stream.into_std()?, peer))) {
            Ok((stream, peer)) => {
                if stream.set_nodelay(true).is_ok() {
                    cores.least_busy(Message::Serve { stream, peer, gate });
                }
            }
            Err(error) if is_of_one_connection(&error) => {}
            Err(error) => {
                // Out of descriptors or memory: others may end meanwhile.
                tracing::warn!(%error, "a connection can't be taken; trying again");
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    }
}

fn is_of_one_connection(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::ConnectionAborted | io::ErrorKind::ConnectionReset | io::ErrorKind::Interrupted
    )
}
