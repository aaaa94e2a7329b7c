//! Judging one request: the rule, the names, the tokens, or why it must be refused before any mark is looked at.
//!
//! [`RuleSet::judge`] runs for every request; once its [`Scratch`] is warm it allocates nothing, but for names
//! that have to be folded beyond ASCII and for ambiguous paths.

use std::ops::Range;

use httparse::Header;
use smallvec::SmallVec;

use super::allow::Sender;
use super::condition::Told;
use super::path::{self, Segments};
use super::pattern::Fit;
use super::seen::{Seen, look_at_fields};
use super::source::Sent;
use super::{Action, FenceRule, Mode, Policy, Rule, RuleSet};
use crate::base::{Reason, Token, TokenFormat};

/// A request, as far as rules look at it.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// The method, as it came.
    pub method: &'a str,
    /// The target in origin form, `path[?query]`, undecoded.
    pub target: &'a str,
    /// The Host field's value.
    pub host: &'a str,
    /// All header fields, in order.
    pub fields: &'a [Header<'a>],
    /// Who sends it.
    pub from: Sender<'a>,
}

/// What is asked of a rule: a request, or the same request as if it were for its second place.
#[derive(Clone, Copy, Debug)]
pub(super) struct Asked<'a> {
    pub(super) request: Request<'a>,
    pub(super) write: bool,
    /// The query of the place that is asked about.
    pub(super) query: Option<&'a str>,
}

/// What the rules make of a request.
#[derive(Clone, Debug)]
pub enum Judgement<'r> {
    /// It goes through without a comparison.
    Pass {
        /// The rule that it falls under: a read without a token, or under `reads: ignore`.
        rule: Option<&'r Rule>,
        /// Whether it is a write: one that no rule matches, and that may pass.
        write: bool,
    },
    /// Its tokens are to be compared. The claims are in the scratch.
    Fenced {
        /// The rule that it falls under.
        rule: &'r Rule,
        /// Whether it is a write. Reads are never flights.
        write: bool,
    },
    /// It must not reach the backend.
    Refused(Refusal<'r>),
}

/// Why a request must not reach the backend, whatever the marks are.
#[derive(Clone, Debug)]
pub struct Refusal<'r> {
    /// The reason on the wire.
    pub reason: Reason,
    /// The reason in words.
    pub detail: &'static str,
    /// The rule that the request falls under, as far as that is known.
    pub rule: Option<&'r Rule>,
    /// Which claim in the scratch it is about.
    pub claim: Option<usize>,
    /// Whether the rule is that one can't be told: another could be meant.
    pub(super) unsure: bool,
}

impl Refusal<'_> {
    /// Whether it holds also where the rule only observes: a request whose rule can't be told for sure is
    /// refused in any case, since another rule than the one that observes could be meant.
    #[must_use]
    pub fn binds(&self) -> bool {
        match self.reason {
            Reason::AmbiguousPath | Reason::MethodOverride => true,
            _ => self.unsure || self.rule.is_none_or(|r| r.mode == Mode::Enforce),
        }
    }
}

/// A resource that a request names, and the token that it presents for it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Claim<'s> {
    /// The resource's name.
    pub resource: &'s str,
    /// The token; `None` for a write that carries none, where the rule does not refuse that by itself.
    pub token: Option<Token>,
    /// How the resource's tokens are written.
    pub format: TokenFormat,
    /// By how much the token may raise the mark at most.
    pub max_step: Option<u64>,
    /// Which of the rule's fences it is, from 0.
    pub fence: usize,
}

/// Buffers of one connection, used again for each request. After [`RuleSet::judge`] it holds the claims.
#[derive(Debug, Default)]
pub struct Scratch {
    pub(super) segments: Segments,
    pub(super) destination: Segments,
    pub(super) names: String,
    pub(super) claims: SmallVec<[Held; 2]>,
}

