//! What can happen, as it is kept and as those who tell it name it. Built and kept by `events.rs`.

use std::net::IpAddr;
use std::time::Duration;

use crate::base::{Reason, Token, TokenFormat};

/// Something that has happened.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Event {
    /// Its number; each is one more than the one before.
    pub sequence: u64,
    /// When, in milliseconds since 1970: for people.
    pub at_ms: u64,
    /// What.
    pub what: Happening,
}

/// What has happened: a closed set.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Happening {
    /// A mark has become durable: everything older has settled.
    Raised {
        /// The resource.
        resource: Box<str>,
        /// The mark.
        token: Box<str>,
        /// The highest token seen; higher than the mark where the next raise is under way.
        highest: Option<Box<str>>,
        /// From the first sight of a higher token until now.
        drained: Duration,
        /// Whether an operator asked for it.
        by_operator: bool,
    },
    /// An operator's reset has become durable.
    Reset {
        /// The resource.
        resource: Box<str>,
        /// The new mark.
        token: Box<str>,
        /// The highest token seen before; empty where there was none.
        before: Box<str>,
        /// The operator's words.
        reason: Box<str>,
        /// Where the operator asked from.
        by: Box<str>,
    },
    /// A request was refused, or would have been.
    Refused(Box<Refused>),
    /// A write's answer is lost: it may still take effect.
    InDoubt(Box<Doubt>),
    /// Who may admit writes has changed.
    Ownership {
        /// What this instance is now.
        role: Role,
        /// Why.
        why: Box<str>,
    },
    /// Refusals that were too many in a second to be told each.
    LeftOut {
        /// How many.
        refusals: u64,
    },
}

/// A refusal, as it is kept.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Refused {
    /// The listener's name.
    pub listener: Box<str>,
    /// The rule's name, if one is known.
    pub rule: Option<Box<str>>,
    /// Why.
    pub reason: Reason,
    /// Whether it was let through all the same, its rule only observing.
    pub observed: bool,
    /// The status of the answer, in a protocol that has such.
    pub status: Option<u16>,
    /// The resource, as far as it is known.
    pub resource: Option<Box<str>>,
    /// The token that came.
    pub token: Option<Box<str>>,
    /// The highest token seen.
    pub highest: Option<Box<str>>,
    /// Where the client is.
    pub client: IpAddr,
    /// The request's method and path, where its head could be read.
    pub method: Option<Box<str>>,
    /// See `method`; without the query.
    pub path: Option<Box<str>>,
}

/// A doubt, as it is kept.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Doubt {
    /// The listener's name, where it is known.
    pub listener: Option<Box<str>>,
    /// The rule's name, where it is known.
    pub rule: Option<Box<str>>,
    /// The resource, where it is known.
    pub resource: Option<Box<str>>,
    /// The write's token; `None` where it carried none.
    pub token: Option<Box<str>>,
    /// Why its answer is lost.
    pub reason: &'static str,
    /// When the doubt ends, in milliseconds since 1970: for people.
    pub until_ms: u64,
}

/// What an instance is to its fences.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Role {
    /// It owns them.
    Active,
    /// Another one may.
    Standby,
}

impl Role {
    /// Its name, as `/readyz` has it.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Role::Active => "active",
            Role::Standby => "standby",
        }
    }
}

/// A mark that has become durable.
#[derive(Clone, Copy, Debug)]
pub struct Raise<'a> {
    /// The resource.
    pub resource: &'a str,
    /// The mark.
    pub token: Token,
    /// The highest token seen.
    pub highest: Option<Token>,
    /// How the resource's tokens are written.
    pub format: TokenFormat,
    /// From the first sight of a higher token until now.
    pub drained: Duration,
    /// Whether an operator asked for it.
    pub by_operator: bool,
}

/// A reset that has become durable.
#[derive(Clone, Copy, Debug)]
pub struct Reset<'a> {
    /// The resource.
    pub resource: &'a str,
    /// The new mark.
    pub token: Token,
    /// How the resource's tokens are written from now on.
    pub format: TokenFormat,
    /// The highest token seen before, as it is written; empty where there was none.
    pub before: &'a str,
    /// The operator's words.
    pub reason: &'a str,
    /// Where the operator asked from.
    pub by: &'a str,
}

/// A request that was refused, or would have been; see [`Refused`] for what the fields mean.
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs, reason = "those of `Refused`, before they are cut")]
pub struct Refusal<'a> {
    pub listener: &'a str,
    pub rule: Option<&'a str>,
    pub reason: Reason,
    pub observed: bool,
    pub status: Option<u16>,
    pub resource: Option<&'a str>,
    pub token: Option<&'a str>,
    pub highest: Option<&'a str>,
    pub client: IpAddr,
    pub method: Option<&'a str>,
    pub path: Option<&'a str>,
}

/// A write whose answer is lost; see [`Doubt`] for what the fields mean.
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs, reason = "those of `Doubt`, before they are cut")]
pub struct InDoubt<'a> {
    pub listener: Option<&'a str>,
    pub rule: Option<&'a str>,
    pub resource: Option<&'a str>,
    pub token: Option<Token>,
    pub format: TokenFormat,
    pub reason: &'static str,
    /// How long the doubt lasts.
    pub lasts: Duration,
}
