//! What a rule asks of a request beside its path and method: its host, header fields and query fields. Each answer
//! is yes, no, or that it can't be told: "no" means no to every backend, so that a request never falls under a later
//! rule by a spelling that the backend takes for the first rule's. Called by `config/` (to read) and by `judge.rs`.

use std::borrow::Cow;

use super::fold::folded;
use super::host::{self, Host};
use super::judge::Asked;
use super::query::{self, Field, Plus};
use crate::base::field::same_variable;

/// All must hold; empty ones do.
#[derive(Clone, Debug, Default)]
pub struct Conditions {
    /// One of these hosts.
    pub hosts: Box<[HostPattern]>,
    /// Header fields with their values.
    pub headers: Box<[(Box<str>, ValuePattern)]>,
    /// Query fields with their values.
    pub query: Box<[(Box<str>, ValuePattern)]>,
}

/// `store.test`, `*.store.test` for every host below it, or either with a port.
#[derive(Clone, Debug)]
pub struct HostPattern {
    text: Box<str>,
    name: Box<str>,
    below: bool,
}

/// A value in which `*` stands for any text; empty, or `*` alone, it takes every value.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ValuePattern(Box<str>);

/// How a request answers the conditions.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Told {
    Yes,
    OtherHost,
    OtherHeader(usize),
    OtherQuery(usize),
    Unclear(&'static str),
}

/// How a value and a pattern go together.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Likeness {
    Same,
    /// Some backend could take it for the same.
    Near,
    Other,
}

impl Conditions {
    /// Whether nothing is asked.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.hosts.is_empty() && self.headers.is_empty() && self.query.is_empty()
    }

    /// Asks all of a request.
    pub(super) fn ask(&self, asked: &Asked<'_>, fold_case: bool) -> Told {
        let mut unclear = None;
        let headers = self.headers.iter().enumerate();
        let query = self.query.iter().enumerate();
        let answers = std::iter::once_with(|| self.host(asked))
            .chain(headers.map(|(index, (name, value))| header(asked, name, value, fold_case, index)))
            .chain(query.map(|(index, (name, value))| query_field(asked, name, value, fold_case, index)));
        for told in answers {
            match told {
                Told::Yes => {}
                Told::Unclear(detail) => unclear = unclear.or(Some(detail)),
                Told::OtherHost | Told::OtherHeader(_) | Told::OtherQuery(_) => return told,
            }
        }
        unclear.map_or(Told::Yes, Told::Unclear)
    }

    /// Whether a header field of this name is asked for.
    pub(super) fn reads_header(&self, name: &str) -> bool {
        self.headers
            .iter()
            .any(|(known, _)| known.eq_ignore_ascii_case(name))
    }

    /// Whether every request that `later` takes is taken by these too, or refused.
    pub(super) fn cover(&self, later: &Conditions) -> bool {
        let hosts = self.hosts.is_empty()
            || (!later.hosts.is_empty()
                && later.hosts.iter().all(|l| self.hosts.iter().any(|m| m.covers(l))));
        let all = |mine: &[(Box<str>, ValuePattern)],
                   theirs: &[(Box<str>, ValuePattern)],
                   same: fn(&str, &str) -> bool| {
            mine.iter()
                .all(|(name, value)| theirs.iter().any(|(n, v)| same(n, name) && value.covers(v)))
        };
        hosts
            && all(&self.headers, &later.headers, str::eq_ignore_ascii_case)
            && all(&self.query, &later.query, |a, b| a == b)
    }

    fn host(&self, asked: &Asked<'_>) -> Told {
        if self.hosts.is_empty() {
            return Told::Yes;
        }
        let takes = |host: &Host<'_>| self.hosts.iter().any(|pattern| pattern.takes(host));
        let Some(host) = Host::read(asked.request.host) else {
            return Told::Unclear("the rule asks for a host, and this one can't be read");
        };
        let verdict = takes(&host);
        if host::others(asked.request.fields).any(|other| other.is_none_or(|other| takes(&other) != verdict))
        {
            return Told::Unclear("a field names another host than Host does, and the rule asks for a host");
        }
        if verdict { Told::Yes } else { Told::OtherHost }
    }
}

