//! The line that a client can put in front of a plain connection: `FENCE resource token\n`, or `FENCE resource\n`
//! where it holds no token. Pure: bytes in, the line or "more" out; the same for every split.
//!
//! One space between the words, none around them, no carriage return: a resource with a space or a control character
//! in it is named by other means. What begins otherwise is no preface.

/// What the line begins with.
const WORD: &[u8; 6] = b"FENCE ";

/// The line's words.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Preface<'a> {
    /// The resource's name.
    pub resource: &'a str,
    /// The token's text; `None` where the line ends before one.
    pub token: Option<&'a str>,
}

/// What bytes begin with.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Begins<'a> {
    /// With a preface of so many bytes.
    With(Preface<'a>, usize),
    /// Perhaps with one: more is needed.
    Unclear,
    /// With something else.
    Otherwise,
}

/// Why a line that begins as a preface is none.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{0}")]
pub struct Malformed(pub &'static str);

/// Reads the preface that `bytes` begin with. A line of more than `max` bytes is malformed.
///
/// # Errors
/// [`Malformed`]: whatever follows, it will be no preface, and it begins as one.
pub fn parse(bytes: &[u8], max: usize) -> Result<Begins<'_>, Malformed> {
    if bytes.iter().zip(WORD).any(|(came, wanted)| came != wanted) {
        return Ok(Begins::Otherwise);
    }
    let window = &bytes[..bytes.len().min(max)];
    let Some(end) = memchr::memchr(b'\n', window) else {
        return match bytes.len() < max {
            true => Ok(Begins::Unclear),
            false => Err(Malformed("the preface is longer than max_header_bytes")),
        };
    };
    let words = window.get(WORD.len()..end).ok_or(WRONG)?;
    let words = std::str::from_utf8(words).map_err(|_| Malformed("the preface is not UTF-8"))?;
    let (resource, token) = match words.split_once(' ') {
        Some((resource, token)) => (resource, Some(token)),
        None => (words, None),
    };
    let is_word = |text: &str| !text.is_empty() && !text.contains(|c: char| c == ' ' || c.is_control());
    if !is_word(resource) || !token.is_none_or(is_word) {
        return Err(WRONG);
    }
    Ok(Begins::With(Preface { resource, token }, end + 1))
}

const WRONG: Malformed =
    Malformed("the preface is not FENCE, a resource and a token with one space between them");

#[cfg(test)]
mod tests {
    use super::{Begins, Preface, parse};

    #[test]
    fn a_line_is_read_whole_at_every_split() {
        for (text, resource, token) in [
            ("FENCE orders/1 34\n", "orders/1", Some("34")),
            ("FENCE ö 1.2\n", "ö", Some("1.2")),
            ("FENCE orders/1\n", "orders/1", None),
        ] {
            let long = [text.as_bytes(), b"FENCE x 1\n"].concat();
            for cut in 0..text.len() {
                assert_eq!(parse(&long[..cut], 64), Ok(Begins::Unclear), "{text} {cut}");
            }
            for cut in text.len()..=long.len() {
                let preface = Preface { resource, token };
                assert_eq!(parse(&long[..cut], 64), Ok(Begins::With(preface, text.len())));
            }
        }
    }

    #[test]
    fn what_begins_otherwise_is_told_with_its_first_other_byte() {
        for text in [
            "G",
            "FE ",
            "FENCED a 1\n",
            "fence a 1\n",
            "FENCE\n",
            "FENCE\ta 1\n",
        ] {
            assert_eq!(parse(text.as_bytes(), 64), Ok(Begins::Otherwise), "{text}");
        }
    }

    #[test]
    fn a_line_that_can_be_read_in_two_ways_is_malformed() {
        for text in [
            "FENCE \n",
            "FENCE  1\n",
            "FENCE a \n",
            "FENCE a  1\n",
            "FENCE a 1 \n",
            "FENCE a b 1\n",
            "FENCE a 1\r\n",
            "FENCE a\0b 1\n",
        ] {
            assert!(parse(text.as_bytes(), 64).is_err(), "{text:?}");
        }
        assert!(parse(b"FENCE \xff 1\n", 64).is_err());
        let line = format!("FENCE {} 1\n", "x".repeat(100));
        assert!(parse(line.as_bytes(), line.len()).is_ok());
        assert!(parse(line.as_bytes(), line.len() - 1).is_err());
        assert!(parse(&line.as_bytes()[..line.len() - 1], line.len() - 1).is_err());
    }
}
