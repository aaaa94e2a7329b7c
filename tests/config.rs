//! The configuration from outside: what `check`, `explain` and `config::load` say about a file.

use std::path::PathBuf;
use std::process::{Command, Output};
use std::time::Duration;

use fencegate::config::{self, CommitPoint, Config, LogFormat, LogLevel, Problem, Store};
use fencegate::rules::{Missing, Mode, Policy, Reads};

const SMALL: &str = r#"version: 1
store: { kind: file, path: ./data }
admin: { bind: "127.0.0.1:9901" }

listeners:
  - name: store
    bind: "127.0.0.1:8080"
    protocol: http
    upstream:
      url: "http://127.0.0.1:9000"
      settle_after: 3s


    rules:
      - name: bucket
        match: { methods: [PUT, POST, PATCH, DELETE], path: "/{bucket}/{*key}" }
        resource: "bucket/{bucket}"
        token: { header: Fencing-Token }
"#;

/// One file in its own folder, and the program that reads it.
struct File {
    folder: tempfile::TempDir,
}

impl File {
    fn with(text: impl AsRef<[u8]>) -> File {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("c.yaml"), text).unwrap();
        File { folder }
    }

    fn path(&self) -> PathBuf {
        self.folder.path().join("c.yaml")
    }

    fn run(&self, arguments: &[&str]) -> Output {
        Command::new(env!("CARGO_BIN_EXE_fencegate"))
            .args(arguments)
            .current_dir(self.folder.path())
            .env_remove("FENCEGATE_TEST_NONE")
            .output()
            .unwrap()
    }

    fn check(&self) -> (Option<i32>, String, String) {
        shown(&self.run(&["check", "-c", "c.yaml"]))
    }

    fn explain(&self, arguments: &[&str]) -> (Option<i32>, String, String) {
        let mut all = vec!["explain", "-c", "c.yaml"];
        all.extend(arguments);
        shown(&self.run(&all))
    }
}

fn shown(output: &Output) -> (Option<i32>, String, String) {
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    (output.status.code(), text(&output.stdout), text(&output.stderr))
}

fn parse(text: &str) -> Result<(Config, Vec<Problem>), Vec<String>> {
    let environment = |name: &str| (name == "HOST").then(|| "store.test".to_string());
    config::parse("f", text, &environment).map_err(|p| p.0.iter().map(ToString::to_string).collect())
}

fn problems(text: &str) -> Vec<String> {
    parse(text).map(|_| ()).unwrap_err()
}

fn warnings(text: &str) -> Vec<String> {
    parse(text).unwrap().1.iter().map(ToString::to_string).collect()
}

/// Changes the small configuration; the text to change must be there.
fn small(from: &str, to: &str) -> String {
    assert!(SMALL.contains(from), "{from}");
    SMALL.replacen(from, to, 1)
}

/// Asserts that `from` changed into `to` is one problem, on the line of `to`, with these words.
fn is_refused(from: &str, to: &str, words: &str) {
    let text = small(from, to);
    let found = problems(&text);
    let first = to.trim().lines().next().unwrap();
    let line = text.lines().position(|l| l.contains(first)).unwrap() + 1;
    assert_eq!(found.len(), 1, "{to}: {found:#?}");
    assert!(
        found[0].starts_with(&format!("f:{line}:")),
        "{to}, line {line}: {}",
        found[0]
    );
    assert!(found[0].contains(words), "{to}: {}", found[0]);
}

#[test]
fn a_sound_file_is_ok_and_counted() {
    let (code, out, err) = File::with(SMALL).check();
    assert_eq!(
        (code, out.as_str()),
        (Some(0), "c.yaml: ok (1 listener, 1 rule)\n")
    );
    assert!(
        err.starts_with("c.yaml:11:21: warning: ") && err.contains("response_timeout"),
        "{err}"
    );
}

