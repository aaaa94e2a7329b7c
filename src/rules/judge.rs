//! Judging one request: the rule, the names, the tokens, or why it must be refused before any mark is looked at.
//!
//! [`RuleSet::judge`] runs for every request; once its [`Scratch`] is warm it allocates nothing, but for names
//! that have to be folded beyond ASCII and for ambiguous paths.

use std::ops::Range;

use httparse::Header;
use smallvec::SmallVec;

use super::allow::Sender;
use super::path::{self, Segments};
use super::pattern::Fit;
use super::seen::{Seen, look_at_fields};
use super::template::Sources;
use super::{FenceRule, Missing, Mode, Policy, Reads, Rule, RuleSet};
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
}

impl Refusal<'_> {
    /// Whether it holds also where the rule only observes: a request whose rule can't be told for sure is
    /// refused in any case, since another rule than the one that observes could be meant.
    #[must_use]
    pub fn binds(&self) -> bool {
        match self.reason {
            Reason::AmbiguousPath | Reason::MethodOverride => true,
            _ => self.rule.is_none_or(|r| r.mode == Mode::Enforce),
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
}

/// Buffers of one connection, used again for each request. After [`RuleSet::judge`] it holds the claims.
#[derive(Debug, Default)]
pub struct Scratch {
    segments: Segments,
    pub(super) destination: Segments,
    pub(super) names: String,
    pub(super) claims: SmallVec<[Held; 2]>,
}

#[derive(Debug)]
pub(super) struct Held {
    pub(super) name: Range<usize>,
    token: Option<Token>,
    format: TokenFormat,
    max_step: Option<u64>,
    fence: usize,
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
        }
    }

    fn clear(&mut self) {
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
}

impl RuleSet {
    /// Finds the rule, the resources and the tokens of a request.
    pub fn judge<'r>(&'r self, request: &Request<'_>, scratch: &mut Scratch) -> Judgement<'r> {
        scratch.clear();
        let write = !self.is_safe(request.method);
        let (path, query) = split_target(request.target);
        let seen = look_at_fields(request.fields);
        if request.target == "*" && !write {
            // `OPTIONS *` asks about the server as a whole: it has no path that a rule could match.
            return refuse_override(&seen, None, true).unwrap_or_else(|| self.unmatched(write));
        }
        if let Err(detail) = path::read(path, &mut scratch.segments) {
            return self.judge_ambiguous(request, path, write, detail);
        }
        let mut found = None;
        for rule in &self.rules {
            match rule.try_on(request.method, write, &scratch.segments) {
                Tried::OtherPath | Tried::OtherMethod => {}
                Tried::Matches => {
                    found = Some(rule);
                    break;
                }
                Tried::MethodCase => return refuse(Reason::BadRequest, METHOD_CASE, Some(rule)),
                Tried::Parameters => return refuse(Reason::AmbiguousPath, PARAMETERS, Some(rule)),
            }
        }
        let bound = write || found.is_some() || self.has_token(request.fields);
        if let Some(refused) = refuse_override(&seen, found, bound) {
            return refused;
        }
        match found {
            Some(rule) if seen.connection && rule.loses_a_field(request.fields) => {
                refuse(Reason::BadRequest, HOP_BY_HOP, Some(rule))
            }
            Some(rule) => {
                if let Some(done) = rule.name_resources(request, query, write, scratch) {
                    return done;
                }
                if write
                    && seen.destination
                    && let Err((reason, detail, rule)) = self.check_destination(request, found, scratch)
                {
                    return refuse(reason, detail, rule);
                }
                rule.judge(request, write, scratch)
            }
            None if write && seen.destination && self.unmatched.writes == Policy::Pass => {
                match self.check_destination(request, None, scratch) {
                    Ok(()) => self.unmatched(write),
                    Err((reason, detail, rule)) => refuse(reason, detail, rule),
                }
            }
            None => self.unmatched(write),
        }
    }

    /// How each rule and a request go together, in order; empty where the path is ambiguous. For people.
    pub fn trace(&self, request: &Request<'_>, scratch: &mut Scratch) -> Vec<(&Rule, Tried)> {
        let write = !self.is_safe(request.method);
        let (path, _) = split_target(request.target);
        if path::read(path, &mut scratch.segments).is_err() {
            return Vec::new();
        }
        let segments = &scratch.segments;
        self.rules
            .iter()
            .map(|rule| (rule, rule.try_on(request.method, write, segments)))
            .collect()
    }

