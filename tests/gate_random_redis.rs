//! Random holders of a Redis gate, with pipelines, transactions, scripts and pops that wait, while connections are held,
//! cut and lost, the server pauses, and the gate is killed: what the server applied is what clients were told, and on
//! each resource tokens never go down.
//!
//! `FENCEGATE_SEED` picks the run, `FENCEGATE_ROUNDS` its length; `FENCEGATE_LONG=1` makes it long.

mod backends;
mod gate;
mod random;
mod redis;

use std::sync::atomic::Ordering;
use std::sync::{Arc, RwLock};
use std::thread;
use std::time::{Duration, Instant};

use gate::{Conn, Gate, PATIENCE};
use random::holder::{Holder, RESOURCES, World};
use random::lists::{Effect, Got, History, Outcome, Popped, Read, Wrote, check, journal, lists};
use random::relay::Way;
use random::{Dice, Relay, rounds, seed};
use redis::{Server, setup, until};

const RULES: &str = r#"
      - { name: orders, match: { keys: "orders:{id}*" }, resource: "orders/{id}", token: { connection: true }, drain_timeout: 3s }
"#;
/// What the server and the relay may take together stays well below it.
const SETTLE_AFTER: &str = "2s";
const HELD_MAX: Duration = Duration::from_millis(1000);
const HOLDERS: u64 = 16;
/// Half of so many rounds are rough, half of them fair.
const WEATHER: u64 = 20;
/// In fair weather the gate is killed every so many rounds.
const CRASH: u64 = 6;

#[test]
fn random_pipelines_and_crashes_never_take_a_resource_backwards() {
    let seed = seed();
    let rounds = rounds(60, 1200);
    let server = Server::with(&[
        "appendonly yes",
        "appendfsync no",
        "auto-aof-rewrite-percentage 0",
    ]);
    let relay = Relay::before(server.port, seed, HELD_MAX);
    let mut gate = setup(RULES)
        .settle_after(SETTLE_AFTER)
        .upstream("response_timeout: 800ms")
        .start(relay.port);
    let world = Arc::new(World::new(vec![gate.port], &["0.05", "0.3", "1", "0"]));
    let mut history = first_writes(&gate, &world);
    let admin = Arc::new(RwLock::new(gate.admin));
    let marks = {
        let (world, admin) = (Arc::clone(&world), Arc::clone(&admin));
        thread::spawn(move || watch_marks(&world, &admin))
    };
    let holders: Vec<_> = (0..HOLDERS)
        .map(|number| {
            let world = Arc::clone(&world);
            thread::spawn(move || Holder::new(&world, (seed << 8) + number + 1).run())
        })
        .collect();
    let mut dice = Dice::new(seed);
    for round in 0..rounds {
        let is_fair = round % WEATHER >= WEATHER / 2;
        world.is_fair.store(is_fair, Ordering::Relaxed);
        relay.accidents(if is_fair { 0 } else { 50 });
        relay.stalls(if is_fair { 100 } else { 0 });
        // Much is under way in fair weather, and nothing is lost, so that raises wait for nothing: newer holders overtake
        // those who stand still.
        let crashes = is_fair && round % CRASH == CRASH - 1;
        thread::sleep(Duration::from_millis(100) + dice.millis(500));
        if crashes {
            // What it had sent arrives when the next one is there.
            relay.hold_open(Way::Up, HELD_MAX * 9 / 10, 1);
            thread::sleep(Duration::from_millis(50) + dice.millis(50));
            restart(&mut gate, &world, &admin, Gate::kill);
        }
        if is_fair {
            raise_all(&gate, &world, &mut history);
        } else {
            disturb(&mut dice, &server, &relay, &mut gate, &world, &admin);
        }
    }
    relay.calm();
    world.stop.store(true, Ordering::Relaxed);
    // Whoever waits for ever is ended by somebody newer.
    let end = Instant::now() + 2 * PATIENCE;
    while !holders.iter().all(thread::JoinHandle::is_finished) {
        assert!(Instant::now() < end, "some holder does not come to its end");
        raise_all(&gate, &world, &mut history);
    }
    let mut failed = 0;
    for holder in holders {
        holder
            .join()
            .map_or_else(|_panic| failed += 1, |done| history.add(done));
    }
    marks.join().unwrap();
    assert_eq!(failed, 0, "holders that read what can't be");
    until(|| gate.metric("fencegate_in_flight_writes", &[]) < 0.5);
    until(|| gate.metric("fencegate_in_doubt_writes", &[]) < 0.5);
    check_server(&server, &history);
    assert_eq!(gate.stop(), Some(0), "{}", gate.log());
    let (applied, refused) = (
        world.applied.load(Ordering::Relaxed),
        world.refused.load(Ordering::Relaxed),
    );
    let unknown = history.wrote.len() as u64 - applied - refused;
    eprintln!("{rounds} rounds: {applied} writes took effect, {refused} were refused, {unknown} are unknown");
    eprintln!("{} reads, {} pops", history.read.len(), history.popped.len());
    assert!(applied > rounds, "only {applied} writes took effect");
}

