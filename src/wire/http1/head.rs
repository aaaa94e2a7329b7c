//! Where a head ends, room for its fields, and where each field's line lies in the raw bytes. It judges nothing
//! but line ends. Used by the request and the response parser and by the writer.

use std::mem::MaybeUninit;

use httparse::Header;

/// Empty lines before a request line that are skipped: some old clients send one after a body.
const BLANK_LINES_MAX: usize = 4;

/// Fields that fit without an allocation.
const INLINE_FIELDS: usize = 64;

/// Fields in one head, unless the caller sets another limit.
const FIELDS_MAX: usize = 1000;

/// The index after the empty line that ends the head at the start of `buf`, if it is there. `from` is how much
/// of `buf` an earlier call has seen already.
///
/// An empty line made with bare LFs ends the head too, and so does a first byte that begins none, so that the parser
/// can refuse it at once instead of waiting for a time-out: TLS spoken to a port without it holds no line's end.
#[must_use]
pub fn find_head_end(buf: &[u8], from: usize) -> Option<usize> {
    let blank = blank_lines(buf);
    if buf.get(blank).is_some_and(|first| begins_no_head(*first)) {
        return Some(blank + 1);
    }
    let start = from.saturating_sub(2).max(blank);
    let rest = buf.get(start..)?;
    for at in memchr::memchr_iter(b'\n', rest) {
        match rest[at + 1..] {
            [b'\n', ..] => return Some(start + at + 2),
            [b'\r', b'\n', ..] => return Some(start + at + 3),
            _ => {}
        }
    }
    None
}

/// A CR or LF may be the start of a blank line.
fn begins_no_head(first: u8) -> bool {
    !first.is_ascii_graphic() && first != b'\r' && first != b'\n'
}

/// The length of the blank lines before a request line, up to the number that is forgiven.
pub(super) fn blank_lines(buf: &[u8]) -> usize {
    let mut skip = 0;
    while skip < 2 * BLANK_LINES_MAX && buf[skip..].starts_with(b"\r\n") {
        skip += 2;
    }
    skip
}

/// Room for the fields of one head: 64 in place, more on the heap, up to a limit.
pub struct HeaderStorage<'b> {
    pub(super) inline: [MaybeUninit<Header<'b>>; INLINE_FIELDS],
    pub(super) heap: Vec<MaybeUninit<Header<'b>>>,
    pub(super) limit: usize,
}

impl HeaderStorage<'_> {
    /// Room for up to 1,000 fields.
    #[must_use]
    pub fn new() -> Self {
        Self::with_limit(FIELDS_MAX)
    }

    /// Room for up to `limit` fields, at least 64 and at most 65,535.
    #[must_use]
    pub fn with_limit(limit: usize) -> Self {
        HeaderStorage {
            inline: [const { MaybeUninit::uninit() }; INLINE_FIELDS],
            heap: Vec::new(),
            limit: limit.clamp(INLINE_FIELDS, usize::from(u16::MAX)),
        }
    }
}

impl Default for HeaderStorage<'_> {
    fn default() -> Self {
        Self::new()
    }
}

/// Where `field`'s line starts in `raw`, the head that it was parsed from.
pub(super) fn line_start(raw: &[u8], field: &Header<'_>) -> usize {
    field.name.as_ptr().addr() - raw.as_ptr().addr()
}

/// Where the line of field `index` ends in `raw`, its CRLF included.
pub(super) fn line_end(raw: &[u8], fields: &[Header<'_>], index: usize) -> usize {
    fields
        .get(index + 1)
        .map_or(raw.len() - 2, |next| line_start(raw, next))
}

/// True if each line of the head ends with CRLF and the head with an empty line. Only bare LFs are left to look
/// for: the token parser takes no CR but before LF.
pub(super) fn ends_lines_with_crlf(raw: &[u8], fields: &[Header<'_>]) -> bool {
    raw.ends_with(b"\r\n\r\n")
        && fields
            .iter()
            .all(|field| raw[..line_start(raw, field)].ends_with(b"\r\n"))
}
