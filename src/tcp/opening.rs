//! What stands in front of a session: the PROXY header, in the clear before TLS as its senders put it; TLS; the
//! preface. All of it within `header_timeout`, and not one byte of the session is taken for it.

use std::future::poll_fn;
use std::io;

use smallvec::SmallVec;
use tokio::net::TcpStream;

use super::{Gate, Refusal, Who};
use crate::base::{Buf, ClientCert, Reason};
use crate::net::Stream;
use crate::rules::{self, Missing};
use crate::wire::preface::{self, Begins};
use crate::wire::proxy::{self, Addresses, Header};

/// A session that has been opened and not been judged.
#[derive(Debug)]
pub struct Opening {
    pub client: Stream,
    /// What its verified certificate says.
    pub cert: Option<ClientCert>,
    /// The PROXY header, whole; empty where none is expected.
    header: Vec<u8>,
    /// What has come of the session; its preface first.
    inbox: Buf,
    /// How much of the inbox is its preface.
    preface: usize,
    max: usize,
    addresses: Addresses,
}

/// Why nothing was opened.
#[derive(Debug)]
pub enum Failed {
    /// The client left before it had said anything.
    Ended,
    /// TLS did not come about, and why.
    Handshake(String),
    /// What came is no beginning of a session.
    Refused(Option<Stream>, Refusal),
}

impl Opening {
    /// Reads it from a new connection, and notes whose session it is as soon as that is told.
    pub async fn read(gate: &Gate, socket: TcpStream, who: &mut Who) -> Result<Opening, Failed> {
        let patience = gate.listener.limits.header_timeout;
        let own = Addresses {
            source: who.peer,
            destination: socket.local_addr().unwrap_or(who.peer),
        };
        let mut seen = Seen {
            socket: Some(socket),
            ..Seen::default()
        };
        match tokio::time::timeout(patience, read(gate, own, who, &mut seen)).await {
            Ok(read) => read,
            Err(_elapsed) => late(gate, seen),
        }
    }

    /// What the rule looks at.
    pub fn judge<T>(&self, look: impl FnOnce(&rules::Opening<'_>) -> T) -> T {
        let header = Header::parse(&self.header, self.max).ok().flatten();
        let tlvs: SmallVec<[(u8, &[u8]); 8]> = header.iter().flat_map(|(header, _)| header.tlvs()).collect();
        let preface = match preface::parse(&self.inbox.filled()[..self.preface], self.max) {
            Ok(Begins::With(line, _)) => Some((line.resource, line.token)),
            Ok(Begins::Unclear | Begins::Otherwise) | Err(_) => None,
        };
        look(&rules::Opening { tlvs: &tlvs, preface })
    }

    /// The client, who it is and where it went to, and what has come of its session.
    pub fn begin(mut self) -> (Stream, Addresses, Buf) {
        self.inbox.consume(self.preface);
        (self.client, self.addresses, self.inbox)
    }
}

/// How far reading has come, for whom it takes too long.
#[derive(Default)]
struct Seen {
    /// Until TLS has it, or the session.
    socket: Option<TcpStream>,
    header: Vec<u8>,
    addresses: Option<Addresses>,
    client: Option<Stream>,
    cert: Option<ClientCert>,
    inbox: Buf,
}

async fn read(gate: &Gate, own: Addresses, who: &mut Who, seen: &mut Seen) -> Result<Opening, Failed> {
    let listener = &gate.listener;
    let max = listener.limits.max_header_bytes;
    let told = match (&seen.socket, listener.accept_proxy) {
        (Some(socket), true) => match read_header(socket, max, &mut seen.header).await {
            Ok(told) => told,
            Err(what) => return Err(seen.failed(what)),
        },
        (_, _) => None,
    };
    who.told = told.map(|told| told.source);
    seen.addresses = Some(told.unwrap_or(own));
    let socket = seen.socket.take().ok_or(Failed::Ended)?;
    let client = match &listener.tls {
        None => Stream::tcp(socket),
        Some(tls) => {
            let opened = tls.accept(socket).await;
            opened.map_err(|error| Failed::Handshake(error.to_string()))?
        }
    };
    seen.cert = client.peer_names();
    let client = seen.client.insert(client);
    let preface = match listener.rule.reads_preface() {
        true => match read_preface(client, max, &mut seen.inbox).await {
            Ok(len) => len,
            Err(what) => return Err(seen.failed(what)),
        },
        false => 0,
    };
    seen.opening(preface, max).ok_or(Failed::Ended)
}

impl Seen {
    /// `None` says that the client has left.
    fn failed(&mut self, what: Option<&'static str>) -> Failed {
        let client = self.client.take().or_else(|| self.socket.take().map(Stream::tcp));
        match what {
            Some(what) => Failed::Refused(client, Refusal::new(Reason::BadRequest, what)),
            None => Failed::Ended,
        }
    }

    fn opening(&mut self, preface: usize, max: usize) -> Option<Opening> {
        Some(Opening {
            client: self.client.take()?,
            cert: self.cert.take(),
            header: std::mem::take(&mut self.header),
            inbox: std::mem::take(&mut self.inbox),
            preface,
            max,
            addresses: self.addresses?,
        })
    }
}

/// A client that waits for the server to speak first has no preface to send: where one may be missing, it is.
fn late(gate: &Gate, mut seen: Seen) -> Result<Opening, Failed> {
    const LATE: &str = "what stands in front of the session did not come within header_timeout";
    let max = gate.listener.limits.max_header_bytes;
    let may_be_missing = gate.listener.rule.missing != Missing::Deny && seen.inbox.is_empty();
    if may_be_missing && let Some(opening) = seen.opening(0, max) {
        return Ok(opening);
    }
    match (&seen.socket, &seen.client) {
        (None, None) => Err(Failed::Handshake("it did not end within header_timeout".into())),
        (_, _) => Err(seen.failed(Some(LATE))),
    }
}

/// Reads exactly the header: what follows it may be TLS's. `Err(None)`: the client has left.
async fn read_header(
    socket: &TcpStream,
    max: usize,
    header: &mut Vec<u8>,
) -> Result<Option<Addresses>, Option<&'static str>> {
    let mut room = [0; 4096];
    loop {
        if let Some((whole, _)) = Header::parse(header, max).map_err(|malformed| Some(malformed.0))? {
            return Ok(whole.addresses);
        }
        let wanted = proxy::wanted(header).min(room.len());
        match socket.try_read(&mut room[..wanted]) {
            Ok(0) if header.is_empty() => return Err(None),
            Ok(0) => return Err(Some("the connection ended within its PROXY header")),
            Ok(read) => header.extend_from_slice(&room[..read]),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                socket.readable().await.map_err(|_| None)?;
            }
            Err(_) => return Err(None),
        }
    }
}

/// Reads until it is clear whether there is a preface, and gives its length.
async fn read_preface(
    client: &mut Stream,
    max: usize,
    inbox: &mut Buf,
) -> Result<usize, Option<&'static str>> {
    loop {
        match preface::parse(inbox.filled(), max).map_err(|malformed| Some(malformed.0))? {
            Begins::With(_, len) => return Ok(len),
            Begins::Otherwise => return Ok(0),
            Begins::Unclear => {}
        }
        match client.try_read(inbox, usize::MAX) {
            Ok(0) if inbox.is_empty() => return Err(None),
            Ok(0) => return Err(Some("the connection ended within its preface")),
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                poll_fn(|cx| client.poll_read_ready(cx)).await;
            }
            Err(_) => return Err(None),
        }
    }
}
