//! Two instances in front of one store, their marks in a real etcd: one is active, the other stands by. Killed, stopped
//! or cut off at the worst moment, none of them lets an older write take effect after a newer one (S13, several
//! instances). Waiting times are a subject here: they are measured, with room above.

mod etcd;
mod gate;

use std::time::{Duration, Instant};

use etcd::{Etcd, Forwarder, Mode};
use gate::{Conn, Gate, Setup, Stub, ask, head, wait_until};

/// What the tests below count with.
const TTL: Duration = Duration::from_secs(2);
const SETTLE: Duration = Duration::from_secs(1);
/// A busy machine is slower than a second.
const ROOM: Duration = Duration::from_secs(8);

const TOKEN_OR_NOT: &str = r#"
      - name: open
        match: { path: "/open/{*key}" }
        resource: "bucket/open"
        token: { header: Fencing-Token }
        missing: pass
      - name: bucket
        match: { path: "/{bucket}/{*key}" }
        resource: "bucket/{bucket}"
        token: { header: Fencing-Token }
"#;

fn put(target: &str, token: u64) -> gate::Ask {
    ask("PUT", target).token(token).body("v")
}

fn setup(endpoints: &[String]) -> Setup {
    Setup {
        store: format!(
            "{{ kind: etcd, endpoints: {endpoints:?}, prefix: /fencegate/test/, owner_ttl: {}s }}",
            TTL.as_secs()
        ),
        ..Setup::rules(TOKEN_OR_NOT)
    }
    .settle_after("1s")
}

fn port_of(endpoint: &str) -> u16 {
    endpoint.rsplit(':').next().unwrap().parse().unwrap()
}

fn role(gate: &Gate) -> (u16, String) {
    match ask("GET", "/readyz").try_send(gate.admin) {
        Ok(reply) => (
            reply.status,
            reply.json()["role"].as_str().unwrap_or_default().to_owned(),
        ),
        Err(_) => (0, String::new()),
    }
}

#[track_caller]
fn wait_active(gate: &Gate) {
    wait_until("a time as the owner", || role(gate) == (200, "active".into()));
}

/// Two gates before one store; the first is the owner.
struct Pair {
    etcd: Etcd,
    stub: Stub,
    first: Gate,
    second: Gate,
}

impl Pair {
    fn start() -> Pair {
        let etcd = Etcd::one();
        let endpoints = etcd.endpoints();
        Pair::before(etcd, &endpoints)
    }

    /// The first one finds etcd at these endpoints.
    fn before(etcd: Etcd, endpoints: &[String]) -> Pair {
        let stub = Stub::start();
        let first = setup(endpoints).start(stub.port);
        wait_active(&first);
        let second = setup(&etcd.endpoints()).start(stub.port);
        Pair {
            etcd,
            stub,
            first,
            second,
        }
    }

    /// The second one has taken over.
    #[track_caller]
    fn taken_over(&self) {
        wait_active(&self.second);
    }
}

// ---- standing by

#[test]
fn who_stands_by_says_so_and_lets_nothing_through_but_reads_without_a_token() {
    let pair = Pair::start();
    assert_eq!(role(&pair.second), (503, "standby".into()));
    pair.first.send(put("/orders/1", 5)).is_ok();
    for refused in [
        put("/orders/1", 5),
        put("/orders/1", 6),
        ask("GET", "/orders/1").token(5),
        ask("PUT", "/open/1").body("v"),
        ask("PUT", "/orders/1").token("x").body("v"),
        ask("PUT", "/orders/1").body("v"),
    ] {
        let reply = pair.second.send(refused);
        reply.is(503, "not-owner");
        assert!(reply.field("Retry-After").is_some());
        assert_eq!(reply.json()["applied"], "no");
    }
    pair.second.send(ask("GET", "/orders/1")).is_ok();
    pair.first.send(put("/orders/1", 4)).is(412, "stale-token");
    pair.first.send(put("/orders/1", 5)).is_ok(); // what the other one refused has raised nothing
    assert_eq!(pair.stub.tokens(), [5, 5]);
    for path in ["/api/v1/fences", "/api/v1/audit"] {
        let mut conn = Conn::open(pair.second.admin);
        conn.send(format!("GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"));
        let reply = conn.reply();
        assert_eq!(
            (reply.status, reply.json()["reason"].as_str()),
            (503, Some("not-owner")),
            "{path}"
        );
    }
}

