//! What the gate makes of tokens: compare, raise, refuse, wait; several fences; no token (S1, S3, S7, S11, S12,
//! S15), and what it answers (section 4 of the contract).

mod gate;

use std::time::{Duration, Instant};

use gate::{Conn, Gate, RULE, Setup, Stub, ask, head, start_with};

fn start() -> (Stub, Gate) {
    start_with(Setup::default())
}

fn put(target: &str, token: u64) -> gate::Ask {
    ask("PUT", target).token(token).body("v")
}

/// A rule with one more line.
fn with(rule: &str, line: &str) -> String {
    format!("{rule}        {line}\n")
}

// ---- S1, S3

#[test]
fn a_lower_token_is_refused_an_equal_one_goes_on_and_a_higher_one_raises() {
    let (stub, gate) = start();
    gate.send(put("/orders/1", 33).body("a")).is_ok();
    gate.send(put("/orders/2", 34).body("b")).is_ok();
    gate.send(put("/orders/1", 33).body("late"))
        .is(412, "stale-token");
    gate.send(put("/orders/3", 34).body("c")).is_ok();
    gate.send(put("/users/1", 1).body("d")).is_ok();
    assert_eq!(stub.tokens(), [33, 34, 34, 1]);
    assert_eq!(stub.content("/orders/1").as_deref(), Some("a"));
}

#[test]
fn every_mutating_method_is_fenced() {
    let (stub, gate) = start();
    gate.send(put("/orders/1", 34)).is_ok();
    for method in [
        "PUT",
        "POST",
        "PATCH",
        "DELETE",
        "MOVE",
        "COPY",
        "MKCOL",
        "PROPPATCH",
        "LOCK",
        "UNLOCK",
        "BREW",
    ] {
        gate.send(ask(method, "/orders/1").token(33))
            .is(412, "stale-token");
        gate.send(ask(method, "/orders/1")).is(428, "missing-token");
        gate.send(ask(method, "/orders/1").token(34)).is_ok();
    }
    assert!(stub.tokens().iter().all(|token| *token == 34));
    assert_eq!(stub.look(|state| state.arrived.len()), 12);
}

#[test]
fn zero_and_the_largest_number_are_tokens() {
    let (stub, gate) = start();
    gate.send(put("/orders/1", 0)).is_ok();
    gate.send(put("/orders/1", 0)).is_ok();
    gate.send(put("/orders/1", u64::MAX)).is_ok();
    gate.send(put("/orders/1", u64::MAX - 1)).is(412, "stale-token");
    gate.send(put("/orders/1", 9_007_199_254_740_993))
        .is(412, "stale-token");
    assert_eq!(stub.tokens(), [0, 0, u64::MAX]);
}

#[test]
fn what_is_no_token_is_refused_and_raises_nothing() {
    let (stub, gate) = start();
    for bad in [
        "",
        "x",
        "-1",
        "+1",
        "1.5",
        "18446744073709551616",
        "1,2",
        "0x10",
        "01",
        "1 2",
        "1e3",
        "\u{661}",
        "1;",
        "\"1\"",
        "99999999999999999999999999999999",
    ] {
        gate.send(ask("PUT", "/orders/1").token(bad))
            .is(400, "malformed-token");
    }
    gate.send(put("/orders/1", 5).token(5)).is(400, "malformed-token");
    gate.send(put("/orders/1", 5).field("fencing-TOKEN", 6))
        .is(400, "malformed-token");
    gate.send(ask("PUT", "/orders/1").token("  7\t")).is_ok();
    gate.send(put("/orders/1", 6)).is(412, "stale-token");
    gate.send(ask("PUT", "/orders/1")).is(428, "missing-token");
    assert_eq!(stub.look(|state| state.arrived.len()), 1);
}

#[test]
fn lower_tokens_are_refused_at_once_also_while_the_raise_still_waits() {
    let (stub, gate) = start();
    let old = put("/orders/1", 33).field("x-stub-hold", "old").spawn(gate.port);
    stub.wait_for_head(33);
    let new = put("/orders/1", 35).spawn(gate.port);
    gate.wait_until_stale("/orders/1", 33);
    gate.send(put("/orders/1", 34)).is(412, "stale-token");
    assert_eq!(stub.tokens(), [] as [u64; 0], "nothing has taken effect yet");
    stub.release("old");
    old.join().unwrap().unwrap().is_ok();
    new.join().unwrap().unwrap().is_ok();
    assert_eq!(stub.tokens(), [33, 35]);
}

