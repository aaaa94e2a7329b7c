//! The keeper under many threads: real atomics, real locks, a ledger that is slow and sometimes fails. Each thread
//! is a holder that raises, commits, settles, loses answers; shared witnesses say at once if a rule is broken.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

use fencegate::base::{Token, TokenFormat};
use fencegate::fence::Claim;
use fencegate::keeper::{Admitted, Ask, Cut, Flight, Keeper, Marks, Refused, Room, Seat};
use fencegate::ledger::{AuditEntry, Change, Done, Ledger, Mark, StoreError};
use fencegate::observe::Metrics;

const RESOURCES: [&str; 2] = ["orders", "users"];
const SETTLE_AFTER: Duration = Duration::from_millis(3);

/// A ledger that takes its time, answers from its own thread, and fails one time in `fails_one_in`.
struct Slow {
    queue: Mutex<mpsc::Sender<(Change, Done)>>,
    marks: Arc<Mutex<HashMap<String, u128>>>,
}

impl Slow {
    fn new(fails_one_in: u64) -> Slow {
        let (queue, asked) = mpsc::channel::<(Change, Done)>();
        let marks = Arc::new(Mutex::new(HashMap::new()));
        let kept = Arc::clone(&marks);
        thread::spawn(move || {
            let mut random = Random(7);
            for (change, done) in asked {
                if random.below(4) == 0 {
                    thread::yield_now();
                }
                if random.below(fails_one_in) == 0 {
                    done(Err(StoreError::Failed("as scripted".into())));
                    continue;
                }
                let (name, mark) = match change {
                    Change::Raise { name, mark } | Change::Reset { name, mark, .. } => (name, mark),
                    Change::Note { .. } => unreachable!("a keeper takes nothing over"),
                };
                kept.lock().unwrap().insert(name.to_string(), mark.token.0);
                done(Ok(()));
            }
        });
        Slow {
            queue: Mutex::new(queue),
            marks,
        }
    }
}

impl Ledger for Slow {
    fn submit(&self, change: Change, done: Done) {
        self.queue.lock().unwrap().send((change, done)).unwrap();
    }

    fn scan(&self, prefix: &str, _: Option<&str>, _: usize) -> Result<Vec<(String, Mark)>, StoreError> {
        let mark = |token| Mark {
            token: Token(token),
            format: TokenFormat::Integer,
            raised_at_ms: 0,
        };
        let marks = self.marks.lock().unwrap();
        Ok(marks
            .get(prefix)
            .map(|token| (prefix.to_owned(), mark(*token)))
            .into_iter()
            .collect())
    }

    fn audit_trail(&self, _: usize) -> Result<Vec<AuditEntry>, StoreError> {
        Ok(Vec::new())
    }

    fn hold_is_over(&self, _: Duration) -> Result<(), StoreError> {
        Ok(())
    }

    fn close(&self, _: bool) -> Result<(), StoreError> {
        Ok(())
    }
}

/// A small generator with a seed: the same run again for the same seed, as far as threads allow.
struct Random(u64);

impl Random {
    fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % n
    }
}

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Polls an admission on this thread, and gives up after `patience`.
fn wait<'k>(
    keeper: &'k Arc<Keeper>,
    asks: &[Ask<'_>],
    room: &Room,
    patience: Duration,
) -> Option<Result<Admitted<'k>, Refused>> {
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let mut context = Context::from_waker(&waker);
    let mut admission = keeper.admit(asks, room, true);
    let end = Instant::now() + patience;
    loop {
        if let Poll::Ready(outcome) = admission.poll(&mut context) {
            return Some(outcome);
        }
        let left = end.checked_duration_since(Instant::now())?;
        thread::park_timeout(left);
    }
}

/// What must hold for one resource, watched from outside.
#[derive(Default)]
struct Witness {
    /// The highest token that was let through.
    let_through: AtomicU64,
    /// Until when a lost write may still take effect.
    doubt: Mutex<Option<(u64, Instant)>>,
}