#[derive(Debug)]
pub(super) struct Held {
    pub(super) name: Range<usize>,
    pub(super) token: Option<Token>,
    pub(super) format: TokenFormat,
    pub(super) max_step: Option<u64>,
    pub(super) fence: usize,
}

impl Scratch {
    /// The claims of the request judged last: each resource once. In a refusal, those named so far.
    pub fn claims(&self) -> impl ExactSizeIterator<Item = Claim<'_>> {
        self.claims.iter().map(|held| self.show(held))
    }

    /// One claim of the request judged last.
    #[must_use]
    pub fn claim(&self, index: usize) -> Option<Claim<'_>> {
        self.claims.get(index).map(|held| self.show(held))
    }

    fn show(&self, held: &Held) -> Claim<'_> {
        Claim {
            resource: &self.names[held.name.clone()],
            token: held.token,
            format: held.format,
            max_step: held.max_step,
            fence: held.fence,
        }
    }

    /// Claims the resource whose name starts at `start`.
    pub(super) fn hold(&mut self, start: usize, index: usize, fence: &FenceRule) {
        self.claims.push(Held {
            name: start..self.names.len(),
            token: None,
            format: fence.format,
            max_step: fence.max_step,
            fence: index,
        });
    }

    pub(super) fn clear(&mut self) {
        self.names.clear();
        self.claims.clear();
    }
}

/// How one rule and one request go together.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Tried {
    /// The rule takes the request.
    Matches,
    /// The path is another.
    OtherPath,
    /// The path fits, and the rule does not take this write.
    OtherMethod,
    /// The method differs from one that the rule takes in letter case only.
    MethodCase,
    /// The path fits only for a backend that cuts `;…` off a segment.
    Parameters,
    /// Whether the path fits hangs on what the backend makes of an empty segment or an encoded slash.
    Shifted,
    /// Path and method fit, and the host is another.
    OtherHost,
    /// They fit, and the header field of this index is not there, or has another value.
    OtherHeader(usize),
    /// They fit, and the query field of this index is not there, or has another value.
    OtherQuery(usize),
    /// They fit, and whether the rest does can't be told.
    Unclear(&'static str),
}

impl RuleSet {
    /// Finds the rule, the resources and the tokens of a request.
    pub fn judge<'r>(&'r self, request: &Request<'_>, scratch: &mut Scratch) -> Judgement<'r> {
        scratch.clear();
        let (path, asked) = self.ask(request);
        let write = asked.write;
        let seen = look_at_fields(request.fields);
        if request.target == "*" && !write {
            // `OPTIONS *` asks about the server as a whole: it has no path that a rule could match.
            return refuse_override(&seen, None, true).unwrap_or_else(|| self.unmatched(write));
        }
        if let Err(detail) = path::read(path, self.paths, &mut scratch.segments) {
            return self.judge_ambiguous(&asked, path, detail);
        }
        let found = match self.find(&asked, &scratch.segments) {
            Ok(found) => found,
            Err(refused) => return refused,
        };
        let bound = write || found.is_some() || self.has_token(request);
        if let Some(refused) = refuse_override(&seen, found, bound) {
            return refused;
        }
        if seen.connection && bound && self.loses_a_field(request.fields, found) {
            return refuse(Reason::BadRequest, HOP_BY_HOP, found);
        }
        let Some(rule) = found else {
            if write && seen.destination && self.unmatched.writes == Policy::Pass {
                return match self.check_places(&asked, None, true, scratch) {
                    Ok(()) => self.unmatched(write),
                    Err((reason, detail, rule)) => refuse(reason, detail, rule),
                };
            }
            return self.unmatched(write);
        };
        if rule.action == Action::Deny {
            return refuse(Reason::NotAllowed, DENIED, Some(rule));
        }
        if let Some(done) = rule.name_resources(&asked, scratch) {
            return done;
        }
        if write
            && (seen.destination || rule.has_second_place())
            && let Err((reason, detail, rule)) =
                self.check_places(&asked, Some(rule), seen.destination, scratch)
        {
            return refuse(reason, detail, rule);
        }
        rule.judge(&asked, scratch)
    }