#[test]
fn every_mistake_is_reported_at_once_with_its_place() {
    let text = SMALL
        .replace("settle_after: 3s", "settel_after: 3s")
        .replace("bucket/{bucket}", "bucket/{buket}")
        .replace("127.0.0.1:8080", "127.0.0.1:notaport")
        .replace("admin: {", "shutdown_timeout: 3 parsecs\nadmin: {")
        .replace("http://127.0.0.1:9000", "ftp://127.0.0.1:9000")
        .replace("[PUT, POST, PATCH, DELETE]", "[PUT, post]");
    let file = File::with(&text);
    let (code, out, err) = file.check();
    assert_eq!((code, out.as_str()), (Some(2), ""));
    let starts = [
        "c.yaml:3:19: ",
        "c.yaml:8:11: ",
        "c.yaml:11:12: ",
        "c.yaml:12:7: ",
        "c.yaml:17:33: ",
        "c.yaml:18:19: ",
    ];
    let lines: Vec<&str> = err.lines().collect();
    assert_eq!(lines.len(), starts.len(), "{err}");
    for (line, start) in lines.iter().zip(starts) {
        assert!(line.starts_with(start), "{line} must start with {start}");
    }
    assert!(lines[3].contains("did you mean \"settle_after\"?"), "{err}");
    let (code, _, of_serve) = shown(&file.run(&["serve", "-c", "c.yaml"]));
    assert_eq!(
        (code, of_serve),
        (Some(2), err),
        "serve refuses what check refuses"
    );
}

#[test]
fn the_file_stands_in_problems_as_the_user_named_it() {
    let file = File::with("version: 2\n");
    let absolute = file.path().display().to_string();
    let (code, _, err) = shown(&file.run(&["check", "-c", &absolute]));
    assert_eq!(code, Some(2));
    assert!(
        err.lines().all(|l| l.starts_with(&format!("{absolute}:1:"))),
        "{err}"
    );
}

#[test]
fn a_file_that_cannot_be_read_is_a_problem_and_no_panic() {
    let file = File::with(b"version: 1\n# \xff\n");
    let (code, _, err) = file.check();
    assert_eq!((code, err.contains("c.yaml:2:3: ")), (Some(2), true), "{err}");
    let (code, _, err) = shown(&file.run(&["check", "-c", "none.yaml"]));
    assert_eq!((code, err.starts_with("none.yaml: ")), (Some(2), true), "{err}");
    let (code, _, err) = shown(&file.run(&["check", "-c", "."]));
    assert_eq!((code, err.starts_with(".: ")), (Some(2), true), "{err}");
    let large = File::with(vec![b'#'; (1 << 20) + 1]);
    assert_eq!(large.check().0, Some(2));
}

#[test]
fn wrong_arguments_exit_with_two() {
    let file = File::with(SMALL);
    for arguments in [
        &["check"][..],
        &["chekc"],
        &["check", "-c", "c.yaml", "--bogus"],
        &[],
    ] {
        let (code, out, err) = shown(&file.run(arguments));
        assert_eq!((code, out.as_str()), (Some(2), ""), "{arguments:?}");
        assert!(!err.is_empty());
    }
}

#[test]
fn keys_that_are_unknown_or_misplaced_are_refused() {
    is_refused("store: {", "stores: {", "did you mean \"store\"?");
    is_refused(
        "header: Fencing-Token",
        "headr: Fencing-Token, header: X",
        "did you mean \"header\"?",
    );
    is_refused(
        "      settle_after: 3s",
        "      zzz: 3s",
        "an upstream has url, connect_timeout",
    );
    is_refused(
        "    protocol: http",
        "    methods: [PUT]",
        "unknown key \"listeners[0].methods\"",
    );
    is_refused("    rules:", "    rule:", "did you mean \"rules\"?");
    assert!(parse(&small("version: 1", "x-anchors: { a: 1 }\nversion: 1")).is_ok());
    is_refused("    protocol: http", "    x-protocol: http", "unknown key");
}

#[test]
fn an_unknown_key_gets_usable_keys_or_its_place_as_advice() {
    let said = |key: &str| {
        let to = format!("        resource: \"bucket/{{bucket}}\"\n        {key}");
        problems(&small("        resource: \"bucket/{bucket}\"", &to)).join("\n")
    };
    let all = said("zzzzzz: 1");
    assert!(all.contains("a rule has name, match, resource, token"), "{all}");
    for unusable in ["allow", "action"] {
        assert!(!all.contains(unusable), "{all}");
        assert!(said(&format!("{unusable}: 1")).contains("not supported yet"));
    }
    assert!(!said("actions: 1").contains("did you mean"));
    assert!(said("max_step: 5").contains("max_step\"; it belongs under token, and is not supported yet"));
    let header = said("header: X");
    assert!(header.ends_with("header\"; it belongs under token"), "{header}");
    assert!(said("query: x").contains("; it belongs under match or token, and is not supported yet"));
}