fn header(asked: &Asked<'_>, name: &str, value: &ValuePattern, fold_case: bool, index: usize) -> Told {
    let mut found = asked
        .request
        .fields
        .iter()
        .filter(|f| same_variable(f.name, name));
    let Some(first) = found.next() else {
        return Told::OtherHeader(index);
    };
    if found.next().is_some() {
        return Told::Unclear("a header field that the rule asks for was sent twice");
    }
    if !first.name.eq_ignore_ascii_case(name) {
        return Told::Unclear(
            "a header field has a name that some backends take for one that the rule asks for",
        );
    }
    let text = String::from_utf8_lossy(first.value);
    match value.compare(text.trim_matches([' ', '\t']), fold_case) {
        Likeness::Same => Told::Yes,
        Likeness::Near => Told::Unclear(
            "a header field's value differs from the one that the rule asks for only in letter case, or in what stands beside it",
        ),
        Likeness::Other => Told::OtherHeader(index),
    }
}

fn query_field(asked: &Asked<'_>, name: &str, value: &ValuePattern, fold_case: bool, index: usize) -> Told {
    let text = match query::find(asked.query.unwrap_or(""), name) {
        Field::Absent => return Told::OtherQuery(index),
        Field::Unclear(_) => {
            return Told::Unclear(
                "a query field that the rule asks for was sent twice, or the query can be read in two ways",
            );
        }
        Field::Once(text) => text,
    };
    if value.takes_all() {
        return Told::Yes;
    }
    // To some backends a + is a space, to others itself.
    let (Some(space), Some(plus)) = (
        query::decode(text, Plus::Space),
        query::decode(text, Plus::Itself),
    ) else {
        return Told::Unclear("a query field that the rule asks for has a bad encoding");
    };
    match (value.compare(&space, fold_case), value.compare(&plus, fold_case)) {
        (Likeness::Same, Likeness::Same) => Told::Yes,
        (Likeness::Other, Likeness::Other) => Told::OtherQuery(index),
        _ => Told::Unclear(
            "a query field's value differs from the one that the rule asks for only in letter case or spaces",
        ),
    }
}

impl HostPattern {
    /// Reads a pattern.
    ///
    /// # Errors
    /// What is wrong and what would be right.
    pub fn parse(text: &str) -> Result<HostPattern, String> {
        let (name, below) = match text.strip_prefix("*.") {
            Some(name) => (name, true),
            None => (text, false),
        };
        let host = Host::read(name);
        if host.is_none() || (below && name.starts_with('[')) {
            return Err(format!(
                "{text:?} is not a host; write a name, as store.test, with *. before it for every host below it, and with a port only where it counts"
            ));
        }
        Ok(HostPattern {
            text: text.into(),
            name: name.into(),
            below,
        })
    }

    /// The pattern as written.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.text
    }

    fn host(&self) -> Host<'_> {
        Host::read(&self.name).expect("it was read when the pattern was")
    }

    fn takes(&self, host: &Host<'_>) -> bool {
        let mine = self.host();
        let name = match self.below {
            true => host.is_below(&mine),
            false => host.same_name(&mine),
        };
        // Which port is meant by none hangs on TLS: either of the two that clients leave out.
        let port = match (mine.port(), host.port()) {
            (None, _) => true,
            (Some(wanted), None) => host::is_default(wanted),
            (Some(wanted), Some(port)) => wanted == port,
        };
        name && port
    }

    fn covers(&self, later: &HostPattern) -> bool {
        let (mine, theirs) = (self.host(), later.host());
        let name = match (self.below, later.below) {
            (true, true) => theirs.same_name(&mine) || theirs.is_below(&mine),
            (true, false) => theirs.is_below(&mine),
            (false, true) => false,
            (false, false) => theirs.same_name(&mine),
        };
        name && (mine.port().is_none() || mine.port() == theirs.port())
    }
}

impl ValuePattern {
    /// A pattern; every text is one, but for what no value can hold.
    ///
    /// # Errors
    /// What is wrong and what would be right.
    pub fn parse(text: &str) -> Result<ValuePattern, String> {
        if text.chars().any(char::is_control) || text != text.trim() {
            return Err(format!(
                "{text:?} is not a value: it has a control character, or spaces at its ends"
            ));
        }
        Ok(ValuePattern(text.into()))
    }

