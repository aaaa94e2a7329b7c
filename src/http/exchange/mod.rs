//! One request on its way to the backend and its answer on the way back: one task drives both sockets.
//!
//! The loop moves what can be moved in the four directions and waits only when nothing did. Its way out is always
//! an [`Ended`]; the flight is settled, lost or cut on each of them (a flight that is dropped takes care of
//! itself).
//!
//! `up.rs` takes the request to the backend, `down.rs` the answer to the client, `wait.rs` knows what is waited for
//! and for how long; `tunnel.rs` is what becomes of an upgraded connection.

mod down;
mod tunnel;
mod up;
mod wait;

use std::time::Instant;

use super::answer::{Answer, Applied};
use super::client::Side;
use super::request::{Facts, Upload};
use super::{Core, Gate};
use crate::base::Reason;
use crate::keeper::{Cut, Flight, Lost, Place, Watch};
use crate::rules::{Rule, Scratch};
use crate::upstream::Conn;
use crate::wire::http1::{BodyReader, Framing};

/// How an exchange ended.
#[derive(Debug)]
pub enum Ended<'k> {
    /// The whole answer went to the client.
    Answered {
        /// The connection can take another request.
        keep: bool,
        /// The backend's connection, where it is this client's alone from now on.
        own: Option<Conn>,
    },
    /// The backend answered before the request was through; the answer went to the client, and the rest of the
    /// request is still to come.
    AnsweredEarly,
    /// The client has left, or does not read.
    ClientGone,
    /// The answer broke off after its head had gone to the client.
    Broken,
    /// A newer holder came before the commit point. Nothing has gone to the client.
    Cut {
        /// Why.
        cut: Cut,
        /// How much of the body had come.
        upload: Upload,
    },
    /// It failed, and nothing has gone to the client.
    Failed {
        /// What to tell it.
        answer: Answer,
        /// How much of the body had come.
        upload: Upload,
    },
    /// Not one byte was taken by a connection that turned out to be closed: it may be sent on another.
    Unsent {
        /// The flight, not committed.
        flight: Flight<'k>,
        /// How much of the body had come.
        upload: Upload,
    },
    /// A read got no answer on a connection that turned out to be closed: it may be sent again.
    Unanswered {
        /// The flight.
        flight: Flight<'k>,
    },
}

/// What is known of a request.
#[derive(Clone, Copy, Debug)]
pub struct About<'a> {
    facts: Facts,
    names: &'a Scratch,
    rule: Option<&'a Rule>,
}

impl<'a> About<'a> {
    /// A request's head, what it names and the rule that it falls under. The last two are for those who are told of a
    /// doubt.
    #[must_use]
    pub fn of(facts: Facts, names: &'a Scratch, rule: Option<&'a Rule>) -> About<'a> {
        About { facts, names, rule }
    }
}

/// A request under way.
#[derive(Debug)]
pub struct Exchange<'a, 'k> {
    gate: &'a Gate,
    core: &'a Core,
    side: &'a mut Side,
    names: &'a Scratch,
    rule: Option<&'a Rule>,
    facts: Facts,
    upload: Upload,
    /// `None` once it is over: settled, or lost.
    flight: Option<Flight<'k>>,
    /// `None` once it is given up, or given back.
    conn: Option<Conn>,
    answer: Progress,
    /// Wakes this task when a fence of the flight shuts.
    watch: Option<Watch>,
    /// Wakes this task when this instance ceases to be the owner.
    place: Option<Place>,
    first_byte: bool,
    /// Nothing more is sent to the backend: it has answered, or does not take it.
    stop_sending: bool,
    /// The client is waiting for a 100 that it has not got yet.
    owes_continue: bool,
    client_gone: bool,
    keep_client: bool,
    /// A raise waits for the end of this answer.
    raise_waits: Option<RaiseWait>,
    /// Bytes that the client has taken.
    taken: usize,
    /// When the last byte of the request had been taken.
    sent_at: Option<Instant>,
    moved: Moved,
}

/// When something last moved, by direction: what the time-outs count from.
#[derive(Clone, Copy, Debug)]
struct Moved {
    from_client: Instant,
    to_client: Instant,
    to_backend: Instant,
    from_backend: Instant,
}

/// A raise that waits for the end of an answer.
#[derive(Clone, Copy, Debug)]
struct RaiseWait {
    since: Instant,
    /// From here on the client's reading is measured, and what it had taken then.
    window: (Instant, usize),
}

/// How far the answer has come.
#[derive(Debug)]
enum Progress {
    /// Its head is awaited; so many bytes of it were searched for its end.
    Head { searched: usize },
    /// Its body is on its way.
    Body {
        reader: BodyReader,
        from: Framing,
        to: Framing,
        reusable: bool,
        /// The backend's connection was authenticated as a whole.
        bound: bool,
        doubtful: bool,
    },
    /// The backend speaks another protocol from now on.
    Switched,
    /// It has come whole.
    Done,
}

