//! The story in four acts: a write that comes late, and an upload that ends late, each without the gate and with
//! it.
//!
//! It tells what happens and checks each thing that it tells, against the store itself; the first that is not as
//! told ends the demo with an error. It starts and ends no process by itself: the stage does.

use std::fmt::Debug;
use std::net::SocketAddr;

use super::DemoError;
use super::account::Account;
use super::stage::{LEASE_MS, Order, Stage, Worker, object_path};
use super::tell::{Teller, Voice};
use super::worker::{Event, Outcome, Pause};

/// Where the workers of an act send their requests.
#[derive(Clone, Copy, Debug)]
pub enum Through {
    /// Straight to the store.
    Nothing,
    /// To the gate at this address.
    Gate(SocketAddr),
}

/// One act: the same two bookings, another way to lose one.
#[derive(Clone, Copy, Debug)]
pub struct Act {
    pub title: &'static str,
    pub bucket: &'static str,
    pub through: Through,
    /// Where A is stopped.
    pub pause: Pause,
    /// How many old bookings the account has, which decides the size of its object.
    pub older: usize,
}

/// How an act ended, for the summary.
#[derive(Debug)]
pub struct Ending {
    pub title: &'static str,
    /// The answer to A's late write.
    pub answer: u16,
    pub balance: i64,
}

/// Plays acts on a stage.
pub struct Story<'a> {
    pub stage: &'a Stage,
    pub tell: &'a Teller,
    /// How many things were told and checked.
    pub checked: usize,
}

/// The two acts that need no gate.
pub fn without_gate() -> [Act; 2] {
    [
        Act {
            title: "1. WITHOUT THE GATE: a write that comes late",
            bucket: "late-write",
            through: Through::Nothing,
            pause: Pause::BeforeWrite,
            older: 0,
        },
        Act {
            title: "2. WITHOUT THE GATE: an upload that is already under way",
            bucket: "late-upload",
            through: Through::Nothing,
            pause: Pause::HalfSent,
            older: OLDER,
        },
    ]
}

/// The same two, through the gate.
pub fn with_gate(gate: SocketAddr) -> [Act; 2] {
    let [late_write, late_upload] = without_gate();
    [
        Act {
            title: "3. WITH THE GATE: a write that comes late",
            bucket: "fenced-write",
            through: Through::Gate(gate),
            ..late_write
        },
        Act {
            title: "4. WITH THE GATE: an upload that is already under way",
            bucket: "fenced-upload",
            through: Through::Gate(gate),
            ..late_upload
        },
    ]
}

