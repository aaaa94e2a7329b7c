//! Random sessions of raw TCP whose holders come and go, pause, leave and are cut off, before a backend that is as slow
//! and as rude as it may be, while the gate is killed and stopped and what lies between them has accidents. The
//! backend's journal says in which order bytes took effect: `random/streams.rs` finds what is wrong in it.
//!
//! `FENCEGATE_SEED` picks the run, `FENCEGATE_ROUNDS` its length; `FENCEGATE_LONG=1` makes it long.

mod gate;
mod random;

use std::collections::HashMap;
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, RwLock};
use std::thread;
use std::time::{Duration, Instant};

use socket2::SockRef;

use gate::sessions::{BY_PREFACE, BY_TLV, holder as header, tcp};
use gate::{Conn, Gate, sleep_until};
use random::relay::Way;
use random::streams::{Event, Holder, Journal, Store, Why, faults};
use random::{Dice, Relay, rounds, seed};

const RESOURCES: [&str; 4] = ["r0", "r1", "r2", "r3"];
const CLIENTS: u64 = 12;
/// What the relay and the backend may take together stays well below it (A4).
const SETTLE_AFTER: Duration = Duration::from_millis(1800);
const HELD_MAX: Duration = Duration::from_millis(400);
const LATE_MAX: Duration = Duration::from_millis(400);

/// What all clients share.
struct World {
    /// The gate's port; written while it restarts.
    port: RwLock<u16>,
    prefaced: bool,
    /// Tokens come from one counter, as revisions of a store do.
    counter: AtomicU64,
    holders: [AtomicU64; RESOURCES.len()],
    /// The highest that was let through, as clients know.
    through: [AtomicU64; RESOURCES.len()],
    sessions: AtomicU64,
    told: AtomicU64,
    /// How often the gate was stopped in order.
    stops: AtomicU64,
    stop: AtomicBool,
    journal: Journal,
}

impl World {
    fn opening(&self, of: &Holder) -> Vec<u8> {
        let resource = RESOURCES[of.resource];
        match self.prefaced {
            true => format!("FENCE {resource} {}\n", of.token).into_bytes(),
            false => header(resource, of.token),
        }
    }

    /// Whether the gate still knows what it has let through.
    fn assert_known(&self, gate: &Gate) {
        let known = self.through.each_ref().map(|token| token.load(Ordering::SeqCst));
        for (name, known) in RESOURCES.iter().zip(known) {
            let reply = Conn::open(gate.admin)
                .send(format!(
                    "GET /api/v1/fences?resource={name} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
                ))
                .reply();
            let highest = reply.json()["fences"][0]["highest"]
                .as_str()
                .map_or(0, |text| text.parse().unwrap());
            assert!(highest >= known, "{name}: {known} was let through: {reply:?}");
        }
    }
}

/// A client, one session after the other.
struct Client<'w> {
    world: &'w World,
    dice: Dice,
    mine: [u64; RESOURCES.len()],
    /// The resource of the last session, if that broke.
    lost: Option<usize>,
    /// How much each session wanted to send.
    sent: HashMap<u64, usize>,
}

impl Client<'_> {
    fn run(mut self) -> HashMap<u64, usize> {
        while !self.world.stop.load(Ordering::Relaxed) {
            let of = self.holder();
            let port = *self.world.port.read().unwrap();
            let Ok(stream) = TcpStream::connect(("127.0.0.1", port)) else {
                thread::sleep(Duration::from_millis(20));
                continue;
            };
            let mut session = Session::new(self.world, stream, of);
            session.play(&mut self.dice);
            self.sent.insert(of.session, session.wanted);
            // Whoever takes the lock of one that was lost comes when what it sent is not settled.
            self.lost = session.lost.then_some(of.resource);
        }
        self.sent
    }

    fn holder(&mut self) -> Holder {
        let any = usize::try_from(self.dice.below(RESOURCES.len() as u64)).unwrap();
        let lost = self.lost.take().filter(|_| self.dice.one_in(2));
        let resource = lost.unwrap_or(any);
        let holders = &self.world.holders[resource];
        let choice = self.dice.below(8);
        let token = match if lost.is_some() { 0 } else { choice } {
            0 => {
                let token = self.world.counter.fetch_add(1, Ordering::SeqCst) + 1;
                holders.fetch_max(token, Ordering::SeqCst);
                token
            }
            1..=4 => holders.load(Ordering::SeqCst),
            _ => self.mine[resource],
        };
        self.mine[resource] = token;
        Holder {
            resource,
            token,
            session: self.world.sessions.fetch_add(1, Ordering::SeqCst) + 1,
        }
    }
}

