//! Reading a request's head: what is refused, and what the gate needs to know about the rest. It decides nothing
//! about paths or tokens; that is `rules/`. Called by the HTTP gate.

use httparse::{Header, Request, Status};
use smallvec::SmallVec;

use super::fields::{Found, Side, bad, read_fields};
use super::head::{HeaderStorage, blank_lines, ends_lines_with_crlf};
use super::target::{TargetForm, read_host, read_target, same_place};
use super::{Framing, Upgrade, Version};

/// A request's head. Names, values and target are the bytes as they came.
#[derive(Debug)]
pub struct RequestHead<'h, 'b> {
    /// The method.
    pub method: &'b str,
    /// Path and query, or `*`: what is forwarded.
    pub target: &'b str,
    /// How the target came.
    pub form: TargetForm,
    /// The client's version.
    pub version: Version,
    /// All fields in their order, also those that are not forwarded.
    pub fields: &'h [Header<'b>],
    /// How the body ends; never [`Framing::UntilClose`].
    pub framing: Framing,
    /// The client keeps its connection after this request.
    pub keep_alive: bool,
    /// The client waits for a 100 before it sends its body.
    pub expect_continue: bool,
    /// What the client wants to speak instead.
    pub upgrade: Upgrade,
    /// The Host field's value.
    pub host: &'b str,
    /// The client authenticates the connection as a whole (NTLM, Negotiate).
    pub connection_auth: bool,
    pub(super) raw: &'b [u8],
    pub(super) named: SmallVec<[&'b str; 4]>,
    pub(super) dropped: SmallVec<[u16; 8]>,
    pub(super) has_forwarded_proto: bool,
}

impl RequestHead<'_, '_> {
    /// True if a Connection field names this field, so that it would end at this hop.
    #[must_use]
    pub fn connection_names(&self, field: &str) -> bool {
        self.named.iter().any(|name| name.eq_ignore_ascii_case(field))
    }
}

/// Why a head is refused, by the status that says so.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum HeadErrorKind {
    /// 400: malformed, or it could be read in two ways.
    Bad,
    /// 431: more fields than the limit.
    TooLarge,
    /// 501: CONNECT and TRACE.
    NotImplemented,
    /// 505: HTTP, but not 1.0 or 1.1.
    VersionNotSupported,
    /// 417: an expectation other than `100-continue`.
    ExpectationFailed,
}

/// A head that is refused. Its connection must be closed: where the next request starts is unknown.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{detail}")]
pub struct HeadError {
    /// What to answer.
    pub kind: HeadErrorKind,
    /// What is wrong, for the answer's detail.
    pub detail: &'static str,
}

impl HeadError {
    /// The status of the answer.
    #[must_use]
    pub fn status(&self) -> u16 {
        match self.kind {
            HeadErrorKind::Bad => 400,
            HeadErrorKind::TooLarge => 431,
            HeadErrorKind::NotImplemented => 501,
            HeadErrorKind::VersionNotSupported => 505,
            HeadErrorKind::ExpectationFailed => 417,
        }
    }
}

/// Reads the head of a request: `head` is what [`find_head_end`](super::find_head_end) delimited.
///
/// # Errors
/// [`HeadError`] for what is malformed, has two readings, or isn't spoken here.
pub fn parse_request<'h, 'b>(
    head: &'b [u8],
    storage: &'h mut HeaderStorage<'b>,
) -> Result<RequestHead<'h, 'b>, HeadError> {
    let raw = &head[blank_lines(head)..];
    if matches!(raw.first(), Some(b'\r' | b'\n')) {
        return Err(bad("blank lines instead of a request line"));
    }
    let request = tokens(raw, storage)?;
    let (Some(method), Some(path), Some(minor)) = (request.method, request.path, request.version) else {
        return Err(bad("the head is incomplete"));
    };
    let fields: &'h [Header<'b>] = request.headers;
    if !ends_lines_with_crlf(raw, fields) {
        return Err(bad("a line ends with a bare LF"));
    }
    refuse_method(method)?;
    let version = if minor == 0 { Version::V10 } else { Version::V11 };
    let target = read_target(method, path).map_err(bad)?;
    let found = read_fields(raw, fields, Side::Request, version)?;
    let host = found.host.ok_or_else(|| bad("no Host"))?;
    if let Some((authority, port)) = target.authority {
        read_host(authority.as_bytes()).map_err(bad)?;
        if !same_place(host, authority, port) {
            return Err(bad("the Host differs from the request target's"));
        }
    }
    Ok(assemble(
        raw,
        method,
        (target.origin, target.form),
        version,
        fields,
        host,
        found,
    ))
}