impl Witness {
    fn commits(&self, token: u64, resource: &str, marks: &Mutex<HashMap<String, u128>>) {
        let before = self.let_through.fetch_max(token, Ordering::SeqCst);
        assert!(
            before <= token,
            "F1: {resource}: {token} committed after {before}"
        );
        let durable = marks.lock().unwrap().get(resource).copied().unwrap_or(0);
        assert!(
            durable >= u128::from(token),
            "S2: {resource}: {token} is let through, {durable} is durable"
        );
        if let Some((lost, until)) = *self.doubt.lock().unwrap() {
            assert!(
                lost >= token || Instant::now() >= until,
                "S6: {resource}: {token} while {lost} is in doubt"
            );
        }
    }

    fn still(&self, token: u64, resource: &str) {
        let now = self.let_through.load(Ordering::SeqCst);
        assert_eq!(
            now, token,
            "F3: {resource}: {now} was let through while {token} was in flight"
        );
    }
}

struct World {
    keeper: Arc<Keeper>,
    marks: Arc<Mutex<HashMap<String, u128>>>,
    witnesses: [Witness; 2],
    issued: [AtomicU64; 2],
    done: AtomicU64,
    stop: AtomicBool,
}

/// One step of one holder: presents a token, perhaps an old one, for one resource or both.
fn step(world: &World, room: &Room, random: &mut Random) {
    let both = random.below(5) == 0;
    let first = random.below(2) as usize;
    let touched: Vec<usize> = if both { vec![first, 1 - first] } else { vec![first] };
    let tokens: Vec<u64> = touched
        .iter()
        .map(|at| match random.below(10) {
            0 | 1 => world.issued[*at].fetch_add(1, Ordering::SeqCst) + 1,
            2 => world.issued[*at].load(Ordering::SeqCst).saturating_sub(1).max(1),
            _ => world.issued[*at].load(Ordering::SeqCst).max(1),
        })
        .collect();
    let asks: Vec<Ask<'_>> = touched
        .iter()
        .zip(&tokens)
        .map(|(at, token)| Ask {
            name: RESOURCES[*at],
            claim: Claim::Token(Token(u128::from(*token))),
            format: TokenFormat::Integer,
            max_step: None,
        })
        .collect();
    let flight = match world.keeper.quick(&asks, true) {
        Some(flight) => flight,
        None => match wait(&world.keeper, &asks, room, Duration::from_millis(20)) {
            Some(Ok(admitted)) => admitted.flight,
            Some(Err(_)) | None => return,
        },
    };
    if random.below(3) == 0
        && let [ask] = &asks[..]
        && let Some(another) = world.keeper.quick_one(ask, true, Some(&flight))
    {
        fly(
            world,
            another.settles_after(SETTLE_AFTER),
            &touched,
            &tokens,
            random,
        );
    }
    fly(
        world,
        flight.settles_after(SETTLE_AFTER),
        &touched,
        &tokens,
        random,
    );
}

fn fly(world: &World, mut flight: Flight<'_>, touched: &[usize], tokens: &[u64], random: &mut Random) {
    if random.below(3) == 0 {
        thread::yield_now();
    }
    if flight.commit().is_err() {
        return;
    }
    if random.below(8) == 0 {
        // The socket did not take the last byte.
        flight.uncommit();
        if flight.commit().is_err() {
            return;
        }
    }
    for (at, token) in touched.iter().zip(tokens) {
        world.witnesses[*at].commits(*token, RESOURCES[*at], &world.marks);
    }
    if random.below(3) == 0 {
        thread::yield_now();
    }
    for (at, token) in touched.iter().zip(tokens) {
        world.witnesses[*at].still(*token, RESOURCES[*at]);
    }
    world.done.fetch_add(1, Ordering::Relaxed);
    if random.below(40) == 0 {
        for (at, token) in touched.iter().zip(tokens) {
            *world.witnesses[*at].doubt.lock().unwrap() = Some((*token, Instant::now() + SETTLE_AFTER));
        }
        flight.lose();
    } else {
        flight.settle();
    }
}

