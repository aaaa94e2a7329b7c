//! The admin address's socket: its connections are few, bounded, and none of them outlives the stop for long.

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::{Extension, Router};
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use prometheus_client::metrics::counter::Counter;
use socket2::SockRef;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;

use super::{Admin, router};
use crate::base::Buf;
use crate::net::{Duplex, ServerTls, Stream};
use crate::observe::{Metrics, NO_LISTENER};

/// Where a request comes from.
#[derive(Clone, Copy, Debug)]
pub(super) struct Peer(pub(super) SocketAddr);

/// When the admin address is told to stop: an answer without an end ends then.
#[derive(Clone, Debug)]
pub(super) struct Closing(pub(super) watch::Receiver<()>);

/// How many connections there may be at once; more wait in the kernel.
const CONNECTIONS_MAX: usize = 256;
/// How long TLS's handshake and a head may take, and how long a connection may stand idle.
const HEAD_TIMEOUT: Duration = Duration::from_secs(30);
/// So much of a head is read, and so much of an answer waits for a client that reads slowly.
const BUF_BYTES_MAX: usize = 64 * 1024;
/// What the kernel holds for a client that reads slowly; it counts more than the bytes alone.
const SEND_BUFFER_BYTES: usize = 64 * 1024;
/// How long nothing is accepted where the system refused to: it has no more files, most likely.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Serves the admin address until `stop` is ready, then lets the requests that are under way finish.
pub async fn serve(listener: TcpListener, admin: Admin, stop: impl Future<Output = ()> + Send + 'static) {
    let tls = admin
        .tls
        .as_ref()
        .map(|tls| Secure::new(Arc::clone(tls), &admin.metrics));
    let router = router(admin);
    let mut connections = JoinSet::new();
    let (closing, closed) = watch::channel(());
    tokio::pin!(stop);
    loop {
        // Whichever branch wins, the others lose nothing: each can be asked again.
        tokio::select! {
            () = &mut stop => break,
            Some(_ended) = connections.join_next() => {}
            accepted = listener.accept(), if connections.len() < CONNECTIONS_MAX => match accepted {
                Ok((stream, peer)) => {
                    // A reader of events that does not read would else make the kernel hold some megabytes.
                    let _best_effort = SockRef::from(&stream).set_send_buffer_size(SEND_BUFFER_BYTES);
                    connections.spawn(connection(stream, peer, tls.clone(), router.clone(), closed.clone()));
                }
                Err(error) => {
                    tracing::warn!(%error, "the admin address can't accept a connection");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    }
    drop(closing);
    while connections.join_next().await.is_some() {}
}

/// TLS, and where its failures are counted.
#[derive(Clone)]
struct Secure {
    tls: Arc<ServerTls>,
    failures: Counter,
}

impl Secure {
    fn new(tls: Arc<ServerTls>, metrics: &Metrics) -> Secure {
        let failures = metrics.tls.handshake_failures(NO_LISTENER);
        Secure { tls, failures }
    }

    /// Shakes hands, in bounded time.
    async fn open(&self, socket: TcpStream) -> io::Result<Stream> {
        let opened = tokio::time::timeout(HEAD_TIMEOUT, self.tls.accept(socket)).await;
        let opened = opened.unwrap_or_else(|late| Err(late.into()));
        if opened.is_err() {
            self.failures.inc();
        }
        opened
    }
}

async fn connection(
    socket: TcpStream,
    peer: SocketAddr,
    tls: Option<Secure>,
    router: Router,
    mut closed: watch::Receiver<()>,
) {
    let opened = match &tls {
        None => Ok(Stream::tcp(socket)),
        // Nothing was asked yet: a stop ends the handshake.
        Some(tls) => tokio::select! {
            opened = tls.open(socket) => opened,
            _ = closed.changed() => return,
        },
    };
    let stream = match opened {
        Ok(stream) => Duplex::new(stream, Buf::default()),
        Err(error) => {
            tracing::debug!(%peer, %error, "a TLS handshake of the admin address failed");
            return;
        }
    };
    let router = router.layer(Extension(Peer(peer)));
    let service = TowerToHyperService::new(router.layer(Extension(Closing(closed.clone()))));
    let serving = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIMEOUT)
        .max_buf_size(BUF_BYTES_MAX)
        .serve_connection(TokioIo::new(stream), service);
    tokio::pin!(serving);
    let ended = tokio::select! {
        ended = serving.as_mut() => ended,
        _ = closed.changed() => {
            serving.as_mut().graceful_shutdown();
            serving.await
        }
    };
    if let Err(error) = ended {
        tracing::debug!(%peer, %error, "a connection of the admin address broke");
    }
}
