//! Two instances whose ways to etcd are cut, held and opened at random: never do both own, and no acknowledged mark is
//! lost.

mod etcd;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use etcd::{Etcd, Forwarder, Instance, Mode, raise, settings};
use fencegate::ledger::Ledger;
use fencegate::ledger::etcd::{EtcdLedger, Event};

/// What was acknowledged, by whom ever, and when.
type Acknowledged = Arc<Mutex<BTreeMap<String, (u128, Instant)>>>;

#[derive(Default)]
struct Seen {
    elections: AtomicUsize,
    acknowledged: AtomicUsize,
    over: AtomicBool,
}

#[test]
fn two_instances_on_bad_ways_never_own_at_once_and_lose_no_mark() {
    let seed = std::env::var("FENCEGATE_SEED").map_or_else(|_| fresh_seed(), |seed| seed.parse().unwrap());
    let seconds = std::env::var("FENCEGATE_LONG").map_or(15, |_| 300);
    println!("FENCEGATE_SEED={seed}");
    let etcd = Etcd::one();
    let ways: Vec<Forwarder> = (0..2)
        .map(|_| Forwarder::before(etcd.members[0].client_port))
        .collect();
    let ledgers: [Mutex<Option<Arc<EtcdLedger>>>; 2] = Default::default();
    let acknowledged = Acknowledged::default();
    let seen = Seen::default();
    std::thread::scope(|scope| {
        for (way, place) in ways.iter().zip(&ledgers) {
            let (acknowledged, seen) = (acknowledged.clone(), &seen);
            scope.spawn(move || live(way.endpoint(), place, &acknowledged, seen));
        }
        scope.spawn(|| {
            while !seen.over.load(Ordering::Relaxed) {
                never_both(&ledgers);
            }
        });
        let mut random = seed;
        let until = Instant::now() + Duration::from_secs(seconds);
        while Instant::now() < until {
            let way = &ways[(draw(&mut random) % 2) as usize];
            way.set(match draw(&mut random) % 5 {
                0 => Mode::Hold,
                1 => Mode::HoldAnswers,
                2 => Mode::Cut,
                _ => Mode::Pass,
            });
            std::thread::sleep(Duration::from_millis(50 + draw(&mut random) % 2500));
        }
        ways.iter().for_each(|way| way.set(Mode::Pass));
        etcd::wait_for("an owner in the end", || {
            let owned = |place: &Mutex<Option<Arc<EtcdLedger>>>| {
                place
                    .lock()
                    .unwrap()
                    .as_ref()
                    .is_some_and(|ledger| ledger.owned())
            };
            ledgers.iter().any(owned).then_some(())
        });
        seen.over.store(true, Ordering::Relaxed);
    });
    let (elections, marks) = (&seen.elections, &seen.acknowledged);
    println!("{elections:?} elections, {marks:?} raises acknowledged");
    assert!(elections.load(Ordering::Relaxed) > 0 && marks.load(Ordering::Relaxed) > 0);
}

/// One instance, which raises as fast as it may whenever it owns.
fn live(endpoint: String, place: &Mutex<Option<Arc<EtcdLedger>>>, acknowledged: &Acknowledged, seen: &Seen) {
    let mut settings = settings(vec![endpoint]);
    settings.owner_ttl = Duration::from_secs(2);
    let mut instance = Instance::start(settings);
    let mut token = 0;
    while !seen.over.load(Ordering::Relaxed) {
        if let Some(Event::Elected {
            ledger,
            marks,
            answered_at,
            ..
        }) = instance.now()
        {
            let marks: BTreeMap<_, _> = marks
                .into_iter()
                .map(|(name, mark)| (name, mark.token.0))
                .collect();
            for (name, (token, at)) in acknowledged.lock().unwrap().iter() {
                // What was acknowledged later may be a later tenure's.
                assert!(
                    *at > answered_at || marks[name] >= *token,
                    "{name} {token} is lost: {:?}",
                    marks.get(name)
                );
            }
            token = marks.values().max().map_or(0, |max| *max);
            *place.lock().unwrap() = Some(ledger);
            seen.elections.fetch_add(1, Ordering::Relaxed);
        }
        let ledger = place.lock().unwrap().clone();
        let Some(ledger) = ledger.filter(|ledger| ledger.owned()) else {
            std::thread::sleep(Duration::from_millis(5));
            continue;
        };
        token += 1;
        let name = format!("r{}", token % 7);
        let (tell, told) = std::sync::mpsc::channel();
        ledger.submit(
            raise(&name, token),
            Box::new(move |result| drop(tell.send(result))),
        );
        if told.recv().unwrap().is_ok() {
            let mut acknowledged = acknowledged.lock().unwrap();
            let held = acknowledged.entry(name).or_insert((0, Instant::now()));
            if held.0 < token {
                *held = (token, Instant::now());
            }
            seen.acknowledged.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// Asked in turns: where the first owns before and after the second was asked, it did meanwhile.
fn never_both(ledgers: &[Mutex<Option<Arc<EtcdLedger>>>; 2]) {
    let [first, second] = ledgers.each_ref().map(|place| place.lock().unwrap().clone());
    let (Some(first), Some(second)) = (first, second) else {
        std::thread::sleep(Duration::from_millis(1));
        return;
    };
    for _ in 0..100 {
        let (before, between, after) = (first.owned(), second.owned(), first.owned());
        assert!(!(before && between && after), "both own");
    }
    std::thread::sleep(Duration::from_millis(1));
}

fn fresh_seed() -> u64 {
    use std::hash::{BuildHasher, RandomState};
    RandomState::new().hash_one(0)
}

/// splitmix64.
fn draw(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut z = *state;
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}
