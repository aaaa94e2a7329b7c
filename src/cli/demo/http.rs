//! HTTP/1.1 on a plain socket, just enough for the workers: a request a connection, and an upload that can be
//! left half-sent. It retries nothing. The workers, and the story's own look into the store, use it.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::ops::Range;
use std::time::Duration;

/// An answer, read whole.
#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    fields: Vec<(String, String)>,
    pub body: Vec<u8>,
}

/// A request that got no answer.
#[derive(Debug, thiserror::Error)]
pub enum HttpError {
    #[error("{address} can't be reached")]
    Unreachable {
        address: SocketAddr,
        source: std::io::Error,
    },
    #[error("the connection to {address} broke before the answer was there")]
    Broken {
        address: SocketAddr,
        source: std::io::Error,
    },
    #[error("{address} sent something that is not a plain HTTP answer: {found}")]
    Unclear { address: SocketAddr, found: String },
}

/// Where a request goes, and with which token, if any.
#[derive(Clone, Copy, Debug)]
pub struct Target<'a> {
    pub address: SocketAddr,
    pub path: &'a str,
    pub token: Option<u64>,
}

impl Answer {
    /// The first field of that name.
    pub fn field(&self, name: &str) -> Option<&str> {
        self.fields
            .iter()
            .find(|(field, _)| field.eq_ignore_ascii_case(name))
            .map(|(_, value)| value.as_str())
    }
}

impl Target<'_> {
    /// Reads the object.
    ///
    /// # Errors
    /// [`HttpError`] when no answer came, whatever its status.
    pub fn get(self) -> Result<Answer, HttpError> {
        let mut stream = self.connect("GET", "")?;
        read_answer(&mut stream, self.address)
    }

    /// Writes the object, all at once.
    ///
    /// # Errors
    /// [`HttpError`] when no answer came, whatever its status.
    pub fn put(self, body: &[u8]) -> Result<Answer, HttpError> {
        let mut upload = self.start_put(body)?;
        upload.send_to(body.len());
        upload.answer()
    }

    /// Sends the head of a PUT and none of its body.
    ///
    /// # Errors
    /// [`HttpError`] when the connection couldn't be made or broke at once.
    pub fn start_put<'b>(self, body: &'b [u8]) -> Result<Upload<'b>, HttpError> {
        let stream = self.connect("PUT", &format!("Content-Length: {}\r\n", body.len()))?;
        Ok(Upload {
            stream,
            address: self.address,
            body,
            sent: 0,
        })
    }

    fn connect(self, method: &str, fields: &str) -> Result<TcpStream, HttpError> {
        let address = self.address;
        let mut stream =
            TcpStream::connect(address).map_err(|source| HttpError::Unreachable { address, source })?;
        let token = self
            .token
            .map_or_else(String::new, |token| format!("Fencing-Token: {token}\r\n"));
        let head = format!(
            "{method} {} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n{token}{fields}\r\n",
            self.path
        );
        stream
            .set_read_timeout(Some(SOCKET_TIMEOUT))
            .and_then(|()| stream.set_write_timeout(Some(SOCKET_TIMEOUT)))
            .and_then(|()| stream.write_all(head.as_bytes()))
            .map_err(|source| HttpError::Broken { address, source })?;
        Ok(stream)
    }
}

/// A PUT under way.
pub struct Upload<'a> {
    stream: TcpStream,
    address: SocketAddr,
    body: &'a [u8],
    /// How much of the body has been handed to the kernel.
    pub sent: usize,
}

impl Upload<'_> {
    /// Sends until `end` bytes of the body are sent. Stops earlier if an answer has come, as good clients do,
    /// or if the connection breaks: [`Upload::answer`] then tells.
    pub fn send_to(&mut self, end: usize) {
        while self.sent < end && !self.has_answer() {
            let piece = &self.body[self.sent..end.min(self.sent + PIECE)];
            if self.stream.write_all(piece).is_err() {
                return;
            }
            self.sent += piece.len();
        }
    }

    /// Waits for the answer and reads it.
    ///
    /// # Errors
    /// [`HttpError`] when no answer came, whatever its status.
    pub fn answer(mut self) -> Result<Answer, HttpError> {
        read_answer(&mut self.stream, self.address)
    }

    /// Whether something, or the end, has come from the other side.
    fn has_answer(&self) -> bool {
        // On an error nothing is known: sending on will show it.
        self.stream.set_nonblocking(true).is_ok()
            && match (self.stream.peek(&mut [0]), self.stream.set_nonblocking(false)) {
                (Err(error), _) if error.kind() == ErrorKind::WouldBlock => false,
                (Ok(_) | Err(_), _) => true,
            }
    }
}

fn read_answer(stream: &mut TcpStream, address: SocketAddr) -> Result<Answer, HttpError> {
    let mut bytes = vec![];
    loop {
        if let Some((mut answer, body)) = parse_head(&bytes, address)?
            && bytes.len() >= body.end
        {
            answer.body = bytes[body].to_vec();
            return Ok(answer);
        }
        let mut piece = [0; PIECE];
        let read = match stream.read(&mut piece) {
            Ok(0) => Err(ErrorKind::UnexpectedEof.into()),
            other => other,
        };
        let read = read.map_err(|source| HttpError::Broken { address, source })?;
        bytes.extend_from_slice(&piece[..read]);
    }
}

/// The answer without its body, and where in the bytes the body stands or will stand; `None` while the head is
/// not whole.
fn parse_head(bytes: &[u8], address: SocketAddr) -> Result<Option<(Answer, Range<usize>)>, HttpError> {
    let unclear = |found: String| HttpError::Unclear { address, found };
    let mut fields = [httparse::EMPTY_HEADER; 64];
    let mut head = httparse::Response::new(&mut fields);
    let start = match head.parse(bytes).map_err(|error| unclear(error.to_string()))? {
        httparse::Status::Complete(start) => start,
        httparse::Status::Partial => return Ok(None),
    };
    let answer = Answer {
        status: head.code.expect("a complete head has a status"),
        fields: head
            .headers
            .iter()
            .map(|field| {
                (
                    field.name.to_owned(),
                    String::from_utf8_lossy(field.value).into_owned(),
                )
            })
            .collect(),
        body: vec![],
    };
    let length: usize = answer
        .field("Content-Length")
        .and_then(|length| length.parse().ok())
        .ok_or_else(|| unclear(format!("status {} without a Content-Length", answer.status)))?;
    Ok(Some((answer, start..start.saturating_add(length))))
}

/// How much is sent or read at a time.
const PIECE: usize = 16 * 1024;
/// How long one read or write may take: longer than any wait in the story.
const SOCKET_TIMEOUT: Duration = Duration::from_secs(10);
