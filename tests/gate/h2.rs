//! HTTP/2 in front of the gate, for what is well-formed: the h2 crate's client behind calls that block, so that tests
//! read like those of HTTP/1.1. All connections of a test program run on one small runtime.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::OnceLock;
use std::task::Poll;
use std::thread::JoinHandle;

use bytes::Bytes;
use h2::client::{Builder, ResponseFuture, SendRequest};
use h2::{Reason, RecvStream, SendStream};
use http::{HeaderMap, HeaderName, HeaderValue, Request};
use tokio::net::TcpStream;
use tokio::runtime::Handle;

use super::{Ask, PATIENCE, Reply};

/// The runtime of all connections: it lives as long as the program.
pub fn runtime() -> &'static Handle {
    static RUNTIME: OnceLock<Handle> = OnceLock::new();
    RUNTIME.get_or_init(|| {
        let (tell, told) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .unwrap();
            tell.send(runtime.handle().clone()).unwrap();
            runtime.block_on(std::future::pending::<()>());
        });
        told.recv().unwrap()
    })
}

/// Waits for it, with a test's patience.
#[track_caller]
pub fn wait<T>(what: impl Future<Output = T>) -> T {
    let waited = runtime().block_on(async { tokio::time::timeout(PATIENCE, what).await });
    waited.expect("it never happened")
}

/// One connection, with prior knowledge.
pub struct Client {
    sender: SendRequest<Bytes>,
    driver: tokio::task::JoinHandle<Result<(), h2::Error>>,
}

impl Client {
    #[track_caller]
    pub fn open(port: u16) -> Client {
        Client::with(port, |_| {})
    }

    #[track_caller]
    pub fn with(port: u16, configure: impl FnOnce(&mut Builder)) -> Client {
        let mut builder = Builder::new();
        configure(&mut builder);
        let (sender, connection) = wait(async {
            let stream = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
            stream.set_nodelay(true).unwrap();
            builder.handshake(stream).await.unwrap()
        });
        let driver = runtime().spawn(connection);
        Client { sender, driver }
    }

    /// Sends the head; the body is to come.
    #[track_caller]
    pub fn begin(&self, ask: &Ask) -> Exchange {
        self.begin_raw(request(ask), false)
    }

    /// Sends a head of any kind.
    #[track_caller]
    pub fn begin_raw(&self, request: Request<()>, whole: bool) -> Exchange {
        let mut sender = self.sender.clone();
        let (answer, send) = wait(async {
            poll_fn(|cx| sender.poll_ready(cx)).await?;
            sender.send_request(request, whole)
        })
        .unwrap();
        Exchange { send, answer }
    }

    #[track_caller]
    pub fn send(&self, ask: Ask) -> Reply {
        self.start(&ask).reply()
    }

    /// Sends a whole request.
    #[track_caller]
    pub fn start(&self, ask: &Ask) -> Exchange {
        let mut exchange = self.begin_raw(request(ask), ask.body.is_empty());
        if !ask.body.is_empty() {
            let size = ask.chunked.unwrap_or(usize::MAX);
            let mut pieces = ask.body.chunks(size).peekable();
            while let Some(piece) = pieces.next() {
                exchange.offer(piece.to_vec(), pieces.peek().is_none());
            }
        }
        exchange
    }

    /// Ends the connection without a word.
    pub fn kill(self) {
        self.driver.abort();
    }

    /// Waits for the connection's end, which is the gate's doing.
    #[track_caller]
    pub fn ended(self) -> Result<(), h2::Error> {
        wait(self.driver).unwrap()
    }
}

/// The head that says what the same request says in HTTP/1.1.
fn request(ask: &Ask) -> Request<()> {
    let mut request = Request::builder()
        .method(ask.method.as_str())
        .uri(format!("http://store.test{}", ask.target));
    for (name, value) in &ask.fields {
        request = request.header(name.to_ascii_lowercase(), value);
    }
    let writes = !matches!(ask.method.as_str(), "GET" | "HEAD" | "DELETE" | "OPTIONS");
    if ask.chunked.is_none() && (writes || !ask.body.is_empty()) {
        request = request.header("content-length", ask.body.len());
    }
    request.body(()).unwrap()
}