impl Story<'_> {
    /// Plays one act to its end.
    ///
    /// # Errors
    /// [`DemoError::NotAsTold`] when something didn't come out as told, others when the stage broke.
    pub fn play(&mut self, act: &Act) -> Result<Ending, DemoError> {
        self.open(act)?;
        let mut a = self.stage.hire(order(act, 'A', A_BOOKS, act.pause))?;
        let old = self.comes_to_its_pause(act, &a)?;

        let new = self.books_undisturbed(act, old)?;
        self.store_holds(act, "B's booking", &[('B', B_BOOKS)], &[('A', A_BOOKS)])?;

        // The word goes into the pipe first: once resumed, A goes on at once.
        a.nod()?;
        a.thaw()?;
        self.step(
            Voice::Stage,
            "A is resumed (SIGCONT). To A no time has passed: it believes that it holds the lock.",
        );
        let late = self.answer_of(&a)?;
        match act.through {
            Through::Nothing => self.loses(act, a, &late, old),
            Through::Gate(_) => {
                self.is_refused(act, &late, old, new)?;
                self.tries_again(act, a, &late)
            }
        }
    }

    fn open(&self, act: &Act) -> Result<(), DemoError> {
        self.tell.heading(act.title);
        let account = Account::open(OPENING, act.older);
        self.stage.prepare(act.bucket, &account)?;
        let (path, size) = (object_path(act.bucket), account.to_text().len());
        self.step(
            Voice::Store,
            &format!("holds {path}: {size} bytes, balance {OPENING}"),
        );
        Ok(())
    }

    /// A takes the lock, reads, asks once more, and is stopped at its pause point. Gives its token.
    fn comes_to_its_pause(&mut self, act: &Act, a: &Worker) -> Result<u64, DemoError> {
        let token = self.locks_and_reads(a, OPENING, A_BOOKS)?;
        self.step(
            Voice::Worker('A'),
            "asks the lock service once more: \"yes, it is still yours\"",
        );
        let (sent, of) = a.expect("A comes to its pause point", |event| match event {
            Event::Paused { sent, of } => Ok((sent, of)),
            other => Err(other),
        })?;
        let (place, half) = match act.pause {
            Pause::HalfSent => ("in the middle of its upload", true),
            Pause::BeforeWrite | Pause::Never => ("right here, before its write", false),
        };
        if half {
            self.claim("half of A's upload is sent", sent > 0 && sent < of, &sent)?;
            let text = format!("writes the account back with token {token}: {sent} of {of} bytes are sent");
            self.step(Voice::Worker('A'), &text);
        }
        a.freeze()?;
        let id = a.id;
        self.step(
            Voice::Stage,
            &format!(
                "A's process {id} is stopped {place} (SIGSTOP), as a swapping machine, a paused VM or a long \
                 garbage collection does it. Its lease of {LEASE_MS} ms runs out."
            ),
        );
        Ok(token)
    }

    /// The part that both workers begin with. Gives the token.
    fn locks_and_reads(&mut self, worker: &Worker, expected: i64, amount: i64) -> Result<u64, DemoError> {
        let voice = Voice::Worker(worker.name);
        let (token, waited_ms) = worker.expect("the worker gets the lock", |event| match event {
            Event::Locked { token, waited_ms } => Ok((token, waited_ms)),
            other => Err(other),
        })?;
        let wait = if waited_ms > LEASE_MS / 10 {
            format!("waits {waited_ms} ms for the lock and gets it")
        } else {
            "takes the lock".to_owned()
        };
        self.step(voice, &format!("{wait}: token {token}"));
        let balance = worker.expect("the worker reads the account", |event| match event {
            Event::Read { balance } => Ok(balance),
            other => Err(other),
        })?;
        self.claim(
            "the worker reads what the store holds",
            balance == expected,
            &balance,
        )?;
        self.step(
            voice,
            &format!("reads the account: balance {balance}; it will book {amount:+}"),
        );
        worker.expect("the worker still has the lock", |event| match event {
            Event::StillHeld => Ok(()),
            other => Err(other),
        })?;
        Ok(token)
    }

    /// B does its whole work while A stands still. Gives its token.
    fn books_undisturbed(&mut self, act: &Act, old: u64) -> Result<u64, DemoError> {
        let b = self.stage.hire(order(act, 'B', B_BOOKS, Pause::Never))?;
        let new = self.locks_and_reads(&b, OPENING, B_BOOKS)?;
        self.claim("B's token is higher than A's", new > old, &new)?;
        let outcome = self.answer_of(&b)?;
        self.claim("B's write is answered with 200", outcome.status == 200, &outcome)?;
        let at_once = match act.pause {
            Pause::HalfSent => ", while A's upload is still open",
            Pause::BeforeWrite | Pause::Never => "",
        };
        let took_ms = outcome.took_ms;
        self.step(
            Voice::Worker('B'),
            &format!("writes it with token {new}: answer 200, {took_ms} ms after it got the lock{at_once}"),
        );
        self.claim("B doesn't have to wait for A", took_ms < AT_ONCE_MS, &outcome)?;
        done(b)?;
        Ok(new)
    }

    /// Without the gate: A's write is taken, and B's booking is gone.
    fn loses(&mut self, act: &Act, a: Worker, late: &Outcome, old: u64) -> Result<Ending, DemoError> {
        self.claim("A's late write is answered with 200", late.status == 200, late)?;
        let rest = match act.pause {
            Pause::HalfSent => "sends the rest of its upload",
            Pause::BeforeWrite | Pause::Never => "writes the account it had read, with its booking",
        };
        self.claim(
            "A's lease was over when it wrote",
            late.lease_over_ms.is_some(),
            late,
        )?;
        let over = late.lease_over_ms.unwrap_or(0);
        self.step(
            Voice::Worker('A'),
            &format!("{rest}, token {old}: answer 200, {over} ms after its lease ended"),
        );
        let balance = self.store_holds(
            act,
            "A's booking and not B's",
            &[('A', A_BOOKS)],
            &[('B', B_BOOKS)],
        )?;
        done(a)?;
        self.step(
            Voice::Bad,
            &format!(
                "CORRUPT: B was told 200, and its booking of {B_BOOKS} is gone. The balance is {balance}, and \
                 {RIGHT} is right. To the store each write was fine: it takes the last one whole."
            ),
        );
        Ok(Ending {
            title: act.title,
            answer: late.status,
            balance,
        })
    }

    /// With the gate: A's write is refused, and the store is as B left it.
    fn is_refused(&mut self, act: &Act, late: &Outcome, old: u64, new: u64) -> Result<(), DemoError> {
        let Outcome { sent, of, .. } = *late;
        self.claim("A's late write is refused with 412", late.status == 412, late)?;
        let reason = late.reason.as_deref();
        self.claim("the reason is stale-token", reason == Some("stale-token"), late)?;
        let named = late.highest.as_deref() == Some(new.to_string().as_str());
        self.claim("the answer names B's token as the highest", named, late)?;
        let verb = match act.pause {
            Pause::HalfSent => {
                self.claim("A is told before it sends the rest", sent < of, late)?;
                format!("its upload was cut at {sent} of {of} bytes: the gate answers")
            }
            Pause::BeforeWrite | Pause::Never => format!("writes with token {old}: the gate answers"),
        };
        self.step(
            Voice::Worker('A'),
            &format!("{verb} 412, stale-token, the highest is {new}"),
        );
        self.store_holds(
            act,
            "still B's booking, untouched",
            &[('B', B_BOOKS)],
            &[('A', A_BOOKS)],
        )?;
        let how = match act.pause {
            Pause::HalfSent => {
                "CUT: the gate held back the end of A's upload, and dropped it when B's token came. B never waited."
            }
            Pause::BeforeWrite | Pause::Never => {
                "REFUSED: the gate had seen B's higher token, so A's write never reached the store."
            }
        };
        self.step(Voice::Good, how);
        Ok(())
    }

    /// A takes its refusal as it should: from the start, with a new token and a new read.
    fn tries_again(&mut self, act: &Act, mut a: Worker, late: &Outcome) -> Result<Ending, DemoError> {
        self.step(
            Voice::Worker('A'),
            "now knows that it lost the lock, drops its work and starts again",
        );
        a.nod()?;
        let token = self.locks_and_reads(&a, OPENING + B_BOOKS, A_BOOKS)?;
        let outcome = self.answer_of(&a)?;
        self.claim(
            "A's second try is answered with 200",
            outcome.status == 200,
            &outcome,
        )?;
        self.step(
            Voice::Worker('A'),
            &format!("writes it with token {token}: answer 200"),
        );
        done(a)?;
        let both = [('A', A_BOOKS), ('B', B_BOOKS)];
        let balance = self.store_holds(act, "both bookings", &both, &[])?;
        self.claim("the balance is right in the end", balance == RIGHT, &balance)?;
        self.step(Voice::Good, "WHOLE: nothing is lost.");
        Ok(Ending {
            title: act.title,
            answer: late.status,
            balance,
        })
    }

    /// Looks into the store, past the gate: what must be there and what must not. Gives the balance.
    fn store_holds(
        &mut self,
        act: &Act,
        what: &str,
        there: &[(char, i64)],
        missing: &[(char, i64)],
    ) -> Result<i64, DemoError> {
        let account = self.stage.look(act.bucket)?;
        let has = |(who, amount): &(char, i64)| account.has(&who.to_string(), *amount);
        let balance = account.balance();
        let expected = OPENING + there.iter().map(|(_, amount)| amount).sum::<i64>();
        let as_told = there.iter().all(has) && !missing.iter().any(has) && balance == expected;
        self.claim(&format!("the store holds {what}"), as_told, &account.tail())?;
        self.step(Voice::Store, &format!("holds {what}; balance {balance}"));
        Ok(balance)
    }

    fn answer_of(&self, worker: &Worker) -> Result<Outcome, DemoError> {
        worker.expect("the worker's write is answered", |event| match event {
            Event::Answered(outcome) => Ok(outcome),
            other => Err(other),
        })
    }

    /// Every sentence of the story goes through here before it is told.
    fn claim(&mut self, claim: &str, holds: bool, found: &dyn Debug) -> Result<(), DemoError> {
        if !holds {
            return Err(DemoError::NotAsTold {
                claim: claim.to_owned(),
                found: format!("{found:?}"),
            });
        }
        self.checked += 1;
        Ok(())
    }

    fn step(&self, voice: Voice, text: &str) {
        self.tell.step(voice, text);
    }
}

/// The worker says that it is done, and its process ends well.
fn done(worker: Worker) -> Result<(), DemoError> {
    worker.expect("the worker is done", |event| match event {
        Event::Done => Ok(()),
        other => Err(other),
    })?;
    worker.leave()
}

fn order(act: &Act, name: char, amount: i64, pause: Pause) -> Order<'static> {
    Order {
        name,
        amount,
        bucket: act.bucket,
        gate: match act.through {
            Through::Nothing => None,
            Through::Gate(address) => Some(address),
        },
        pause,
    }
}

const OPENING: i64 = 100;
const A_BOOKS: i64 = 10;
const B_BOOKS: i64 = -70;
/// What the balance is when nothing is lost.
pub const RIGHT: i64 = OPENING + A_BOOKS + B_BOOKS;
/// So many old bookings make an upload that is really under way: some 300 kB.
const OLDER: usize = 16_000;
/// Less than `settle_after` of the gate's configuration: B was let in at once, and didn't wait for a doubt to end.
const AT_ONCE_MS: u64 = 1500;
