//! Waiting: for which of the four directions, for whose sake, and for how long.

use std::collections::HashSet;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use smallvec::SmallVec;

use super::owed::{Owed, What};
use super::{Course, End, Session};
use crate::base::Reason;
use crate::keeper::Watch;

/// What ended a wait.
enum Woken {
    Ready,
    Lapsed(End),
    /// A raise waits for, or cuts, the command that was watched.
    Shut,
    /// The gate closes.
    Closing,
    Late,
}

/// A client that was woken may not have waited yet: it is tried again after so long.
const AGAIN: Duration = Duration::from_millis(20);

impl Session<'_, '_> {
    /// Nothing can be moved: waits until something can.
    pub(super) async fn wait(&mut self) -> Result<(), End> {
        let resting = self.is_resting();
        if resting && self.gate.is_closing() {
            return Err(End::Order);
        }
        let late = self.reply_deadline();
        let idle_until = self
            .gate
            .listener
            .idle_timeout
            .filter(|_| resting)
            .map(|timeout| Instant::now() + timeout);
        let mut watches = self.watched();
        let blocked = self.is_blocked();
        let gate = self.gate;
        let mut told = pin!(gate.told.notified());
        if resting {
            self.idle.rest();
        }
        let woken = poll_fn(|cx| {
            if watches.iter_mut().any(|watch| watch.poll_shut(cx).is_ready()) {
                return Poll::Ready(Woken::Shut);
            }
            if blocked && (gate.is_closing() || told.as_mut().poll(cx).is_ready()) {
                return Poll::Ready(Woken::Closing);
            }
            if let Poll::Ready(lapsed) = self.poll_lapsed(cx) {
                return Poll::Ready(Woken::Lapsed(lapsed));
            }
            let mut ready = self.poll_relay(cx).is_ready();
            if self.wants_input() {
                ready |= self.stream.poll_read_ready(cx).is_ready();
            }
            if ready {
                return Poll::Ready(Woken::Ready);
            }
            match late.into_iter().chain(idle_until).min() {
                Some(deadline) => self.alarm.poll(cx, deadline).map(|()| Woken::Late),
                None => Poll::Pending,
            }
        })
        .await;
        if resting && !self.idle.wake() {
            // The task is about to be ended; nothing has begun.
            return Err(End::Order);
        }
        match woken {
            Woken::Ready => Ok(()),
            Woken::Lapsed(end) => Err(end),
            Woken::Shut => {
                self.shut();
                Ok(())
            }
            // Nothing stands behind a command that waits, and one that no fence binds leaves nothing in doubt.
            Woken::Closing if !self.owed.iter().any(|owed| owed.ride.flight.is_fenced_write()) => {
                Err(End::Order)
            }
            Woken::Closing => {
                self.waking = Some(Instant::now());
                Ok(())
            }
            Woken::Late if idle_until.is_some_and(|at| at <= Instant::now()) => Err(End::Order),
            Woken::Late => self.give_up_late(),
        }
    }

    /// Between two commands, with nothing on its way: the connection can be closed at once. A command that has not come
    /// whole, and of which the server has nothing, has not begun.
    fn is_resting(&self) -> bool {
        self.owed.is_empty()
            && self.reply.is_empty()
            && (self.inbox.is_empty() || self.hungry)
            && self.course == Course::Commands
            && self.replies.is_between()
    }

    /// Everything but the client's commands.
    pub(super) fn poll_relay(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let mut ready = false;
        if !self.reply.is_empty() && !self.client_gone {
            ready |= self.stream.poll_write_ready(cx).is_ready();
        }
        if let Some(conn) = &self.conn {
            if !self.outbox.is_empty() {
                ready |= conn.stream().poll_write_ready(cx).is_ready();
            }
            if self.wants_replies() {
                ready |= conn.stream().poll_read_ready(cx).is_ready();
            }
        }
        match ready {
            true => Poll::Ready(()),
            false => Poll::Pending,
        }
    }

    /// Ready once this instance has ceased to be the owner while something fenced was on its way.
    pub(super) fn poll_lapsed(&mut self, cx: &mut Context<'_>) -> Poll<End> {
        match &mut self.place {
            Some(place) => place.poll_lapsed(cx).map(|()| End::Lost(Reason::NotOwner)),
            None => Poll::Pending,
        }
    }

