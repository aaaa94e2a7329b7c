//! HTTP/2 from clients: frames, header compression and flow control are the h2 crate's; each stream is served as a
//! connection of its own that carries one request, through a pipe, by the very relay that serves HTTP/1.1. So what
//! holds there holds here: the strict reading, the commit point, the early answers.
//!
//! Streams don't stall each other: an upload that waits fills its own window and no more, and the connection's window
//! has room for the windows of all its streams.

mod head;
mod heads;
mod stream;

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use h2::server::{Builder, Connection, SendResponse};
use h2::{Reason, RecvStream};
use http::request::Parts;
use http::{Method, Request};
use tokio::task::JoinSet;

use self::heads::{Fragments, Screened};
use self::stream::{NoRequest, Pump};
use super::client::{Client, First, Peer};
use super::{Core, Gate};
use crate::base::{Buf, Idle};
use crate::net::{Duplex, Stream, pipe};
use crate::wire::http1::Framing;

/// What a client may have under way on one connection.
const STREAMS_MAX: u32 = 128;
/// What a stream may send ahead of its reader. With all streams of a connection it bounds what one can make the gate
/// hold: 16 MiB.
const STREAM_WINDOW: u32 = 128 * 1024;
/// So that streams that wait never use up what others need.
const CONNECTION_WINDOW: u32 = STREAM_WINDOW * STREAMS_MAX;
/// What of an answer waits in a stream for its client's window.
const SEND_BUFFER_MAX: usize = 128 * 1024;
/// A client that resets more than so many streams before their answers, and more than half of all, is opening
/// them for the work that it makes (CVE-2023-44487).
const RESETS_MAX: u64 = 100;
/// What HTTP/2 counts for a field beyond its bytes (RFC 9113, 6.5.2), and how many fields the strict reader takes.
const FIELD_OVERHEAD: usize = 32;
const FIELDS_MAX: usize = 1000;
/// How long a client may take to see that the connection ends.
const GOODBYE_MAX: Duration = Duration::from_secs(5);

/// Serves a connection that speaks HTTP/2 from its first byte on, until it ends.
pub async fn serve(gate: Arc<Gate>, core: Arc<Core>, io: Duplex, peer: Arc<Peer>) {
    let limits = gate.listener.limits;
    // More than the limit: what is over it by less gets an answer that says why. HTTP/2 counts more for each field.
    let head_max = limits.max_header_bytes.saturating_mul(2) + FIELDS_MAX * FIELD_OVERHEAD;
    let head_max = u32::try_from(head_max).unwrap_or(u32::MAX);
    let mut builder = Builder::new();
    builder
        .max_concurrent_streams(STREAMS_MAX)
        .initial_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .max_header_list_size(head_max)
        .max_send_buffer_size(SEND_BUFFER_MAX);
    let (io, fragments) = Screened::new(io, head_max as usize, limits.header_timeout);
    let Ok(Ok(connection)) = tokio::time::timeout(limits.header_timeout, builder.handshake(io)).await else {
        return;
    };
    let served = Served {
        gate,
        core,
        peer,
        fragments,
        running: JoinSet::new(),
        opened: 0,
        reset: 0,
    };
    served.run(connection).await;
}

/// A connection being served.
struct Served {
    gate: Arc<Gate>,
    core: Arc<Core>,
    peer: Arc<Peer>,
    fragments: Fragments,
    running: JoinSet<bool>,
    opened: u64,
    reset: u64,
}

