//! A translator in front of the gate, so that tests written for HTTP/1.1 reach it as HTTP/2: `FENCEGATE_FRONT=h2`
//! before `cargo test --test gate_tokens` (or `gate_flights`, `gate_bodies`, `gate_random`) runs them all so, but for
//! those of [`HTTP_1_ALONE`].
//!
//! It is as thin as it can be: heads and pieces of bodies go on as they come, an answer that came early closes its
//! client's connection, a stream that was reset resets it, and a client that leaves resets its stream.

use std::future::{Future, poll_fn};
use std::io;
use std::net::TcpListener;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Poll;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use h2::client::{Builder, ResponseFuture, SendRequest};
use h2::{RecvStream, SendStream};
use http::{HeaderMap, HeaderName, HeaderValue, Request, Response, Uri};
use socket2::SockRef;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::net::tcp::{ReadHalf, WriteHalf};

use super::h2::runtime;

/// What clients of the tests speak with the gate.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Front {
    Http1,
    Http2,
}

/// Tests that are about HTTP/1.1 itself, and why.
const HTTP_1_ALONE: &[(&str, &str)] = &[
    (
        "a_refused_request_of_another_reason_raises_nothing",
        "one of its requests asks for an upgrade, which HTTP/2 knows none of",
    ),
    (
        "a_write_is_sent_once_wherever_the_backend_breaks_off",
        "it counts on a head and its body in one write to the backend",
    ),
    (
        "an_upload_in_many_chunks_outlives_a_backend_that_pauses",
        "its backend takes one connection, and the translator keeps two cores busy",
    ),
];

impl Front {
    /// What `FENCEGATE_FRONT` says, for the test that this thread runs.
    pub fn chosen() -> Front {
        let front = match std::env::var("FENCEGATE_FRONT").as_deref() {
            Err(_) | Ok("http1") => Front::Http1,
            Ok("h2") => Front::Http2,
            Ok(other) => panic!("FENCEGATE_FRONT is http1 or h2, not {other}"),
        };
        let thread = std::thread::current();
        let test = thread.name().unwrap_or_default();
        match HTTP_1_ALONE.iter().find(|(name, _)| *name == test) {
            Some((_, why)) if front != Front::Http1 => {
                eprintln!("runs over HTTP/1.1: {why}");
                Front::Http1
            }
            _ => front,
        }
    }

    /// The port for clients of the gate that listens on `port`.
    pub fn start(self, port: u16) -> u16 {
        match self {
            Front::Http1 => port,
            Front::Http2 => translate(port),
        }
    }
}

fn translate(gate: u16) -> u16 {
    let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    listener.set_nonblocking(true).unwrap();
    let port = listener.local_addr().unwrap().port();
    // Few connections for all clients: their streams meet each other. More than one, for more than one core.
    let links = [(); 2].map(|()| Arc::new(Link::new(gate)));
    runtime().spawn(async move {
        let listener = tokio::net::TcpListener::from_std(listener).unwrap();
        for number in 0.. {
            let Ok((client, _)) = listener.accept().await else {
                return;
            };
            client.set_nodelay(true).unwrap();
            tokio::spawn(serve(client, Arc::clone(&links[number % links.len()])));
        }
    });
    port
}

/// One connection to the gate, made when it is needed.
struct Link {
    gate: u16,
    sender: tokio::sync::Mutex<Option<SendRequest<Bytes>>>,
}

impl Link {
    fn new(gate: u16) -> Link {
        Link {
            gate,
            sender: tokio::sync::Mutex::new(None),
        }
    }

    async fn begin(&self, request: &Request<()>, whole: bool) -> Option<(ResponseFuture, SendStream<Bytes>)> {
        for _ in 0..2 {
            let mut sender = self.sender().await?;
            if poll_fn(|cx| sender.poll_ready(cx)).await.is_ok()
                && let Ok(begun) = sender.send_request(request.clone(), whole)
            {
                return Some(begun);
            }
            *self.sender.lock().await = None;
        }
        None
    }

    async fn sender(&self) -> Option<SendRequest<Bytes>> {
        let mut held = self.sender.lock().await;
        if held.is_none() {
            let stream = TcpStream::connect(("127.0.0.1", self.gate)).await.ok()?;
            stream.set_nodelay(true).unwrap();
            let (sender, connection) = Builder::new()
                // One client that doesn't read must not stop the others.
                .initial_connection_window_size(1 << 30)
                .handshake(stream)
                .await
                .ok()?;
            tokio::spawn(connection);
            *held = Some(sender);
        }
        held.clone()
    }
}

/// What follows an exchange.
enum Next {
    Request,
    Close,
    Reset,
}

async fn serve(mut client: TcpStream, link: Arc<Link>) {
    let mut inbox = BytesMut::new();
    loop {
        let (mut read, mut write) = client.split();
        let mut reader = Reader {
            read: &mut read,
            inbox: &mut inbox,
        };
        let Ok(head) = reader.head().await else { return };
        match exchange(reader, &mut write, head, &link).await {
            Next::Request => {}
            Next::Close => break,
            Next::Reset => {
                SockRef::from(&client).set_linger(Some(Duration::ZERO)).unwrap();
                return;
            }
        }
    }
    // Until its client has seen the answer.
    let _gone_by_now = client.shutdown().await;
    let drain = async { while client.read(&mut [0; 64 * 1024]).await.is_ok_and(|read| read > 0) {} };
    let _long_enough = tokio::time::timeout(Duration::from_secs(10), drain).await;
}

