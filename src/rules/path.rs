//! Reading a request's path: strictly, as the backend surely reads it too, or not at all.
//!
//! [`read`] decodes a path into segments and says why one is ambiguous; [`lenient`] lists what a backend might
//! make of an ambiguous one, to find out whether a rule could be meant. Nothing here knows rules.
//!
//! Bytes that decode to something else than UTF-8 are ambiguous: overlong forms of `/` and `.` are among them, and
//! a name stays text that can be shown and stored.

use smallvec::SmallVec;

/// Where a segment lies in the decoded path.
#[derive(Clone, Copy, Debug)]
pub(super) struct Piece {
    start: u32,
    end: u32,
}

/// A path's segments, in buffers that are used again.
#[derive(Debug, Default)]
pub(super) struct Segments {
    decoded: Vec<u8>,
    text: String,
    pieces: SmallVec<[Piece; 12]>,
}

impl Segments {
    /// How many segments there are; a trailing slash adds none.
    pub(super) fn count(&self) -> usize {
        self.pieces.len()
    }

    /// One decoded segment.
    pub(super) fn at(&self, index: usize) -> &str {
        let piece = self.pieces[index];
        &self.text[piece.start as usize..piece.end as usize]
    }

    /// The decoded segments from `index` to the end, with the slashes between them.
    pub(super) fn from(&self, index: usize) -> &str {
        let last = self.pieces[self.pieces.len() - 1];
        &self.text[self.pieces[index].start as usize..last.end as usize]
    }
}

/// Reads `path` (from its first slash up to the query) into `into`.
///
/// # Errors
/// What the backend could read differently, in words.
pub(super) fn read(path: &str, into: &mut Segments) -> Result<(), &'static str> {
    into.pieces.clear();
    into.text.clear();
    if !path.starts_with('/') {
        return Err("the target is not a path that starts with a slash");
    }
    decode(path, into)?;
    let bytes = into.text.as_bytes();
    let end = bytes.len();
    let mut start = 1;
    while start < end {
        let stop = memchr::memchr(b'/', &bytes[start..]).map_or(end, |n| start + n);
        check_segment(&bytes[start..stop])?;
        into.pieces.push(Piece {
            start: u32::try_from(start).map_err(|_| TOO_LONG)?,
            end: u32::try_from(stop).map_err(|_| TOO_LONG)?,
        });
        start = stop + 1;
    }
    Ok(())
}

const TOO_LONG: &str = "the path is too long";

/// Percent-decodes into `into.text`, refusing what could be read in two ways.
fn decode(path: &str, into: &mut Segments) -> Result<(), &'static str> {
    let bytes = path.as_bytes();
    if bytes.iter().all(|b| is_plain(*b)) {
        into.text.push_str(path);
        return Ok(());
    }
    into.decoded.clear();
    let mut rest = bytes;
    while let [first, tail @ ..] = rest {
        let (byte, tail) = match (first, tail) {
            (b'%', [high, low, tail @ ..]) => (unhex(*high, *low).ok_or(BAD_ENCODING)?, tail),
            (b'%', _) => return Err(BAD_ENCODING),
            (byte, tail) => (*byte, tail),
        };
        check_byte(byte, *first == b'%')?;
        into.decoded.push(byte);
        rest = tail;
    }
    let text = std::str::from_utf8(&into.decoded).map_err(|_| "the path does not decode to UTF-8")?;
    into.text.push_str(text);
    Ok(())
}

const BAD_ENCODING: &str = "the path has a bad percent-encoding";

fn check_byte(byte: u8, encoded: bool) -> Result<(), &'static str> {
    match (byte, encoded) {
        (b'/', true) => Err("the path has an encoded slash (%2F)"),
        (b'\\', _) => Err("the path has a backslash"),
        (b'#' | b'?' | b' ', false) => Err("the path has a character that must be encoded"),
        (0..=0x1f | 0x7f, _) => Err("the path has a control character"),
        _ => Ok(()),
    }
}

/// What stands for itself, and can't be part of anything ambiguous within one segment.
fn is_plain(byte: u8) -> bool {
    !matches!(byte, 0..=b' ' | b'%' | b'\\' | b'#' | b'?' | 0x7f..)
}

/// Refuses segments that name another place than their text says. What stands before a `;` counts, since some
/// backends cut the rest off.
fn check_segment(segment: &[u8]) -> Result<(), &'static str> {
    if segment.is_empty() {
        return Err("the path has an empty segment");
    }
    if !matches!(segment[0], b'.' | b';') {
        return Ok(());
    }
    let stem = memchr::memchr(b';', segment).map_or(segment, |n| &segment[..n]);
    match stem {
        b"" => Err("the path has a segment that is nothing but parameters"),
        b"." | b".." => Err("the path has a . or .. segment"),
        _ => Ok(()),
    }
}

pub(super) fn unhex(high: u8, low: u8) -> Option<u8> {
    let digit = |b: u8| (b as char).to_digit(16).and_then(|d| u8::try_from(d).ok());
    Some(digit(high)? << 4 | digit(low)?)
}

/// What a backend might make of an ambiguous path: with everything resolved that can be, and with nothing
/// resolved. Only for finding out whether a rule could be meant; no name is ever made from these.
pub(super) fn lenient(path: &str) -> [Vec<String>; 2] {
    let mut decoded = Vec::with_capacity(path.len());
    let mut rest = path.as_bytes();
    while let [first, tail @ ..] = rest {
        let escaped = match (first, tail) {
            (b'%', [high, low, ..]) => unhex(*high, *low),
            _ => None,
        };
        decoded.push(escaped.unwrap_or(*first));
        rest = if escaped.is_some() { &tail[2..] } else { tail };
    }
    let mut resolved = Vec::new();
    for segment in decoded.split(|b| matches!(b, b'/' | b'\\')) {
        let stem = segment.split(|b| *b == b';').next().unwrap_or_default();
        match stem {
            b"" | b"." => {}
            b".." => drop(resolved.pop()),
            name => resolved.push(String::from_utf8_lossy(name).into_owned()),
        }
    }
    let literal = path.strip_prefix('/').unwrap_or(path);
    [resolved, literal.split('/').map(String::from).collect()]
}
