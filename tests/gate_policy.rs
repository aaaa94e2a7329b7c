//! Who may present tokens, by how far they may raise, how a refusal is written for S3's clients, and who may use the
//! admin address.

mod gate;

use gate::{Gate, RULE, Reply, Setup, Stub, ask, start_with};

fn put(target: &str, token: u64) -> gate::Ask {
    ask("PUT", target).token(token).body("v")
}

/// A rule with one more line.
fn with(rule: &str, line: &str) -> String {
    format!("{rule}        {line}\n")
}

// ---- errors: s3

fn s3() -> Setup {
    Setup::default().listener("errors: s3")
}

fn element(reply: &Reply, name: &str) -> String {
    assert_eq!(reply.field("content-type"), Some("application/xml"), "{reply:?}");
    let text = String::from_utf8(reply.body.clone()).unwrap();
    let (_, rest) = text
        .split_once(&format!("<{name}>"))
        .unwrap_or_else(|| panic!("{text}"));
    rest.split_once(&format!("</{name}>")).unwrap().0.to_owned()
}

#[test]
fn a_refusal_is_the_xml_that_s3_clients_read() {
    let (_stub, gate) = start_with(s3());
    gate.send(put("/orders/1", 34)).is_ok();
    let stale = gate.send(put("/orders/a&b?X-Amz-Signature=secret", 33));
    stale.is(412, "stale-token");
    assert_eq!(stale.field("fencing-token-highest"), Some("34"));
    assert_eq!(element(&stale, "Code"), "PreconditionFailed");
    assert_eq!(element(&stale, "Resource"), "/orders/a&amp;b");
    assert_eq!(element(&stale, "Fence"), "bucket/orders");
    assert_eq!(element(&stale, "Highest"), "34");
    assert!(element(&stale, "Message").contains("token 33 is lower than 34"));
    let id = element(&stale, "RequestId");
    assert_eq!(stale.field("x-amz-request-id"), Some(&*id));
    gate.wait_for_log(&id);
    assert!(!gate.log().contains("secret"), "{}", gate.log());
}

#[test]
fn each_s3_refusal_has_a_code_that_its_status_goes_with() {
    let (_stub, gate) = start_with(s3());
    gate.send(put("/orders/1", 34)).is_ok();
    for (ask, status, reason, code) in [
        (
            ask("PUT", "/orders/1").body("v"),
            428,
            "missing-token",
            "AccessDenied",
        ),
        (
            ask("PUT", "/").token(34).body("v"),
            403,
            "unmatched-write",
            "AccessDenied",
        ),
        (
            ask("PUT", "/orders/1").token("x"),
            400,
            "malformed-token",
            "InvalidRequest",
        ),
        (
            put("/orders/%2e%2e/x", 34),
            400,
            "ambiguous-path",
            "InvalidRequest",
        ),
        (
            put("/orders/1", 34)
                .field("Upgrade", "x")
                .field("Connection", "upgrade"),
            403,
            "upgrade-refused",
            "AccessDenied",
        ),
        (
            put("/orders/1", 33).field("If-None-Match", "*"),
            403,
            "stale-token",
            "AccessDenied",
        ),
        (
            put("/orders/1", 34).field("Host", "two"),
            400,
            "bad-request",
            "InvalidRequest",
        ),
    ] {
        let reply = gate.send(ask);
        reply.is(status, reason);
        assert_eq!(element(&reply, "Code"), code, "{reason}");
    }
}

#[test]
fn a_refused_head_has_no_body_and_its_connection_goes_on() {
    let (_stub, gate) = start_with(s3());
    gate.send(put("/orders/1", 34)).is_ok();
    let mut conn = gate::Conn::open(gate.port);
    conn.send(ask("HEAD", "/orders/1").token(33).bytes());
    let reply = conn.reply_to_head();
    reply.is(412, "stale-token");
    assert!(reply.field("x-amz-request-id").is_some());
    conn.send(ask("GET", "/orders/1").token(34).bytes());
    conn.reply().is_ok();
}

