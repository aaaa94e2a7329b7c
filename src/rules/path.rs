//! Reading a request's path: as the backend surely reads it too, or not at all.
//!
//! [`read`] decodes a path into segments and says why one is ambiguous; [`readings`] lists what a backend might
//! make of an ambiguous one, to find out whether a rule could be meant. Nothing here knows rules.
//!
//! With [`Paths::Lenient`] a path may have empty segments and encoded slashes. A backend may keep them, collapse
//! the first or decode the second, and each makes another count of segments. So nothing behind the first of them is
//! ever named or compared: what stands before it, the *firm* segments, is the same at the same place for every
//! backend, and of the rest, the [`Tail`], only the least and the most segments are known that any backend could
//! make of it. A pattern matches only if all of its segments but `{*rest}` are firm, and if that rest is something
//! for every backend; it does not match only if the firm segments or the count rule it out for every backend;
//! anything between is refused. `.`, `..`, parameters alone, backslashes and control bytes are refused in the tail
//! as everywhere, also between encoded slashes, so that no reading of it leads back into the firm part.
//!
//! Bytes that decode to something else than UTF-8 are ambiguous: overlong forms of `/` and `.` are among them, and
//! a name stays text that can be shown and stored.

use smallvec::SmallVec;

use super::Paths;

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
    tail: Option<Tail>,
}

/// What stands behind the firm segments of a path, as far as all backends agree: how many segments it has at least
/// and at most.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Tail {
    pub(super) least: usize,
    pub(super) most: usize,
}

impl Segments {
    /// How many firm segments there are; a trailing slash adds none.
    pub(super) fn count(&self) -> usize {
        self.pieces.len()
    }

    /// One decoded segment.
    pub(super) fn at(&self, index: usize) -> &str {
        let piece = self.pieces[index];
        &self.text[piece.start as usize..piece.end as usize]
    }

    /// What follows the firm segments and can be read in several ways; never anything in a strict path.
    pub(super) fn tail(&self) -> Option<Tail> {
        self.tail
    }

    /// The decoded segments from `index` to the end, with the slashes between them. For paths without a tail.
    pub(super) fn from(&self, index: usize) -> &str {
        let last = self.pieces[self.pieces.len() - 1];
        &self.text[self.pieces[index].start as usize..last.end as usize]
    }
}

/// Reads `path` (from its first slash up to the query) into `into`.
///
/// # Errors
/// What the backend could read differently, in words.
pub(super) fn read(path: &str, paths: Paths, into: &mut Segments) -> Result<(), &'static str> {
    into.pieces.clear();
    into.text.clear();
    into.tail = None;
    if !path.starts_with('/') {
        return Err("the target is not a path that starts with a slash");
    }
    match (paths, first_loose(path, paths)) {
        (Paths::Strict, _) | (Paths::Lenient, None) => read_firm(path, into),
        (Paths::Lenient, Some(at)) => {
            let (firm, loose) = path.split_at(at);
            if at == 1 && starts_with_slash(loose) {
                return Err(
                    "the path starts with two slashes, so that it could be read as a host and a path",
                );
            }
            into.tail = Some(read_tail(loose, &mut into.decoded)?);
            read_firm(firm, into)
        }
    }
}

fn read_firm(path: &str, into: &mut Segments) -> Result<(), &'static str> {
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
    unescape(path, false, &mut into.decoded)?;
    let text = std::str::from_utf8(&into.decoded).map_err(|_| NOT_UTF8)?;
    into.text.push_str(text);
    Ok(())
}

fn unescape(path: &str, slashes: bool, decoded: &mut Vec<u8>) -> Result<(), &'static str> {
    decoded.clear();
    let mut rest = path.as_bytes();
    while !rest.is_empty() {
        let run = memchr::memchr(b'%', rest).unwrap_or(rest.len());
        for byte in &rest[..run] {
            check_byte(*byte, false)?;
        }
        decoded.extend_from_slice(&rest[..run]);
        rest = &rest[run..];
        if let [b'%', tail @ ..] = rest {
            let [high, low, tail @ ..] = tail else {
                return Err(BAD_ENCODING);
            };
            let byte = unhex(*high, *low).ok_or(BAD_ENCODING)?;
            if !(slashes && byte == b'/') {
                check_byte(byte, true)?;
            }
            decoded.push(byte);
            rest = tail;
        }
    }
    Ok(())
}

/// Where the first segment starts that is empty or has an encoded slash.
fn first_loose(path: &str, paths: Paths) -> Option<usize> {
    if paths == Paths::Strict {
        return None;
    }
    let mut start = 1;
    while let Some(length) = memchr::memchr(b'/', &path.as_bytes()[start..]) {
        let segment = &path[start..start + length];
        if segment.is_empty() || has_encoded_slash(segment) {
            return Some(start);
        }
        start += length + 1;
    }
    // Nothing after the last slash is a trailing slash.
    has_encoded_slash(&path[start..]).then_some(start)
}

fn starts_with_slash(tail: &str) -> bool {
    tail.starts_with('/') || tail.get(..3).is_some_and(has_encoded_slash)
}

fn has_encoded_slash(segment: &str) -> bool {
    segment
        .as_bytes()
        .windows(3)
        .any(|w| w.eq_ignore_ascii_case(b"%2f"))
}

fn read_tail(tail: &str, decoded: &mut Vec<u8>) -> Result<Tail, &'static str> {
    unescape(tail, true, decoded)?;
    std::str::from_utf8(decoded).map_err(|_| NOT_UTF8)?;
    // With every slash taken for one, kept or collapsed; and with only the plain ones, collapsed.
    let (mut most, mut least) = (0, 0);
    for piece in decoded.split(|b| *b == b'/') {
        most += 1;
        if !piece.is_empty() {
            check_segment(piece)?;
            least += 1;
        }
    }
    let plain = tail.split('/').filter(|piece| !piece.is_empty()).count();
    Ok(Tail {
        least: plain.min(least),
        most,
    })
}

const NOT_UTF8: &str = "the path does not decode to UTF-8";
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
pub(super) fn readings(path: &str) -> [Vec<String>; 2] {
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