#[test]
fn an_etcd_that_is_away_at_the_start_leaves_it_standing_by_until_it_comes() {
    let etcd = Etcd::one();
    etcd.stop(0);
    let stub = Stub::start();
    let gate = setup(&etcd.endpoints()).start(stub.port);
    assert_eq!(role(&gate), (503, "standby".into()));
    gate.send(put("/orders/1", 5)).is(503, "not-owner");
    assert_eq!(ask("GET", "/healthz").send(gate.admin).status, 200);
    etcd.resume(0);
    wait_active(&gate);
    gate.send(put("/orders/1", 5)).is_ok();
}

// ---- take-overs

#[test]
fn killed_the_owner_is_followed_and_a_raise_waits_until_what_it_had_sent_has_settled() {
    let mut pair = Pair::start();
    pair.first.send(put("/orders/1", 5)).is_ok();
    let lost = put("/orders/1", 5)
        .field("x-stub-hold", "lost")
        .spawn(pair.first.port);
    pair.stub.wait(|state| state.arrived.len() == 2);
    pair.first.kill();
    let since = Instant::now();
    assert!(lost.join().unwrap().is_err());
    pair.taken_over();
    let owner_after = since.elapsed();
    assert!(
        owner_after >= TTL / 2,
        "the lease was still running: {owner_after:?}"
    );
    // What needs no raise goes on at once.
    pair.second.send(put("/orders/1", 5)).is_ok();
    assert!(
        since.elapsed() < owner_after + SETTLE,
        "an equal token waits for nobody"
    );
    pair.second.send(put("/orders/1", 4)).is(412, "stale-token");
    pair.second.send(put("/orders/1", 6)).is_ok();
    let raised_after = since.elapsed();
    assert!(raised_after >= owner_after.max(TTL / 2), "{raised_after:?}");
    assert!(
        raised_after < TTL + SETTLE + Duration::from_secs(1) + ROOM,
        "{raised_after:?}"
    );
    eprintln!("after a kill: owner {owner_after:?}, first raise {raised_after:?}");
    pair.stub.release("lost");
}

#[test]
fn a_stop_in_order_hands_over_at_once_and_nothing_waits() {
    let mut pair = Pair::start();
    pair.first.send(put("/orders/1", 5)).is_ok();
    let since = Instant::now();
    assert_eq!(pair.first.stop(), Some(0));
    pair.taken_over();
    pair.second.send(put("/orders/1", 6)).is_ok();
    let took = since.elapsed();
    eprintln!("planned: {took:?}");
    assert!(took < ROOM);
    assert!(
        !pair.second.log().contains("raises wait"),
        "{}",
        pair.second.log()
    );
    // And back again.
    pair.first.start();
    assert_eq!(role(&pair.first), (503, "standby".into()));
    assert_eq!(pair.second.stop(), Some(0));
    wait_active(&pair.first);
    pair.first.send(put("/orders/1", 5)).is(412, "stale-token");
    pair.first.send(put("/orders/1", 7)).is_ok();
}

