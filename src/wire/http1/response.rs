//! Reading the head of a backend's answer, as strictly as a request's: an answer with two readings is a lost one.
//! Called by `upstream/`.

use httparse::{Header, ParserConfig, Response, Status};
use smallvec::SmallVec;

use super::fields::{Side, read_fields};
use super::head::{HeaderStorage, ends_lines_with_crlf};
use super::{Framing, Version};

/// An answer's head. Names, values and reason are the bytes as they came.
#[derive(Debug)]
pub struct ResponseHead<'h, 'b> {
    /// The status, 100 to 999.
    pub status: u16,
    /// The reason phrase, possibly empty.
    pub reason: &'b [u8],
    /// The backend's version.
    pub version: Version,
    /// All fields in their order, also those that are not forwarded.
    pub fields: &'h [Header<'b>],
    /// How the body ends, given the request's method.
    pub framing: Framing,
    /// The backend keeps its connection after this answer.
    pub keep_alive: bool,
    /// The backend authenticates the connection as a whole (NTLM, Negotiate).
    pub connection_auth: bool,
    pub(super) raw: &'b [u8],
    pub(super) dropped: SmallVec<[u16; 8]>,
    pub(super) chunked: bool,
}

impl ResponseHead<'_, '_> {
    /// True for an answer after which the final one is still to come; 101 is none.
    #[must_use]
    pub fn is_interim(&self) -> bool {
        self.status < 200 && self.status != 101
    }

    /// How the body is framed towards a client of this version: HTTP/1.0 knows no chunks, and HTTP/1.1 gets some
    /// where the backend ends its body by closing, so that a body broken off is seen as such.
    #[must_use]
    pub fn framing_for(&self, client: Version) -> Framing {
        match (self.framing, client) {
            (Framing::Chunked, Version::V10) => Framing::UntilClose,
            (Framing::UntilClose, Version::V11) => Framing::Chunked,
            (framing, _) => framing,
        }
    }
}

/// An answer that can't be taken: the connection's state is unknown, and the answer counts as lost.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the backend's answer is malformed: {0}")]
pub struct ResponseError(pub &'static str);

/// Reads the head of an answer to a request with `method`: `head` is what
/// [`find_head_end`](super::find_head_end) delimited.
///
/// # Errors
/// [`ResponseError`] for what is malformed or has two readings.
pub fn parse_response<'h, 'b>(
    head: &'b [u8],
    method: &str,
    storage: &'h mut HeaderStorage<'b>,
) -> Result<ResponseHead<'h, 'b>, ResponseError> {
    if matches!(head.first(), Some(b'\r' | b'\n')) {
        return Err(ResponseError("blank lines before the status line"));
    }
    let response = tokens(head, storage)?;
    let (Some(status), Some(minor)) = (response.code, response.version) else {
        return Err(ResponseError("the head is incomplete"));
    };
    let fields: &'h [Header<'b>] = response.headers;
    if !ends_lines_with_crlf(head, fields) {
        return Err(ResponseError("a line ends with a bare LF"));
    }
    if status < 100 {
        return Err(ResponseError("a status below 100"));
    }
    let version = if minor == 0 { Version::V10 } else { Version::V11 };
    let found =
        read_fields(head, fields, Side::Response, version).map_err(|error| ResponseError(error.detail))?;
    let framing = match found.framing() {
        _ if method == "HEAD" || status < 200 || status == 204 || status == 304 => Framing::None,
        Some(framing) => framing,
        None => Framing::UntilClose,
    };
    Ok(ResponseHead {
        status,
        reason: reason(head),
        version,
        fields,
        framing,
        keep_alive: found.stays_open(version) && framing != Framing::UntilClose,
        connection_auth: found.connection_auth,
        raw: head,
        chunked: found.chunked,
        dropped: found.dropped,
    })
}

fn tokens<'h, 'b>(
    head: &'b [u8],
    storage: &'h mut HeaderStorage<'b>,
) -> Result<Response<'h, 'b>, ResponseError> {
    let HeaderStorage { inline, heap, limit } = storage;
    let config = ParserConfig::default();
    let mut response = Response::new(&mut []);
    let mut parsed = config.parse_response_with_uninit_headers(&mut response, head, inline);
    if parsed == Err(httparse::Error::TooManyHeaders) {
        heap.resize(*limit, std::mem::MaybeUninit::uninit());
        parsed = config.parse_response_with_uninit_headers(&mut response, head, heap);
    }
    match parsed {
        Ok(Status::Complete(length)) if length == head.len() => Ok(response),
        Ok(Status::Complete(_) | Status::Partial) => Err(ResponseError("the head is incomplete")),
        Err(httparse::Error::TooManyHeaders) => Err(ResponseError("too many fields")),
        Err(httparse::Error::HeaderName | httparse::Error::HeaderValue) => {
            Err(ResponseError("a malformed field"))
        }
        Err(
            httparse::Error::NewLine
            | httparse::Error::Status
            | httparse::Error::Token
            | httparse::Error::Version,
        ) => Err(ResponseError("the status line is malformed")),
    }
}

/// The bytes after `HTTP/1.1 200 `, up to the line's end.
fn reason(head: &[u8]) -> &[u8] {
    let end = memchr::memchr(b'\r', head).unwrap_or(head.len());
    head.get(13..end).unwrap_or_default()
}
