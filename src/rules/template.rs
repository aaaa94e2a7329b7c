//! Resource names: `bucket/{bucket}` read once, filled in from a request.
//!
//! A name is made of captures, `{host}`, `{header.NAME}` and `{query.NAME}`, with text between them. A capture of
//! one segment never holds a slash, so names with a slash between such captures are exact. Other parts may hold
//! any text: two resources could then get one name and share a fence, which refuses too much and never too
//! little. That one resource gets two names is what everything here refuses.
//!
//! Called by `config/` (to read) and by `judge.rs` (to fill in).

use httparse::Header;

use super::fold::fold;
use super::host::{self, Host};
use super::path::Segments;
use super::pattern::Pattern;
use super::query::{Plus, decode, same_key};
use super::shape::{Shape, ShapePart};
use crate::base::Reason;
use crate::base::field::same_variable;

/// How a rule names its resource.
#[derive(Clone, Debug)]
pub struct Template {
    text: Box<str>,
    parts: Box<[Part]>,
}

#[derive(Clone, Debug)]
enum Part {
    Text(Box<str>),
    Capture { segment: usize, rest: bool },
    Host,
    Header(Box<str>),
    Query(Box<str>),
}

const TEXT_BYTES_MAX: usize = 512;

/// A name could not be made.
pub(super) type Unnamed = (Reason, &'static str);

/// What a name is made from.
pub(super) struct Sources<'a> {
    pub(super) segments: &'a Segments,
    pub(super) query: Option<&'a str>,
    pub(super) host: &'a str,
    pub(super) fields: &'a [Header<'a>],
}

impl Template {
    /// Reads a template for the captures of `pattern`.
    ///
    /// # Errors
    /// What is wrong and what would be right.
    pub fn parse(text: &str, pattern: &Pattern) -> Result<Template, String> {
        if text.is_empty() {
            return Err("the resource's name is empty; name it as in \"bucket/{bucket}\"".into());
        }
        if text.len() > TEXT_BYTES_MAX {
            return Err(format!(
                "the resource's name is longer than {TEXT_BYTES_MAX} bytes"
            ));
        }
        if text.chars().any(char::is_control) {
            return Err("the resource's name has a control character".into());
        }
        let mut parts: Vec<Part> = Vec::new();
        let mut rest = text;
        while !rest.is_empty() {
            let (part, tail) = read_part(rest, text, pattern)?;
            let is_text = matches!(part, Part::Text(_));
            if !is_text && parts.last().is_some_and(|p| !matches!(p, Part::Text(_))) {
                return Err(format!(
                    "two parts of {text:?} stand side by side, so that different resources could get one name: put a slash between them"
                ));
            }
            parts.push(part);
            rest = tail;
        }
        Ok(Template {
            text: text.into(),
            parts: parts.into(),
        })
    }

    /// The template as written.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// The names that it can give.
    #[must_use]
    pub fn shape(&self) -> Shape {
        let parts = self.parts.iter().map(|part| match part {
            Part::Text(text) => ShapePart::Text(text.clone()),
            Part::Capture { rest: false, .. } | Part::Host => ShapePart::Segment,
            Part::Capture { rest: true, .. } | Part::Header(_) | Part::Query(_) => ShapePart::Any,
        });
        Shape::new(&self.text, parts)
    }

    /// Whether a field of this name goes into the resource's name.
    pub(super) fn uses_header(&self, name: &str) -> bool {
        self.parts
            .iter()
            .any(|p| matches!(p, Part::Header(h) if h.eq_ignore_ascii_case(name)))
    }

    /// Appends the resource's name to `into`.
    pub(super) fn fill(&self, from: &Sources<'_>, fold_case: bool, into: &mut String) -> Result<(), Unnamed> {
        let start = into.len();
        for part in &self.parts {
            match part {
                Part::Text(text) => into.push_str(text),
                Part::Capture { segment, rest } => into.push_str(captured(from.segments, *segment, *rest)?),
                Part::Host => push_host(from, into)?,
                Part::Header(name) => push_header(from.fields, name, into)?,
                Part::Query(name) => push_query(from.query.unwrap_or(""), name, into)?,
            }
        }
        if fold_case {
            fold(into, start);
        }
        Ok(())
    }
}

fn read_part<'t>(rest: &'t str, whole: &str, pattern: &Pattern) -> Result<(Part, &'t str), String> {
    let Some(inside) = rest.strip_prefix('{') else {
        let end = rest.find('{').unwrap_or(rest.len());
        if rest[..end].contains('}') {
            return Err(format!("{whole:?} closes a brace that it did not open"));
        }
        return Ok((Part::Text(rest[..end].into()), &rest[end..]));
    };
    let end = inside
        .find('}')
        .ok_or_else(|| format!("{whole:?} opens a brace and does not close it"))?;
    Ok((read_source(&inside[..end], pattern)?, &inside[end + 1..]))
}

