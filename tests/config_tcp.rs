//! The keys of a listener of raw TCP: what is taken, what is refused, and where.

use std::time::Duration;

use fencegate::admin::Effective;
use fencegate::config::{self, Config, Listener, Problem, ProxyProtocol, TcpListener};
use fencegate::rules::{Missing, Mode, TcpResource, TcpToken};

const SMALL: &str = r#"version: 1
store: { kind: memory }
listeners:
  - name: any
    protocol: tcp
    bind: "127.0.0.1:7001"
    upstream: { url: "tcp://127.0.0.1:7000", settle_after: 30s }
    rules:
      - { name: r, resource: { proxy_tlv: 0xE0 }, token: { proxy_tlv: 0xE1 } }
"#;

const RULE: &str = "resource: { proxy_tlv: 0xE0 }, token: { proxy_tlv: 0xE1 }";

fn parse(text: &str) -> Result<(Config, Vec<Problem>), Vec<String>> {
    config::parse("f", text, &|_| None)
        .map_err(|problems| problems.0.iter().map(ToString::to_string).collect())
}

fn small(from: &str, to: &str) -> String {
    assert!(SMALL.contains(from), "{from}");
    SMALL.replacen(from, to, 1)
}

fn tcp(config: &Config) -> &TcpListener {
    match &config.listeners[0] {
        Listener::Tcp(tcp) => tcp,
        Listener::Http(_) | Listener::Redis(_) => panic!("it does not speak raw TCP"),
    }
}

#[track_caller]
fn is_refused(from: &str, to: &str, words: &str) {
    let found = parse(&small(from, to)).unwrap_err();
    assert!(found.len() == 1 && found[0].contains(words), "{to}: {found:#?}");
}

#[test]
fn what_is_left_out_has_its_default() {
    let (config, _) = parse(SMALL).unwrap();
    let listener = tcp(&config);
    assert!(listener.accept_proxy && listener.tls.is_none());
    assert_eq!(listener.proxy_protocol, ProxyProtocol::None);
    assert_eq!(listener.upstream.to_string(), "tcp://127.0.0.1:7000");
    assert_eq!(listener.limits.idle_timeout, None);
    assert_eq!(
        (
            listener.limits.header_timeout,
            listener.limits.max_header_bytes,
            listener.limits.max_waiting
        ),
        (Duration::from_secs(10), 65_536, 1024)
    );
    let rule = &listener.rule;
    assert_eq!(
        (rule.missing, rule.mode, rule.drain_timeout),
        (Missing::Deny, Mode::Enforce, Duration::from_secs(30))
    );
    assert_eq!(rule.fences[0].resource, TcpResource::Tlv(0xe0));
    assert_eq!(rule.fences[0].token, TcpToken::Tlv(0xe1));
    let (config, _) = parse(&small(", settle_after: 30s", "")).unwrap();
    assert_eq!(config.settle_after_max(), Duration::from_secs(60));
}

#[test]
fn a_resource_is_a_name_a_tlv_or_the_preface() {
    let (config, _) = parse(&small(
        RULE,
        "resource: db/main, token: { preface: true, max_step: 5 }",
    ))
    .unwrap();
    let listener = tcp(&config);
    assert!(!listener.accept_proxy);
    assert_eq!(
        listener.rule.fences[0].resource,
        TcpResource::Fixed("db/main".into())
    );
    assert_eq!(listener.rule.fences[0].max_step, Some(5));
    let (config, _) = parse(&small(
        RULE,
        "resource: { preface: true }, token: { preface: true, format: pair }",
    ))
    .unwrap();
    assert_eq!(tcp(&config).rule.fences[0].resource, TcpResource::Preface);
    let (config, _) = parse(&small(
        RULE,
        "fences: [{ resource: a, token: { proxy_tlv: 0xE1 } }, { resource: { proxy_tlv: 0xE2 }, token: { proxy_tlv: 0xE3 } }]",
    ))
    .unwrap();
    assert_eq!(tcp(&config).rule.fences.len(), 2);
}

#[test]
fn keys_of_another_protocol_are_refused_by_its_name() {
    for (from, to, words) in [
        (
            "bind:",
            "errors: s3\n    bind:",
            "f:6:5: unknown key \"listeners[0].errors\"; it is for protocol: http, and this listener's is tcp",
        ),
        (
            "settle_after",
            "response_timeout: 3s, settle_after",
            "it is for protocol: http",
        ),
        (
            "name: r",
            "name: r, match: { path: /a }",
            "it is for protocol: http",
        ),
        (
            "proxy_tlv: 0xE1",
            "proxy_tlv: 0xE1, header: X",
            "it is for protocol: http",
        ),
        (
            "proxy_tlv: 0xE1",
            "proxy_tlv: 0xE1, connection: true",
            "it is for protocol: redis",
        ),
        ("tcp://", "http://", "write it as tcp://HOST:PORT or unix:/PATH"),
        (
            "settle_after",
            "proxy_protocol: v2, tls: {}, settle_after",
            "f:7:46: listeners[0].upstream.proxy_protocol can't be v2",
        ),
        (
            "\"tcp://127.0.0.1:7000\"",
            "\"unix:/run/s\", tls: {}",
            "tls is for a backend with tcp://",
        ),
        (
            "tcp://127.0.0.1:7000",
            "tcp://127.0.0.1",
            "is not the URL of a backend",
        ),
        (
            "tcp://127.0.0.1:7000",
            "tcp://127.0.0.1:7001",
            "the listener's own address",
        ),
    ] {
        is_refused(from, to, words);
    }
    let http = SMALL
        .replace("protocol: tcp", "protocol: http")
        .replace("tcp://", "http://")
        .replace(
            RULE,
            "match: { path: /a }, resource: a, token: { header: X, proxy_tlv: 0xE1 }",
        );
    let found = parse(&http).unwrap_err();
    assert!(
        found.len() == 1 && found[0].contains("it is for protocol: tcp, and this listener's is http"),
        "{found:?}"
    );
}

