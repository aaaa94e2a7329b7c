//! Waiting: for which of the four directions, for whose sake, and for how long.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use tokio::sync::futures::Notified;

use super::{Session, Stop, Up};
use crate::base::Reason;
use crate::keeper::Cut;

/// What ended a wait.
enum Woken {
    Ready,
    Shut,
    Disowned,
    Late(Late),
}

/// Which deadline is over.
#[derive(Clone, Copy)]
enum Late {
    /// There was none.
    Never,
    /// It has room that it may not need.
    Quiet,
    /// The backend did not close its side.
    Silent,
    Idle,
    /// A stop waits for it.
    Stopping,
}

/// A session that is quiet for so long gives its room away, and is ended where a stop waits for it.
const QUIET: Duration = Duration::from_secs(1);
/// Where nothing is to come to pass by time alone.
const FAR: Duration = Duration::from_secs(3600);

impl Session<'_, '_> {
    /// Nothing can be moved: waits until something can, a fence shuts, or time is over.
    pub(super) async fn wait(&mut self, mut told: Pin<&mut Notified<'_>>) -> Result<(), Stop> {
        if let Some(flight) = &self.flight {
            if self.place.is_none() {
                self.place = flight.enroll();
            }
            let committed = flight.is_committed();
            let watches = self.watch.is_some() && self.watched_as == committed;
            if !watches && flight.is_fenced_write() && !self.was_cut {
                (self.watch, self.watched_as) = (Some(flight.watch()), committed);
            }
        }
        if self.resting {
            self.core.spare.take_back(&mut self.outbox);
            self.core.spare.take_back(&mut self.reply);
        }
        self.stopping = self.gate.closing.since().is_some();
        let (deadline, late) = self.deadline();
        let woken = poll_fn(|cx| self.poll_wait(cx, deadline, late, told.as_mut())).await;
        match (woken, &self.flight) {
            (Woken::Ready, _) | (Woken::Shut | Woken::Disowned, None) => Ok(()),
            (Woken::Shut, Some(flight)) => self.cut(flight.cut()),
            (Woken::Disowned, Some(_)) => self.cut(Cut::NotOwner),
            (Woken::Late(late), _) => self.late(late),
        }
    }

    fn poll_wait(
        &mut self,
        cx: &mut Context<'_>,
        deadline: Instant,
        late: Late,
        told: Pin<&mut Notified<'_>>,
    ) -> Poll<Woken> {
        if let Some(watch) = &mut self.watch
            && watch.poll_shut(cx).is_ready()
        {
            return Poll::Ready(Woken::Shut);
        }
        if self.flight.is_some()
            && let Some(place) = &mut self.place
            && place.poll_lapsed(cx).is_ready()
        {
            return Poll::Ready(Woken::Disowned);
        }
        let mut ready = false;
        if let Some(client) = &self.client {
            ready |= self.wants_client() && client.poll_read_ready(cx).is_ready();
            ready |= !self.reply.is_empty() && client.poll_write_ready(cx).is_ready();
        }
        let stream = self.conn.stream();
        ready |= !self.outbox.is_empty() && stream.poll_write_ready(cx).is_ready();
        ready |= self.wants_backend() && stream.poll_read_ready(cx).is_ready();
        // A stop that begins only changes what is waited for.
        ready |= !self.stopping && told.poll(cx).is_ready();
        if ready {
            return Poll::Ready(Woken::Ready);
        }
        self.alarm.poll(cx, deadline).map(|()| Woken::Late(late))
    }

    /// What time is waited for, and whose it is.
    fn deadline(&self) -> (Instant, Late) {
        let mut first = (Instant::now() + FAR, Late::Never);
        let mut sooner = |at: Instant, late| {
            if at < first.0 {
                first = (at, late);
            }
        };
        if let Up::Ended(at) = self.up
            && (self.client.is_none() || self.stopped)
        {
            // A stop waits for what the backend still says, and not for one that says nothing.
            let since = if self.stopped { at.max(self.moved_at) } else { at };
            sooner(since + self.gate.listener.upstream.settle_after, Late::Silent);
        }
        if !self.resting {
            sooner(self.moved_at + QUIET, Late::Quiet);
        }
        if let Some(idle_timeout) = self.gate.listener.limits.idle_timeout {
            sooner(self.moved_at + idle_timeout, Late::Idle);
        }
        if let (Some(since), false) = (self.gate.closing.since(), self.stopped) {
            sooner(since + self.gate.closing.patience, Late::Stopping);
            if self.outbox.is_empty() && self.reply.is_empty() {
                sooner(self.moved_at.max(since) + QUIET, Late::Stopping);
            }
        }
        first
    }

    fn late(&mut self, late: Late) -> Result<(), Stop> {
        match late {
            Late::Never => Ok(()),
            Late::Quiet => {
                self.resting = true;
                Ok(())
            }
            Late::Silent => Err(Stop::lost(
                Reason::UpstreamTimeout,
                "the backend did not close its side within settle_after",
            )),
            Late::Idle if self.client.is_some() => {
                self.moved_at = Instant::now();
                self.drop_client();
                Ok(())
            }
            Late::Idle => Err(Stop::lost(
                Reason::UpstreamTimeout,
                "nothing moved within idle_timeout",
            )),
            // As at the client's end: what the backend still says goes to it.
            Late::Stopping => {
                self.stopped = true;
                if self.up == Up::Open {
                    self.up = Up::Ending;
                }
                Ok(())
            }
        }
    }
}
