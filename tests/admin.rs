//! The admin address and `fencegate fences`, against a running gate.

mod admin_common;

use admin_common::{Backend, Connection, Gate, OBJECTS, PATIENCE};
use serde_json::{Value, json};

const RAISE: &str = "/api/v1/fences/raise";
const RESET: &str = "/api/v1/fences/reset";

/// The names on all pages, as a client gets them that follows `next`, and how many pages there were.
fn names_by_pages(gate: &Gate, prefix: &str, limit: usize) -> (Vec<String>, usize) {
    let (mut names, mut pages, mut after) = (vec![], 0, String::new());
    loop {
        let path = format!("/api/v1/fences?prefix={prefix}&limit={limit}{after}");
        let page = gate.get(&path).json();
        let fences = page["fences"].as_array().unwrap();
        assert!(fences.len() <= limit, "{page}");
        names.extend(fences.iter().map(|f| f["resource"].as_str().unwrap().to_owned()));
        pages += 1;
        match page["next"].as_str() {
            Some(next) => after = format!("&after={}", next.replace(' ', "%20")),
            None => return (names, pages),
        }
    }
}

#[test]
fn pages_of_fences_lose_no_name_and_repeat_none() {
    let backend = Backend::start();
    let gate = Gate::start(&backend, "memory", &[OBJECTS]);
    let mut expected = vec![];
    for n in 0..25 {
        let answer = gate.put(&format!("/team%20{}/{n}", n % 2), "7");
        assert_eq!(answer.status, 200, "{answer:?}");
        expected.push(format!("object/team {}/{n}", n % 2));
    }
    expected.sort();
    assert_eq!(names_by_pages(&gate, "", 10), (expected.clone(), 3));
    assert_eq!(names_by_pages(&gate, "", 5), (expected.clone(), 5));
    assert_eq!(names_by_pages(&gate, "", 25), (expected.clone(), 1));
    let odd: Vec<String> = expected.into_iter().filter(|n| n.contains("team 1")).collect();
    assert_eq!(names_by_pages(&gate, "object/team%201/", 4), (odd, 3));

    let fence = gate.fence("object/team%201/1");
    assert_eq!(fence["highest"], "7");
    assert!(fence["raised_at"].as_str().unwrap().ends_with('Z'), "{fence}");
    let unknown = gate.get("/api/v1/fences?resource=object/never").json();
    assert_eq!(unknown, json!({ "fences": [], "next": null }));
    for bad in ["limit=0", "limit=x", "perfix=a", "resource=a&prefix=b"] {
        let answer = gate.get(&format!("/api/v1/fences?{bad}"));
        assert_eq!(
            (answer.status, &answer.json()["reason"]),
            (400, &"bad-request".into())
        );
    }
}

#[test]
fn a_raise_that_waits_after_a_crash_is_listed_once_in_its_place() {
    let backend = Backend::start();
    let mut gate = Gate::start(&backend, "file", &[OBJECTS]);
    for name in ["/a", "/c", "/e"] {
        assert_eq!(gate.put(name, "1").status, 200);
    }
    gate.end(libc::SIGKILL);
    gate.start_again();
    let ready = gate.get("/readyz").json();
    assert_eq!(
        (&ready["ready"], &ready["role"]),
        (&true.into(), &"active".into())
    );
    assert!(
        (1..=60_000).contains(&ready["crash_wait_ms"].as_u64().unwrap()),
        "{ready}"
    );
    for name in ["object/b", "object/c", "object/f"] {
        let order = json!({ "resource": name, "token": "2", "timeout": "1ms" });
        let answer = gate.post(RAISE, &order);
        assert_eq!(
            (answer.status, &answer.json()["reason"]),
            (503, &"draining".into())
        );
        assert!(answer.head.to_lowercase().contains("retry-after: "), "{answer:?}");
    }
    let expected: Vec<String> = ["a", "b", "c", "e", "f"].map(|n| format!("object/{n}")).into();
    for limit in 1..=6 {
        assert_eq!(names_by_pages(&gate, "", limit).0, expected, "pages of {limit}");
    }
    let waits = gate.fence("object/c");
    assert_eq!((&waits["highest"], &waits["mark"]), (&"2".into(), &"1".into()));
    let new = gate.fence("object/b");
    assert_eq!((&new["highest"], &new["mark"]), (&"2".into(), &Value::Null));
}

