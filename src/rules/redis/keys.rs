//! Patterns of keys, `orders:{id}*`, and the names that they give resources.

use std::ops::Range;

use smallvec::SmallVec;

use crate::rules::fold::fold;
use crate::rules::{Shape, ShapePart};

/// A pattern of keys.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct KeyPattern {
    text: Box<str>,
    parts: Box<[Part]>,
    front: Front,
    /// It ends with `*`.
    open: bool,
    captures: Box<[Box<str>]>,
}

/// The first bytes of every key that a pattern takes, up to eight: most other keys are told from them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Front {
    bytes: u64,
    mask: u64,
}

impl Front {
    fn of(parts: &[Part]) -> Front {
        let (mut bytes, mut mask) = ([0; 8], [0; 8]);
        if let Some(Part::Text(text)) = parts.first() {
            for (at, byte) in text.iter().take(8).enumerate() {
                (bytes[at], mask[at]) = (*byte, 0xff);
            }
        }
        Front {
            bytes: u64::from_le_bytes(bytes),
            mask: u64::from_le_bytes(mask),
        }
    }

    /// Whether the key may begin so.
    #[inline]
    fn fits(self, key: &[u8]) -> bool {
        let first = key.first_chunk().map(|first| u64::from_le_bytes(*first));
        first.is_none_or(|first| first & self.mask == self.bytes)
    }
}

#[derive(Clone, PartialEq, Eq, Debug)]
enum Part {
    Text(Box<[u8]>),
    /// Everything up to the next colon: one byte or more.
    Capture,
}

/// Where the captures stand in a key.
pub(super) type Captured = SmallVec<[Range<usize>; 4]>;

const TEXT_BYTES_MAX: usize = 512;

impl KeyPattern {
    /// Reads a pattern.
    ///
    /// # Errors
    /// What is wrong and what would be right.
    pub fn parse(text: &str) -> Result<KeyPattern, String> {
        if text.is_empty() || text.len() > TEXT_BYTES_MAX {
            return Err(format!(
                "{text:?} is no pattern of keys: it needs 1 to {TEXT_BYTES_MAX} bytes, as in \"orders:{{id}}*\""
            ));
        }
        let (mut parts, mut captures, mut literal) = (Vec::new(), Vec::<Box<str>>::new(), Vec::new());
        let mut rest = text;
        let mut open = false;
        while let Some(c) = rest.chars().next() {
            rest = match c {
                '*' if rest.len() == 1 => {
                    open = true;
                    ""
                }
                '*' => {
                    return Err(format!(
                        "{text:?}: * takes the rest, so that it can only stand at the end"
                    ));
                }
                // Doubled, it is a brace of the key's own.
                '{' | '}' if rest[1..].starts_with(c) => {
                    literal.push(c as u8);
                    &rest[2..]
                }
                '}' => {
                    return Err(format!(
                        "{text:?} closes a brace that it did not open; a brace of the key's own is doubled"
                    ));
                }
                '{' => {
                    let (name, tail) = capture(text, &rest[1..])?;
                    if captures.iter().any(|known| **known == *name) {
                        return Err(format!("{text:?} has {{{name}}} twice"));
                    }
                    if !literal.is_empty() {
                        parts.push(Part::Text(std::mem::take(&mut literal).into()));
                    }
                    parts.push(Part::Capture);
                    captures.push(name.into());
                    tail
                }
                c => {
                    literal.extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes());
                    &rest[c.len_utf8()..]
                }
            };
        }
        if !literal.is_empty() {
            parts.push(Part::Text(literal.into()));
        }
        Ok(KeyPattern {
            text: text.into(),
            front: Front::of(&parts),
            parts: parts.into(),
            open,
            captures: captures.into(),
        })
    }

    /// As it is written.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// Whether it takes this key, and what it captures of it.
    #[inline]
    pub(super) fn take(&self, key: &[u8], captured: &mut Captured) -> bool {
        captured.clear();
        self.front.fits(key) && self.take_parts(key, captured)
    }

    /// Of a key that [`Front::fits`]: its first eight bytes, where it has so many, are known to be right.
    fn take_parts(&self, key: &[u8], captured: &mut Captured) -> bool {
        // Nearly all have one capture, at their end.
        if let ([Part::Text(text), Part::Capture], false) = (&*self.parts, self.open) {
            let fits = key.len() > text.len()
                && (text.len() <= 8 && key.len() >= 8 || key.starts_with(text))
                && colon(&key[text.len()..]).is_none();
            if fits {
                captured.push(text.len()..key.len());
            }
            return fits;
        }
        let mut at = 0;
        for part in &self.parts {
            match part {
                Part::Text(text) if key[at..].starts_with(text) => at += text.len(),
                Part::Text(_) => return false,
                Part::Capture => {
                    let end = colon(&key[at..]).map_or(key.len(), |found| at + found);
                    if end == at {
                        return false;
                    }
                    captured.push(at..end);
                    at = end;
                }
            }
        }
        self.open || at == key.len()
    }

    /// Whether every key that `later` takes is taken by this one too, as far as that is plain to see.
    #[must_use]
    pub fn covers(&self, later: &KeyPattern) -> bool {
        match self.open {
            true => begins(&later.parts, &self.parts),
            false => self.parts == later.parts && !later.open,
        }
    }
}

