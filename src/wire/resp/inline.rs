//! Commands as a person types them: words with spaces between, quoted where needed. As Redis splits them.

use std::ops::Range;

use super::ProtocolError;

/// Splits a line without its end into words, unquoted, which are appended to `text`.
pub(super) fn split(
    line: &[u8],
    text: &mut Vec<u8>,
    words: &mut Vec<Range<usize>>,
) -> Result<(), ProtocolError> {
    let mut rest = line;
    loop {
        rest = rest.trim_ascii_start();
        // The vertical tab is a space to C, and not to Rust.
        while let [0x0b, tail @ ..] = rest {
            rest = tail.trim_ascii_start();
        }
        if rest.is_empty() {
            return Ok(());
        }
        let start = text.len();
        rest = word(rest, text)?;
        words.push(start..text.len());
    }
}

/// Appends the word at the start of `rest`; gives what follows it.
fn word<'l>(mut rest: &'l [u8], text: &mut Vec<u8>) -> Result<&'l [u8], ProtocolError> {
    loop {
        rest = match rest {
            [] => return Ok(rest),
            [b' ' | b'\t' | b'\n' | b'\r' | 0x0b | 0x0c, ..] => return Ok(rest),
            [b'"', tail @ ..] => return closed(double_quoted(tail, text)?),
            [b'\'', tail @ ..] => return closed(single_quoted(tail, text)?),
            [byte, tail @ ..] => {
                text.push(*byte);
                tail
            }
        };
    }
}

/// A closing quote ends the word.
fn closed(rest: &[u8]) -> Result<&[u8], ProtocolError> {
    match rest.first() {
        None | Some(b' ' | b'\t' | b'\n' | b'\r' | 0x0b | 0x0c) => Ok(rest),
        Some(_) => Err(ProtocolError::Quotes),
    }
}

fn double_quoted<'l>(mut rest: &'l [u8], text: &mut Vec<u8>) -> Result<&'l [u8], ProtocolError> {
    loop {
        let (byte, tail) = match rest {
            [] => return Err(ProtocolError::Quotes),
            [b'"', tail @ ..] => return Ok(tail),
            [b'\\', b'x', a, b, tail @ ..] if a.is_ascii_hexdigit() && b.is_ascii_hexdigit() => {
                (hex(*a) << 4 | hex(*b), tail)
            }
            [b'\\', escaped, tail @ ..] => (unescaped(*escaped), tail),
            [byte, tail @ ..] => (*byte, tail),
        };
        text.push(byte);
        rest = tail;
    }
}

fn single_quoted<'l>(mut rest: &'l [u8], text: &mut Vec<u8>) -> Result<&'l [u8], ProtocolError> {
    loop {
        let (byte, tail) = match rest {
            [] => return Err(ProtocolError::Quotes),
            [b'\'', tail @ ..] => return Ok(tail),
            [b'\\', b'\'', tail @ ..] => (b'\'', tail),
            [byte, tail @ ..] => (*byte, tail),
        };
        text.push(byte);
        rest = tail;
    }
}

fn unescaped(byte: u8) -> u8 {
    match byte {
        b'n' => b'\n',
        b'r' => b'\r',
        b't' => b'\t',
        b'b' => 0x08,
        b'a' => 0x07,
        other => other,
    }
}

fn hex(digit: u8) -> u8 {
    match digit {
        b'0'..=b'9' => digit - b'0',
        b'a'..=b'f' => digit - b'a' + 10,
        _ => digit - b'A' + 10,
    }
}