#[test]
fn a_raise_answers_only_after_the_older_write_has_settled() {
    let backend = Backend::start();
    let gate = Gate::start(&backend, "file", &[OBJECTS]);
    let mut older = Connection::open(gate.listen);
    older.send("PUT", "/slow", &[("Fencing-Token", "33")], 4, b"text");
    backend.wait_for("/slow");
    gate.wait_for_fence("object/slow", |fence| fence["in_flight"] == 1);

    let mut raising = Connection::open(gate.admin);
    let order = json!({ "resource": "object/slow", "token": "34" }).to_string();
    let kind = [("Content-Type", "application/json")];
    raising.send("POST", RAISE, &kind, order.len(), order.as_bytes());
    let fence = gate.wait_for_fence("object/slow", |fence| fence["highest"] == "34");
    assert_eq!(
        (&fence["mark"], &fence["in_flight"]),
        (&"33".into(), &1.into()),
        "{fence}"
    );
    assert_eq!(fence["waiting"], 1, "{fence}");
    assert_eq!(
        gate.put("/slow", "33").status,
        412,
        "refused while the raise waits"
    );

    backend.release.send(()).unwrap();
    assert_eq!(older.answer().status, 200);
    let answer = raising.answer();
    assert_eq!(answer.status, 200, "{answer:?}");
    assert_eq!(
        (&answer.json()["highest"], &answer.json()["mark"]),
        (&"34".into(), &"34".into())
    );

    let stale = gate.post(RAISE, &json!({ "resource": "object/slow", "token": "33" }));
    assert_eq!((stale.status, &stale.json()["highest"]), (412, &"34".into()));
    assert!(stale.head.contains("application/problem+json"), "{stale:?}");
    let equal = gate.post(RAISE, &json!({ "resource": "object/slow", "token": 34 }));
    assert_eq!(equal.status, 200, "{equal:?}");
}

#[test]
fn a_reset_lowers_cuts_an_upload_is_audited_and_survives_a_restart() {
    let backend = Backend::start();
    let mut gate = Gate::start(&backend, "file", &[OBJECTS]);
    let mut upload = Connection::open(gate.listen);
    upload.send(
        "PUT",
        "/report",
        &[("Fencing-Token", "1000000")],
        200_000,
        &[b'x'; 100_000],
    );
    backend.wait_for("/report");

    let asked = gate.fences(&["reset", "object/report", "7", "--reason", "a typo wedged it"]);
    assert_eq!(asked.status.code(), Some(2), "{asked:?}");
    let plan = String::from_utf8(asked.stderr).unwrap();
    assert!(
        plan.contains("1000000 -> 7 (integer)") && plan.contains("--yes"),
        "{plan}"
    );
    assert_eq!(
        gate.fence("object/report")["highest"],
        "1000000",
        "nothing was changed"
    );

    let done = gate.fences(&[
        "reset",
        "object/report",
        "7",
        "--reason",
        "a typo wedged it",
        "--yes",
    ]);
    assert_eq!(done.status.code(), Some(0), "{done:?}");
    assert_eq!(
        String::from_utf8(done.stdout).unwrap(),
        "object/report: 1000000 -> 7 (integer)\n"
    );
    let cut = upload.answer();
    assert!(cut.status >= 400, "{cut:?}");
    drop(upload);
    assert!(
        backend.whole.try_recv().is_err(),
        "the cut upload never arrived whole"
    );
    assert_eq!(gate.put("/report", "6").status, 412);
    assert_eq!(gate.put("/report", "7").status, 200);

    assert_eq!(gate.end(libc::SIGTERM).code(), Some(0));
    gate.start_again();
    assert_eq!(gate.fence("object/report")["highest"], "7");
    let trail = gate.get("/api/v1/audit").json();
    let line = &trail["audit"][0];
    assert_eq!(trail["audit"].as_array().unwrap().len(), 1, "{trail}");
    assert_eq!((&line["from"], &line["to"]), (&"1000000".into(), &"7".into()));
    assert_eq!(line["reason"], "a typo wedged it");
    assert!(line["by"].as_str().unwrap().starts_with("127.0.0.1:"), "{line}");
}

