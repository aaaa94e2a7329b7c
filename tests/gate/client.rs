//! HTTP/1.1 by hand, in front of the gate.

use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection};

use super::PATIENCE;

/// An answer.
#[derive(Clone, Debug)]
pub struct Reply {
    pub status: u16,
    /// The head as it came, without its empty line.
    pub head: String,
    pub body: Vec<u8>,
    /// The interim answers before it.
    pub interim: Vec<u16>,
    /// Trailer lines as they came.
    pub trailers: String,
}

impl Reply {
    /// The value of a field.
    pub fn field(&self, name: &str) -> Option<&str> {
        field(&self.head, name)
    }

    pub fn reason(&self) -> &str {
        self.field("fencegate-reason").unwrap_or("")
    }

    pub fn json(&self) -> serde_json::Value {
        serde_json::from_slice(&self.body)
            .unwrap_or_else(|error| panic!("{error}: {}", String::from_utf8_lossy(&self.body)))
    }

    /// Asserts status and reason at once, and shows all where they differ.
    #[track_caller]
    pub fn is(&self, status: u16, reason: &str) -> &Self {
        assert!(
            self.status == status && self.reason() == reason,
            "expected {status} {reason:?}: {self:?}"
        );
        self
    }

    /// Asserts an answer of the store itself.
    #[track_caller]
    pub fn is_ok(&self) -> &Self {
        self.is(200, "")
    }
}

fn field<'h>(head: &'h str, name: &str) -> Option<&'h str> {
    head.lines().skip(1).find_map(|line| {
        let (found, value) = line.split_once(':')?;
        found.eq_ignore_ascii_case(name).then(|| value.trim())
    })
}

/// One connection to the gate.
#[derive(Debug)]
pub struct Conn {
    pub stream: TcpStream,
    pub tls: Option<ClientConnection>,
    inbox: Vec<u8>,
}

impl Conn {
    pub fn open(port: u16) -> Conn {
        Conn::try_open(port).unwrap()
    }

    pub fn try_open(port: u16) -> io::Result<Conn> {
        Ok(Conn::of(TcpStream::connect(("127.0.0.1", port))?))
    }

    /// A connection that is open already.
    pub fn of(stream: TcpStream) -> Conn {
        stream.set_nodelay(true).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.set_write_timeout(Some(PATIENCE)).unwrap();
        Conn {
            stream,
            tls: None,
            inbox: Vec::new(),
        }
    }

    /// By TLS, to what must be `localhost`.
    #[track_caller]
    pub fn open_tls(port: u16, config: &Arc<ClientConfig>) -> Conn {
        Conn::try_open_tls(port, config).unwrap()
    }

    pub fn try_open_tls(port: u16, config: &Arc<ClientConfig>) -> io::Result<Conn> {
        let mut conn = Conn::try_open(port)?;
        let name = ServerName::try_from("localhost").unwrap();
        let mut tls = ClientConnection::new(Arc::clone(config), name).unwrap();
        while tls.is_handshaking() {
            tls.complete_io(&mut conn.stream)?;
        }
        conn.tls = Some(tls);
        Ok(conn)
    }

    pub fn send(&mut self, bytes: impl AsRef<[u8]>) -> &mut Self {
        self.try_send(bytes).unwrap();
        self
    }

    pub fn try_send(&mut self, bytes: impl AsRef<[u8]>) -> io::Result<()> {
        match &mut self.tls {
            None => self.stream.write_all(bytes.as_ref()),
            Some(tls) => {
                let mut stream = rustls::Stream::new(tls, &mut self.stream);
                stream.write_all(bytes.as_ref())?;
                stream.flush()
            }
        }
    }

    /// Ends our side.
    pub fn end(&mut self) {
        self.stream.shutdown(Shutdown::Write).unwrap();
    }

    pub fn patience(&mut self, patience: Duration) -> &mut Self {
        self.stream.set_read_timeout(Some(patience)).unwrap();
        self
    }

