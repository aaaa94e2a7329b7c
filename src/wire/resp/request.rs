//! Commands as they come from a client: arrays of bulk strings, or lines.
//!
//! A command that fits the buffer is read whole. One with a value that is too large for that is read as far as it has
//! come ([`Requests::known`]), and then followed to its end without being kept ([`Requests::pass`]).

use std::ops::Range;

use super::{ProtocolError, inline, number, number_line, plain_line};

/// Words that a command may have, as Redis allowed for most of its life.
pub const WORDS_MAX: usize = 1024 * 1024;
/// Bytes that a word may have, as Redis allows unless told otherwise.
pub const BULK_BYTES_MAX: u64 = 512 * 1024 * 1024;
/// Bytes that a line may have, as in Redis.
const INLINE_BYTES_MAX: usize = 64 * 1024;

/// Reads the commands of one connection, one after the other.
#[derive(Debug, Default)]
pub struct Requests {
    state: State,
    /// How many words the present command has.
    count: usize,
    /// Where those that have come stand: from the command's first byte on, or in `typed`.
    words: Vec<Range<usize>>,
    /// The words of a line, unquoted.
    typed: Vec<u8>,
    /// How far the present command has been read.
    at: usize,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
enum State {
    /// Nothing of a command has been read, or it has been read whole.
    #[default]
    Start,
    /// In a line; so far its end was looked for.
    Line,
    /// Before a word's length.
    Length,
    /// In a word of so many bytes.
    Word(u64),
    /// Followed, not kept: so many bytes of the present word are to come, with its line end, and so many words after
    /// it. Zero bytes: a length comes next.
    Passing { bytes: u64, words: usize },
}

/// What the buffer holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Read {
    /// Not all of a command yet.
    More,
    /// So many bytes that ask for nothing.
    Nothing(usize),
    /// A command of so many bytes; its words are [`Requests::words`].
    Command(usize),
}

/// What is known of a command that has not come whole.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Known {
    /// How many words it has.
    pub count: usize,
    /// How many of them have come.
    pub come: usize,
}

/// What [`Requests::pass`] has found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Passed {
    /// So many bytes of the buffer belong to the command.
    pub len: usize,
    /// Its last byte is among them.
    pub ends: bool,
}

impl Requests {
    /// Looks for a command at the front of `buf`. Until it has come whole each call must bring the same bytes again,
    /// and perhaps more.
    ///
    /// # Errors
    /// [`ProtocolError`]: what follows can't be read.
    pub fn read(&mut self, buf: &[u8]) -> Result<Read, ProtocolError> {
        loop {
            match self.state {
                State::Start => {
                    if let Some(len) = self.read_usual(buf) {
                        return Ok(Read::Command(len));
                    }
                    self.words.clear();
                    (self.at, self.count) = (0, 0);
                    match buf.first() {
                        None => return Ok(Read::More),
                        Some(b'*') => {
                            let Some((text, behind)) = number_line(buf, ProtocolError::Count)? else {
                                return Ok(Read::More);
                            };
                            match number(text) {
                                Some(..=0) => return Ok(Read::Nothing(behind)),
                                Some(count @ 1..) if count <= WORDS_MAX as i64 => {
                                    self.count = count as usize;
                                    self.at = behind;
                                    self.state = State::Length;
                                }
                                _ => return Err(ProtocolError::Count),
                            }
                        }
                        Some(_) => self.state = State::Line,
                    }
                }
                State::Line => return self.read_line(buf),
                State::Length => match length(&buf[self.at..])? {
                    Some((length, behind)) => {
                        self.at += behind;
                        self.state = State::Word(length);
                    }
                    None => return Ok(Read::More),
                },
                State::Word(length) => {
                    // Bounded by BULK_BYTES_MAX.
                    let end = self.at + length as usize;
                    match buf.get(end..end + 2) {
                        None => return Ok(Read::More),
                        Some(b"\r\n") => {}
                        Some(_) => return Err(ProtocolError::LineEnd),
                    }
                    self.words.push(self.at..end);
                    self.at = end + 2;
                    if self.words.len() == self.count {
                        self.state = State::Start;
                        return Ok(Read::Command(self.at));
                    }
                    self.state = State::Length;
                }
                State::Passing { .. } => return Ok(Read::More),
            }
        }
    }

    /// An array that has come whole, in one go: of all others nothing is kept.
    fn read_usual(&mut self, buf: &[u8]) -> Option<usize> {
        if buf.first() != Some(&b'*') {
            return None;
        }
        let (count, mut at) = plain_line(buf).filter(|(count, _)| (1..=WORDS_MAX).contains(count))?;
        self.words.clear();
        for _ in 0..count {
            let line = buf.get(at..).filter(|line| line.first() == Some(&b'$'))?;
            let (length, behind) = plain_line(line)?;
            let (begin, end) = (at + behind, at + behind + length);
            if buf.get(end..end + 2)? != b"\r\n" {
                return None;
            }
            self.words.push(begin..end);
            at = end + 2;
        }
        (self.count, self.at) = (count, at);
        Some(at)
    }

