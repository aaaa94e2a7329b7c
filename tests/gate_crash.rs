//! Crashes, stops and the store: what is durable when, who waits after which stop, and what a start refuses
//! (S2, S10, S13, S14). Waiting times are the subject here: they are measured, with room above.

mod gate;

use std::time::{Duration, Instant};

use gate::{Conn, Gate, Setup, Stub, ask, head, start_with};

fn settling(settle_after: &str) -> (Stub, Gate) {
    start_with(Setup::default().settle_after(settle_after))
}

fn put(target: &str, token: u64) -> gate::Ask {
    ask("PUT", target).token(token).body("v")
}

/// Raises, and says how long that took since `since`.
#[track_caller]
fn raise(gate: &Gate, token: u64, since: Instant) -> Duration {
    gate.send(put("/orders/1", token)).is_ok();
    since.elapsed()
}

/// Asserts that a raise waits so long after the start that follows.
#[track_caller]
fn start_waits(gate: &mut Gate, token: u64, wait: Duration) {
    let since = Instant::now();
    gate.start();
    let waited = raise(gate, token, since);
    assert!(waited >= wait, "it waited only {waited:?}: {}", gate.log());
    assert!(waited < wait + Duration::from_secs(8), "it waited {waited:?}");
}

/// Asserts that no raise waits after the start that follows. With a `settle_after` of a minute.
#[track_caller]
fn start_waits_for_nothing(gate: &mut Gate, token: u64) {
    gate.start();
    let waited = raise(gate, token, Instant::now());
    assert!(waited < Duration::from_secs(8), "it waited {waited:?}");
}

// ---- S2

#[test]
fn a_mark_is_durable_before_its_first_write_is_forwarded() {
    let (stub, mut gate) = settling("2s");
    gate.send(put("/orders/1", 33)).is_ok();
    let new = put("/orders/1", 34)
        .field("x-stub-answer-hold", "never")
        .spawn(gate.port);
    stub.wait_for_effect(34);
    gate.kill();
    assert!(new.join().unwrap().is_err());
    gate.start();
    let reply = gate.send(put("/orders/1", 33));
    reply.is(412, "stale-token");
    assert_eq!(reply.json()["highest"], "34");
}

#[test]
fn marks_survive_kill_9_each_time() {
    let (_stub, mut gate) = settling("100ms");
    for token in 1..12 {
        gate.send(put("/orders/1", token)).is_ok();
        gate.send(put(&format!("/r{token}/1"), token)).is_ok();
        gate.kill();
        gate.start();
        gate.send(put("/orders/1", token - 1)).is(412, "stale-token");
        gate.send(put("/orders/1", token)).is_ok();
    }
    for token in 1..12 {
        gate.send(put(&format!("/r{token}/1"), token - 1))
            .is(412, "stale-token");
    }
}

#[test]
fn raises_that_wait_at_the_same_time_share_their_commits() {
    let (_stub, gate) = settling("2s");
    let port = gate.port;
    let since = Instant::now();
    std::thread::scope(|scope| {
        for client in 0..8 {
            scope.spawn(move || {
                let mut conn = Conn::open(port);
                for resource in 0..100 {
                    conn.send(put(&format!("/r{client}-{resource}/1"), 1).bytes());
                    conn.reply().is_ok();
                }
            });
        }
    });
    let commits = gate.metric("fencegate_store_commit_seconds_count", &[]);
    assert!(
        commits < 800.0,
        "{commits} commits for 800 raises in {:?}",
        since.elapsed()
    );
}

// ---- S10: kill -9 at each step

#[test]
fn killed_while_a_raise_waits_it_is_forgotten_and_the_old_token_goes_on() {
    let (stub, mut gate) = settling("1s");
    let old = put("/orders/1", 33).field("x-stub-hold", "old").spawn(gate.port);
    stub.wait_for_head(33);
    let new = put("/orders/1", 34).spawn(gate.port);
    gate.wait_until_stale("/orders/1", 33);
    gate.kill();
    assert!(old.join().unwrap().is_err() && new.join().unwrap().is_err());
    gate.start();
    stub.release("old");
    gate.send(put("/orders/1", 33)).is_ok();
    assert!(!stub.tokens().contains(&34));
}

