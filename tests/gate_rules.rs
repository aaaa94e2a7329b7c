//! What rules can match, and where tokens come from, through the running gate: what reaches the store is what came.

mod gate;

use gate::{Conn, Gate, RULE, Setup, Stub, ask, head, start_with};

fn start(rules: &str) -> (Stub, Gate) {
    start_with(Setup::rules(rules))
}

fn by_token(token: &str) -> String {
    RULE.replace("{ header: Fencing-Token }", token)
}

/// The last head that arrived at the store.
fn arrived(stub: &Stub) -> gate::Request {
    stub.look(|state| state.arrived.last().cloned().expect("something arrived"))
}

fn count(stub: &Stub) -> usize {
    stub.look(|state| state.arrived.len())
}

#[test]
fn a_token_in_the_query_is_compared_and_goes_on_as_it_came() {
    let (stub, gate) = start(&by_token("{ query: fence }"));
    gate.send(ask("PUT", "/orders/1?fence=%334&x=%2F")).is_ok();
    assert_eq!(arrived(&stub).target, "/orders/1?fence=%334&x=%2F");
    gate.send(ask("PUT", "/orders/1?fence=33")).is(412, "stale-token");
    gate.send(ask("GET", "/orders/1?fence=33")).is(412, "stale-token");
    gate.send(ask("PUT", "/orders/1")).is(428, "missing-token");
    gate.send(ask("PUT", "/orders/1?fence=35&fence=35"))
        .is(400, "malformed-token");
    gate.send(ask("PUT", "/orders/1?fence=35;x"))
        .is(400, "malformed-token");
    gate.send(ask("PUT", "/orders/1?fence=34")).is_ok();
    assert_eq!(count(&stub), 2);
}

#[test]
fn a_token_in_a_cookie_is_compared_and_goes_on_as_it_came() {
    let (stub, gate) = start(&by_token("{ cookie: fence }"));
    let with = |cookie: &str| ask("PUT", "/orders/1").field("Cookie", cookie);
    gate.send(with("a=1; fence=34; b=2")).is_ok();
    assert_eq!(arrived(&stub).field("cookie"), Some("a=1; fence=34; b=2"));
    gate.send(with("fence=33")).is(412, "stale-token");
    gate.send(with("Fence=34")).is(428, "missing-token");
    gate.send(with("fence=34").field("Cookie", "fence=34"))
        .is(400, "malformed-token");
    gate.send(with("fence=34").field("Connection", "cookie"))
        .is(400, "bad-request");
    assert_eq!(count(&stub), 1);
}

#[test]
fn one_of_two_header_fields_carries_the_token() {
    let (stub, gate) = start(&by_token("{ header: [Fencing-Token, X-Epoch] }"));
    gate.send(ask("PUT", "/orders/1").token(34)).is_ok();
    gate.send(ask("PUT", "/orders/1").field("x-epoch", 33))
        .is(412, "stale-token");
    gate.send(ask("PUT", "/orders/1").field("X-Epoch", 35)).is_ok();
    gate.send(ask("PUT", "/orders/1").token(34))
        .is(412, "stale-token");
    gate.send(ask("PUT", "/orders/1").token(35).field("X-Epoch", 35))
        .is(400, "malformed-token");
    assert_eq!(count(&stub), 2);
}

#[test]
fn a_pattern_takes_the_token_out_of_the_user_agent() {
    let (stub, gate) = start(&by_token(
        r"{ header: User-Agent, pattern: 'app/fencing-token\.(\d+)' }",
    ));
    let agent = |text: &str| ask("PUT", "/orders/1").field("User-Agent", text);
    gate.send(agent("Boto3/1.40 md/x app/fencing-token.34")).is_ok();
    assert_eq!(
        arrived(&stub).field("user-agent"),
        Some("Boto3/1.40 md/x app/fencing-token.34")
    );
    gate.send(agent("Boto3/1.40 app/fencing-token.33"))
        .is(412, "stale-token");
    gate.send(agent("Boto3/1.40")).is(428, "missing-token");
    gate.send(agent("app/fencing-token.34 app/fencing-token.34"))
        .is(400, "malformed-token");
    assert_eq!(count(&stub), 1);
}