#[test]
fn keys_that_must_be_there_are_asked_for() {
    for (line, words) in [
        ("version: 1\n", "\"version\""),
        (
            "    bind: \"127.0.0.1:8080\"\n",
            "listeners[0] lacks the key \"bind\"",
        ),
        (
            "      url: \"http://127.0.0.1:9000\"\n",
            "listeners[0].upstream lacks the key \"url\"",
        ),
        (
            "        resource: \"bucket/{bucket}\"\n",
            "listeners[0].rules[0] lacks the key \"resource\"",
        ),
        (
            "        token: { header: Fencing-Token }\n",
            "listeners[0].rules[0] lacks the key \"token\"",
        ),
        (
            "        match: { methods: [PUT, POST, PATCH, DELETE], path: \"/{bucket}/{*key}\" }\n",
            "lacks the key \"match\"",
        ),
    ] {
        let found = problems(&small(line, ""));
        assert_eq!(found.len(), 1, "{line}: {found:#?}");
        assert!(found[0].contains(words), "{}", found[0]);
    }
    is_refused(
        "{ header: Fencing-Token }",
        "{ format: hex }",
        "token lacks the key \"header\"",
    );
    is_refused("- name: bucket\n", "- reads: raise\n", "lacks the key \"name\"");
    let neither = small(
        "        resource: \"bucket/{bucket}\"\n        token: { header: Fencing-Token }\n",
        "",
    );
    assert!(problems(&neither)[0].contains("names nothing to fence"));
    assert!(problems("")[0].contains("the file is empty"));
    assert!(problems("version: 1\n")[0].contains("\"listeners\""));
    assert!(problems("version: 1\nlisteners: []\n")[0].contains("empty list"));
    assert!(problems("- a\n")[0].contains("must be a map"));
}

#[test]
fn values_of_the_wrong_kind_say_what_would_be_right() {
    is_refused("settle_after: 3s", "settle_after: 3", "500ms, 3s, 2m or 1h");
    is_refused("settle_after: 3s", "settle_after: 0s", "more than zero");
    is_refused(
        "settle_after: 3s",
        "settle_after: [3s]",
        "must be a duration, and this is a list",
    );
    is_refused(
        "settle_after: 3s",
        "settle_after:",
        "must be a duration, and this is empty",
    );
    is_refused("version: 1", "version: 2", "it is 1");
    is_refused(
        "{ kind: file, path: ./data }",
        "file",
        "must be a map of keys, and this is a single value",
    );
    is_refused(
        "[PUT, POST, PATCH, DELETE]",
        "PUT",
        "must be a list of HTTP methods",
    );
    is_refused("[PUT, POST, PATCH, DELETE]", "[]", "empty list");
    is_refused(
        "[PUT, POST, PATCH, DELETE]",
        "[\"*\"]",
        "leave methods out of a rule's match",
    );
    is_refused("[PUT, POST, PATCH, DELETE]", "[[PUT]]", "must be one value");
    is_refused("protocol: http", "forwarded: no", "neither true nor false");
    is_refused("protocol: http", "limits: { max_header_bytes: 64kb }", "64KiB");
    is_refused("protocol: http", "limits: { max_waiting: 010 }", "whole number");
    is_refused(
        "settle_after: 3s",
        "in_doubt_statuses: [100]",
        "final HTTP status",
    );
    is_refused(
        "settle_after: 3s",
        "commit_point: frist_byte",
        "did you mean \"first_byte\"?",
    );
    is_refused("kind: file", "kind: sqlite", "it is one of file, memory, etcd");
    is_refused(
        "\"/{bucket}/{*key}\"",
        "\"{bucket}/{*key}\"",
        "must start with a slash",
    );
    is_refused("header: Fencing-Token", "header: Host", "can't carry a token");
    is_refused(
        "http://127.0.0.1:9000",
        "http://127.0.0.1:9000/path",
        "has a path",
    );
    is_refused("127.0.0.1:9901", "0.0.0.0:9901", "not a loopback address");
}

