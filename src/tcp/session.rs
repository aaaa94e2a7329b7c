//! A session under way: bytes both ways, until the backend has closed its side.
//!
//! Every byte counts, since nothing tells where an effect begins: the session commits with its first byte, and from
//! then on the flight is asked before each read from the client and each write to the backend. A newer holder cuts
//! it: its client is reset, no more is read, and the backend reads an end. It is settled once the backend has closed
//! its side after that; whatever else ends it leaves a doubt. Where bytes had been read that the backend's socket has
//! not taken, an end would make a torn stream look whole: then the connection is reset instead.
//!
//! `wait.rs` knows what is waited for, and for how long, `freight.rs` holds what was read and not taken yet.

mod freight;
mod wait;

use std::io;
use std::pin::pin;
use std::time::Instant;

use self::freight::Freight;
use super::entry::Entry;
use super::{Core, Gate};
use crate::base::{Buf, Reason};
use crate::keeper::{Cut, Flight, Place, Watch};
use crate::net::{Alarm, Stream};
use crate::upstream::{Conn, Sent};

/// How a session ended.
pub enum Ended {
    /// The backend has closed its side after ours: nothing of it takes effect any more.
    Settled,
    /// It had sent nothing.
    Cut {
        /// The client, to be told.
        client: Option<Stream>,
        /// Why.
        cut: Cut,
    },
    /// It broke off.
    Lost {
        /// The client, to be told.
        client: Option<Stream>,
        /// Why.
        why: String,
        /// Whether what it sent may still take effect.
        doubtful: bool,
    },
}

/// A session, admitted and connected.
pub struct Session<'a, 'k> {
    /// Who it is, for whoever is told of it.
    entry: &'a Entry<'a>,
    gate: &'a Gate,
    core: &'a Core,
    /// `None` once it is nobody's any more: it was cut, or has left.
    client: Option<Stream>,
    conn: Conn,
    /// `None` once it is over: both sides have ended, and the client has still to take what the backend said.
    flight: Option<Flight<'k>>,
    /// What was read from the client.
    outbox: Freight,
    /// What was read from the backend.
    reply: Freight,
    up: Up,
    down: Down,
    /// Wakes this task when a fence of the flight shuts.
    watch: Option<Watch>,
    /// Whether that is as a flight past its commit point.
    watched_as: bool,
    /// Wakes this task when this instance ceases to be the owner.
    place: Option<Place>,
    alarm: Alarm,
    moved_at: Instant,
    /// A newer holder has cut it: the backend is waited for.
    was_cut: bool,
    /// It holds no room.
    resting: bool,
    /// What is waited for reckons with a stop.
    stopping: bool,
    /// A stop has ended it.
    stopped: bool,
}

/// The way to the backend.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Up {
    Open,
    /// No more is read; what was read goes first.
    Ending,
    /// The backend was told the end, at this moment.
    Ended(Instant),
    /// The backend takes no more: what it says last is still passed on.
    Refused,
}

/// The way to the client.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Down {
    Open,
    /// The backend has closed its side. `settles` where it did so after ours.
    Ended {
        settles: bool,
    },
    /// The client was told so too.
    Told {
        settles: bool,
    },
}

/// Why a step can't go on.
enum Stop {
    Cut(Cut),
    Lost(Reason, String),
}

impl Stop {
    fn lost(reason: Reason, why: &str) -> Stop {
        Stop::Lost(reason, why.to_owned())
    }

    fn broken(error: &io::Error) -> Stop {
        Stop::Lost(
            Reason::UpstreamFailed,
            format!("the backend's connection broke: {error}"),
        )
    }
}

/// Rounds in which something moved before others get their turn.
const BUSY_MAX: u32 = 16;
impl<'a, 'k> Session<'a, 'k> {
    /// A session about to begin; the outbox holds what goes to the backend first.
    pub fn new(
        entry: &'a Entry<'a>,
        mut client: Stream,
        conn: Conn,
        flight: Flight<'k>,
        outbox: Buf,
    ) -> Self {
        // A client must not take it for an end in order if this process ends in the middle.
        client.reset_on_drop();
        conn.stream().keep_alive();
        Session {
            entry,
            gate: entry.gate,
            core: entry.core,
            client: Some(client),
            conn,
            flight: Some(flight),
            outbox: outbox.into(),
            reply: Freight::default(),
            up: Up::Open,
            down: Down::Open,
            watch: None,
            watched_as: false,
            place: None,
            alarm: Alarm::default(),
            moved_at: Instant::now(),
            was_cut: false,
            resting: false,
            stopping: false,
            stopped: false,
        }
    }