/// Whether every key that fits `parts` begins with one that fits `front`.
fn begins(parts: &[Part], front: &[Part]) -> bool {
    match (parts, front) {
        (_, []) => true,
        ([Part::Text(text), ..], [Part::Text(front)]) => text.starts_with(front),
        ([part, parts @ ..], [first, front @ ..]) => part == first && begins(parts, front),
        ([], [_, ..]) => false,
    }
}

/// The name of a capture, and what follows its brace: nothing but a colon can end what it takes.
fn capture<'t>(text: &str, inside: &'t str) -> Result<(&'t str, &'t str), String> {
    let end = inside
        .find('}')
        .ok_or_else(|| format!("{text:?} opens a brace and does not close it"))?;
    let (name, tail) = (&inside[..end], &inside[end + 1..]);
    let plain = |b: u8| b.is_ascii_alphanumeric() || b == b'_';
    if name.is_empty() || !name.bytes().all(plain) {
        return Err(format!(
            "{name:?} is no name for a part of a key; use letters, digits and _"
        ));
    }
    if !(tail.is_empty() || tail.starts_with([':', '*'])) {
        return Err(format!(
            "{text:?}: {{{name}}} takes everything up to the next colon, so that only a colon, * or the end can follow it"
        ));
    }
    Ok((name, tail))
}

/// How a rule names its resource.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct KeyTemplate {
    text: Box<str>,
    parts: Box<[NamePart]>,
}

#[derive(Clone, PartialEq, Eq, Debug)]
enum NamePart {
    Text(Box<str>),
    Capture(usize),
}

impl KeyTemplate {
    /// Reads a template for the captures of `pattern`; without a pattern the name is fixed.
    ///
    /// # Errors
    /// What is wrong and what would be right.
    pub fn parse(text: &str, pattern: Option<&KeyPattern>) -> Result<KeyTemplate, String> {
        if text.is_empty() || text.len() > TEXT_BYTES_MAX || text.chars().any(char::is_control) {
            return Err(format!(
                "{text:?} is no name for a resource: it needs 1 to {TEXT_BYTES_MAX} bytes without control characters, as in \"orders/{{id}}\""
            ));
        }
        let mut parts = Vec::new();
        let mut rest = text;
        while !rest.is_empty() {
            let Some(inside) = rest.strip_prefix('{') else {
                let end = rest.find('{').unwrap_or(rest.len());
                if rest[..end].contains('}') {
                    return Err(format!("{text:?} closes a brace that it did not open"));
                }
                parts.push(NamePart::Text(rest[..end].into()));
                rest = &rest[end..];
                continue;
            };
            let end = inside
                .find('}')
                .ok_or_else(|| format!("{text:?} opens a brace and does not close it"))?;
            if matches!(parts.last(), Some(NamePart::Capture(_))) {
                return Err(format!(
                    "two parts of {text:?} stand side by side, so that different resources could get one name: put a slash between them"
                ));
            }
            parts.push(NamePart::Capture(index_of(&inside[..end], pattern)?));
            rest = &inside[end + 1..];
        }
        Ok(KeyTemplate {
            text: text.into(),
            parts: parts.into(),
        })
    }