    /// The answer to a request that is not a HEAD.
    #[track_caller]
    pub fn reply(&mut self) -> Reply {
        self.try_reply(false).unwrap()
    }

    /// The answer to a HEAD.
    #[track_caller]
    pub fn reply_to_head(&mut self) -> Reply {
        self.try_reply(true).unwrap()
    }

    pub fn try_reply(&mut self, to_head: bool) -> io::Result<Reply> {
        let mut interim = Vec::new();
        loop {
            let head = self.read_head()?;
            let status = head
                .get(9..12)
                .and_then(|digits| digits.parse().ok())
                .ok_or_else(|| io::Error::other(format!("no status in {head:?}")))?;
            if (100..200).contains(&status) && status != 101 {
                interim.push(status);
                continue;
            }
            let (body, trailers) = self.read_body(&head, status, to_head)?;
            return Ok(Reply {
                status,
                head,
                body,
                interim,
                trailers,
            });
        }
    }

    /// The next head, without its empty line.
    pub fn read_head(&mut self) -> io::Result<String> {
        let bytes = self.read_past(b"\r\n\r\n")?;
        Ok(String::from_utf8_lossy(&bytes[..bytes.len() - 4]).into_owned())
    }

    fn read_body(&mut self, head: &str, status: u16, to_head: bool) -> io::Result<(Vec<u8>, String)> {
        if to_head || status == 204 || status == 304 {
            return Ok((Vec::new(), String::new()));
        }
        if field(head, "transfer-encoding").is_some() {
            return self.read_chunks();
        }
        match field(head, "content-length") {
            Some(length) => Ok((self.read_exactly(length.parse().unwrap())?, String::new())),
            None => Ok((self.read_to_end()?, String::new())),
        }
    }

    fn read_chunks(&mut self) -> io::Result<(Vec<u8>, String)> {
        let mut body = Vec::new();
        loop {
            let line = self.read_past(b"\r\n")?;
            let digits = String::from_utf8_lossy(&line[..line.len() - 2]).into_owned();
            let size = usize::from_str_radix(&digits, 16).map_err(io::Error::other)?;
            if size == 0 {
                break;
            }
            body.extend(self.read_exactly(size)?);
            assert_eq!(self.read_exactly(2)?, b"\r\n");
        }
        let mut trailers = String::new();
        loop {
            let line = self.read_past(b"\r\n")?;
            if line == b"\r\n" {
                return Ok((body, trailers));
            }
            trailers.push_str(&String::from_utf8_lossy(&line));
        }
    }

    /// Everything up to the end of the connection.
    pub fn read_to_end(&mut self) -> io::Result<Vec<u8>> {
        while self.fill()? > 0 {}
        Ok(std::mem::take(&mut self.inbox))
    }

    fn read_past(&mut self, end: &[u8]) -> io::Result<Vec<u8>> {
        loop {
            if let Some(at) = self.inbox.windows(end.len()).position(|w| w == end) {
                let rest = self.inbox.split_off(at + end.len());
                return Ok(std::mem::replace(&mut self.inbox, rest));
            }
            self.fill_or_fail()?;
        }
    }

    pub fn read_exactly(&mut self, len: usize) -> io::Result<Vec<u8>> {
        while self.inbox.len() < len {
            self.fill_or_fail()?;
        }
        let rest = self.inbox.split_off(len);
        Ok(std::mem::replace(&mut self.inbox, rest))
    }

    fn fill_or_fail(&mut self) -> io::Result<()> {
        match self.fill()? {
            0 => Err(io::Error::new(
                io::ErrorKind::UnexpectedEof,
                format!(
                    "the connection ended after {:?}",
                    String::from_utf8_lossy(&self.inbox)
                ),
            )),
            _ => Ok(()),
        }
    }

