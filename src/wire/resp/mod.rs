//! RESP, the protocol of Redis, in both versions: commands as clients send them ([`Requests`]), where each reply of
//! the server ends ([`Replies`]), and small replies as values ([`Value`]).
//!
//! Incremental: what comes in pieces reads as what comes whole. It is as strict as Redis or stricter: what Redis could
//! read otherwise is a [`ProtocolError`], after which a connection has to be closed. Called by `redis/`.

mod inline;
mod reply;
mod request;
#[cfg(test)]
mod tests;
mod value;
mod write;

pub use self::reply::{Frame, Replies, short_reply};
pub use self::request::{BULK_BYTES_MAX, Known, Passed, Read, Requests, WORDS_MAX};
pub use self::value::Value;
pub use self::write::{write_command, write_error};

/// The bytes are not RESP, or pass a bound. In the words of Redis, where it has some for it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ProtocolError {
    /// A line that is no array of bulk strings, and longer than such a line may be.
    #[error("too big inline request")]
    LongInline,
    /// A quote that is not closed, or followed by something else than a space.
    #[error("unbalanced quotes in request")]
    Quotes,
    /// A zero byte in a line.
    #[error("a zero byte in an inline request")]
    Zero,
    /// A browser was made to send this.
    #[error("an HTTP request")]
    Http,
    /// The number of words is not one, or too large.
    #[error("invalid multibulk length")]
    Count,
    /// A word does not start with `$`.
    #[error("expected '$', got '{}'", .0.escape_ascii())]
    NoBulk(u8),
    /// The length of a word is not one, or too large.
    #[error("invalid bulk length")]
    Length,
    /// A line or a word does not end with CR LF.
    #[error("a line or a bulk string does not end with CR LF")]
    LineEnd,
    /// A reply of a type that is not known, or nested too deep.
    #[error("a reply that can't be read")]
    Reply,
}

/// The longest line that holds a number: 64 bits, a sign, and some room.
const NUMBER_BYTES_MAX: usize = 32;

/// The line at the start of `bytes`, without its type byte, and the place behind it; `None` where its end has not
/// come.
fn number_line(bytes: &[u8], wrong: ProtocolError) -> Result<Option<(&[u8], usize)>, ProtocolError> {
    let looked_at = &bytes[..bytes.len().min(NUMBER_BYTES_MAX + 1)];
    match memchr::memchr(b'\r', looked_at) {
        None if looked_at.len() > NUMBER_BYTES_MAX => Err(wrong),
        None => Ok(None),
        Some(at) => match bytes.get(at + 1) {
            None => Ok(None),
            Some(b'\n') => Ok(Some((&bytes[1..at], at + 2))),
            Some(_) => Err(ProtocolError::LineEnd),
        },
    }
}

/// The number in the line at the start of `bytes`, behind its type byte, and the place behind the line: where all of it has
/// come, and it is written as nearly all are. What it does not take is for [`number_line`].
#[inline]
fn plain_line(bytes: &[u8]) -> Option<(usize, usize)> {
    // Most have one digit, or two.
    match *bytes {
        [_, one @ b'0'..=b'9', b'\r', b'\n', ..] => Some((usize::from(one - b'0'), 4)),
        [_, ten @ b'1'..=b'9', one @ b'0'..=b'9', b'\r', b'\n', ..] => {
            Some((usize::from(ten - b'0') * 10 + usize::from(one - b'0'), 5))
        }
        _ => longer_line(bytes),
    }
}

#[inline(never)]
fn longer_line(bytes: &[u8]) -> Option<(usize, usize)> {
    const DIGITS_MAX: usize = 8;
    let mut number = 0;
    for (at, byte) in bytes.iter().enumerate().skip(1).take(DIGITS_MAX + 1) {
        match byte {
            b'0'..=b'9' if number > 0 || at == 1 => number = number * 10 + usize::from(byte - b'0'),
            b'\r' if at > 1 && bytes.get(at + 1) == Some(&b'\n') => return Some((number, at + 2)),
            _ => return None,
        }
    }
    None
}

/// A decimal number as Redis writes and reads it: no plus, no leading zeros, no space.
fn number(text: &[u8]) -> Option<i64> {
    if let [first @ b'1'..=b'9', rest @ ..] = text
        && rest.len() < 18
    {
        // The usual ones; so many digits always fit.
        return rest.iter().try_fold(i64::from(first - b'0'), |sum, byte| {
            byte.is_ascii_digit().then(|| sum * 10 + i64::from(byte - b'0'))
        });
    }
    let digits = text.strip_prefix(b"-").unwrap_or(text);
    let plain = digits.iter().all(u8::is_ascii_digit) && (digits.first() != Some(&b'0') || text == b"0");
    if digits.is_empty() || !plain {
        return None;
    }
    std::str::from_utf8(text).ok()?.parse().ok()
}