#[test]
fn a_store_that_fails_is_told_and_raises_are_done_when_it_takes_them_again() {
    let backend = Backend::start();
    let gate = Gate::start(&backend, "file", &[OBJECTS]);
    assert_eq!(gate.put("/a", "1").status, 200);
    gate.let_the_store_fail(true);
    let raise = json!({ "resource": "object/a", "token": "2" });
    let answer = gate.post(RAISE, &raise);
    assert_eq!(
        (answer.status, &answer.json()["reason"]),
        (503, &"store-unavailable".into())
    );
    assert!(answer.head.to_lowercase().contains("retry-after: "), "{answer:?}");
    let ready = gate.get("/readyz");
    assert_eq!(
        (ready.status, &ready.json()["store"]),
        (200, &"failing".into()),
        "equal tokens go on"
    );
    let reset = json!({ "resource": "object/a", "token": "0", "reason": "why", "timeout": "50ms" });
    let answer = gate.post(RESET, &reset);
    assert_eq!(
        (answer.status, &answer.json()["reason"]),
        (503, &"store-unavailable".into())
    );

    gate.let_the_store_fail(false);
    gate.wait_for_store("ok");
    let done = gate.post(RAISE, &json!({ "resource": "object/z", "token": "1" }));
    assert_eq!(done.status, 200, "{done:?}");
}

#[test]
fn a_second_reset_is_refused_while_the_first_waits_and_the_first_goes_on() {
    let backend = Backend::start();
    let gate = Gate::start(&backend, "file", &[OBJECTS]);
    let mut older = Connection::open(gate.listen);
    older.send("PUT", "/slow", &[("Fencing-Token", "33")], 4, b"text");
    backend.wait_for("/slow");
    gate.wait_for_fence("object/slow", |fence| fence["in_flight"] == 1);
    let reset = json!({ "resource": "object/slow", "token": "9", "reason": "why", "timeout": "1ms" });
    let waits = gate.post(RESET, &reset);
    assert_eq!((waits.status, &waits.json()["reason"]), (503, &"draining".into()));
    let second = gate.post(RESET, &reset);
    assert_eq!(
        (second.status, &second.json()["reason"]),
        (409, &"reset-under-way".into())
    );
    backend.release.send(()).unwrap();
    assert_eq!(older.answer().status, 200);
    gate.wait_for_fence("object/slow", |fence| fence["mark"] == "9");
    let trail = gate.get("/api/v1/audit").json();
    assert_eq!(trail["audit"].as_array().unwrap().len(), 1, "{trail}");
}

#[test]
fn a_reset_without_a_reason_is_refused() {
    let backend = Backend::start();
    let gate = Gate::start(&backend, "memory", &[OBJECTS]);
    assert_eq!(gate.put("/a", "9").status, 200);
    let too_long = "x".repeat(1001);
    for order in [
        json!({ "resource": "object/a", "token": "1" }),
        json!({ "resource": "object/a", "token": "1", "reason": " \n" }),
        json!({ "resource": "object/a", "token": "1", "reason": too_long }),
        json!({ "resource": "", "token": "1", "reason": "why" }),
        json!({ "resource": "object/a", "token": "-1", "reason": "why" }),
    ] {
        let answer = gate.post(RESET, &order);
        assert_eq!(answer.status, 400, "{order}: {answer:?}");
    }
    assert_eq!(gate.fence("object/a")["highest"], "9");
    assert_eq!(gate.get("/api/v1/audit").json(), json!({ "audit": [] }));
}