    /// How each rule and a request go together, in order; empty where the path is ambiguous. For people.
    pub fn trace(&self, request: &Request<'_>, scratch: &mut Scratch) -> Vec<(&Rule, Tried)> {
        let (path, asked) = self.ask(request);
        if path::read(path, self.paths, &mut scratch.segments).is_err() {
            return Vec::new();
        }
        let segments = &scratch.segments;
        self.rules
            .iter()
            .map(|rule| (rule, rule.try_on(&asked, segments)))
            .collect()
    }

    fn ask<'a>(&self, request: &Request<'a>) -> (&'a str, Asked<'a>) {
        let (path, query) = split_target(request.target);
        let asked = Asked {
            request: *request,
            write: !self.is_safe(request.method),
            query,
        };
        (path, asked)
    }

    /// The first rule that takes the request.
    fn find<'r>(&'r self, asked: &Asked<'_>, segments: &Segments) -> Result<Option<&'r Rule>, Judgement<'r>> {
        for rule in &self.rules {
            let (reason, detail) = match rule.try_on(asked, segments) {
                Tried::Matches => return Ok(Some(rule)),
                Tried::OtherPath
                | Tried::OtherMethod
                | Tried::OtherHost
                | Tried::OtherHeader(_)
                | Tried::OtherQuery(_) => continue,
                Tried::MethodCase => (Reason::BadRequest, METHOD_CASE),
                Tried::Parameters => (Reason::AmbiguousPath, PARAMETERS),
                Tried::Shifted => (Reason::AmbiguousPath, SHIFTED),
                Tried::Unclear(detail) => (Reason::BadRequest, detail),
            };
            return Err(Judgement::Refused(Refusal {
                reason,
                detail,
                rule: Some(rule),
                claim: None,
                unsure: true,
            }));
        }
        Ok(None)
    }

    /// An ambiguous path: refused for a write; for a read where it carries a token, or where a rule could be
    /// meant. What is left is a read that no rule could ever compare.
    fn judge_ambiguous(&self, asked: &Asked<'_>, path: &str, detail: &'static str) -> Judgement<'_> {
        let refused = refuse(Reason::AmbiguousPath, detail, None);
        if asked.write || self.has_token(&asked.request) {
            return refused;
        }
        let meant = |reading: &Vec<String>, rule: &Rule| {
            let fit = rule.path.fit_firm(reading.len(), |i| &reading[i], rule.fold_case);
            fit != Fit::No && rule.takes_reads() && matches!(rule.told(asked), Told::Yes | Told::Unclear(_))
        };
        let readings = path::readings(path);
        if self
            .rules
            .iter()
            .any(|rule| readings.iter().any(|r| meant(r, rule)))
        {
            return refused;
        }
        refuse_override(&look_at_fields(asked.request.fields), None, false)
            .unwrap_or_else(|| self.unmatched(false))
    }

    /// Whether the request carries the token of some rule.
    fn has_token(&self, request: &Request<'_>) -> bool {
        let mut fences = self.rules.iter().flat_map(|rule| &rule.fences);
        fences.any(|fence| fence.token.look(request) != Sent::Nothing)
    }

    /// Whether `Connection` names a field that some rule matches by, or that this rule reads: the backend would
    /// never see it.
    fn loses_a_field(&self, fields: &[Header<'_>], found: Option<&Rule>) -> bool {
        fields
            .iter()
            .filter(|f| f.name.eq_ignore_ascii_case("connection"))
            .flat_map(|f| f.value.split(|b| *b == b','))
            .filter_map(|name| std::str::from_utf8(name.trim_ascii()).ok())
            .any(|name| {
                found.is_some_and(|rule| rule.reads_header(name))
                    || self.rules.iter().any(|rule| rule.matches_by_header(name))
            })
    }

    fn unmatched(&self, write: bool) -> Judgement<'_> {
        let policy = if write {
            self.unmatched.writes
        } else {
            self.unmatched.reads
        };
        match (policy, write) {
            (Policy::Pass, _) => Judgement::Pass { rule: None, write },
            (Policy::Deny, true) => refuse(Reason::UnmatchedWrite, "no rule matches this write", None),
            (Policy::Deny, false) => refuse(Reason::NotAllowed, "no rule matches this read", None),
        }
    }
}