#[test]
fn what_is_not_built_is_refused_by_name() {
    for (from, to) in [
        ("kind: file, path: ./data", "kind: etcd"),
        (
            "kind: file, path: ./data",
            "endpoints: [\"http://127.0.0.1:2379\"]",
        ),
        ("bind: \"127.0.0.1:9901\"", "token_file: ./t"),
        ("bind: \"127.0.0.1:9901\"", "tls: { cert_file: a }"),
        ("protocol: http", "protocol: redis"),
        ("protocol: http", "errors: s3"),
        ("protocol: http", "paths: lenient"),
        ("header: Fencing-Token", "header: Fencing-Token, query: t"),
        ("header: Fencing-Token", "header: Fencing-Token, cookie: t"),
        (
            "header: Fencing-Token",
            "header: Fencing-Token, pattern: 'app/(\\d+)'",
        ),
        (
            "header: Fencing-Token",
            "header: Fencing-Token, max_step: 1000000",
        ),
        (
            "- name: bucket",
            "- name: bucket\n        allow: { cidr: [10.0.0.0/8] }",
        ),
        (
            "path: \"/{bucket}/{*key}\"",
            "path: \"/{bucket}/{*key}\", host: h",
        ),
        (
            "path: \"/{bucket}/{*key}\"",
            "path: \"/{bucket}/{*key}\", headers: { A: b }",
        ),
        (
            "path: \"/{bucket}/{*key}\"",
            "path: \"/{bucket}/{*key}\", query: { a: b }",
        ),
    ] {
        let found = problems(&small(from, to));
        assert_eq!(found.len(), 1, "{to}: {found:#?}");
        assert!(found[0].contains("not supported yet"), "{to}: {}", found[0]);
    }
    is_refused(
        "header: Fencing-Token",
        "header: [A, B]",
        "must be the name of one header field, and this is a list",
    );
    let from = "        resource: \"bucket/{bucket}\"\n        token: { header: Fencing-Token }\n";
    let to = "        fences: [{ resource: a, path_from: { header: Destination }, token: { header: T } }]\n";
    assert!(problems(&small(from, to))[0].contains("fences[0].path_from is not supported yet"));
}

#[test]
fn yaml_that_hides_something_is_refused() {
    let twice = problems(&small(
        "settle_after: 3s",
        "settle_after: 3s\n      settle_after: 4s",
    ));
    assert_eq!(twice.len(), 1, "{twice:?}");
    assert!(
        twice[0].starts_with("f:12:7: ") && twice[0].contains("11:7"),
        "{twice:?}"
    );
    is_refused("settle_after: 3s", "settle_after: !!str 3s", "tag");
    is_refused("kind: file, path: ./data", "<<: { kind: file }", "merge keys");
    assert!(problems(&format!("{SMALL}---\nversion: 1\n"))[0].contains("a second document"));
    assert!(problems("version: [1\n")[0].contains("not YAML"));
    assert!(
        problems("? [a]\n: 1\n")
            .iter()
            .any(|p| p.contains("a key must be a plain word"))
    );
}

#[test]
fn anchors_are_allowed_within_bounds() {
    let text = small("version: 1", "version: 1\nx-token: &t { header: Fencing-Token }")
        .replace("token: { header: Fencing-Token }", "token: *t");
    let (config, _) = parse(&text).unwrap();
    assert_eq!(
        &*config.listeners[0].rules.rules[0].fences[0].header,
        "Fencing-Token"
    );

    let mut laughs = String::from("x-0: &a0 [1, 1, 1, 1, 1, 1, 1, 1, 1, 1]\n");
    for i in 1..9 {
        let aliases = vec![format!("*a{}", i - 1); 10].join(", ");
        laughs.push_str(&format!("x-{i}: &a{i} [{aliases}]\n"));
    }
    assert!(problems(&laughs)[0].contains("more than 100000 values"));
    let deep = format!("x: {}1{}\n", "[".repeat(100), "]".repeat(100));
    assert!(
        problems(&deep)[0].contains("more than 32 levels"),
        "{:?}",
        problems(&deep)
    );
    assert!(!problems("x: &a [*a]\n").is_empty());
    let mut tower = String::from("x-0: &a0 [1]\n");
    for i in 1..40 {
        tower.push_str(&format!("x-{i}: &a{i} [*a{}]\n", i - 1));
    }
    assert!(problems(&tower)[0].contains("with this alias more than 32 levels"));
}