#[test]
fn killed_in_a_body_the_write_is_reset_at_the_backend_and_never_applied() {
    let (stub, mut gate) = settling("1s");
    let mut upload = Conn::open(gate.port);
    upload
        .send(head("PUT", "/orders/1", Some(33), Some(1000), &[]))
        .send([b'x'; 600]);
    stub.wait_for_head(33);
    gate.kill();
    stub.wait(|state| state.incomplete.len() == 1);
    assert!(stub.look(|state| state.incomplete[0].1), "a reset");
    start_waits(&mut gate, 34, Duration::from_secs(1));
    assert_eq!(stub.tokens(), [34]);
}

#[test]
fn killed_after_the_commit_point_the_write_comes_before_the_next_holders() {
    let (stub, mut gate) = settling("2s");
    let old = put("/orders/1", 33).field("x-stub-delay", "1.5").spawn(gate.port);
    stub.wait_for_head(33);
    gate.kill();
    assert!(old.join().unwrap().is_err());
    start_waits(&mut gate, 34, Duration::from_secs(2));
    assert_eq!(stub.tokens(), [33, 34]);
}

#[test]
fn killed_after_the_answer_a_raise_waits_and_the_same_token_does_not() {
    let (_stub, mut gate) = settling("4s");
    gate.send(put("/orders/1", 33)).is_ok();
    gate.kill();
    let since = Instant::now();
    gate.start();
    assert_eq!(
        ask("GET", "/readyz").send(gate.admin).status,
        200,
        "ready during the wait"
    );
    gate.send(put("/orders/1", 33)).is_ok();
    gate.send(put("/orders/1", 32)).is(412, "stale-token");
    gate.send(ask("GET", "/orders/1")).is_ok();
    assert!(
        since.elapsed() < Duration::from_millis(3900),
        "the machine is too slow for this test"
    );
    let waited = raise(&gate, 34, since);
    assert!(waited >= Duration::from_secs(4), "{waited:?}");
}

#[test]
fn during_the_wait_a_raise_that_waits_too_long_gets_503_and_goes_on_by_itself() {
    let rule = format!("{}        drain_timeout: 1s\n", gate::RULE);
    let (_stub, mut gate) = start_with(Setup::rules(&rule).settle_after("4s"));
    gate.send(put("/orders/1", 33)).is_ok();
    gate.kill();
    gate.start();
    gate.send(put("/orders/1", 34)).is(503, "draining");
    gate.send(put("/orders/1", 33)).is(412, "stale-token");
    let end = Instant::now() + gate::PATIENCE;
    while gate.send(put("/orders/1", 34)).status == 503 {
        assert!(Instant::now() < end);
    }
}

// ---- S10: how long

#[test]
fn a_longer_settle_after_of_this_run_counts() {
    let (_stub, mut gate) = settling("200ms");
    gate.send(put("/orders/1", 33)).is_ok();
    gate.kill();
    gate.setup.settle_after = "2s".into();
    start_waits(&mut gate, 34, Duration::from_secs(2));
}

#[test]
fn a_longer_settle_after_of_the_earlier_run_counts() {
    let (_stub, mut gate) = settling("2s");
    gate.send(put("/orders/1", 33)).is_ok();
    gate.kill();
    gate.setup.settle_after = "200ms".into();
    start_waits(&mut gate, 34, Duration::from_secs(2));
}

#[test]
fn a_run_killed_within_its_wait_leaves_the_longer_one() {
    let (_stub, mut gate) = settling("2s");
    gate.send(put("/orders/1", 33)).is_ok();
    gate.kill();
    gate.setup.settle_after = "200ms".into();
    for _ in 0..3 {
        gate.start();
        gate.kill();
    }
    start_waits(&mut gate, 34, Duration::from_secs(2));
}

