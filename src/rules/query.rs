//! The fields of a query, and what backends make of them: which fields some take for another, and which text of one
//! can be read in two ways. Used by names (`{query.NAME}`), by conditions and by tokens.

use std::borrow::Cow;

use super::path::unhex;

/// Whether and how a field stands in a query.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Field<'q> {
    /// To no backend.
    Absent,
    /// Once, and no other is taken for it: its value, undecoded.
    Once(&'q str),
    /// What it is can't be told.
    Unclear(&'static str),
}

/// What a `+` stands for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Plus {
    /// A space, as in forms.
    Space,
    /// Itself.
    Itself,
    /// Either: what holds one is not decoded.
    Refused,
}

/// Looks for a field as all backends together would: what one of them could take for it counts as sent.
pub(super) fn find<'q>(query: &'q str, name: &str) -> Field<'q> {
    let mut found = Field::Absent;
    for pair in query.split('&') {
        // Some backends take `;` for `&`.
        for (index, piece) in pair.split(';').enumerate() {
            let (key, value) = piece.split_once('=').unwrap_or((piece, ""));
            let Some(key) = decode(key, Plus::Space) else {
                return Field::Unclear("the query has a field whose name has a bad encoding");
            };
            if !same_key(&key, name) {
                continue;
            }
            found = match found {
                Field::Absent if key == name && index == 0 && piece.len() == pair.len() => Field::Once(value),
                Field::Absent => Field::Unclear("the query has a field that some backends take for it"),
                Field::Once(_) | Field::Unclear(_) => return Field::Unclear("it was sent twice"),
            };
        }
    }
    found
}

/// Looks for a field that the gate alone reads: none other is taken for it, however backends read it.
pub(super) fn find_own<'q>(query: &'q str, name: &str) -> Field<'q> {
    let mut found = Field::Absent;
    for pair in query.split('&') {
        for piece in pair.split(';') {
            let (key, value) = piece.split_once('=').unwrap_or((piece, ""));
            if decode(key, Plus::Space).is_none_or(|key| key != name) {
                continue;
            }
            found = match found {
                Field::Absent if piece.len() == pair.len() => Field::Once(value),
                Field::Absent => Field::Unclear("the query has a ; beside the token"),
                Field::Once(_) | Field::Unclear(_) => return Field::Unclear("the token was sent twice"),
            };
        }
    }
    found
}

/// Percent-decodes a part of a query; `None` for what has a bad encoding.
pub(super) fn decode(text: &str, plus: Plus) -> Option<Cow<'_, str>> {
    if !text.contains(['%', '+']) {
        return Some(text.into());
    }
    let mut decoded = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, tail @ ..] = rest {
        let (byte, tail) = match (first, tail) {
            (b'%', [high, low, tail @ ..]) => (unhex(*high, *low)?, tail),
            (b'%', _) => return None,
            (b'+', tail) => match plus {
                Plus::Space => (b' ', tail),
                Plus::Itself => (b'+', tail),
                Plus::Refused => return None,
            },
            (byte, tail) => (*byte, tail),
        };
        decoded.push(byte);
        rest = tail;
    }
    String::from_utf8(decoded).map(Into::into).ok()
}

/// Whether some backend could take a query field for another: letter case is ignored by some; others read `id[]`,
/// `id[x]` and `[id]` as `id`, cut a name at a NUL, drop spaces at its ends, or make `_` of a dot, a space and `[`.
pub(super) fn same_key(key: &str, name: &str) -> bool {
    let whole = |text: &'_ str| text.find('\0').unwrap_or(text.len());
    let (key, name) = (&key[..whole(key)], &name[..whole(name)]);
    same_plain(key.trim(), name.trim()) || same_plain(without_brackets(key), without_brackets(name))
}

fn without_brackets(text: &str) -> &str {
    const BRACKETS: [char; 2] = ['[', ']'];
    let text = text.trim().trim_start_matches(BRACKETS);
    text[..text.find(BRACKETS).unwrap_or(text.len())].trim()
}

fn same_plain(a: &str, b: &str) -> bool {
    let plain = |c: char| match c {
        ' ' | '.' | '[' => '_',
        c => c.to_ascii_lowercase(),
    };
    a.chars().map(plain).eq(b.chars().map(plain))
}

#[cfg(test)]
mod tests {
    use super::{Field, find, find_own};

    #[test]
    fn a_field_is_there_once_or_absent_to_every_backend_or_unclear() {
        for (query, wanted) in [
            ("delete", Some("")),
            ("x=1&delete=&y", Some("")),
            ("d%65lete=a%20b", Some("a%20b")),
            ("", None),
            ("deleted&undelete&x=delete", None),
            ("a=b;c&d=%zz", None),
        ] {
            let found = wanted.map_or(Field::Absent, Field::Once);
            assert_eq!(find(query, "delete"), found, "{query}");
        }
        for query in [
            "delete&delete",
            "delete&Delete",
            "DELETE",
            "delete[]=1",
            "+delete",
            "delete%00x",
            "a;delete",
            "delete;a",
            "delete=1;delete=2",
            "%zz&a",
            "a&%FF",
        ] {
            assert!(matches!(find(query, "delete"), Field::Unclear(_)), "{query}");
        }
    }

    #[test]
    fn a_field_of_the_gates_own_is_taken_by_its_exact_name() {
        assert_eq!(find_own("t=1&T=2&%zz", "t"), Field::Once("1"));
        assert_eq!(find_own("T=2", "t"), Field::Absent);
        for query in ["t=1&t=1", "t=1&%74=2", "a;t=1", "t=1;a", "t&t"] {
            assert!(matches!(find_own(query, "t"), Field::Unclear(_)), "{query}");
        }
    }
}