#[test]
fn tokens_above_2_to_the_53_are_never_rounded() {
    let backend = Backend::start();
    let gate = Gate::start(&backend, "file", &[OBJECTS]);
    let beyond = gate.post(
        RAISE,
        &json!({ "resource": "object/a", "token": 9_007_199_254_740_993u64 }),
    );
    assert_eq!(
        (beyond.status, &beyond.json()["highest"]),
        (200, &"9007199254740993".into())
    );
    for bad in [
        "9007199254740992",
        "1e19",
        "9007199254740994.0",
        "18446744073709551616",
    ] {
        let kind = [("Content-Type", "application/json")];
        let body = format!("{{\"resource\":\"object/a\",\"token\":{bad}}}");
        let answer = Connection::open(gate.admin).ask("POST", RAISE, &kind, &body);
        let expected = if bad == "9007199254740992" { 412 } else { 400 };
        assert_eq!(answer.status, expected, "{bad}: {answer:?}");
    }
    let largest = "18446744073709551614";
    let raised = gate.fences(&["raise", "object/a", largest, "--yes"]);
    assert_eq!(raised.status.code(), Some(0), "{raised:?}");
    assert_eq!(gate.fence("object/a")["highest"], largest);
    let shown = gate.fences(&["show", "object/a"]);
    assert!(String::from_utf8(shown.stdout).unwrap().contains(largest));
    assert_eq!(gate.put("/a", "18446744073709551613").status, 412);
    assert_eq!(gate.put("/a", largest).status, 200);
}

#[test]
fn where_rules_disagree_on_the_format_a_new_resource_needs_one() {
    let backend = Backend::start();
    let hex = "{ name: zk, match: { path: \"/zk/{*key}\", methods: [PUT] }, resource: \"zk/{key}\", token: { header: Fencing-Token, format: hex } }";
    let gate = Gate::start(&backend, "file", &[hex, OBJECTS]);
    let unsaid = gate.post(RAISE, &json!({ "resource": "zk/a", "token": "ff" }));
    assert_eq!(unsaid.status, 400, "{unsaid:?}");
    let said = gate.post(
        RAISE,
        &json!({ "resource": "zk/a", "token": "0xFF", "format": "hex" }),
    );
    assert_eq!((said.status, &said.json()["highest"]), (200, &"ff".into()));
    let known = gate.post(RAISE, &json!({ "resource": "zk/a", "token": "100" }));
    assert_eq!((known.status, &known.json()["highest"]), (200, &"100".into()));
    assert_eq!(gate.put("/zk/a", "ff").status, 412);
    let other = gate.post(
        RAISE,
        &json!({ "resource": "zk/a", "token": "999", "format": "integer" }),
    );
    assert_eq!(other.status, 400, "{other:?}");
    let number = gate.post(RAISE, &json!({ "resource": "zk/a", "token": 999 }));
    assert_eq!(
        (number.status, &number.json()["reason"]),
        (400, &"malformed-token".into())
    );
}

#[test]
fn metrics_name_no_resource_and_come_in_both_formats() {
    let backend = Backend::start();
    let gate = Gate::start(&backend, "memory", &[OBJECTS]);
    let mut client = Connection::open(gate.listen);
    for n in 0..1000 {
        let answer = client.ask(
            "PUT",
            &format!("/secretname-{n}"),
            &[("Fencing-Token", "1")],
            "text",
        );
        assert_eq!(answer.status, 200, "{answer:?}");
    }
    let scrape = |accept| Connection::open(gate.admin).ask("GET", "/metrics", &[("Accept", accept)], "");
    let plain = scrape("text/plain;version=0.0.4");
    let open = scrape("application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5,*/*;q=0.1");
    assert!(plain.head.contains("text/plain; version=0.0.4"), "{}", plain.head);
    assert!(
        open.head.contains("application/openmetrics-text; version=1.0.0"),
        "{}",
        open.head
    );
    assert!(open.body.ends_with("# EOF\n"));
    assert!(
        !plain.body.contains("# EOF") && plain.body.contains("# TYPE fencegate_requests_total counter\n")
    );
    let raised =
        r#"fencegate_requests_total{listener="objects",rule="object",mode="enforce",decision="raised"} 1000"#;
    for text in [&plain.body, &open.body] {
        assert!(text.contains(raised), "{text}");
        for name in [
            "fencegate_in_flight_writes 0\n",
            "fencegate_in_doubt_writes 0\n",
            "fencegate_fences 1000\n",
            "# TYPE fencegate_drain_seconds histogram\n",
            "# TYPE fencegate_store_commit_seconds histogram\n",
            "# TYPE fencegate_upstream_seconds histogram\n",
            "fencegate_upstream_seconds_bucket{le=\"+Inf\"} ",
        ] {
            assert!(text.contains(name), "{name} in {text}");
        }
        assert!(!text.contains("secretname"), "{text}");
        assert!(text.lines().count() < 150, "{} lines", text.lines().count());
    }
}

