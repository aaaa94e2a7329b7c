//! One stream: its request goes into a pipe as an HTTP/1.1 request, and what comes out goes back as HTTP/2.
//!
//! It decides nothing: whether a client is allowed, how long it waits and when a write counts is the relay's
//! business at the near end of the pipe.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use h2::server::SendResponse;
use h2::{Reason, RecvStream, SendStream};
use http::{HeaderMap, HeaderName, HeaderValue, Response, StatusCode};

use super::super::Gate;
use super::super::answer::Answer;
use super::super::request::in_trailers;
use super::head::is_of_the_connection;
use crate::base::Buf;
use crate::net::{Came, Far};
use crate::wire::http1::{
    BodyReader, CHUNK_END, Framing, Header, HeaderStorage, Piece, ResponseHead, find_head_end,
    parse_response, trailer_fields, write_chunk_head, write_last_chunk,
};

/// The largest head or trailer section of an answer; the relay has checked it by the same measure.
const ANSWER_HEAD_MAX: usize = 256 * 1024;
/// Up to this size a piece is copied: as a part of what was read it would keep all of that in memory.
const SMALL: usize = 2 * 1024;
/// How long a client has to read an answer that came early, before it is told to stop sending.
const EARLY_ANSWER: Duration = Duration::from_secs(1);

/// A stream under way.
pub struct Pump {
    far: Far,
    up: Up,
    down: Down,
    /// The method, as far as the reading of an answer depends on it.
    method: &'static str,
    inbox: Buf,
}

/// The request's way.
struct Up {
    gate: Arc<Gate>,
    body: RecvStream,
    framing: Framing,
    /// With a length, the last piece waits until it is known that no trailers follow it, or which.
    held: Option<Bytes>,
    left: u64,
    state: UpState,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum UpState {
    Data,
    Trailers,
    Done,
}

/// The answer's way.
enum Down {
    Head {
        respond: SendResponse<Bytes>,
        searched: usize,
    },
    Body {
        stream: SendStream<Bytes>,
        reader: BodyReader,
        piece: Bytes,
    },
    Done {
        stream: Option<SendStream<Bytes>>,
    },
}

/// What ends a stream other than its whole answer.
enum Broken {
    /// The client has reset it, or its connection is gone.
    ByClient,
    /// The answer was cut off.
    Answer,
}

impl Pump {
    /// A pump for the rest of a request whose head was written to the near end.
    pub fn new(
        gate: Arc<Gate>,
        far: Far,
        body: RecvStream,
        respond: SendResponse<Bytes>,
        framing: Framing,
        head_only: bool,
    ) -> Pump {
        let left = match framing {
            Framing::Length(length) => length,
            Framing::None | Framing::Chunked | Framing::UntilClose => 0,
        };
        Pump {
            far,
            up: Up {
                gate,
                body,
                framing,
                held: None,
                left,
                state: UpState::Data,
            },
            down: Down::Head { respond, searched: 0 },
            method: if head_only { "HEAD" } else { "GET" },
            inbox: Buf::default(),
        }
    }

    /// Runs until the answer is through or the client is gone. True where the client ended it.
    pub async fn run(mut self) -> bool {
        let ended = poll_fn(|cx| self.poll(cx)).await;
        match ended {
            Ok(()) => {
                self.far.end();
                self.let_it_be_read().await;
                false
            }
            Err(Broken::ByClient) => {
                self.far.reset();
                true
            }
            Err(Broken::Answer) => {
                match &mut self.down {
                    Down::Head { respond, .. } => respond.send_reset(Reason::INTERNAL_ERROR),
                    Down::Body { stream, .. } => stream.send_reset(Reason::INTERNAL_ERROR),
                    Down::Done { .. } => {}
                }
                false
            }
        }
    }