#[test]
fn a_run_that_outlives_its_wait_leaves_its_own() {
    let (_stub, mut gate) = settling("6s");
    gate.send(put("/orders/1", 33)).is_ok();
    gate.kill();
    gate.setup.settle_after = "200ms".into();
    gate.start();
    gate.wait_for_log("the wait after the crash is over");
    gate.kill();
    gate.start();
    let waited = raise(&gate, 34, Instant::now());
    assert!(waited < Duration::from_millis(5500), "{waited:?}");
}

// ---- S10: stops

#[test]
fn after_a_clean_stop_nothing_waits() {
    let (_stub, mut gate) = settling("60s");
    gate.send(put("/orders/1", 33)).is_ok();
    for token in [34, 35] {
        assert_eq!(gate.stop(), Some(0));
        start_waits_for_nothing(&mut gate, token);
        gate.send(put("/orders/1", token - 1)).is(412, "stale-token");
    }
}

#[test]
fn a_stop_waits_for_what_is_in_flight() {
    let (stub, mut gate) = settling("60s");
    let old = put("/orders/1", 33).field("x-stub-hold", "old").spawn(gate.port);
    stub.wait_for_head(33);
    let mut upload = Conn::open(gate.port);
    upload
        .send(head("PUT", "/users/1", Some(5), Some(2), &[]))
        .send("h");
    stub.wait_for_head(5);
    gate.signal(libc::SIGTERM);
    gate.wait_for_log("stopping");
    let end = Instant::now() + gate::PATIENCE;
    while Conn::try_open(gate.port).is_ok() {
        assert!(Instant::now() < end, "the listener closes at once");
    }
    upload.send("i");
    let reply = upload.reply();
    assert_eq!(reply.is_ok().field("connection"), Some("close"));
    stub.release("old");
    old.join().unwrap().unwrap().is_ok();
    assert_eq!(gate.wait().code(), Some(0));
    start_waits_for_nothing(&mut gate, 34);
    assert_eq!(stub.tokens(), [5, 33, 34]);
}

#[test]
fn a_stop_that_runs_out_of_time_is_unclean() {
    let (stub, mut gate) = start_with(Setup::default().settle_after("2s").top("shutdown_timeout: 200ms"));
    let old = put("/orders/1", 33).field("x-stub-delay", "1.5").spawn(gate.port);
    stub.wait_for_head(33);
    assert_eq!(gate.stop(), Some(1));
    assert!(old.join().unwrap().is_err());
    start_waits(&mut gate, 34, Duration::from_secs(2));
    assert_eq!(stub.tokens(), [33, 34]);
}

#[test]
fn a_second_signal_ends_an_orderly_stop() {
    let (stub, mut gate) = settling("500ms");
    let old = put("/orders/1", 33).field("x-stub-hold", "old").spawn(gate.port);
    stub.wait_for_head(33);
    gate.signal(libc::SIGTERM);
    gate.wait_for_log("stopping");
    assert_eq!(gate.stop(), Some(1));
    assert!(old.join().unwrap().is_err());
    stub.release("old");
    start_waits(&mut gate, 34, Duration::from_millis(500));
}

#[test]
fn a_stop_waits_for_doubts() {
    let (_stub, mut gate) = settling("1s");
    let since = Instant::now();
    gate.send(put("/orders/1", 33).field("x-stub-drop", "never"))
        .is(502, "upstream-failed");
    assert_eq!(gate.stop(), Some(0));
    assert!(since.elapsed() >= Duration::from_secs(1), "{:?}", since.elapsed());
    gate.setup.settle_after = "60s".into();
    start_waits_for_nothing(&mut gate, 34);
}

#[test]
fn a_stop_with_a_doubt_that_outlasts_it_is_unclean() {
    let (_stub, mut gate) = start_with(Setup::default().settle_after("2s").top("shutdown_timeout: 200ms"));
    gate.send(put("/orders/1", 33).field("x-stub-drop", "never"))
        .is(502, "upstream-failed");
    assert_eq!(gate.stop(), Some(1));
    start_waits(&mut gate, 34, Duration::from_secs(2));
}

