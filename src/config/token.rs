//! Where a rule's token comes from: exactly one of a header field, a query field and a cookie, and what takes it out
//! of a longer value. Called by `rules.rs`.

use super::reader::{Map, Placed, Reader};
use super::units;
use crate::rules::{Carrier, TokenPattern, TokenSource};

/// Reads a `token` section; `None` where a problem was reported.
pub(super) fn source(reader: &mut Reader, map: &Map<'_>) -> Option<TokenSource> {
    let carrier = carrier(reader, map);
    let pattern = match map.has("pattern") {
        true => Some(reader.value(map, "pattern", TokenPattern::parse)?),
        false => None,
    };
    Some(TokenSource {
        carrier: carrier?,
        pattern,
    })
}

fn carrier(reader: &mut Reader, map: &Map<'_>) -> Option<Carrier> {
    let mut carriers = ["header", "query", "cookie"]
        .into_iter()
        .filter(|key| map.has(key));
    let (first, second) = (carriers.next(), carriers.next());
    if let (Some(first), Some(second)) = (first, second) {
        let message = format!(
            "{} stands beside {first}: a token comes from one place; for one of two header fields write header: [A, B]",
            map.path_to(second)
        );
        reader.problem(map.place_of(second), message);
        return None;
    }
    match first {
        Some("query") => reader.value(map, "query", units::query_name).map(Carrier::Query),
        Some("cookie") => reader
            .value(map, "cookie", units::cookie_name)
            .map(Carrier::Cookie),
        Some(_) => headers(reader, map),
        None => {
            let message = format!(
                "{} lacks the key \"header\": the field that carries the token; or query, or cookie",
                map.name()
            );
            reader.problem(map.at, message);
            None
        }
    }
}

fn headers(reader: &mut Reader, map: &Map<'_>) -> Option<Carrier> {
    let names: Vec<Placed<Box<str>>> = reader.one_or_more(map, "header", units::token_header)?;
    for (index, name) in names.iter().enumerate() {
        if names[..index]
            .iter()
            .any(|n| n.value.eq_ignore_ascii_case(&name.value))
        {
            reader.problem(name.at, format!("{} is in the list already", name.value));
            return None;
        }
    }
    Some(Carrier::Header(names.into_iter().map(|n| n.value).collect()))
}