    /// As it is written.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// The names that it can give.
    #[must_use]
    pub fn shape(&self) -> Shape {
        let parts = self.parts.iter().map(|part| match part {
            NamePart::Text(text) => ShapePart::Text(text.clone()),
            // Anything but a colon, slashes too.
            NamePart::Capture(_) => ShapePart::Any,
        });
        Shape::new(&self.text, parts)
    }

    /// Appends the name to `into`. Bytes of a key that are no UTF-8 are written as `\xNN`: two keys may so get one
    /// name, never one key two.
    pub(super) fn fill(&self, key: &[u8], captured: &Captured, fold_case: bool, into: &mut String) {
        let start = into.len();
        for part in &self.parts {
            match part {
                NamePart::Text(text) => into.push_str(text),
                NamePart::Capture(index) => {
                    let place = captured.get(*index).cloned().unwrap_or_default();
                    push_readable(&key[place], into);
                }
            }
        }
        if fold_case {
            fold(into, start);
        }
    }
}

/// Where the first colon stands. In few bytes it is found before a search that is fast in many would have begun: eight at
/// once, by the trick that makes the highest bit of each byte that is zero (Mycroft's; exact for the first one).
fn colon(bytes: &[u8]) -> Option<usize> {
    const LOW: u64 = u64::from_ne_bytes([1; 8]);
    if bytes.len() > 64 {
        return memchr::memchr(b':', bytes);
    }
    let within = |word: &[u8; 8]| {
        let differs = u64::from_le_bytes(*word) ^ (LOW * u64::from(b':'));
        let zero = differs.wrapping_sub(LOW) & !differs & (LOW << 7);
        (zero != 0).then(|| zero.trailing_zeros() as usize / 8)
    };
    let Some(last) = bytes.last_chunk() else {
        return bytes.iter().position(|byte| *byte == b':');
    };
    let mut at = 0;
    while let Some(word) = bytes[at..].first_chunk() {
        if let Some(found) = within(word) {
            return Some(at + found);
        }
        at += 8;
    }
    // Some of these have been looked at.
    within(last).map(|found| bytes.len() - 8 + found)
}

/// As the standard library's, but quick where there are few bytes.
#[inline]
fn is_ascii(bytes: &[u8]) -> bool {
    const HIGH: u64 = u64::from_ne_bytes([0x80; 8]);
    let Some(last) = bytes.last_chunk() else {
        return bytes.iter().all(u8::is_ascii);
    };
    if let (Some(first), 8..=16) = (bytes.first_chunk(), bytes.len()) {
        return (u64::from_ne_bytes(*first) | u64::from_ne_bytes(*last)) & HIGH == 0;
    }
    let words = bytes.as_chunks().0.iter();
    let all = words.fold(u64::from_ne_bytes(*last), |all, word| {
        all | u64::from_ne_bytes(*word)
    });
    all & HIGH == 0
}

fn push_readable(bytes: &[u8], into: &mut String) {
    if is_ascii(bytes) {
        // SAFETY: ASCII is UTF-8.
        return into.push_str(unsafe { std::str::from_utf8_unchecked(bytes) });
    }
    if let Ok(text) = std::str::from_utf8(bytes) {
        return into.push_str(text);
    }
    for chunk in bytes.utf8_chunks() {
        into.push_str(chunk.valid());
        for byte in chunk.invalid() {
            into.extend(std::ascii::escape_default(*byte).map(char::from));
        }
    }
}

