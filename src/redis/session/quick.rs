//! The way of nearly every command and of its reply, in one go: nothing is awaited, refused or asked of the server.
//!
//! Whatever is unusual is left as it was found, for `commands.rs` and `down.rs`. A command is found, judged and admitted
//! here by what they call too, so that both ways decide the same; what is saved is the room that waiting needs.

use std::iter;
use std::ops::Range;
use std::time::Instant;

use smallvec::{SmallVec, smallvec};

use super::commands::OUTBOX_BYTES_MAX;
use super::owed::{Named, What};
use super::words::{special, waits};
use super::{OWED_MAX, Session};
use crate::keeper::{Ask, Flight};
use crate::rules::redis::{
    Access, Act, Claimed, Command, Key, Notes, RedisRule, RedisRules, Touched, Usual, Verdict,
};
use crate::rules::{Mode, Sender};
use crate::wire::resp::{Read, short_reply};

/// Which words are keys, and what is done with each.
type Keys = SmallVec<[(usize, Access); 4]>;

impl<'k> Session<'_, 'k> {
    /// Puts the next commands on their way, as many as there is nothing else to do for. False: nothing has been done.
    pub(super) fn take_quickly(&mut self) -> bool {
        let state = &self.state;
        if self.conn.is_none()
            || state.queued.is_some()
            || state.monitor
            || state.replica
            || state.mute
            || state.mute_next
        {
            return false;
        }
        let place = self.outbox_end();
        let mut at = 0;
        while at < self.inbox.len()
            && self.owed.len() < OWED_MAX
            && self.outbox.len() + at < OUTBOX_BYTES_MAX
            && let Ok(Read::Command(len)) = self.requests.read(&self.inbox.filled()[at..])
            && !self.requests.is_line()
            && self.admit_quickly(at, place + at as u64..place + (at + len) as u64)
        {
            at += len;
        }
        if at == 0 {
            return false;
        }
        if self.outbox.is_empty() {
            self.pushed = Instant::now();
        }
        self.outbox.tail().extend_from_slice(&self.inbox.filled()[..at]);
        self.inbox.consume(at);
        true
    }

    /// The command that was read last, which stands at `at` in the inbox, goes where that takes no more than a look. It is
    /// noted for its `place`, to which it has to be brought then.
    fn admit_quickly(&mut self, at: usize, place: Range<u64>) -> bool {
        let gate = self.gate;
        let rules = &gate.listener.rules;
        let bytes = &self.inbox.filled()[at..];
        let word = |index: usize| self.requests.word(bytes, index);
        let (Some(table), Some(first)) = (&self.table, word(0)) else {
            return false;
        };
        let Some(command) = table.find(first, word(1)) else {
            return false;
        };
        let act = |write: bool| Act {
            name: &command.name,
            write,
            undeclared: false,
            identity: &self.state.identity,
            from: Sender {
                ip: self.peer.ip,
                cert: self.peer.cert.as_ref(),
            },
        };
        let (verdict, write) = match command.usual {
            Some(usual) => {
                let Some(name) = word(usual.key) else {
                    return false;
                };
                debug_assert!(self.is_usual(command, usual, bytes), "{command:?}");
                let key = Key {
                    name,
                    write: usual.write && usual.changes,
                };
                let act = act(usual.write);
                if rules.judge_usual(&act, key, &mut self.notes) {
                    debug_assert!(fences_alone(rules, &act, key, &self.notes), "{act:?}");
                    return self.admit_one(place, usual.write);
                }
                let verdict = rules.judge(&act, iter::once(key), &mut self.notes);
                (verdict, usual.write)
            }
            None => {
                let Some(keys) = self.keys_of(command, bytes) else {
                    return false;
                };
                let write = command.writes();
                let keys = keys.iter().map(|(at, access)| Key {
                    name: word(*at).expect("a key is one of the words"),
                    write: write && *access == Access::Write,
                });
                (rules.judge(&act(write), keys, &mut self.notes), write)
            }
        };
        match verdict {
            Verdict::Refused(_) => false,
            // What would have been refused is told of.
            _ if !self.notes.observed.is_empty() => false,
            Verdict::Pass => {
                gate.count_free(&self.notes);
                self.book(What::Reply, Flight::unfenced(), place);
                true
            }
            Verdict::Fenced if self.notes.claims().len() == 1 => self.admit_one(place, write),
            Verdict::Fenced => self.admit_several(place, write),
        }
    }

    /// By the one claim in the notes.
    fn admit_one(&mut self, place: Range<u64>, write: bool) -> bool {
        let (gate, keeper) = (self.gate, self.keeper);
        let Some(claim) = self.notes.only_claim() else {
            return false;
        };
        let rule = &gate.listener.rules.rules[claim.rule];
        if rule.mode != Mode::Enforce {
            return false;
        }
        // A pipeline often goes on with the resource of the command before.
        let before = self
            .owed
            .back()
            .filter(|before| matches!(&before.names[..], [named] if named.is(&claim)))
            .map(|before| &before.ride.flight);
        let Some(flight) = keeper.quick_one(&ask(&claim, rule), write, before) else {
            return false;
        };
        match (claim.token, &mut self.admitted) {
            (Some(_), (rule, n)) if *rule == claim.rule => *n += 1,
            (Some(_), admitted) => {
                let (rule, n) = std::mem::replace(admitted, (claim.rule, 1));
                gate.count_admitted(rule, n);
            }
            (None, _) => gate.decisions(Some(claim.rule)).count_free(true),
        }
        let settle_after = gate.listener.upstream.settle_after;
        self.book(What::Reply, flight.settles_after(settle_after), place);
        // Nothing is said of a read that has been admitted.
        if write
            && let Some(claim) = self.notes.only_claim()
            && let Some(owed) = self.owed.back_mut()
        {
            Named::put(&claim, &mut owed.names);
        }
        true
    }

    /// Counts the commands of one claim that were admitted one after the other.
    pub(super) fn note_admitted(&mut self) {
        let (rule, n) = std::mem::take(&mut self.admitted);
        self.gate.count_admitted(rule, n);
    }

    /// By all claims in the notes.
    fn admit_several(&mut self, place: Range<u64>, write: bool) -> bool {
        let gate = self.gate;
        let rules = &gate.listener.rules.rules;
        let claims = || self.notes.claims();
        if !claims().all(|claim| rules[claim.rule].mode == Mode::Enforce) {
            return false;
        }
        let asks: SmallVec<[Ask<'_>; 2]> = claims().map(|claim| ask(&claim, &rules[claim.rule])).collect();
        let Some(flight) = self.keeper.quick(&asks, write) else {
            return false;
        };
        gate.count_through(claims().map(|claim| (claim.rule, claim.token)), false);
        let names = claims().map(|claim| Named::of(&claim)).collect();
        drop(asks);
        let settle_after = gate.listener.upstream.settle_after;
        self.book(What::Reply, flight.settles_after(settle_after), place)
            .names = names;
        true
    }

    /// The keys of the command that was read last from these bytes, where they are all there is to know of it.
    fn keys_of(&self, command: &Command, bytes: &[u8]) -> Option<Keys> {
        let words: SmallVec<[&[u8]; 8]> = self.requests.words(bytes).collect();
        if special(&words).is_some() || waits(&command.name, command.flags.blocking, &words) {
            return None;
        }
        match command.touched(&words, words.len()) {
            Touched::Keys(keys) if !keys.is_empty() => Some(keys),
            Touched::Keys(_) | Touched::Unclear | Touched::Later => None,
        }
    }

    /// Whether what the table says of all calls of a command holds for the one that was read last.
    fn is_usual(&self, command: &Command, usual: Usual, bytes: &[u8]) -> bool {
        let access = if usual.changes {
            Access::Write
        } else {
            Access::Read
        };
        let keys: Keys = smallvec![(usual.key, access)];
        usual.write == command.writes() && self.keys_of(command, bytes) == Some(keys)
    }

    /// Takes the replies that have come whole, to commands that [`Session::take_quickly`] could have sent. False: nothing
    /// has been done.
    pub(super) fn take_replies_quickly(&mut self) -> bool {
        let usual = self.target.is_none()
            && !self.state.monitor
            && !self.state.replica
            && !self.client_gone
            && self.replies.is_between();
        let Some(conn) = self.conn.as_mut().filter(|_| usual) else {
            return false;
        };
        let gone = conn.sent();
        let bytes = conn.inbox.filled();
        let (mut at, mut taken) = (0, 0);
        // When the fenced writes were sent, and how many there were at a time.
        let mut answered: Option<(Instant, u64)> = None;
        let count = |answered: Option<(Instant, u64)>| {
            if let Some((sent, n)) = answered {
                let took = self.heard.saturating_duration_since(sent);
                self.gate.metrics.upstream_seconds.observe_many(took, n);
            }
        };
        for owed in &mut self.owed {
            if owed.ride.ends > gone || owed.muted || owed.queued || !matches!(owed.what, What::Reply) {
                break;
            }
            let Some(len) = short_reply(&bytes[at..]) else {
                break;
            };
            let reply = &bytes[at..at + len];
            if reply == b"+QUEUED\r\n" {
                break;
            }
            if reply[0] != b'-' {
                self.state.welcome = Some(true);
            }
            (at, taken) = (at + len, taken + 1);
            if let (Some(sent), true) = (owed.sent, owed.ride.flight.is_fenced_write()) {
                match &mut answered {
                    Some((at, n)) if *at == sent => *n += 1,
                    _ => count(answered.replace((sent, 1))),
                }
            }
            owed.ride.flight.settle_here();
        }
        if taken == 0 {
            return false;
        }
        count(answered);
        self.reply.tail().extend_from_slice(&bytes[..at]);
        conn.inbox.consume(at);
        self.gone = self.gone.saturating_sub(taken);
        self.owed.drain(..taken);
        if self.owed.is_empty() {
            // The next ones stand where these stood: what was used last is near.
            self.owed.clear();
        }
        self.settle_own();
        true
    }
}

/// Whether judging a command comes to the one claim in `notes`.
fn fences_alone(rules: &RedisRules, act: &Act<'_>, key: Key<'_>, notes: &Notes) -> bool {
    let mut judged = Notes::default();
    rules.judge(act, iter::once(key), &mut judged) == Verdict::Fenced
        && judged.observed.is_empty()
        && (judged.only_claim(), judged.rule) == (notes.only_claim(), notes.rule)
}

fn ask<'c>(claim: &Claimed<'c>, rule: &RedisRule) -> Ask<'c> {
    let fence = &rule.fences[claim.fence];
    Ask::new(
        claim.resource,
        claim.token,
        rule.missing,
        fence.format,
        fence.max_step,
    )
}
