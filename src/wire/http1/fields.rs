//! The fields that mean something to this hop, read in one pass over a head: framing, Connection and what it
//! names, Host, Expect, Upgrade. It says which fields must not go on. Used by the request and the response parser.

use httparse::Header;
use smallvec::SmallVec;

use super::head::{line_end, line_start};
use super::request::{HeadError, HeadErrorKind};
use super::target::read_host;
use super::{Framing, Upgrade, Version};
use crate::base::field::{overridden_by, same_variable};

/// Fields that a Connection field may name; real ones name two or three.
const NAMED_MAX: usize = 32;

/// What one pass over the fields of a head found.
#[derive(Debug, Default)]
pub(super) struct Found<'b> {
    pub host: Option<&'b str>,
    pub length: Option<u64>,
    pub chunked: bool,
    pub close: bool,
    pub keep_alive: bool,
    pub expect_continue: bool,
    pub wants_h2c: bool,
    pub wants_upgrade: bool,
    pub has_forwarded_proto: bool,
    /// NTLM or Negotiate: the connection as a whole is authenticated.
    pub connection_auth: bool,
    /// What Connection names, but for `close` and `keep-alive`.
    pub named: SmallVec<[&'b str; 4]>,
    /// Indexes of the fields that end at this hop, ascending.
    pub dropped: SmallVec<[u16; 8]>,
}

/// Which end wrote the head.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Side {
    Request,
    Response,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Plain,
    Host,
    ContentLength,
    TransferEncoding,
    /// A framing field's name with another sign for its `-`: some backends read the two as one.
    Disguised,
    Connection,
    Upgrade,
    Expect,
    OtherHopByHop,
    Auth,
    ForwardedProto,
}

fn kind(name: &str) -> Kind {
    let is = |known: &str| name.eq_ignore_ascii_case(known);
    match name.len() {
        2 if is("te") => Kind::OtherHopByHop,
        4 if is("host") => Kind::Host,
        6 if is("expect") => Kind::Expect,
        7 if is("upgrade") => Kind::Upgrade,
        10 if is("connection") => Kind::Connection,
        10 if is("keep-alive") => Kind::OtherHopByHop,
        13 if is("authorization") => Kind::Auth,
        14 if is("content-length") => Kind::ContentLength,
        14 if is("http2-settings") => Kind::OtherHopByHop,
        14 if same_variable(name, "content-length") => Kind::Disguised,
        16 if is("proxy-connection") => Kind::OtherHopByHop,
        16 if is("www-authenticate") => Kind::Auth,
        17 if is("transfer-encoding") => Kind::TransferEncoding,
        17 if same_variable(name, "transfer-encoding") => Kind::Disguised,
        17 if is("x-forwarded-proto") => Kind::ForwardedProto,
        _ => Kind::Plain,
    }
}

/// True for a field that must not stand in trailers: it frames, routes, authenticates, ends at this hop, or says
/// which part, place, path or method is meant. Some backends merge trailers into the head's fields.
pub(super) fn is_forbidden_in_trailers(name: &str) -> bool {
    const OF_THE_HEAD: [&str; 4] = ["trailer", "content-encoding", "content-range", "destination"];
    match kind(name) {
        Kind::Plain | Kind::ForwardedProto => {
            overridden_by(name).is_some() || OF_THE_HEAD.iter().any(|known| same_variable(name, known))
        }
        Kind::Host
        | Kind::ContentLength
        | Kind::TransferEncoding
        | Kind::Disguised
        | Kind::Connection
        | Kind::Upgrade
        | Kind::Expect
        | Kind::OtherHopByHop
        | Kind::Auth => true,
    }
}

pub(super) fn bad(detail: &'static str) -> HeadError {
    HeadError {
        kind: HeadErrorKind::Bad,
        detail,
    }
}

