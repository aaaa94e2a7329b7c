//! Where each reply of the server ends, without keeping it.
//!
//! Of a reply only its first bytes are kept, which tell what it is: an error, a push, a message to a subscriber.

use super::{NUMBER_BYTES_MAX, ProtocolError, number, number_line, plain_line};

/// Follows the replies of one connection.
#[derive(Debug, Default)]
pub struct Replies {
    /// What is to come at each depth. Empty between two replies.
    open: Vec<Open>,
    state: State,
    /// The first bytes of the present line, without its type.
    line: Vec<u8>,
    /// Whether the last byte of the present line was a CR.
    cr: bool,
    frame: Frame,
    /// At which depths something stands that is no element: an attribute, which belongs to what follows it, or a push, which
    /// may come between any two elements.
    asides: Vec<usize>,
}

/// What is to come of a value that others are in.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Open {
    /// So many elements.
    Elements(u64),
    /// Elements, up to a `.`.
    Streamed,
    /// Pieces of a text, up to an empty one.
    Pieces,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
enum State {
    /// Before a value.
    #[default]
    Type,
    /// In the line of a value of this type.
    Line(u8),
    /// So many bytes of a text are to come, with its line end.
    Text(u64),
}

/// What is known of a reply.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Frame {
    /// Its first bytes, those of its attribute not counted.
    head: Vec<u8>,
    /// The last integer in it.
    integer: Option<i64>,
}

const HEAD_BYTES_MAX: usize = 64;
/// Deeper than any reply of Redis, and any script's: Lua's own stack is at its end after 8000.
const DEPTH_MAX: usize = 10_000;

impl Replies {
    /// Reads on to the end of the present reply. Gives how many of the bytes it took, and whether they end it: then
    /// [`Replies::frame`] tells what it was.
    ///
    /// # Errors
    /// [`ProtocolError`]: what follows can't be read.
    pub fn read(&mut self, bytes: &[u8]) -> Result<(usize, bool), ProtocolError> {
        if self.open.is_empty() && self.state == State::Type {
            self.frame.head.clear();
            self.frame.integer = None;
        }
        let mut at = 0;
        while at < bytes.len() {
            let there = &bytes[at..];
            let (taken, ended) = match self.state {
                State::Type if (self.open.last() == Some(&Open::Pieces)) != (there[0] == b';') => {
                    return Err(ProtocolError::Reply);
                }
                State::Type => {
                    self.line.clear();
                    self.cr = false;
                    self.state = State::Line(there[0]);
                    (1, false)
                }
                State::Line(kind) => self.read_line(kind, there)?,
                State::Text(left) => {
                    let taken = there.len().min(usize::try_from(left).unwrap_or(usize::MAX));
                    let left = left - taken as u64;
                    self.state = if left == 0 { State::Type } else { State::Text(left) };
                    (taken, left == 0)
                }
            };
            self.note(&there[..taken]);
            at += taken;
            if ended && self.close()? {
                return Ok((at, true));
            }
        }
        Ok((at, false))
    }

    /// What the reply was that has ended last.
    #[must_use]
    pub fn frame(&self) -> &Frame {
        &self.frame
    }

    /// Whether nothing of a next reply has come.
    #[must_use]
    pub fn is_between(&self) -> bool {
        self.open.is_empty() && self.state == State::Type && self.asides.is_empty()
    }

    /// Keeps the first bytes.
    fn note(&mut self, bytes: &[u8]) {
        let room = HEAD_BYTES_MAX - self.frame.head.len();
        self.frame.head.extend_from_slice(&bytes[..bytes.len().min(room)]);
    }

    /// Reads on in a line; gives how many bytes it took and whether they end a value.
    fn read_line(&mut self, kind: u8, bytes: &[u8]) -> Result<(usize, bool), ProtocolError> {
        let end = memchr::memchr(b'\n', bytes);
        let taken = end.map_or(bytes.len(), |end| end + 1);
        let text = &bytes[..end.unwrap_or(taken)];
        let room = NUMBER_BYTES_MAX + 2 - self.line.len().min(NUMBER_BYTES_MAX + 2);
        self.line.extend_from_slice(&text[..text.len().min(room)]);
        if let Some(last) = text.last() {
            self.cr = *last == b'\r';
        }
        if end.is_none() {
            return Ok((taken, false));
        }
        if !self.cr {
            return Err(ProtocolError::LineEnd);
        }
        if matches!(kind, b'+' | b'-' | b'_' | b',' | b'#' | b'(') {
            self.state = State::Type;
            return Ok((taken, true));
        }
        self.state = State::Type;
        // By itself a push is what the server says, and no reply.
        if kind == b'|' || kind == b'>' && !self.open.is_empty() {
            self.asides.push(self.open.len());
        }
        let ended = match &self.line[..self.line.len() - 1] {
            b"?" => self.begin_streamed(kind)?,
            b"" if kind == b'.' => self.leave(Open::Streamed)?,
            line => {
                let value = number(line).ok_or(ProtocolError::Reply)?;
                self.begin_counted(kind, value)?
            }
        };
        Ok((taken, ended))
    }