/// One session at its client.
struct Session<'w> {
    world: &'w World,
    stream: TcpStream,
    of: Holder,
    heard: Vec<u8>,
    wanted: usize,
    stops: u64,
    /// It broke, or was ended by the backend.
    lost: bool,
}

/// What a moment's listening brings.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Heard {
    Something,
    Nothing,
    /// An end in order.
    End,
    Broken,
}

impl<'w> Session<'w> {
    fn new(world: &'w World, stream: TcpStream, of: Holder) -> Session<'w> {
        stream.set_nodelay(true).unwrap();
        // A backend may take nothing for a while, but not for ever.
        stream.set_write_timeout(Some(Duration::from_secs(4))).unwrap();
        Session {
            world,
            stream,
            of,
            heard: Vec::new(),
            wanted: 0,
            stops: world.stops.load(Ordering::SeqCst),
            lost: false,
        }
    }

    /// Plays it in some manner.
    fn play(&mut self, dice: &mut Dice) {
        let opening = self.world.opening(&self.of);
        let (pieces, piece, pause) = match dice.below(10) {
            0..=3 => (1, 200, 0),
            4 | 5 => (3 + dice.below(20), 2000, 40),
            6 | 7 => (2 + dice.below(2), 3000, 700),
            8 => (10 + dice.below(20), 65_536, 5),
            _ => (0, 0, 500),
        };
        let cut = usize::try_from(dice.below(opening.len() as u64)).unwrap();
        match dice.below(12) {
            // A beginning that never comes whole.
            0 => {
                let _refused_already = self.stream.write_all(&opening[..cut]);
                return;
            }
            1 => {
                if self.stream.write_all(&opening[..cut]).is_err() {
                    return;
                }
                thread::sleep(dice.millis(100));
                if self.stream.write_all(&opening[cut..]).is_err() {
                    return;
                }
            }
            _ => {
                if self.stream.write_all(&opening).is_err() {
                    return;
                }
            }
        }
        for n in 0..pieces {
            let before = self.wanted;
            self.wanted += 60 + usize::try_from(dice.below(piece)).unwrap();
            let bytes = self.of.bytes(self.wanted);
            if self.stream.write_all(&bytes[before..]).is_err()
                || matches!(self.listen(Duration::from_millis(1)), Heard::End | Heard::Broken)
            {
                self.lost = true;
                return;
            }
            if n + 1 < pieces {
                thread::sleep(dice.millis(pause + 1));
            }
        }
        if pieces == 0 {
            self.listen(dice.millis(pause) + Duration::from_millis(1));
        }
        match dice.below(12) {
            0 => {
                let _gone_already = SockRef::from(&self.stream).set_linger(Some(Duration::ZERO));
            }
            1 => {}
            _ => self.finish(dice),
        }
    }

    /// Reads what the backend says for a moment.
    fn listen(&mut self, time: Duration) -> Heard {
        let _gone_already = self.stream.set_read_timeout(Some(time));
        let mut room = [0; 256];
        match self.stream.read(&mut room) {
            Ok(0) => Heard::End,
            Ok(len) => {
                if self.heard.is_empty() {
                    self.world.journal.note(Event::Through { of: self.of });
                    self.world.through[self.of.resource].fetch_max(self.of.token, Ordering::SeqCst);
                }
                self.heard.extend_from_slice(&room[..len]);
                Heard::Something
            }
            Err(error) => match error.kind() {
                ErrorKind::WouldBlock | ErrorKind::TimedOut => Heard::Nothing,
                _ => Heard::Broken,
            },
        }
    }

    /// Ends its side and reads what the backend says last.
    fn finish(&mut self, dice: &mut Dice) {
        if self.stream.shutdown(Shutdown::Write).is_err() {
            return;
        }
        let end = Instant::now() + Duration::from_millis(500) + dice.millis(3500);
        loop {
            match self.listen(Duration::from_millis(200)) {
                Heard::End => break,
                Heard::Something | Heard::Nothing if Instant::now() < end => {}
                Heard::Something | Heard::Nothing | Heard::Broken => {
                    self.lost = true;
                    return;
                }
            }
        }
        let text = String::from_utf8_lossy(&self.heard).into_owned();
        self.lost = !text.contains("took ");
        let took = text.lines().find_map(|line| line.strip_prefix("took "));
        if let Some(took) = took {
            let took = took.parse().unwrap();
            let whole = self.world.stops.load(Ordering::SeqCst) == self.stops;
            self.world.journal.note(Event::Told {
                of: self.of,
                took,
                whole,
            });
            self.world.told.fetch_add(1, Ordering::Relaxed);
        }
    }
}

fn restart(world: &World, gate: &mut Gate, in_order: bool) {
    let mut port = world.port.write().unwrap();
    if in_order {
        world.stops.fetch_add(1, Ordering::SeqCst);
        // Not clean where something was in doubt.
        let code = gate.stop();
        assert!(matches!(code, Some(0 | 1)), "{code:?}: {}", gate.log());
    } else {
        gate.kill();
    }
    gate.start();
    *port = gate.port;
    drop(port);
    world.assert_known(gate);
}

fn disturb(what: u64, dice: &mut Dice, world: &World, gate: &mut Gate, relay: &Relay) {
    let way = dice.pick(&[Way::Up, Way::Down]);
    let time = Duration::from_millis(20) + dice.millis(200);
    match what {
        0 => restart(world, gate, false),
        1 => restart(world, gate, true),
        2 => {
            gate.signal(libc::SIGSTOP);
            thread::sleep(time * 2);
            gate.signal(libc::SIGCONT);
        }
        3 => relay.cut(1),
        4 => relay.cut(3),
        // What was sent arrives after the gate's end, or its answers never do.
        5 => {
            match dice.one_in(3) {
                true => relay.hold(Way::Down, time),
                false => relay.hold_open(Way::Up, HELD_MAX * 6 / 7, 1),
            }
            thread::sleep(dice.millis(100));
            restart(world, gate, false);
        }
        // Newer holders overtake what was sent before.
        6 => relay.hold_open(Way::Up, HELD_MAX * 2 / 3, 2),
        _ => relay.hold(way, time),
    }
}

fn run(prefaced: bool, short: u64, long: u64) {
    let (seed, rounds) = (seed(), rounds(short, long));
    let journal = Journal::default();
    let store = Store::start(seed, LATE_MAX, &journal);
    let relay = Relay::before(store.port, seed, HELD_MAX);
    let rules = if prefaced { BY_PREFACE } else { BY_TLV };
    let rules = rules.replace("token: {", "drain_timeout: 6s\n        token: {");
    let mut gate = tcp(&rules)
        .settle_after(&format!("{}ms", SETTLE_AFTER.as_millis()))
        .top("shutdown_timeout: 2s")
        .start(relay.port);
    let one = |_| AtomicU64::new(1);
    let world = Arc::new(World {
        port: RwLock::new(gate.port),
        prefaced,
        counter: AtomicU64::new(1),
        holders: std::array::from_fn(one),
        through: Default::default(),
        sessions: AtomicU64::new(0),
        told: AtomicU64::new(0),
        stops: AtomicU64::new(0),
        stop: AtomicBool::new(false),
        journal: journal.clone(),
    });
    let clients: Vec<_> = (0..CLIENTS)
        .map(|number| {
            let world = Arc::clone(&world);
            thread::spawn(move || {
                let client = Client {
                    world: &world,
                    dice: Dice::new((seed << 8) + number + 1),
                    mine: [1; RESOURCES.len()],
                    lost: None,
                    sent: HashMap::new(),
                };
                client.run()
            })
        })
        .collect();
    relay.accidents(80);
    let mut dice = Dice::new(seed << 8);
    for round in 0..rounds {
        sleep_until(Instant::now() + Duration::from_millis(300) + dice.millis(900));
        disturb((seed + round * 3) % 8, &mut dice, &world, &mut gate, &relay);
    }
    relay.calm();
    sleep_until(Instant::now() + Duration::from_secs(2));
    world.stop.store(true, Ordering::Relaxed);
    let mut sent = HashMap::new();
    for client in clients {
        sent.extend(client.join().unwrap());
    }
    world.assert_known(&gate);
    // What was lost late is through by then.
    sleep_until(Instant::now() + HELD_MAX + LATE_MAX);
    let (events, told) = (journal.events(), world.told.load(Ordering::Relaxed));
    let raises = world.counter.load(Ordering::Relaxed);
    eprintln!(
        "seed {seed}: {} sessions, {told} told all, {raises} tokens, {} effects and answers",
        sent.len(),
        events.len()
    );
    let faults = faults(&events, &sent);
    let shown: Vec<&String> = faults.iter().take(20).collect();
    assert!(
        faults.is_empty(),
        "seed {seed}: {} faults: {shown:#?}",
        faults.len()
    );
    assert!(told > 10, "only {told} sessions came to their end");
}

#[test]
fn random_sessions_and_crashes_never_take_a_resource_backwards() {
    run(false, 20, 500);
}

#[test]
fn random_sessions_with_a_first_line_and_crashes_never_take_a_resource_backwards() {
    run(true, 20, 500);
}

// ---- the checker

/// A journal in which all is well: an older session's end is told, and a newer one is let through after it.
fn good() -> (Vec<Event>, HashMap<u64, usize>) {
    let (old, new) = (session(1, 5), session(2, 6));
    let events = vec![
        Event::Through { of: old },
        effect(old, 0, 10),
        effect(old, 0, 20),
        told(old, 20),
        Event::Through { of: new },
        effect(new, 1, 5),
    ];
    (events, HashMap::from([(1, 20), (2, 30)]))
}

fn told(of: Holder, took: usize) -> Event {
    let whole = true;
    Event::Told { of, took, whole }
}

fn effect(of: Holder, conn: usize, upto: usize) -> Event {
    let why = Why::Read;
    Event::Effect { of, conn, upto, why }
}

fn session(session: u64, token: u64) -> Holder {
    Holder {
        resource: 0,
        token,
        session,
    }
}

#[test]
fn the_checker_finds_nothing_in_what_is_right() {
    let (events, sent) = good();
    assert_eq!(faults(&events, &sent), [""; 0]);
}

#[test]
fn the_checker_finds_each_thing_that_is_wrong() {
    let (old, new) = (session(1, 5), session(2, 6));
    let (right, sent) = good();
    let with = |at: usize, event: Event| {
        let mut events = right.clone();
        events.insert(at, event);
        faults(&events, &sent)
    };
    let other = session(3, 5);
    for (what, found) in [
        ("backwards", with(6, effect(other, 2, 1))),
        ("backwards", with(5, effect(other, 2, 1))),
        ("twice", with(3, effect(old, 2, 20))),
        ("again", with(3, effect(old, 0, 20))),
        ("unsent", with(6, effect(new, 1, 31))),
        ("unsent", with(1, effect(session(4, 9), 1, 1))),
        ("told", with(6, told(new, 30))),
        ("told", with(6, told(new, 5))),
        (
            "torn",
            with(
                0,
                Event::Torn {
                    conn: 0,
                    why: "it begins with nothing".into(),
                },
            ),
        ),
    ] {
        assert!(
            found.iter().any(|fault| fault.starts_with(what)),
            "{what}: {found:?}"
        );
    }
}
