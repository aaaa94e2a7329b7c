//! The way of nearly every command and of its reply, in one go: nothing is awaited, refused or asked of the server.
//!
//! Whatever is unusual is left as it was found, for `commands.rs` and `down.rs`. A command is found, judged and admitted
//! here by what they call too, so that both ways decide the same; what is saved is the room that waiting needs.

use smallvec::SmallVec;

use super::Session;
use super::owed::{Named, Names, What};
use super::words::{special, waits};
use crate::keeper::{Ask, Flight};
use crate::rules::redis::{Access, Act, Key, Touched, Verdict};
use crate::rules::{Mode, Sender};
use crate::wire::resp::{Read, short_reply};

/// Names whose room is used again.
const SPARE_MAX: usize = 64;

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
        let Some((flight, names)) = self.admit_quickly() else {
            return false;
        };
        // Out of the session for the moment in which it is copied.
        let mut inbox = std::mem::take(&mut self.inbox);
        let owed = self.send(What::Reply, flight, |out| {
            out.extend_from_slice(&inbox.filled()[..len]);
        });
        owed.names = names;
        inbox.consume(len);
        self.inbox = inbox;
        true
    }

    /// The flight of the command that was read last; `None` where that takes more than a look.
    fn admit_quickly(&mut self) -> Option<(Flight<'k>, Names)> {
        let (gate, keeper) = (self.gate, self.keeper);
        let rules = &gate.listener.rules;
        if self.requests.is_line() {
            return None;
        }
        let words: SmallVec<[&[u8]; 8]> = self.requests.words(self.inbox.filled()).collect();
        let command = self.table.as_ref()?.find(words[0], words.get(1).copied())?;
        if special(&words).is_some() || waits(&command.name, command.flags.blocking, &words) {
            return None;
        }
        let Touched::Keys(keys) = command.touched(&words, words.len()) else {
            return None;
        };
        if keys.is_empty() {
            return None;
        }
        let write = command.writes();
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
            name: words[*at],
            write: write && *access == Access::Write,
        });
        let verdict = rules.judge(&act, keys, &mut self.notes);
        let notes = &self.notes;
        let enforces = |rule: usize| rules.rules[rule].mode == Mode::Enforce;
        if !notes.observed.is_empty() || !notes.claims().all(|claim| enforces(claim.rule)) {
            return None;
        }
        match verdict {
            Verdict::Refused(_) => return None,
            Verdict::Pass => {
                gate.count_free(notes);
                return Some((Flight::unfenced(), Names::new()));
            }
            Verdict::Fenced => {}
        }
        let asks: SmallVec<[Ask<'_>; 2]> = notes
            .claims()
            .map(|claim| {
                let rule = &rules.rules[claim.rule];
                let fence = &rule.fences[claim.fence];
                Ask::new(
                    claim.resource,
                    claim.token,
                    rule.missing,
                    fence.format,
                    fence.max_step,
                )
            })
            .collect();
        let flight = keeper.quick(&asks, write)?;
        gate.count_through(notes.claims().map(|claim| (claim.rule, claim.token)), false);
        let names = notes.claims().map(|claim| {
            let mut resource = self.spare_names.pop().unwrap_or_default();
            resource.clear();
            resource.push_str(claim.resource);
            Named {
                resource,
                token: claim.token,
                rule: claim.rule,
                fence: claim.fence,
            }
        });
        let names = names.collect();
        Some((flight.settles_after(gate.listener.upstream.settle_after), names))
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
        let Some(mut owed) = self.owed.pop_front() else {
            return true;
        };
        if let (Some(sent), true) = (owed.sent, owed.ride.flight.is_fenced_write()) {
            let took = self.heard.saturating_duration_since(sent);
            self.gate.metrics.upstream_seconds.observe(took);
        }
        owed.ride.flight.settle();
        for named in owed.names.drain(..) {
            if self.spare_names.len() < SPARE_MAX {
                self.spare_names.push(named.resource);
            }
        }
        self.settle_own();
        true
    }
}