/// What goes wrong next.
fn disturb(
    dice: &mut Dice,
    server: &Server,
    relay: &Relay,
    gate: &mut Gate,
    world: &World,
    admin: &RwLock<u16>,
) {
    match dice.below(15) {
        0 | 1 => {
            server.pause();
            thread::sleep(dice.millis(300));
            server.go_on();
        }
        2 => relay.hold(Way::Up, dice.millis(350)),
        // Newer holders overtake what was written before.
        3..=5 => relay.hold_open(Way::Up, HELD_MAX / 2, 4),
        6 | 7 => relay.hold(Way::Down, dice.millis(1200)),
        8 => relay.cut(1),
        9 | 10 => relay.cut(3),
        11 | 12 => {
            gate.signal(libc::SIGSTOP);
            thread::sleep(dice.millis(700));
            gate.signal(libc::SIGCONT);
        }
        13 => restart(gate, world, admin, Gate::kill),
        _ => restart(gate, world, admin, |gate| {
            assert_eq!(gate.stop(), Some(0), "{}", gate.log());
        }),
    }
}

/// What finds no gate tries again; nobody sees the new one before it is there.
fn restart(gate: &mut Gate, world: &World, admin: &RwLock<u16>, end: impl FnOnce(&mut Gate)) {
    let mut ports = world.ports.write().unwrap();
    let mut admin = admin.write().unwrap();
    end(gate);
    gate.start();
    (*ports, *admin) = (vec![gate.port], gate.admin);
}

/// Each resource has a mark from the start.
fn first_writes(gate: &Gate, world: &World) -> History {
    let mut history = History::default();
    for resource in 0..RESOURCES {
        while world.told[resource].load(Ordering::SeqCst) == 0 {
            history.add(raise(gate, world, resource));
        }
    }
    history
}

/// A newer holder of each resource at once.
fn raise_all(gate: &Gate, world: &World, history: &mut History) {
    thread::scope(|scope| {
        let raises: Vec<_> = (0..RESOURCES)
            .map(|resource| scope.spawn(move || raise(gate, world, resource)))
            .collect();
        for raise in raises {
            history.add(raise.join().unwrap());
        }
    });
}

/// Whatever was in flight is over, also for one who has the newest token of all.
fn raise(gate: &Gate, world: &World, resource: usize) -> History {
    let token = world.last_token(resource);
    let number = u64::MAX / 2 - token * RESOURCES as u64 - resource as u64;
    let mut history = History::default();
    let mut client = redis::Client::holder(gate, token);
    // Often where an older holder's pop may be waiting for it.
    let queue = if token.is_multiple_of(2) { ":q" } else { "" };
    let reply = client.ask(&format!("RPUSH orders:{resource}{queue} {token}-{number}"));
    let outcome = match &*reply {
        "END" => Outcome::Unknown,
        refused if refused.starts_with("-FENCED") => Outcome::Refused,
        pushed => {
            assert!(pushed.starts_with(':'), "{pushed}");
            world.tell(resource, token);
            Outcome::Applied
        }
    };
    history.wrote.push(Wrote {
        number,
        resource,
        token,
        outcome,
        together: None,
    });
    history
}