#[test]
fn variables_are_put_into_values_and_nowhere_else() {
    let (config, _) = parse(&small("http://127.0.0.1:9000", "http://${HOST}:${PORT:-9000}")).unwrap();
    let upstream = &config.listeners[0].upstream;
    assert_eq!(upstream.to_string(), "http://store.test:9000");
    let (config, _) = parse(&small("./data", "\"./$${HOST}\"")).unwrap();
    assert_eq!(
        config.store,
        Store::File {
            path: "./${HOST}".into()
        }
    );
    is_refused("http://127.0.0.1:9000", "http://${NONE}:9000", "NONE is not set");
    is_refused("settle_after: 3s", "${HOST}: 3s", "unknown key");
    let file = File::with(small("127.0.0.1:9000", "${FENCEGATE_TEST_NONE}"));
    let (code, _, err) = file.check();
    assert_eq!(
        (code, err.starts_with("c.yaml:10:12: ")),
        (Some(2), true),
        "{err}"
    );
}

#[test]
fn what_holds_between_listeners_and_rules_is_checked() {
    let listener = SMALL.split_once("listeners:\n").unwrap().1;
    let two = |change: &dyn Fn(String) -> String| format!("{SMALL}{}", change(listener.to_string()));
    let other = |text: String| {
        text.replace("name: store", "name: second")
            .replace("127.0.0.1:8080", "127.0.0.1:8081")
    };
    assert!(parse(&two(&other)).is_ok(), "two listeners may share a resource");
    for (change, words) in [
        (
            ("name: second", "name: store"),
            "two listeners are named \"store\"; the first is at 6:11",
        ),
        (
            ("127.0.0.1:8081", "127.0.0.1:8080"),
            "is taken by listeners[0].bind at 7:11",
        ),
        (
            ("127.0.0.1:8081", "0.0.0.0:8080"),
            "is taken by listeners[0].bind",
        ),
        (("127.0.0.1:8081", "127.0.0.1:9901"), "is taken by admin.bind"),
        (("127.0.0.1:8081", "127.0.0.1:9000"), "the listener's own address"),
        (
            ("header: Fencing-Token", "header: Fencing-Token, format: hex"),
            "another token format (hex and integer)",
        ),
        (
            ("- name: bucket", "- name: bucket\n        mode: observe"),
            "one enforces while the other observes",
        ),
    ] {
        let text = two(&|text| {
            let text = other(text);
            assert!(text.contains(change.0));
            text.replace(change.0, change.1)
        });
        let found = problems(&text);
        assert_eq!(found.len(), 1, "{words}: {found:#?}");
        assert!(found[0].contains(words), "{words}: {}", found[0]);
    }
    let apart = two(&|text| {
        other(text)
            .replace("bucket/{bucket}", "hex/{bucket}")
            .replace("header: Fencing-Token", "header: T, format: hex")
    });
    assert!(
        parse(&apart).is_ok(),
        "names that can't meet may have their own formats"
    );
    let rule = SMALL.split_once("    rules:\n").unwrap().1;
    assert!(problems(&format!("{SMALL}{rule}"))[0].contains("two rules are named \"bucket\""));
}

#[test]
fn a_rule_has_fences_or_one_resource_and_not_both() {
    let single = "        resource: \"bucket/{bucket}\"\n        token: { header: Fencing-Token }\n";
    let fences = "        fences:\n          - { resource: controller, token: { header: A } }\n          - { resource: \"p/{bucket}\", token: { header: B, format: pair } }\n";
    let (config, _) = parse(&small(single, fences)).unwrap();
    assert_eq!(config.listeners[0].rules.rules[0].fences.len(), 2);
    let both = problems(&small(single, &format!("{single}{fences}")));
    assert!(
        both.len() == 1 && both[0].contains("stands beside fences"),
        "{both:?}"
    );
    let wrong = problems(&small(
        single,
        "        fences:\n          - { resource: \"{x}\", token: { header: A } }\n          - { token: { header: A B } }\n",
    ));
    assert_eq!(wrong.len(), 3, "{wrong:#?}");
}