fn assemble<'h, 'b>(
    raw: &'b [u8],
    method: &'b str,
    (target, form): (&'b str, TargetForm),
    version: Version,
    fields: &'h [Header<'b>],
    host: &'b str,
    found: Found<'b>,
) -> RequestHead<'h, 'b> {
    let framing = found.framing().unwrap_or(Framing::None);
    RequestHead {
        method,
        target,
        form,
        version,
        fields,
        framing,
        keep_alive: found.stays_open(version),
        expect_continue: found.expect_continue && !framing.is_empty(),
        upgrade: found.upgrade(),
        host,
        connection_auth: found.connection_auth,
        raw,
        has_forwarded_proto: found.has_forwarded_proto && !found.names("x-forwarded-proto"),
        named: found.named,
        dropped: found.dropped,
    }
}

fn tokens<'h, 'b>(raw: &'b [u8], storage: &'h mut HeaderStorage<'b>) -> Result<Request<'h, 'b>, HeadError> {
    let HeaderStorage { inline, heap, limit } = storage;
    let mut request = Request::new(&mut []);
    let mut parsed = request.parse_with_uninit_headers(raw, inline);
    if parsed == Err(httparse::Error::TooManyHeaders) {
        heap.resize(*limit, std::mem::MaybeUninit::uninit());
        parsed = request.parse_with_uninit_headers(raw, heap);
    }
    match parsed {
        Ok(Status::Complete(length)) if length == raw.len() => Ok(request),
        Ok(Status::Complete(_) | Status::Partial) => Err(bad("the head is incomplete")),
        Err(error) => Err(token_error(raw, error)),
    }
}

fn token_error(raw: &[u8], error: httparse::Error) -> HeadError {
    match error {
        httparse::Error::TooManyHeaders => HeadError {
            kind: HeadErrorKind::TooLarge,
            detail: "too many fields",
        },
        httparse::Error::Version if names_other_version(raw) => HeadError {
            kind: HeadErrorKind::VersionNotSupported,
            detail: "only HTTP/1.0 and HTTP/1.1 are spoken here",
        },
        httparse::Error::Version | httparse::Error::Token | httparse::Error::Status => {
            bad("the request line is malformed")
        }
        httparse::Error::NewLine => bad("a CR without its LF"),
        httparse::Error::HeaderName => bad("a field's name is malformed, followed by space, or folded"),
        httparse::Error::HeaderValue => bad("a field's value holds a control byte"),
    }
}

/// True for a well-formed request line whose version is not ours.
fn names_other_version(raw: &[u8]) -> bool {
    let line = raw.split(|b| *b == b'\n').next().unwrap_or_default();
    let mut words = line.strip_suffix(b"\r").unwrap_or(line).split(|b| *b == b' ');
    let last = (words.next(), words.next(), words.next(), words.next());
    match last {
        (Some(_), Some(_), Some([b'H', b'T', b'T', b'P', b'/', version @ ..]), None) => {
            matches!(version, [a, b'.', b] if a.is_ascii_digit() && b.is_ascii_digit())
        }
        _ => false,
    }
}

/// CONNECT makes a tunnel, which nothing fences; TRACE sends credentials back. In any case: some backends fold it.
fn refuse_method(method: &str) -> Result<(), HeadError> {
    match method.eq_ignore_ascii_case("CONNECT") || method.eq_ignore_ascii_case("TRACE") {
        true => Err(HeadError {
            kind: HeadErrorKind::NotImplemented,
            detail: "CONNECT and TRACE are not served",
        }),
        false => Ok(()),
    }
}
