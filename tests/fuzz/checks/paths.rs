//! Paths: any target (the first line) and any `Destination` (the second) under rules of several kinds. However a path
//! is spelt it is the same resource or refused; and whatever a sloppy backend makes of one that is let through, it never
//! arrives at a resource whose fence was not asked.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::LazyLock;
use std::time::Duration;

use fencegate::base::TokenFormat;
use fencegate::rules::{
    Action, FenceRule, Judgement, Missing, Mode, Paths, Pattern, Policy, Reads, Request, Rule, RuleSet,
    SAFE_METHODS, Scratch, Sender, Template, TokenSource, Tried, Unmatched,
};
use fencegate::wire::http1::Header;

use super::Draw;

/// Takes the input for a target and, on the next line, a Destination.
pub fn check(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else {
        return;
    };
    let (target, destination) = match text.split_once('\n') {
        Some((target, destination)) => (target, Some(destination)),
        None => (text, None),
    };
    let mut draw = Draw::of(data);
    for case in &*CASES {
        check_target(case, target, &mut draw);
        if let Some(destination) = destination {
            check_destination(case, target, destination);
        }
    }
}

/// Rules, and what they mean to somebody who knows the path for sure.
struct Case {
    rules: RuleSet,
    fold_case: bool,
}

/// The rules, all sets alike: a folder with a name of its own, one whose whole key is the name, and one thing.
const RULES: [(&str, &str); 3] = [
    ("/b/{bucket}/{*key}", "bucket/{bucket}"),
    ("/o/{*key}", "object/{key}"),
    ("/orders/{id}", "order/{id}"),
];

static CASES: LazyLock<Vec<Case>> = LazyLock::new(|| {
    let mut cases = vec![];
    for paths in [Paths::Strict, Paths::Lenient] {
        for fold_case in [false, true] {
            cases.push(Case {
                rules: rule_set(paths, fold_case),
                fold_case,
            });
        }
    }
    cases
});

/// All that no rule matches passes: a path that slips past its rule is a way round the fence.
fn rule_set(paths: Paths, fold_case: bool) -> RuleSet {
    let mut rules = vec![];
    for second_place in [true, false] {
        for (path, resource) in RULES {
            rules.push(rule(path, resource, second_place, fold_case));
        }
    }
    for (index, rule) in rules.iter_mut().enumerate() {
        rule.index = index;
    }
    RuleSet {
        rules: rules.into(),
        safe_methods: SAFE_METHODS.map(Box::from).into(),
        paths,
        unmatched: Unmatched {
            reads: Policy::Pass,
            writes: Policy::Pass,
        },
    }
}

/// With a second place it takes MOVE alone, and fences both.
fn rule(path: &str, resource: &str, second_place: bool, fold_case: bool) -> Rule {
    let path = Pattern::parse(path).unwrap();
    let fence = |from: Option<&str>| FenceRule {
        resource: Template::parse(resource, &path).unwrap(),
        path_from: from.map(Box::from),
        token: TokenSource::header("Fencing-Token"),
        format: TokenFormat::Integer,
        max_step: None,
    };
    let fences: Box<[FenceRule]> = match second_place {
        true => [fence(None), fence(Some("Destination"))].into(),
        false => [fence(None)].into(),
    };
    Rule {
        name: "r".into(),
        index: 0,
        path,
        methods: second_place.then(|| [Box::from("MOVE")].into()),
        conditions: None,
        action: Action::Fence,
        fences,
        allow: None,
        missing: Missing::Deny,
        mode: Mode::Enforce,
        reads: Reads::Raise,
        drain_timeout: Duration::from_secs(30),
        fold_case,
    }
}

/// What becomes of a request.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Verdict {
    Refused,
    /// It passes, and nothing is compared.
    Free,
    /// These are compared: the rule by its place among `RULES`, and the names.
    Fenced(usize, BTreeSet<String>),
}

fn ask(case: &Case, method: &str, target: &str, destination: Option<&str>) -> Verdict {
    let mut fields = vec![Header {
        name: "Fencing-Token",
        value: b"7",
    }];
    if let Some(destination) = destination {
        fields.push(Header {
            name: "Destination",
            value: destination.as_bytes(),
        });
    }
    let request = Request {
        method,
        target,
        host: "store.test:8080",
        fields: &fields,
        from: Sender {
            ip: IpAddr::V4(Ipv4Addr::LOCALHOST),
            cert: None,
        },
    };
    let mut scratch = Scratch::default();
    let verdict = match case.rules.judge(&request, &mut scratch) {
        Judgement::Refused(refusal) => {
            assert!(!refusal.detail.is_empty());
            Verdict::Refused
        }
        Judgement::Pass { rule: None, .. } => Verdict::Free,
        Judgement::Pass { rule: Some(rule), .. } => {
            panic!("rule {} compares nothing: {target:?}", rule.index)
        }
        Judgement::Fenced { rule, write } => {
            assert_eq!(write, !matches!(method, "GET"));
            let names = scratch.claims().map(|claim| claim.resource.to_owned()).collect();
            Verdict::Fenced(rule.index % RULES.len(), names)
        }
    };
    let trace = case.rules.trace(&request, &mut scratch);
    let first = trace.iter().find(|(_, tried)| *tried == Tried::Matches);
    if let Verdict::Fenced(place, _) = verdict {
        let found = first.expect("the rule that matches is in the trace").0.index;
        assert_eq!(found % RULES.len(), place);
    }
    verdict
}