/// What a step of the loop did.
enum Step<'k> {
    Moved,
    Blocked,
    End(Ended<'k>),
}

/// Rounds in which something moved before others get their turn.
const BUSY_MAX: u32 = 16;

impl<'a, 'k> Exchange<'a, 'k> {
    /// An exchange about to begin; the outbox holds what has come of the request.
    #[must_use]
    pub fn new(
        gate: &'a Gate,
        core: &'a Core,
        side: &'a mut Side,
        About { facts, names, rule }: About<'a>,
        upload: Upload,
        flight: Flight<'k>,
        conn: Conn,
    ) -> Self {
        let now = Instant::now();
        Exchange {
            gate,
            core,
            side,
            names,
            rule,
            facts,
            first_byte: facts.write && (facts.is_partial || gate.commits_at_first_byte()),
            owes_continue: facts.expect_continue && !upload.is_done(),
            upload,
            flight: Some(flight),
            conn: Some(conn),
            answer: Progress::Head { searched: 0 },
            watch: None,
            place: None,
            stop_sending: false,
            client_gone: false,
            keep_client: facts.keep_alive,
            raise_waits: None,
            taken: 0,
            sent_at: None,
            moved: Moved {
                from_client: now,
                to_client: now,
                to_backend: now,
                from_backend: now,
            },
        }
    }

    /// Runs it to its end.
    pub async fn run(mut self) -> Ended<'k> {
        let mut busy = 0;
        loop {
            let mut moved = false;
            for step in [
                Self::pull_request,
                Self::push_request,
                Self::pull_answer,
                Self::push_answer,
            ] {
                match step(&mut self) {
                    Step::Moved => moved = true,
                    Step::Blocked => {}
                    Step::End(ended) => return ended,
                }
            }
            if matches!(self.answer, Progress::Switched) {
                return self.tunnel().await;
            }
            if matches!(self.answer, Progress::Done) && (self.side.reply.is_empty() || self.client_gone) {
                return self.answered();
            }
            if !moved {
                busy = 0;
                if let Some(ended) = self.wait().await {
                    return ended;
                }
                continue;
            }
            busy += 1;
            if busy % BUSY_MAX == 0 {
                // A stream that is never short of bytes never waits: others on this core get their turn, and a
                // newer holder is heard.
                tokio::task::yield_now().await;
                if let Some(ended) = self.cut_if_stale() {
                    return ended;
                }
            }
        }
    }

    fn cut_if_stale(&mut self) -> Option<Ended<'k>> {
        let flight = self.flight.as_ref()?;
        let stale = flight.is_fenced_write() && !flight.is_committed() && !flight.is_current();
        let cut = stale.then(|| flight.cut())?;
        Some(self.cut(cut))
    }

    fn answered(&mut self) -> Ended<'k> {
        match (self.client_gone, self.stop_sending) {
            (true, _) => Ended::ClientGone,
            (false, true) => Ended::AnsweredEarly,
            (false, false) => Ended::Answered {
                keep: self.keep_client,
                own: self.conn.take(),
            },
        }
    }

    /// The answer is lost: a committed flight is in doubt from now on, and the connection is reset.
    fn lose(&mut self, reason: Reason, what: &str) -> Ended<'k> {
        let committed = self.flight.as_ref().is_some_and(Flight::is_committed);
        let sent = self.facts.write && (self.sent_at.is_some() || committed);
        self.watch = None;
        self.conn = None;
        self.lose_flight(reason.as_str());
        if self.client_gone {
            return Ended::ClientGone;
        }
        if !matches!(self.answer, Progress::Head { .. }) || !self.side.reply.is_empty() {
            return Ended::Broken;
        }
        let mut answer = Answer::new(reason, what);
        if sent {
            answer.applied = Applied::Unknown;
        }
        Ended::Failed {
            answer,
            upload: self.take_upload(),
        }
    }

    fn lose_flight(&mut self, reason: &'static str) {
        let Some(flight) = self.flight.take() else { return };
        let names = self.names;
        flight.lose_known(&Lost {
            reason,
            listener: &self.gate.listener.name,
            rule: self.rule.map(|rule| &*rule.name),
            resource: &|index| names.claim(index).map(|claim| (claim.resource, claim.format)),
        });
    }

    /// Its flight may not commit: the connection is reset with what it holds, and the client is told at once.
    fn cut(&mut self, cut: Cut) -> Ended<'k> {
        self.watch = None;
        self.conn = None;
        self.flight = None;
        Ended::Cut {
            cut,
            upload: self.take_upload(),
        }
    }

    /// The request turned out to be malformed on its way.
    fn fail(&mut self, answer: Answer) -> Ended<'k> {
        let Ended::Failed { answer: lost, upload } = self.lose(answer.reason, "") else {
            return Ended::Broken;
        };
        Ended::Failed {
            answer: Answer {
                applied: lost.applied,
                ..answer
            },
            upload,
        }
    }

    fn take_upload(&mut self) -> Upload {
        std::mem::replace(&mut self.upload, Upload::new(Framing::None, 0))
    }
}