#[test]
fn what_a_rule_reads_must_not_stand_in_trailers() {
    let rules = r#"
      - name: kind
        match: { path: "/{a}/{b}", headers: { X-Kind: order } }
        resource: "order/{a}"
        token: { cookie: fence }
"#;
    let (stub, gate) = start(rules);
    for name in ["Cookie", "X-Kind"] {
        let mut conn = Conn::open(gate.port);
        conn.send("PUT /a/b HTTP/1.1\r\nHost: h\r\nX-Kind: order\r\nCookie: fence=7\r\nTransfer-Encoding: chunked\r\n\r\n");
        conn.send(format!("1\r\nx\r\n0\r\n{name}: fence=9\r\n\r\n"));
        conn.reply().is(400, "bad-request");
    }
    assert_eq!(count(&stub), 0);
}

#[test]
fn a_rule_is_chosen_by_host_header_and_query() {
    let rules = r#"
      - name: bulk
        match: { path: "/{bucket}", methods: [POST], query: { delete: "" } }
        action: deny
      - name: tenant
        match: { path: "/{bucket}/{*key}", host: ["a.test", "*.a.test"], headers: { X-Kind: "order*" } }
        resource: "tenant/{host}/{bucket}"
        token: { header: Fencing-Token }
      - name: bucket
        match: { path: "/{bucket}/{*key}" }
        resource: "bucket/{bucket}"
        token: { header: Fencing-Token }
"#;
    let (stub, gate) = start_with(Setup::rules(rules).listener("unmatched: { writes: pass }"));
    let send = |host: &str, method: &str, target: &str, token: u64, more: &str| {
        let mut conn = Conn::open(gate.port);
        conn.send(format!(
            "{method} {target} HTTP/1.1\r\nHost: {host}\r\nFencing-Token: {token}\r\n{more}Content-Length: 0\r\n\r\n"
        ));
        conn.reply()
    };
    send("X.a.test:8080", "PUT", "/orders/1", 5, "X-Kind: orders\r\n").is_ok();
    let stale = send("x.a.test.", "PUT", "/orders/1", 4, "x-kind: order\r\n");
    assert_eq!(
        stale.is(412, "stale-token").json()["resource"],
        "tenant/x.a.test/orders"
    );
    assert_eq!(stale.json()["rule"], "tenant");
    // Another host, another value: the next rule, with marks of its own.
    send("b.test", "PUT", "/orders/1", 3, "X-Kind: order\r\n").is_ok();
    send("a.test", "PUT", "/orders/1", 3, "X-Kind: user\r\n").is_ok();
    // What the store could take for the first rule's.
    for more in [
        "X-Kind: ORDER\r\n",
        "X-Kind: order\r\nX-Kind: user\r\n",
        "X_Kind: order\r\n",
        "X-Kind: order\r\nX-Forwarded-Host: b.test\r\n",
        "X-Kind: order\r\nConnection: x-kind\r\n",
    ] {
        send("a.test", "PUT", "/orders/1", 9, more).is(400, "bad-request");
    }
    let denied = send("a.test", "POST", "/orders?delete", 9, "");
    assert_eq!(denied.is(403, "not-allowed").json()["rule"], "bulk");
    send("a.test", "POST", "/orders?x&delete=", 9, "").is(403, "not-allowed");
    send("a.test", "POST", "/orders?Delete", 9, "").is(400, "bad-request");
    send("a.test", "POST", "/orders?uploads", 9, "").is_ok();
    assert_eq!(count(&stub), 4);
}

