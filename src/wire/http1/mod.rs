//! HTTP/1.1 on the wire, without I/O: heads are found, parsed strictly and written; bodies are read piece by
//! piece. `httparse` reads the tokens; framing, chunks and which fields go or stay are decided here.
//!
//! The one aim: a message that is let through has exactly one reading, so that the backend sees the request that
//! the fence saw. What could be read in two ways is refused. Called by the HTTP gate and by `upstream/`.
//!
//! The way of a request: [`find_head_end`] until it says where the head ends, [`parse_request`] on that slice,
//! [`write_request_head`] towards the backend, a [`BodyReader`] on what follows; an answer goes the same way back
//! through [`parse_response`] and [`write_response_head`].

mod body;
mod fields;
mod head;
mod request;
mod response;
mod target;
#[cfg(test)]
mod tests;
mod write;

pub use body::{BodyError, BodyReader, Piece, trailer_fields};
pub use head::{HeaderStorage, find_head_end};
pub use httparse::Header;
pub use request::{HeadError, HeadErrorKind, RequestHead, parse_request};
pub use response::{ResponseError, ResponseHead, parse_response};
pub use target::TargetForm;
pub use write::{
    CHUNK_END, Forwarded, ResponseOptions, write_chunk_head, write_last_chunk, write_request_head,
    write_response_head,
};

/// The minor version of HTTP/1.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Version {
    /// HTTP/1.0
    V10,
    /// HTTP/1.1
    V11,
}

/// How the end of a body is known.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Framing {
    /// There is no body.
    None,
    /// So many bytes; zero is possible.
    Length(u64),
    /// In chunks.
    Chunked,
    /// Until the connection ends. Answers only.
    UntilClose,
}

impl Framing {
    /// True where not one byte of payload can come.
    #[must_use]
    pub fn is_empty(self) -> bool {
        matches!(self, Framing::None | Framing::Length(0))
    }
}

/// What a request asks to be upgraded to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Upgrade {
    /// Nothing.
    None,
    /// `h2c` alone: the wish is dropped, the request goes on.
    H2cDropped,
    /// Anything else: the gate refuses, or passes where the listener says so.
    Other,
}
