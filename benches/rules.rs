//! Judging a request: the rule, the resource's name, the token. This runs for every request.

use std::hint::black_box;

use criterion::{Criterion, criterion_group, criterion_main};
use fencegate::config;
use fencegate::rules::{Judgement, Request, Scratch, Sender};
use httparse::Header;

const CONFIG: &str = r#"
version: 1
store: { kind: memory }
listeners:
  - name: store
    bind: "127.0.0.1:8080"
    protocol: http
    upstream: { url: "http://127.0.0.1:9000" }
    rules:
      - name: locks
        match: { path: "/locks/{*name}" }
        resource: "lock/{name}"
        token: { header: Fencing-Token }
      - name: bucket
        match: { path: "/{bucket}/{*key}", methods: [PUT, DELETE] }
        resource: "bucket/{bucket}"
        token: { header: Fencing-Token }
"#;

fn judge(c: &mut Criterion) {
    let (config, _warnings) =
        config::parse("bench.yaml", CONFIG, &|_| None).expect("the text above is valid");
    let rules = &config.listeners[0].http().unwrap().rules;
    let field = |name, value: &'static str| Header {
        name,
        value: value.as_bytes(),
    };
    let fields = [
        field("Host", "store.test"),
        field("User-Agent", "bench/1"),
        field("Content-Type", "application/octet-stream"),
        field(
            "Authorization",
            "AWS4-HMAC-SHA256 Credential=a/b, SignedHeaders=host, Signature=0",
        ),
        field("X-Amz-Date", "20260101T000000Z"),
        field("X-Amz-Content-Sha256", "UNSIGNED-PAYLOAD"),
        field("Fencing-Token", "34"),
        field("Content-Length", "1024"),
    ];
    let mut scratch = Scratch::default();
    for (name, method, target) in [
        (
            "a write that the second rule takes",
            "PUT",
            "/orders/2026/11/29/0001.json",
        ),
        ("a write with percent-encoding", "PUT", "/orders/a%20b%2Cc"),
        ("a read without a token", "GET", "/orders/2026/11/29/0001.json"),
    ] {
        let fields = if method == "GET" {
            &fields[..6]
        } else {
            &fields[..]
        };
        let request = Request {
            method,
            target,
            host: "store.test",
            fields,
            from: Sender {
                ip: std::net::Ipv4Addr::LOCALHOST.into(),
                cert: None,
            },
        };
        assert!(!matches!(
            rules.judge(&request, &mut scratch),
            Judgement::Refused(_)
        ));
        c.bench_function(&format!("judge/{name}"), |b| {
            b.iter(|| {
                let judgement = rules.judge(black_box(&request), &mut scratch);
                black_box(matches!(judgement, Judgement::Fenced { .. }))
            });
        });
    }
}

criterion_group!(benches, judge);
criterion_main!(benches);