/// The marks that the gate shows are never lower than a token by which something was answered.
fn watch_marks(world: &World, admin: &RwLock<u16>) {
    while !world.stop.load(Ordering::Relaxed) {
        let told: Vec<u64> = world
            .told
            .iter()
            .map(|told| told.load(Ordering::SeqCst))
            .collect();
        let shown = {
            let admin = admin.read().unwrap();
            Conn::try_open(*admin).and_then(|mut conn| {
                conn.try_send("GET /api/v1/fences HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")?;
                conn.try_reply(false)
            })
        };
        if let Ok(shown) = shown {
            let fences = shown.json()["fences"].as_array().unwrap().clone();
            for (resource, told) in told.iter().enumerate().filter(|(_, told)| **told > 0) {
                let fence = fences
                    .iter()
                    .find(|fence| fence["resource"] == format!("orders/{resource}"))
                    .unwrap_or_else(|| panic!("orders/{resource} has no mark, and {told} was answered"));
                let highest: u64 = fence["highest"].as_str().unwrap().parse().unwrap();
                assert!(
                    highest >= *told,
                    "orders/{resource}: {highest} is shown, {told} was answered"
                );
            }
        }
        thread::sleep(Duration::from_millis(50));
    }
}

/// What the server did, by its own log and by its lists.
fn check_server(server: &Server, history: &History) {
    let log = std::fs::read(
        server
            .folder
            .path()
            .join("appendonlydir/appendonly.aof.1.incr.aof"),
    )
    .unwrap();
    let journal = journal(&log);
    if let Err(wrong) = check(history, &journal) {
        panic!("{wrong}");
    }
    let mut client = server.client();
    for (resource, list) in lists(&journal) {
        let found = client.ask(&format!("LRANGE orders:{resource} 0 -1"));
        let found: Vec<(u64, u64)> = found
            .trim_matches(['[', ']'])
            .split_whitespace()
            .map(|element| random::lists::split(element.as_bytes()))
            .collect();
        assert!(found == list, "orders:{resource} is not what the log says");
    }
}

// ---- the checker can fail

/// A history and a journal that go together: 1 writes, a pair of 2 follows, 3 reads, pushes and pops.
fn a_good_run() -> (History, Vec<Effect>) {
    let wrote = |number, token, outcome, together| Wrote {
        number,
        resource: 0,
        token,
        outcome,
        together,
    };
    let history = History {
        wrote: vec![
            wrote(10, 1, Outcome::Applied, None),
            wrote(11, 1, Outcome::Unknown, None),
            wrote(20, 2, Outcome::Applied, Some(7)),
            wrote(21, 2, Outcome::Applied, Some(7)),
            wrote(12, 1, Outcome::Refused, None),
            wrote(30, 3, Outcome::Applied, None),
        ],
        popped: vec![Popped {
            resource: 0,
            token: 3,
            got: Got::Element(30),
        }],
        read: vec![Read {
            resource: 0,
            token: 3,
            len: 3,
        }],
    };
    let came = |number, token, block| Effect::Came {
        resource: 0,
        token,
        number,
        listed: number != 30,
        block,
    };
    let journal = vec![
        came(10, 1, None),
        came(20, 2, Some(1)),
        came(21, 2, Some(1)),
        came(30, 3, None),
        Effect::Left {
            resource: 0,
            number: 30,
        },
    ];
    (history, journal)
}