fn check_target(case: &Case, target: &str, draw: &mut Draw) {
    let written = ask(case, "PUT", target, None);
    let read = ask(case, "GET", target, None);
    match (&written, &read) {
        (Verdict::Fenced(..), Verdict::Fenced(..)) | (Verdict::Free, Verdict::Free) => {
            assert_eq!(
                written, read,
                "a read of {target:?} is another resource than a write"
            );
        }
        (Verdict::Refused, Verdict::Refused) => {}
        // It has no path.
        (Verdict::Refused, Verdict::Free) if target == "*" => {}
        _ => panic!("{target:?}: a write is {written:?}, a read with a token {read:?}"),
    }
    if let Verdict::Fenced(_, names) = &written {
        names.iter().for_each(|name| check_name(name));
    }
    if written == Verdict::Refused {
        return;
    }
    let mut others: Vec<String> = (0..3).map(|_| respelt(target, draw)).collect();
    if case.fold_case {
        let (path, query) = target.split_at(target.find('?').unwrap_or(target.len()));
        others.extend([path.to_lowercase() + query, path.to_uppercase() + query]);
    }
    for other in others {
        let verdict = ask(case, "PUT", &other, None);
        assert!(
            verdict == Verdict::Refused || verdict == written,
            "{target:?} is {written:?}, and {other:?} {verdict:?}"
        );
    }
    check_backends(case, target, &written);
}

/// No name has a part that names nothing or something else.
fn check_name(name: &str) {
    assert!(!name.chars().any(char::is_control), "{name:?}");
    assert!(!name.contains(['\\', ';']), "{name:?}");
    for segment in name.split('/') {
        assert!(!matches!(segment, "" | "." | ".."), "{name:?}");
    }
}

/// A write to two places is let through only if no backend finds a resource at either that wasn't asked for.
fn check_destination(case: &Case, target: &str, destination: &str) {
    for method in ["MOVE", "PUT"] {
        let verdict = ask(case, method, target, Some(destination));
        if verdict == Verdict::Refused {
            continue;
        }
        check_backends(case, target, &verdict);
        let place = destination.trim_matches([' ', '\t']);
        let is_url = |scheme: &str| {
            place
                .get(..scheme.len())
                .is_some_and(|start| start.eq_ignore_ascii_case(scheme))
        };
        let path = match ["http://", "https://"].into_iter().find(|scheme| is_url(scheme)) {
            Some(scheme) => &place[scheme.len() + place[scheme.len()..].find('/').expect("it has a path")..],
            None => place,
        };
        check_backends(case, path, &verdict);
    }
}

/// The same path to everybody who decodes it once: letters, digits and signs as themselves or as `%XX`, hex digits in
/// either case. An encoded slash is not the same to all; it is tried since it must not be another resource.
fn respelt(target: &str, draw: &mut Draw) -> String {
    let end = target.find('?').unwrap_or(target.len());
    let (path, query) = target.split_at(end);
    let (mut rest, mut out) = (path.as_bytes(), Vec::with_capacity(3 * target.len()));
    while let [first, tail @ ..] = rest {
        let escaped = escape_at(rest);
        let byte = escaped.unwrap_or(*first);
        let plain = byte.is_ascii_alphanumeric() || b"-._~!$&'()*+,;=:@".contains(&byte);
        let is_slash = byte == b'/' && escaped.is_none();
        match draw.below(8) {
            1.. if is_slash => out.push(byte),
            _ if out.is_empty() || (*first == b'%' && escaped.is_none()) => out.push(*first),
            4.. if plain => out.push(byte),
            0 | 2 | 4 | 6 => out.extend(format!("%{byte:02x}").bytes()),
            _ => out.extend(format!("%{byte:02X}").bytes()),
        }
        rest = if escaped.is_some() { &tail[2..] } else { tail };
    }
    // All but escapes was text before.
    String::from_utf8(out).expect("bytes beyond ASCII are escaped") + query
}

