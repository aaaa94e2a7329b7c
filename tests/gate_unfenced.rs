//! Who still writes without a token can be seen before anybody is refused for it: the same number for all protocols.

mod backends;
mod gate;
mod redis;

use gate::sessions::{Backend, Manners, open, reads, tcp};
use gate::{Gate, Setup, ask, start_with};
use redis::{Client, setup};

/// Asserts how many unfenced writes each rule has let through.
#[track_caller]
fn unfenced(gate: &Gate, rules: &[(&str, u32)]) {
    let counted: Vec<(&str, f64)> = rules
        .iter()
        .map(|(rule, _)| {
            let labels = [&*format!("rule=\"{rule}\""), "listener=\"store\""];
            (*rule, gate.metric("fencegate_unfenced_writes_total", &labels))
        })
        .collect();
    let wanted: Vec<(&str, f64)> = rules.iter().map(|(rule, n)| (*rule, f64::from(*n))).collect();
    assert_eq!(counted, wanted);
}

fn web(rest: &str) -> Setup {
    let both = r#"
      - name: both
        match: { path: "/two/{*key}" }
        fences:
          - { resource: "one", token: { header: Fencing-Token } }
          - { resource: "two", token: { header: Other-Token } }
        REST
      - name: bucket
        match: { path: "/{bucket}/{*key}" }
        resource: "bucket/{bucket}"
        token: { header: Fencing-Token }
        REST
"#;
    Setup::rules(&both.replace("REST", rest)).listener("unmatched: { writes: pass }")
}

#[test]
fn writes_of_http_without_a_token_are_counted_by_their_rule_and_nothing_else_is() {
    let (_stub, gate) = start_with(web("missing: pass"));
    let put = |path| ask("PUT", path).body("x");
    gate.send(put("/orders/1")).is_ok();
    gate.send(put("/orders/1")).is_ok();
    gate.send(put("/orders/1").token(1)).is_ok();
    gate.send(put("/orders/1").token(1)).is_ok();
    gate.send(put("/orders/1")).is_ok();
    gate.send(ask("GET", "/orders/1")).is_ok();
    unfenced(&gate, &[("bucket", 3), ("both", 0), ("", 0)]);
    // A token for one of two places is none for the other.
    gate.send(put("/two/1").token(1)).is_ok();
    gate.send(put("/two/1").token(1).field("Other-Token", 1)).is_ok();
    unfenced(&gate, &[("both", 1)]);
    gate.send(put("/unmatched")).is_ok();
    gate.send(ask("GET", "/unmatched"));
    unfenced(&gate, &[("bucket", 3), ("both", 1), ("", 1)]);
}

#[test]
fn what_is_refused_is_not_counted_and_what_would_be_is() {
    let (_stub, gate) = start_with(web("missing: deny"));
    gate.send(ask("PUT", "/orders/1").body("x"))
        .is(428, "missing-token");
    unfenced(&gate, &[("bucket", 0)]);
    for missing in ["deny", "pass", "pass_until_fenced"] {
        let (_stub, gate) = start_with(web(&format!("mode: observe\n        missing: {missing}")));
        let put = |path| ask("PUT", path).body("x");
        gate.send(put("/orders/1")).is_ok();
        gate.send(put("/orders/1").token(2)).is_ok();
        gate.send(put("/orders/1").token(1)).is_ok();
        gate.send(put("/orders/1")).is_ok();
        gate.send(ask("GET", "/orders/1")).is_ok();
        unfenced(&gate, &[("bucket", 2), ("both", 0)]);
        gate.send(put("/two/1").token(1)).is_ok();
        unfenced(&gate, &[("bucket", 2), ("both", 1)]);
    }
}

#[test]
fn commands_of_redis_without_a_token_are_counted_by_each_rule_that_they_lack_one_for() {
    let rules = r#"
      - { name: a, match: { keys: "a:*" }, resource: "a", token: { connection: true }, missing: pass }
      - { name: b, match: { keys: "b:*" }, resource: "b", token: { connection: true }, missing: pass_until_fenced }
      - { name: seen, match: { keys: "seen:*" }, resource: "seen", token: { connection: true }, mode: observe }
      - { name: free, match: { keys: "free:*" }, resource: "free", token: { connection: true }, mode: observe, missing: pass }
"#;
    let (_server, gate) = redis::start_with(setup(rules).listener("unmatched: { writes: pass }"));
    let mut bare = Client::of(gate.port);
    // The first is asked about, those that follow take the quick way.
    for _ in 0..3 {
        assert_eq!(bare.ask("SET a:1 x"), "+OK");
    }
    assert_eq!(bare.ask("GET a:1"), "x");
    unfenced(&gate, &[("a", 3), ("b", 0), ("seen", 0), ("free", 0), ("", 0)]);
    assert_eq!(bare.ask("MSET a:1 x a:2 x b:1 x"), "+OK");
    unfenced(&gate, &[("a", 4), ("b", 1)]);
    bare.send_all(&["MULTI", "SET b:1 y", "SET b:2 y", "EXEC"]);
    assert_eq!(bare.replies(4), ["+OK", "+QUEUED", "+QUEUED", "[+OK +OK]"]);
    unfenced(&gate, &[("a", 4), ("b", 2)]);
    for key in ["seen:1", "free:1"] {
        assert_eq!(bare.ask(&format!("SET {key} x")), "+OK");
        assert_eq!(bare.ask(&format!("GET {key}")), "x");
    }
    for _ in 0..2 {
        assert_eq!(bare.ask("SET other:1 x"), "+OK");
        assert_eq!(bare.ask("GET other:1"), "x");
    }
    unfenced(&gate, &[("a", 4), ("b", 2), ("seen", 1), ("free", 1), ("", 2)]);
    let mut holder = Client::holder(&gate, 1);
    for key in ["a:1", "b:1", "seen:1", "free:1"] {
        assert_eq!(holder.ask(&format!("SET {key} x")), "+OK");
        assert_eq!(holder.ask(&format!("SET {key} x")), "+OK");
    }
    unfenced(&gate, &[("a", 4), ("b", 2), ("seen", 1), ("free", 1), ("", 2)]);
    assert!(bare.ask("SET b:1 z").starts_with("-FENCED missing token"));
    unfenced(&gate, &[("b", 2)]);
}

#[test]
fn sessions_without_a_token_are_counted_where_they_are_let_through() {
    let backend = Backend::start(Manners {
        echoes: true,
        ..Manners::default()
    });
    let whole = |more: &str| {
        let rule = "\n      - { name: whole, resource: backend, token: { preface: true }, MORE }\n";
        tcp(&rule.replace("MORE", more)).start(backend.port)
    };
    for (more, wanted) in [
        ("missing: pass", 2),
        ("missing: pass_until_fenced", 1),
        ("missing: deny, mode: observe", 2),
        ("missing: pass, mode: observe", 2),
    ] {
        let gate = whole(more);
        reads(&mut open(&gate, b"no line"), b"no line");
        reads(&mut open(&gate, b"FENCE - 1\nx"), b"x");
        // Where it is let through again, and where it isn't.
        let _ended = std::io::Read::read(&mut open(&gate, b"no line"), &mut [0]);
        unfenced(&gate, &[("whole", wanted)]);
    }
    let gate = whole("missing: deny");
    gate::sessions::is_reset(&mut open(&gate, b"no line"));
    unfenced(&gate, &[("whole", 0)]);
}