#[track_caller]
fn is_caught(why: &str, spoil: impl FnOnce(&mut History, &mut Vec<Effect>)) {
    let (mut history, mut journal) = a_good_run();
    spoil(&mut history, &mut journal);
    let wrong = check(&history, &journal).expect_err("it was not caught");
    assert!(wrong.contains(why), "{wrong}");
}

#[test]
fn a_run_in_which_all_is_well_passes() {
    let (history, journal) = a_good_run();
    check(&history, &journal).unwrap();
}

#[test]
fn an_older_write_after_a_newer_one_is_caught() {
    is_caught("took effect after 2", |_, journal| {
        journal.push(Effect::Came {
            resource: 0,
            token: 1,
            number: 11,
            listed: true,
            block: None,
        });
        journal.swap(3, 5);
    });
}

#[test]
fn what_was_lost_doubled_refused_or_is_nobodys_is_caught() {
    is_caught("took effect 0 times", |_, journal| {
        journal.remove(0);
    });
    is_caught("took effect 2 times", |_, journal| journal.insert(0, journal[0]));
    is_caught("took effect 1 times", |history, _| {
        history.wrote[0].outcome = Outcome::Refused;
    });
    is_caught("took effect 2 times", |history, journal| {
        history.wrote[0].outcome = Outcome::Unknown;
        journal.insert(0, journal[0]);
    });
    is_caught("nobody wrote 10", |history, _| {
        history.wrote.remove(0);
    });
}

#[test]
fn a_transaction_that_came_apart_is_caught() {
    is_caught("came apart", |history, journal| {
        for wrote in &mut history.wrote[2..4] {
            wrote.outcome = Outcome::Unknown;
        }
        journal.remove(1);
    });
    is_caught("came apart", |_, journal| {
        let Effect::Came { block, .. } = &mut journal[1] else {
            unreachable!("made so")
        };
        *block = Some(2);
    });
    is_caught("came apart", |_, journal| journal.swap(1, 2));
}

#[test]
fn something_older_after_a_read_is_caught() {
    is_caught("came after", |history, _| history.read[0].len = 2);
    is_caught("saw more than", |history, _| history.read[0].len = 4);
}

#[test]
fn a_pop_of_an_older_holder_is_caught_known_or_not() {
    is_caught("took effect after 3", |history, _| history.popped[0].token = 2);
    is_caught("nobody of 3 or newer", |history, _| {
        history.popped[0] = Popped {
            token: 2,
            got: Got::Unknown,
            ..history.popped[0]
        };
    });
    is_caught("nobody of 3 or newer", |history, _| history.popped.clear());
    let (mut history, journal) = a_good_run();
    history.popped[0].got = Got::Unknown;
    check(&history, &journal).unwrap();
}

#[test]
fn a_servers_log_is_read_as_what_took_effect() {
    let mut log = Vec::new();
    for command in [
        "SELECT 0",
        "RPUSH orders:1 5-100",
        "MULTI",
        "RPUSH orders:1 6-101",
        "SET orders:2:v 7-102-vvvv",
        "EXEC",
        "RPUSH orders:3:q 8-103 8-104",
        "LMOVE orders:3:q orders:3:m LEFT RIGHT",
        "RPOPLPUSH orders:3:q orders:3:m",
    ] {
        log.extend(redis::written(
            &command.split(' ').map(str::as_bytes).collect::<Vec<_>>(),
        ));
    }
    let came = |resource, token, number, listed, block| Effect::Came {
        resource,
        token,
        number,
        listed,
        block,
    };
    let left = |number| Effect::Left { resource: 3, number };
    assert_eq!(
        journal(&log),
        [
            came(1, 5, 100, true, None),
            came(1, 6, 101, true, Some(1)),
            came(2, 7, 102, false, Some(1)),
            came(3, 8, 103, false, None),
            came(3, 8, 104, false, None),
            left(103),
            left(104),
        ]
    );
}