fn read_source(name: &str, pattern: &Pattern) -> Result<Part, String> {
    if name == "host" {
        return Ok(Part::Host);
    }
    if let Some(header) = name.strip_prefix("header.") {
        if !is_field_name(header) {
            return Err(format!("{header:?} is not the name of a header field"));
        }
        if header.eq_ignore_ascii_case("host") {
            return Err("the host is {host}, without header.".into());
        }
        return Ok(Part::Header(header.into()));
    }
    if let Some(query) = name.strip_prefix("query.") {
        if query.is_empty() {
            return Err("{query.} lacks the name of a query field, as in {query.bucket}".into());
        }
        return Ok(Part::Query(query.into()));
    }
    let plain = name.strip_prefix('*').unwrap_or(name);
    match pattern.captures().iter().position(|c| **c == *plain) {
        Some(index) => Ok(Part::Capture {
            segment: pattern.segment_of(index),
            rest: pattern.takes_rest(index),
        }),
        None => Err(unknown_capture(name, pattern)),
    }
}

fn unknown_capture(name: &str, pattern: &Pattern) -> String {
    let known: Vec<String> = pattern.captures().iter().map(|c| format!("{{{c}}}")).collect();
    let known = if known.is_empty() {
        format!("{} has no captures", pattern.as_str())
    } else {
        format!("{:?} has {}", pattern.as_str(), known.join(", "))
    };
    format!(
        "{{{name}}} is not in the rule's path: {known}; {{host}}, {{header.NAME}} and {{query.NAME}} may also be used"
    )
}

/// Whether `name` can be the name of a header field.
#[must_use]
pub fn is_field_name(name: &str) -> bool {
    !name.is_empty()
        && name
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&b))
}

fn captured(segments: &Segments, segment: usize, rest: bool) -> Result<&str, Unnamed> {
    let text = if !rest {
        segments.at(segment)
    } else if segments.tail().is_none() {
        segments.from(segment)
    } else {
        return Err((
            Reason::AmbiguousPath,
            "the part of the path that names the resource has an empty segment or an encoded slash",
        ));
    };
    if memchr::memchr(b';', text.as_bytes()).is_some() {
        return Err((Reason::AmbiguousPath, "a segment that names the resource has a ;"));
    }
    Ok(text)
}

/// The host without its port and final dot, in lower case: one host has one name.
fn push_host(from: &Sources<'_>, into: &mut String) -> Result<(), Unnamed> {
    let host = Host::read(from.host).ok_or((
        Reason::BadRequest,
        "the rule names its resource by the host, and this one can't be read",
    ))?;
    if host::others(from.fields).any(|other| other.is_none_or(|other| !other.same_name(&host))) {
        return Err((
            Reason::AmbiguousPath,
            "the rule names its resource by the host, and a field names another host than Host does",
        ));
    }
    host.push(into);
    Ok(())
}

/// Takes the one header field of this name. A name that a backend could read as this one counts as sent.
fn push_header(fields: &[Header<'_>], name: &str, into: &mut String) -> Result<(), Unnamed> {
    let mut found = fields.iter().filter(|f| same_variable(f.name, name));
    let first = found.clone().find(|f| f.name.eq_ignore_ascii_case(name)).ok_or((
        Reason::BadRequest,
        "a header field that names the resource is missing",
    ))?;
    found.next();
    if found.next().is_some() {
        return Err((
            Reason::AmbiguousPath,
            "a header field that names the resource was sent twice",
        ));
    }
    let value = std::str::from_utf8(first.value)
        .map_err(|_| {
            (
                Reason::BadRequest,
                "a header field that names the resource is not UTF-8",
            )
        })?
        .trim_matches([' ', '\t']);
    check_value(value)?;
    into.push_str(value);
    Ok(())
}

/// Takes the one query field of this name. One that some backend takes for it counts as sent (see [`same_key`]);
/// so does one behind a `;`, which some take for `&`.
fn push_query(query: &str, name: &str, into: &mut String) -> Result<(), Unnamed> {
    const TWICE: Unnamed = (
        Reason::AmbiguousPath,
        "a query field that names the resource was sent twice",
    );
    if query.contains([';', '#', '\\']) || query.bytes().any(|b| b <= b' ' || b == 0x7f) {
        return Err((
            Reason::AmbiguousPath,
            "the query names the resource and can be read in two ways",
        ));
    }
    let mut value = None;
    for pair in query.split('&') {
        let (key, text) = pair.split_once('=').unwrap_or((pair, ""));
        let key = decode_query(key)?;
        if same_key(&key, name) && value.replace((key == name, text)).is_some() {
            return Err(TWICE);
        }
    }
    let Some((true, text)) = value else {
        return Err((
            Reason::BadRequest,
            "a query field that names the resource is missing",
        ));
    };
    let text = decode_query(text)?;
    check_value(&text)?;
    into.push_str(&text);
    Ok(())
}

/// Percent-decodes a part of a query. A `+` is refused: to some backends it is a space.
fn decode_query(text: &str) -> Result<std::borrow::Cow<'_, str>, Unnamed> {
    decode(text, Plus::Refused).ok_or((
        Reason::AmbiguousPath,
        "the query names the resource and has a bad encoding, or a + that should be %20 or %2B",
    ))
}

/// Refuses values that a backend could take for another name: those that a path could not have either.
fn check_value(value: &str) -> Result<(), Unnamed> {
    if value.is_empty() {
        return Err((Reason::BadRequest, "a field that names the resource is empty"));
    }
    let odd = value.chars().any(|c| c.is_control() || c == '\\')
        || value.split('/').any(|s| matches!(s, "" | "." | ".."));
    if odd {
        return Err((
            Reason::AmbiguousPath,
            "a field that names the resource can be read in two ways",
        ));
    }
    Ok(())
}
