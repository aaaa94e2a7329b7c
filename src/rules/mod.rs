//! Which rule a request falls under, which resources it names, which tokens it carries. Pure: no I/O, no clock,
//! no metric; it decides nothing about marks. Built by `config/`, called by `http/` for each request and by
//! `fencegate explain`.
//!
//! What the backend could read differently than the gate is refused here: one resource must never be reachable
//! under two names. The other way round (two resources that share a name, and so a fence) refuses too much,
//! never too little; templates make it hard, not impossible (see [`Template`]).

#![deny(clippy::disallowed_methods, clippy::disallowed_macros)]

mod allow;
mod claims;
mod condition;
mod destination;
mod fold;
mod host;
mod judge;
mod kinds;
mod path;
mod pattern;
mod query;
pub mod redis;
mod seen;
mod shape;
mod source;
mod tcp;
mod template;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::Duration;

pub use allow::{Allow, CertPattern, Sender};
pub use condition::{Conditions, HostPattern, ValuePattern};
pub use judge::{Claim, Judgement, Refusal, Request, Scratch, Tried};
pub use kinds::{Fenced, Kinds, Misfits, OtherKind};
pub use pattern::Pattern;
pub use shape::{Shape, ShapePart};
pub use source::{Carrier, Sent, TokenPattern, TokenSource};
pub use tcp::{Opening, TcpFence, TcpResource, TcpRule, TcpToken, Unfit};
pub use template::{Template, is_field_name};

use crate::base::TokenFormat;

/// The rules of one listener, in order, and what holds where none matches.
#[derive(Debug)]
pub struct RuleSet {
    /// The rules; the first that matches counts.
    pub rules: Box<[Rule]>,
    /// The methods that only read. Every other one is a write.
    pub safe_methods: Box<[Box<str>]>,
    /// Which paths are taken.
    pub paths: Paths,
    /// What happens where no rule matches.
    pub unmatched: Unmatched,
}

/// Which paths are taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Paths {
    /// Only those that every backend reads alike.
    Strict,
    /// Also those with empty segments and encoded slashes where no rule looks.
    Lenient,
}

/// What happens to requests that no rule matches.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Unmatched {
    /// Safe methods.
    pub reads: Policy,
    /// All others.
    pub writes: Policy,
}

/// Whether something may go through.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Policy {
    /// It goes through unfenced.
    Pass,
    /// It is refused.
    Deny,
}

/// One rule of a listener.
#[derive(Debug)]
pub struct Rule {
    /// Its name, for metrics, logs and answers.
    pub name: Arc<str>,
    /// Its place among the listener's rules, from 0.
    pub index: usize,
    /// The paths that it takes.
    pub path: Pattern,
    /// The writes that it takes; `None` takes every method that isn't safe.
    pub methods: Option<Box<[Box<str>]>>,
    /// What else it asks of a request.
    pub conditions: Option<Box<Conditions>>,
    /// Whether it fences or denies.
    pub action: Action,
    /// What it compares: at least one, unless it denies.
    pub fences: Box<[FenceRule]>,
    /// Who may present tokens; everybody where there is none.
    pub allow: Option<Allow>,
    /// What happens to writes without a token.
    pub missing: Missing,
    /// Whether it refuses, or only counts.
    pub mode: Mode,
    /// Whether reads that carry a token are compared.
    pub reads: Reads,
    /// How long a request may wait for older writes.
    pub drain_timeout: Duration,
    /// Whether names that differ in letter case only are one.
    pub fold_case: bool,
}

/// One fence of a rule: a resource and where its token comes from.
#[derive(Clone, Debug)]
pub struct FenceRule {
    /// How the resource is named.
    pub resource: Template,
    /// The field whose path the resource is named by, instead of the request's own.
    pub path_from: Option<Box<str>>,
    /// Where the token comes from.
    pub token: TokenSource,
    /// How its tokens are written.
    pub format: TokenFormat,
    /// By how much a token may raise the mark at most; `None` where that is not bounded.
    pub max_step: Option<u64>,
}