/// A request's head in HTTP/1.1.
struct Head {
    request: Request<()>,
    length: Option<u64>,
    chunked: bool,
    close: bool,
}

async fn exchange(reader: Reader<'_, '_>, write: &mut WriteHalf<'_>, head: Head, link: &Link) -> Next {
    let to_head = head.request.method() == "HEAD";
    let whole = !head.chunked && head.length.unwrap_or(0) == 0;
    let Some((answer, send)) = link.begin(&head.request, whole).await else {
        return Next::Reset;
    };
    let sent = AtomicBool::new(whole);
    let up = upload(reader, send, &head, &sent);
    let down = download(answer, write, to_head, head.close, &sent);
    tokio::select! {
        // The client has left: dropped, the stream is reset.
        () = up => Next::Reset,
        next = down => next.unwrap_or(Next::Reset),
    }
}

/// Sends the body, then waits for the client's end.
async fn upload(mut reader: Reader<'_, '_>, mut send: SendStream<Bytes>, head: &Head, sent: &AtomicBool) {
    if !sent.load(Ordering::Relaxed) {
        let result = match head.chunked {
            true => reader.chunks(&mut send).await,
            false => reader.bytes(head.length.unwrap_or(0), &mut send).await,
        };
        match result {
            Ok(Some(trailers)) => drop(send.send_trailers(trailers)),
            Ok(None) => drop(send.send_data(Bytes::new(), true)),
            Err(Ended::ByClient) => return,
            // Its answer tells.
            Err(Ended::ByGate) => std::future::pending().await,
        }
        sent.store(true, Ordering::Relaxed);
    }
    // What comes now is the next request.
    while reader.fill().await.is_ok() {}
}

async fn download(
    mut answer: ResponseFuture,
    write: &mut WriteHalf<'_>,
    to_head: bool,
    close: bool,
    sent: &AtomicBool,
) -> Result<Next, h2::Error> {
    let response = loop {
        let next = poll_fn(|cx| {
            if let Poll::Ready(Some(found)) = answer.poll_informational(cx) {
                return Poll::Ready(found.map(|interim| (interim.status(), None)));
            }
            Pin::new(&mut answer)
                .poll(cx)
                .map_ok(|found| (found.status(), Some(found)))
        });
        match next.await? {
            (_, Some(response)) => break response,
            (status, None) => {
                let interim = format!("HTTP/1.1 {} X\r\n\r\n", status.as_u16());
                if write.write_all(interim.as_bytes()).await.is_err() {
                    return Ok(Next::Reset);
                }
            }
        }
    };
    let close = close || !sent.load(Ordering::Relaxed);
    let bodiless = to_head || matches!(response.status().as_u16(), 204 | 304);
    let chunked = !bodiless && !response.headers().contains_key("content-length");
    let head = response_head(&response, chunked, close);
    if write.write_all(&head).await.is_err() {
        return Ok(Next::Reset);
    }
    let mut body = response.into_body();
    if !bodiless && !relay(&mut body, write, chunked).await? {
        return Ok(Next::Reset);
    }
    Ok(if close { Next::Close } else { Next::Request })
}

/// False where the client does not take it.
async fn relay(body: &mut RecvStream, write: &mut WriteHalf<'_>, chunked: bool) -> Result<bool, h2::Error> {
    while let Some(piece) = body.data().await {
        let piece = piece?;
        if piece.is_empty() {
            continue;
        }
        let framed = match chunked {
            true => [format!("{:x}\r\n", piece.len()).as_bytes(), &piece, b"\r\n"].concat(),
            false => piece.to_vec(),
        };
        if write.write_all(&framed).await.is_err() {
            return Ok(false);
        }
        body.flow_control().release_capacity(piece.len())?;
    }
    let trailers = body.trailers().await?;
    if !chunked {
        return Ok(true);
    }
    let mut end = b"0\r\n".to_vec();
    for (name, value) in trailers.iter().flatten() {
        put_field(&mut end, name, value);
    }
    end.extend(b"\r\n");
    Ok(write.write_all(&end).await.is_ok())
}

fn response_head(response: &Response<RecvStream>, chunked: bool, close: bool) -> Vec<u8> {
    let mut head = format!("HTTP/1.1 {} X\r\n", response.status().as_u16()).into_bytes();
    for (name, value) in response.headers() {
        put_field(&mut head, name, value);
    }
    if chunked {
        head.extend(b"transfer-encoding: chunked\r\n");
    }
    if close {
        head.extend(b"connection: close\r\n");
    }
    head.extend(b"\r\n");
    head
}

fn put_field(out: &mut Vec<u8>, name: &HeaderName, value: &HeaderValue) {
    out.extend(name.as_str().bytes());
    out.extend(b": ");
    out.extend(value.as_bytes());
    out.extend(b"\r\n");
}

