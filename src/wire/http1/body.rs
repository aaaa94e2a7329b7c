//! Reading a body piece by piece out of a buffer that the caller fills. Chunks are read strictly and their
//! extensions forgotten; trailers are validated whole. It never copies payload. Called by the HTTP gate for
//! requests and by `upstream/` for answers.

use std::ops::Range;

use super::Framing;
use super::fields::is_forbidden_in_trailers;
use super::head::{ends_lines_with_crlf, find_head_end};

/// Bytes of extensions that one chunk may carry.
const EXTENSION_MAX: u32 = 1024;
/// Bytes of extensions in one body.
const EXTENSIONS_MAX: u32 = 16 * 1024;
/// Trailer fields of one body.
const TRAILERS_MAX: usize = 64;

/// What the next bytes of a body are. Positions are in the buffer that was given.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Piece {
    /// Payload at `skip..skip + len`, `len` > 0. The caller has then consumed `skip + len` bytes.
    Data {
        /// Framing before the payload.
        skip: usize,
        /// Bytes of payload.
        len: usize,
    },
    /// The caller drops `skip` bytes, keeps the rest, and comes back with more behind it.
    NeedMore {
        /// Framing that has been read.
        skip: usize,
    },
    /// The body is over after `consumed` bytes of this buffer.
    End {
        /// Bytes that belong to the body.
        consumed: usize,
        /// The trailer lines, each with its CRLF, without the empty line at the end. See [`trailer_fields`].
        trailers: Range<usize>,
    },
}

/// A body that can't be read on. Where the next message starts is unknown: the connection must be closed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum BodyError {
    /// A chunk's line or its end.
    #[error("a malformed chunk: {0}")]
    Chunk(&'static str),
    /// A trailer field that is malformed or must not stand there.
    #[error("a malformed trailer section: {0}")]
    Trailer(&'static str),
    /// The trailer section is longer than a head may be.
    #[error("the trailer section is too long")]
    TrailersTooLong,
    /// The connection ended before the body did.
    #[error("the body was broken off")]
    BrokenOff,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    Length(u64),
    UntilClose,
    Size { digits: u8, size: u64 },
    Extension { size: u64, bytes: u32 },
    SizeLf { size: u64 },
    Payload(u64),
    PayloadCr,
    PayloadLf,
    Trailers { seen: usize },
    Done,
}

/// Reads one body. See [`Piece`] for what to do with what [`BodyReader::next`] says.
#[derive(Clone, Debug)]
pub struct BodyReader {
    state: State,
    trailer_bytes_max: usize,
    extension_bytes: u32,
}

impl BodyReader {
    /// A reader for a body framed so. `trailer_bytes_max`: the limit of a head, for the trailer section.
    #[must_use]
    pub fn new(framing: Framing, trailer_bytes_max: usize) -> BodyReader {
        let state = match framing {
            Framing::None | Framing::Length(0) => State::Done,
            Framing::Length(length) => State::Length(length),
            Framing::Chunked => State::Size { digits: 0, size: 0 },
            Framing::UntilClose => State::UntilClose,
        };
        BodyReader {
            state,
            trailer_bytes_max,
            extension_bytes: 0,
        }
    }

    /// True once the body is over.
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.state == State::Done
    }

    /// The payload still to come, where the framing tells.
    #[must_use]
    pub fn remaining(&self) -> Option<u64> {
        match self.state {
            State::Length(left) => Some(left),
            State::Done => Some(0),
            State::UntilClose
            | State::Size { .. }
            | State::Extension { .. }
            | State::SizeLf { .. }
            | State::Payload(_)
            | State::PayloadCr
            | State::PayloadLf
            | State::Trailers { .. } => None,
        }
    }

    /// The connection ended: was the body over?
    ///
    /// # Errors
    /// [`BodyError::BrokenOff`] if it was not.
    pub fn finish(&mut self) -> Result<(), BodyError> {
        match self.state {
            State::Done => Ok(()),
            State::UntilClose => {
                self.state = State::Done;
                Ok(())
            }
            _ => Err(BodyError::BrokenOff),
        }
    }

    /// Reads on: `buf` holds the bytes that come after all that was consumed.
    ///
    /// # Errors
    /// [`BodyError`] for malformed chunks and trailers; the reader must not be used afterwards.
    pub fn next(&mut self, buf: &[u8]) -> Result<Piece, BodyError> {
        let mut at = 0;
        loop {
            match self.state {
                State::Done => {
                    return Ok(Piece::End {
                        consumed: at,
                        trailers: at..at,
                    });
                }
                State::Trailers { seen } => return self.trailers(buf, at, seen),
                _ if at == buf.len() => return Ok(Piece::NeedMore { skip: at }),
                State::UntilClose => {
                    return Ok(Piece::Data {
                        skip: at,
                        len: buf.len() - at,
                    });
                }
                State::Length(left) => {
                    let len = fitting(left, buf.len() - at);
                    self.state = match left - len as u64 {
                        0 => State::Done,
                        left => State::Length(left),
                    };
                    return Ok(Piece::Data { skip: at, len });
                }
                State::Payload(left) => {
                    let len = fitting(left, buf.len() - at);
                    self.state = match left - len as u64 {
                        0 => State::PayloadCr,
                        left => State::Payload(left),
                    };
                    return Ok(Piece::Data { skip: at, len });
                }
                _ => {
                    self.state = self.framing_byte(buf[at])?;
                    at += 1;
                }
            }
        }
    }

    /// One byte between payloads.
    fn framing_byte(&mut self, byte: u8) -> Result<State, BodyError> {
        match (self.state, byte) {
            (State::Size { digits, size }, b'0'..=b'9' | b'a'..=b'f' | b'A'..=b'F') => {
                size_digit(digits, size, byte)
            }
            (State::Size { digits: 0, .. }, _) => Err(BodyError::Chunk("no size")),
            (State::Size { size, .. } | State::Extension { size, .. }, b'\r') => Ok(State::SizeLf { size }),
            (State::Size { size, .. }, b';') => self.extension_byte(size, 0),
            (State::Size { .. }, _) => Err(BodyError::Chunk("a size that is not hexadecimal")),
            (State::Extension { size, bytes }, b'\t' | b' '..=b'~') => self.extension_byte(size, bytes),
            (State::Extension { .. }, _) => Err(BodyError::Chunk("a control byte in an extension")),
            (State::SizeLf { size: 0 }, b'\n') => Ok(State::Trailers { seen: 0 }),
            (State::SizeLf { size }, b'\n') => Ok(State::Payload(size)),
            (State::PayloadCr, b'\r') => Ok(State::PayloadLf),
            (State::PayloadLf, b'\n') => Ok(State::Size { digits: 0, size: 0 }),
            (State::SizeLf { .. } | State::PayloadCr | State::PayloadLf, _) => {
                Err(BodyError::Chunk("CRLF expected"))
            }
            (
                State::Length(_)
                | State::UntilClose
                | State::Payload(_)
                | State::Trailers { .. }
                | State::Done,
                _,
            ) => unreachable!("payload and trailers are taken in `next`"),
        }
    }

    fn extension_byte(&mut self, size: u64, bytes: u32) -> Result<State, BodyError> {
        self.extension_bytes += 1;
        if bytes == EXTENSION_MAX || self.extension_bytes > EXTENSIONS_MAX {
            return Err(BodyError::Chunk("too long an extension"));
        }
        Ok(State::Extension {
            size,
            bytes: bytes + 1,
        })
    }

    /// The trailer section starts at `at`; `seen` bytes of it were looked at before.
    fn trailers(&mut self, buf: &[u8], at: usize, seen: usize) -> Result<Piece, BodyError> {
        let section = &buf[at..];
        if section.starts_with(b"\r\n") {
            self.state = State::Done;
            return Ok(Piece::End {
                consumed: at + 2,
                trailers: at..at,
            });
        }
        if section.first() == Some(&b'\n') {
            return Err(BodyError::Trailer("a bare LF"));
        }
        let end = find_head_end(section, seen);
        if end.unwrap_or(section.len()) > self.trailer_bytes_max {
            return Err(BodyError::TrailersTooLong);
        }
        let Some(end) = end else {
            self.state = State::Trailers { seen: section.len() };
            return Ok(Piece::NeedMore { skip: at });
        };
        check_trailers(&section[..end])?;
        self.state = State::Done;
        Ok(Piece::End {
            consumed: at + end,
            trailers: at..at + end - 2,
        })
    }
}

