//! A text that is shown nowhere: not in logs, not in problems, not in what the admin address tells.

use std::fmt;
use std::hint::black_box;

/// What only those who may know it know.
#[derive(Clone)]
pub struct Secret(Box<str>);

impl Secret {
    /// Takes the text of a file without the space around it. `None` where nothing is left, or something that can't
    /// stand in a header field.
    #[must_use]
    pub fn of_file(text: &[u8]) -> Option<Secret> {
        let text = std::str::from_utf8(text.trim_ascii()).ok()?;
        let sound = !text.is_empty() && text.bytes().all(|b| b.is_ascii_graphic());
        sound.then(|| Secret(text.into()))
    }

    /// Whether the guess is right, in a time that tells no more than how long the secret is.
    #[must_use]
    pub fn is(&self, guess: &[u8]) -> bool {
        let secret = self.0.as_bytes();
        let mut differs = u8::from(secret.len() != guess.len());
        for (at, byte) in secret.iter().enumerate() {
            differs |= byte ^ guess.get(at).copied().unwrap_or_default();
            // Else the loop could be ended at the first byte that differs.
            differs = black_box(differs);
        }
        differs == 0
    }

    /// The text, for sending it to where it belongs.
    #[must_use]
    pub fn reveal(&self) -> &str {
        &self.0
    }

    /// How long it is, in bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.0.len()
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret")
    }
}

impl PartialEq for Secret {
    fn eq(&self, other: &Secret) -> bool {
        self.is(other.0.as_bytes())
    }
}

impl Eq for Secret {}

#[cfg(test)]
mod tests {
    use super::Secret;

    #[test]
    fn only_the_whole_secret_is_right_and_it_is_not_shown() {
        let secret = Secret::of_file(b" s3cret-token\n").unwrap();
        assert!(secret.is(b"s3cret-token"));
        for wrong in ["", "s3cret-toke", "s3cret-token ", "s3cret-tokem", "S3cret-token"] {
            assert!(!secret.is(wrong.as_bytes()), "{wrong:?}");
        }
        assert!(!secret.is(b"s3cret-token\0"));
        assert!(!format!("{secret:?}").contains("s3cret"));
        assert_eq!(secret, secret.clone());
    }

    #[test]
    fn what_is_no_secret_is_none() {
        for bad in [
            &b""[..],
            b" \n",
            b"a b",
            b"a\nb",
            "\u{e9}".as_bytes(),
            b"\xff",
            b"a\0",
        ] {
            assert!(Secret::of_file(bad).is_none(), "{bad:?}");
        }
    }
}
