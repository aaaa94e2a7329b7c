//! A client of a Redis gate that does what comes to its mind: pipelines, transactions, scripts, pops that wait, large
//! values in pieces, half a command, none of its replies read. It notes what it was told of each write.
//!
//! Each reply is held against the command that it must belong to; one that can't be its reply panics.

use std::io::{self, BufRead, BufReader, Read as _, Write as _};
use std::net::{Shutdown, TcpStream};
use std::sync::RwLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use socket2::SockRef;

use super::Dice;
use super::lists::{Got, History, Outcome, Popped, Read, Wrote};
use crate::gate::PATIENCE;

pub const RESOURCES: usize = 4;

/// What all holders share.
pub struct World {
    /// The highest token that somebody was given, by resource.
    issued: [AtomicU64; RESOURCES],
    /// The highest token by which something fenced was answered, by resource.
    pub told: [AtomicU64; RESOURCES],
    numbers: AtomicU64,
    /// Where gates are; written while one restarts.
    pub ports: RwLock<Vec<u16>>,
    pub applied: AtomicU64,
    pub refused: AtomicU64,
    pub stop: AtomicBool,
    /// Nothing is lost for a while: much is sent at once then.
    pub is_fair: AtomicBool,
    /// How long a pop may wait, in seconds; also for ever where that is so.
    pub waits: &'static [&'static str],
}

impl World {
    pub fn new(ports: Vec<u16>, waits: &'static [&'static str]) -> World {
        World {
            issued: [const { AtomicU64::new(1) }; RESOURCES],
            told: Default::default(),
            numbers: AtomicU64::new(1),
            ports: RwLock::new(ports),
            applied: AtomicU64::new(0),
            refused: AtomicU64::new(0),
            stop: AtomicBool::new(false),
            is_fair: AtomicBool::new(false),
            waits,
        }
    }

    /// A token for all of these: a new one now and then, or `anew`, and now and then one that is over.
    fn token(&self, dice: &mut Dice, resources: &[usize], anew: bool) -> u64 {
        let issued = |resource: &usize| self.issued[*resource].load(Ordering::SeqCst);
        let highest = resources.iter().map(issued).max().unwrap();
        let token = match dice.below(12) {
            _ if anew => highest + 1,
            0 => highest + 1,
            1 | 2 => return highest.saturating_sub(dice.below(3)).max(1),
            _ => highest,
        };
        for resource in resources {
            self.issued[*resource].fetch_max(token, Ordering::SeqCst);
        }
        token
    }

    fn number(&self) -> u64 {
        self.numbers.fetch_add(1, Ordering::SeqCst)
    }

    /// Something fenced was answered by this token: the mark is no lower from now on.
    pub fn tell(&self, resource: usize, token: u64) {
        self.told[resource].fetch_max(token, Ordering::SeqCst);
    }

    /// A token above all others, for the end of a run.
    pub fn last_token(&self, resource: usize) -> u64 {
        self.issued[resource].fetch_add(1, Ordering::SeqCst) + 1
    }
}

/// What a command's reply means.
#[derive(Clone, Debug)]
enum Means {
    /// `+OK`, whatever happens.
    Fine,
    /// `+OK`, or a refusal.
    FineOrNot,
    /// Exactly this.
    Says(String),
    /// The writes with these places in the history took effect, or not.
    Wrote(Vec<usize>),
    /// It is queued, or refused; EXEC decides.
    Queued,
    Multi,
    /// These writes were queued; some key was watched.
    Exec {
        writes: Vec<usize>,
        watched: bool,
    },
    Discard(Vec<usize>),
    Read {
        resource: usize,
        token: u64,
    },
    /// The pop with this place in the history.
    Popped(usize),
    /// No reply comes.
    Nothing,
}

/// Commands to be sent, and what their replies mean.
#[derive(Default)]
struct Plan {
    bytes: Vec<u8>,
    means: Vec<Means>,
}

