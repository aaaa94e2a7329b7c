//! Fencing tokens: a number that grows with each acquisition of a lock, in one of three written forms.

use std::fmt;

/// A token as it is compared: `integer` and `hex` are their number, `pair` is `epoch << 64 | counter`, so that
/// the epoch decides first. Packed to words: there are many of them, and nothing needs them on 16 bytes.
#[repr(Rust, packed(8))]
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Token(pub u128);

/// How a rule's tokens are written. Marks of two formats are never compared.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum TokenFormat {
    /// `0` or `[1-9][0-9]*`, up to 2^64-1: an etcd revision, a Raft term, a Kafka epoch.
    #[default]
    Integer,
    /// 1 to 16 hex digits, with or without `0x`: a ZooKeeper zxid.
    Hex,
    /// `EPOCH.COUNTER`, also with `-` or `:`, each an integer.
    Pair,
}

/// The text is not a token in the rule's format.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Malformed;

impl TokenFormat {
    /// The format's name in the configuration.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            TokenFormat::Integer => "integer",
            TokenFormat::Hex => "hex",
            TokenFormat::Pair => "pair",
        }
    }

    /// Whether tokens of both are the same kind of number, so that they can be compared: `integer` and `hex` are
    /// two ways to write one number, `pair` is another thing.
    #[must_use]
    pub fn same_kind(self, other: TokenFormat) -> bool {
        (self == TokenFormat::Pair) == (other == TokenFormat::Pair)
    }

    /// Reads a token. Spaces and tabs around it are not part of it.
    ///
    /// # Errors
    /// [`Malformed`] for anything that is not exactly one token of this format.
    pub fn parse(self, text: &[u8]) -> Result<Token, Malformed> {
        let text = trim(text);
        match self {
            TokenFormat::Integer => integer(text).map(|n| Token(u128::from(n))),
            TokenFormat::Hex => hex(text).map(|n| Token(u128::from(n))),
            TokenFormat::Pair => {
                let at = text
                    .iter()
                    .position(|b| matches!(b, b'.' | b'-' | b':'))
                    .ok_or(Malformed)?;
                let (epoch, counter) = (integer(&text[..at])?, integer(&text[at + 1..])?);
                Ok(Token(u128::from(epoch) << 64 | u128::from(counter)))
            }
        }
    }

    /// Writes a token so that [`TokenFormat::parse`] reads it back.
    #[must_use]
    pub fn show(self, token: Token) -> Shown {
        Shown { format: self, token }
    }
}

/// A token in its written form; see [`TokenFormat::show`].
#[derive(Clone, Copy, Debug)]
pub struct Shown {
    format: TokenFormat,
    token: Token,
}

impl fmt::Display for Shown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (high, low) = (self.token.0 >> 64, self.token.0 & u128::from(u64::MAX));
        match self.format {
            TokenFormat::Integer => write!(f, "{}", { self.token.0 }),
            TokenFormat::Hex => write!(f, "{:x}", { self.token.0 }),
            TokenFormat::Pair => write!(f, "{high}.{low}"),
        }
    }
}

fn trim(mut text: &[u8]) -> &[u8] {
    while let [b' ' | b'\t', rest @ ..] = text {
        text = rest;
    }
    while let [rest @ .., b' ' | b'\t'] = text {
        text = rest;
    }
    text
}

fn integer(text: &[u8]) -> Result<u64, Malformed> {
    if text.is_empty() || text.len() > 20 || (text[0] == b'0' && text.len() > 1) {
        return Err(Malformed);
    }
    let mut n = 0u64;
    for b in text {
        let digit = b.wrapping_sub(b'0');
        if digit > 9 {
            return Err(Malformed);
        }
        n = n
            .checked_mul(10)
            .and_then(|n| n.checked_add(u64::from(digit)))
            .ok_or(Malformed)?;
    }
    Ok(n)
}

fn hex(text: &[u8]) -> Result<u64, Malformed> {
    let digits = match text {
        [b'0', b'x' | b'X', rest @ ..] => rest,
        all => all,
    };
    if digits.is_empty() || digits.len() > 16 {
        return Err(Malformed);
    }
    let mut n = 0u64;
    for b in digits {
        let digit = (*b as char).to_digit(16).ok_or(Malformed)?;
        n = n << 4 | u64::from(digit);
    }
    Ok(n)
}

#[cfg(test)]
mod tests {
    use super::{Malformed, Token, TokenFormat};

    #[test]
    fn integers_are_read_exactly_and_nothing_else_is() {
        let read = |s: &str| TokenFormat::Integer.parse(s.as_bytes());
        assert_eq!(read("0"), Ok(Token(0)));
        assert_eq!(read(" \t34 "), Ok(Token(34)));
        assert_eq!(read("18446744073709551615"), Ok(Token(u128::from(u64::MAX))));
        for bad in [
            "",
            " ",
            "x",
            "-1",
            "+1",
            "1.5",
            "18446744073709551616",
            "99999999999999999999",
            "1,2",
            "0x10",
            "01",
            "00",
            "1 2",
            "١",
        ] {
            assert_eq!(read(bad), Err(Malformed), "{bad:?}");
        }
    }

    #[test]
    fn hex_is_one_to_sixteen_digits() {
        let read = |s: &str| TokenFormat::Hex.parse(s.as_bytes());
        assert_eq!(read("0x10"), Ok(Token(16)));
        assert_eq!(read("fF"), Ok(Token(255)));
        assert_eq!(read("0000000000000001"), Ok(Token(1)));
        for bad in ["", "0x", "g", "0x0x1", "00000000000000001", "-1", "1_0"] {
            assert_eq!(read(bad), Err(Malformed), "{bad:?}");
        }
    }

    #[test]
    fn a_pair_compares_its_epoch_first() {
        let read = |s: &str| TokenFormat::Pair.parse(s.as_bytes()).unwrap();
        assert!(read("2.0") > read("1.18446744073709551615"));
        assert_eq!(read("3-4"), read("3:4"));
        for bad in ["", "1", "1.", ".1", "1.2.3", "1..2", "01.2"] {
            assert_eq!(TokenFormat::Pair.parse(bad.as_bytes()), Err(Malformed), "{bad:?}");
        }
    }

    #[test]
    fn what_is_shown_is_read_back() {
        for (format, text) in [
            (TokenFormat::Integer, "18446744073709551614"),
            (TokenFormat::Hex, "ff"),
            (TokenFormat::Pair, "7.9"),
        ] {
            let token = format.parse(text.as_bytes()).unwrap();
            assert_eq!(format.show(token).to_string(), text);
        }
    }
}