#[test]
fn what_is_left_out_has_its_default() {
    let (config, warned) = parse(
        "version: 1\nlisteners:\n  - { name: a, bind: \"127.0.0.1:80\", upstream: { url: \"http://s\", response_timeout: 7s }, rules: [{ name: r, match: {}, resource: x, token: { header: T } }] }\n",
    )
    .unwrap();
    assert!(warned.is_empty(), "{warned:?}");
    assert_eq!(
        config.store,
        Store::File {
            path: "./fencegate-data".into()
        }
    );
    assert_eq!(config.admin.bind, "127.0.0.1:9901".parse().unwrap());
    assert_eq!(
        (config.log.format, config.log.level),
        (LogFormat::Text, LogLevel::Info)
    );
    assert_eq!(config.shutdown_timeout, Duration::from_secs(30));
    let listener = &config.listeners[0];
    assert_eq!(
        listener.upstream.settle_after,
        Duration::from_secs(7),
        "settle_after is response_timeout"
    );
    assert_eq!(listener.upstream.connect_timeout, Duration::from_secs(2));
    assert_eq!(listener.upstream.in_doubt_statuses, [502, 504]);
    assert_eq!(listener.upstream.commit_point, CommitPoint::LastByte);
    assert_eq!(listener.upstream.max_connections, 1024);
    assert_eq!(
        (listener.limits.max_header_bytes, listener.limits.max_waiting),
        (65_536, 1024)
    );
    assert_eq!(
        (listener.limits.header_timeout, listener.limits.idle_timeout),
        (Duration::from_secs(10), Duration::from_secs(60))
    );
    assert!(listener.forwarded);
    let rules = &listener.rules;
    assert_eq!(
        (rules.unmatched.reads, rules.unmatched.writes),
        (Policy::Pass, Policy::Deny)
    );
    assert!(rules.is_safe("PROPFIND") && !rules.is_safe("POST"));
    let rule = &rules.rules[0];
    assert_eq!(
        (rule.missing, rule.mode, rule.reads),
        (Missing::Deny, Mode::Enforce, Reads::Raise)
    );
    assert_eq!(
        (rule.drain_timeout, rule.fold_case, rule.methods.is_none()),
        (Duration::from_secs(30), false, true)
    );
}

#[test]
fn what_may_be_meant_and_is_risky_is_a_warning() {
    let memory = warnings(&small("kind: file, path: ./data", "kind: memory"));
    assert!(
        memory[0].starts_with("f:2:1: ") && memory[0].contains("lost at exit"),
        "{memory:?}"
    );
    assert!(problems(&small("kind: file", "kind: memory"))[0].contains("store.path is for kind: file"));
    let quiet = small("settle_after: 3s", "settle_after: 60s");
    assert!(warnings(&quiet).is_empty());
    let (start, _) = quiet.split_once("    rules:").unwrap();
    assert!(warnings(start)[0].contains("listeners[0] has no rules"));
    assert!(warnings(&quiet.replace("[PUT, POST", "[GET, POST"))[0].contains("GET is a safe method"));
    assert!(
        warnings(&quiet.replace("protocol: http", "safe_methods: [GET, POST]"))
            .iter()
            .any(|w| w.contains("POST writes"))
    );
    let hidden = "      - { name: later, match: { methods: [PUT], path: \"/x/{y}\" }, resource: x, token: { header: T } }\n";
    assert!(
        warnings(&format!("{quiet}{hidden}"))[0].contains("rule \"later\" never matches: rule \"bucket\"")
    );
}

#[test]
fn explain_says_the_rule_the_resource_the_token_and_why() {
    let orders = "      - { name: orders, match: { path: \"/orders/{id}\", methods: [DELETE] }, resource: \"orders/{id}\", token: { header: Epoch } }\n";
    let text = small("    rules:\n", &format!("    rules:\n{orders}"));
    let file = File::with(&text);
    let (code, out, err) = file.explain(&["PUT", "/orders/1?x=y", "-H", "fencing-token: 34"]);
    assert_eq!((code, err.as_str()), (Some(0), ""));
    for words in [
        "store (127.0.0.1:8080 to http://127.0.0.1:9000)",
        "orders: does not match: the path is /orders/{id}, and PUT is not one of DELETE",
        "bucket: matches",
        "bucket/orders\n",
        "34 (integer)",
        "compared: ",
    ] {
        assert!(out.contains(words), "{words}:\n{out}");
    }
    for (arguments, words) in [
        (&["PUT", "/orders/1"][..], "refused (missing-token)"),
        (
            &["PUT", "http://127.0.0.1:8080/orders/../x"],
            "refused (ambiguous-path)",
        ),
        (&["PUT", "/x"], "refused (unmatched-write)"),
        (
            &["GET", "/x"],
            "passes unfenced: no rule matches, and unmatched.reads is pass",
        ),
        (&["GET", "/a/b"], "passes: it is a read, and carries no token"),
        (
            &["DELETE", "/orders/1", "-H", "Epoch: 0x1"],
            "refused (malformed-token)",
        ),
    ] {
        let (code, out, _) = file.explain(arguments);
        assert_eq!(code, Some(0));
        assert!(out.contains(words), "{words}:\n{out}");
    }
}