/// A stream under way.
pub struct Exchange {
    send: SendStream<Bytes>,
    answer: ResponseFuture,
}

impl Exchange {
    /// Sends a piece as soon as the gate's windows take it, and does not wait for that.
    pub fn offer(&mut self, piece: impl Into<Bytes>, last: bool) {
        // Where the stream was ended by the gate, its answer says more than this error.
        let _told_by_the_answer = self.send.send_data(piece.into(), last);
    }

    /// Sends a piece that ends nothing, and waits until the gate's windows have taken it.
    #[track_caller]
    pub fn data(&mut self, piece: impl Into<Bytes>) -> &mut Self {
        let mut piece = piece.into();
        wait(async {
            while !piece.is_empty() {
                self.send.reserve_capacity(piece.len());
                let room = poll_fn(|cx| self.send.poll_capacity(cx)).await.unwrap().unwrap();
                let part = piece.split_to(room.min(piece.len()));
                self.send.send_data(part, false).unwrap();
            }
        });
        self
    }

    #[track_caller]
    pub fn end(&mut self) -> &mut Self {
        self.send.send_data(Bytes::new(), true).unwrap();
        self
    }

    #[track_caller]
    pub fn trailers(&mut self, fields: &[(&'static str, &str)]) -> &mut Self {
        let mut map = HeaderMap::new();
        for (name, value) in fields {
            map.append(
                HeaderName::from_static(name),
                HeaderValue::from_str(value).unwrap(),
            );
        }
        self.send.send_trailers(map).unwrap();
        self
    }

    /// Resets the stream.
    pub fn reset(mut self) {
        self.send.send_reset(Reason::CANCEL);
    }

    #[track_caller]
    pub fn reply(self) -> Reply {
        self.try_reply().unwrap()
    }

    #[track_caller]
    pub fn try_reply(self) -> Result<Reply, h2::Error> {
        wait(self.read())
    }

    /// Waits for the answer in a thread of its own.
    pub fn spawn(self) -> JoinHandle<Result<Reply, h2::Error>> {
        std::thread::spawn(move || self.try_reply())
    }

    /// The answer's head, and its body to be read.
    #[track_caller]
    pub fn head(self) -> (Reply, RecvStream, SendStream<Bytes>) {
        let Exchange { send, answer } = self;
        let (reply, body) = wait(read_head(answer)).unwrap();
        (reply, body, send)
    }

    async fn read(self) -> Result<Reply, h2::Error> {
        let Exchange { send, answer } = self;
        let (mut reply, mut body) = read_head(answer).await?;
        while let Some(piece) = body.data().await {
            let piece = piece?;
            body.flow_control().release_capacity(piece.len())?;
            reply.body.extend_from_slice(&piece);
        }
        for (name, value) in body.trailers().await?.iter().flatten() {
            reply.trailers += &line(name, value);
        }
        drop(send);
        Ok(reply)
    }
}

async fn read_head(mut answer: ResponseFuture) -> Result<(Reply, RecvStream), h2::Error> {
    let mut interim = Vec::new();
    let response = poll_fn(|cx| {
        while let Poll::Ready(Some(found)) = answer.poll_informational(cx) {
            match found {
                Ok(found) => interim.push(found.status().as_u16()),
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
        Pin::new(&mut answer).poll(cx)
    })
    .await?;
    let (parts, body) = response.into_parts();
    let status = parts.status.as_u16();
    let mut head = format!("HTTP/2 {status}\r\n");
    for (name, value) in &parts.headers {
        head += &line(name, value);
    }
    let reply = Reply {
        status,
        head: head.trim_end().to_owned(),
        body: Vec::new(),
        interim,
        trailers: String::new(),
    };
    Ok((reply, body))
}

fn line(name: &HeaderName, value: &HeaderValue) -> String {
    format!("{name}: {}\r\n", String::from_utf8_lossy(value.as_bytes()))
}
