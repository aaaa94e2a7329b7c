//! Rules for Redis: by the keys that a command touches, or by its name. Pure, as the rest of `rules/`; `table.rs` knows
//! what the server says of its commands, `keys.rs` patterns and names, `identity.rs` which tokens a connection presents,
//! `judge.rs` puts them together.

mod identity;
mod judge;
mod keys;
mod table;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::Duration;

pub use self::identity::{Carrier, Change, Identity, NoToken, Presented, malformed};
pub use self::judge::{Act, Claimed, Denial, Key, Notes, Verdict};
pub use self::keys::{KeyPattern, KeyTemplate};
pub use self::table::{Access, Begin, Command, Find, Flags, KeySpec, NameHash, Table, Touched, Usual};
use super::{Action, Allow, Fenced, Missing, Mode, Reads, TokenPattern, Unmatched};
use crate::base::TokenFormat;

/// The rules of one listener, in order, and what holds where none matches.
#[derive(Debug)]
pub struct RedisRules {
    /// The rules; for each key the first that takes it counts.
    pub rules: Box<[RedisRule]>,
    /// What happens where no rule matches.
    pub unmatched: Unmatched,
}

/// One rule.
#[derive(Debug)]
pub struct RedisRule {
    /// Its name, for metrics, logs and answers.
    pub name: Arc<str>,
    /// Its place among the listener's rules, from 0.
    pub index: usize,
    /// The keys that it takes; `None` where it doesn't look at them.
    pub keys: Option<KeyPattern>,
    /// The commands that it takes, in lower case, as `flushall` or `config set`; `None` takes every one.
    pub commands: Option<Box<[Box<str>]>>,
    /// It takes writes whose keys can't be told.
    pub undeclared_keys: bool,
    /// Whether it fences or denies.
    pub action: Action,
    /// What it compares: at least one, unless it denies.
    pub fences: Box<[RedisFence]>,
    /// Who may present tokens; everybody where there is none.
    pub allow: Option<Allow>,
    /// What happens to writes without a token.
    pub missing: Missing,
    /// Whether it refuses, or only counts.
    pub mode: Mode,
    /// Whether reads of a connection with a token are compared.
    pub reads: Reads,
    /// How long a command may wait for older writes.
    pub drain_timeout: Duration,
    /// Whether names that differ in letter case only are one.
    pub fold_case: bool,
}

/// One fence of a rule.
#[derive(Clone, Debug)]
pub struct RedisFence {
    /// How the resource is named.
    pub resource: KeyTemplate,
    /// Takes the token out of the client's or the user's name; without one it stands there as `fencing-token=N`.
    pub pattern: Option<TokenPattern>,
    /// How its tokens are written.
    pub format: TokenFormat,
    /// By how much a token may raise the mark at most.
    pub max_step: Option<u64>,
    /// Its place among all fences of the listener's rules, from 0.
    pub slot: usize,
}

impl RedisRules {
    /// The fences of all its rules.
    pub fn fences(&self) -> impl Iterator<Item = Fenced> {
        self.rules.iter().flat_map(RedisRule::fenced)
    }
}

impl RedisRule {
    /// Its fences.
    pub fn fenced(&self) -> impl Iterator<Item = Fenced> {
        self.fences.iter().map(|fence| Fenced {
            rule: Arc::clone(&self.name),
            mode: self.mode,
            shape: fence.resource.shape(),
            format: fence.format,
            fold_case: self.fold_case,
        })
    }

    /// Whether every command that `later` takes is taken by this rule before it, so that `later` never matches.
    #[must_use]
    pub fn covers(&self, later: &RedisRule) -> bool {
        let commands = match (&self.commands, &later.commands) {
            (None, _) => true,
            (Some(_), None) => false,
            (Some(mine), Some(theirs)) => theirs.iter().all(|command| mine.contains(command)),
        };
        let keys = match (&self.keys, &later.keys) {
            (None, None) => self.undeclared_keys == later.undeclared_keys,
            (Some(mine), Some(theirs)) => mine.covers(theirs),
            (None, Some(_)) | (Some(_), None) => false,
        };
        // Reads go past a rule that denies.
        let reads = self.action == Action::Fence || later.action == Action::Deny;
        commands && keys && reads && (self.fold_case || !later.fold_case)
    }
}