#[test]
fn a_foreign_page_and_a_shapeless_order_change_nothing() {
    let backend = Backend::start();
    let gate = Gate::start(&backend, "memory", &[OBJECTS]);
    let order = json!({ "resource": "object/a", "token": "5" }).to_string();
    let json_kind = ("Content-Type", "application/json");
    let ask =
        |fields: &[(&str, &str)], body: &str| Connection::open(gate.admin).ask("POST", RAISE, fields, body);
    assert_eq!(
        ask(&[json_kind, ("Origin", "http://evil.example")], &order).status,
        403
    );
    assert_eq!(
        ask(&[json_kind, ("Host", "evil.example:9901")], &order).status,
        403
    );
    assert_eq!(ask(&[("Content-Type", "text/plain")], &order).status, 415);
    assert_eq!(
        ask(&[json_kind], &order.replace('}', ",\"force\":true}")).status,
        400
    );
    assert_eq!(ask(&[json_kind], "{").status, 400);
    assert_eq!(
        ask(&[json_kind], &format!("{order}{}", " ".repeat(70_000))).status,
        413
    );
    assert_eq!(gate.get("/api/v1/nothing").status, 404);
    assert_eq!(gate.get(RAISE).status, 405);
    assert_eq!(gate.get("/api/v1/fences").json()["fences"], json!([]));
    let own = format!("http://{}", gate.admin);
    let host = gate.admin.to_string();
    assert_eq!(
        ask(&[json_kind, ("Origin", &own), ("Host", &host)], &order).status,
        200
    );
}

#[test]
fn the_effective_configuration_shows_defaults() {
    let backend = Backend::start();
    let gate = Gate::start(&backend, "memory", &[OBJECTS]);
    let config = gate.get("/api/v1/config").json();
    assert_eq!(config["shutdown_timeout"], "10s");
    let listener = &config["listeners"][0];
    assert_eq!(listener["upstream"]["url"], format!("http://{}", backend.address));
    assert_eq!(listener["upstream"]["connect_timeout"], "2s");
    assert_eq!(listener["rules"][0]["missing"], "deny");
    assert_eq!(listener["rules"][0]["fences"][0]["resource"], "object/{key}");
    assert_eq!(gate.get("/healthz").status, 200);
}

#[test]
fn the_command_line_shows_fences_and_says_what_went_wrong() {
    let backend = Backend::start();
    let mut gate = Gate::start(&backend, "memory", &[OBJECTS]);
    for (name, token) in [
        ("object/a b&c=é", "12"),
        ("object/\u{1b}[2Jz", "3"),
        ("object/b", "100"),
    ] {
        let raised = gate.fences(&["raise", name, token, "--new"]);
        assert_eq!(raised.status.code(), Some(0), "{raised:?}");
    }
    let text = |arguments: &[&str]| String::from_utf8(gate.fences(arguments).stdout).unwrap();
    let list = text(&["list", "--all"]);
    let lines: Vec<&str> = list.lines().collect();
    assert_eq!(lines.len(), 4, "{list}");
    let column = lines[0].find("HIGHEST").unwrap();
    assert!(lines[1].starts_with("object/\\u{1b}[2Jz"), "{list}");
    assert_eq!(
        lines[2].chars().skip(column).take(2).collect::<String>(),
        "12",
        "{list}"
    );
    assert!(text(&["list", "--prefix", "object/a b&"]).contains("object/a b&c=é"));
    let page: Value = serde_json::from_str(&text(&["list", "--limit", "1", "--json"])).unwrap();
    assert_eq!(page["next"], "object/\u{1b}[2Jz");
    let pages = text(&["list", "--limit", "1"]);
    assert_eq!(pages.lines().count(), 2, "{pages}");

    let file = gate.folder.path().join("gate.yaml");
    let by_file = std::process::Command::new(env!("CARGO_BIN_EXE_fencegate"))
        .args(["fences", "show", "object/b", "-c"])
        .arg(&file)
        .output()
        .unwrap();
    assert_eq!(by_file.status.code(), Some(0), "{by_file:?}");

    let code = |arguments: &[&str]| gate.fences(arguments).status.code();
    assert_eq!(code(&["show", "object/never"]), Some(1));
    assert_eq!(code(&["raise", "object/b", "99"]), Some(1), "stale");
    assert_eq!(code(&["raise", "object/b", "1x"]), Some(2), "malformed");
    assert_eq!(code(&["raise", "object/b", "101", "--timeout", "soon"]), Some(2));
    assert_eq!(code(&["reset", "object/b", "1"]), Some(2), "no reason");
    assert_eq!(code(&["list", "--limit", "0"]), Some(2));
    assert_eq!(gate.fence("object/b")["highest"], "100");
    gate.end(libc::SIGTERM);
    assert_eq!(gate.fences(&["list"]).status.code(), Some(1), "nobody is there");
}