/// Reads the fields of the head `raw`. Line ends have been checked.
pub(super) fn read_fields<'b>(
    raw: &'b [u8],
    fields: &[Header<'b>],
    side: Side,
    version: Version,
) -> Result<Found<'b>, HeadError> {
    let mut found = Found::default();
    for (index, field) in fields.iter().enumerate() {
        let kind = kind(field.name);
        if kind == Kind::Plain {
            continue;
        }
        if side == Side::Request && matches!(kind, Kind::ContentLength | Kind::TransferEncoding) {
            no_stray_space(raw, fields, index)?;
        }
        if found.take(kind, field.value, side, version)? {
            found.dropped.push(index_of(index));
        }
    }
    if found.chunked && found.length.is_some() {
        return Err(bad("Content-Length together with Transfer-Encoding"));
    }
    found.drop_named(fields);
    Ok(found)
}

fn index_of(index: usize) -> u16 {
    u16::try_from(index).expect("the storage's limit keeps the number of fields in 16 bits")
}

impl<'b> Found<'b> {
    /// Takes one field that is not plain. True if it ends at this hop.
    fn take(&mut self, kind: Kind, value: &'b [u8], side: Side, version: Version) -> Result<bool, HeadError> {
        let request = side == Side::Request;
        match kind {
            Kind::Host if request => {
                let host = read_host(value).map_err(bad)?;
                if self.host.replace(host).is_some() {
                    return Err(bad("more than one Host"));
                }
            }
            Kind::Host | Kind::Plain => {}
            Kind::ContentLength => {
                let length = read_length(value)?;
                if self.length.replace(length).is_some() {
                    return Err(bad("more than one Content-Length"));
                }
            }
            Kind::TransferEncoding => self.take_coding(value, version)?,
            Kind::Disguised if request => {
                return Err(bad("a framing field's name with another sign for its -"));
            }
            Kind::Disguised => {}
            Kind::Connection => {
                self.take_connection(value)?;
                return Ok(true);
            }
            Kind::Upgrade => {
                self.take_upgrade(value);
                return Ok(true);
            }
            Kind::Expect if request => return self.take_expect(value, version),
            Kind::Expect => {}
            Kind::OtherHopByHop => return Ok(true),
            Kind::Auth => self.connection_auth |= binds_connection(value, side),
            Kind::ForwardedProto => self.has_forwarded_proto = true,
        }
        Ok(false)
    }

    fn take_coding(&mut self, value: &[u8], version: Version) -> Result<(), HeadError> {
        if version == Version::V10 {
            return Err(bad("Transfer-Encoding in HTTP/1.0"));
        }
        if self.chunked {
            return Err(bad("more than one Transfer-Encoding"));
        }
        if !value.eq_ignore_ascii_case(b"chunked") {
            return Err(bad("a Transfer-Encoding other than chunked alone"));
        }
        self.chunked = true;
        Ok(())
    }

    fn take_connection(&mut self, value: &'b [u8]) -> Result<(), HeadError> {
        for name in elements(value) {
            let Some(name) = token(name) else {
                return Err(bad("the Connection field is not a list of names"));
            };
            if name.eq_ignore_ascii_case("close") {
                self.close = true;
            } else if name.eq_ignore_ascii_case("keep-alive") {
                self.keep_alive = true;
            } else if must_go_on(name) {
                return Err(bad("the Connection field names a field that must go on"));
            } else if self.named.len() == NAMED_MAX {
                return Err(bad("the Connection field names too many fields"));
            } else {
                self.named.push(name);
            }
        }
        Ok(())
    }

    fn take_upgrade(&mut self, value: &[u8]) {
        for protocol in elements(value) {
            match protocol.eq_ignore_ascii_case(b"h2c") {
                true => self.wants_h2c = true,
                false => self.wants_upgrade = true,
            }
        }
    }

    /// HTTP/1.0 knows no expectations: there the field is dropped, since the request goes on as HTTP/1.1.
    fn take_expect(&mut self, value: &[u8], version: Version) -> Result<bool, HeadError> {
        if version == Version::V10 {
            return Ok(true);
        }
        if !value.eq_ignore_ascii_case(b"100-continue") {
            return Err(HeadError {
                kind: HeadErrorKind::ExpectationFailed,
                detail: "an expectation other than 100-continue",
            });
        }
        self.expect_continue = true;
        Ok(false)
    }