    /// The pattern as written.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    fn takes_all(&self) -> bool {
        self.0.bytes().all(|b| b == b'*')
    }

    /// Whether every value that `later` takes is taken by this too.
    fn covers(&self, later: &ValuePattern) -> bool {
        self.takes_all()
            || self == later
            || (!later.0.is_empty() && !later.0.contains('*') && fits(&self.0, &later.0))
    }

    fn compare(&self, value: &str, fold_case: bool) -> Likeness {
        if self.takes_all() {
            return Likeness::Same;
        }
        let pattern = fold(&self.0);
        if fits(&self.0, value) || (fold_case && fits(&pattern, &fold(value))) {
            // Some backends cut a value at a NUL, or drop what ends a line.
            return match value.chars().any(char::is_control) {
                true => Likeness::Near,
                false => Likeness::Same,
            };
        }
        // Some backends take one of a list, or leave parameters, quotes and spaces out.
        let near = |text: &str| fits(&pattern, &fold(text.trim_matches([' ', '\t', '"', '\'', '\0'])));
        if near(value) || value.split([',', ';', '\0']).any(near) {
            return Likeness::Near;
        }
        Likeness::Other
    }
}

fn fold(text: &str) -> Cow<'_, str> {
    folded(text).collect::<String>().into()
}

/// Whether a text fits a pattern in which `*` takes any text, none included.
fn fits(pattern: &str, text: &str) -> bool {
    let Some((start, rest)) = pattern.split_once('*') else {
        return pattern == text;
    };
    let (middle, end) = rest.rsplit_once('*').unwrap_or(("", rest));
    let Some(mut text) = text.strip_prefix(start).and_then(|text| text.strip_suffix(end)) else {
        return false;
    };
    // The first place where a piece fits leaves most to those behind it.
    middle.split('*').all(|piece| match text.find(piece) {
        Some(at) => {
            text = &text[at + piece.len()..];
            true
        }
        None => false,
    })
}

#[cfg(test)]
mod tests {
    use super::{HostPattern, Likeness, ValuePattern, fits};
    use crate::rules::host::Host;

    #[test]
    fn a_star_takes_any_text() {
        for (pattern, text, wanted) in [
            ("a", "a", true),
            ("a", "ab", false),
            ("a*", "a", true),
            ("a*", "abc", true),
            ("*c", "abc", true),
            ("a*c", "abc", true),
            ("a*a", "a", false),
            ("a*b*c", "axbyc", true),
            ("a*b*c", "acb", false),
            ("*b*", "abc", true),
            ("*b*b*", "abc", false),
            ("a**c", "ac", true),
        ] {
            assert_eq!(fits(pattern, text), wanted, "{pattern} {text}");
        }
    }

    #[test]
    fn what_some_backend_takes_for_the_value_is_near_it() {
        let like = |pattern: &str, text: &str| ValuePattern::parse(pattern).unwrap().compare(text, false);
        for (pattern, text, wanted) in [
            ("", "", Likeness::Same),
            ("", "x", Likeness::Same),
            ("*", "", Likeness::Same),
            ("tenant-a", " tenant-a\t", Likeness::Near),
            ("*-b", "tenant-a\0-b", Likeness::Near),
            ("tenant-a", "Tenant-A", Likeness::Near),
            ("tenant-a", "\"tenant-a\"", Likeness::Near),
            ("tenant-a", "tenant-b, tenant-a", Likeness::Near),
            ("tenant-a", "tenant-a;q=1", Likeness::Near),
            ("tenant-a", "tenant-a\0x", Likeness::Near),
            ("tenant-a", "tenant-ab", Likeness::Other),
            ("tenant-*", "other", Likeness::Other),
        ] {
            assert_eq!(like(pattern, text), wanted, "{pattern:?} {text:?}");
        }
        let folding = ValuePattern::parse("tenant-a").unwrap();
        assert_eq!(folding.compare("TENANT-A", true), Likeness::Same);
    }

    #[test]
    fn hosts_are_taken_whatever_their_case_final_dot_or_default_port() {
        for (pattern, host, wanted) in [
            ("store.test", "STORE.test.:8080", true),
            ("store.test", "a.store.test", false),
            ("*.store.test", "a.b.store.test", true),
            ("*.store.test", "store.test", false),
            ("store.test:8080", "store.test:8080", true),
            ("store.test:8080", "store.test", false),
            ("store.test:443", "store.test", true),
            ("[::1]", "[0::1]:80", true),
        ] {
            let pattern = HostPattern::parse(pattern).unwrap();
            assert_eq!(
                pattern.takes(&Host::read(host).unwrap()),
                wanted,
                "{} {host}",
                pattern.as_str()
            );
        }
        for bad in ["", "*", "*.", "a.*.b", "http://a", "a/b", "*.[::1]", "a:x"] {
            assert!(HostPattern::parse(bad).is_err(), "{bad}");
        }
    }
}