#[test]
fn what_could_not_be_meant_is_refused() {
    for (to, words) in [
        (
            "resource: { proxy_tlv: 0xE0 }, token: { proxy_tlv: 0xE0 }",
            "the same TLV",
        ),
        (
            "resource: { proxy_tlv: 0xE0 }, token: { preface: true }",
            "take both from one of them",
        ),
        (
            "resource: { preface: true }, token: { proxy_tlv: 0xE0 }",
            "take both from one of them",
        ),
        (
            "resource: { proxy_tlv: 0xE0, preface: true }, token: { proxy_tlv: 0xE1 }",
            "it comes from one place",
        ),
        (
            "resource: { proxy_tlv: 0x100 }, token: { proxy_tlv: 0xE1 }",
            "not the kind of a TLV",
        ),
        (
            "resource: { proxy_tlv: 3 }, token: { proxy_tlv: 0xE1 }",
            "checksum",
        ),
        (
            "resource: \"{a}\", token: { proxy_tlv: 0xE1 }",
            "nothing is captured here",
        ),
        (
            "resource: \"\", token: { proxy_tlv: 0xE1 }",
            "not the name of a resource",
        ),
        ("resource: a", "lacks the key \"token\""),
        ("token: { proxy_tlv: 0xE1 }", "lacks the key \"resource\""),
        (
            "resource: a, token: { preface: false }",
            "it is true, or left out",
        ),
        (
            "resource: a, token: { format: hex }",
            "lacks the key \"proxy_tlv\", or preface: true",
        ),
        ("resource: [a], token: { preface: true }", "must be a name"),
        (
            "fences: [{ resource: a, token: { preface: true } }, { resource: b, token: { preface: true } }]",
            "a session has one",
        ),
        ("missing: pass", "names nothing to fence"),
    ] {
        is_refused(RULE, to, words);
    }
    is_refused("bind:", "accept_proxy: false\n    bind:", "the rule reads a TLV");
    let second = "      - { name: s, resource: a, token: { proxy_tlv: 0xE1 } }\n";
    let found = parse(&(SMALL.to_owned() + second)).unwrap_err();
    assert!(
        found.len() == 1 && found[0].contains("nothing would ever fall under it"),
        "{found:?}"
    );
    let none = SMALL.split_once("    rules:").unwrap().0;
    assert!(parse(none).unwrap_err()[0].contains("lacks the key \"rules\""));
}

#[test]
fn a_resource_of_two_protocols_has_one_format() {
    let other = r#"  - name: web
    bind: "127.0.0.1:8080"
    upstream: { url: "http://127.0.0.1:9000" }
    rules:
      - { name: w, match: { path: "/{a}" }, resource: "x/{a}", token: { header: T, format: hex } }
"#;
    let found = parse(&(SMALL.to_owned() + other)).unwrap_err();
    assert!(
        found.len() == 1 && found[0].contains("another token format"),
        "{found:?}"
    );
    let fixed = small(RULE, "resource: y, token: { preface: true }");
    assert!(parse(&(fixed + other)).is_ok());
}

#[test]
fn what_it_runs_with_is_shown_as_it_is_written() {
    let text = small(
        RULE,
        "resource: db, token: { preface: true, format: hex }, missing: pass, mode: observe",
    )
    .replace("settle_after: 30s", "settle_after: 30s, proxy_protocol: v2");
    let (config, _) = parse(&text).unwrap();
    let json = Effective::of(&config).json().clone();
    let listener = &json["listeners"][0];
    assert_eq!(listener["protocol"], "tcp");
    assert_eq!(listener["upstream"]["url"], "tcp://127.0.0.1:7000");
    assert_eq!(listener["upstream"]["proxy_protocol"], "v2");
    let rule = &listener["rules"][0];
    assert_eq!(
        (&rule["missing"], &rule["mode"]),
        (&"pass".into(), &"observe".into())
    );
    assert_eq!(rule["fences"][0]["resource"], "db");
    assert_eq!(rule["fences"][0]["token"]["preface"], true);
    assert_eq!(rule["fences"][0]["token"]["format"], "hex");
}
