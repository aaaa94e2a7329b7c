//! The examples under `config/`, asked with the requests that they are written for: which rule takes each, and which
//! resources it names.

use std::path::Path;

use fencegate::config::{self, Config};
use fencegate::rules::{Judgement, Mode, Request, Scratch, Sender};
use httparse::Header;

fn example(name: &str) -> Config {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("config").join(name);
    let text = std::fs::read_to_string(path).unwrap();
    let (config, warnings) =
        config::parse(name, &text, &|_| None).unwrap_or_else(|problems| panic!("{problems}"));
    assert!(warnings.is_empty(), "{warnings:?}");
    config
}

/// `RULE RESOURCE=TOKEN …`, `RULE passes`, or `RULE REASON`; `-` for no rule. `line` is `METHOD TARGET`, then
/// header fields, each behind a `|`.
fn ask(config: &Config, line: &str) -> String {
    let mut parts = line.split('|').map(str::trim);
    let (method, target) = parts.next().unwrap().split_once(' ').unwrap();
    let pairs: Vec<(&str, &str)> = parts.map(|field| field.split_once(": ").unwrap()).collect();
    let fields: Vec<Header<'_>> = pairs
        .iter()
        .map(|(name, value)| Header {
            name,
            value: value.as_bytes(),
        })
        .collect();
    let request = Request {
        method,
        target,
        host: "store.test",
        fields: &fields,
        from: Sender::at(std::net::Ipv4Addr::LOCALHOST.into()),
    };
    let rules = &config.listeners[0].http().unwrap().rules;
    let mut scratch = Scratch::default();
    let named = |rule: Option<&fencegate::rules::Rule>| rule.map_or("-".to_string(), |r| r.name.to_string());
    match rules.judge(&request, &mut scratch) {
        Judgement::Pass { rule, .. } => format!("{} passes", named(rule)),
        Judgement::Refused(refusal) => format!("{} {}", named(refusal.rule), refusal.reason.as_str()),
        Judgement::Fenced { rule, .. } => {
            let claims = scratch.claims().map(|claim| {
                let token = claim.token.map(|t| claim.format.show(t).to_string());
                format!(" {}={}", claim.resource, token.as_deref().unwrap_or("none"))
            });
            named(Some(rule)) + &claims.collect::<String>()
        }
    }
}

#[track_caller]
fn assert_all(config: &Config, cases: &[(&str, &str)]) {
    for (line, verdict) in cases {
        assert_eq!(ask(config, line), *verdict, "{line}");
    }
}

#[test]
fn s3_fences_buckets_and_denies_the_bulk_delete() {
    assert_all(
        &example("s3.yaml"),
        &[
            (
                "PUT /photos/2026/a.jpg | Fencing-Token: 7",
                "object bucket/photos=7",
            ),
            (
                "PUT /photos/2026//a%2Fb.jpg?partNumber=1&uploadId=x | Fencing-Token: 7",
                "object bucket/photos=7",
            ),
            ("DELETE /photos/a", "object missing-token"),
            (
                "POST /photos?delete | Fencing-Token: 7",
                "bulk-delete not-allowed",
            ),
            (
                "POST /photos/?delete= | Fencing-Token: 7",
                "bulk-delete not-allowed",
            ),
            (
                "POST /photos?Delete | Fencing-Token: 7",
                "bulk-delete bad-request",
            ),
            (
                "PUT /photos?lifecycle | Fencing-Token: 7",
                "bucket bucket/photos=7",
            ),
            (
                "GET /photos?list-type=2&prefix=2026%2F | Fencing-Token: 7",
                "bucket bucket/photos=7",
            ),
            ("GET /photos?list-type=2&prefix=2026%2F", "bucket passes"),
            ("GET /photos/a", "object passes"),
            ("GET /", "- passes"),
            ("POST / | Fencing-Token: 7", "- unmatched-write"),
            ("PUT /photos/../users/a | Fencing-Token: 7", "- ambiguous-path"),
            ("PUT //photos/a | Fencing-Token: 7", "- ambiguous-path"),
        ],
    );
}

#[test]
fn webdav_fences_both_places_of_a_move_and_the_second_of_a_copy() {
    assert_all(
        &example("webdav.yaml"),
        &[
            ("PUT /docs/report | Fencing-Token: 7", "share share/docs=7"),
            ("LOCK /docs/report", "share missing-token"),
            (
                "MOVE /docs/report | Fencing-Token: 7 | Destination: http://store.test/old/report",
                "move share/docs=7 share/old=7",
            ),
            (
                "MOVE /docs/a | Fencing-Token: 7 | Destination: /docs/b",
                "move share/docs=7",
            ),
            ("MOVE /docs/a | Fencing-Token: 7", "move bad-request"),
            (
                "MOVE /docs/a | Fencing-Token: 7 | Destination: http://else/old/a",
                "- ambiguous-path",
            ),
            (
                "MOVE /docs/a | Fencing-Token: 7 | Destination: /docs",
                "- unmatched-write",
            ),
            (
                "COPY /docs/a | Fencing-Token: 7 | Destination: /old/a",
                "copy share/old=7",
            ),
            ("PROPFIND /docs/a | Fencing-Token: 7", "move share/docs=7"),
            ("DELETE /docs | Fencing-Token: 7", "- unmatched-write"),
        ],
    );
}