    fn fill(&mut self) -> io::Result<usize> {
        let mut room = vec![0; 256 * 1024];
        let read = match &mut self.tls {
            None => self.stream.read(&mut room)?,
            Some(tls) => rustls::Stream::new(tls, &mut self.stream).read(&mut room)?,
        };
        self.inbox.extend_from_slice(&room[..read]);
        Ok(read)
    }

    /// Asserts that the gate ends the connection and sends nothing more, in order or by a reset.
    #[track_caller]
    pub fn is_closed(&mut self) {
        match self.read_to_end() {
            Ok(rest) => assert!(rest.is_empty(), "more came: {:?}", String::from_utf8_lossy(&rest)),
            Err(error) => assert_eq!(error.kind(), io::ErrorKind::ConnectionReset, "{error}"),
        }
    }
}

/// A request's head. `length` is its Content-Length.
pub fn head(
    method: &str,
    target: &str,
    token: Option<u64>,
    length: Option<usize>,
    fields: &[(&str, &str)],
) -> String {
    let mut head = format!("{method} {target} HTTP/1.1\r\nHost: store.test\r\n");
    if let Some(token) = token {
        head.push_str(&format!("Fencing-Token: {token}\r\n"));
    }
    for (name, value) in fields {
        head.push_str(&format!("{name}: {value}\r\n"));
    }
    if let Some(length) = length {
        head.push_str(&format!("Content-Length: {length}\r\n"));
    }
    head + "\r\n"
}

/// A request to be sent on a connection of its own.
#[derive(Clone, Debug)]
pub struct Ask {
    pub method: String,
    pub target: String,
    pub fields: Vec<(String, String)>,
    pub body: Vec<u8>,
    pub chunked: Option<usize>,
}

/// A request without a token.
pub fn ask(method: &str, target: &str) -> Ask {
    Ask {
        method: method.into(),
        target: target.into(),
        fields: Vec::new(),
        body: Vec::new(),
        chunked: None,
    }
}

impl Ask {
    pub fn token(self, token: impl ToString) -> Ask {
        self.field("Fencing-Token", token)
    }

    pub fn field(mut self, name: &str, value: impl ToString) -> Ask {
        self.fields.push((name.into(), value.to_string()));
        self
    }

    pub fn body(mut self, body: impl Into<Vec<u8>>) -> Ask {
        self.body = body.into();
        self
    }

    /// Sends the body in chunks of so many bytes.
    pub fn chunked(mut self, chunk: usize) -> Ask {
        self.chunked = Some(chunk);
        self
    }

    /// The bytes on the wire.
    pub fn bytes(&self) -> Vec<u8> {
        let mut out =
            format!("{} {} HTTP/1.1\r\nHost: store.test\r\n", self.method, self.target).into_bytes();
        for (name, value) in &self.fields {
            out.extend(format!("{name}: {value}\r\n").bytes());
        }
        if let Some(chunk) = self.chunked {
            out.extend(b"Transfer-Encoding: chunked\r\n\r\n");
            for piece in self.body.chunks(chunk) {
                out.extend(format!("{:x}\r\n", piece.len()).bytes());
                out.extend(piece);
                out.extend(b"\r\n");
            }
            out.extend(b"0\r\n\r\n");
            return out;
        }
        if !self.body.is_empty() || !matches!(self.method.as_str(), "GET" | "HEAD" | "DELETE" | "OPTIONS") {
            out.extend(format!("Content-Length: {}\r\n", self.body.len()).bytes());
        }
        out.extend(b"\r\n");
        out.extend(&self.body);
        out
    }

    pub fn try_send(&self, port: u16) -> io::Result<Reply> {
        let mut conn = Conn::try_open(port)?;
        conn.try_send(self.bytes())?;
        conn.try_reply(self.method == "HEAD")
    }

    #[track_caller]
    pub fn send(&self, port: u16) -> Reply {
        self.try_send(port).unwrap()
    }

    /// Sends it from a thread of its own.
    pub fn spawn(self, port: u16) -> JoinHandle<io::Result<Reply>> {
        std::thread::spawn(move || self.try_send(port))
    }
}
