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

impl Piece {
    fn new(start: usize, end: usize) -> Piece {
        let narrow = |n| u32::try_from(n).expect("the path's length was checked");
        Piece {
            start: narrow(start),
            end: narrow(end),
        }
    }
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
    if u32::try_from(into.text.len()).is_err() {
        return Err("the path is too long");
    }
    let bytes = into.text.as_bytes();
    let mut start = 1;
    for (at, byte) in bytes.iter().enumerate().skip(1) {
        if *byte == b'/' {
            check_segment(&bytes[start..at])?;
            into.pieces.push(Piece::new(start, at));
            start = at + 1;
        }
    }
    // Nothing after the last slash is a trailing slash, which names nothing.
    if start < bytes.len() {
        check_segment(&bytes[start..])?;
        into.pieces.push(Piece::new(start, bytes.len()));
    }
    Ok(())
}

/// Percent-decodes into `into.text`, refusing what could be read in two ways.
fn decode(path: &str, into: &mut Segments) -> Result<(), &'static str> {
    if all_plain(path.as_bytes()) {
        into.text.push_str(path);
        return Ok(());
    }
    into.decoded.clear();
    let mut rest = path.as_bytes();
    while !rest.is_empty() {
        let run = memchr::memchr(b'%', rest).unwrap_or(rest.len());
        for byte in &rest[..run] {
            check_byte(*byte, false)?;
        }
        into.decoded.extend_from_slice(&rest[..run]);
        rest = &rest[run..];
        if let [b'%', tail @ ..] = rest {
            let [high, low, tail @ ..] = tail else {
                return Err(BAD_ENCODING);
            };
            let byte = unhex(*high, *low).ok_or(BAD_ENCODING)?;
            check_byte(byte, true)?;
            into.decoded.push(byte);
            rest = tail;
        }
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

/// Whether all stands for itself. Without an early exit, so that the compiler looks at many bytes at once.
fn all_plain(path: &[u8]) -> bool {
    path.iter().fold(true, |plain, b| {
        plain & (*b > b' ') & (*b < 0x7f) & (*b != b'%') & (*b != b'\\') & (*b != b'#') & (*b != b'?')
    })
}

/// Refuses segments that name another place than their text says. What stands before a `;` counts, since some
/// backends cut the rest off.
fn check_segment(segment: &[u8]) -> Result<(), &'static str> {
    if segment.is_empty() {
        return Err("the path has an empty segment");
    }
    // A stem that names nothing of its own starts with one of these.
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
