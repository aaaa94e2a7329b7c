//! The checker of what a backend of raw TCP took in, in which order, and such a backend: it is as slow, as forgetful and
//! as rude as A2 and A4 allow.
//!
//! A session's bytes begin with a line that says whose they are; those after it are told by their place.

use std::collections::HashMap;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use socket2::SockRef;

use super::Dice;

/// Whose a session is.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Holder {
    pub resource: usize,
    pub token: u64,
    /// The session's own number.
    pub session: u64,
}

impl Holder {
    /// The first `len` bytes of its session.
    pub fn bytes(&self, len: usize) -> Vec<u8> {
        let mut bytes = format!("hello {} {} {}\n", self.resource, self.token, self.session).into_bytes();
        bytes.extend((bytes.len()..len).map(|at| self.at(at)));
        bytes.truncate(len);
        bytes
    }

    fn at(&self, place: usize) -> u8 {
        (place as u64).wrapping_mul(31).wrapping_add(self.session) as u8
    }

    fn read(line: &[u8]) -> Option<Holder> {
        let line = std::str::from_utf8(line).ok()?;
        let mut words = line.strip_prefix("hello ")?.split(' ');
        Some(Holder {
            resource: words.next()?.parse().ok()?,
            token: words.next()?.parse().ok()?,
            session: words.next()?.parse().ok()?,
        })
    }
}

/// When something took effect.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Why {
    Read,
    End,
    /// After its connection was lost.
    Lost,
}

/// What came to pass, in its order.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Event {
    /// The session's bytes up to this place have taken effect, having come by this connection.
    Effect {
        of: Holder,
        conn: usize,
        upto: usize,
        why: Why,
    },
    /// Its client has read something of the backend's: it had been let through.
    Through { of: Holder },
    /// Its client, which had sent all, was told that the backend took so many bytes, and read an end in order. A gate
    /// that is stopped ends a session early: `whole` says that there was none.
    Told { of: Holder, took: usize, whole: bool },
    /// Bytes came that no session sends there.
    Torn { conn: usize, why: String },
}

/// The journal, which all write.
#[derive(Clone, Default, Debug)]
pub struct Journal(Arc<Mutex<Vec<Event>>>);

impl Journal {
    pub fn note(&self, event: Event) {
        self.0.lock().unwrap().push(event);
    }

    pub fn events(&self) -> Vec<Event> {
        self.0.lock().unwrap().clone()
    }
}

/// All that is wrong in a journal; `sent` says how much each session's client wanted to send at most.
pub fn faults(events: &[Event], sent: &HashMap<u64, usize>) -> Vec<String> {
    let mut faults = Vec::new();
    let mut highest: HashMap<usize, u64> = HashMap::new();
    let mut sessions: HashMap<u64, (usize, usize)> = HashMap::new();
    for event in events {
        match event {
            Event::Effect { of, conn, upto, .. } => {
                let mark = highest.entry(of.resource).or_default();
                if of.token < *mark {
                    faults.push(format!("backwards: {event:?} after {mark} was let through"));
                }
                *mark = of.token.max(*mark);
                let (by, before) = *sessions.entry(of.session).or_insert((*conn, 0));
                if by != *conn {
                    faults.push(format!("twice: {event:?}, and by connection {by}"));
                } else if *upto <= before {
                    faults.push(format!("again: {event:?} after {before}"));
                }
                sessions.insert(of.session, (by, *upto));
                if sent.get(&of.session).is_none_or(|sent| upto > sent) {
                    faults.push(format!(
                        "unsent: {event:?}, {:?} were sent",
                        sent.get(&of.session)
                    ));
                }
            }
            Event::Through { of } => {
                let mark = highest.entry(of.resource).or_default();
                *mark = of.token.max(*mark);
            }
            Event::Told { of, took, whole } => {
                let upto = sessions.get(&of.session).map_or(0, |(_, upto)| *upto);
                let all = sent.get(&of.session) == Some(took);
                if upto != *took || *whole && !all {
                    faults.push(format!("told: {event:?}, {upto} took effect"));
                }
            }
            Event::Torn { .. } => faults.push(format!("torn: {event:?}")),
        }
    }
    faults
}

/// What a backend may do with one connection. It never ends its own side first and reads on: its end and the gate's may
/// cross on the way, and then nobody can tell which was first.
#[derive(Clone, Debug)]
struct Manners {
    greets: bool,
    /// What it has read takes effect when all has come; else at once.
    lazy: bool,
    /// Pauses before one of its reads.
    stops: Option<(u64, Duration)>,
    /// Between the end and its effect.
    thinks: Duration,
    /// Between a loss and its effect.
    hesitates: Duration,
    /// Resets it after so many reads.
    resets: Option<u64>,
    /// Does not close its side after the end, and says nothing more.
    clings: bool,
    /// What was lost with its connection takes effect all the same; for one that clings everything that came.
    minds_losses: bool,
}

