//! What a raise or a reset would do, for people, before it is done: from which mark to which, in which format, and
//! how far. The gate alone judges tokens; what is told here only keeps slips of the hand from reaching it.

use serde_json::Value;

use super::table::{cell, plain};
use crate::base::{Token, TokenFormat};
use crate::cli::failed::Failed;

/// A change of one fence that was asked for.
pub(super) struct Plan<'a> {
    pub(super) name: &'a str,
    pub(super) token: &'a str,
    /// The format that was asked for.
    pub(super) format: Option<&'a str>,
    /// The fence as the gate shows it, if it shows one.
    pub(super) fence: Option<&'a Value>,
}

impl Plan<'_> {
    /// Refuses a name that no token was ever seen for, unless a new fence is what is wanted.
    pub(super) fn check_known(&self, new: bool) -> Result<(), Failed> {
        if new || self.highest().is_some() {
            return Ok(());
        }
        Err(Failed::wrong(format!(
            "{}: no token was ever seen for this name, and nothing was changed; check its spelling, or say --new to make a new fence",
            plain(self.name)
        )))
    }

    /// `NAME: FROM -> TO (FORMAT)`.
    pub(super) fn arrow(&self) -> String {
        let name = plain(self.name);
        let was = self.fence.and_then(|fence| fence["format"].as_str());
        let Some(from) = self.highest() else {
            let format = self
                .format
                .map_or_else(String::new, |f| format!(" ({})", plain(f)));
            return format!("{name}: (none) -> {}{format}", self.to(self.format));
        };
        let will = self.format.or(was);
        let (to, from) = (self.to(will), plain(from));
        let [was, will] = [was, will].map(|format| plain(format.unwrap_or("?")));
        if was == will {
            format!("{name}: {from} -> {to} ({will})")
        } else {
            format!("{name}: {from} ({was}) -> {to} ({will})")
        }
    }

    /// How far a raise goes up; 0 where it doesn't, or where there is nothing to go up from.
    pub(super) fn step(&self) -> Result<u64, Failed> {
        let (Some(fence), Some(from)) = (self.fence, self.highest()) else {
            return Ok(0);
        };
        let format = fence["format"].as_str().unwrap_or_default();
        let known = named(format).ok_or_else(super::unclear)?;
        let from = known.parse(from.as_bytes()).map_err(|_| super::unclear())?;
        let to = known.parse(self.token.as_bytes()).map_err(|_| {
            Failed::wrong(format!(
                "malformed-token: {:?} is not a token in this fence's format, {format}",
                self.token
            ))
        })?;
        Ok(step(from, to))
    }

    /// What a reset would do.
    pub(super) fn reset(&self) -> String {
        let arrow = self.arrow();
        let Some(fence) = self.fence else {
            return arrow;
        };
        let to = plain(self.token);
        let [flights, doubts, waiting] = ["in_flight", "in_doubt", "waiting"].map(|m| cell(&fence[m]));
        format!(
            "{arrow}\n\
             {flights} in flight: cut where they have not committed, waited for where they have\n\
             {doubts} in doubt: waited out\n\
             {waiting} waiting: judged again by the new mark\n\
             Tokens below {to} are refused, all others are let in, and a higher one raises the mark again: first stop whoever should not write."
        )
    }

    fn highest(&self) -> Option<&str> {
        let fence = self.fence?;
        fence["highest"].as_str().or(fence["mark"].as_str())
    }

    /// The token as the gate will show it; as it was typed where it can't be read.
    fn to(&self, format: Option<&str>) -> String {
        let read = format
            .and_then(named)
            .and_then(|f| Some(f.show(f.parse(self.token.as_bytes()).ok()?).to_string()));
        read.unwrap_or_else(|| plain(self.token))
    }
}

/// The larger one of the steps of both halves: a pair may leap by its epoch or by its counter.
fn step(from: Token, to: Token) -> u64 {
    if to <= from {
        return 0;
    }
    let halves = |token: Token| [(token.0 >> 64) as u64, token.0 as u64];
    let ([from_high, from_low], [to_high, to_low]) = (halves(from), halves(to));
    to_high
        .saturating_sub(from_high)
        .max(to_low.saturating_sub(from_low))
}

fn named(name: &str) -> Option<TokenFormat> {
    let formats = [TokenFormat::Integer, TokenFormat::Hex, TokenFormat::Pair];
    formats.into_iter().find(|format| format.as_str() == name)
}

#[cfg(test)]
mod tests {
    use super::{TokenFormat, step};

    #[test]
    fn a_leap_of_either_half_of_a_pair_counts() {
        let by = |format: TokenFormat, from: &str, to: &str| {
            let read = |text: &str| format.parse(text.as_bytes()).unwrap();
            step(read(from), read(to))
        };
        assert_eq!(by(TokenFormat::Pair, "1.5", "2.0"), 1);
        assert_eq!(by(TokenFormat::Pair, "1.5", "9.5"), 8);
        assert_eq!(by(TokenFormat::Pair, "1.5", "1.2000005"), 2_000_000);
        assert_eq!(by(TokenFormat::Pair, "1.0", "2.2000000"), 2_000_000);
        assert_eq!(by(TokenFormat::Hex, "10", "4294967312"), 0x42_9496_7302);
        assert_eq!(by(TokenFormat::Integer, "10", "9"), 0);
    }
}