    /// What a number begins; true where that is all of the value.
    fn begin_counted(&mut self, kind: u8, value: i64) -> Result<bool, ProtocolError> {
        match (kind, value) {
            (b':', value) => {
                self.frame.integer = Some(value);
                Ok(true)
            }
            (b'$' | b'*', -1) => Ok(true),
            (b';', 0) => self.leave(Open::Pieces),
            (b'$' | b'=' | b'!' | b';', 0..) => {
                self.state = State::Text(value as u64 + 2);
                Ok(false)
            }
            (b'*' | b'~' | b'>', 0..) => self.enter_counted(value as u64),
            (b'%' | b'|', 0..) => self.enter_counted(value as u64 * 2),
            _ => Err(ProtocolError::Reply),
        }
    }

    /// What has no length. Version 3 has it; no server sends it so far.
    fn begin_streamed(&mut self, kind: u8) -> Result<bool, ProtocolError> {
        match kind {
            b'$' => self.enter(Open::Pieces),
            b'*' | b'~' | b'>' | b'%' | b'|' => self.enter(Open::Streamed),
            _ => Err(ProtocolError::Reply),
        }
    }

    /// Goes into a value of so many elements; true where it has none.
    fn enter_counted(&mut self, elements: u64) -> Result<bool, ProtocolError> {
        match elements {
            0 => Ok(true),
            elements => self.enter(Open::Elements(elements)),
        }
    }

    fn enter(&mut self, open: Open) -> Result<bool, ProtocolError> {
        if self.open.len() == DEPTH_MAX {
            return Err(ProtocolError::Reply);
        }
        self.open.push(open);
        Ok(false)
    }

    /// The end of a value without a length, which `open` must be.
    fn leave(&mut self, open: Open) -> Result<bool, ProtocolError> {
        match self.open.pop() == Some(open) {
            true => Ok(true),
            false => Err(ProtocolError::Reply),
        }
    }

    /// A value has ended, and perhaps those that it is in. True where that is the reply.
    fn close(&mut self) -> Result<bool, ProtocolError> {
        loop {
            if self.asides.last() == Some(&self.open.len()) {
                // The element is still to come.
                self.asides.pop();
                if self.open.is_empty() {
                    self.frame = Frame::default();
                }
                return Ok(false);
            }
            match self.open.last_mut() {
                None => return Ok(true),
                Some(Open::Elements(1)) => self.open.pop(),
                Some(Open::Elements(left)) => {
                    *left -= 1;
                    return Ok(false);
                }
                Some(Open::Streamed | Open::Pieces) => return Ok(false),
            };
        }
    }
}

/// The length of the reply at the front of `bytes`, where it has come whole and is one line or one text. What is anything
/// else, or wrong, is for [`Replies`].
#[must_use]
pub fn short_reply(bytes: &[u8]) -> Option<usize> {
    match bytes.first()? {
        b'+' if bytes.starts_with(b"+OK\r\n") => Some(5),
        b'+' | b'-' => {
            let end = memchr::memchr(b'\n', bytes)?;
            (end > 1 && bytes[end - 1] == b'\r').then_some(end + 1)
        }
        kind @ (b':' | b'$') if let Some((number, behind)) = plain_line(bytes) => {
            let end = if *kind == b'$' {
                behind + number + 2
            } else {
                behind
            };
            (end <= bytes.len()).then_some(end)
        }
        b':' | b'$' => {
            let (text, behind) = number_line(bytes, ProtocolError::Reply).ok()??;
            let end = match (bytes[0], number(text)?) {
                (b':', _) | (_, -1) => behind,
                (_, length) => behind
                    .checked_add(usize::try_from(length).ok()?)?
                    .checked_add(2)?,
            };
            (end <= bytes.len()).then_some(end)
        }
        _ => None,
    }
}

impl Frame {
    /// Its type.
    #[must_use]
    pub fn kind(&self) -> u8 {
        self.head.first().copied().unwrap_or_default()
    }

    /// Whether it is an error.
    #[must_use]
    pub fn is_error(&self) -> bool {
        matches!(self.kind(), b'-' | b'!')
    }

    /// Whether the server sends it unasked.
    #[must_use]
    pub fn is_push(&self) -> bool {
        self.kind() == b'>'
    }

    /// Whether it starts so.
    #[must_use]
    pub fn starts_with(&self, bytes: &[u8]) -> bool {
        self.head.starts_with(bytes)
    }

    /// The last integer in it: of a subscription's confirmation, how many there are.
    #[must_use]
    pub fn integer(&self) -> Option<i64> {
        self.integer
    }

    /// The first element of an array or a push, where it is a short text.
    #[must_use]
    pub fn word(&self) -> Option<&[u8]> {
        let mut lines = self.head.split(|byte| *byte == b'\n');
        let (array, text, word) = (lines.next()?, lines.next()?, lines.next()?);
        let is_text = matches!(array.first(), Some(b'*' | b'>')) && text.starts_with(b"$");
        is_text.then(|| word.strip_suffix(b"\r"))?
    }
}