const RENAME: &str = r#"
      - name: rename
        match: { methods: [MOVE, COPY], path: "/{share}/{*rest}" }
        fences:
          - { resource: "share/{share}", token: { header: Fencing-Token } }
          - { resource: "share/{share}", path_from: { header: Destination }, token: { header: Fencing-Token } }
      - name: share
        match: { path: "/{share}/{*rest}" }
        resource: "share/{share}"
        token: { header: Fencing-Token }
"#;

#[test]
fn a_move_is_compared_at_both_its_places() {
    let (stub, gate) = start(RENAME);
    let moved = |destination: &str, token: u64| {
        gate.send(ask("MOVE", "/a/k").token(token).field("Destination", destination))
    };
    gate.send(ask("PUT", "/b/k").token(34)).is_ok();
    let stale = moved("http://store.test/b/k", 33);
    assert_eq!(stale.is(412, "stale-token").json()["resource"], "share/b");
    gate.send(ask("PUT", "/a/k").token(1)).is_ok();
    moved("http://store.test/b/k", 35).is_ok();
    assert_eq!(arrived(&stub).field("destination"), Some("http://store.test/b/k"));
    for share in ["a", "b"] {
        gate.send(ask("PUT", &format!("/{share}/k")).token(34))
            .is(412, "stale-token");
    }
    moved("/a/other", 35).is_ok();
    moved("/c", 35).is(403, "unmatched-write");
    moved("http://elsewhere/b/k", 35).is(400, "ambiguous-path");
    gate.send(ask("MOVE", "/a/k").token(35)).is(400, "bad-request");
    gate.send(ask("GET", "/a/k").token(35)).is_ok();
    assert_eq!(count(&stub), 5);
}

#[test]
fn a_move_waits_for_older_writes_at_its_second_place() {
    let (stub, gate) = start(RENAME);
    let old = ask("PUT", "/b/k")
        .token(33)
        .field("x-stub-hold", "old")
        .spawn(gate.port);
    stub.wait_for_head(33);
    let moves = ask("MOVE", "/a/k")
        .token(34)
        .field("Destination", "/b/k")
        .spawn(gate.port);
    gate.wait_until_stale("/b/k", 33);
    assert!(!moves.is_finished(), "it waits for the older write");
    stub.release("old");
    old.join().unwrap().unwrap().is_ok();
    moves.join().unwrap().unwrap().is_ok();
    assert_eq!(stub.tokens(), [33, 34]);
}

#[test]
fn a_lenient_listener_forwards_odd_keys_byte_for_byte() {
    let (stub, gate) = start_with(Setup::default().listener("paths: lenient"));
    gate.send(ask("PUT", "/orders/a//b%2Fc%2f").token(34)).is_ok();
    assert_eq!(arrived(&stub).target, "/orders/a//b%2Fc%2f");
    gate.send(ask("PUT", "/orders//a").token(33))
        .is(412, "stale-token");
    for target in [
        "//orders/a",
        "/orders%2Fa",
        "/orders/a//../b",
        "/orders/a%2F..%2Fb",
        "/orders//",
    ] {
        gate.send(ask("PUT", target).token(35)).is(400, "ambiguous-path");
    }
    assert_eq!(count(&stub), 1);
    let (_, strict) = start(RULE);
    strict
        .send(ask("PUT", "/orders/a//b").token(34))
        .is(400, "ambiguous-path");
}

#[test]
fn an_upload_is_refused_by_its_query_before_its_body_comes() {
    let (stub, gate) = start(&by_token("{ query: fence }"));
    gate.send(ask("PUT", "/orders/1?fence=34")).is_ok();
    let mut conn = Conn::open(gate.port);
    conn.send(head(
        "PUT",
        "/orders/1?fence=33",
        None,
        Some(1 << 30),
        &[("Expect", "100-continue")],
    ));
    let reply = conn.reply();
    reply.is(412, "stale-token");
    assert!(reply.interim.is_empty());
    assert_eq!(count(&stub), 1);
}