impl Plan {
    fn add(&mut self, means: Means, words: &[&[u8]]) {
        self.bytes.extend(format!("*{}\r\n", words.len()).bytes());
        for word in words {
            self.bytes.extend(format!("${}\r\n", word.len()).bytes());
            self.bytes.extend_from_slice(word);
            self.bytes.extend_from_slice(b"\r\n");
        }
        self.means.push(means);
    }

    fn text(&mut self, means: Means, words: &[&str]) {
        let words: Vec<&[u8]> = words.iter().map(|word| word.as_bytes()).collect();
        self.add(means, &words);
    }
}

pub struct Holder<'w> {
    world: &'w World,
    dice: Dice,
    conn: Option<BufReader<TcpStream>>,
    history: History,
    /// What it did last was done there.
    last: usize,
    /// Its connection broke, and it takes the lock of this one next.
    takes_over: Option<usize>,
}

/// So much stands in front of a pipeline, now and then: the sockets on the way to the server (see [`super::relay`]) have
/// less room, and the gate takes what stands behind it all the same.
const STUFF: usize = 16 * 1024;
const STUFF_COUNT: usize = 20;

const PUSH_ALL: &str = "for i, key in ipairs(KEYS) do redis.call('rpush', key, ARGV[i]) end return #KEYS";

