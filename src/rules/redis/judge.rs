//! Judging one command: which rules its keys fall under, which resources that names, which tokens the connection
//! presents for them; or why it must be refused before any mark is looked at.

use std::ops::Range;

use smallvec::SmallVec;

use super::identity::{Identity, Presented, malformed};
use super::keys::Captured;
use super::{RedisFence, RedisRule, RedisRules};
use crate::base::{Reason, Token, TokenFormat};
use crate::rules::{Action, Missing, Mode, Policy, Reads, Sender};

/// A command, as far as rules look at it.
#[derive(Clone, Copy, Debug)]
pub struct Act<'a> {
    /// Its name, in lower case, as the server's table has it: `set`, `config set`.
    pub name: &'a str,
    /// Whether it counts as a write.
    pub write: bool,
    /// Whether it may write keys that it doesn't name.
    pub undeclared: bool,
    /// What the connection presents.
    pub identity: &'a Identity,
    /// Who sends it.
    pub from: Sender<'a>,
}

/// A key that a command touches.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Key<'a> {
    /// The key.
    pub name: &'a [u8],
    /// Whether the command may change it.
    pub write: bool,
}

/// What the rules make of a command.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// It goes through without a comparison.
    Pass,
    /// Its tokens are to be compared. The claims are in the notes.
    Fenced,
    /// It must not reach the server.
    Refused(Denial),
}

/// Why a command must not reach the server, whatever the marks are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Denial {
    /// The reason.
    pub reason: Reason,
    /// The reason in words.
    pub detail: &'static str,
    /// The index of the rule that it falls under.
    pub rule: Option<usize>,
    /// Which of the claims in the notes it is about.
    pub claim: Option<usize>,
}

/// What was found out about a command. Its room is used again for each.
#[derive(Debug, Default)]
pub struct Notes {
    names: String,
    claims: SmallVec<[Held; 2]>,
    captured: Captured,
    /// What would have been refused, had its rule not only observed: the rule, and why.
    pub observed: SmallVec<[(usize, Reason); 1]>,
    /// The first rule that some key fell under.
    pub rule: Option<usize>,
    /// It writes what no rule takes, and may.
    pub unmatched_write: bool,
}

#[derive(Clone, Debug)]
struct Held {
    name: Range<usize>,
    token: Option<Token>,
    rule: usize,
    fence: usize,
    write: bool,
}

/// A resource that a command names, and the token that its connection presents for it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Claimed<'n> {
    /// The resource's name.
    pub resource: &'n str,
    /// The token; `None` for a write without one, where the rule lets that pass.
    pub token: Option<Token>,
    /// The index of its rule.
    pub rule: usize,
    /// Which of the rule's fences.
    pub fence: usize,
    /// Whether the command may change the key that it comes from.
    pub write: bool,
}

impl Notes {
    /// The claims of the command judged last: each resource once for each mode.
    pub fn claims(&self) -> impl ExactSizeIterator<Item = Claimed<'_>> + Clone {
        self.claims.iter().map(|held| self.claimed(held))
    }

    /// The only one of them; `None` where there are more, or none.
    #[inline]
    #[must_use]
    pub fn only_claim(&self) -> Option<Claimed<'_>> {
        match &self.claims[..] {
            [held] => Some(self.claimed(held)),
            _ => None,
        }
    }

    #[inline]
    fn claimed(&self, held: &Held) -> Claimed<'_> {
        Claimed {
            resource: &self.names[held.name.clone()],
            token: held.token,
            rule: held.rule,
            fence: held.fence,
            write: held.write,
        }
    }

    fn clear(&mut self) {
        self.names.clear();
        self.claims.clear();
        self.observed.clear();
        (self.rule, self.unmatched_write) = (None, false);
    }
}