/// What a rule does with the writes that it takes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Action {
    /// It compares their tokens.
    Fence,
    /// It refuses them.
    Deny,
}

/// What happens to a write that carries no token.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Missing {
    /// It is refused.
    Deny,
    /// It passes, as older than every token.
    Pass,
    /// It passes until the resource has seen a token.
    PassUntilFenced,
}

impl Missing {
    /// Its word in the configuration.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Missing::Deny => "deny",
            Missing::Pass => "pass",
            Missing::PassUntilFenced => "pass_until_fenced",
        }
    }
}

/// Whether a rule refuses.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Mode {
    /// It refuses what it must.
    Enforce,
    /// It decides, counts and logs, and lets everything through.
    Observe,
}

impl Mode {
    /// Its word in the configuration and in metrics.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Mode::Enforce => "enforce",
            Mode::Observe => "observe",
        }
    }
}

/// Whether reads that carry a token are compared, and raise.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Reads {
    /// They are, and do.
    Raise,
    /// They pass as if they carried none.
    Ignore,
}

/// The methods that are safe unless the listener sets its own.
pub const SAFE_METHODS: [&str; 6] = ["GET", "HEAD", "OPTIONS", "PROPFIND", "REPORT", "SEARCH"];

impl RuleSet {
    /// Whether this method only reads. Methods are case-sensitive: `get` is a write.
    #[must_use]
    pub fn is_safe(&self, method: &str) -> bool {
        self.safe_methods.iter().any(|m| **m == *method)
    }

    /// The fences of all its rules.
    pub fn fences(&self) -> impl Iterator<Item = Fenced> {
        self.rules.iter().flat_map(Rule::fences)
    }

    /// Whether some rule reads a header field of this name: its token, what it matches by, or a part of a name.
    #[must_use]
    pub fn reads_header(&self, name: &str) -> bool {
        self.rules
            .iter()
            .any(|r| r.reads_header(name) || r.matches_by_header(name))
    }
}

impl Rule {
    /// Its fences.
    pub fn fences(&self) -> impl Iterator<Item = Fenced> {
        self.fences.iter().map(|fence| Fenced {
            rule: Arc::clone(&self.name),
            mode: self.mode,
            shape: fence.resource.shape(),
            format: fence.format,
            fold_case: self.fold_case,
        })
    }

    /// Whether every request that `later` takes is taken by this rule too, or refused, so that `later` never
    /// matches.
    #[must_use]
    pub fn covers(&self, later: &Rule) -> bool {
        let methods = match (&self.methods, &later.methods) {
            (None, _) => true,
            (Some(_), None) => false,
            (Some(mine), Some(theirs)) => theirs.iter().all(|m| mine.contains(m)),
        };
        let conditions = match (&self.conditions, &later.conditions) {
            (None, _) => true,
            (Some(mine), None) => mine.is_empty(),
            (Some(mine), Some(theirs)) => mine.cover(theirs),
        };
        let reads = self.takes_reads() || !later.takes_reads();
        methods
            && conditions
            && reads
            && (self.fold_case || !later.fold_case)
            && self.path.covers(&later.path)
    }

    /// Whether reads fall under it. Those go past a rule that would compare none: one that denies, or that fences
    /// second places alone, which reads don't have. So a later rule can compare them.
    #[must_use]
    pub fn takes_reads(&self) -> bool {
        self.fences.iter().any(|f| f.path_from.is_none())
    }

    /// Whether this rule, once it matches, reads a header field of this name.
    fn reads_header(&self, name: &str) -> bool {
        self.fences.iter().any(|f| {
            f.token.reads_header(name)
                || f.resource.uses_header(name)
                || f.path_from
                    .as_ref()
                    .is_some_and(|from| from.eq_ignore_ascii_case(name))
        })
    }

    fn matches_by_header(&self, name: &str) -> bool {
        self.conditions.as_ref().is_some_and(|c| c.reads_header(name))
    }

    fn has_second_place(&self) -> bool {
        self.fences.iter().any(|f| f.path_from.is_some())
    }
}
