//! To the server: the row of commands in the outbox, each with its flight, and what happens where one is cut.

use std::ops::Range;
use std::time::Instant;

use super::owed::{Named, Names, Owed, What};
use super::{Course, End, Ending, Session};
use crate::base::Reason;
use crate::keeper::{Cut, Flight};
use crate::redis::answer::Refusal;
use crate::upstream::{Ride, Sent};
use crate::wire::resp::write_command;

impl<'k> Session<'_, 'k> {
    /// Sends what the server takes.
    pub(super) fn push_commands(&mut self) -> Result<bool, End> {
        if self.conn.is_none() || self.outbox.is_empty() {
            return Ok(false);
        }
        self.note_admitted();
        let Some(conn) = &mut self.conn else {
            return Ok(false);
        };
        let rides = self
            .owed
            .range_mut(self.gone..)
            .filter(|owed| owed.what.is_the_servers())
            .map(|owed| &mut owed.ride);
        match conn.send_row(rides, &mut self.outbox) {
            Sent::All | Sent::Part => {
                let now = Instant::now();
                self.pushed = now;
                self.note_gone(now);
                Ok(true)
            }
            Sent::Blocked => Ok(false),
            Sent::Cut(cut) => {
                self.cut_next(cut);
                Ok(true)
            }
            Sent::Broken(error) => {
                tracing::debug!(%error, "the backend takes no more");
                // Perhaps it has answered first: reading comes to its end.
                self.outbox.clear();
                self.ending = self.ending.or(Some(Ending::Order));
                Ok(true)
            }
        }
    }

    /// Notes which commands have gone whole.
    fn note_gone(&mut self, now: Instant) {
        let sent = self.conn.as_ref().map_or(0, |conn| conn.sent());
        // Where nothing else is waited for, the server's time begins.
        let mut idle = !self
            .owed
            .range(..self.gone)
            .any(|owed| owed.what.is_the_servers());
        for owed in self.owed.range_mut(self.gone..) {
            if owed.what.is_the_servers() {
                if owed.ride.ends > sent {
                    return;
                }
                owed.sent = Some(now);
                if std::mem::take(&mut idle) {
                    self.heard = now;
                }
            }
            self.gone += 1;
        }
    }

    /// Puts a command behind those that are on their way.
    pub(super) fn send(
        &mut self,
        what: What,
        flight: Flight<'k>,
        bytes: impl FnOnce(&mut Vec<u8>),
    ) -> &mut Owed<'k> {
        let begins = self.outbox_end();
        if self.outbox.is_empty() {
            self.pushed = Instant::now();
        }
        bytes(self.outbox.tail());
        self.book(what, flight, begins..self.outbox_end())
    }

    /// How many bytes the server has got once it has taken what is in the outbox.
    pub(super) fn outbox_end(&self) -> u64 {
        self.conn.as_ref().map_or(0, |conn| conn.sent()) + self.outbox.len() as u64
    }

    /// Notes the command that stands in the outbox, between these places.
    #[inline(always)]
    pub(super) fn book(&mut self, what: What, flight: Flight<'k>, place: Range<u64>) -> &mut Owed<'k> {
        if self.place.is_none()
            && let Some(place) = flight.enroll()
        {
            self.place = Some(place);
        }
        self.owed.push_back(Owed {
            queued: self.state.queued.is_some() && matches!(what, What::Reply),
            what,
            ride: Ride {
                flight,
                begins: place.start,
                ends: place.end,
            },
            sent: None,
            muted: false,
            names: Names::new(),
        });
        self.owed.back_mut().expect("pushed above")
    }

    /// Something of the gate's own.
    pub(super) fn send_own(&mut self, what: What, words: &[&[u8]]) {
        self.send(what, Flight::unfenced(), |out| {
            write_command(out, words.iter().copied())
        });
    }

    /// Gives up the large command that is being streamed, where nothing that has not gone yet stands before it: those
    /// are asked for when it is their turn.
    pub(super) fn cut_if_stale(&mut self) {
        if let Some(owed) = self.next_to_go()
            && owed.ride.ends == u64::MAX
            && !owed.ride.flight.is_current()
            && owed.ride.flight.is_fenced_write()
        {
            let cut = owed.ride.flight.cut();
            self.cut_next(cut);
        }
    }

    /// The first command that has not gone whole may not go.
    pub(super) fn cut_next(&mut self, cut: Cut) {
        let Some(index) = (self.gone..self.owed.len()).find(|index| self.owed[*index].what.is_the_servers())
        else {
            return;
        };
        let (sent, sealed) = self
            .conn
            .as_ref()
            .map_or((0, 0), |conn| (conn.sent(), conn.stream().sealed()));
        let torn = self.owed[index].ride.begins < sent || sealed > 0;
        // In one record of TLS with it may stand others that could still go.
        let stale = (index..self.owed.len())
            .find(|index| !self.owed[*index].ride.flight.is_current())
            .filter(|_| torn)
            .unwrap_or(index);
        let refusal = self.cut_refusal(cut, &self.owed[stale].names);
        let bytes = self.written(&refusal);
        if torn {
            // Nothing else can follow it.
            self.owed.truncate(index + 1);
            match stale == index {
                true => self.owed[index] = Owed::own(bytes, self.owed[index].muted),
                false => self.owed.truncate(index),
            }
            self.outbox.clear();
            self.ending = Some(Ending::Cut);
            return self.settle_own();
        }
        let owed = &mut self.owed[index];
        // Dropped, it is over: it has not committed.
        owed.ride.flight = Flight::unfenced();
        let (begins, ends) = (owed.ride.begins, owed.ride.ends);
        if matches!(owed.what, What::Exec) {
            self.discard_instead(index, bytes);
            return self.settle_own();
        }
        owed.what = What::Own(bytes);
        if ends == u64::MAX {
            self.outbox.clear();
            if self.course == Course::Streaming {
                self.course = Course::Skipping;
            }
        } else {
            let len = ends - begins;
            self.outbox
                .consume(usize::try_from(len).unwrap_or(usize::MAX).min(self.outbox.len()));
            for later in self
                .owed
                .range_mut(index + 1..)
                .filter(|owed| owed.what.is_the_servers())
            {
                later.ride.begins -= len;
                if later.ride.ends != u64::MAX {
                    later.ride.ends -= len;
                }
            }
        }
        self.settle_own();
    }

    /// The queue at the server is thrown away. Nothing stands behind an EXEC.
    fn discard_instead(&mut self, index: usize, refusal: Vec<u8>) {
        self.outbox.clear();
        self.owed.truncate(index);
        self.state.queued = None;
        self.send_own(What::Swallowed, &[b"DISCARD"]);
        self.owed.push_back(Owed::own(refusal, self.state.mute));
    }

    fn cut_refusal(&self, cut: Cut, names: &[Named]) -> Refusal {
        let (mut refusal, index) = match cut {
            Cut::Stale { index, highest } => {
                let mut refusal = Refusal::new(Reason::StaleToken, "");
                refusal.highest = self.show_highest(names.get(index), highest);
                (refusal, index)
            }
            Cut::Fenced { index } => {
                let detail = "the resource is fenced by now, and the connection presents no token";
                (Refusal::new(Reason::MissingToken, detail), index)
            }
            Cut::Reset => (
                Refusal::new(Reason::Draining, "an operator resets the mark of this resource"),
                0,
            ),
            Cut::NotOwner => (super::admit::not_owner(), 0),
        };
        self.name(&mut refusal, names.get(index));
        refusal
    }

    /// Why a command that was woken got no result.
    pub(super) fn woken_refusal(&self, owed: &Owed<'k>) -> Refusal {
        if owed.ride.flight.is_current() {
            return Refusal::new(Reason::Draining, "the gate is being stopped");
        }
        self.cut_refusal(owed.ride.flight.cut(), &owed.names)
    }
}