impl RedisRules {
    /// Finds the rules, the resources and the tokens of a command that touches these keys.
    pub fn judge<'k>(
        &self,
        act: &Act<'_>,
        keys: impl Iterator<Item = Key<'k>>,
        notes: &mut Notes,
    ) -> Verdict {
        notes.clear();
        let mut any = false;
        for key in keys {
            any = true;
            if let Err(denial) = self.judge_key(act, key, notes) {
                return Verdict::Refused(denial);
            }
        }
        if !any
            && act.write
            && let Err(denial) = self.judge_keyless(act, notes)
        {
            return Verdict::Refused(denial);
        }
        match notes.claims.is_empty() {
            true => Verdict::Pass,
            false => Verdict::Fenced,
        }
    }

    /// The same for a command with one key, where it comes to what it nearly always does: one fence, of a rule that enforces,
    /// and a token for it that anybody may present. True is [`Verdict::Fenced`]; after false it is to be judged.
    #[inline]
    pub fn judge_usual(&self, act: &Act<'_>, key: Key<'_>, notes: &mut Notes) -> bool {
        notes.clear();
        let Some(rule) = self.taker(act, key, &mut notes.captured) else {
            return false;
        };
        let [fence] = &rule.fences[..] else {
            return false;
        };
        let Presented::Token(token, _) = act.identity.presents(fence.slot) else {
            return false;
        };
        if rule.mode != Mode::Enforce
            || rule.action != Action::Fence
            || rule.allow.is_some()
            || !key.write && rule.reads == Reads::Ignore
        {
            return false;
        }
        let names = &mut notes.names;
        fence
            .resource
            .fill(key.name, &notes.captured, rule.fold_case, names);
        notes.rule = Some(rule.index);
        notes.claims.push(Held {
            name: 0..names.len(),
            token: Some(token),
            rule: rule.index,
            fence: 0,
            write: key.write,
        });
        true
    }

    /// The rule that a key falls under.
    #[inline]
    fn taker(&self, act: &Act<'_>, key: Key<'_>, captured: &mut Captured) -> Option<&RedisRule> {
        self.rules.iter().find(|rule| {
            // A rule that denies compares nothing: reads go past it.
            (key.write || rule.action == Action::Fence) && rule.takes_key(act.name, key.name, captured)
        })
    }

    fn judge_key(&self, act: &Act<'_>, key: Key<'_>, notes: &mut Notes) -> Result<(), Denial> {
        match self.taker(act, key, &mut notes.captured) {
            Some(rule) => self.claim(rule, act, key, notes),
            None => self.unmatched(key.write, "no rule takes one of the keys that it writes", notes),
        }
    }

    /// Without a key it must be called by name, or be one whose keys can't be told.
    fn judge_keyless(&self, act: &Act<'_>, notes: &mut Notes) -> Result<(), Denial> {
        notes.captured.clear();
        let takes = |rule: &&RedisRule| {
            let named = rule.commands.is_some() && rule.keys.is_none();
            rule.takes_command(act.name)
                && (named && !rule.undeclared_keys || act.undeclared && rule.undeclared_keys)
        };
        let key = Key {
            name: b"",
            write: true,
        };
        match self.rules.iter().find(takes) {
            Some(rule) => self.claim(rule, act, key, notes),
            None if act.undeclared => {
                let detail = "its keys can't be told, and no rule takes such commands";
                self.unmatched(true, detail, notes)
            }
            None => self.unmatched(
                true,
                "it writes without naming a key, and no rule takes it by its name",
                notes,
            ),
        }
    }

    fn unmatched(&self, write: bool, detail: &'static str, notes: &mut Notes) -> Result<(), Denial> {
        let policy = if write {
            self.unmatched.writes
        } else {
            self.unmatched.reads
        };
        match policy {
            Policy::Pass => {
                notes.unmatched_write |= write;
                Ok(())
            }
            Policy::Deny => Err(Denial {
                reason: Reason::UnmatchedWrite,
                detail: if write {
                    detail
                } else {
                    "no rule takes one of the keys that it reads"
                },
                rule: None,
                claim: None,
            }),
        }
    }

    /// Names the resources of a key that falls under `rule`.
    fn claim(&self, rule: &RedisRule, act: &Act<'_>, key: Key<'_>, notes: &mut Notes) -> Result<(), Denial> {
        notes.rule = notes.rule.or(Some(rule.index));
        if rule.action == Action::Deny {
            return rule.refuse(Reason::UnmatchedWrite, "the rule denies it", None, notes);
        }
        if !key.write && rule.reads == Reads::Ignore {
            return Ok(());
        }
        for (index, fence) in rule.fences.iter().enumerate() {
            let presented = act.identity.presents(fence.slot);
            if !key.write && presented == Presented::Nothing {
                continue;
            }
            let start = notes.names.len();
            let (captured, names) = (&notes.captured, &mut notes.names);
            fence.resource.fill(key.name, captured, rule.fold_case, names);
            let held = Held {
                name: start..notes.names.len(),
                token: match presented {
                    Presented::Token(token, _) => Some(token),
                    Presented::Nothing | Presented::Malformed(_) => None,
                },
                rule: rule.index,
                fence: index,
                write: key.write,
            };
            if !self.hold(held, notes)? {
                continue;
            }
            let claim = Some(notes.claims.len() - 1);
            match presented {
                Presented::Malformed(_) => {
                    rule.refuse(Reason::MalformedToken, malformed(fence.format), claim, notes)?;
                }
                Presented::Nothing if rule.missing == Missing::Deny => {
                    rule.refuse(Reason::MissingToken, MISSING, claim, notes)?;
                }
                Presented::Token(..) if rule.allow.as_ref().is_some_and(|allow| !allow.fits(&act.from)) => {
                    rule.refuse(
                        Reason::NotAllowed,
                        "this client may not present tokens here",
                        claim,
                        notes,
                    )?;
                }
                Presented::Token(..) | Presented::Nothing => {}
            }
        }
        Ok(())
    }

    /// A resource named twice counts once; the claim that it is stands last, if it stands.
    fn hold(&self, held: Held, notes: &mut Notes) -> Result<bool, Denial> {
        let name = |held: &Held| &notes.names[held.name.clone()];
        let mode = |held: &Held| self.rules[held.rule].mode;
        let twin = notes
            .claims
            .iter()
            .position(|other| name(other) == name(&held) && mode(other) == mode(&held));
        let Some(twin) = twin else {
            notes.claims.push(held);
            return Ok(true);
        };
        let other = notes.claims.remove(twin);
        let rule = &self.rules[held.rule];
        let same = match (other.token, held.token) {
            (Some(a), Some(b)) => a == b && self.fence(&other).format == self.fence(&held).format,
            (None, None) => true,
            (Some(_), None) | (None, Some(_)) => {
                rule.missing == Missing::Pass && self.rules[other.rule].missing == Missing::Pass
            }
        };
        let write = other.write || held.write;
        let counts = if other.token.is_some() { other } else { held };
        notes.claims.push(Held { write, ..counts });
        if same {
            return Ok(true);
        }
        let claim = Some(notes.claims.len() - 1);
        let detail = "one resource is named twice, with two different tokens";
        rule.refuse(Reason::BadRequest, detail, claim, notes)
            .map(|()| false)
    }

    fn fence(&self, held: &Held) -> &RedisFence {
        &self.rules[held.rule].fences[held.fence]
    }

    /// How the tokens of a claim are written.
    #[must_use]
    pub fn format_of(&self, claim: &Claimed<'_>) -> TokenFormat {
        self.rules[claim.rule].fences[claim.fence].format
    }
}