#[test]
fn a_stop_within_the_wait_waits_for_its_end_or_is_unclean() {
    let (_stub, mut gate) = settling("1500ms");
    gate.send(put("/orders/1", 33)).is_ok();
    gate.kill();
    gate.setup.top.push("shutdown_timeout: 100ms".into());
    gate.start();
    assert_eq!(gate.stop(), Some(1));
    gate.setup.top.clear();
    let since = Instant::now();
    gate.start();
    assert_eq!(gate.stop(), Some(0));
    assert!(
        since.elapsed() >= Duration::from_millis(1500),
        "{:?}",
        since.elapsed()
    );
    gate.setup.settle_after = "60s".into();
    start_waits_for_nothing(&mut gate, 34);
}

#[test]
fn an_upload_that_a_stop_cuts_leaves_it_clean() {
    let (stub, mut gate) = start_with(
        Setup::default()
            .settle_after("60s")
            .top("shutdown_timeout: 300ms"),
    );
    let mut upload = Conn::open(gate.port);
    upload
        .send(head("PUT", "/orders/1", Some(33), Some(1000), &[]))
        .send([b'x'; 600]);
    stub.wait_for_head(33);
    assert_eq!(gate.stop(), Some(0));
    stub.wait(|state| state.incomplete.len() == 1);
    start_waits_for_nothing(&mut gate, 34);
    assert_eq!(stub.tokens(), [34]);
}

#[test]
fn idle_connections_hold_up_no_stop() {
    let (_stub, mut gate) = settling("60s");
    let _unused = Conn::open(gate.port);
    let mut used = Conn::open(gate.port);
    used.send(put("/orders/1", 33).bytes());
    used.reply().is_ok();
    let _admin = Conn::open(gate.admin);
    let since = Instant::now();
    assert_eq!(gate.stop(), Some(0));
    assert!(since.elapsed() < Duration::from_secs(8), "{:?}", since.elapsed());
    used.is_closed();
}

// ---- S13

#[test]
fn with_the_store_full_equal_tokens_go_on_raises_get_503_and_it_recovers_by_itself() {
    let (stub, mut gate) = settling("500ms");
    gate.send(put("/orders/1", 33)).is_ok();
    gate.limit_files(Some(0));
    let reply = gate.send(put("/orders/1", 34));
    reply.is(503, "store-unavailable");
    assert!(reply.field("retry-after").is_some());
    assert_eq!(reply.json()["applied"], "no");
    gate.send(put("/orders/1", 33)).is(412, "stale-token");
    gate.send(put("/new/1", 1)).is(503, "store-unavailable");
    gate.send(ask("GET", "/orders/1")).is_ok();
    assert_eq!(stub.tokens(), [33]);
    gate.limit_files(None);
    let end = Instant::now() + gate::PATIENCE;
    while gate.send(put("/orders/1", 34)).status == 503 {
        assert!(Instant::now() < end, "it does not recover: {}", gate.log());
    }
    gate.send(put("/users/1", 7)).is_ok();
    gate.kill();
    gate.start();
    gate.send(put("/orders/1", 33)).is(412, "stale-token");
    gate.send(put("/users/1", 6)).is(412, "stale-token");
}

#[test]
fn the_holder_goes_on_while_the_store_takes_nothing() {
    let (stub, gate) = settling("500ms");
    gate.send(put("/orders/1", 33)).is_ok();
    gate.limit_files(Some(0));
    gate.send(put("/users/1", 1)).is(503, "store-unavailable");
    for _ in 0..20 {
        gate.send(put("/orders/1", 33)).is_ok();
    }
    assert_eq!(stub.tokens().len(), 21);
}

