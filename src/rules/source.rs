//! Where a rule's tokens come from: a header field, one of several, a query field, a cookie, or a part of such a
//! value. It finds the token's text and reads no number. What could be two tokens is none and is not nothing.
//! Called by `config/` (to read), by `claims.rs` for each request and by `fencegate explain`.

use std::borrow::Cow;

use httparse::Header;
use regex::bytes::{Regex, RegexBuilder};

use super::judge::Request;
use super::query::{self, Field, Plus};

/// Where a token comes from.
#[derive(Clone, Debug)]
pub struct TokenSource {
    /// What carries it.
    pub carrier: Carrier,
    /// Takes it out of a longer value.
    pub pattern: Option<TokenPattern>,
}

/// What carries a token.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Carrier {
    /// A header field of one of these names: at least one name.
    Header(Box<[Box<str>]>),
    /// A query field.
    Query(Box<str>),
    /// A cookie.
    Cookie(Box<str>),
}

/// A regular expression with one group, which is the token.
#[derive(Clone, Debug)]
pub struct TokenPattern(Regex);

/// What came where a token was looked for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Sent<'a> {
    /// No token.
    Nothing,
    /// A token's text, not read yet.
    One(Cow<'a, [u8]>),
    /// Something that can't be one token, and why.
    Odd(&'static str),
}

impl TokenSource {
    /// A header field of this name.
    #[must_use]
    pub fn header(name: &str) -> TokenSource {
        TokenSource {
            carrier: Carrier::Header([name.into()].into()),
            pattern: None,
        }
    }

    /// Looks for the token.
    #[must_use]
    pub fn look<'a>(&self, request: &Request<'a>) -> Sent<'a> {
        let query = || super::judge::split_target(request.target).1;
        let found = match &self.carrier {
            Carrier::Header(names) => of_header(request.fields, names),
            Carrier::Query(name) => of_query(query().unwrap_or(""), name),
            Carrier::Cookie(name) => of_cookie(request.fields, name),
        };
        match (&self.pattern, found) {
            (None, found) => found,
            (Some(pattern), Sent::One(value)) => pattern.take(value),
            (Some(_), found @ (Sent::Nothing | Sent::Odd(_))) => found,
        }
    }

    /// Whether it is looked for in a header field of this name.
    #[must_use]
    pub fn reads_header(&self, name: &str) -> bool {
        match &self.carrier {
            Carrier::Header(names) => names.iter().any(|known| known.eq_ignore_ascii_case(name)),
            Carrier::Cookie(_) => name.eq_ignore_ascii_case("cookie"),
            Carrier::Query(_) => false,
        }
    }
}

fn of_header<'a>(fields: &'a [Header<'a>], names: &[Box<str>]) -> Sent<'a> {
    let is_one = |f: &&Header<'_>| names.iter().any(|name| f.name.eq_ignore_ascii_case(name));
    let mut found = fields.iter().filter(is_one);
    match (found.next(), found.next()) {
        (None, _) => Sent::Nothing,
        (Some(first), None) => Sent::One(first.value.into()),
        (Some(_), Some(_)) => Sent::Odd(TWICE),
    }
}

fn of_query<'a>(query: &'a str, name: &str) -> Sent<'a> {
    match query::find_own(query, name) {
        Field::Absent => Sent::Nothing,
        Field::Unclear(detail) => Sent::Odd(detail),
        Field::Once(text) => match query::decode(text, Plus::Refused) {
            Some(Cow::Borrowed(text)) => Sent::One(text.as_bytes().into()),
            Some(Cow::Owned(text)) => Sent::One(text.into_bytes().into()),
            None => Sent::Odd("the token in the query has a bad encoding"),
        },
    }
}

/// All Cookie fields are one list: HTTP/2 may send it in pieces.
fn of_cookie<'a>(fields: &'a [Header<'a>], name: &str) -> Sent<'a> {
    let mut found = fields
        .iter()
        .filter(|f| f.name.eq_ignore_ascii_case("cookie"))
        .flat_map(|f| f.value.split(|b| *b == b';'))
        .filter_map(|cookie| {
            let at = cookie.iter().position(|b| *b == b'=')?;
            (cookie[..at].trim_ascii() == name.as_bytes()).then(|| &cookie[at + 1..])
        });
    match (found.next(), found.next()) {
        (None, _) => Sent::Nothing,
        (Some(value), None) => Sent::One(value.into()),
        (Some(_), Some(_)) => Sent::Odd(TWICE),
    }
}

const TWICE: &str = "the token was sent twice";

impl TokenPattern {
    /// Reads an expression.
    ///
    /// # Errors
    /// What is wrong and what would be right.
    pub fn parse(text: &str) -> Result<TokenPattern, String> {
        let regex = RegexBuilder::new(text)
            .size_limit(SIZE_BYTES_MAX)
            .build()
            .map_err(|error| format!("{text:?} is not a regular expression: {}", plainly(&error)))?;
        // The whole match counts as a group.
        match regex.captures_len() {
            2 => Ok(TokenPattern(regex)),
            found => Err(format!(
                "{text:?} has {} groups, and it needs exactly one, around the token, as in 'app/fencing-token\\.(\\d+)'; (?:…) groups without being one",
                found - 1
            )),
        }
    }

    /// The expression as written.
    #[must_use]
    pub fn as_str(&self) -> &str {
        self.0.as_str()
    }

    pub(super) fn take<'a>(&self, value: Cow<'a, [u8]>) -> Sent<'a> {
        let place = {
            let mut found = self.0.captures_iter(&value);
            match (found.next(), found.next()) {
                (None, _) => return Sent::Nothing,
                (Some(_), Some(_)) => return Sent::Odd("more than one token stands in the value"),
                (Some(first), None) => match first.get(1) {
                    Some(group) => group.range(),
                    None => return Sent::Odd("the token's part of the value is not there"),
                },
            }
        };
        match value {
            Cow::Borrowed(value) => Sent::One(value[place].into()),
            Cow::Owned(value) => Sent::One(value[place].to_vec().into()),
        }
    }
}

const SIZE_BYTES_MAX: usize = 1 << 20;

/// The last line of the crate's message; those before it draw the place in the expression.
fn plainly(error: &regex::Error) -> String {
    let text = error.to_string();
    let last = text.lines().last().unwrap_or_default();
    last.trim().trim_start_matches("error: ").to_owned()
}