    /// Only who waits registers: a command that can still be cut, one that waits for others, and all whose replies the
    /// client doesn't take.
    pub(super) fn watched(&self) -> SmallVec<[Watch; 1]> {
        let is_fenced = |owed: &&Owed<'_>| owed.ride.flight.is_fenced_write();
        let unsent = self.next_to_go().filter(is_fenced);
        let blocked = || self.owed.front().filter(|_| self.is_blocked()).filter(is_fenced);
        let first = unsent.or_else(blocked);
        let mut watched: SmallVec<[Watch; 1]> =
            first.map(|owed| owed.ride.flight.watch()).into_iter().collect();
        if !self.wants_replies() {
            // A raise may wait for any of them: one of each resource tells of it.
            let mut seen = HashSet::new();
            let untaken = self.owed.iter().take(self.gone).filter(is_fenced);
            let first = untaken.filter(|owed| owed.names.iter().any(|named| seen.insert(named.resource())));
            watched.extend(first.map(|owed| owed.ride.flight.watch()));
        }
        watched
    }

    /// The first command that has not gone to the server whole. Those behind it are looked at when it is their turn.
    pub(super) fn next_to_go(&self) -> Option<&Owed<'_>> {
        let left = self.owed.range(self.gone.min(self.owed.len())..);
        left.into_iter().find(|owed| owed.what.is_the_servers())
    }

    pub(super) fn is_blocked(&self) -> bool {
        matches!(
            self.owed.front(),
            Some(Owed {
                what: What::Blocking { .. },
                ..
            })
        ) && self.gone > 0
            && self.waking.is_none()
    }

    pub(super) fn shut(&mut self) {
        let next = self
            .next_to_go()
            .filter(|owed| owed.ride.flight.is_fenced_write() && !owed.ride.flight.is_current());
        if let Some(owed) = next {
            let cut = owed.ride.flight.cut();
            self.cut_next(cut);
        } else if self.is_blocked() {
            self.waking = Some(Instant::now());
        } else {
            // A client that doesn't read its replies holds nobody up.
            self.client_gone = true;
        }
    }

    /// Until when the server has to say something.
    pub(super) fn reply_deadline(&self) -> Option<Instant> {
        let first = self.owed.front()?;
        let Some(sent) = first.sent else {
            // It takes nothing, or the client doesn't go on.
            return (!self.outbox.is_empty()).then(|| self.pushed + self.gate.listener.response_timeout);
        };
        let since = match &first.what {
            What::Blocking { .. } => self.waking?,
            _ if !self.wants_replies() => return None,
            _ => sent.max(self.heard),
        };
        Some(since + self.gate.listener.response_timeout)
    }

    /// The server has said nothing for too long: what it was sent is in doubt.
    pub(super) fn give_up_late(&self) -> Result<(), End> {
        match self.reply_deadline() {
            Some(deadline) if deadline <= Instant::now() => Err(End::Lost(Reason::UpstreamTimeout)),
            Some(_) | None => Ok(()),
        }
    }

    /// A raise waits for a command that waits for others: has it woken, and waits for its reply.
    pub(super) async fn wake_blocked(&mut self) -> Result<(), End> {
        let Some(Owed {
            what: What::Blocking { woken },
            ..
        }) = self.owed.front_mut()
        else {
            self.waking = None;
            return Ok(());
        };
        *woken = true;
        let Some(Some(id)) = self.state.client_id else {
            tracing::info!(
                "a command that waits can't be woken: the backend does not tell the connection's number"
            );
            return Err(End::Lost(Reason::UpstreamFailed));
        };
        let core = self.core;
        let mut asking = pin!(core.asker.unblock(id));
        let far = Instant::now() + self.gate.listener.response_timeout;
        match self.drive(far, |cx| asking.as_mut().poll(cx)).await? {
            Some(Ok(_)) => {}
            Some(Err(error)) => {
                tracing::warn!(%error, "a command that waits can't be woken");
                return Err(End::Lost(Reason::UpstreamFailed));
            }
            None => return Err(End::Lost(Reason::UpstreamTimeout)),
        }
        if self.waking.is_some() {
            self.drive::<()>(Instant::now() + AGAIN, |_| Poll::Pending)
                .await?;
        }
        Ok(())
    }
}