impl<'w> Holder<'w> {
    pub fn new(world: &'w World, seed: u64) -> Holder<'w> {
        Holder {
            world,
            dice: Dice::new(seed),
            conn: None,
            history: History::default(),
            last: 0,
            takes_over: None,
        }
    }

    /// Goes on until the world stops.
    pub fn run(mut self) -> History {
        while !self.world.stop.load(Ordering::Relaxed) {
            if self.conn.is_none() && self.connect().is_err() {
                thread::sleep(Duration::from_millis(20));
                continue;
            }
            let plan = self.plan();
            if self.carry_out(&plan).is_err() {
                self.conn = None;
                // Whoever takes the lock of one that was lost comes when what it had sent is not settled.
                self.takes_over = (!self.dice.one_in(4)).then_some(self.last);
            }
        }
        self.history
    }

    fn connect(&mut self) -> io::Result<()> {
        let port = self.dice.pick(&self.world.ports.read().unwrap());
        let socket = TcpStream::connect(("127.0.0.1", port))?;
        socket.set_nodelay(true)?;
        socket.set_read_timeout(Some(PATIENCE))?;
        socket.set_write_timeout(Some(PATIENCE))?;
        self.conn = Some(BufReader::new(socket));
        Ok(())
    }

    // ---- what to do

    fn plan(&mut self) -> Plan {
        let mut plan = Plan::default();
        let is_fair = self.world.is_fair.load(Ordering::Relaxed);
        let what = match self.takes_over {
            Some(_) => 0,
            None if is_fair && self.dice.one_in(3) => 3,
            None => self.dice.below(20),
        };
        match what {
            0..=2 => self.push(&mut plan),
            3..=7 => self.pipeline(&mut plan),
            8..=11 => self.transaction(&mut plan),
            12 | 13 => self.script(&mut plan),
            14 => self.large(&mut plan),
            15..=17 => self.pop(&mut plan),
            18 => self.muted(&mut plan),
            _ => self.read(&mut plan),
        }
        plan
    }

    fn resource(&mut self) -> usize {
        if let Some(lost) = self.takes_over {
            return lost;
        }
        // The first one is the busiest.
        let one = self
            .dice
            .below(RESOURCES as u64)
            .min(self.dice.below(RESOURCES as u64));
        usize::try_from(one).unwrap()
    }

    /// The connection holds a token for these from here on.
    fn hold(&mut self, plan: &mut Plan, resources: &[usize]) -> u64 {
        if !self.dice.one_in(8) {
            return self.fence(plan, resources);
        }
        let token = self.token(resources);
        // Where the server can't take the name there must be no other token that counts.
        plan.text(Means::Fine, &["FENCE", "0"]);
        let name = format!("h,fencing-token={token}");
        plan.text(Means::FineOrNot, &["CLIENT", "SETNAME", &name]);
        token
    }

    /// The same in a way that is also open in a transaction.
    fn fence(&mut self, plan: &mut Plan, resources: &[usize]) -> u64 {
        let token = self.token(resources);
        plan.text(Means::Fine, &["FENCE", &token.to_string()]);
        token
    }

    fn token(&mut self, resources: &[usize]) -> u64 {
        self.last = resources[0];
        let anew = self.takes_over.take().is_some();
        self.world.token(&mut self.dice, resources, anew)
    }

    /// A write, whose outcome is not known yet.
    fn note(&mut self, resource: usize, token: u64, together: Option<u64>) -> (usize, String) {
        let number = self.world.number();
        self.history.wrote.push(Wrote {
            number,
            resource,
            token,
            outcome: Outcome::Unknown,
            together,
        });
        (self.history.wrote.len() - 1, format!("{token}-{number}"))
    }

    fn echo(&mut self, plan: &mut Plan) {
        let word = format!("e{}", self.world.number());
        plan.text(Means::Says(word.clone()), &["ECHO", &word]);
    }

    /// Before others, so that they stand at the gate while these don't go on.
    fn stuff(&mut self, plan: &mut Plan) {
        for _ in 0..STUFF_COUNT {
            let word = format!("{:e<STUFF$}", self.world.number());
            plan.text(Means::Says(word.clone()), &["ECHO", &word]);
        }
    }

    fn add_push(&mut self, plan: &mut Plan, resource: usize, token: u64) {
        let (at, element) = self.note(resource, token, None);
        plan.text(
            Means::Wrote(vec![at]),
            &["RPUSH", &format!("orders:{resource}"), &element],
        );
    }

    fn push(&mut self, plan: &mut Plan) {
        let resource = self.resource();
        let token = self.hold(plan, &[resource]);
        self.add_push(plan, resource, token);
    }

    fn pipeline(&mut self, plan: &mut Plan) {
        let count = self.dice.pick(&[2, 5, 20, 100]);
        let mut resource = self.resource();
        let mut token = self.hold(plan, &[resource]);
        if self.world.is_fair.load(Ordering::Relaxed) && self.dice.one_in(2) {
            self.stuff(plan);
        }
        for _ in 0..count {
            match self.dice.below(12) {
                0 => {
                    resource = self.resource();
                    token = self.hold(plan, &[resource]);
                }
                1 => self.echo(plan),
                2 => {
                    let (at, element) = self.note(resource, token, None);
                    let key = format!("orders:{resource}:v");
                    plan.text(Means::Wrote(vec![at]), &["SET", &key, &element]);
                }
                3 => self.add_read(plan, resource, token),
                // Seldom: where nothing stands in a queue, pops wait.
                4 if self.dice.one_in(24) => {
                    let (at, element) = self.note(resource, token, None);
                    plan.text(
                        Means::Wrote(vec![at]),
                        &["RPUSH", &format!("orders:{resource}:q"), &element],
                    );
                }
                _ => self.add_push(plan, resource, token),
            }
        }
        self.echo(plan);
    }

    fn transaction(&mut self, plan: &mut Plan) {
        let mut resources = vec![self.resource()];
        if self.dice.one_in(2) {
            resources.push(self.resource());
        }
        let mut token = self.hold(plan, &resources);
        let watched = self.dice.one_in(3);
        if watched {
            let key = format!("orders:{}", resources[0]);
            plan.text(Means::FineOrNot, &["WATCH", &key]);
        }
        plan.text(Means::Multi, &["MULTI"]);
        let together = Some(self.world.number());
        let mut writes = Vec::new();
        for _ in 0..1 + self.dice.below(5) {
            let resource = self.dice.pick(&resources);
            let (at, element) = self.note(resource, token, together);
            plan.text(Means::Queued, &["RPUSH", &format!("orders:{resource}"), &element]);
            writes.push(at);
            if self.dice.one_in(6) {
                plan.text(Means::Queued, &["LLEN", &format!("orders:{resource}")]);
            }
            if self.dice.one_in(25) {
                token = self.fence(plan, &resources);
            }
        }
        match self.dice.one_in(12) {
            true => plan.text(Means::Discard(writes), &["DISCARD"]),
            false => plan.text(Means::Exec { writes, watched }, &["EXEC"]),
        }
        self.echo(plan);
    }

    fn script(&mut self, plan: &mut Plan) {
        let resources = [self.resource(), self.resource()];
        let token = self.hold(plan, &resources);
        let together = Some(self.world.number());
        let notes = resources.map(|resource| self.note(resource, token, together));
        let [one, two] = resources.map(|resource| format!("orders:{resource}"));
        let places = notes.iter().map(|note| note.0).collect();
        plan.text(
            Means::Wrote(places),
            &["EVAL", PUSH_ALL, "2", &one, &two, &notes[0].1, &notes[1].1],
        );
    }

    /// A value that is streamed, or keys that stand behind one.
    fn large(&mut self, plan: &mut Plan) {
        let resources = [self.resource(), self.resource()];
        let token = self.hold(plan, &resources);
        let together = Some(self.world.number());
        let len = self.dice.pick(&[1000, 70_000, 300_000]);
        let large = |holder: &mut Self, resource, together| {
            let (at, element) = holder.note(resource, token, together);
            let mut value = format!("{element}-").into_bytes();
            value.resize(len, b'v');
            (at, value)
        };
        if self.dice.one_in(3) {
            let (one, two) = (
                large(self, resources[0], together),
                large(self, resources[1], together),
            );
            // Two keys, also where it is one resource.
            let keys = [
                format!("orders:{}:v", resources[0]),
                format!("orders:{}:w", resources[1]),
            ];
            plan.add(
                Means::Wrote(vec![one.0, two.0]),
                &[b"MSET", keys[0].as_bytes(), &one.1, keys[1].as_bytes(), &two.1],
            );
        } else {
            let one = large(self, resources[0], None);
            let key = format!("orders:{}:v", resources[0]);
            plan.add(Means::Wrote(vec![one.0]), &[b"SET", key.as_bytes(), &one.1]);
        }
    }

    fn pop(&mut self, plan: &mut Plan) {
        let resource = self.resource();
        let token = self.hold(plan, &[resource]);
        let key = format!("orders:{resource}:q");
        if self.dice.one_in(4) {
            let (at, element) = self.note(resource, token, None);
            plan.text(Means::Wrote(vec![at]), &["RPUSH", &key, &element]);
        }
        self.history.popped.push(Popped {
            resource,
            token,
            got: Got::Unknown,
        });
        let means = Means::Popped(self.history.popped.len() - 1);
        let wait = self.dice.pick(self.world.waits);
        let moved = format!("orders:{resource}:m");
        match self.dice.below(3) {
            0 => plan.text(means, &["BLPOP", &key, wait]),
            1 => plan.text(means, &["BRPOPLPUSH", &key, &moved, wait]),
            _ => plan.text(means, &["BLMOVE", &key, &moved, "LEFT", "RIGHT", wait]),
        }
        self.echo(plan);
    }

    fn muted(&mut self, plan: &mut Plan) {
        let resource = self.resource();
        let token = self.hold(plan, &[resource]);
        let silent = |holder: &mut Self, plan: &mut Plan| {
            let (_, element) = holder.note(resource, token, None);
            plan.text(
                Means::Nothing,
                &["RPUSH", &format!("orders:{resource}"), &element],
            );
        };
        if self.dice.one_in(2) {
            plan.text(Means::Nothing, &["CLIENT", "REPLY", "SKIP"]);
            silent(self, plan);
        } else {
            plan.text(Means::Nothing, &["CLIENT", "REPLY", "OFF"]);
            for _ in 0..3 {
                silent(self, plan);
            }
            plan.text(Means::Fine, &["CLIENT", "REPLY", "ON"]);
        }
        self.add_push(plan, resource, token);
        self.echo(plan);
    }

    fn add_read(&mut self, plan: &mut Plan, resource: usize, token: u64) {
        plan.text(
            Means::Read { resource, token },
            &["LLEN", &format!("orders:{resource}")],
        );
    }

    fn read(&mut self, plan: &mut Plan) {
        let resource = self.resource();
        let token = self.hold(plan, &[resource]);
        self.add_read(plan, resource, token);
    }

    // ---- doing it

    fn carry_out(&mut self, plan: &Plan) -> io::Result<()> {
        let leaves = self.dice.one_in(25);
        let mut bytes = &plan.bytes[..];
        if leaves && self.dice.one_in(2) {
            // In the middle of a command, as often as not.
            bytes = &bytes[..self.some(bytes.len())];
        }
        self.send(bytes)?;
        if leaves {
            self.leave();
            return Err(io::ErrorKind::ConnectionAborted.into());
        }
        self.read_all(plan)
    }

    fn some(&mut self, len: usize) -> usize {
        usize::try_from(self.dice.below(len as u64)).unwrap()
    }

    /// In one piece, or in some with pauses between them.
    fn send(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        let pieces = self.dice.pick(&[1, 1, 1, 2, 2, 4]);
        let pause = self.dice.pick(&[0, 5, 40, 250]);
        for _ in 1..pieces {
            let (piece, rest) = bytes.split_at(self.some(bytes.len().max(1)));
            self.socket().write_all(piece)?;
            let time = self.dice.millis(pause + 1);
            thread::sleep(time);
            bytes = rest;
        }
        self.socket().write_all(bytes)
    }

    fn socket(&mut self) -> &mut TcpStream {
        self.conn.as_mut().expect("connected").get_mut()
    }

    fn leave(&mut self) {
        let reset = self.dice.one_in(2);
        let time = self.dice.millis(60);
        let socket = self.socket();
        if reset {
            SockRef::from(&*socket).set_linger(Some(Duration::ZERO)).unwrap();
        } else {
            let _gone_already = socket.shutdown(Shutdown::Write);
            thread::sleep(time);
        }
    }

    fn read_all(&mut self, plan: &Plan) -> io::Result<()> {
        let mut aborts = false;
        for means in &plan.means {
            if matches!(means, Means::Nothing) {
                continue;
            }
            let reply = self.reply()?;
            self.take(means, &reply, &mut aborts);
        }
        Ok(())
    }

    /// What a reply says. `aborts`: a command of the transaction was refused.
    fn take(&mut self, means: &Means, reply: &Reply, aborts: &mut bool) {
        let refused = is_refusal(reply);
        let queued = matches!(reply, Reply::Line(line) if line == "+QUEUED");
        let ok = matches!(reply, Reply::Line(line) if line == "+OK");
        let fits = match means {
            Means::Nothing => false,
            Means::Fine => ok,
            Means::Discard(writes) => {
                self.told(writes, Outcome::Refused);
                ok
            }
            Means::FineOrNot => ok || refused,
            Means::Multi => {
                *aborts = !ok;
                ok || refused
            }
            Means::Says(word) => matches!(reply, Reply::Text(text) if text == word) || is_unreachable(reply),
            Means::Wrote(places) => {
                let outcome = if refused {
                    Outcome::Refused
                } else {
                    Outcome::Applied
                };
                self.told(places, outcome);
                refused || ok || matches!(reply, Reply::Line(line) if line.starts_with(':'))
            }
            Means::Queued => {
                *aborts |= refused;
                refused || queued
            }
            Means::Exec { writes, watched } => {
                let done = matches!(reply, Reply::List(_));
                let nothing = *watched && matches!(reply, Reply::Nil);
                let outcome = if done { Outcome::Applied } else { Outcome::Refused };
                self.told(writes, outcome);
                (done && !*aborts) || nothing || refused
            }
            Means::Read { resource, token } => match reply {
                Reply::Line(line) if line.starts_with(':') => {
                    self.history.read.push(Read {
                        resource: *resource,
                        token: *token,
                        len: line[1..].parse().unwrap(),
                    });
                    self.world.tell(*resource, *token);
                    true
                }
                Reply::Line(_) | Reply::Text(_) | Reply::Nil | Reply::List(_) => refused,
            },
            Means::Popped(place) => self.popped(*place, reply, refused),
        };
        assert!(fits, "{means:?} was answered by {reply:?}");
    }

    fn told(&mut self, places: &[usize], outcome: Outcome) {
        for place in places {
            let wrote = &mut self.history.wrote[*place];
            wrote.outcome = outcome;
            match outcome {
                Outcome::Applied => {
                    self.world.applied.fetch_add(1, Ordering::Relaxed);
                    self.world.told[wrote.resource].fetch_max(wrote.token, Ordering::SeqCst);
                }
                Outcome::Refused => {
                    self.world.refused.fetch_add(1, Ordering::Relaxed);
                }
                Outcome::Unknown => {}
            }
        }
    }

    fn popped(&mut self, place: usize, reply: &Reply, refused: bool) -> bool {
        let element = match reply {
            Reply::List(both) => match &both[..] {
                [Reply::Text(_), Reply::Text(element)] => element,
                _ => return false,
            },
            Reply::Text(element) => element,
            Reply::Nil | Reply::Line(_) => {
                self.history.popped[place].got = Got::Nothing;
                return refused || matches!(reply, Reply::Nil);
            }
        };
        let (_, number) = super::lists::split(element.as_bytes());
        let popped = &mut self.history.popped[place];
        popped.got = Got::Element(number);
        self.world.tell(popped.resource, popped.token);
        true
    }

    fn reply(&mut self) -> io::Result<Reply> {
        read(self.conn.as_mut().expect("connected"))
    }
}

/// What a client reads.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Reply {
    /// `+`, `-` or `:` and what follows.
    Line(String),
    Text(String),
    Nil,
    List(Vec<Reply>),
}