impl RedisRule {
    #[inline]
    fn takes_key(&self, command: &str, key: &[u8], captured: &mut Captured) -> bool {
        if !self.takes_command(command) {
            return false;
        }
        match &self.keys {
            Some(pattern) => pattern.take(key, captured),
            None => {
                captured.clear();
                !self.undeclared_keys
            }
        }
    }

    /// `config` takes `config set` too.
    #[inline]
    fn takes_command(&self, name: &str) -> bool {
        let Some(commands) = &self.commands else {
            return true;
        };
        let first = name.split(' ').next().unwrap_or(name);
        commands
            .iter()
            .any(|command| **command == *name || **command == *first)
    }

    /// A rule that only observes notes what it would refuse, and claims nothing.
    fn refuse(
        &self,
        reason: Reason,
        detail: &'static str,
        claim: Option<usize>,
        notes: &mut Notes,
    ) -> Result<(), Denial> {
        match self.mode {
            Mode::Enforce => Err(Denial {
                reason,
                detail,
                rule: Some(self.index),
                claim,
            }),
            Mode::Observe => {
                if let Some(claim) = claim {
                    notes.claims.remove(claim);
                }
                notes.observed.push((self.index, reason));
                Ok(())
            }
        }
    }
}

const MISSING: &str = "the rule wants a token, and the connection presents none";