    /// Adds the fields that Connection names to those that end here.
    fn drop_named(&mut self, fields: &[Header<'b>]) {
        if self.named.is_empty() {
            return;
        }
        for (index, field) in fields.iter().enumerate() {
            let index = index_of(index);
            if self.names(field.name) && !self.dropped.contains(&index) {
                self.dropped.push(index);
            }
        }
        self.dropped.sort_unstable();
    }

    /// True if Connection names this field.
    pub fn names(&self, field: &str) -> bool {
        self.named.iter().any(|name| name.eq_ignore_ascii_case(field))
    }

    pub fn framing(&self) -> Option<Framing> {
        match self.length {
            _ if self.chunked => Some(Framing::Chunked),
            Some(length) => Some(Framing::Length(length)),
            None => None,
        }
    }

    pub fn upgrade(&self) -> Upgrade {
        match (self.wants_upgrade, self.wants_h2c) {
            (true, _) => Upgrade::Other,
            (false, true) => Upgrade::H2cDropped,
            (false, false) => Upgrade::None,
        }
    }

    /// Whether the peer keeps its connection after this message.
    pub fn stays_open(&self, version: Version) -> bool {
        !self.close && (version == Version::V11 || self.keep_alive)
    }
}

/// A framing field holds its value and one space before it at most: what a backend makes of a tab or of a space
/// behind is its own affair, and two readings are one too many.
fn no_stray_space(raw: &[u8], fields: &[Header<'_>], index: usize) -> Result<(), HeadError> {
    let field = &fields[index];
    let line = &raw[line_start(raw, field) + field.name.len() + 1..line_end(raw, fields, index) - 2];
    let line = line.strip_prefix(b" ").unwrap_or(line);
    match line.len() == field.value.len() {
        true => Ok(()),
        false => Err(bad("stray space in a framing field")),
    }
}

fn read_length(value: &[u8]) -> Result<u64, HeadError> {
    const BAD: &str = "a Content-Length that is not a plain number";
    let leading_zero = value.len() > 1 && value[0] == b'0';
    if value.is_empty() || value.len() > 19 || leading_zero {
        return Err(bad(BAD));
    }
    let mut length = 0u64;
    for b in value {
        if !b.is_ascii_digit() {
            return Err(bad(BAD));
        }
        // 19 digits are less than 2^64.
        length = length * 10 + u64::from(b - b'0');
    }
    match length > i64::MAX as u64 {
        true => Err(bad("a Content-Length of more than 2^63-1")),
        false => Ok(length),
    }
}

/// Fields that a Connection field must not take out of the request.
fn must_go_on(name: &str) -> bool {
    [
        "host",
        "authorization",
        "content-length",
        "transfer-encoding",
        "expect",
    ]
    .iter()
    .any(|known| name.eq_ignore_ascii_case(known))
}

/// The elements of a comma-separated list, without the empty ones.
pub(super) fn elements(value: &[u8]) -> impl Iterator<Item = &[u8]> {
    value
        .split(|b| *b == b',')
        .map(<[u8]>::trim_ascii)
        .filter(|element| !element.is_empty())
}

fn token(text: &[u8]) -> Option<&str> {
    let is_token = |b: &u8| b.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(b);
    match text.iter().all(is_token) {
        true => std::str::from_utf8(text).ok(),
        false => None,
    }
}

/// A request names one scheme, at the start of a value that may be long; an answer may list several.
fn binds_connection(value: &[u8], side: Side) -> bool {
    let binds = |word: &[u8]| word.eq_ignore_ascii_case(b"ntlm") || word.eq_ignore_ascii_case(b"negotiate");
    let mut words = value.split(|b| matches!(b, b' ' | b'\t' | b','));
    match side {
        Side::Request => words.next().is_some_and(binds),
        Side::Response => words.any(binds),
    }
}