#[test]
fn the_command_line_makes_no_fence_of_a_misspelt_name() {
    let backend = Backend::start();
    let gate = Gate::start(&backend, "memory", &[OBJECTS]);
    assert_eq!(gate.put("/orders", "3").status, 200);
    for arguments in [
        &["raise", "object/ordesr", "5"][..],
        &["raise", "object/ordesr", "5", "--yes"],
        &["reset", "object/ordesr", "5", "--reason", "why", "--yes"],
    ] {
        let refused = gate.fences(arguments);
        assert_eq!(refused.status.code(), Some(2), "{refused:?}");
        let said = String::from_utf8(refused.stderr).unwrap();
        assert!(
            said.contains("no token was ever seen") && said.contains("--new"),
            "{said}"
        );
        assert_eq!(gate.fence("object/ordesr"), Value::Null, "no fence was made");
    }
    for (name, verb) in [("object/a", "raise"), ("object/b", "reset")] {
        let mut arguments = vec![verb, name, "5", "--new"];
        if verb == "reset" {
            arguments.extend(["--reason", "why", "--yes"]);
        }
        let made = gate.fences(&arguments);
        assert_eq!(made.status.code(), Some(0), "{made:?}");
        assert_eq!(gate.fence(name)["highest"], "5");
    }
}

#[test]
fn the_command_line_names_the_format_and_asks_before_a_leap() {
    let backend = Backend::start();
    let gate = Gate::start(
        &backend,
        "memory",
        &[&OBJECTS.replace("Fencing-Token }", "Fencing-Token, format: hex }")],
    );
    let hex = json!({ "resource": "object/a", "token": "10", "format": "hex" });
    assert_eq!(gate.post(RAISE, &hex).status, 200);
    let said = |output: &std::process::Output| String::from_utf8(output.stderr.clone()).unwrap();

    let leap = gate.fences(&["raise", "object/a", "4294967312"]);
    assert_eq!(leap.status.code(), Some(2), "{leap:?}");
    let plan = said(&leap);
    assert!(
        plan.contains("object/a: 10 -> 4294967312 (hex)") && plan.contains("--yes"),
        "{plan}"
    );
    assert_eq!(gate.fence("object/a")["highest"], "10", "nothing was changed");

    let near = gate.fences(&["raise", "object/a", "0xF4250"]);
    assert_eq!(near.status.code(), Some(0), "{near:?}");
    assert_eq!(said(&near), "object/a: 10 -> f4250 (hex)\n");
    let one_more = gate.fences(&["raise", "object/a", "1e8491"]);
    assert_eq!(one_more.status.code(), Some(2), "{one_more:?}");
    let done = gate.fences(&["raise", "object/a", "1e8491", "--yes"]);
    assert_eq!(done.status.code(), Some(0), "{done:?}");
    assert_eq!(gate.fence("object/a")["highest"], "1e8491");
}

#[test]
fn an_operator_who_sends_half_a_request_does_not_hold_up_the_stop() {
    use std::io::Write;
    let backend = Backend::start();
    let mut gate = Gate::start(&backend, "file", &[OBJECTS]);
    let mut hangs = Connection::open(gate.admin);
    hangs.stream.write_all(b"GET /readyz HTT").unwrap();
    let mut halfway = Connection::open(gate.admin);
    halfway.send("POST", RAISE, &[("Content-Type", "application/json")], 100, b"{");
    let started = std::time::Instant::now();
    assert_eq!(gate.end(libc::SIGTERM).code(), Some(0));
    assert!(started.elapsed() < PATIENCE / 3, "{:?}", started.elapsed());
}