#[test]
fn stopped_in_the_middle_of_an_upload_and_woken_after_the_next_owners_write_it_sends_nothing() {
    let pair = Pair::start();
    let mut upload = Conn::open(pair.first.port);
    upload
        .send(head("PUT", "/orders/1", Some(5), Some(1000), &[]))
        .send([b'x'; 999]);
    pair.stub.wait_for_head(5);
    pair.first.signal(libc::SIGSTOP);
    pair.taken_over();
    pair.second.send(put("/orders/1", 6)).is_ok();
    upload.send(b"x");
    pair.first.signal(libc::SIGCONT);
    let reply = upload.reply();
    reply.is(503, "not-owner");
    assert_eq!(reply.json()["applied"], "no");
    wait_until("its standing by", || role(&pair.first) == (503, "standby".into()));
    pair.first.send(put("/orders/1", 7)).is(503, "not-owner");
    assert_eq!(pair.stub.tokens(), [6]);
    pair.stub.wait(|state| state.incomplete.len() == 1);
    assert!(pair.stub.look(|state| state.incomplete[0].1), "a reset");
}

#[test]
fn stopped_with_a_write_on_its_way_it_tells_that_client_that_nobody_knows() {
    let pair = Pair::start();
    let sent = put("/orders/1", 5)
        .field("x-stub-answer-hold", "answer")
        .spawn(pair.first.port);
    pair.stub.wait_for_effect(5);
    pair.first.signal(libc::SIGSTOP);
    pair.taken_over();
    pair.second.send(put("/orders/1", 6)).is_ok();
    pair.first.signal(libc::SIGCONT);
    let reply = sent.join().unwrap().unwrap();
    reply.is(502, "upstream-failed");
    assert_eq!(reply.json()["applied"], "unknown");
    assert_eq!(pair.stub.tokens(), [5, 6]);
    pair.stub.release("answer");
}

#[test]
fn cut_off_from_etcd_it_lets_nothing_through_before_another_one_may() {
    let etcd = Etcd::one();
    let way = Forwarder::before(port_of(&etcd.endpoint(0)));
    let pair = Pair::before(etcd, &[way.endpoint()]);
    pair.first.send(put("/orders/1", 5)).is_ok();
    way.set(Mode::Hold);
    // For as long as it is sure, equal tokens go on and raises are refused.
    pair.first.send(put("/orders/1", 5)).is_ok();
    wait_until("the end of its certainty", || {
        let reply = pair.first.send(put("/orders/1", 5));
        assert_ne!(
            (reply.status, role(&pair.second).1.as_str()),
            (200, "active"),
            "two at once"
        );
        reply.status == 503 && reply.reason() == "not-owner"
    });
    pair.taken_over();
    pair.second.send(put("/orders/1", 6)).is_ok();
    pair.first.send(put("/orders/1", 6)).is(503, "not-owner");
    way.set(Mode::Pass);
    wait_until("its standing by", || role(&pair.first) == (503, "standby".into()));
    pair.first.send(put("/orders/1", 7)).is(503, "not-owner");
    pair.second.send(put("/orders/1", 7)).is_ok();
}

#[test]
fn an_owner_whose_answers_from_etcd_are_lost_makes_room_although_its_questions_arrive() {
    let etcd = Etcd::one();
    let way = Forwarder::before(port_of(&etcd.endpoint(0)));
    let pair = Pair::before(etcd, &[way.endpoint()]);
    pair.first.send(put("/orders/1", 5)).is_ok();
    way.set(Mode::HoldAnswers);
    pair.taken_over();
    pair.second.send(put("/orders/1", 6)).is_ok();
    pair.first.send(put("/orders/1", 6)).is(503, "not-owner");
    let ready = ask("GET", "/readyz").send(pair.first.admin);
    assert_eq!(
        (ready.status, ready.json()["store"].as_str()),
        (503, Some("unreachable"))
    );
}

// ---- etcd away

