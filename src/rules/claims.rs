//! The claims of a request that falls under a rule: the resource of each fence, named once, and the token that the
//! request presents for it. Called by `judge.rs`; what a field names as a second place is `destination.rs`.

use super::judge::{Asked, Held, Judgement, Refusal, Request, Scratch, refuse};
use super::source::Sent;
use super::template::Sources;
use super::{FenceRule, Missing, Reads, Rule, allow};
use crate::base::{Reason, Token, TokenFormat};

/// Why the claims can't be read, and which of them it is about.
type Unread = (Reason, &'static str, usize);

impl Rule {
    /// Names the resource of each fence that takes it from the target; `Some` where the request is judged by that
    /// already. A read has no second place: the fences of one leave it alone.
    pub(super) fn name_resources<'r>(
        &'r self,
        asked: &Asked<'_>,
        scratch: &mut Scratch,
    ) -> Option<Judgement<'r>> {
        let tokenless = |fence: &FenceRule| {
            fence.path_from.is_some() || fence.token.look(&asked.request) == Sent::Nothing
        };
        if !asked.write && (self.reads == Reads::Ignore || self.fences.iter().all(tokenless)) {
            return Some(Judgement::Pass {
                rule: Some(self),
                write: asked.write,
            });
        }
        for (index, fence) in self.fences.iter().enumerate() {
            if fence.path_from.is_some() {
                continue;
            }
            let sources = Sources {
                segments: &scratch.segments,
                query: asked.query,
                host: asked.request.host,
                fields: asked.request.fields,
            };
            let start = scratch.names.len();
            if let Err((reason, detail)) = fence.resource.fill(&sources, self.fold_case, &mut scratch.names) {
                scratch.names.truncate(start);
                return Some(refuse(reason, detail, Some(self)));
            }
            scratch.hold(start, index, fence);
        }
        None
    }

    /// Reads the tokens of the resources that are named.
    pub(super) fn judge<'r>(&'r self, asked: &Asked<'_>, scratch: &mut Scratch) -> Judgement<'r> {
        let read = self.read_tokens(asked, scratch);
        match read.and_then(|()| allow::check(self.allow.as_ref(), &asked.request.from, scratch)) {
            Ok(()) => Judgement::Fenced {
                rule: self,
                write: asked.write,
            },
            Err((reason, detail, claim)) => Judgement::Refused(Refusal {
                reason,
                detail,
                rule: Some(self),
                claim: Some(claim),
                unsure: false,
            }),
        }
    }

    /// Gives each claim its token, and leaves each resource in once.
    fn read_tokens(&self, asked: &Asked<'_>, scratch: &mut Scratch) -> Result<(), Unread> {
        for index in 0..scratch.claims.len() {
            let fence = &self.fences[scratch.claims[index].fence];
            let token =
                read_token(&asked.request, fence).map_err(|(reason, detail)| (reason, detail, index))?;
            if token.is_none() && asked.write && self.missing == Missing::Deny {
                return Err((Reason::MissingToken, MISSING, index));
            }
            scratch.claims[index].token = token;
        }
        if !asked.write {
            scratch.claims.retain(|held| held.token.is_some());
        }
        if scratch.claims.len() > 1 {
            merge(self.missing, scratch)?;
        }
        Ok(())
    }
}

/// A resource named twice counts once.
pub(super) fn merge(missing: Missing, scratch: &mut Scratch) -> Result<(), Unread> {
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
            (Some(_), None) | (None, Some(_)) if missing == Missing::PassUntilFenced => {
                return Err((Reason::MissingToken, MISSING, index));
            }
            (a, b) => a.or(b),
        };
        let counts = if first.token.is_some() { first } else { second };
        let (format, fence) = (counts.format, counts.fence);
        let max_step = match (first.max_step, second.max_step) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        };
        scratch.claims.remove(index);
        let held = &mut scratch.claims[twin];
        (held.token, held.format, held.fence) = (token, format, fence);
        held.max_step = max_step;
    }
    Ok(())
}

/// Reads a fence's token: `None` where none came.
fn read_token(request: &Request<'_>, fence: &FenceRule) -> Result<Option<Token>, (Reason, &'static str)> {
    match fence.token.look(request) {
        Sent::Nothing => Ok(None),
        Sent::Odd(detail) => Err((Reason::MalformedToken, detail)),
        Sent::One(text) => match fence.format.parse(&text) {
            Ok(token) => Ok(Some(token)),
            Err(_) => Err((Reason::MalformedToken, malformed(fence.format))),
        },
    }
}

pub(super) fn malformed(format: TokenFormat) -> &'static str {
    match format {
        TokenFormat::Integer => {
            "the token is not one integer from 0 to 18446744073709551615, without leading zeros"
        }
        TokenFormat::Hex => "the token is not one number of 1 to 16 hex digits",
        TokenFormat::Pair => "the token is not one pair EPOCH.COUNTER of integers",
    }
}

pub(super) const MISSING: &str = "the rule wants a token and none came";
const TWO_TOKENS: &str = "one resource is named twice, with two different tokens";