#[test]
fn a_request_that_may_be_tried_again_says_so_in_s3_too() {
    let (stub, gate) = start_with(Setup::rules(&with(RULE, "drain_timeout: 50ms")).listener("errors: s3"));
    let old = put("/orders/1", 33).field("x-stub-hold", "old").spawn(gate.port);
    stub.wait_for_head(33);
    let reply = gate.send(put("/orders/1", 34));
    reply.is(503, "draining");
    assert_eq!(element(&reply, "Code"), "ServiceUnavailable");
    assert!(reply.field("retry-after").is_some());
    stub.release("old");
    old.join().unwrap().unwrap().is_ok();
    let lost = gate.send(put("/orders/1", 34).field("x-stub-drop", "never"));
    lost.is(502, "upstream-failed");
    assert_eq!(element(&lost, "Code"), "InternalError");
    assert_eq!(element(&lost, "Applied"), "unknown");
}

// ---- max_step

const BOUNDED: &str = r#"
      - name: bucket
        match: { path: "/{bucket}/{*key}" }
        resource: "bucket/{bucket}"
        token: { header: Fencing-Token, max_step: 100 }
"#;

#[test]
fn a_leap_is_refused_and_the_present_holder_goes_on() {
    let (stub, gate) = start_with(Setup::rules(BOUNDED));
    gate.send(put("/orders/1", 1_000_000)).is_ok();
    let leap = gate.send(put("/orders/1", u64::MAX));
    leap.is(422, "step-too-large");
    assert_eq!(leap.json()["highest"], "1000000");
    assert_eq!(leap.json()["resource"], "bucket/orders");
    assert!(leap.json()["detail"].as_str().unwrap().contains("max_step (100)"));
    gate.send(ask("GET", "/orders/1").token(1_000_101))
        .is(422, "step-too-large");
    gate.send(put("/orders/1", 1_000_000)).is_ok();
    gate.send(put("/orders/1", 1_000_100)).is_ok();
    gate.send(put("/orders/1", 1_000_000)).is(412, "stale-token");
    assert_eq!(stub.tokens(), [1_000_000, 1_000_000, 1_000_100]);
}

#[test]
fn a_step_is_counted_from_a_token_that_still_drains() {
    let (stub, gate) = start_with(Setup::rules(BOUNDED));
    let old = put("/orders/1", 1).field("x-stub-hold", "old").spawn(gate.port);
    stub.wait_for_head(1);
    let new = put("/orders/1", 101).spawn(gate.port);
    gate.wait_until_stale("/orders/1", 1);
    gate.send(put("/orders/1", 202)).is(422, "step-too-large");
    let newer = put("/orders/1", 201).spawn(gate.port);
    gate.wait_until_stale("/orders/1", 101);
    stub.release("old");
    old.join().unwrap().unwrap().is_ok();
    newer.join().unwrap().unwrap().is_ok();
    new.join().unwrap().unwrap().is(412, "stale-token");
    assert_eq!(stub.tokens(), [1, 201]);
}

#[test]
fn one_leap_of_two_fences_raises_neither() {
    let rules = r#"
      - name: partition
        match: { path: "/{topic}/{*rest}" }
        fences:
          - { resource: "controller", token: { header: Fencing-Token } }
          - { resource: "topic/{topic}", token: { header: Other-Token, max_step: 5 } }
"#;
    let (_stub, gate) = start_with(Setup::rules(rules));
    let both = |one: u64, two: u64| gate.send(put("/t/x", one).field("Other-Token", two));
    both(10, 10).is_ok();
    both(11, 16).is(422, "step-too-large");
    both(10, 10).is_ok();
    both(9, 16).is(412, "stale-token");
    both(11, 15).is_ok();
}