/// Why a body went no further.
enum Ended {
    ByClient,
    ByGate,
}

/// What comes from a client.
struct Reader<'a, 'c> {
    read: &'a mut ReadHalf<'c>,
    inbox: &'a mut BytesMut,
}

impl Reader<'_, '_> {
    async fn fill(&mut self) -> io::Result<()> {
        self.inbox.reserve(64 * 1024);
        match self.read.read_buf(self.inbox).await? {
            0 => Err(io::ErrorKind::UnexpectedEof.into()),
            _ => Ok(()),
        }
    }

    async fn past(&mut self, end: &[u8]) -> io::Result<Bytes> {
        loop {
            if let Some(at) = self.inbox.windows(end.len()).position(|window| window == end) {
                return Ok(self.inbox.split_to(at + end.len()).freeze());
            }
            self.fill().await?;
        }
    }

    async fn head(&mut self) -> io::Result<Head> {
        let bytes = self.past(b"\r\n\r\n").await?;
        let mut lines = bytes[..bytes.len() - 4]
            .split(|byte| *byte == b'\n')
            .map(<[u8]>::trim_ascii);
        let line = String::from_utf8_lossy(lines.next().unwrap_or_default()).into_owned();
        let mut words = line.split(' ');
        let (method, target) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
        let fields = fields_of(lines);
        let text = |name: &str| fields.get(name).and_then(|value| value.to_str().ok());
        let uri = Uri::builder()
            .scheme("http")
            .authority(text("host").unwrap_or_default())
            .path_and_query(target)
            .build()
            .map_err(io::Error::other)?;
        let mut head = Head {
            request: Request::new(()),
            length: text("content-length").and_then(|length| length.parse().ok()),
            chunked: text("transfer-encoding").is_some(),
            close: text("connection").is_some_and(|value| value.eq_ignore_ascii_case("close")),
        };
        *head.request.method_mut() = method.parse().map_err(io::Error::other)?;
        *head.request.uri_mut() = uri;
        let of_the_connection = ["host", "connection", "transfer-encoding", "keep-alive", "upgrade"];
        let kept = fields
            .iter()
            .filter(|(name, _)| !of_the_connection.contains(&name.as_str()));
        *head.request.headers_mut() = kept.map(|(name, value)| (name.clone(), value.clone())).collect();
        Ok(head)
    }

    async fn bytes(
        &mut self,
        mut left: u64,
        send: &mut SendStream<Bytes>,
    ) -> Result<Option<HeaderMap>, Ended> {
        while left > 0 {
            if self.inbox.is_empty() {
                self.fill().await.map_err(|_| Ended::ByClient)?;
            }
            let len = usize::try_from(left).unwrap_or(usize::MAX).min(self.inbox.len());
            left -= len as u64;
            self.pass(len, send).await?;
        }
        Ok(None)
    }

    async fn chunks(&mut self, send: &mut SendStream<Bytes>) -> Result<Option<HeaderMap>, Ended> {
        loop {
            let line = self.past(b"\r\n").await.map_err(|_| Ended::ByClient)?;
            let digits = String::from_utf8_lossy(&line[..line.len() - 2]).into_owned();
            let size = u64::from_str_radix(&digits, 16).map_err(|_| Ended::ByClient)?;
            if size == 0 {
                break;
            }
            self.bytes(size, send).await?;
            self.past(b"\r\n").await.map_err(|_| Ended::ByClient)?;
        }
        let mut lines = Vec::new();
        loop {
            match self.past(b"\r\n").await.map_err(|_| Ended::ByClient)? {
                line if line == b"\r\n"[..] => break,
                line => lines.push(line),
            }
        }
        let trailers = fields_of(lines.iter().map(|line| line.trim_ascii()));
        Ok((!trailers.is_empty()).then_some(trailers))
    }

    /// Sends so many bytes of the inbox; a client that leaves meanwhile is noticed when they are through.
    async fn pass(&mut self, len: usize, send: &mut SendStream<Bytes>) -> Result<(), Ended> {
        let mut piece = self.inbox.split_to(len).freeze();
        while !piece.is_empty() {
            send.reserve_capacity(piece.len());
            let room = match poll_fn(|cx| send.poll_capacity(cx)).await {
                Some(Ok(room)) => room,
                Some(Err(_)) | None => return Err(Ended::ByGate),
            };
            let part = piece.split_to(room.min(piece.len()));
            send.send_data(part, false).map_err(|_| Ended::ByGate)?;
        }
        Ok(())
    }
}

fn fields_of<'a>(lines: impl Iterator<Item = &'a [u8]>) -> HeaderMap {
    let mut fields = HeaderMap::new();
    for line in lines {
        let Some(colon) = line.iter().position(|byte| *byte == b':') else {
            continue;
        };
        let name = HeaderName::from_bytes(&line[..colon]);
        let value = HeaderValue::from_bytes(line[colon + 1..].trim_ascii());
        if let (Ok(name), Ok(value)) = (name, value) {
            fields.append(name, value);
        }
    }
    fields
}