fn run(fails_one_in: u64, steps: u64) -> World {
    let ledger = Slow::new(fails_one_in);
    let marks = Arc::clone(&ledger.marks);
    let keeper = Keeper::new(
        Marks::default(),
        Arc::new(ledger),
        Arc::new(Metrics::new()),
        Duration::ZERO,
    );
    let world = World {
        keeper,
        marks,
        witnesses: Default::default(),
        issued: Default::default(),
        done: AtomicU64::new(0),
        stop: AtomicBool::new(false),
    };
    let room = Room::new(64);
    thread::scope(|scope| {
        for seed in 1..=6 {
            let (world, room) = (&world, &room);
            scope.spawn(move || {
                let mut random = Random(seed * 0x9E37_79B9);
                let mut step_at = 0;
                while step_at < steps && !world.stop.load(Ordering::Relaxed) {
                    step(world, room, &mut random);
                    step_at += 1;
                }
            });
        }
    });
    world
}

fn steps() -> u64 {
    if std::env::var_os("FENCEGATE_LONG").is_some() {
        200_000
    } else {
        4_000
    }
}

#[test]
fn holders_on_many_threads_never_break_a_rule() {
    let world = run(1_000_000, steps());
    assert!(
        world.done.load(Ordering::Relaxed) > steps() / 4,
        "most holders get through"
    );
    assert_eq!(world.keeper.in_flight(), 0);
}

#[test]
fn a_ledger_that_fails_now_and_then_breaks_no_rule_and_is_asked_again() {
    let world = run(20, steps() / 10);
    // The last raise of each resource goes on without anyone who waits for it.
    let room = Room::new(1);
    for (name, issued) in RESOURCES.iter().zip(&world.issued) {
        let token = issued.load(Ordering::SeqCst);
        let ask = [Ask {
            name,
            claim: Claim::Token(Token(u128::from(token + 1))),
            format: TokenFormat::Integer,
            max_step: None,
        }];
        let until = Instant::now() + Duration::from_secs(20);
        loop {
            match wait(&world.keeper, &ask, &room, Duration::from_secs(5)) {
                Some(Ok(_)) => break,
                Some(Err(Refused::Unstored)) | None if Instant::now() < until => thread::yield_now(),
                other => panic!("{name}: {other:?}"),
            }
        }
    }
    assert!(!world.keeper.store_is_failing());
}

#[test]
fn what_is_refused_as_overloaded_raises_nothing() {
    let ledger = Slow::new(1_000_000);
    let keeper = Keeper::new(
        Marks::default(),
        Arc::new(ledger),
        Arc::new(Metrics::new()),
        Duration::ZERO,
    );
    let ask = |token| Ask {
        name: "orders",
        claim: Claim::Token(Token(token)),
        format: TokenFormat::Integer,
        max_step: None,
    };
    let room = Room::new(1);
    let first = wait(&keeper, &[ask(1)], &room, Duration::from_secs(5));
    assert!(matches!(first, Some(Ok(Admitted { raised: true, .. }))));
    let full = Room::new(0);
    let refused = wait(&keeper, &[ask(2)], &full, Duration::from_secs(5));
    assert!(matches!(refused, Some(Err(Refused::Overloaded))), "{refused:?}");
    assert!(keeper.quick(&[ask(1)], true).is_some(), "1 is still the highest");
}