    /// Runs it to its end.
    pub async fn run(mut self) -> Ended {
        let gate = self.gate;
        let mut told = pin!(gate.closing.told.notified());
        // Before it is asked whether a stop has begun: what comes after that is heard.
        told.as_mut().enable();
        let mut busy = 0;
        loop {
            let moved = match self.step() {
                Ok(moved) => moved,
                Err(Stop::Cut(cut)) => match self.cut(cut) {
                    Ok(()) => true,
                    Err(stop) => return self.end(stop),
                },
                Err(stop) => return self.end(stop),
            };
            self.settle();
            if self.is_over() {
                return self.finish();
            }
            if moved {
                (self.moved_at, self.resting) = (Instant::now(), false);
                busy += 1;
                if busy % BUSY_MAX == 0 {
                    // A session that is never short of bytes lets others have their turn.
                    tokio::task::yield_now().await;
                }
                continue;
            }
            busy = 0;
            if let Err(stop) = self.wait(told.as_mut()).await {
                return self.end(stop);
            }
        }
    }

    /// Moves what can be moved in the four directions.
    fn step(&mut self) -> Result<bool, Stop> {
        let mut moved = self.pull_client()?;
        moved |= self.push_backend()?;
        moved |= self.pull_backend()?;
        moved |= self.push_client();
        Ok(moved)
    }

    // ---- client → backend

    fn wants_client(&self) -> bool {
        // Only then: what was read and not sent is what a cut would tear.
        self.up == Up::Open && self.outbox.is_empty()
    }

    fn pull_client(&mut self) -> Result<bool, Stop> {
        if !self.wants_client() {
            return Ok(false);
        }
        let (Some(client), Some(flight)) = (&mut self.client, &self.flight) else {
            return Ok(false);
        };
        flight.check().map_err(Stop::Cut)?;
        match self.outbox.read_client(client, &self.core.spare) {
            Ok(0) => {
                self.up = Up::Ending;
                Ok(true)
            }
            Ok(_) => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(false),
            // Also a TLS client that ended without a word: what came may have been cut off by somebody on the way.
            Err(_) => {
                self.drop_client();
                Ok(true)
            }
        }
    }

    fn push_backend(&mut self) -> Result<bool, Stop> {
        if !matches!(self.up, Up::Open | Up::Ending) {
            return Ok(false);
        }
        let mut moved = false;
        if let Some(flight) = &mut self.flight
            && !self.outbox.is_empty()
        {
            match self.outbox.carry(&mut self.conn, flight, self.client.as_ref()) {
                Sent::All | Sent::Part => moved = true,
                Sent::Blocked => {}
                Sent::Cut(cut) => return Err(Stop::Cut(cut)),
                Sent::Broken(error) => {
                    // Perhaps it has said why before it closed.
                    tracing::debug!(%error, "the backend takes no more of a session");
                    self.outbox.clear();
                    self.up = Up::Refused;
                    return Ok(true);
                }
            }
        }
        if self.up == Up::Ending && self.outbox.is_empty() {
            self.end_writes()?;
            moved = true;
        }
        Ok(moved)
    }

    fn end_writes(&mut self) -> Result<(), Stop> {
        self.conn.end_writes().map_err(|error| Stop::broken(&error))?;
        self.up = Up::Ended(Instant::now());
        Ok(())
    }

    // ---- backend → client

    fn wants_backend(&self) -> bool {
        self.down == Down::Open && (self.reply.is_empty() || self.client.is_none())
    }

    fn pull_backend(&mut self) -> Result<bool, Stop> {
        if !self.wants_backend() {
            return Ok(false);
        }
        if self.client.is_none() {
            self.reply.clear();
        }
        match self.reply.read_backend(&mut self.conn, &self.core.spare) {
            Ok(0) => {
                let settles = matches!(self.up, Up::Ended(_));
                self.down = Down::Ended { settles };
                Ok(true)
            }
            Ok(_) => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(false),
            Err(error) => Err(Stop::broken(&error)),
        }
    }