impl Served {
    async fn run(mut self, mut connection: Connection<Screened, Bytes>) {
        let idle_timeout = self.gate.listener.limits.idle_timeout;
        let gate = Arc::clone(&self.gate);
        let mut closing = std::pin::pin!(gate.closed());
        let mut goodbye = false;
        let mut idle_until = Instant::now() + idle_timeout;
        loop {
            // Nothing is lost by whichever branch comes second: all of them can be asked again.
            tokio::select! {
                accepted = connection.accept() => match accepted {
                    Some(Ok((request, respond))) => self.begin(request, respond),
                    Some(Err(error)) => {
                        tracing::debug!(%error, "an HTTP/2 connection ends");
                        break;
                    }
                    None => break,
                },
                Some(ended) = self.running.join_next() => {
                    idle_until = Instant::now() + if goodbye { GOODBYE_MAX } else { idle_timeout };
                    if self.ended(ended) {
                        connection.abrupt_shutdown(Reason::ENHANCE_YOUR_CALM);
                    }
                }
                () = &mut closing, if !goodbye => {
                    connection.graceful_shutdown();
                    (goodbye, idle_until) = (true, Instant::now() + GOODBYE_MAX);
                }
                () = tokio::time::sleep_until(idle_until.into()), if self.running.is_empty() => {
                    if goodbye {
                        break;
                    }
                    connection.graceful_shutdown();
                    (goodbye, idle_until) = (true, Instant::now() + GOODBYE_MAX);
                }
            }
        }
        // What is past its commit point is followed to its answer; all others see that their client has left.
        drop(connection);
        while self.running.join_next().await.is_some() {}
    }

    fn begin(&mut self, request: Request<RecvStream>, mut respond: SendResponse<Bytes>) {
        // A stream that its client has reset doesn't count for the client any more, and is still at work here.
        if self.running.len() >= STREAMS_MAX as usize * 2 {
            return respond.send_reset(Reason::REFUSED_STREAM);
        }
        self.opened += 1;
        let (gate, core, peer) = (
            Arc::clone(&self.gate),
            Arc::clone(&self.core),
            Arc::clone(&self.peer),
        );
        let fragment = self.fragments.had_one(respond.stream_id().into());
        self.running
            .spawn(one(gate, core, peer, request, respond, fragment));
    }

    /// True where the client has to be sent away.
    fn ended(&mut self, ended: Result<bool, tokio::task::JoinError>) -> bool {
        match ended {
            Ok(by_client) => self.reset += u64::from(by_client),
            Err(error) if error.is_panic() => {
                tracing::error!(%error, "a stream's task has failed: its stream is reset");
            }
            Err(_cancelled) => {}
        }
        self.reset > RESETS_MAX && self.reset > self.opened / 2
    }
}

/// The head as HTTP/1.1 has it, and how its body goes on.
///
/// To the backend a request that says that it has no body is whole with its head. Whether something follows all the
/// same must be known before.
async fn take_head(
    gate: &Gate,
    parts: &Parts,
    body: &mut RecvStream,
    fragment: bool,
) -> Result<(Buf, Framing), NoRequest> {
    if fragment {
        return Err(head::bad("the target has a fragment").into());
    }
    let mut inbox = Buf::default();
    let framing = head::write_head(inbox.end(), parts, body.is_end_stream())?;
    if framing == Framing::Length(0) {
        let nothing = stream::read_nothing(gate, body);
        tokio::time::timeout(gate.listener.limits.header_timeout, nothing)
            .await
            .map_err(|_late| head::late("the stream did not end within header_timeout"))??;
    }
    Ok((inbox, framing))
}

/// One stream, from its head to its end. True where its client has reset it.
async fn one(
    gate: Arc<Gate>,
    core: Arc<Core>,
    peer: Arc<Peer>,
    request: Request<RecvStream>,
    respond: SendResponse<Bytes>,
    fragment: bool,
) -> bool {
    let (parts, mut body) = request.into_parts();
    let (first, framing) = match take_head(&gate, &parts, &mut body, fragment).await {
        Ok((inbox, framing)) => (First::Came(inbox), framing),
        Err(NoRequest::Refused(answer)) => (First::Refused(answer), Framing::None),
        Err(NoRequest::Reset) => return true,
    };
    let head_only = parts.method == Method::HEAD;
    drop(parts);
    let (near, far) = pipe();
    let idle = Idle::default();
    let client = Client::new(&gate, &core, Stream::pipe(near), &peer, &idle);
    let pump = Pump::new(Arc::clone(&gate), far, body, respond, framing, head_only);
    let mut client = std::pin::pin!(client.serve(first));
    let mut pump = std::pin::pin!(pump.run());
    tokio::select! {
        by_client = &mut pump => {
            client.await;
            by_client
        }
        // What is left of its answer waits for a client that may not read: dropped, the stream is reset.
        _served = &mut client => {
            tokio::time::timeout(gate.listener.limits.idle_timeout, pump).await.unwrap_or(true)
        }
    }
}
