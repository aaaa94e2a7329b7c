//! Looking once whether a backend is there. It sends nothing, and a server by plain TCP does not even see it: the
//! handshake's last packet is held back, and a reset comes in its place, so that there is nothing to accept.
//!
//! Called at the start by `server/`, for a word in the log; no request waits for it or is decided by it.

use std::error::Error;
use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::FileTypeExt;
use std::path::Path;
use std::time::Duration;

use socket2::{Domain, Protocol, Socket, Type};
use tokio::net::TcpSocket;

use super::{Backend, addresses};
use crate::config::Target;

/// What is wrong with a backend, and what would be right.
#[derive(Debug, thiserror::Error)]
#[error("{problem}{advice}")]
pub struct Amiss {
    /// What was found.
    pub problem: Box<dyn Error + Send + Sync>,
    /// What would be right, as it follows the problem; empty where that says so itself.
    pub advice: &'static str,
}

impl Backend {
    /// Whether it is there: something listens at its address and, where it is spoken to by TLS, shows a certificate
    /// that is accepted.
    ///
    /// # Errors
    /// [`Amiss`].
    pub async fn probe(&self) -> Result<(), Amiss> {
        let found = match (&self.target, &self.tls) {
            (Target::Unix { path }, _) => is_socket(path),
            (Target::Tcp { host, port }, None) => {
                let knocked = tokio::time::timeout(self.connect_timeout, knock(host, *port)).await;
                knocked.unwrap_or_else(|_elapsed| Err(io::ErrorKind::TimedOut.into()))
            }
            (Target::Tcp { .. }, Some(_)) => self.connect().await.map(|mut stream| {
                stream.forgive();
                stream.close();
            }),
        };
        found.map_err(|error| Amiss::unreachable(error, self.tls.is_some()))
    }
}

impl Amiss {
    /// Of a backend that can't be connected; `secured` where it is spoken to by TLS.
    #[must_use]
    pub fn unreachable(error: io::Error, secured: bool) -> Amiss {
        let advice = match error.kind() {
            io::ErrorKind::ConnectionRefused => {
                "; nothing listens there: start the backend, or put upstream.url right"
            }
            io::ErrorKind::TimedOut if secured => {
                "; is it a port for TLS? If so, put upstream.url right, or let the gate through to it"
            }
            io::ErrorKind::TimedOut => {
                "; nobody answers there within connect_timeout: put upstream.url right, or let the gate through to it"
            }
            io::ErrorKind::InvalidData | io::ErrorKind::UnexpectedEof if secured => {
                "; is it a port for TLS, and a certificate of upstream.tls.ca_file for upstream.tls.server_name?"
            }
            _ => "; put upstream.url right, or the way there",
        };
        Amiss {
            problem: error.into(),
            advice,
        }
    }
}

/// A socket of a server's; whether it still listens can't be seen without being seen.
fn is_socket(path: &Path) -> io::Result<()> {
    match path.metadata()?.file_type().is_socket() {
        true => Ok(()),
        false => Err(io::Error::other("what stands there is no socket")),
    }
}

async fn knock(host: &str, port: u16) -> io::Result<()> {
    let mut last = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
    for address in addresses(host, port).await? {
        match knock_at(address).await {
            Ok(()) => return Ok(()),
            Err(error) => last = error,
        }
    }
    Err(last)
}

async fn knock_at(address: SocketAddr) -> io::Result<()> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    socket.set_nonblocking(true)?;
    // Both before connecting: so the kernel waits for bytes to send its last packet with, and sends a reset instead.
    socket.set_tcp_quickack(false)?;
    socket.set_linger(Some(Duration::ZERO))?;
    TcpSocket::from_std_stream(socket.into())
        .connect(address)
        .await
        .map(drop)
}