impl Rule {
    pub(super) fn try_on(&self, asked: &Asked<'_>, segments: &Segments) -> Tried {
        let fit = self.path.fit(segments, self.fold_case);
        if fit == Fit::No {
            return Tried::OtherPath;
        }
        let method = self.takes_method(asked);
        if method == Tried::OtherMethod {
            return method;
        }
        let told = self.told(asked);
        match (told, method, fit) {
            (Told::OtherHost, _, _) => Tried::OtherHost,
            (Told::OtherHeader(index), _, _) => Tried::OtherHeader(index),
            (Told::OtherQuery(index), _, _) => Tried::OtherQuery(index),
            (_, Tried::MethodCase, _) => Tried::MethodCase,
            (_, _, Fit::WithoutParameters) => Tried::Parameters,
            (_, _, Fit::Shifted) => Tried::Shifted,
            (Told::Unclear(detail), _, _) => Tried::Unclear(detail),
            (Told::Yes, _, Fit::Yes | Fit::No) => Tried::Matches,
        }
    }

    fn takes_method(&self, asked: &Asked<'_>) -> Tried {
        if !asked.write {
            return match self.takes_reads() {
                true => Tried::Matches,
                false => Tried::OtherMethod,
            };
        }
        let Some(methods) = &self.methods else {
            return Tried::Matches;
        };
        let method = asked.request.method;
        if methods.iter().any(|m| **m == *method) {
            Tried::Matches
        } else if methods.iter().any(|m| m.eq_ignore_ascii_case(method)) {
            Tried::MethodCase
        } else {
            Tried::OtherMethod
        }
    }

    fn told(&self, asked: &Asked<'_>) -> Told {
        match &self.conditions {
            None => Told::Yes,
            Some(conditions) => conditions.ask(asked, self.fold_case),
        }
    }
}

pub(super) fn split_target(target: &str) -> (&str, Option<&str>) {
    match memchr::memchr(b'?', target.as_bytes()) {
        Some(at) => (&target[..at], Some(&target[at + 1..])),
        None => (target, None),
    }
}

/// A read that takes another method may write. One that takes another path matters only where it writes, or
/// where it is `bound` by a rule here or there.
fn refuse_override<'r>(seen: &Seen, rule: Option<&'r Rule>, bound: bool) -> Option<Judgement<'r>> {
    if seen.method_override {
        return Some(refuse(Reason::MethodOverride, OVERRIDE, rule));
    }
    (seen.path_override && bound).then(|| refuse(Reason::AmbiguousPath, OTHER_PATH, rule))
}

pub(super) fn refuse<'r>(reason: Reason, detail: &'static str, rule: Option<&'r Rule>) -> Judgement<'r> {
    Judgement::Refused(Refusal {
        reason,
        detail,
        rule,
        claim: None,
        unsure: false,
    })
}

const METHOD_CASE: &str =
    "methods are case-sensitive, and this one differs from one of the rule in case only";
const PARAMETERS: &str = "a segment has a ; and without what follows it the rule would match";
const OVERRIDE: &str = "a field asks the backend to take another method";
const OTHER_PATH: &str = "a field asks the backend to take another path";
const HOP_BY_HOP: &str = "Connection names a field that the rule reads";
const SHIFTED: &str = "an empty segment or an encoded slash stands where it decides whether a rule matches";
const DENIED: &str = "the rule denies this write";