/// As much of `left` as `available` holds.
fn fitting(left: u64, available: usize) -> usize {
    usize::try_from(left).map_or(available, |left| left.min(available))
}

fn size_digit(digits: u8, size: u64, byte: u8) -> Result<State, BodyError> {
    let digit = match byte {
        b'0'..=b'9' => byte - b'0',
        _ => (byte | 0x20) - b'a' + 10,
    };
    // 15 digits before this one: the size stays below 2^63 if none of the 16 sets its top bit.
    if digits == 16 || size >> 59 != 0 {
        return Err(BodyError::Chunk("too large a size"));
    }
    Ok(State::Size {
        digits: digits + 1,
        size: size << 4 | u64::from(digit),
    })
}

fn check_trailers(section: &[u8]) -> Result<(), BodyError> {
    let mut room = [httparse::EMPTY_HEADER; TRAILERS_MAX];
    let fields = match httparse::parse_headers(section, &mut room) {
        Ok(httparse::Status::Complete((length, fields))) if length == section.len() => fields,
        Ok(_) => return Err(BodyError::Trailer("it is incomplete")),
        Err(httparse::Error::TooManyHeaders) => return Err(BodyError::TrailersTooLong),
        Err(_) => return Err(BodyError::Trailer("a malformed field")),
    };
    // The first line has no line before it whose end could be looked at.
    if !ends_lines_with_crlf(section, fields.get(1..).unwrap_or_default()) {
        return Err(BodyError::Trailer("a bare LF"));
    }
    match fields.iter().any(|field| is_forbidden_in_trailers(field.name)) {
        true => Err(BodyError::Trailer("a field that must stand in the head")),
        false => Ok(()),
    }
}

/// The fields of a trailer section that [`BodyReader`] has delimited, in their order.
pub fn trailer_fields(section: &[u8]) -> impl Iterator<Item = (&str, &[u8])> {
    section.split(|b| *b == b'\n').filter_map(|line| {
        let colon = memchr::memchr(b':', line)?;
        let name = std::str::from_utf8(&line[..colon]).ok()?;
        Some((name, line[colon + 1..].trim_ascii()))
    })
}
