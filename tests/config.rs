//! The configuration from outside: what `check`, `explain` and `config::load` say about a file.

use std::path::PathBuf;
use std::process::{Command, Output};
use std::time::Duration;

use fencegate::config::{self, CommitPoint, Config, HttpListener, LogFormat, LogLevel, Problem, Store};
use fencegate::rules::{Action, Carrier, Missing, Mode, Paths, Policy, Reads};

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

/// Nothing of this is worth a warning.
const QUIET: &str = "settle_after: 3s\n      response_timeout: 3s";

fn parse(text: &str) -> Result<(Config, Vec<Problem>), Vec<String>> {
    let environment = |name: &str| (name == "HOST").then(|| "store.test".to_string());
    config::parse("f", text, &environment).map_err(|p| p.0.iter().map(ToString::to_string).collect())
}

/// The first listener, which speaks HTTP.
fn http(config: &Config) -> &HttpListener {
    config.listeners[0].http().unwrap()
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
    assert!(said("actions: 1").contains("did you mean \"action\"?"));
    assert!(said("max_step: 5").ends_with("max_step\"; it belongs under token"));
    let header = said("header: X");
    assert!(header.ends_with("header\"; it belongs under token"), "{header}");
    assert!(said("query: x").ends_with("; it belongs under match or token"));
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
fn a_file_that_ends_too_early_is_told_so_at_its_end_and_not_behind_it() {
    for (text, place) in [
        ("", "f:1:1: "),
        ("# nothing", "f:1:10: "),
        ("# nothing\n", "f:2:1: "),
        ("# nothing\r\n\r# more", "f:3:7: "),
    ] {
        assert!(
            problems(text)[0].starts_with(place),
            "{text:?}: {:?}",
            problems(text)
        );
    }
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
    is_refused("kind: file", "kind: sqlite", "it is one of file, etcd, memory");
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
    is_refused("127.0.0.1:9901", "0.0.0.0:9901", "without token_file");
}

#[test]
fn what_is_not_built_is_refused_by_name() {
    for word in ["postgres", "mysql"] {
        let found = problems(&small("protocol: http", &format!("protocol: {word}")));
        assert_eq!(found.len(), 1, "{word}: {found:#?}");
        assert!(found[0].contains("not supported yet"), "{word}: {}", found[0]);
    }
}

#[test]
fn a_key_of_another_protocol_is_refused_with_its_protocol() {
    is_refused(
        "header: Fencing-Token",
        "header: Fencing-Token, connection: true",
        "unknown key \"listeners[0].rules[0].token.connection\"; it is for protocol: redis, and this listener's is http",
    );
    is_refused("protocol: http", "protocol: htp", "did you mean \"http\"?");
    is_refused(
        "protocol: http",
        "protocol: [http]",
        "listeners[0].protocol must be one of",
    );
}

#[test]
fn a_token_comes_from_one_place_in_one_form() {
    let (config, _) = parse(&small(
        "header: Fencing-Token",
        "header: [User-Agent, X-Epoch], pattern: 'app/fencing-token\\.(\\d+)'",
    ))
    .unwrap();
    let source = &http(&config).rules.rules[0].fences[0].token;
    assert_eq!(
        source.carrier,
        Carrier::Header(["User-Agent".into(), "X-Epoch".into()].into())
    );
    assert_eq!(
        source.pattern.as_ref().unwrap().as_str(),
        "app/fencing-token\\.(\\d+)"
    );
    for (text, carrier) in [
        ("query: t", Carrier::Query("t".into())),
        ("cookie: t", Carrier::Cookie("t".into())),
        ("header: [T]", Carrier::Header(["T".into()].into())),
    ] {
        let (config, _) = parse(&small("header: Fencing-Token", text)).unwrap();
        assert_eq!(http(&config).rules.rules[0].fences[0].token.carrier, carrier);
    }
    for (to, words) in [
        ("header: A, query: t", "query stands beside header"),
        ("query: a, cookie: t", "cookie stands beside query"),
        ("pattern: '(x)'", "token lacks the key \"header\""),
        ("header: [A, a]", "a is in the list already"),
        ("header: []", "empty list"),
        ("header: [[A]]", "must be one value"),
        (
            "header: { A: b }",
            "must be one of names of header fields, or a list",
        ),
        ("header: [A, Host]", "header[1]: Host has a meaning"),
        ("header: Cookie", "write token: { cookie: NAME }"),
        ("query: ''", "not the name of a query field"),
        (
            "query: [a]",
            "must be the name of a query field, and this is a list",
        ),
        ("cookie: a b", "not the name of a cookie"),
        (
            "header: A, pattern: '(\\d+'",
            "not a regular expression: unclosed group",
        ),
        ("header: A, pattern: '\\d+'", "has 0 groups"),
        ("header: A, pattern: '(a)(b)'", "has 2 groups"),
    ] {
        is_refused("header: Fencing-Token", to, words);
    }
    let found = problems(&small("header: Fencing-Token", "header: A, pattern: '(a)(b)'"));
    assert!(
        found[0].starts_with("f:18:38: "),
        "the pattern's own place: {found:?}"
    );
}

#[test]
fn a_rule_may_ask_for_hosts_header_fields_and_query_fields() {
    let path = "path: \"/{bucket}/{*key}\"";
    let with = |more: &str| small(path, &format!("{path}, {more}"));
    for more in [
        "host: store.test",
        "host: [\"*.store.test\", \"store.test:8080\"]",
        "headers: { X-Kind: \"order-*\", X-Copy: \"\" }",
        "query: { delete: \"\", \"a b\": \"*\" }",
    ] {
        assert!(parse(&with(more)).is_ok(), "{more}");
    }
    let (config, _) = parse(&with("host: a.test, headers: { A: b }, query: { c: d }")).unwrap();
    let conditions = http(&config).rules.rules[0].conditions.as_ref().unwrap();
    assert_eq!(conditions.hosts[0].as_str(), "a.test");
    assert_eq!(&*conditions.headers[0].0, "A");
    assert_eq!(conditions.query[0].1.as_str(), "d");
    for (more, words) in [
        ("host: \"*\"", "is not a host"),
        ("host: http://a", "is not a host"),
        ("host: [a, \"b/c\"]", "match.host[1]: \"b/c\" is not a host"),
        (
            "headers: { A B: c }",
            "match.headers.A B: \"A B\" is not the name",
        ),
        ("headers: { Host: c }", "the host is matched by match.host"),
        ("headers: { Connection: c }", "rules can't match by it"),
        ("headers: { A: [b] }", "match.headers.A must be one value"),
        (
            "headers: { A: }",
            "match.headers.A must be one value, and this is empty",
        ),
        ("headers: { A: \" b\" }", "is not a value"),
        ("headers: { A: b, a: c }", "a stands here again; it is at 16:"),
        (
            "headers: {}",
            "must be a map of field names and their values, and this is an empty map",
        ),
        (
            "headers: [A]",
            "must be a map of field names and their values, and this is a list",
        ),
        ("query: { \"\": a }", "not the name of a query field"),
        ("query: delete", "must be a map of field names"),
    ] {
        let found = problems(&with(more));
        assert_eq!(found.len(), 1, "{more}: {found:#?}");
        assert!(
            found[0].starts_with("f:16:") && found[0].contains(words),
            "{more}: {}",
            found[0]
        );
    }
}

#[test]
fn a_rule_that_denies_compares_nothing() {
    let fences = "        resource: \"bucket/{bucket}\"\n        token: { header: Fencing-Token }\n";
    let (config, _) = parse(&small(fences, "        action: deny\n")).unwrap();
    assert_eq!(http(&config).rules.rules[0].action, Action::Deny);
    let both = problems(&small(fences, &format!("        action: deny\n{fences}")));
    assert!(
        both.len() == 1 && both[0].contains("rules[0].resource says nothing beside action: deny"),
        "{both:?}"
    );
    assert!(problems(&small(fences, "        action: drop\n"))[0].contains("it is one of fence, deny"));
}

#[test]
fn a_fence_may_be_named_by_the_path_in_a_field() {
    let from = "        resource: \"bucket/{bucket}\"\n        token: { header: Fencing-Token }\n";
    let with = |path_from: &str| {
        let to = format!(
            "        fences: [{{ resource: \"b/{{bucket}}\", path_from: {path_from}, token: {{ header: T }} }}]\n"
        );
        small(from, &to)
    };
    let (config, _) = parse(&with("{ header: Destination }")).unwrap();
    let fence = &http(&config).rules.rules[0].fences[0];
    assert_eq!(fence.path_from.as_deref(), Some("Destination"));
    for (path_from, words) in [
        ("{ header: Host }", "can hold a path"),
        ("{ header: a b }", "can hold a path"),
        ("{ query: x }", "unknown key"),
        ("Destination", "must be a map of keys"),
    ] {
        let found = problems(&with(path_from));
        assert!(
            found.iter().all(|p| p.starts_with("f:17:")) && found.iter().any(|p| p.contains(words)),
            "{found:?}"
        );
    }
    let outside = problems(&small(
        from,
        &format!("        path_from: {{ header: X }}\n{from}"),
    ));
    assert!(outside[0].contains("unknown key"), "{outside:?}");
}

#[test]
fn a_warning_says_where_every_write_needs_a_field() {
    let from = "match: { methods: [PUT, POST, PATCH, DELETE], path: \"/{bucket}/{*key}\" }\n        resource: \"bucket/{bucket}\"\n        token: { header: Fencing-Token }\n";
    let with = |more: &str| {
        let to = format!(
            "match: {{ path: \"/{{b}}/{{*k}}\"{more} }}\n        fences: [{{ resource: \"b/{{b}}\", path_from: {{ header: Destination }}, token: {{ header: T }} }}]\n"
        );
        warnings(&small("settle_after: 3s", QUIET).replacen(from, &to, 1))
    };
    let said = with("");
    assert_eq!(said.len(), 1, "{said:?}");
    assert!(
        said[0].starts_with("f:17:9: ") && said[0].contains("methods: [MOVE, COPY]"),
        "{said:?}"
    );
    for more in [", methods: [MOVE]", ", headers: { destination: \"*\" }"] {
        let said = with(more);
        assert!(said.is_empty(), "{more}: {said:?}");
    }
}

#[test]
fn a_warning_says_that_upgraded_connections_are_not_fenced() {
    let with = |word: &str, mode: &str| {
        let text = small("protocol: http", &format!("upgrades: {word}")).replace("settle_after: 3s", QUIET);
        warnings(&text.replace("resource:", &format!("mode: {mode}\n        resource:")))
    };
    let said = with("pass", "enforce");
    assert_eq!(said.len(), 1, "{said:?}");
    assert!(
        said[0].starts_with("f:8:5: ") && said[0].contains("upgrades"),
        "{said:?}"
    );
    assert!(with("refuse", "enforce").is_empty() && with("pass", "observe").is_empty());
}

#[test]
fn paths_are_strict_unless_the_listener_says_otherwise() {
    let paths = |text: &str| http(&parse(text).unwrap().0).rules.paths;
    assert_eq!(paths(SMALL), Paths::Strict);
    assert_eq!(paths(&small("protocol: http", "paths: lenient")), Paths::Lenient);
    is_refused("protocol: http", "paths: loose", "it is one of strict, lenient");
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
        http(&config).rules.rules[0].fences[0].token.carrier,
        Carrier::Header(["Fencing-Token".into()].into())
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
    let upstream = config.listeners[0].upstream();
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
    assert_eq!(http(&config).rules.rules[0].fences.len(), 2);
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
    let listener = http(&config);
    assert_eq!(
        listener.upstream.settle_after,
        Duration::from_secs(7),
        "settle_after is response_timeout"
    );
    assert_eq!(listener.upstream.connect_timeout, Duration::from_secs(2));
    assert_eq!(listener.in_doubt_statuses, [502, 504]);
    assert_eq!(listener.commit_point, CommitPoint::LastByte);
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
    let quiet = small("settle_after: 3s", QUIET);
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
    let first = quiet.replace(
        "path: \"/{bucket}/{*key}\"",
        "path: \"/{bucket}/{*key}\", query: { a: b }",
    );
    assert!(
        warnings(&format!("{first}{hidden}")).is_empty(),
        "it takes only some"
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
fn explain_says_which_condition_does_not_hold_and_where_the_token_comes_from() {
    let rules = "      - { name: bulk, match: { path: \"/{bucket}\", methods: [POST], query: { delete: \"\" } }, action: deny }
      - { name: here, match: { path: \"/docs/{id}\", host: [docs.test, \"*.docs.test\"], headers: { X-Kind: \"a*\" } }, resource: \"docs/{id}\", token: { query: t } }
      - { name: agent, match: { path: \"/docs/{id}\" }, resource: \"docs/{id}\", token: { header: User-Agent, pattern: 'token\\.(\\d+)' } }
      - name: rename
        match: { path: \"/m/{share}/{*rest}\" }
        fences: [{ resource: \"s/{share}\", token: { cookie: c } }, { resource: \"s/{share}\", path_from: { header: Destination }, token: { header: [T, U] } }]\n";
    let file = File::with(small("    rules:\n", &format!("    rules:\n{rules}")));
    for (arguments, words) in [
        (
            &["POST", "/b?delete"][..],
            "bulk: matches, by the path /{bucket}, the query field delete\n|refused (not-allowed): the rule denies",
        ),
        (
            "POST /b".split(' ').collect::<Vec<_>>().as_slice(),
            "bulk: does not match: the path is /{bucket}, and there is no query field delete\n",
        ),
        (
            &["POST", "/b?delete&Delete"],
            "bulk: can't be told: a query field that the rule asks for was sent twice|refused (bad-request)",
        ),
        (
            &["PUT", "http://x.docs.test/docs/1?t=5", "-H", "X-Kind: ab"],
            "here: matches, by the path /docs/{id}, the host docs.test or *.docs.test, the header field X-Kind with \"a*\"|5 (integer), from the query field t",
        ),
        (
            &["PUT", "http://other.test/docs/1", "-H", "User-Agent: x token.5"],
            "here: does not match: the path is /docs/{id}, and the host other.test is not docs.test or *.docs.test|agent: matches|5 (integer), from a part of User-Agent",
        ),
        (
            &["PUT", "http://docs.test/docs/1", "-H", "X-Kind: b"],
            "here: does not match: the path is /docs/{id}, and there is no header field X-Kind with \"a*\"|token     none|refused (missing-token)",
        ),
        (
            &[
                "MOVE",
                "/m/a/k",
                "-H",
                "Destination: /m/b/k",
                "-H",
                "Cookie: c=5",
                "-H",
                "u: 6",
            ],
            "resource  s/a|5 (integer), from the cookie c|resource  s/b|6 (integer), from T or U|compared",
        ),
        (
            &[
                "PUT",
                "/m/a/k",
                "-H",
                "Cookie: c=5; c=6",
                "-H",
                "Destination: /m/b/k",
            ],
            "none (the token was sent twice)|refused (malformed-token)",
        ),
    ] {
        let (code, out, err) = file.explain(arguments);
        assert_eq!((code, err.as_str()), (Some(0), ""));
        for words in words.split('|') {
            assert!(out.contains(words), "{arguments:?}, {words}:\n{out}");
        }
    }
    let lenient = File::with(small("protocol: http", "paths: lenient"));
    let (_, out, _) = lenient.explain(&["PUT", "/a//b", "-H", "Fencing-Token: 5"]);
    assert!(out.contains("bucket/a\n") && out.contains("compared"), "{out}");
    let (_, out, _) = lenient.explain(&["PUT", "/a%2Fb/c"]);
    assert!(
        out.contains("bucket: can't be told: whether the path is"),
        "{out}"
    );
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
        (
            "PUT",
            "/b/k",
            &["Content_Length: 1"],
            "(bad-request)|400|another sign",
        ),
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

// ---- who may present tokens, and by how far they may raise

#[test]
fn allow_takes_networks_and_says_which_one_was_meant() {
    let with = |allow: &str| {
        small(
            "- name: bucket",
            &format!("- name: bucket\n        allow: {allow}"),
        )
    };
    let (config, _) = parse(&with("{ cidr: [10.0.0.0/8, \"::1\", 192.168.1.7] }")).unwrap();
    let allow = http(&config).rules.rules[0].allow.clone().unwrap();
    let nets: Vec<String> = allow.cidr.iter().map(ToString::to_string).collect();
    assert_eq!(nets, ["10.0.0.0/8", "::1/128", "192.168.1.7/32"]);
    for (allow, words) in [
        ("{ cidr: [10.1.0.0/8] }", "the network is 10.0.0.0/8"),
        ("{ cidr: [localhost] }", "not a network"),
        ("{ cidr: [] }", "empty list"),
        ("{}", "allows nobody"),
        ("{ cidr: 10.0.0.0/8 }", "must be a list"),
        ("{ client_cert: orders }", "write CN=NAME"),
        ("{ client_cert: \"CN=orders-*\" }", "tls.client_ca_file"),
        (
            "{ cidr: [10.0.0.0/8], client_certs: x }",
            "did you mean \"client_cert\"",
        ),
    ] {
        let found = problems(&with(allow));
        assert!(
            found.len() == 1 && found[0].starts_with("f:16:"),
            "{allow}: {found:#?}"
        );
        assert!(found[0].contains(words), "{allow}: {found:#?}");
    }
}

#[test]
fn max_step_is_for_integers() {
    let (config, _) = parse(&small(
        "header: Fencing-Token",
        "header: Fencing-Token, max_step: 1000",
    ))
    .unwrap();
    assert_eq!(http(&config).rules.rules[0].fences[0].max_step, Some(1000));
    for (token, words) in [
        ("max_step: 0", "from 1"),
        ("max_step: 1e6", "from 1"),
        ("max_step: 5, format: hex", "for format: integer"),
        ("max_step: 5, format: pair", "for format: integer"),
    ] {
        is_refused(
            "header: Fencing-Token",
            &format!("header: Fencing-Token, {token}"),
            words,
        );
    }
}

#[test]
fn a_token_file_lets_the_admin_address_listen_everywhere() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str, text: &str| {
        let path = folder.path().join(name);
        std::fs::write(&path, text).unwrap();
        path.display().to_string()
    };
    let with = |file: &str| {
        let admin = format!("\"0.0.0.0:9901\", token_file: \"{file}\"");
        small("\"127.0.0.1:9901\"", &admin)
    };
    let sound = with(&path("sound", " 0123456789abcdef\n"));
    let (config, _) = parse(&sound).unwrap();
    assert!(config.admin.token.unwrap().is(b"0123456789abcdef"));
    let said = warnings(&sound).join("\n");
    assert!(
        said.contains("f:3:16: admin.bind") && said.contains("in the clear"),
        "{said}"
    );
    assert!(!said.contains("guessed"), "{said}");
    assert!(
        warnings(&with(&path("short", "hunter2")))
            .join("\n")
            .contains("can be guessed")
    );
    let long = "x".repeat(5000);
    for (file, words) in [
        (path("empty", " \n"), "is empty"),
        (path("two", "hunter2 hunter3"), "must hold one line"),
        (path("long", &long), "larger than"),
        (folder.path().join("none").display().to_string(), "can't be read"),
    ] {
        let found = problems(&with(&file));
        assert!(
            found.len() == 1 && found[0].starts_with("f:3:44: admin.token_file: "),
            "{found:?}"
        );
        assert!(
            found[0].contains(words) && !found[0].contains("hunter"),
            "{found:?}"
        );
    }
}

#[test]
fn explain_asks_whether_this_client_may_present_tokens() {
    let file = File::with(small(
        "- name: bucket",
        "- name: bucket\n        allow: { cidr: [10.0.0.0/8] }",
    ));
    let said = |from: &str| {
        file.explain(&["PUT", "/b/k", "-H", "Fencing-Token: 3", "--from", from])
            .1
    };
    assert!(
        said("127.0.0.1").contains("refused (not-allowed)"),
        "{}",
        said("127.0.0.1")
    );
    assert!(said("10.1.2.3").contains("compared"), "{}", said("10.1.2.3"));
    assert!(said("::ffff:10.1.2.3").contains("compared"));
    assert!(
        said("10.1.2.3").contains("from      10.1.2.3 (--from"),
        "{}",
        said("10.1.2.3")
    );
}

// ---- redis

const REDIS: &str = r#"version: 1
store: { kind: memory }
listeners:
  - name: cache
    bind: "127.0.0.1:6380"
    protocol: redis
    upstream: { url: "tcp://127.0.0.1:6379", settle_after: 5s }
    rules:
      - { name: orders, match: { keys: "orders:{id}*" }, resource: "orders/{id}", token: { connection: true } }
      - { name: scripts, match: { undeclared_keys: true }, action: deny }
"#;

fn redis_with(from: &str, to: &str) -> String {
    assert!(REDIS.contains(from), "{from}");
    REDIS.replacen(from, to, 1)
}

#[test]
fn a_redis_listener_is_read_with_its_defaults() {
    let (config, _) = config::parse("c", REDIS, &|_| None).unwrap_or_else(|problems| panic!("{problems}"));
    let listener = format!("{:?}", config.listeners[0]);
    for part in [
        "response_timeout: 60s",
        "settle_after: 5s",
        "idle_timeout: None",
        "max_waiting: 1024",
    ] {
        assert!(listener.contains(part), "{part}: {listener}");
    }
}

#[test]
fn what_is_wrong_with_a_redis_listener_is_said() {
    for (from, to, says) in [
        (
            "tcp://127.0.0.1:6379",
            "redis://127.0.0.1:6379",
            "write it as tcp://HOST:PORT",
        ),
        (
            "tcp://127.0.0.1:6379",
            "tcp://127.0.0.1",
            "write it as tcp://HOST:PORT",
        ),
        (
            "tcp://127.0.0.1:6379",
            "tcp://127.0.0.1:6380",
            "the listener's own address",
        ),
        ("orders:{id}*", "orders:{id}x", "only a colon, * or the end"),
        ("orders/{id}", "orders/{ID}", "{ID} is not in the rule's keys"),
        ("connection: true", "connection: false", "is not true"),
        (
            "connection: true",
            "header: Fencing-Token",
            "it is for protocol: http, and this listener's is redis",
        ),
        ("keys: \"orders:{id}*\"", "", "matches nothing"),
        (
            "keys: \"orders:{id}*\"",
            "path: \"/{id}\"",
            "it is for protocol: http",
        ),
        (
            "undeclared_keys: true",
            "undeclared_keys: true, keys: \"a\"",
            "make it a rule of its own",
        ),
        (
            "action: deny",
            "action: deny, missing: pass",
            "says nothing beside action: deny",
        ),
        (
            "settle_after: 5s",
            "settle_after: 5s, username: a",
            "needs a password_file",
        ),
        (
            "settle_after: 5s",
            "settle_after: 5s, commit_point: last_byte",
            "it is for protocol: http",
        ),
        (
            "keys: \"orders:{id}*\"",
            "commands: [\"A B C\"]",
            "is not the name of a command",
        ),
    ] {
        let found = problems(&redis_with(from, to));
        assert!(
            found.iter().any(|problem| problem.contains(says)),
            "{to}: {found:#?}"
        );
    }
}

// ---- marks in etcd

/// `store` as it stands in `small`, in its place.
fn store(text: &str) -> String {
    small("kind: file, path: ./data", text)
}

#[test]
fn a_store_in_etcd_has_defaults_that_say_how_long_a_failed_owner_costs() {
    let text = store(r#"kind: etcd, endpoints: ["http://127.0.0.1:2379", "http://[::1]:2380/"]"#);
    let (config, _) = parse(&text).unwrap();
    let fencegate::config::Store::Etcd(etcd) = config.store else {
        panic!("{:?}", config.store);
    };
    assert_eq!(etcd.endpoints, ["http://127.0.0.1:2379", "http://[::1]:2380"]);
    assert_eq!(etcd.prefix, "/fencegate/default/");
    assert_eq!(etcd.owner_ttl, Duration::from_secs(30));
    assert_eq!((etcd.user, etcd.tls.ca_file), (None, None));
}

#[test]
fn what_is_wrong_with_a_store_in_etcd_is_told_with_what_would_be_right() {
    let member = r#"kind: etcd, endpoints: ["http://127.0.0.1:2379"]"#;
    for (text, says) in [
        ("kind: etcd", "store.endpoints is missing"),
        ("kind: etcd, endpoints: []", "is an empty list"),
        (
            r#"kind: etcd, endpoints: ["127.0.0.1:2379"]"#,
            "as http://HOST:PORT",
        ),
        (r#"kind: etcd, endpoints: ["http://etcd"]"#, "has no port"),
        (
            &format!("{member}, prefix: /fencegate/a/mark/"),
            "could lie within another prefix",
        ),
        (
            r#"kind: etcd, endpoints: ["http://gate:hidden@a:2379"]"#,
            "store.password_file",
        ),
        (
            r#"kind: etcd, endpoints: ["unix:/run/etcd"]"#,
            "not the URL of one member",
        ),
        (
            r#"kind: etcd, endpoints: ["http://a:2379", "https://b:2379"]"#,
            "all are https://",
        ),
        (
            r#"kind: etcd, endpoints: ["http://a:2379", "http://a:2379/"]"#,
            "stands there twice",
        ),
        (&format!("{member}, path: ./data"), "store.path is for kind: file"),
        (
            &format!("{member}, prefix: fencegate"),
            "starts and ends with a slash",
        ),
        (&format!("{member}, owner_ttl: 1500ms"), "whole seconds"),
        (&format!("{member}, owner_ttl: 1s"), "2 to 3600"),
        (
            &format!("{member}, username: gate"),
            "needs password_file, or password, beside it",
        ),
        (
            &format!("{member}, password: secret-of-the-gate"),
            "needs username beside it",
        ),
        (
            &format!("{member}, username: a, password: b, password_file: c"),
            "keep one",
        ),
        (
            &format!("{member}, tls: {{ ca_file: /nowhere }}"),
            "can't be read",
        ),
        (
            &format!("{member}, tls: {{ server_name: etcd }}"),
            "is for endpoints with https://",
        ),
        (
            "kind: file, endpoints: [\"http://127.0.0.1:2379\"]",
            "store.endpoints is for kind: etcd",
        ),
        ("kind: memory, prefix: /a/", "store.prefix is for kind: etcd"),
    ] {
        let found = problems(&store(text));
        assert!(
            found.iter().any(|problem| problem.contains(says)),
            "{text}: {found:#?}"
        );
        assert!(
            !found.iter().any(|problem| problem.contains("hidden")),
            "{found:#?}"
        );
    }
}