#[test]
fn writes_without_a_token_leave_no_trace_of_a_resource() {
    let ledger = Slow::new(1_000_000);
    let keeper = Keeper::new(
        Marks::default(),
        Arc::new(ledger),
        Arc::new(Metrics::new()),
        Duration::ZERO,
    );
    let room = Room::new(1);
    for n in 0..1_000 {
        let name = format!("object/{n}");
        let claim = Claim::Without { until_fenced: false };
        let ask = [Ask {
            name: &name,
            claim,
            format: TokenFormat::Integer,
            max_step: None,
        }];
        let mut flight = match n % 2 {
            0 => keeper.quick(&ask, true).expect("nobody has fenced it"),
            _ => match wait(&keeper, &ask, &room, Duration::from_secs(5)) {
                Some(Ok(admitted)) => admitted.flight,
                refused => panic!("it passes: {refused:?}"),
            },
        };
        flight.commit().unwrap();
        flight.settle();
    }
    assert_eq!(keeper.fences(), 0);
}

#[test]
fn a_raise_waits_for_a_write_without_a_token_that_nothing_held_up() {
    let keeper = fresh();
    let without = [Ask {
        claim: Claim::Without { until_fenced: true },
        ..orders(1)[0]
    }];
    let mut committed = keeper.quick(&without, true).expect("nobody has fenced it");
    let mut late = keeper.quick(&without, true).expect("nobody has fenced it");
    committed.commit().unwrap();
    let (room, asks) = (Room::new(8), orders(1));
    let waker = Waker::from(Arc::new(Bell::default()));
    let mut raising = keeper.admit(&asks, &room, true);
    assert!(raising.poll(&mut Context::from_waker(&waker)).is_pending());
    assert!(
        keeper.quick(&without, true).is_none(),
        "from the moment that a token is seen"
    );
    assert!(late.commit().is_err(), "it had not committed");
    drop(raising);
    committed.settle();
    let raised = wait(&keeper, &asks, &room, Duration::from_secs(5));
    assert!(matches!(raised, Some(Ok(_))), "{raised:?}");
    assert!(keeper.quick(&asks, true).is_some());
}

#[test]
fn another_flight_of_a_fence_is_what_a_new_request_would_get() {
    let keeper = fresh();
    let room = Room::new(8);
    let raise = |asks: &[Ask<'_>]| match wait(&keeper, asks, &room, Duration::from_secs(5)) {
        Some(Ok(admitted)) => admitted.flight,
        refused => panic!("nothing is higher: {refused:?}"),
    };
    let first = raise(&orders(1));
    let mut second = keeper
        .quick_one(&orders(1)[0], true, Some(&first))
        .expect("1 is open");
    second.commit().unwrap();
    assert_eq!(keeper.in_flight(), 2);
    let waker = Waker::from(Arc::new(Bell::default()));
    let higher = orders(2);
    let mut raising = keeper.admit(&higher, &room, true);
    assert!(
        raising.poll(&mut Context::from_waker(&waker)).is_pending(),
        "it waits for the second"
    );
    let again = || keeper.quick_one(&orders(1)[0], true, Some(&first));
    assert!(again().is_none(), "a raise is under way");
    drop(raising);
    second.settle();
    drop(raise(&orders(2)));
    assert!(again().is_none(), "2 is open");
    drop(first);
    assert_eq!(keeper.in_flight(), 0);
    // One that holds nothing, or holds several, tells of no fence: it is looked up.
    let both = [
        orders(2)[0],
        Ask {
            name: "another",
            ..orders(2)[0]
        },
    ];
    let several = raise(&both);
    let read = keeper.quick_one(&orders(2)[0], false, None).expect("2 is open");
    for before in [&several, &read, &Flight::unfenced()] {
        let mut found = keeper
            .quick_one(&orders(2)[0], true, Some(before))
            .expect("2 is open");
        found.commit().unwrap();
        assert!(found.is_fenced_write());
        found.settle();
    }
}