// ---- S7

#[test]
fn who_waits_too_long_gets_503_and_the_raise_goes_on_by_itself() {
    let (stub, gate) = start_with(Setup::rules(&with(RULE, "drain_timeout: 1s")));
    let old = put("/orders/1", 33).field("x-stub-hold", "old").spawn(gate.port);
    stub.wait_for_head(33);
    let reply = gate.send(put("/orders/1", 34));
    reply.is(503, "draining");
    assert!(
        reply
            .field("retry-after")
            .is_some_and(|seconds| seconds.parse::<u32>().is_ok())
    );
    assert_eq!(reply.json()["resource"], "bucket/orders");
    assert_eq!(reply.json()["applied"], "no");
    gate.send(put("/orders/1", 33)).is(412, "stale-token");
    stub.release("old");
    old.join().unwrap().unwrap().is_ok();
    let stale = gate.send(put("/orders/1", 33));
    stale.is(412, "stale-token");
    assert_eq!(
        stale.json()["highest"],
        "34",
        "nobody waits, and it is raised all the same"
    );
    gate.send(put("/orders/1", 34)).is_ok();
    assert_eq!(stub.tokens(), [33, 34]);
}

#[test]
fn who_may_not_wait_raises_nothing() {
    let (stub, gate) = start_with(Setup::default().listener("limits: { max_waiting: 1 }"));
    let old = put("/orders/1", 33).field("x-stub-hold", "old").spawn(gate.port);
    stub.wait_for_head(33);
    let users = put("/users/1", 1).field("x-stub-hold", "old").spawn(gate.port);
    stub.wait_for_head(1);
    let waits = put("/orders/1", 34).spawn(gate.port);
    gate.wait_until_stale("/orders/1", 33);
    let reply = gate.send(put("/orders/1", 35));
    reply.is(503, "overloaded");
    assert!(reply.field("retry-after").is_some());
    gate.send(put("/users/1", 2)).is(503, "overloaded");
    gate.send(ask("GET", "/users/1").token(1)).is_ok();
    gate.send(put("/orders/1", 33)).is(412, "stale-token");
    stub.release("old");
    for thread in [old, users, waits] {
        thread.join().unwrap().unwrap().is_ok();
    }
    gate.send(put("/orders/1", 34)).is_ok();
    gate.send(put("/users/1", 1)).is_ok();
}

#[test]
fn a_refused_request_of_another_reason_raises_nothing() {
    let (_stub, gate) = start();
    gate.send(put("/orders/1", 1000)).is_ok();
    gate.send(put("/orders/a//b", 1050)).is(400, "ambiguous-path");
    gate.send(put("/orders/1", 1050).field("X-HTTP-Method-Override", "DELETE"))
        .is(400, "method-override");
    gate.send(
        put("/orders/1", 1050)
            .field("Upgrade", "websocket")
            .field("Connection", "upgrade"),
    )
    .is(403, "upgrade-refused");
    gate.send(put("/orders/1", 1050).field("Connection", "fencing-token"))
        .is(400, "bad-request");
    gate.send(put("/orders/1", 1000)).is_ok();
}

#[test]
fn a_raise_of_an_unreachable_backend_stands() {
    let gate = Setup::default().start(closed_port());
    let reply = gate.send(put("/orders/1", 34));
    reply.is(502, "upstream-unreachable");
    assert_eq!(reply.json()["applied"], "no");
    gate.send(put("/orders/1", 33)).is(412, "stale-token");
}

/// A port that nobody listens on.
fn closed_port() -> u16 {
    let socket = std::net::TcpListener::bind(("127.0.0.1", 0)).unwrap();
    socket.local_addr().unwrap().port()
}

// ---- S11

