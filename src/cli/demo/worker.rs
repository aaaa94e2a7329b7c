//! A worker as a process of its own: takes the lock, reads the account, adds its booking, writes it back.
//!
//! It does what careful programs do: it asks the lock service once more right before it writes, sends its
//! token with each request, and starts again from the lock when it is refused. It prints an [`Event`] a line.
//! At its pause point it waits for a line on standard input, so that the demo can stop it exactly there; the
//! line is in the pipe before the process is resumed, so to the worker no time has passed.

use std::io::Write;
use std::net::SocketAddr;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::account::{Account, NotABooking};
use super::http::{Answer, HttpError, Target};
use super::lock::{LockClient, LockError};

/// Book one amount under the lock (what `fencegate demo` runs as its workers)
#[derive(clap::Args, Debug)]
pub struct WorkerArgs {
    /// Whose booking it is
    #[arg(long)]
    name: String,
    /// The amount to book
    #[arg(long, allow_hyphen_values = true)]
    amount: i64,
    /// The lock service
    #[arg(long)]
    lock: SocketAddr,
    /// The store, or the gate in front of it
    #[arg(long)]
    store: SocketAddr,
    /// The bucket, which is also the lock's name
    #[arg(long)]
    bucket: String,
    /// The object
    #[arg(long)]
    key: String,
    /// How long a lease lasts
    #[arg(long)]
    lease_ms: u64,
    /// Where to wait for a line on standard input
    #[arg(long, value_enum, default_value = "never")]
    pause: Pause,
}

/// Where a worker waits for a line on standard input, the first time that it gets there.
#[derive(clap::ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub enum Pause {
    Never,
    /// After the last look at the lock, before the first byte of the write.
    BeforeWrite,
    /// When the first half of the body has been sent.
    HalfSent,
}

impl Pause {
    /// Its name as an argument.
    pub fn as_arg(self) -> &'static str {
        match self {
            Pause::Never => "never",
            Pause::BeforeWrite => "before-write",
            Pause::HalfSent => "half-sent",
        }
    }
}

/// What a worker tells, in this order. [`Event::Paused`] comes only with a pause point, and after a refusal
/// all comes a second time.
#[derive(Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub enum Event {
    /// The lock is held; how long it took to get it.
    Locked { token: u64, waited_ms: u64 },
    /// The account was read.
    Read { balance: i64 },
    /// The lock service said once more that the lock is held, and renewed the lease.
    StillHeld,
    /// It waits for a line on standard input.
    Paused { sent: usize, of: usize },
    /// The write was answered.
    Answered(Outcome),
    /// The booking is done and the lock given back.
    Done,
}

/// How a write ended.
#[derive(Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct Outcome {
    pub status: u16,
    /// `Fencegate-Reason`, where the gate gave the answer itself.
    pub reason: Option<String>,
    /// `Fencing-Token-Highest`.
    pub highest: Option<String>,
    /// How much of the body was sent when the answer was there.
    pub sent: usize,
    pub of: usize,
    /// From the lock to the answer.
    pub took_ms: u64,
    /// How long ago the lease had ended, by the worker's own clock, when the answer was there.
    pub lease_over_ms: Option<u64>,
}

