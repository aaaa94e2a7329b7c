//! What is left of a request's head once it was read, and the way of its body into the outbox.

use super::answer::Answer;
use crate::base::buf::BUF_MAX;
use crate::base::{Buf, Reason};
use crate::rules::RuleSet;
use crate::wire::http1::{
    BodyError, BodyReader, CHUNK_END, Framing, Piece, RequestHead, Upgrade, Version, trailer_fields,
    write_chunk_head, write_last_chunk,
};

/// What an exchange needs to know of a request. Small: it lives as long as the exchange.
#[derive(Clone, Copy, Debug)]
pub struct Facts {
    /// The length of the head in the inbox.
    pub head_len: usize,
    /// The method is HEAD: answers have no body.
    pub head_only: bool,
    /// The client's version.
    pub version: Version,
    /// How the body ends.
    pub framing: Framing,
    /// The client keeps its connection.
    pub keep_alive: bool,
    /// The client waits for a 100.
    pub expect_continue: bool,
    /// A part of a resource is written: some backends write it in place (A3).
    pub is_partial: bool,
    /// The request is itself conditional.
    pub conditional: bool,
    /// Its method is not a safe one.
    pub write: bool,
    /// The client wants to speak another protocol, and the listener lets it.
    pub upgrade: bool,
    /// A connection that the backend authenticated as a whole serves this client alone.
    pub connection_auth: bool,
}

impl Facts {
    /// Reads them off a head of `head_len` bytes.
    #[must_use]
    pub fn of(head: &RequestHead<'_, '_>, head_len: usize, rules: &RuleSet) -> Facts {
        let mut facts = Facts {
            head_len,
            head_only: head.method == "HEAD",
            version: head.version,
            framing: head.framing,
            keep_alive: head.keep_alive,
            expect_continue: head.expect_continue,
            is_partial: false,
            conditional: false,
            write: !rules.is_safe(head.method),
            // Without the connection option it is no wish (RFC 9110, 7.8), and HTTP/1.0 knows none.
            upgrade: head.upgrade == Upgrade::Other
                && head.version == Version::V11
                && head.connection_names("upgrade"),
            connection_auth: head.connection_auth,
        };
        for field in head.fields {
            match field.name.len() {
                2 => facts.conditional |= field.name.eq_ignore_ascii_case("if"),
                8 => facts.conditional |= field.name.eq_ignore_ascii_case("if-match"),
                13 => {
                    facts.conditional |= field.name.eq_ignore_ascii_case("if-none-match");
                    // Some backends take `_` for `-`: written in place or not, the careful reading counts.
                    facts.is_partial |= field.name.eq_ignore_ascii_case("content-range")
                        || field.name.eq_ignore_ascii_case("content_range");
                }
                19 => facts.conditional |= field.name.eq_ignore_ascii_case("if-unmodified-since"),
                _ => {}
            }
        }
        facts
    }

    /// A read without a body can be sent again where the first try got no answer: its head stays in the inbox.
    #[must_use]
    pub fn is_repeatable(&self) -> bool {
        !self.write && self.framing.is_empty() && !self.upgrade
    }
}

/// A request's body on its way from the inbox to the outbox.
#[derive(Debug)]
pub struct Upload {
    body: BodyReader,
    framing: Framing,
    done: bool,
}

impl Upload {
    /// A body framed so; `trailer_bytes_max` bounds its trailers.
    #[must_use]
    pub fn new(framing: Framing, trailer_bytes_max: usize) -> Upload {
        Upload {
            body: BodyReader::new(framing, trailer_bytes_max),
            framing,
            done: framing.is_empty(),
        }
    }

    /// Whether the outbox has, or had, all of it.
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.done
    }

    /// How many bytes can be read straight into the outbox, with no framing in between; zero where that isn't so.
    #[must_use]
    pub fn straight(&self) -> usize {
        match (self.framing, self.body.remaining()) {
            (Framing::Length(_), Some(left)) => usize::try_from(left).unwrap_or(usize::MAX),
            _ => 0,
        }
    }

    /// Notes bytes that were read straight into the outbox.
    pub fn took_straight(&mut self, bytes: &[u8]) {
        let piece = self.body.next(bytes);
        debug_assert!(matches!(piece, Ok(Piece::Data { skip: 0, len }) if len == bytes.len()));
        self.done = self.body.is_done();
    }

    /// Moves what the inbox has of the body to the outbox, re-framed: chunk extensions are dropped, so that the
    /// backend has one reading.
    ///
    /// # Errors
    /// The answer, where the body can't be read on or carries a token in its trailers.
    pub fn feed(&mut self, inbox: &mut Buf, outbox: &mut Buf, rules: &RuleSet) -> Result<(), Answer> {
        let chunked = self.framing == Framing::Chunked;
        while !self.done && outbox.len() < BUF_MAX {
            match self.body.next(inbox.filled()).map_err(malformed)? {
                Piece::Data { skip, len } => {
                    let out = outbox.end();
                    if chunked {
                        write_chunk_head(out, len);
                    }
                    out.extend_from_slice(&inbox.filled()[skip..skip + len]);
                    if chunked {
                        out.extend_from_slice(CHUNK_END);
                    } else {
                        self.done = self.body.is_done();
                    }
                    inbox.consume(skip + len);
                }
                Piece::NeedMore { skip } => {
                    inbox.consume(skip);
                    return Ok(());
                }
                Piece::End { consumed, trailers } => {
                    let section = &inbox.filled()[trailers];
                    if trailer_fields(section).any(|(name, _)| rules.reads_header(name)) {
                        return Err(in_trailers());
                    }
                    if chunked {
                        write_last_chunk(outbox.end(), section);
                    }
                    inbox.consume(consumed);
                    self.done = true;
                }
            }
        }
        Ok(())
    }
}

/// Takes a refused request's body off the inbox, if all of it is there. False where more is to come.
#[must_use]
pub fn skip_body(framing: Framing, trailer_bytes_max: usize, inbox: &mut Buf) -> bool {
    let mut body = BodyReader::new(framing, trailer_bytes_max);
    loop {
        match body.next(inbox.filled()) {
            Ok(Piece::Data { skip, len }) => inbox.consume(skip + len),
            Ok(Piece::End { consumed, .. }) => {
                inbox.consume(consumed);
                return true;
            }
            Ok(Piece::NeedMore { .. }) | Err(_) => return false,
        }
    }
}

/// What a rule reads must be known before the body is let through.
#[must_use]
pub fn in_trailers() -> Answer {
    Answer::new(
        Reason::BadRequest,
        "a field that a rule reads stands in the trailers",
    )
}

fn malformed(error: BodyError) -> Answer {
    Answer::new(Reason::BadRequest, error.to_string())
}