#[test]
fn a_read_with_a_token_raises_and_is_refused_like_a_write() {
    let (stub, gate) = start();
    gate.send(put("/orders/1", 33).body("hello")).is_ok();
    let read = gate.send(ask("GET", "/orders/1").token(35));
    assert_eq!(read.is_ok().body, b"hello");
    gate.send(put("/orders/1", 34)).is(412, "stale-token");
    for method in ["GET", "HEAD", "OPTIONS", "PROPFIND"] {
        let mut conn = Conn::open(gate.port);
        conn.send(ask(method, "/orders/1").token(34).bytes());
        conn.try_reply(method == "HEAD").unwrap().is(412, "stale-token");
        let reply = gate.send(ask(method, "/orders/1").token("x"));
        reply.is(400, "malformed-token");
    }
    assert_eq!(gate.send(ask("GET", "/orders/1")).is_ok().body, b"hello");
    assert_eq!(stub.tokens(), [33]);
}

#[test]
fn what_a_new_holder_reads_is_final() {
    let (stub, gate) = start();
    let old = put("/orders/1", 33)
        .body("last")
        .field("x-stub-hold", "old")
        .spawn(gate.port);
    stub.wait_for_head(33);
    let read = ask("GET", "/orders/1").token(34).spawn(gate.port);
    gate.wait_until_stale("/orders/1", 33);
    gate.send(ask("GET", "/orders/1")).is_ok();
    assert!(!read.is_finished(), "it waits for the older write");
    stub.release("old");
    old.join().unwrap().unwrap().is_ok();
    assert_eq!(read.join().unwrap().unwrap().is_ok().body, b"last");
}

#[test]
fn a_read_holds_up_no_raise() {
    let (stub, gate) = start();
    gate.send(put("/orders/1", 33)).is_ok();
    let read = ask("GET", "/orders/1")
        .token(33)
        .field("x-stub-hold", "read")
        .spawn(gate.port);
    stub.wait(|state| state.arrived.len() == 2);
    gate.send(put("/orders/1", 34)).is_ok();
    stub.release("read");
    read.join().unwrap().unwrap().is_ok();
}

#[test]
fn reads_can_be_left_alone() {
    let (_stub, gate) = start_with(Setup::rules(&with(RULE, "reads: ignore")));
    gate.send(put("/orders/1", 34)).is_ok();
    for token in ["33", "x", "99"] {
        gate.send(ask("GET", "/orders/1").token(token)).is_ok();
    }
    gate.send(put("/orders/1", 34)).is_ok();
}

// ---- S12

const TWO: &str = r#"
      - name: partition
        match: { path: "/{topic}/{partition}/{*rest}" }
        fences:
          - { resource: "controller", token: { header: Controller-Epoch } }
          - { resource: "partition/{topic}/{partition}", token: { header: Leader-Epoch } }
"#;

fn epochs(target: &str, controller: u64, leader: u64) -> gate::Ask {
    let request = ask("PUT", target).body("v");
    request
        .field("Controller-Epoch", controller)
        .field("Leader-Epoch", leader)
}

#[test]
fn one_stale_token_of_two_refuses_the_request_and_raises_neither() {
    let (stub, gate) = start_with(Setup::rules(TWO));
    gate.send(epochs("/t/0/x", 5, 7)).is_ok();
    let reply = gate.send(epochs("/t/0/x", 9, 6));
    reply.is(412, "stale-token");
    assert_eq!(reply.json()["resource"], "partition/t/0");
    assert_eq!(reply.json()["token"], "6");
    assert_eq!(reply.json()["highest"], "7");
    gate.send(epochs("/t/1/x", 5, 1)).is_ok();
    let reply = gate.send(epochs("/t/0/x", 4, 9));
    reply.is(412, "stale-token");
    assert_eq!(reply.json()["resource"], "controller");
    gate.send(epochs("/t/0/x", 5, 7)).is_ok();
    gate.send(epochs("/t/0/x", 6, 8)).is_ok();
    gate.send(epochs("/t/0/x", 6, 7)).is(412, "stale-token");
    gate.send(epochs("/t/1/x", 5, 1)).is(412, "stale-token");
    assert_eq!(stub.look(|state| state.journal.len()), 4);
}