fn index_of(name: &str, pattern: Option<&KeyPattern>) -> Result<usize, String> {
    let Some(pattern) = pattern else {
        return Err(format!(
            "{{{name}}} has nothing to come from: the rule has no match.keys"
        ));
    };
    let found = pattern.captures.iter().position(|capture| **capture == *name);
    found.ok_or_else(|| {
        let known: Vec<String> = pattern.captures.iter().map(|c| format!("{{{c}}}")).collect();
        let known = match known.is_empty() {
            true => "no captures".into(),
            false => known.join(", "),
        };
        format!(
            "{{{name}}} is not in the rule's keys: {:?} has {known}",
            pattern.text
        )
    })
}

#[cfg(test)]
mod tests {
    use super::{Captured, KeyPattern, colon, is_ascii};

    /// Texts of each length up to 80, with one byte of another kind at each place.
    fn texts(other: u8) -> impl Iterator<Item = Vec<u8>> {
        let places = (0..80).flat_map(|len| (0..len).map(move |at| (len, at)));
        places.flat_map(move |(len, at)| {
            [b'a', b';', b'9', 0, 0x7f].map(|byte| {
                let mut text = vec![byte; len];
                text[at] = other;
                text
            })
        })
    }

    #[test]
    fn the_first_colon_is_found_wherever_it_stands() {
        for mut text in texts(b':') {
            let first = text.iter().position(|byte| *byte == b':');
            assert_eq!(colon(&text), first, "{}", text.escape_ascii());
            text.extend_from_slice(b":a:");
            assert_eq!(colon(&text), first, "{}", text.escape_ascii());
        }
        for text in texts(b':' | 0x80) {
            assert_eq!(colon(&text), None, "{}", text.escape_ascii());
        }
        assert_eq!(colon(b""), None);
    }

    #[test]
    fn patterns_take_what_a_regular_expression_takes() {
        let keys = [
            "a",
            "a:",
            "a:1",
            "a:1:b",
            "a:12345678",
            "a:1234:678",
            "b:12345678",
            "abcdefgh",
            "abcdefgh:",
            "abcdefgh:1",
            "abcdefgi:1",
            "abcdefghij:1",
            "abcdefghij:12345678901234567890",
            "abcdefghix:1",
            "abcdefghij:1:2",
            "1:b",
            "12345678:b",
            "12345678",
            ":b",
            "abcdefg:1",
            "abcdef:1",
            "abcde:\u{e9}",
        ];
        for text in [
            "a:{x}",
            "a:{x}*",
            "a:{x}:b",
            "abcdefg:{x}",
            "abcdef:{x}",
            "abcdefgh:{x}",
            "abcdefghij:{x}",
            "abcdefghij:{x}*",
            "{x}:b",
            "{x}",
            "{x}*",
            "a:1",
            "abcdefgh",
            "abcde:{x}",
        ] {
            let pattern = KeyPattern::parse(text).unwrap();
            let words = regex::escape(text)
                .replace(r"\{x\}", "([^:]+)")
                .replace(r"\*", "(?:.*)");
            let expression = regex::bytes::Regex::new(&format!("(?s-u)^{words}$")).unwrap();
            for key in keys {
                let mut captured = Captured::new();
                let taken = pattern.take(key.as_bytes(), &mut captured);
                let wanted = expression.captures(key.as_bytes());
                assert_eq!(taken, wanted.is_some(), "{text} {key}");
                if let Some(one) = wanted.and_then(|wanted| Some(wanted.get(1)?.range())) {
                    assert_eq!(captured[..], [one], "{text} {key}");
                }
            }
        }
    }

    #[test]
    fn no_byte_beyond_ascii_is_overlooked() {
        for other in [0x80, 0xff, b':'] {
            for text in texts(other) {
                assert_eq!(is_ascii(&text), text.is_ascii(), "{}", text.escape_ascii());
            }
        }
        assert!(is_ascii(b""));
    }
}