#[test]
fn explain_shows_the_tokens_that_came_where_the_request_is_refused_before_they_count() {
    let rules = "      - { name: docs, match: { path: \"/docs/{id}\" }, resource: \"docs/{id}\", token: { header: Fencing-Token } }
      - { name: two, match: { path: \"/two/{id}\" }, fences: [{ resource: \"a/{id}\", token: { header: A } }, { resource: \"b/{id}\", token: { header: B, format: pair } }] }\n";
    let file = File::with(small("    rules:\n", &format!("    rules:\n{rules}")));
    for (arguments, reason, tokens) in [
        (
            &[
                "MOVE",
                "/docs/report",
                "-H",
                "Fencing-Token: 34",
                "-H",
                "Destination: /other/x",
            ][..],
            "unmatched-write",
            &["34 (integer)"][..],
        ),
        (
            &["PUT", "/docs/a", "-H", "Fencing-Token: abc"],
            "malformed-token",
            &["abc (not an integer)"],
        ),
        (
            &[
                "PUT",
                "/docs/a",
                "-H",
                "Fencing-Token: 5",
                "-H",
                "fencing-token: 6",
            ],
            "malformed-token",
            &["5 and 6 (sent 2 times)"],
        ),
        (&["PUT", "/docs/a"], "missing-token", &["none"]),
        (
            &["PUT", "/two/a", "-H", "B: 1.7"],
            "missing-token",
            &["none", "1.7 (pair)"],
        ),
        (
            &["PUT", "/two/a", "-H", "A: 0x1", "-H", "B: 7"],
            "malformed-token",
            &["0x1 (not an integer)", "7 (not a pair token)"],
        ),
    ] {
        let (code, out, _) = file.explain(arguments);
        assert_eq!(code, Some(0), "{out}");
        let shown: Vec<&str> = out.lines().filter_map(|l| l.strip_prefix("token     ")).collect();
        assert_eq!(shown, tokens, "{out}");
        assert!(out.contains(&format!("refused ({reason})")), "{out}");
    }
}

#[test]
fn explain_says_what_serve_refuses_before_any_rule() {
    let file = File::with(SMALL);
    let long = format!("X: {}", "x".repeat(65_536));
    for (method, url, fields, words) in [
        (
            "PUT",
            "/b/k",
            &["Connection: upgrade", "Upgrade: x"][..],
            "(upgrade-refused)|403",
        ),
        (
            "PUT",
            "/b/k",
            &["Content-Length: 1", "Transfer-Encoding: chunked"],
            "(bad-request)|400|together",
        ),
        (
            "PUT",
            "/b/k",
            &["Content-Length: +1"],
            "(bad-request)|400|plain number",
        ),
        ("PUT", "/b/k", &["Content_Length: 1"], "(bad-request)|400|_ for -"),
        ("PUT", "/b/k", &["Expect: foo"], "(bad-request)|417"),
        ("PUT", "/b/k", &["Connection: authorization"], "(bad-request)|400"),
        ("PUT", "/b/k", &["A : 1"], "(bad-request)|400|followed by space"),
        ("PUT", "/b k", &[], "(bad-request)|400|request line"),
        (
            "PUT",
            "/b/k",
            &["Host: a", "Host: a"],
            "(bad-request)|400|more than one Host",
        ),
        ("PUT", "http://a@h/b", &[], "(bad-request)|400|Host"),
        ("PUT", "/b/k", &[&long], "(bad-request)|431|max_header_bytes"),
        ("TRACE", "/b/k", &[], "(bad-request)|501"),
        ("CONNECT", "/b/k", &[], "(bad-request)|501"),
    ] {
        let mut arguments = vec![method, url, "-H", "Fencing-Token: 5"];
        arguments.extend(fields.iter().flat_map(|field| ["-H", *field]));
        let (code, out, err) = file.explain(&arguments);
        assert_eq!((code, err.as_str()), (Some(0), ""), "{fields:?}");
        let decision = out.lines().last().unwrap();
        assert!(decision.starts_with("decision  refused "), "{fields:?}: {out}");
        assert!(!out.contains("\nrule"), "no rule was asked: {out}");
        for word in words.split('|') {
            assert!(decision.contains(word), "{fields:?}, {word}: {out}");
        }
    }
}

#[test]
fn explain_notes_what_the_backend_gets_in_another_form_and_nothing_else() {
    let file = File::with(SMALL);
    let notes = |url, fields: &[&str]| {
        let mut arguments = vec!["PUT", url, "-H", "Fencing-Token: 5"];
        arguments.extend(fields.iter().flat_map(|field| ["-H", *field]));
        let (code, out, _) = file.explain(&arguments);
        assert_eq!(code, Some(0));
        assert!(out.contains("\ndecision  compared: "), "{out}");
        let notes = out.lines().filter(|l| l.starts_with("note ")).map(str::to_owned);
        notes.collect::<Vec<_>>()
    };
    assert!(
        notes(
            "http://h/b/k",
            &["Content-Length: 1", "Expect: 100-continue", "X: 1"]
        )
        .is_empty()
    );
    assert!(notes("https://h/b/k", &["Host: h:443"]).is_empty());
    let hop = notes(
        "/b/k",
        &[
            "Connection: X-Hop, close",
            "x-hop: 1",
            "Upgrade: h2c",
            "TE: trailers",
        ],
    );
    assert_eq!(hop, ["note      not forwarded: Connection, x-hop, Upgrade, TE"]);
    let chunked = notes("/b/k", &["Transfer-Encoding: chunked"]);
    assert!(chunked.len() == 1 && chunked[0].contains("chunks"), "{chunked:?}");
    let other = notes("http://127.0.0.1:8080/b/k", &["Host: store.test"]);
    assert!(
        other.len() == 1 && other[0].contains("(400): the Host differs"),
        "{other:?}"
    );
}

#[test]
fn explain_takes_the_listener_at_the_urls_address() {
    let listener = SMALL.split_once("listeners:\n").unwrap().1;
    let second = listener
        .replace("name: store", "name: second")
        .replace(":8080", ":8081");
    let file = File::with(format!("{SMALL}{second}"));
    for (arguments, name) in [
        (&["GET", "http://127.0.0.1:8081/a"][..], "second"),
        (&["GET", "http://localhost:8081"], "second"),
        (&["GET", "http://127.0.0.1:8080/a"], "store"),
        (&["GET", "/a"], "store"),
        (&["GET", "/a", "--listener", "second"], "second"),
    ] {
        let (code, out, err) = file.explain(arguments);
        assert_eq!(code, Some(0), "{err}");
        assert!(
            out.starts_with(&format!("listener  {name} ")),
            "{arguments:?}:\n{out}"
        );
    }
    for arguments in [
        &["GET", "http://127.0.0.1:8082/"][..],
        &["GET", "/a", "--listener", "third"],
        &["GET", "a"],
        &["GET", "/a#b"],
        &["G T", "/a"],
        &["GET", "/a", "-H", "no colon"],
        &["GET", "/a", "-H", "A: 1\r\nB: 2"],
        &["GET", "/a\r\nB: 2"],
    ] {
        let (code, out, err) = file.explain(arguments);
        assert_eq!((code, out.as_str()), (Some(2), ""), "{arguments:?}");
        assert!(err.starts_with("fencegate: "), "{err}");
    }
}

#[test]
fn damaged_files_are_refused_with_words_and_never_panic() {
    const PIECES: [&str; 16] = [
        "\n", " ", ":", "- ", "{", "}", "[", "]", "\"", "&a ", "*a", "${", "#", "null", "?", "\t",
    ];
    let mut seed = 0x2545_f491_4f6c_dd1d_u64;
    let mut random = |below: usize| {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        usize::try_from(seed % below as u64).unwrap()
    };
    let mut refused = 0;
    for _ in 0..4_000 {
        let mut text = SMALL.to_string();
        for _ in 0..=random(3) {
            let (at, end) = (random(text.len()), random(12));
            let end = (at + end).min(text.len());
            text.replace_range(at..end, PIECES[random(PIECES.len())]);
        }
        if let Err(found) = parse(&text) {
            refused += 1;
            assert!(!found.is_empty(), "{text}");
            assert!(found.iter().all(|p| p.starts_with("f:")), "{found:?}");
        }
    }
    assert!(refused > 2_000, "{refused}");
}
