//! Random holders, slow and cut and lost writes, and crashes: applied tokens never go down.
//!
//! `FENCEGATE_SEED` picks the run; it is printed. `FENCEGATE_LONG=1` makes it long.

mod gate;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, RwLock};
use std::time::{Duration, Instant};

use gate::dice::Dice;
use gate::{Ask, Conn, Front, Setup, Stub, ask};

/// A bucket alone, and one that two fences guard; `open` takes writes without a token.
const RULES: &str = r#"
      - name: open
        match: { path: "/open/{*key}" }
        resource: "bucket/open"
        token: { header: Fencing-Token }
        missing: pass
        drain_timeout: 5s
      - name: both
        match: { path: "/{bucket}/with/{other}" }
        fences:
          - { resource: "bucket/{bucket}", token: { header: Fencing-Token } }
          - { resource: "bucket/{other}", token: { header: Other-Token } }
        drain_timeout: 5s
      - name: bucket
        match: { path: "/{bucket}/{*key}" }
        resource: "bucket/{bucket}"
        token: { header: Fencing-Token }
        drain_timeout: 5s
"#;

const BUCKETS: [&str; 5] = ["open", "r1", "r2", "r3", "r4"];

/// What all holders share.
struct World {
    /// The highest token that was issued, by bucket.
    issued: [AtomicU64; BUCKETS.len()],
    /// The gate's port; written while it restarts.
    port: RwLock<u16>,
    accepted: AtomicU64,
    stop: AtomicBool,
}

impl World {
    fn token(&self, dice: &mut Dice, bucket: usize) -> u64 {
        if dice.one_in(4) {
            self.issued[bucket].fetch_add(1, Ordering::SeqCst);
        }
        let behind = dice.pick(&[0, 0, 0, 0, 1, 2]);
        self.issued[bucket]
            .load(Ordering::SeqCst)
            .saturating_sub(behind)
            .max(1)
    }

    fn request(&self, dice: &mut Dice) -> Ask {
        let bucket = dice.below(BUCKETS.len() as u64) as usize;
        let name = BUCKETS[bucket];
        let token = self.token(dice, bucket);
        let method = dice.pick(&["PUT", "PUT", "PUT", "DELETE", "POST", "GET"]);
        let mut request = if name != "open" && dice.one_in(5) {
            let other = 1 + dice.below(BUCKETS.len() as u64 - 1) as usize;
            let other_token = if other == bucket {
                token
            } else {
                self.token(dice, other)
            };
            let target = format!("/{name}/with/{}", BUCKETS[other]);
            ask(method, &target)
                .token(token)
                .field("Other-Token", other_token)
        } else if name == "open" && dice.one_in(3) {
            ask(method, "/open/k")
        } else {
            ask(method, &format!("/{name}/k")).token(token)
        };
        if !matches!(method, "DELETE" | "GET") {
            request = request.body(vec![b'v'; dice.pick(&[0, 1, 10, 5000, 8192, 70_000])]);
            if dice.one_in(3) {
                request = request.chunked(dice.pick(&[1000, 8192, 100_000]));
            }
        }
        request = request.field("x-stub-delay", dice.pick(&["0", "0", "0.005", "0.05", "0.2"]));
        if dice.one_in(60) {
            request = request.field("x-stub-drop", dice.pick(&["late", "never"]));
        }
        request
    }

    /// Sends a request in one piece or in two with a pause, and now and then leaves before the answer.
    fn send(&self, dice: &mut Dice, request: &Ask) -> std::io::Result<()> {
        let port = *self.port.read().unwrap();
        let mut conn = Conn::try_open(port)?;
        let bytes = request.bytes();
        if dice.one_in(4) {
            let (first, second) = bytes.split_at(bytes.len() - dice.below(bytes.len() as u64 / 2) as usize);
            conn.try_send(first)?;
            std::thread::sleep(Duration::from_millis(dice.below(100)));
            conn.try_send(second)?;
        } else {
            conn.try_send(bytes)?;
        }
        if dice.one_in(20) {
            return Ok(());
        }
        let reply = conn.try_reply(false)?;
        if reply.status == 200 {
            self.accepted.fetch_add(1, Ordering::Relaxed);
        }
        assert!(
            matches!(reply.status, 200 | 412 | 428 | 502 | 503),
            "{request:?} got {reply:?}"
        );
        Ok(())
    }
}

#[test]
fn random_holders_and_crashes_never_take_a_resource_backwards() {
    run(Front::chosen(), 4);
}

#[test]
fn random_holders_and_crashes_over_http_2_never_take_a_resource_backwards() {
    run(Front::Http2, 2);
}

/// Runs it for so many rounds, or long.
fn run(front: Front, rounds: usize) {
    let seed = gate::dice::seed();
    let (rounds, pause) = if gate::is_long_run() { (40, 5) } else { (rounds, 3) };
    let stub = Stub::start();
    let mut gate = Setup::rules(RULES)
        .settle_after("1s")
        .front(front)
        .start(stub.port);
    let world = Arc::new(World {
        issued: Default::default(),
        port: RwLock::new(gate.port),
        accepted: AtomicU64::new(0),
        stop: AtomicBool::new(false),
    });
    let holders: Vec<_> = (0..24)
        .map(|number| {
            let world = Arc::clone(&world);
            std::thread::spawn(move || {
                let mut dice = Dice::new((seed << 8) + number + 1);
                while !world.stop.load(Ordering::Relaxed) {
                    let request = world.request(&mut dice);
                    if world.send(&mut dice, &request).is_err() {
                        std::thread::sleep(Duration::from_millis(20));
                    }
                }
            })
        })
        .collect();
    for round in 0..rounds {
        gate::sleep_until(Instant::now() + Duration::from_secs(pause));
        let mut port = world.port.write().unwrap();
        // Now and then in order, which holders must not notice but by a broken connection.
        if round % 3 == 2 {
            assert_eq!(gate.stop(), Some(0), "{}", gate.log());
        } else {
            gate.kill();
        }
        gate.start();
        *port = gate.port;
    }
    gate::sleep_until(Instant::now() + Duration::from_secs(pause));
    world.stop.store(true, Ordering::Relaxed);
    let failed = holders
        .into_iter()
        .filter_map(|holder| holder.join().err())
        .count();
    assert_eq!(failed, 0, "holders that got an answer of another kind");
    // Late writes of dropped connections are through by then.
    gate::sleep_until(Instant::now() + Duration::from_secs(1));
    let journal = stub.journal();
    gate::assert_never_backwards(&journal);
    let accepted = world.accepted.load(Ordering::Relaxed);
    eprintln!(
        "{accepted} requests were accepted, {} writes took effect",
        journal.len()
    );
    assert!(accepted > 100, "only {accepted} requests were accepted");
}
