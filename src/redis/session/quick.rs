//! The way of nearly every command and of its reply, in one go: nothing is awaited, refused or asked of the server.
//!
//! Whatever is unusual is left as it was found, for `commands.rs` and `down.rs`. A command is found, judged and admitted
//! here by what they call too, so that both ways decide the same; what is saved is the room that waiting needs.

use std::time::Instant;

use smallvec::{SmallVec, smallvec};

use super::Session;
use super::owed::{Named, Names, What};
use super::words::{special, waits};
use crate::keeper::{Ask, Flight};
use crate::observe::Decision;
use crate::rules::redis::{Access, Act, Claimed, Command, Key, RedisRule, Touched, Verdict};
use crate::rules::{Mode, Sender};
use crate::wire::resp::{Read, short_reply};

/// Names whose room is used again.
const SPARE_MAX: usize = 64;

/// Which words are keys, and what is done with each.
type Keys = SmallVec<[(usize, Access); 4]>;

impl<'k> Session<'_, 'k> {
    /// Puts the next command on its way, where that is all there is to do. False: nothing has been done.
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
        let Ok(Read::Command(len)) = self.requests.read(self.inbox.filled()) else {
            return false;
        };
        if self.requests.is_line() {
            return false;
        }
        self.admit_quickly(len)
    }

    /// Puts the command that was read last behind those that are on their way; it has `len` bytes.
    #[inline(always)] // as what a flight is made by
    fn forward(&mut self, len: usize, flight: Flight<'k>, names: Names) {
        let begins = self.outbox_end();
        if self.outbox.is_empty() {
            self.pushed = Instant::now();
        }
        self.outbox.tail().extend_from_slice(&self.inbox.filled()[..len]);
        self.inbox.consume(len);
        self.book(What::Reply, flight, begins..begins + len as u64, names);
    }

    /// The command that was read last goes where that takes no more than a look.
    fn admit_quickly(&mut self, len: usize) -> bool {
        let gate = self.gate;
        let rules = &gate.listener.rules;
        let word = |index: usize| self.requests.word(self.inbox.filled(), index);
        let (Some(table), Some(first)) = (&self.table, word(0)) else {
            return false;
        };
        let Some(command) = table.find(first, word(1)) else {
            return false;
        };
        let (keys, write) = match command.usual {
            Some(usual) if word(usual.key).is_some() => {
                let access = if usual.changes {
                    Access::Write
                } else {
                    Access::Read
                };
                (smallvec![(usual.key, access)], usual.write)
            }
            Some(_) => return false,
            None => match self.keys_of(command) {
                Some(keys) => (keys, command.writes()),
                None => return false,
            },
        };
        debug_assert_eq!(self.keys_of(command).as_ref(), Some(&keys), "{command:?}");
        let act = Act {
            name: &command.name,
            write,
            undeclared: false,
            identity: &self.state.identity,
            from: Sender {
                ip: self.peer.ip,
                cert: self.peer.cert.as_ref(),
            },
        };
        let keys = keys.iter().map(|(at, access)| Key {
            name: word(*at).expect("a key is one of the words"),
            write: write && *access == Access::Write,
        });
        match rules.judge(&act, keys, &mut self.notes) {
            Verdict::Refused(_) => false,
            // What would have been refused is told of.
            _ if !self.notes.observed.is_empty() => false,
            Verdict::Pass => {
                gate.count_free(&self.notes);
                self.forward(len, Flight::unfenced(), Names::new());
                true
            }
            Verdict::Fenced if self.notes.claims().len() == 1 => self.admit_one(len, write),
            Verdict::Fenced => self.admit_several(len, write),
        }
    }

    /// By the one claim in the notes.
    fn admit_one(&mut self, len: usize, write: bool) -> bool {
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
        let decisions = gate.decisions(Some(claim.rule));
        match claim.token {
            Some(_) => decisions.count(Decision::Admitted),
            None => decisions.count_free(true),
        }
        // Nothing is said of a read that has been admitted.
        let mut names = Names::new();
        if write {
            names = self.spare_names.pop().unwrap_or_default();
            names.truncate(1);
            match names.first_mut() {
                Some(named) => named.turn_into(&claim),
                None => names.push(Named::of(&claim)),
            }
        }
        let settle_after = gate.listener.upstream.settle_after;
        self.forward(len, flight.settles_after(settle_after), names);
        true
    }

    /// By all claims in the notes.
    fn admit_several(&mut self, len: usize, write: bool) -> bool {
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
        self.forward(len, flight.settles_after(settle_after), names);
        true
    }

    /// The keys of the command that was read last, where they are all there is to know of it.
    fn keys_of(&self, command: &Command) -> Option<Keys> {
        let words: SmallVec<[&[u8]; 8]> = self.requests.words(self.inbox.filled()).collect();
        if special(&words).is_some() || waits(&command.name, command.flags.blocking, &words) {
            return None;
        }
        match command.touched(&words, words.len()) {
            Touched::Keys(keys) if !keys.is_empty() => Some(keys),
            Touched::Keys(_) | Touched::Unclear | Touched::Later => None,
        }
    }

    /// Takes a reply that has come whole, to a command that [`Session::take_quickly`] could have sent. False: nothing has
    /// been done.
    pub(super) fn take_reply_quickly(&mut self) -> bool {
        let usual = self.target.is_none()
            && !self.state.monitor
            && !self.state.replica
            && !self.client_gone
            && self.replies.is_between();
        let (Some(conn), Some(first)) = (&mut self.conn, self.owed.front()) else {
            return false;
        };
        let whole = first.ride.ends <= conn.sent();
        if !usual || !whole || first.muted || first.queued || !matches!(first.what, What::Reply) {
            return false;
        }
        let bytes = conn.inbox.filled();
        let Some(len) = short_reply(bytes) else {
            return false;
        };
        let reply = &bytes[..len];
        if reply == b"+QUEUED\r\n" {
            return false;
        }
        if reply[0] != b'-' {
            self.state.welcome = Some(true);
        }
        self.reply.tail().extend_from_slice(reply);
        conn.inbox.consume(len);
        self.gone = self.gone.saturating_sub(1);
        let Some(owed) = self.owed.pop_front() else {
            return true;
        };
        if self.owed.is_empty() {
            // The next ones stand where these stood: what was used last is near.
            self.owed.clear();
        }
        if let (Some(sent), true) = (owed.sent, owed.ride.flight.is_fenced_write()) {
            match &mut self.answered {
                Some((at, n)) if *at == sent => *n += 1,
                _ => {
                    self.note_answered();
                    self.answered = Some((sent, 1));
                }
            }
        }
        owed.ride.flight.settle();
        if !owed.names.is_empty() && self.spare_names.len() < SPARE_MAX {
            self.spare_names.push(owed.names);
        }
        self.settle_own();
        true
    }

    /// Counts how long the replies took that have come at once.
    pub(super) fn note_answered(&mut self) {
        if let Some((sent, n)) = self.answered.take() {
            let took = self.heard.saturating_duration_since(sent);
            self.gate.metrics.upstream_seconds.observe_many(took, n);
        }
    }
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