    /// An ambiguous path: refused for a write; for a read where it carries a token, or where a rule could be
    /// meant. What is left is a read that no rule could ever compare.
    fn judge_ambiguous(
        &self,
        request: &Request<'_>,
        path: &str,
        write: bool,
        detail: &'static str,
    ) -> Judgement<'_> {
        let refused = refuse(Reason::AmbiguousPath, detail, None);
        if write || self.has_token(request.fields) {
            return refused;
        }
        let meant = |reading: &Vec<String>, rule: &Rule| {
            rule.path.fit(reading.len(), |i| &reading[i], rule.fold_case) != Fit::No
        };
        let readings = path::lenient(path);
        if self
            .rules
            .iter()
            .any(|rule| readings.iter().any(|r| meant(r, rule)))
        {
            return refused;
        }
        refuse_override(&look_at_fields(request.fields), None, false).unwrap_or_else(|| self.unmatched(write))
    }

    fn has_token(&self, fields: &[Header<'_>]) -> bool {
        fields.iter().any(|f| self.is_token_header(f.name))
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
    pub(super) fn try_on(&self, method: &str, write: bool, segments: &Segments) -> Tried {
        let fit = self
            .path
            .fit(segments.count(), |i| segments.at(i), self.fold_case);
        if fit == Fit::No {
            return Tried::OtherPath;
        }
        if let (true, Some(methods)) = (write, &self.methods)
            && !methods.iter().any(|m| **m == *method)
        {
            let other_case = methods.iter().any(|m| m.eq_ignore_ascii_case(method));
            return if other_case {
                Tried::MethodCase
            } else {
                Tried::OtherMethod
            };
        }
        match fit {
            Fit::WithoutParameters => Tried::Parameters,
            Fit::Yes | Fit::No => Tried::Matches,
        }
    }

    /// Whether `Connection` names a field that this rule reads: the backend would never see it.
    fn loses_a_field(&self, fields: &[Header<'_>]) -> bool {
        fields
            .iter()
            .filter(|f| f.name.eq_ignore_ascii_case("connection"))
            .flat_map(|f| f.value.split(|b| *b == b','))
            .filter_map(|name| std::str::from_utf8(name.trim_ascii()).ok())
            .any(|name| {
                self.is_token_header(name) || self.fences.iter().any(|f| f.resource.uses_header(name))
            })
    }

    /// Names the resource of each fence; `Some` where the request is judged by that already.
    fn name_resources<'r>(
        &'r self,
        request: &Request<'_>,
        query: Option<&str>,
        write: bool,
        scratch: &mut Scratch,
    ) -> Option<Judgement<'r>> {
        let tokenless = |fence: &FenceRule| {
            !request
                .fields
                .iter()
                .any(|f| f.name.eq_ignore_ascii_case(&fence.header))
        };
        if !write && (self.reads == Reads::Ignore || self.fences.iter().all(tokenless)) {
            return Some(Judgement::Pass {
                rule: Some(self),
                write,
            });
        }
        for (index, fence) in self.fences.iter().enumerate() {
            let sources = Sources {
                segments: &scratch.segments,
                query,
                host: request.host,
                fields: request.fields,
            };
            let start = scratch.names.len();
            if let Err((reason, detail)) = fence.resource.fill(&sources, self.fold_case, &mut scratch.names) {
                scratch.names.truncate(start);
                return Some(refuse(reason, detail, Some(self)));
            }
            let held = Held {
                name: start..scratch.names.len(),
                token: None,
                format: fence.format,
                max_step: fence.max_step,
                fence: index,
            };
            scratch.claims.push(held);
        }
        None
    }

    /// Reads the tokens of the resources that are named.
    fn judge<'r>(&'r self, request: &Request<'_>, write: bool, scratch: &mut Scratch) -> Judgement<'r> {
        let read = self.read_tokens(request.fields, write, scratch);
        match read.and_then(|()| self.check_sender(&request.from, scratch)) {
            Ok(()) => Judgement::Fenced { rule: self, write },
            Err((reason, detail, claim)) => Judgement::Refused(Refusal {
                reason,
                detail,
                rule: Some(self),
                claim: Some(claim),
            }),
        }
    }

    /// Gives each claim its token, and leaves each resource in once.
    fn read_tokens(
        &self,
        fields: &[Header<'_>],
        write: bool,
        scratch: &mut Scratch,
    ) -> Result<(), (Reason, &'static str, usize)> {
        for index in 0..scratch.claims.len() {
            let fence = &self.fences[scratch.claims[index].fence];
            let token = read_token(fields, fence).map_err(|(reason, detail)| (reason, detail, index))?;
            if token.is_none() && write && self.missing == Missing::Deny {
                return Err((Reason::MissingToken, MISSING, index));
            }
            scratch.claims[index].token = token;
        }
        if !write {
            scratch.claims.retain(|held| held.token.is_some());
        }
        if scratch.claims.len() > 1 {
            self.merge(scratch)?;
        }
        Ok(())
    }

    /// A resource named twice counts once.
    fn merge(&self, scratch: &mut Scratch) -> Result<(), (Reason, &'static str, usize)> {
        let mut index = 1;
        while index < scratch.claims.len() {
            let name = |held: &Held| &scratch.names[held.name.clone()];
            let twin = scratch.claims[..index]
                .iter()
                .position(|h| name(h) == name(&scratch.claims[index]));
            let Some(twin) = twin else {
                index += 1;
                continue;
            };
            let (first, second) = (&scratch.claims[twin], &scratch.claims[index]);
            let token = match (first.token, second.token) {
                (Some(a), Some(b)) if a != b || first.format != second.format => {
                    return Err((Reason::BadRequest, TWO_TOKENS, index));
                }
                // The one token fences the resource, and then the other place lacks its own.
                (Some(_), None) | (None, Some(_)) if self.missing == Missing::PassUntilFenced => {
                    return Err((Reason::MissingToken, MISSING, index));
                }
                (a, b) => a.or(b),
            };
            let format = if first.token.is_some() {
                first.format
            } else {
                second.format
            };
            let max_step = match (first.max_step, second.max_step) {
                (Some(a), Some(b)) => Some(a.min(b)),
                (a, b) => a.or(b),
            };
            scratch.claims.remove(index);
            scratch.claims[twin].max_step = max_step;
            scratch.claims[twin].token = token;
            scratch.claims[twin].format = format;
        }
        Ok(())
    }
}

/// Reads a fence's token: `None` where no field of that name came.
fn read_token(fields: &[Header<'_>], fence: &FenceRule) -> Result<Option<Token>, (Reason, &'static str)> {
    let mut found = fields
        .iter()
        .filter(|f| f.name.eq_ignore_ascii_case(&fence.header));
    let Some(first) = found.next() else {
        return Ok(None);
    };
    if found.next().is_some() {
        return Err((Reason::MalformedToken, "the token was sent twice"));
    }
    match fence.format.parse(first.value) {
        Ok(token) => Ok(Some(token)),
        Err(_) => Err((Reason::MalformedToken, malformed(fence.format))),
    }
}

fn malformed(format: TokenFormat) -> &'static str {
    match format {
        TokenFormat::Integer => {
            "the token is not one integer from 0 to 18446744073709551615, without leading zeros"
        }
        TokenFormat::Hex => "the token is not one number of 1 to 16 hex digits",
        TokenFormat::Pair => "the token is not one pair EPOCH.COUNTER of integers",
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

fn refuse<'r>(reason: Reason, detail: &'static str, rule: Option<&'r Rule>) -> Judgement<'r> {
    Judgement::Refused(Refusal {
        reason,
        detail,
        rule,
        claim: None,
    })
}

const METHOD_CASE: &str =
    "methods are case-sensitive, and this one differs from one of the rule in case only";
const PARAMETERS: &str = "a segment has a ; and without what follows it the rule would match";
const OVERRIDE: &str = "a field asks the backend to take another method";
const OTHER_PATH: &str = "a field asks the backend to take another path";
const HOP_BY_HOP: &str = "Connection names a field that the rule reads";
const MISSING: &str = "the rule wants a token and none came";
const TWO_TOKENS: &str = "one resource is named twice, with two different tokens";