/// As `ulimit -f` does it: the file of the marks must not grow, and what is in it already may be written.
#[test]
fn a_bound_on_the_size_of_files_refuses_raises_and_ends_nothing() {
    let (_stub, mut gate) = settling("500ms");
    gate.send(put("/orders/1", 33)).is_ok();
    let marks = gate.folder.path().join("data/marks");
    gate.limit_files(Some(std::fs::metadata(&marks).unwrap().len()));
    let mut taken = Vec::new();
    let refused = (0..100_000).find(|n| {
        let target = format!("/{n}-{}/1", "x".repeat(2_000));
        let reply = gate.send(put(&target, 7));
        if reply.status == 503 {
            reply.is(503, "store-unavailable");
            return true;
        }
        taken.push(target);
        false
    });
    assert!(refused.is_some(), "the file did not want to grow");
    gate.send(put("/orders/1", 33)).is_ok();
    gate.limit_files(None);
    let end = Instant::now() + gate::PATIENCE;
    while gate.send(put("/orders/1", 34)).status == 503 {
        assert!(Instant::now() < end, "it does not recover: {}", gate.log());
    }
    gate.kill();
    gate.start();
    gate.send(put("/orders/1", 33)).is(412, "stale-token");
    for target in taken {
        gate.send(put(&target, 6)).is(412, "stale-token");
    }
}

// ---- S14

#[test]
fn a_second_instance_on_one_folder_is_refused() {
    let (stub, first) = settling("500ms");
    let mut second = Setup::default().start(stub.port);
    second.kill();
    let folder = first.folder.path().join("data");
    second.setup.store = format!("{{ kind: file, path: {} }}", folder.display());
    assert!(!second.try_start());
    assert_eq!(second.wait().code(), Some(1));
    assert!(second.log().contains("data"), "it says where: {}", second.log());
    first.send(put("/orders/1", 33)).is_ok();
}

#[test]
fn a_damaged_store_stops_the_start() {
    let (_stub, mut gate) = settling("500ms");
    for token in 1..30 {
        gate.send(put("/orders/1", token)).is_ok();
    }
    assert_eq!(gate.stop(), Some(0));
    let data = gate.folder.path().join("data");
    for entry in std::fs::read_dir(&data).unwrap().map(Result::unwrap) {
        let len = usize::try_from(entry.metadata().unwrap().len()).unwrap();
        if len > 0 {
            std::fs::write(entry.path(), vec![b'!'; len]).unwrap();
        }
    }
    assert!(!gate.try_start(), "it must not begin with forgotten marks");
    assert_eq!(gate.wait().code(), Some(1));
    assert!(gate.log().contains("data"), "it says where: {}", gate.log());
}

#[test]
fn a_taken_port_stops_the_start_and_leaves_the_store_clean() {
    let (stub, other) = settling("500ms");
    let mut gate = Setup::default().settle_after("60s").start(stub.port);
    gate.send(put("/orders/1", 33)).is_ok();
    assert_eq!(gate.stop(), Some(0));
    let config = gate.folder.path().join("fencegate.yaml");
    let text = std::fs::read_to_string(&config).unwrap();
    let taken = text.replace(
        &format!("127.0.0.1:{}", gate.port),
        &format!("127.0.0.1:{}", other.port),
    );
    std::fs::write(&config, taken).unwrap();
    let output = std::process::Command::new(env!("CARGO_BIN_EXE_fencegate"))
        .args(["serve", "-c"])
        .arg(&config)
        .current_dir(gate.folder.path())
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1));
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(said.contains(&other.port.to_string()), "{said}");
    start_waits_for_nothing(&mut gate, 34);
}

#[test]
fn a_hangup_is_noted_and_ends_nothing() {
    let (_stub, mut gate) = start_with(Setup::default());
    gate.send(put("/orders/1", 33)).is_ok();
    gate.signal(libc::SIGHUP);
    gate.wait_for_log("SIGHUP");
    gate.send(put("/orders/1", 33)).is_ok();
    assert_eq!(gate.stop(), Some(0));
}