/// How a backend goes about a path: all of these exist.
#[derive(Clone, Copy, Debug)]
struct Backend {
    /// Cuts `;…` off each segment.
    parameters: Parameters,
    /// Looks for slashes after decoding, not before.
    decodes_first: bool,
    /// Takes `\` for `/`.
    backslash: bool,
    /// Drops empty segments.
    collapses: bool,
    /// Resolves `.` and `..`.
    resolves: bool,
    /// Ends a path at a NUL.
    cuts_at_nul: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Parameters {
    Kept,
    CutBefore,
    CutAfter,
}

/// Every way to go about it.
fn backends() -> impl Iterator<Item = Backend> {
    use Parameters::{CutAfter, CutBefore, Kept};
    (0..32).flat_map(|bits: u32| {
        [Kept, CutBefore, CutAfter].map(|parameters| Backend {
            parameters,
            decodes_first: bits & 1 != 0,
            backslash: bits & 2 != 0,
            collapses: bits & 4 != 0,
            resolves: bits & 8 != 0,
            cuts_at_nul: bits & 16 != 0,
        })
    })
}

fn check_backends(case: &Case, target: &str, verdict: &Verdict) {
    for backend in backends() {
        let Some(segments) = backend.read(target) else {
            continue;
        };
        let Some((place, name)) = meant(&segments, case.fold_case) else {
            continue;
        };
        let asked = match verdict {
            Verdict::Fenced(rule, names) => {
                *rule == place && names.iter().any(|n| same(n, &name, case.fold_case))
            }
            Verdict::Free | Verdict::Refused => false,
        };
        assert!(
            asked,
            "{target:?} under {:?}, fold_case {}, is {verdict:?}, and {name:?} to {backend:?}",
            case.rules.paths, case.fold_case
        );
    }
}

impl Backend {
    /// The segments that it sees; `None` where it refuses the path.
    fn read(self, target: &str) -> Option<Vec<String>> {
        let path = &target.as_bytes()[..target.find('?').unwrap_or(target.len())];
        let mut pieces: Vec<Vec<u8>> = vec![];
        if self.decodes_first {
            pieces.extend(self.split(&decoded(path, self.parameters == Parameters::CutBefore)));
        } else {
            for piece in self.split(path) {
                pieces.push(decoded(&piece, self.parameters == Parameters::CutBefore));
            }
        }
        // What stands before the first slash is nothing.
        pieces.remove(0);
        let trailing = pieces.last().is_some_and(Vec::is_empty);
        if trailing {
            pieces.pop();
        }
        let mut found: Vec<Vec<u8>> = vec![];
        for mut piece in pieces {
            if self.parameters == Parameters::CutAfter {
                piece.truncate(piece.iter().position(|b| *b == b';').unwrap_or(piece.len()));
            }
            let nul = piece.iter().position(|b| *b == 0).filter(|_| self.cuts_at_nul);
            piece.truncate(nul.unwrap_or(piece.len()));
            match &*piece {
                b"" if self.collapses => {}
                b"." if self.resolves => {}
                b".." if self.resolves => drop(found.pop()),
                _ => found.push(piece),
            }
            if nul.is_some() {
                break;
            }
        }
        found
            .into_iter()
            .map(|piece| String::from_utf8(piece).ok())
            .collect()
    }

    fn split(self, path: &[u8]) -> Vec<Vec<u8>> {
        let is_slash = |b: &u8| *b == b'/' || (*b == b'\\' && self.backslash);
        path.split(is_slash).map(<[u8]>::to_vec).collect()
    }
}

/// Percent-decodes; what is no escape stays. `cut`: without what stands behind a `;` up to the next slash.
fn decoded(text: &[u8], cut: bool) -> Vec<u8> {
    let (mut out, mut rest, mut skip) = (vec![], text, false);
    while let [first, tail @ ..] = rest {
        skip = cut && (*first == b';' || (skip && *first != b'/'));
        let escaped = escape_at(rest);
        if !skip {
            out.push(escaped.unwrap_or(*first));
        }
        rest = if escaped.is_some() { &tail[2..] } else { tail };
    }
    out
}

/// What the escape at the start of `text` stands for, if there is one.
fn escape_at(text: &[u8]) -> Option<u8> {
    let [b'%', high, low, ..] = text else { return None };
    let digit = |byte: &u8| {
        (*byte as char)
            .to_digit(16)
            .and_then(|digit| u8::try_from(digit).ok())
    };
    Some(digit(high)? << 4 | digit(low)?)
}

/// Which rule these segments fall under, and the name of the resource: `RULES`, written out.
fn meant(segments: &[String], fold_case: bool) -> Option<(usize, String)> {
    let is = |text: &str, word: &str| same(text, word, fold_case);
    match segments {
        [b, bucket, key @ ..] if is(b, "b") && !key.is_empty() => Some((0, format!("bucket/{bucket}"))),
        [o, key @ ..] if is(o, "o") && !key.is_empty() => Some((1, format!("object/{}", key.join("/")))),
        [orders, id] if is(orders, "orders") => Some((2, format!("order/{id}"))),
        _ => None,
    }
}

/// Whether a store that is blind to case, by whichever table, could take the two for one.
fn same(a: &str, b: &str, fold_case: bool) -> bool {
    let folded = |text: &str| text.to_lowercase().to_uppercase().to_lowercase();
    a == b || (fold_case && folded(a) == folded(b))
}