#[test]
fn what_turns_stale_while_it_waits_leaves_its_other_raise_standing() {
    let (stub, gate) = start_with(Setup::rules(TWO));
    let old = epochs("/t/0/x", 5, 7)
        .field("x-stub-hold", "old")
        .spawn(gate.port);
    stub.wait(|state| state.arrived.len() == 1);
    let waits = epochs("/t/0/x", 6, 8).spawn(gate.port);
    // A read with the leader's epoch waits too, once it is equal; one of the old controller is stale by then.
    let end = Instant::now() + gate::PATIENCE;
    while gate.send(epochs("/t/1/x", 4, 1).field("x", "y")).json()["highest"] != "6" {
        assert!(Instant::now() < end, "the raise was never seen");
    }
    let higher = epochs("/t/1/x", 7, 1).spawn(gate.port);
    let reply = waits.join().unwrap().unwrap();
    reply.is(412, "stale-token");
    assert_eq!(reply.json()["resource"], "controller");
    stub.release("old");
    old.join().unwrap().unwrap().is_ok();
    higher.join().unwrap().unwrap().is_ok();
    let reply = gate.send(epochs("/t/0/x", 7, 7));
    reply.is(412, "stale-token");
    assert_eq!(reply.json()["highest"], "8", "the leader's epoch stays raised");
    gate.send(epochs("/t/0/x", 7, 8)).is_ok();
}

#[test]
fn whether_a_token_is_missing_is_decided_per_fence() {
    let (stub, gate) = start_with(Setup::rules(TWO));
    let reply = gate.send(ask("PUT", "/t/0/x").field("Controller-Epoch", 5));
    reply.is(428, "missing-token");
    assert_eq!(reply.json()["resource"], "partition/t/0");
    let reply = gate.send(ask("PUT", "/t/0/x").field("Leader-Epoch", 5));
    reply.is(428, "missing-token");
    assert_eq!(reply.json()["resource"], "controller");
    gate.send(epochs("/t/0/x", 1, 1)).is_ok();
    assert_eq!(stub.look(|state| state.arrived.len()), 1);
}

/// Two fences that one request may name alike.
const ENDS: &str = r#"
      - name: ends
        match: { path: "/{a}/{b}" }
        fences:
          - { resource: "r/{a}", token: { header: Fencing-Token } }
          - { resource: "r/{b}", token: { header: Fencing-Token } }
"#;

#[test]
fn a_resource_named_twice_counts_once() {
    let (stub, gate) = start_with(Setup::rules(ENDS));
    let old = put("/a/a", 33).field("x-stub-hold", "old").spawn(gate.port);
    stub.wait_for_head(33);
    let new = put("/a/a", 34).spawn(gate.port);
    gate.wait_until_stale("/a/a", 33);
    stub.release("old");
    old.join().unwrap().unwrap().is_ok();
    new.join().unwrap().unwrap().is_ok();
    assert_eq!(stub.tokens(), [33, 34]);
}

#[test]
fn requests_that_name_two_resources_in_opposite_order_never_wait_for_each_other() {
    let (stub, gate) = start_with(Setup::rules(ENDS));
    let port = gate.port;
    let threads = ["/a/b", "/b/a", "/a/b", "/b/a"].map(|target| {
        std::thread::spawn(move || {
            for token in 1..40 {
                let reply = put(target, token).send(port);
                assert!(matches!(reply.status, 200 | 412), "{reply:?}");
            }
        })
    });
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    let tokens = stub.tokens();
    assert!(tokens.is_sorted() && tokens.last() == Some(&39), "{tokens:?}");
}

#[test]
fn two_different_tokens_for_one_resource_are_refused() {
    let (stub, gate) = start_with(Setup::rules(
        r#"
      - name: pair
        match: { path: "/{a}/{b}" }
        fences:
          - { resource: "r/{a}", token: { header: One } }
          - { resource: "r/{b}", token: { header: Two } }
"#,
    ));
    let both = |target: &str, one: u64, two: u64| ask("PUT", target).field("One", one).field("Two", two);
    assert_eq!(gate.send(both("/x/x", 1, 2)).status, 400);
    gate.send(both("/x/x", 1, 1)).is_ok();
    gate.send(both("/x/y", 1, 2)).is_ok();
    gate.send(both("/y/x", 2, 1)).is_ok();
    assert_eq!(stub.look(|state| state.arrived.len()), 3);
}