#[derive(Debug, thiserror::Error)]
enum WorkerError {
    #[error(transparent)]
    Lock(#[from] LockError),
    #[error(transparent)]
    Http(#[from] HttpError),
    #[error("the account can't be read: status {status}{}", reason_text(reason))]
    NotRead { status: u16, reason: Option<String> },
    #[error("the account is damaged")]
    Damaged(#[from] NotABooking),
    #[error("the lease of token {token} ran out before the write: this machine is too slow for it now")]
    LeaseLost { token: u64 },
    #[error("the write was answered with status {0}")]
    NotWritten(u16),
    #[error("the demo can't be told")]
    Untold(#[from] std::io::Error),
    #[error("the demo has no more use for this worker")]
    Dismissed,
}

/// Does one booking; exits with 1 when it couldn't.
pub fn run(args: WorkerArgs) -> ExitCode {
    let name = args.name.clone();
    match Worker::new(args).book() {
        Ok(()) => ExitCode::SUCCESS,
        // The demo has already told its user why.
        Err(WorkerError::Dismissed) => ExitCode::FAILURE,
        Err(error) => {
            let cause =
                std::error::Error::source(&error).map_or_else(String::new, |cause| format!(": {cause}"));
            eprintln!("fencegate demo-worker {name}: {error}{cause}");
            ExitCode::FAILURE
        }
    }
}

struct Worker {
    lock: LockClient,
    path: String,
    pause: Pause,
    args: WorkerArgs,
}

/// A lock held, as the worker knows it.
struct Held {
    token: u64,
    since: Instant,
    /// Counted from before the question was asked, so that the worker never thinks it longer than it is.
    lease_ends: Instant,
}

impl Worker {
    fn new(args: WorkerArgs) -> Worker {
        Worker {
            lock: LockClient {
                address: args.lock,
                name: args.bucket.clone(),
                ttl: Duration::from_millis(args.lease_ms),
            },
            path: format!("/{}/{}", args.bucket, args.key),
            pause: args.pause,
            args,
        }
    }

    /// Books, and once more from the start if the first write was refused for its token.
    fn book(&mut self) -> Result<(), WorkerError> {
        let mut tries_left = 2;
        loop {
            tries_left -= 1;
            let (token, outcome) = self.try_once()?;
            let status = outcome.status;
            tell(&Event::Answered(outcome))?;
            match status {
                200 => {
                    self.lock.release(token)?;
                    return Ok(tell(&Event::Done)?);
                }
                // What was computed from the old read is worthless now: the lock again, and a new read.
                412 if tries_left > 0 => wait_for_line()?,
                other => return Err(WorkerError::NotWritten(other)),
            }
        }
    }

    fn try_once(&mut self) -> Result<(u64, Outcome), WorkerError> {
        let mut held = self.acquire()?;
        let mut account = self.read(held.token)?;
        account.book(&self.args.name, self.args.amount);
        self.look_again(&mut held)?;
        let outcome = self.write(&held, account.to_text().as_bytes())?;
        Ok((held.token, outcome))
    }

    fn acquire(&self) -> Result<Held, WorkerError> {
        let asked = Instant::now();
        let token = self.lock.acquire()?;
        let waited_ms = millis(asked.elapsed());
        tell(&Event::Locked { token, waited_ms })?;
        Ok(Held {
            token,
            since: Instant::now(),
            lease_ends: asked + self.lock.ttl,
        })
    }

    fn read(&self, token: u64) -> Result<Account, WorkerError> {
        let answer = self.target(token).get()?;
        if answer.status != 200 {
            return Err(WorkerError::NotRead {
                status: answer.status,
                reason: answer.field("Fencegate-Reason").map(str::to_owned),
            });
        }
        let account = Account::parse(&answer.body)?;
        let balance = account.balance();
        tell(&Event::Read { balance })?;
        Ok(account)
    }

    /// The last look before the write: the best that a program can do by itself.
    fn look_again(&self, held: &mut Held) -> Result<(), WorkerError> {
        let asked = Instant::now();
        if !self.lock.renew(held.token)? {
            return Err(WorkerError::LeaseLost { token: held.token });
        }
        held.lease_ends = asked + self.lock.ttl;
        Ok(tell(&Event::StillHeld)?)
    }

    fn write(&mut self, held: &Held, body: &[u8]) -> Result<Outcome, WorkerError> {
        self.pause_at(Pause::BeforeWrite, 0, body.len())?;
        let mut upload = self.target(held.token).start_put(body)?;
        if self.pause == Pause::HalfSent {
            upload.send_to(body.len() / 2);
            self.pause_at(Pause::HalfSent, upload.sent, body.len())?;
        }
        upload.send_to(body.len());
        let sent = upload.sent;
        Ok(outcome(&upload.answer()?, held, sent, body.len()))
    }

    fn pause_at(&mut self, point: Pause, sent: usize, of: usize) -> Result<(), WorkerError> {
        if self.pause == point {
            self.pause = Pause::Never;
            tell(&Event::Paused { sent, of })?;
            wait_for_line()?;
        }
        Ok(())
    }

    fn target(&self, token: u64) -> Target<'_> {
        Target {
            address: self.args.store,
            path: &self.path,
            token: Some(token),
        }
    }
}

fn outcome(answer: &Answer, held: &Held, sent: usize, of: usize) -> Outcome {
    let now = Instant::now();
    Outcome {
        status: answer.status,
        reason: answer.field("Fencegate-Reason").map(str::to_owned),
        highest: answer.field("Fencing-Token-Highest").map(str::to_owned),
        sent,
        of,
        took_ms: millis(now - held.since),
        lease_over_ms: now.checked_duration_since(held.lease_ends).map(millis),
    }
}

fn tell(event: &Event) -> Result<(), std::io::Error> {
    let line = serde_json::to_string(event).expect("an event is always JSON");
    writeln!(std::io::stdout(), "{line}")
}

fn wait_for_line() -> Result<(), WorkerError> {
    match std::io::stdin().read_line(&mut String::new())? {
        0 => Err(WorkerError::Dismissed),
        _ => Ok(()),
    }
}

fn reason_text(reason: &Option<String>) -> String {
    reason
        .as_ref()
        .map_or_else(String::new, |reason| format!(" ({reason})"))
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