    fn read_line(&mut self, buf: &[u8]) -> Result<Read, ProtocolError> {
        let Some(found) = memchr::memchr(b'\n', &buf[self.at..]) else {
            self.at = buf.len();
            return match buf.len() {
                0..=INLINE_BYTES_MAX => Ok(Read::More),
                _ => Err(ProtocolError::LongInline),
            };
        };
        let end = self.at + found;
        if end > INLINE_BYTES_MAX {
            return Err(ProtocolError::LongInline);
        }
        let line = buf[..end].strip_suffix(b"\r").unwrap_or(&buf[..end]);
        if memchr::memchr(0, line).is_some() {
            return Err(ProtocolError::Zero);
        }
        self.typed.clear();
        inline::split(line, &mut self.typed, &mut self.words)?;
        (self.state, self.count, self.at) = (State::Start, self.words.len(), 0);
        match self.words.first() {
            None => Ok(Read::Nothing(end + 1)),
            Some(first) if is_http(&self.typed[first.clone()]) => Err(ProtocolError::Http),
            Some(_) => Ok(Read::Command(end + 1)),
        }
    }

    /// The words that have come of the present command; of one that [`Requests::read`] has found, all of them, until
    /// it is called again. `buf` is what it was called with.
    pub fn words<'b>(&'b self, buf: &'b [u8]) -> impl ExactSizeIterator<Item = &'b [u8]> + Clone {
        let text = if self.is_line() { &self.typed[..] } else { buf };
        self.words.iter().map(|place| &text[place.clone()])
    }

    /// One of [`Requests::words`].
    #[must_use]
    pub fn word<'b>(&'b self, buf: &'b [u8], index: usize) -> Option<&'b [u8]> {
        let text = if self.is_line() { &self.typed[..] } else { buf };
        self.words.get(index).map(|place| &text[place.clone()])
    }

    /// Whether the command that was read last is a line: then it is to be written anew.
    #[must_use]
    pub fn is_line(&self) -> bool {
        // An array's words start behind its own first line.
        self.at == 0
    }

    /// What is known of an array that has not come whole; `None` where not even its first line has.
    #[must_use]
    pub fn known(&self) -> Option<Known> {
        matches!(self.state, State::Length | State::Word(_)).then_some(Known {
            count: self.count,
            come: self.words.len(),
        })
    }

    /// Whether a command is being followed by [`Requests::pass`].
    #[must_use]
    pub fn is_passing(&self) -> bool {
        matches!(self.state, State::Passing { .. })
    }

    /// Follows a command that is [known](Requests::known) in part, without keeping it. The first call is given what
    /// `read` was given last, each later one what follows the bytes that the earlier ones have passed.
    ///
    /// # Errors
    /// [`ProtocolError`]: the command is no command.
    pub fn pass(&mut self, buf: &[u8]) -> Result<Passed, ProtocolError> {
        let (mut at, mut bytes, mut words) = match self.state {
            State::Passing { bytes, words } => (0, bytes, words),
            State::Word(length) => (self.at, length + 2, self.count - self.words.len() - 1),
            State::Length => (self.at, 0, self.count - self.words.len()),
            State::Start | State::Line => {
                return Ok(Passed { len: 0, ends: false });
            }
        };
        loop {
            if bytes == 0 {
                let Some((length, behind)) = length(&buf[at..])? else {
                    break;
                };
                at += behind;
                (bytes, words) = (length + 2, words - 1);
            }
            let there = &buf[at..];
            let taken = there.len().min(usize::try_from(bytes).unwrap_or(usize::MAX));
            check_end(&there[..taken], bytes)?;
            (at, bytes) = (at + taken, bytes - taken as u64);
            if bytes > 0 {
                break;
            }
            if words == 0 {
                self.state = State::Start;
                return Ok(Passed { len: at, ends: true });
            }
        }
        self.state = State::Passing { bytes, words };
        Ok(Passed { len: at, ends: false })
    }
}

/// The length of a word, at the start of `bytes`.
fn length(bytes: &[u8]) -> Result<Option<(u64, usize)>, ProtocolError> {
    match bytes.first() {
        None => return Ok(None),
        Some(b'$') => {}
        Some(other) => return Err(ProtocolError::NoBulk(*other)),
    }
    let Some((text, behind)) = number_line(bytes, ProtocolError::Length)? else {
        return Ok(None);
    };
    let length = number(text).and_then(|length| u64::try_from(length).ok());
    match length.filter(|length| *length <= BULK_BYTES_MAX) {
        Some(length) => Ok(Some((length, behind))),
        None => Err(ProtocolError::Length),
    }
}

/// `left` bytes were to come of a word and its line end, and these are the next: those of the line end must be one.
fn check_end(next: &[u8], left: u64) -> Result<(), ProtocolError> {
    let text = usize::try_from(left - 2.min(left)).unwrap_or(usize::MAX);
    let end = next.get(text..).unwrap_or_default();
    let wanted = &b"\r\n"[2 - left.min(2) as usize..];
    match wanted.starts_with(end) {
        true => Ok(()),
        false => Err(ProtocolError::LineEnd),
    }
}

/// A web page can make a browser send these to any address, with commands in what follows.
fn is_http(word: &[u8]) -> bool {
    word.eq_ignore_ascii_case(b"post") || word.eq_ignore_ascii_case(b"host:")
}