pub fn read(reader: &mut impl BufRead) -> io::Result<Reply> {
    let mut line = String::new();
    match reader.read_line(&mut line) {
        Ok(_) if line.ends_with("\r\n") => {}
        Ok(_) => return Err(io::ErrorKind::UnexpectedEof.into()),
        Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => {
            panic!("no reply came")
        }
        Err(error) => return Err(error),
    }
    let line = line.trim_end();
    let (kind, rest) = line.split_at(1);
    Ok(match kind {
        "$" | "*" if rest == "-1" => Reply::Nil,
        "$" => {
            let mut text = vec![0; rest.parse::<usize>().unwrap() + 2];
            reader.read_exact(&mut text)?;
            text.truncate(text.len() - 2);
            Reply::Text(String::from_utf8(text).unwrap())
        }
        "*" => {
            let count: usize = rest.parse().unwrap();
            Reply::List((0..count).map(|_| read(reader)).collect::<io::Result<_>>()?)
        }
        _ => Reply::Line(line.to_owned()),
    })
}

/// The gate's word that something was not done, and will not be.
fn is_refusal(reply: &Reply) -> bool {
    let Reply::Line(line) = reply else { return false };
    if let Some(stale) = line.strip_prefix("-FENCED stale token ") {
        let words: Vec<&str> = stale.split(' ').collect();
        let (own, highest): (u64, u64) = (words[0].parse().unwrap(), words[2].parse().unwrap());
        assert!(own < highest, "{line}");
        return true;
    }
    let others = [
        "draining",
        "store unavailable",
        "not owner",
        "upstream unreachable",
    ];
    line.starts_with("-EXECABORT")
        || others
            .iter()
            .any(|other| line.starts_with(&format!("-FENCED {other}")))
}

fn is_unreachable(reply: &Reply) -> bool {
    matches!(reply, Reply::Line(line) if line.starts_with("-FENCED upstream unreachable"))
}