#[test]
fn a_document_store_is_fenced_by_database() {
    assert_all(
        &example("document-store.yaml"),
        &[
            ("PUT /orders/1 | X-Lock-Epoch: 7", "document database/orders=7"),
            (
                "POST /orders/_bulk_docs | Fencing-Token: 7",
                "document database/orders=7",
            ),
            (
                "PUT /orders/1 | Fencing-Token: 7 | X-Lock-Epoch: 7",
                "document malformed-token",
            ),
            ("PUT /orders | Fencing-Token: 7", "database database/orders=7"),
            ("POST /orders/_find", "query database/orders=none"),
            ("POST /orders/_find | Fencing-Token: 7", "query database/orders=7"),
            ("POST /_session", "session session=none"),
            ("PUT /_replicator/x | Fencing-Token: 7", "replicator not-allowed"),
            ("POST /_replicate | Fencing-Token: 7", "- unmatched-write"),
            ("GET /orders/1", "document passes"),
            ("GET /_replicator/x", "document passes"),
        ],
    );
}

#[test]
fn a_two_level_election_compares_both_epochs() {
    assert_all(
        &example("two-level-election.yaml"),
        &[
            (
                "PUT /topics/t/0/00001.log | Controller-Epoch: 5 | Leader-Epoch: 7",
                "partition controller=5 partition/t/0=7",
            ),
            (
                "PUT /topics/t/0/00001.log | Leader-Epoch: 7",
                "partition missing-token",
            ),
            (
                "PUT /cluster/brokers/1 | Controller-Epoch: 5",
                "cluster controller=5",
            ),
            (
                "GET /topics/t/0/00001.log | Leader-Epoch: 7",
                "partition partition/t/0=7",
            ),
        ],
    );
}

#[test]
fn the_steps_of_an_adoption_name_the_same_resources_and_get_stricter() {
    for (name, mode, bare, unmatched) in [
        (
            "adoption-1-observe.yaml",
            Mode::Observe,
            "share missing-token",
            "- passes",
        ),
        (
            "adoption-2-pass-until-fenced.yaml",
            Mode::Enforce,
            "share share/docs=none",
            "- passes",
        ),
        (
            "adoption-3-deny.yaml",
            Mode::Enforce,
            "share missing-token",
            "- unmatched-write",
        ),
    ] {
        let config = example(name);
        assert_eq!(
            config.listeners[0].http().unwrap().rules.rules[0].mode,
            mode,
            "{name}"
        );
        assert_all(
            &config,
            &[
                ("PUT /docs/report | Fencing-Token: 7", "share share/docs=7"),
                ("PUT /docs/report", bare),
                ("DELETE /docs", unmatched),
                ("GET /docs/report", "share passes"),
            ],
        );
    }
}

#[test]
fn redis_fences_orders_by_their_id_and_denies_scripts_that_declare_no_key() {
    use fencegate::config::Listener;
    use fencegate::rules::redis::{Act, Carrier, Identity, Key, Notes, Verdict};

    let config = example("redis.yaml");
    let Listener::Redis(listener) = &config.listeners[0] else {
        panic!("{config:?}");
    };
    let mut holder = Identity::default();
    let name = b"shard-7/leader-3,fencing-token=34";
    holder.apply(&listener.rules.read_token(Carrier::Name, name).unwrap());
    for (command, key, verdict) in [
        ("set", "orders:7:items", "orders/7=34"),
        ("set", "shard:2:x", "shard/2=7 cluster=3"),
        ("set", "cache:x", "cache=34"),
        ("set", "other", "unmatched-write"),
        ("flushall", "", "everything=34"),
        ("function load", "", "everything=34"),
        ("swapdb", "", "unmatched-write"),
        ("eval", "", "unmatched-write"),
    ] {
        let act = Act {
            name: command,
            write: true,
            undeclared: command == "eval",
            identity: &holder,
            from: Sender::at(std::net::Ipv4Addr::LOCALHOST.into()),
        };
        let keys = Some(key).filter(|key| !key.is_empty()).map(|key| Key {
            name: key.as_bytes(),
            write: true,
        });
        let mut notes = Notes::default();
        let found = match listener.rules.judge(&act, keys.into_iter(), &mut notes) {
            Verdict::Refused(denial) => denial.reason.as_str().to_owned(),
            Verdict::Pass => "passes".into(),
            Verdict::Fenced => {
                let claims = notes.claims().map(|claim| {
                    let format = listener.rules.format_of(&claim);
                    format!("{}={}", claim.resource, format.show(claim.token.unwrap()))
                });
                claims.collect::<Vec<_>>().join(" ")
            }
        };
        assert_eq!(found, verdict, "{command} {key}");
    }
}