#[test]
fn a_read_holds_up_nobody_and_leaves_nothing() {
    let keeper = fresh();
    let room = Room::new(8);
    assert!(keeper.quick(&orders(1), false).is_none(), "a read raises too");
    assert_eq!(keeper.fences(), 0);
    let Some(Ok(admitted)) = wait(&keeper, &orders(1), &room, Duration::from_secs(5)) else {
        panic!("nothing is higher");
    };
    drop(admitted);
    let mut read = keeper.quick(&orders(1), false).expect("1 is open");
    assert!(keeper.quick(&orders(0), false).is_none());
    read.commit().unwrap();
    assert!(!read.is_fenced_write() && !read.is_committed());
    assert_eq!(keeper.in_flight(), 0);
    let Some(Ok(admitted)) = wait(&keeper, &orders(2), &room, Duration::from_secs(5)) else {
        panic!("a read holds nothing up");
    };
    drop(admitted);
    assert!(keeper.quick(&orders(1), false).is_none());
    read.lose();
    assert_eq!(keeper.in_doubt(), 0);
}

/// A keeper without marks, whose ledger practically never fails.
fn fresh() -> Arc<Keeper> {
    Keeper::new(
        Marks::default(),
        Arc::new(Slow::new(1_000_000)),
        Arc::new(Metrics::new()),
        Duration::ZERO,
    )
}

/// Counts how often it is woken.
#[derive(Default)]
struct Bell(AtomicU64);

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

#[test]
fn a_request_that_leaves_late_takes_nobody_elses_place() {
    let keeper = fresh();
    let ask = |token| {
        [Ask {
            name: "orders",
            claim: Claim::Token(Token(token)),
            format: TokenFormat::Integer,
            max_step: None,
        }]
    };
    let room = Room::new(8);
    let (first, asks) = (Arc::new(Bell::default()), ask(1));
    let waker = Waker::from(Arc::clone(&first));
    let mut admission = keeper.admit(&asks, &room, true);
    assert!(admission.poll(&mut Context::from_waker(&waker)).is_pending());
    // The mark is durable and the fence at rest before the first request looks again.
    while first.0.load(Ordering::SeqCst) == 0 || keeper.quick(&ask(1), true).is_none() {
        thread::yield_now();
    }
    let upload = keeper.quick(&ask(1), true).expect("1 is open");
    let (bell, mut watch) = (Arc::new(Bell::default()), upload.watch());
    let waker = Waker::from(Arc::clone(&bell));
    assert!(watch.poll_shut(&mut Context::from_waker(&waker)).is_pending());
    drop(admission);

    let raised = wait(&keeper, &ask(2), &room, Duration::from_secs(5));
    assert!(matches!(raised, Some(Ok(_))));
    assert_eq!(
        bell.0.load(Ordering::SeqCst),
        1,
        "the upload of 1 is told at once"
    );
}

/// A ledger that is owned by a lease for as long as the test says so.
struct Leased {
    inner: Slow,
    owned: Arc<AtomicBool>,
}

impl Ledger for Leased {
    fn submit(&self, change: Change, done: Done) {
        self.inner.submit(change, done);
    }