impl Manners {
    fn of(dice: &mut Dice, late_max: Duration) -> Manners {
        let most = u64::try_from(late_max.as_millis()).unwrap();
        let stop = (1 + dice.below(3), dice.millis(most / 3));
        let reset = 1 + dice.below(4);
        let (lazy, clings) = (dice.one_in(2), dice.one_in(12));
        Manners {
            greets: dice.one_in(3),
            // One that is never heard of may still be at it.
            lazy: lazy || clings,
            stops: dice.one_in(6).then_some(stop),
            thinks: match dice.one_in(2) {
                true => dice.millis(most / 3),
                false => Duration::ZERO,
            },
            hesitates: match clings {
                true => late_max / 2 + dice.millis(most / 2),
                false => dice.millis(most),
            },
            resets: dice.one_in(10).then_some(reset),
            clings,
            minds_losses: !dice.one_in(if clings { 4 } else { 2 }),
        }
    }
}

/// A backend.
#[derive(Debug)]
pub struct Store {
    pub port: u16,
}

impl Store {
    /// Nothing takes effect later than `late_max` after its connection was lost.
    pub fn start(seed: u64, late_max: Duration, journal: &Journal) -> Store {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        let journal = journal.clone();
        thread::spawn(move || {
            let mut dice = Dice::new(seed);
            for (number, stream) in listener.incoming().flatten().enumerate() {
                let manners = Manners::of(&mut dice, late_max);
                let journal = journal.clone();
                thread::spawn(move || Served::new(number, manners, journal).run(stream));
            }
        });
        Store { port }
    }
}

/// One connection at the backend.
struct Served {
    number: usize,
    manners: Manners,
    journal: Journal,
    of: Option<Holder>,
    bytes: usize,
    line: Vec<u8>,
    effective: usize,
}

impl Served {
    fn new(number: usize, manners: Manners, journal: Journal) -> Served {
        Served {
            number,
            manners,
            journal,
            of: None,
            bytes: 0,
            line: Vec::new(),
            effective: 0,
        }
    }

    fn run(mut self, mut stream: TcpStream) {
        let _gone_already = stream.set_nodelay(true);
        if self.manners.greets && stream.write_all(b"hi\n").is_err() {
            return;
        }
        let mut room = [0; 64 * 1024];
        let mut reads = 0;
        loop {
            if let Some((_, time)) = self.manners.stops.filter(|(at, _)| *at == reads) {
                thread::sleep(time);
            }
            match stream.read(&mut room) {
                Ok(0) => return self.end(stream),
                Ok(len) => self.take(&room[..len]),
                Err(_) => return self.lose(),
            }
            reads += 1;
            if self.manners.resets == Some(reads) {
                let _gone_already = SockRef::from(&stream).set_linger(Some(Duration::ZERO));
                drop(stream);
                return self.lose();
            }
        }
    }

    fn take(&mut self, mut bytes: &[u8]) {
        while self.of.is_none() && !bytes.is_empty() {
            let (byte, rest) = (bytes[0], &bytes[1..]);
            bytes = rest;
            self.bytes += 1;
            if byte != b'\n' {
                self.line.push(byte);
                continue;
            }
            self.of = Holder::read(&self.line);
            if self.of.is_none() {
                let why = format!("it begins with {:?}", String::from_utf8_lossy(&self.line));
                self.journal.note(Event::Torn {
                    conn: self.number,
                    why,
                });
            }
        }
        let Some(of) = self.of else { return };
        let right = bytes
            .iter()
            .enumerate()
            .all(|(n, byte)| *byte == of.at(self.bytes + n));
        if !right {
            self.journal.note(Event::Torn {
                conn: self.number,
                why: format!("{of:?} after {}", self.bytes),
            });
        }
        self.bytes += bytes.len();
        if !self.manners.lazy {
            self.apply(Why::Read);
        }
    }

    fn apply(&mut self, why: Why) {
        if let Some(of) = self.of
            && self.bytes > self.effective
        {
            self.effective = self.bytes;
            self.journal.note(Event::Effect {
                of,
                conn: self.number,
                upto: self.bytes,
                why,
            });
        }
    }

    /// All has come, as far as it can tell.
    fn end(mut self, mut stream: TcpStream) {
        thread::sleep(self.manners.thinks);
        if self.manners.clings {
            if !self.manners.minds_losses {
                self.apply(Why::End);
            }
            // Until the other side gives up.
            while stream.take_error().is_ok_and(|error| error.is_none()) && !is_lost(&stream) {
                thread::sleep(Duration::from_millis(5));
            }
            return self.lose();
        }
        self.apply(Why::End);
        let _gone_already = stream.write_all(format!("took {}\n", self.bytes).as_bytes());
    }

    fn lose(mut self) {
        if self.manners.minds_losses && slept_well(self.manners.hesitates) {
            self.apply(Why::Lost);
        }
    }
}

/// False where a busy machine made it longer: what is too late takes no effect (A4).
fn slept_well(time: Duration) -> bool {
    let begun = Instant::now();
    thread::sleep(time);
    begun.elapsed() < time + Duration::from_millis(200)
}

fn is_lost(stream: &TcpStream) -> bool {
    use std::os::fd::AsRawFd;
    let mut poll = libc::pollfd {
        fd: stream.as_raw_fd(),
        events: 0,
        revents: 0,
    };
    // SAFETY: one entry, which outlives the call.
    unsafe { libc::poll(&raw mut poll, 1, 0) };
    poll.revents & (libc::POLLERR | libc::POLLHUP) != 0
}