// ---- S15

#[test]
fn a_write_without_a_token_is_drained_by_a_raise() {
    let (stub, gate) = start_with(Setup::rules(&with(RULE, "missing: pass")));
    let bare = ask("PUT", "/orders/1")
        .body("old")
        .field("x-stub-hold", "bare")
        .spawn(gate.port);
    stub.wait(|state| state.arrived.len() == 1);
    let new = put("/orders/1", 34).spawn(gate.port);
    let end = Instant::now() + gate::PATIENCE;
    while gate.send(ask("GET", "/orders/1").token(33)).status != 412 {
        assert!(Instant::now() < end);
    }
    let later = ask("PUT", "/orders/1").body("later").spawn(gate.port);
    assert!(!new.is_finished() && stub.tokens().is_empty());
    stub.release("bare");
    bare.join().unwrap().unwrap().is_ok();
    new.join().unwrap().unwrap().is_ok();
    later.join().unwrap().unwrap().is_ok();
    assert_eq!(stub.journal()[0].start, "old");
}

#[test]
fn a_write_without_a_token_waits_while_a_raise_drains() {
    let rules = with(RULE, "missing: pass") + "        drain_timeout: 1s\n";
    let (stub, gate) = start_with(Setup::rules(&rules));
    let old = put("/orders/1", 33).field("x-stub-hold", "old").spawn(gate.port);
    stub.wait_for_head(33);
    gate.send(put("/orders/1", 34)).is(503, "draining");
    gate.send(ask("PUT", "/orders/1")).is(503, "draining");
    stub.release("old");
    old.join().unwrap().unwrap().is_ok();
    gate.send(put("/orders/1", 34)).is_ok();
    gate.send(ask("PUT", "/orders/1")).is_ok();
}

#[test]
fn an_upload_without_a_token_is_cut_with_428_by_a_raise() {
    for missing in ["missing: pass", "missing: pass_until_fenced"] {
        let (stub, gate) = start_with(Setup::rules(&with(RULE, missing)));
        let mut upload = Conn::open(gate.port);
        upload
            .send(head("PUT", "/orders/1", None, Some(100), &[]))
            .send([b'x'; 60]);
        stub.wait(|state| state.arrived.len() == 1);
        gate.send(put("/orders/1", 34)).is_ok();
        upload.reply().is(428, "missing-token");
        assert_eq!(stub.tokens(), [34]);
        stub.wait(|state| state.incomplete.len() == 1);
        assert_eq!(stub.look(|state| state.journal.len()), 1, "{missing}");
    }
}

#[test]
fn writes_without_a_token_pass_until_the_resource_is_fenced() {
    let rules = with(RULE, "missing: pass_until_fenced");
    let stub = Stub::start();
    let mut gate = Setup::rules(&rules).start(stub.port);
    gate.send(ask("PUT", "/orders/1")).is_ok();
    gate.send(put("/orders/1", 1)).is_ok();
    gate.send(ask("PUT", "/orders/1")).is(428, "missing-token");
    gate.send(ask("PUT", "/users/1")).is_ok();
    assert_eq!(gate.stop(), Some(0));
    gate.start();
    gate.send(ask("DELETE", "/orders/1")).is(428, "missing-token");
    gate.send(ask("PUT", "/users/1")).is_ok();
}

#[test]
fn resources_that_never_saw_a_token_leave_nothing_behind() {
    let (_stub, gate) = start_with(Setup::rules(&with(RULE, "missing: pass")));
    let mut conn = Conn::open(gate.port);
    for number in 0..300 {
        conn.send(ask("PUT", &format!("/r{number}/1")).bytes());
        conn.reply().is_ok();
        conn.send(ask("GET", &format!("/r{number}/1")).bytes());
        conn.reply().is_ok();
        conn.send(ask("PUT", &format!("/r{number}/1")).token("x").bytes());
        conn.reply().is(400, "malformed-token");
    }
    gate.send(put("/orders/1", 1)).is_ok();
    assert_eq!(gate.metric("fencegate_fences", &[]), 1.0);
    assert_eq!(gate.metric("fencegate_in_flight_writes", &[]), 0.0);
}

