//! Which tokens a connection presents: what its name says, its user's name where a rule has a pattern for it, or what
//! it has told the gate by `FENCE`. The latest counts.

use std::borrow::Cow;

use super::RedisRules;
use crate::base::{Token, TokenFormat};
use crate::rules::{Sent, TokenPattern};

/// Where a connection says which token it holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Carrier {
    /// The client's name, `CLIENT SETNAME`.
    Name,
    /// The user's name, `AUTH`; where a rule has a pattern.
    User,
    /// `FENCE`, a word of the gate's own.
    Fence,
}

/// A connection's tokens, one for each fence of its listener's rules: they may be read in different ways.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Identity(Vec<Presented>);

/// What a connection presents for a fence.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Presented {
    /// No token.
    #[default]
    Nothing,
    /// This one.
    Token(Token, Carrier),
    /// Something that is none, for this fence.
    Malformed(Carrier),
}

/// What becomes of a connection's tokens once the server has taken a name.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Change {
    carrier: Carrier,
    /// `None` where the text says nothing.
    found: Vec<Option<Presented>>,
}

/// The text has a token that none of the rules can read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NoToken;

impl Identity {
    /// What it presents for the fence of this slot.
    #[must_use]
    pub fn presents(&self, slot: usize) -> Presented {
        self.0.get(slot).copied().unwrap_or_default()
    }

    /// Takes a change over.
    pub fn apply(&mut self, change: &Change) {
        self.0.resize(change.found.len(), Presented::Nothing);
        for (held, found) in self.0.iter_mut().zip(&change.found) {
            match (found, *held) {
                (Some(found), _) => *held = *found,
                // A name that says nothing takes back what the name before it said.
                (None, Presented::Token(_, from) | Presented::Malformed(from)) if from == change.carrier => {
                    *held = Presented::Nothing;
                }
                (None, _) => {}
            }
        }
    }

    /// It presents nothing from here on.
    pub fn clear(&mut self) {
        self.0.clear();
    }
}

impl RedisRules {
    /// What a text says by way of `carrier`.
    ///
    /// # Errors
    /// [`NoToken`]: it should have a token, and no rule can read it.
    pub fn read_token(&self, carrier: Carrier, text: &[u8]) -> Result<Change, NoToken> {
        let mut found = Vec::new();
        for fence in self.rules.iter().flat_map(|rule| &rule.fences) {
            found.push(look(carrier, fence.pattern.as_ref(), text).map(|text| {
                match text.and_then(|text| fence.format.parse(&text).ok()) {
                    Some(token) => Presented::Token(token, carrier),
                    None => Presented::Malformed(carrier),
                }
            }));
        }
        let malformed = found
            .iter()
            .flatten()
            .any(|p| matches!(p, Presented::Malformed(_)));
        let read = found.iter().flatten().any(|p| matches!(p, Presented::Token(..)));
        match malformed && !read {
            true => Err(NoToken),
            false => Ok(Change { carrier, found }),
        }
    }

    /// Whether some rule could read a token from a user's name.
    #[must_use]
    pub fn reads_users(&self) -> bool {
        let mut fences = self.rules.iter().flat_map(|rule| &rule.fences);
        fences.any(|fence| fence.pattern.is_some())
    }
}

/// The token's text: the outer `None` where nothing is said, the inner one where it can't be one token.
#[allow(clippy::option_option)]
fn look<'a>(
    carrier: Carrier,
    pattern: Option<&TokenPattern>,
    text: &'a [u8],
) -> Option<Option<Cow<'a, [u8]>>> {
    let sent = match (carrier, pattern) {
        (Carrier::Fence, _) => Sent::One(text.into()),
        (Carrier::Name | Carrier::User, Some(pattern)) => pattern.take(text.into()),
        (Carrier::Name, None) => plain(text),
        (Carrier::User, None) => Sent::Nothing,
    };
    match sent {
        Sent::Nothing => None,
        Sent::One(text) => Some(Some(text)),
        Sent::Odd(_) => Some(None),
    }
}

const KEY: &[u8] = b"fencing-token=";

/// `fencing-token=N` in a longer name: at its start or behind something that is no letter or digit, up to a space or
/// one of `,;/|&`.
fn plain(text: &[u8]) -> Sent<'_> {
    let starts =
        |at: &usize| text[*at..].starts_with(KEY) && (*at == 0 || !text[*at - 1].is_ascii_alphanumeric());
    let mut found = (0..text.len()).filter(starts);
    match (found.next(), found.next()) {
        (None, _) => Sent::Nothing,
        (Some(_), Some(_)) => Sent::Odd("more than one token stands in the name"),
        (Some(at), None) => {
            let rest = &text[at + KEY.len()..];
            let end = rest.iter().position(|b| b" ,;/|&".contains(b));
            Sent::One(rest[..end.unwrap_or(rest.len())].into())
        }
    }
}

/// What is wrong with a token that can't be read, for people.
#[must_use]
pub fn malformed(format: TokenFormat) -> &'static str {
    match format {
        TokenFormat::Integer => {
            "a token is one integer from 0 to 18446744073709551615, without leading zeros"
        }
        TokenFormat::Hex => "a token is one number of 1 to 16 hex digits",
        TokenFormat::Pair => "a token is one pair EPOCH.COUNTER of integers",
    }
}