    fn push_client(&mut self) -> bool {
        let Some(client) = &mut self.client else {
            return false;
        };
        let mut moved = false;
        if !self.reply.is_empty() {
            match self.reply.give(client, self.conn.stream()) {
                Ok(_) => moved = true,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(_) => {
                    self.drop_client();
                    return true;
                }
            }
        }
        if let Down::Ended { settles } = self.down
            && self.reply.is_empty()
        {
            // Where the session is lost its client is to see that, and not an end in order.
            if self.up != Up::Refused && client.end_writes().is_err() {
                self.drop_client();
            }
            self.down = Down::Told { settles };
            return true;
        }
        moved
    }

    // ---- the end

    /// The client is reset, or was: for the backend that is an end like any other.
    fn drop_client(&mut self) {
        if let Some(client) = self.client.take() {
            client.reset();
        }
        self.reply.clear();
        if self.up == Up::Open {
            self.up = Up::Ending;
        }
    }

    /// A newer holder has come, or this instance is not the owner any more.
    fn cut(&mut self, cut: Cut) -> Result<(), Stop> {
        if !self.is_committed() {
            return Err(Stop::Cut(cut));
        }
        if let Cut::NotOwner = cut {
            return Err(Stop::lost(
                Reason::NotOwner,
                "this instance ceased to be the owner",
            ));
        }
        (self.watch, self.was_cut) = (None, true);
        self.entry.tell_cut(cut);
        if !self.outbox.is_empty() {
            return Err(Stop::lost(
                Reason::StaleToken,
                "the backend had not taken all of what was read",
            ));
        }
        if self.down != Down::Open {
            return Err(Stop::lost(
                Reason::StaleToken,
                "the backend had closed its side before",
            ));
        }
        self.drop_client();
        match self.up {
            Up::Open | Up::Ending => self.end_writes(),
            Up::Ended(_) => {
                self.up = Up::Ended(Instant::now());
                Ok(())
            }
            Up::Refused => Ok(()),
        }
    }

    fn is_committed(&self) -> bool {
        self.flight.as_ref().is_some_and(Flight::is_committed)
    }

    /// Both sides have ended: the flight is over, however long the client takes to read.
    fn settle(&mut self) {
        let (Up::Ended(_), Down::Ended { settles } | Down::Told { settles }) = (self.up, self.down) else {
            return;
        };
        self.watch = None;
        match self.flight.take() {
            Some(flight) if settles => flight.settle(),
            // Whether it had read everything before it closed its side, nobody can tell.
            Some(flight) => self.entry.lose(flight, Reason::UpstreamFailed),
            None => {}
        }
    }

    /// Whether both sides have ended, and the client has what it is to have.
    fn is_over(&self) -> bool {
        let told = match self.down {
            Down::Open => false,
            Down::Ended { .. } => self.client.is_none(),
            Down::Told { .. } => true,
        };
        told && matches!(self.up, Up::Ended(_) | Up::Refused)
    }

    fn finish(mut self) -> Ended {
        if self.up == Up::Refused {
            return self.end(Stop::lost(
                Reason::UpstreamFailed,
                "the backend took no more of it",
            ));
        }
        self.conn.close();
        if let Some(mut client) = self.client.take() {
            client.forgive();
            client.close();
        }
        self.outbox.rest(&self.core.spare);
        self.reply.rest(&self.core.spare);
        Ended::Settled
    }

    /// Breaks it off: the backend's connection is reset with whatever it holds.
    fn end(mut self, stop: Stop) -> Ended {
        let (client, doubtful) = (self.client.take(), self.is_committed());
        self.watch = None;
        // Before the doubt begins.
        drop(self.conn);
        let reason = match &stop {
            Stop::Cut(_) => Reason::StaleToken,
            Stop::Lost(reason, _) => *reason,
        };
        if let Some(flight) = self.flight.take() {
            self.entry.lose(flight, reason);
        }
        match stop {
            Stop::Cut(cut) => Ended::Cut { client, cut },
            Stop::Lost(_, why) => Ended::Lost {
                client,
                why,
                doubtful,
            },
        }
    }
}