// ---- unmatched, observe

#[test]
fn a_write_that_no_rule_matches_is_refused_and_a_read_passes() {
    let (stub, gate) = start();
    gate.send(put("/top", 7)).is(403, "unmatched-write");
    gate.send(ask("DELETE", "/")).is(403, "unmatched-write");
    gate.send(ask("GET", "/top")).is_ok();
    assert_eq!(stub.look(|state| state.journal.len()), 0);
}

#[test]
fn observe_mode_lets_through_counts_and_never_waits() {
    let (stub, gate) = start_with(Setup::rules(&with(RULE, "mode: observe")));
    gate.send(put("/orders/1", 34)).is_ok();
    gate.send(put("/orders/1", 33)).is_ok();
    gate.wait_for_log("observed: would be refused");
    gate.send(ask("PUT", "/orders/1")).is_ok();
    gate.send(ask("PUT", "/orders/1").token("x")).is_ok();
    let old = put("/orders/1", 34).field("x-stub-hold", "old").spawn(gate.port);
    stub.wait(|state| state.arrived.len() == 5);
    gate.send(put("/orders/1", 35)).is_ok();
    stub.release("old");
    old.join().unwrap().unwrap().is_ok();
    for (decision, count) in [
        ("stale", 1.0),
        ("missing", 1.0),
        ("malformed", 1.0),
        ("raised", 2.0),
    ] {
        let parts = [format!("decision=\"{decision}\""), "mode=\"observe\"".into()];
        let parts = parts.each_ref().map(String::as_str);
        assert_eq!(
            gate.metric("fencegate_requests_total", &parts),
            count,
            "{decision}"
        );
    }
}

// ---- section 4

#[test]
fn a_stale_client_is_told_everything() {
    let (_stub, gate) = start();
    gate.send(put("/orders/1", 34)).is_ok();
    let reply = gate.send(put("/orders/1", 33));
    reply.is(412, "stale-token");
    assert_eq!(reply.field("content-type"), Some("application/problem+json"));
    assert_eq!(reply.field("fencing-token-highest"), Some("34"));
    assert_eq!(reply.field("retry-after"), None);
    let problem = reply.json();
    for (key, value) in [
        ("reason", "stale-token"),
        ("resource", "bucket/orders"),
        ("token", "33"),
        ("highest", "34"),
        ("rule", "bucket"),
        ("applied", "no"),
    ] {
        assert_eq!(problem[key], value, "{problem}");
    }
    assert_eq!(problem["status"], 412);
    for key in ["type", "title", "detail"] {
        assert!(
            problem[key].as_str().is_some_and(|text| !text.is_empty()),
            "{problem}"
        );
    }
}

#[test]
fn every_refusal_is_a_problem_with_its_reason() {
    let (_stub, gate) = start();
    let refusals = [
        (ask("PUT", "/orders/1"), 428, "missing-token"),
        (ask("PUT", "/orders/1").token("x"), 400, "malformed-token"),
        (put("/orders/../users/1", 1), 400, "ambiguous-path"),
        (
            put("/orders/1", 1).field("X-Method-Override", "DELETE"),
            400,
            "method-override",
        ),
        (put("/top", 1), 403, "unmatched-write"),
        (ask("TRACE", "/orders/1"), 501, "bad-request"),
    ];
    for (request, status, reason) in refusals {
        let reply = gate.send(request);
        reply.is(status, reason);
        assert_eq!(reply.field("content-type"), Some("application/problem+json"));
        assert_eq!(reply.field("retry-after"), None);
        assert_eq!(reply.json()["reason"], reason);
        assert_eq!(reply.json()["status"], status);
        assert_eq!(reply.json()["applied"], "no");
    }
}