    /// The answer came before the request was through: the stream will be reset, so that the client stops. Some clients
    /// lose an answer that comes together with a reset, so it gets a moment; its window is not opened any more.
    async fn let_it_be_read(&mut self) {
        if self.up.state == UpState::Done {
            return;
        }
        let Pump { up, down, .. } = self;
        let over = poll_fn(|cx| {
            // Often all of it is on its way already; then nothing is left to stop.
            while let Poll::Ready(came) = up.body.poll_data(cx) {
                if !matches!(came, Some(Ok(_))) {
                    return Poll::Ready(());
                }
            }
            match down {
                Down::Done { stream: Some(stream) } => stream.poll_reset(cx).map(drop),
                Down::Head { .. } | Down::Body { .. } | Down::Done { stream: None } => Poll::Ready(()),
            }
        });
        let _late = tokio::time::timeout(EARLY_ANSWER, over).await;
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Broken>> {
        // Its result is only an error: a request that is through says nothing about the answer.
        if let Poll::Ready(Err(broken)) = self.poll_up(cx) {
            return Poll::Ready(Err(broken));
        }
        if let Poll::Ready(ended) = self.poll_down(cx) {
            return Poll::Ready(ended);
        }
        if self.far.poll_broken(cx).is_ready() {
            return Poll::Ready(Err(Broken::Answer));
        }
        let reset = match &mut self.down {
            Down::Head { respond, .. } => respond.poll_reset(cx),
            Down::Body { stream, .. } => stream.poll_reset(cx),
            Down::Done { .. } => Poll::Pending,
        };
        reset.map(|_reason| Err(Broken::ByClient))
    }

    fn poll_up(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Broken>> {
        let Pump { far, up, .. } = self;
        loop {
            match up.state {
                UpState::Data => {
                    ready!(far.poll_room(cx));
                    match ready!(up.body.poll_data(cx)) {
                        Some(Ok(data)) => {
                            let taken = up.body.flow_control().release_capacity(data.len());
                            taken.map_err(|_| Broken::ByClient)?;
                            up.take(far, data);
                        }
                        Some(Err(_)) => return Poll::Ready(Err(Broken::ByClient)),
                        None => up.state = UpState::Trailers,
                    }
                }
                UpState::Trailers => {
                    let trailers = ready!(up.body.poll_trailers(cx)).map_err(|_| Broken::ByClient)?;
                    up.finish(far, trailers);
                    up.state = UpState::Done;
                }
                UpState::Done => return Poll::Ready(Ok(())),
            }
        }
    }

    fn poll_down(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Broken>> {
        loop {
            let Pump {
                down, inbox, method, ..
            } = self;
            let moved = match down {
                Down::Head { respond, searched } => match find_head_end(inbox.filled(), *searched) {
                    Some(end) => {
                        let next = take_head(respond, method, inbox, end)?;
                        inbox.consume(end);
                        if let Some(next) = next {
                            *down = next;
                        } else {
                            *searched = 0;
                        }
                        true
                    }
                    None => {
                        *searched = inbox.len();
                        false
                    }
                },
                Down::Body {
                    stream,
                    reader,
                    piece,
                } => match ready!(poll_body(stream, reader, piece, inbox, cx))? {
                    Fed::Moved => true,
                    Fed::Empty => false,
                    Fed::Over => {
                        let over = std::mem::replace(down, Down::Done { stream: None });
                        if let Down::Body { stream, .. } = over {
                            *down = Down::Done { stream: Some(stream) };
                        }
                        true
                    }
                },
                Down::Done { .. } => return Poll::Ready(Ok(())),
            };
            if !moved {
                match ready!(self.far.poll_answer(cx, &mut self.inbox)) {
                    Came::Bytes => {}
                    Came::End | Came::Reset => return Poll::Ready(Err(Broken::Answer)),
                }
            }
        }
    }
}

impl Up {
    fn take(&mut self, far: &mut Far, data: Bytes) {
        let data = match data.len() {
            0 => return,
            1..=SMALL => Bytes::copy_from_slice(&data),
            _ => data,
        };
        if self.framing == Framing::Chunked {
            let mut size = Vec::with_capacity(10);
            write_chunk_head(&mut size, data.len());
            far.send(size.into());
            far.send(data);
            far.send(Bytes::from_static(CHUNK_END));
            return;
        }
        self.left = self.left.saturating_sub(data.len() as u64);
        if let Some(before) = self.held.replace(data) {
            far.send(before);
        }
        if self.left > 0
            && let Some(data) = self.held.take()
        {
            far.send(data);
        }
    }

    /// The body is through. Trailers go with chunks; behind a length HTTP/1.1 has no place for them, and they are left
    /// out.
    fn finish(&mut self, far: &mut Far, trailers: Option<HeaderMap>) {
        if self.framing == Framing::Chunked {
            let mut lines = Vec::new();
            for (name, value) in trailers.iter().flatten() {
                lines.extend_from_slice(name.as_str().as_bytes());
                lines.extend_from_slice(b": ");
                lines.extend_from_slice(value.as_bytes());
                lines.extend_from_slice(CHUNK_END);
            }
            let mut end = Vec::with_capacity(lines.len() + 8);
            write_last_chunk(&mut end, &lines);
            far.send(end.into());
        } else if has_token(&self.gate, trailers.as_ref()) {
            // Before its last byte has left: the write can still be refused.
            return far.refuse();
        } else if let Some(last) = self.held.take() {
            far.send(last);
        }
        far.end();
    }
}

fn has_token(gate: &Gate, trailers: Option<&HeaderMap>) -> bool {
    let rules = &gate.listener.rules;
    trailers.is_some_and(|map| map.keys().any(|name| rules.reads_header(name.as_str())))
}

/// Why a head begins no request.
pub enum NoRequest {
    /// Its client has reset the stream, or broke it.
    Reset,
    /// It is refused.
    Refused(Box<Answer>),
}

impl From<Answer> for NoRequest {
    fn from(answer: Answer) -> NoRequest {
        NoRequest::Refused(Box::new(answer))
    }
}

/// Reads a body of no bytes to the end of its stream. Bytes in it are malformed (RFC 9113, 8.1.1), and the h2 crate
/// resets the stream for them.
pub async fn read_nothing(gate: &Gate, body: &mut RecvStream) -> Result<(), NoRequest> {
    while let Some(piece) = body.data().await {
        piece.map_err(|_| NoRequest::Reset)?;
    }
    let trailers = body.trailers().await.map_err(|_| NoRequest::Reset)?;
    match has_token(gate, trailers.as_ref()) {
        true => Err(in_trailers().into()),
        false => Ok(()),
    }
}

/// How a step through an answer's body went.
enum Fed {
    Moved,
    Empty,
    Over,
}

fn poll_body(
    stream: &mut SendStream<Bytes>,
    reader: &mut BodyReader,
    piece: &mut Bytes,
    inbox: &mut Buf,
    cx: &mut Context<'_>,
) -> Poll<Result<Fed, Broken>> {
    if !piece.is_empty() {
        stream.reserve_capacity(piece.len());
        let room = match ready!(stream.poll_capacity(cx)) {
            Some(Ok(room)) => room,
            Some(Err(_)) | None => return Poll::Ready(Err(Broken::ByClient)),
        };
        let part = piece.split_to(room.min(piece.len()));
        let last = piece.is_empty() && reader.is_done();
        let sent = stream.send_data(part, last).map_err(|_| Broken::ByClient);
        return Poll::Ready(sent.map(|()| if last { Fed::Over } else { Fed::Moved }));
    }
    let found = reader.next(inbox.filled()).map_err(|_| Broken::Answer)?;
    Poll::Ready(Ok(match found {
        Piece::Data { skip, len } => {
            *piece = Bytes::copy_from_slice(&inbox.filled()[skip..skip + len]);
            inbox.consume(skip + len);
            Fed::Moved
        }
        Piece::NeedMore { skip } => {
            inbox.consume(skip);
            Fed::Empty
        }
        Piece::End { consumed, trailers } => {
            let trailers = fields_of(trailer_fields(&inbox.filled()[trailers]));
            let sent = if trailers.is_empty() {
                stream.send_data(Bytes::new(), true)
            } else {
                stream.send_trailers(trailers)
            };
            inbox.consume(consumed);
            sent.map_err(|_| Broken::ByClient)?;
            Fed::Over
        }
    }))
}

/// Sends an answer's head; gives what follows a final one.
fn take_head(
    respond: &mut SendResponse<Bytes>,
    method: &str,
    inbox: &Buf,
    end: usize,
) -> Result<Option<Down>, Broken> {
    let mut storage = HeaderStorage::new();
    let head = parse_response(&inbox.filled()[..end], method, &mut storage).map_err(|_| Broken::Answer)?;
    let response = converted(&head)?;
    if head.is_interim() {
        respond
            .send_informational(response)
            .map_err(|_| Broken::ByClient)?;
        return Ok(None);
    }
    let bodiless = head.framing.is_empty();
    let stream = respond
        .send_response(response, bodiless)
        .map_err(|_| Broken::ByClient)?;
    Ok(Some(if bodiless {
        Down::Done { stream: Some(stream) }
    } else {
        Down::Body {
            stream,
            reader: BodyReader::new(head.framing, ANSWER_HEAD_MAX),
            piece: Bytes::new(),
        }
    }))
}

fn converted(head: &ResponseHead<'_, '_>) -> Result<Response<()>, Broken> {
    let mut response = Response::new(());
    *response.status_mut() = StatusCode::from_u16(head.status).map_err(|_| Broken::Answer)?;
    *response.headers_mut() = fields_of(head.fields.iter().map(|Header { name, value }| (*name, *value)));
    Ok(response)
}

/// What can be said in HTTP/2 of these fields: all but the connection's.
fn fields_of<'a>(fields: impl Iterator<Item = (&'a str, &'a [u8])>) -> HeaderMap {
    let mut map = HeaderMap::new();
    for (name, value) in fields {
        let (Ok(name), Ok(value)) = (
            HeaderName::from_bytes(name.as_bytes()),
            HeaderValue::from_bytes(value),
        ) else {
            continue;
        };
        if !is_of_the_connection(&name) {
            map.append(name, value);
        }
    }
    map
}