#[test]
fn an_operator_may_leap() {
    let (_stub, gate) = start_with(Setup::rules(BOUNDED));
    gate.send(put("/orders/1", 1)).is_ok();
    let raise = ask("POST", "/api/v1/fences/raise")
        .field("Content-Type", "application/json")
        .body(r#"{"resource":"bucket/orders","token":"5000"}"#);
    let local = |ask: gate::Ask| {
        let text = String::from_utf8(ask.bytes())
            .unwrap()
            .replace("store.test", "localhost");
        let mut conn = gate::Conn::open(gate.admin);
        conn.send(text);
        conn.reply()
    };
    assert_eq!(local(raise).status, 200);
    gate.send(put("/orders/1", 5100)).is_ok();
}

#[test]
fn observing_counts_a_leap_as_refused_and_lets_it_through() {
    let (stub, gate) = start_with(Setup::rules(&with(BOUNDED, "mode: observe")));
    for token in [10, 111, 110] {
        gate.send(put("/orders/1", token)).is_ok();
    }
    assert_eq!(stub.tokens(), [10, 111, 110]);
    let counted = |decision: &str| gate.metric("fencegate_requests_total", &["observe", decision]);
    assert_eq!(
        (counted("malformed"), counted("raised")),
        (1.0, 2.0),
        "111 was not noted"
    );
    assert_eq!(gate.metric("fencegate_observed_fences", &[]), 1.0);
    gate.wait_for_log("observed: would be refused");
}

// ---- allow

#[test]
fn who_may_not_present_tokens_is_refused_and_raises_nothing() {
    let rule = with(RULE, "allow: { cidr: [10.0.0.0/8, \"::1\"] }");
    let (stub, gate) = start_with(Setup::rules(&rule));
    let refused = gate.send(put("/orders/1", 34));
    refused.is(403, "not-allowed");
    assert_eq!(refused.json()["rule"], "bucket");
    assert_eq!(refused.json()["resource"], "bucket/orders");
    gate.send(ask("GET", "/orders/1").token(34))
        .is(403, "not-allowed");
    gate.send(ask("GET", "/orders/1")).is_ok();
    gate.send(ask("PUT", "/orders/1").body("v"))
        .is(428, "missing-token");
    assert_eq!(gate.metric("fencegate_fences", &[]), 0.0);
    assert_eq!(stub.tokens(), [] as [u64; 0]);
}

#[test]
fn without_a_token_nobody_is_asked_who_they_are() {
    let rule = with(&with(RULE, "allow: { cidr: [10.0.0.0/8] }"), "missing: pass");
    let (_stub, gate) = start_with(Setup::rules(&rule));
    gate.send(ask("PUT", "/orders/1").body("v")).is_ok();
    gate.send(put("/orders/1", 34)).is(403, "not-allowed");
    let observed = with(&with(RULE, "allow: { cidr: [10.0.0.0/8] }"), "mode: observe");
    let (_stub, gate) = start_with(Setup::rules(&observed));
    gate.send(put("/orders/1", 34)).is_ok();
    assert_eq!(
        gate.metric("fencegate_requests_total", &["observe", "unmatched"]),
        1.0
    );
}

#[test]
fn who_may_present_tokens_is_fenced_as_ever() {
    let (_stub, gate) = start_with(Setup::rules(&with(RULE, "allow: { cidr: [127.0.0.1] }")));
    gate.send(put("/orders/1", 34)).is_ok();
    gate.send(put("/orders/1", 33)).is(412, "stale-token");
}

// ---- admin.token_file

const TOKEN: &str = "an-admin-token-that-nobody-guesses";

/// A gate whose admin address wants a token, and the folder with that.
fn guarded() -> (Stub, Gate, tempfile::TempDir) {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("token");
    std::fs::write(&file, format!("  {TOKEN}\n")).unwrap();
    let mut setup = Setup::default().top("log: { level: trace }");
    setup.admin = format!(", token_file: \"{}\"", file.display());
    let (stub, gate) = start_with(setup);
    (stub, gate, folder)
}

fn bearer(ask: gate::Ask, token: &str) -> gate::Ask {
    ask.field("Authorization", format!("Bearer {token}"))
}

#[test]
fn the_admin_address_wants_its_token_for_all_but_health() {
    let (_stub, gate, _folder) = guarded();
    gate.send(put("/orders/1", 34)).is_ok();
    let raise = || {
        ask("POST", "/api/v1/fences/raise")
            .field("Content-Type", "application/json")
            .body(r#"{"resource":"bucket/orders","token":"40"}"#)
    };
    for path in ["/healthz", "/readyz"] {
        assert_eq!(ask("GET", path).send(gate.admin).status, 200, "{path}");
    }
    for path in ["/metrics", "/api/v1/fences", "/api/v1/config", "/nothing"] {
        let refused = ask("GET", path).send(gate.admin);
        assert_eq!(refused.status, 401, "{path}");
        assert_eq!(
            refused.field("www-authenticate"),
            Some("Bearer realm=\"fencegate\"")
        );
        for wrong in ["", "x", &TOKEN[1..], &format!("{TOKEN}x"), &TOKEN.to_uppercase()] {
            let refused = bearer(ask("GET", path), wrong).send(gate.admin);
            assert_eq!(refused.status, 401, "{path} {wrong}");
        }
        let twice = bearer(bearer(ask("GET", path), TOKEN), TOKEN);
        assert_eq!(twice.send(gate.admin).status, 401, "{path}");
        let basic = ask("GET", path).field("Authorization", format!("Basic {TOKEN}"));
        assert_eq!(basic.send(gate.admin).status, 401, "{path}");
        let right = bearer(ask("GET", path), TOKEN).send(gate.admin);
        assert_eq!(right.status, if path == "/nothing" { 404 } else { 200 }, "{path}");
    }
    assert_eq!(raise().send(gate.admin).status, 401);
    gate.send(put("/orders/1", 34)).is_ok();
    // `store.test`, as the harness names the host, is none of this machine's names: with the token that is fine.
    assert_eq!(bearer(raise(), TOKEN).send(gate.admin).status, 200);
    gate.send(put("/orders/1", 34)).is(412, "stale-token");
}

#[test]
fn the_admin_token_is_shown_nowhere() {
    let (_stub, gate, folder) = guarded();
    gate.send(put("/orders/1", 34).field("Authorization", "Bearer of-a-client"))
        .is_ok();
    let mut said = gate.log();
    for path in [
        "/api/v1/config",
        "/metrics",
        "/api/v1/fences",
        "/api/v1/audit",
        "/readyz",
    ] {
        let reply = bearer(ask("GET", path), TOKEN).send(gate.admin);
        assert_eq!(reply.status, 200, "{path}");
        said += &String::from_utf8(reply.body).unwrap();
    }
    assert!(said.contains("(redacted)"), "{said}");
    ask("GET", "/metrics")
        .field("Authorization", "Bearer a-wrong-guess")
        .send(gate.admin);
    gate.wait_for_log("without its token");
    said += &gate.log();
    std::fs::write(folder.path().join("token"), format!("{TOKEN} and {TOKEN}")).unwrap();
    let config = gate.folder.path().join("fencegate.yaml");
    let checked = std::process::Command::new(env!("CARGO_BIN_EXE_fencegate"))
        .args(["check", "-c"])
        .arg(&config)
        .output()
        .unwrap();
    assert_eq!(checked.status.code(), Some(2));
    said += &String::from_utf8(checked.stderr).unwrap();
    assert!(said.contains("fencegate.yaml:3:"), "{said}");
    assert!(said.contains("must hold one line"), "{said}");
    for secret in [TOKEN, "a-wrong-guess", "of-a-client"] {
        assert!(!said.contains(secret), "{secret}: {said}");
    }
}

#[test]
fn the_command_line_shows_the_admin_token() {
    let (_stub, gate, folder) = guarded();
    gate.send(put("/orders/1", 34)).is_ok();
    let fences = |arguments: &[&str]| {
        std::process::Command::new(env!("CARGO_BIN_EXE_fencegate"))
            .args(["fences", "show", "bucket/orders"])
            .args(arguments)
            .current_dir(folder.path())
            .output()
            .unwrap()
    };
    let admin = format!("127.0.0.1:{}", gate.admin);
    let config = gate.folder.path().join("fencegate.yaml");
    for right in [
        &["--admin", &admin, "--token-file", "token"][..],
        &["-c", config.to_str().unwrap()],
    ] {
        let shown = fences(right);
        assert_eq!(shown.status.code(), Some(0), "{shown:?}");
        assert!(String::from_utf8(shown.stdout).unwrap().contains("34"));
    }
    let refused = fences(&["--admin", &admin]);
    assert_eq!(refused.status.code(), Some(1), "{refused:?}");
    assert!(
        String::from_utf8(refused.stderr)
            .unwrap()
            .contains("unauthorized")
    );
    let nothing = fences(&["--admin", &admin, "--token-file", "none"]);
    assert_eq!(nothing.status.code(), Some(2), "{nothing:?}");
}
