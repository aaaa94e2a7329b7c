//! Which rule a request falls under, which resources it names, which tokens it carries. Pure: no I/O, no clock,
//! no metric; it decides nothing about marks. Built by `config/`, called by `http/` for each request and by
//! `fencegate explain`.
//!
//! What the backend could read differently than the gate is refused here: one resource must never be reachable
//! under two names. The other way round (two resources that share a name, and so a fence) refuses too much,
//! never too little; templates make it hard, not impossible (see [`Template`]).

#![deny(clippy::disallowed_methods, clippy::disallowed_macros)]

mod allow;
mod destination;
mod fold;
mod judge;
mod kinds;
mod path;
mod pattern;
mod seen;
mod template;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::Duration;

pub use allow::{Allow, CertPattern, Sender};
pub use judge::{Claim, Judgement, Refusal, Request, Scratch, Tried};
pub use kinds::{Kinds, Misfits, OtherKind};
pub use pattern::Pattern;
pub use template::{Template, is_field_name};

use crate::base::TokenFormat;

/// The rules of one listener, in order, and what holds where none matches.
#[derive(Debug)]
pub struct RuleSet {
    /// The rules; the first that matches counts.
    pub rules: Box<[Rule]>,
    /// The methods that only read. Every other one is a write.
    pub safe_methods: Box<[Box<str>]>,
    /// What happens where no rule matches.
    pub unmatched: Unmatched,
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
    /// What it compares: at least one.
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
    /// The field that carries the token, as the configuration writes it.
    pub header: Box<str>,
    /// How its tokens are written.
    pub format: TokenFormat,
    /// By how much a token may raise the mark at most; `None` where that is not bounded.
    pub max_step: Option<u64>,
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

/// Whether a rule refuses.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Mode {
    /// It refuses what it must.
    Enforce,
    /// It decides, counts and logs, and lets everything through.
    Observe,
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

    /// Whether a field of this name carries the token of some rule.
    #[must_use]
    pub fn is_token_header(&self, name: &str) -> bool {
        self.rules.iter().any(|r| r.is_token_header(name))
    }
}

impl Rule {
    /// Whether every request that `later` takes is taken by this rule too, so that `later` never matches.
    #[must_use]
    pub fn covers(&self, later: &Rule) -> bool {
        let methods = match (&self.methods, &later.methods) {
            (None, _) => true,
            (Some(_), None) => false,
            (Some(mine), Some(theirs)) => theirs.iter().all(|m| mine.contains(m)),
        };
        methods && (self.fold_case || !later.fold_case) && self.path.covers(&later.path)
    }

    /// Whether a field of this name carries one of this rule's tokens.
    #[must_use]
    pub fn is_token_header(&self, name: &str) -> bool {
        self.fences.iter().any(|f| f.header.eq_ignore_ascii_case(name))
    }
}