#[test]
fn without_etcd_equal_tokens_go_on_and_raises_are_refused_and_nothing_is_lost() {
    let pair = Pair::start();
    pair.first.send(put("/orders/1", 5)).is_ok();
    pair.etcd.stop(0);
    pair.first.send(put("/orders/1", 5)).is_ok();
    let reply = pair.first.send(put("/orders/1", 6));
    assert_eq!(reply.status, 503, "{reply:?}");
    assert!(
        ["store-unavailable", "not-owner"].contains(&reply.reason()),
        "{reply:?}"
    );
    pair.etcd.resume(0);
    wait_until("writes again", || {
        [&pair.first, &pair.second]
            .iter()
            .any(|gate| gate.send(put("/orders/1", 6)).status == 200)
    });
    for gate in [&pair.first, &pair.second] {
        let status = gate.send(put("/orders/1", 5)).status;
        assert!(matches!(status, 412 | 503), "{status}");
    }
    gate::assert_never_backwards(&pair.stub.journal());
}

// ---- at random

/// Writers with tokens that now and then go up follow whoever is active, while instances are killed, stopped and
/// stopped in order. `FENCEGATE_LONG=1` makes it long.
#[test]
fn whatever_happens_to_two_instances_applied_tokens_never_go_down() {
    use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
    let Pair {
        etcd: _etcd,
        stub,
        mut first,
        mut second,
    } = Pair::start();
    let (issued, stop, accepted) = (AtomicU64::new(1), AtomicBool::new(false), AtomicU64::new(0));
    let ports = std::sync::Mutex::new([first.port, second.port]);
    let rounds = if gate::is_long_run() { 40 } else { 4 };
    std::thread::scope(|scope| {
        for number in 0..8u64 {
            let (issued, stop, accepted, ports) = (&issued, &stop, &accepted, &ports);
            scope.spawn(move || {
                let mut turn = number;
                while !stop.load(Ordering::Relaxed) {
                    turn += 1;
                    if turn % 7 == 0 {
                        issued.fetch_add(1, Ordering::SeqCst);
                    }
                    let token = issued.load(Ordering::SeqCst).saturating_sub(turn % 3).max(1);
                    let request = put("/orders/1", token).field(
                        "x-stub-delay",
                        ["0", "0", "0.02", "0.2"][usize::try_from(turn % 4).unwrap()],
                    );
                    let both = *ports.lock().unwrap();
                    for port in both {
                        let Ok(mut conn) = Conn::try_open(port) else {
                            continue;
                        };
                        conn.patience(Duration::from_secs(2));
                        let bytes = request.bytes();
                        let (before, last) = bytes.split_at(bytes.len() - 1);
                        let sent = conn.try_send(before).and_then(|()| {
                            std::thread::sleep(Duration::from_millis(turn % 5 * 10));
                            conn.try_send(last)
                        });
                        if sent.is_ok()
                            && let Ok(reply) = conn.try_reply(false)
                        {
                            assert!(matches!(reply.status, 200 | 412 | 502 | 503), "{reply:?}");
                            accepted.fetch_add(u64::from(reply.status == 200), Ordering::Relaxed);
                        }
                    }
                }
            });
        }
        for round in 0..rounds {
            std::thread::sleep(Duration::from_millis(1500));
            let gates = [&mut first, &mut second];
            let owner = usize::from(role(gates[1]).1 == "active");
            let [one, two] = gates;
            let gate = if owner == 0 { one } else { two };
            match round % 3 {
                0 => {
                    gate.signal(libc::SIGSTOP);
                    std::thread::sleep(TTL + SETTLE + Duration::from_millis(500));
                    gate.signal(libc::SIGCONT);
                }
                1 => {
                    gate.kill();
                    gate.start();
                }
                _ => {
                    let _clean_or_not = gate.stop();
                    gate.start();
                }
            }
            let port = gate.port;
            ports.lock().unwrap()[owner] = port;
        }
        std::thread::sleep(TTL + SETTLE + Duration::from_millis(500));
        stop.store(true, Ordering::Relaxed);
    });
    gate::assert_never_backwards(&stub.journal());
    let (accepted, highest) = (accepted.into_inner(), issued.into_inner());
    eprintln!("{accepted} writes, tokens up to {highest}");
    assert!(accepted > 50, "{accepted} writes only");
}