    fn scan(
        &self,
        prefix: &str,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Vec<(String, Mark)>, StoreError> {
        self.inner.scan(prefix, after, limit)
    }

    fn audit_trail(&self, limit: usize) -> Result<Vec<AuditEntry>, StoreError> {
        self.inner.audit_trail(limit)
    }

    fn is_leased(&self) -> bool {
        true
    }

    fn owned(&self) -> bool {
        self.owned.load(Ordering::SeqCst)
    }

    fn hold_is_over(&self, settle_after: Duration) -> Result<(), StoreError> {
        self.inner.hold_is_over(settle_after)
    }

    fn close(&self, clean: bool) -> Result<(), StoreError> {
        self.inner.close(clean)
    }
}

fn leased() -> (Arc<Keeper>, Arc<AtomicBool>) {
    let owned = Arc::new(AtomicBool::new(true));
    let ledger = Leased {
        inner: Slow::new(1_000_000),
        owned: Arc::clone(&owned),
    };
    let metrics = Arc::new(Metrics::new());
    let keeper = Keeper::new(Marks::default(), Arc::new(ledger), metrics, Duration::ZERO);
    (keeper, owned)
}

fn orders(token: u128) -> [Ask<'static>; 1] {
    [Ask {
        name: "orders",
        claim: Claim::Token(Token(token)),
        format: TokenFormat::Integer,
        max_step: None,
    }]
}

#[test]
fn without_ownership_nothing_is_admitted_and_nothing_raised() {
    let (keeper, owned) = leased();
    let room = Room::new(8);
    assert!(matches!(wait(&keeper, &orders(1), &room, SOON), Some(Ok(_))));
    owned.store(false, Ordering::SeqCst);
    assert!(keeper.quick(&orders(1), true).is_none());
    let refused = wait(&keeper, &orders(2), &room, SOON);
    assert!(matches!(refused, Some(Err(Refused::NotOwner))), "{refused:?}");
    owned.store(true, Ordering::SeqCst);
    assert!(keeper.quick(&orders(1), true).is_some(), "2 has raised nothing");
}

#[test]
fn what_began_before_a_lapse_is_over_with_it_although_the_ownership_is_regained() {
    let (keeper, owned) = leased();
    let room = Room::new(8);
    assert!(matches!(wait(&keeper, &orders(1), &room, SOON), Some(Ok(_))));
    let mut upload = keeper.quick(&orders(1), true).unwrap();
    let mut sent = keeper
        .quick(&orders(1), true)
        .unwrap()
        .settles_after(SETTLE_AFTER);
    sent.commit().unwrap();
    let bell = Arc::new(Bell::default());
    let waker = Waker::from(Arc::clone(&bell));
    let mut place = upload.enroll().expect("the store is leased");
    assert!(place.poll_lapsed(&mut Context::from_waker(&waker)).is_pending());
    let asks = orders(2);
    let mut raise = keeper.admit(&asks, &room, true);
    assert!(
        raise.poll(&mut Context::from_waker(&waker)).is_pending(),
        "one is in flight"
    );

    owned.store(false, Ordering::SeqCst);
    keeper.lapse();
    assert!(bell.0.load(Ordering::SeqCst) >= 2, "both are woken");
    owned.store(true, Ordering::SeqCst);
    assert!(place.poll_lapsed(&mut Context::from_waker(&waker)).is_ready());
    assert_eq!(upload.commit(), Err(Cut::NotOwner));
    assert_eq!(upload.cut(), Cut::NotOwner);
    assert!(!upload.is_current());
    let over = raise.poll(&mut Context::from_waker(&waker));
    assert!(matches!(over, Poll::Ready(Err(Refused::NotOwner))), "{over:?}");
    drop((upload, raise));
    sent.lose(); // as its connection is reset
    assert_eq!(keeper.in_doubt(), 1);
    let raised = wait(&keeper, &orders(3), &room, SOON);
    let Some(Ok(Admitted { mut flight, .. })) = raised else {
        panic!("{raised:?}")
    };
    flight.commit().expect("what begins after the lapse goes on");
    flight.settle();
}

#[test]
fn a_keeper_that_has_left_its_seat_lets_nothing_through() {
    let (keeper, _owned) = leased();
    let seat = Seat::new(Arc::clone(&keeper));
    let room = Room::new(8);
    assert!(matches!(wait(&keeper, &orders(1), &room, SOON), Some(Ok(_))));
    let mut upload = keeper.quick(&orders(1), true).unwrap();
    seat.pass_to(Keeper::vacant(Arc::new(Metrics::new())));
    assert_eq!(upload.commit(), Err(Cut::NotOwner));
    let vacant = seat.keeper();
    assert!(!vacant.is_owner() && vacant.quick(&orders(1), true).is_none());
    assert!(matches!(
        wait(&vacant, &orders(1), &room, SOON),
        Some(Err(Refused::NotOwner))
    ));
}

const SOON: Duration = Duration::from_secs(5);