#[test]
fn a_conditional_stale_request_gets_403() {
    let (_stub, gate) = start();
    gate.send(put("/orders/1", 34)).is_ok();
    for name in [
        "If-Match",
        "If-None-Match",
        "If-Unmodified-Since",
        "If",
        "if-MATCH",
    ] {
        let reply = gate.send(put("/orders/1", 33).field(name, "*"));
        reply.is(403, "stale-token");
        assert_eq!(reply.field("fencing-token-highest"), Some("34"));
        assert_eq!(reply.json()["status"], 403);
        gate.send(put("/orders/1", 34).field(name, "*")).is_ok();
    }
    gate.send(put("/orders/1", 33).field("If-Modified-Since", "x"))
        .is(412, "stale-token");
}

#[test]
fn a_conditional_upload_that_is_cut_gets_403() {
    let (stub, gate) = start();
    let mut upload = Conn::open(gate.port);
    upload
        .send(head(
            "PUT",
            "/orders/1",
            Some(33),
            Some(100),
            &[("If-Match", "\"a\"")],
        ))
        .send([b'x'; 60]);
    stub.wait_for_head(33);
    gate.send(put("/orders/1", 34)).is_ok();
    upload.reply().is(403, "stale-token");
}

#[test]
fn a_refused_head_has_no_body_and_its_connection_goes_on() {
    let (_stub, gate) = start();
    gate.send(put("/orders/1", 34)).is_ok();
    let mut conn = Conn::open(gate.port);
    conn.send(ask("HEAD", "/orders/1").token(33).bytes());
    let reply = conn.reply_to_head();
    reply.is(412, "stale-token");
    assert!(reply.field("content-length").is_some());
    conn.send(ask("GET", "/orders/1").bytes());
    conn.reply().is_ok();
}

#[test]
fn tokens_are_written_in_the_rules_format() {
    let rule = RULE.replace("header: Fencing-Token", "header: Fencing-Token, format: hex");
    let (_stub, gate) = start_with(Setup::rules(&rule));
    gate.send(ask("PUT", "/orders/1").token("0x1f")).is_ok();
    gate.send(ask("PUT", "/orders/1").token("1F")).is_ok();
    let reply = gate.send(ask("PUT", "/orders/1").token("1e"));
    reply.is(412, "stale-token");
    assert!(
        reply.json()["highest"].as_str().unwrap().ends_with("1f"),
        "{}",
        reply.json()
    );
    let rule = RULE.replace("header: Fencing-Token", "header: Fencing-Token, format: pair");
    let (_stub, gate) = start_with(Setup::rules(&rule));
    gate.send(ask("PUT", "/orders/1").token("2.1")).is_ok();
    gate.send(ask("PUT", "/orders/1").token("1.9"))
        .is(412, "stale-token");
    let reply = gate.send(ask("PUT", "/orders/1").token("2:0"));
    assert_eq!(reply.is(412, "stale-token").json()["highest"], "2.1");
    gate.send(ask("PUT", "/orders/1").token("3-0")).is_ok();
}

// ---- Expect

#[test]
fn a_refusal_comes_instead_of_the_100() {
    let (stub, gate) = start();
    gate.send(put("/orders/1", 34)).is_ok();
    for (token, status, reason) in [(Some(33), 412, "stale-token"), (None, 428, "missing-token")] {
        let mut conn = Conn::open(gate.port);
        conn.send(head(
            "PUT",
            "/orders/1",
            token,
            Some(1000),
            &[("Expect", "100-continue")],
        ));
        let reply = conn.reply();
        reply.is(status, reason);
        assert!(reply.interim.is_empty(), "{reply:?}");
        assert!(reply.field("connection").is_some_and(|value| value == "close"));
    }
    assert_eq!(stub.look(|state| state.arrived.len()), 1);
}

#[test]
fn another_resource_never_waits() {
    let (stub, gate) = start();
    let old = put("/orders/1", 33).field("x-stub-hold", "old").spawn(gate.port);
    stub.wait_for_head(33);
    let new = put("/orders/1", 34).spawn(gate.port);
    gate.wait_until_stale("/orders/1", 33);
    let since = Instant::now();
    gate.send(put("/users/1", 50)).is_ok();
    gate.send(put("/users/1", 51)).is_ok();
    assert!(since.elapsed() < Duration::from_secs(2));
    assert!(!new.is_finished());
    stub.release("old");
    old.join().unwrap().unwrap().is_ok();
    new.join().unwrap().unwrap().is_ok();
}
