//! The rules against whole requests: which are fenced and under which name, which pass, which are refused.

use std::net::{IpAddr, Ipv4Addr};
mod conditions;
mod lenient;
mod places;
mod tokens;

use std::time::Duration;

use httparse::Header;

use super::{
    Action, FenceRule, Judgement, Missing, Mode, Paths, Pattern, Policy, Reads, Request, Rule, RuleSet,
    SAFE_METHODS, Scratch, Sender, Template, TokenSource, Tried, Unmatched,
};
use crate::base::{Reason, Token, TokenFormat};

fn fence(resource: &str, header: &str, format: TokenFormat, path: &Pattern) -> FenceRule {
    FenceRule {
        resource: Template::parse(resource, path).unwrap(),
        path_from: None,
        token: TokenSource::header(header),
        format,
        max_step: None,
    }
}

const FROM: Sender<'_> = Sender {
    ip: IpAddr::V4(Ipv4Addr::LOCALHOST),
    cert: None,
};

pub(super) fn rule(path: &str, resource: &str) -> Rule {
    let path = Pattern::parse(path).unwrap();
    Rule {
        name: "r".into(),
        index: 0,
        fences: [fence(resource, "Fencing-Token", TokenFormat::Integer, &path)].into(),
        path,
        methods: None,
        allow: None,
        conditions: None,
        action: Action::Fence,
        missing: Missing::Deny,
        mode: Mode::Enforce,
        reads: Reads::Raise,
        drain_timeout: Duration::from_secs(30),
        fold_case: false,
    }
}

pub(super) fn set(rules: Vec<Rule>) -> RuleSet {
    RuleSet {
        rules: rules.into(),
        safe_methods: SAFE_METHODS.map(Box::from).into(),
        paths: Paths::Strict,
        unmatched: Unmatched {
            reads: Policy::Pass,
            writes: Policy::Deny,
        },
    }
}

/// `bucket/…` under `/b/`, `orders/…` under `/orders/`, everything else unmatched.
fn example() -> RuleSet {
    set(vec![
        rule("/b/{bucket}/{*key}", "bucket/{bucket}"),
        rule("/orders/{id}", "orders/{id}"),
    ])
}

fn ask(rules: &RuleSet, method: &str, target: &str, fields: &[(&str, &str)]) -> String {
    ask_at("Store.test:8080", rules, method, target, fields)
}

fn ask_at(host: &str, rules: &RuleSet, method: &str, target: &str, fields: &[(&str, &str)]) -> String {
    let fields: Vec<Header<'_>> = fields
        .iter()
        .map(|(name, value)| Header {
            name,
            value: value.as_bytes(),
        })
        .collect();
    let request = Request {
        method,
        target,
        host,
        fields: &fields,
        from: FROM,
    };
    let mut scratch = Scratch::default();
    match rules.judge(&request, &mut scratch) {
        Judgement::Pass { .. } => "pass".into(),
        Judgement::Refused(refusal) => refusal.reason.as_str().into(),
        Judgement::Fenced { write, .. } => {
            let claims = scratch.claims().map(|c| match c.token {
                Some(Token(n)) => format!("{}={n}", c.resource),
                None => format!("{}=none", c.resource),
            });
            let claims = claims.collect::<Vec<_>>().join(" ");
            if write { claims } else { format!("read {claims}") }
        }
    }
}

fn put(rules: &RuleSet, target: &str) -> String {
    ask(rules, "PUT", target, &[("Fencing-Token", "7")])
}

#[test]
fn targets_of_writes_are_named_or_refused() {
    let rules = example();
    for (target, verdict) in [
        // What every backend reads in one way.
        ("/orders/1", "orders/1=7"),
        ("/orders/1/", "orders/1=7"),
        ("/orders/1?x=1", "orders/1=7"),
        ("/orders/1?", "orders/1=7"),
        ("/orders/1?a/../b", "orders/1=7"),
        ("/orders/1/?x=%2F%zz", "orders/1=7"),
        ("/%6Frders/1", "orders/1=7"),
        ("/%6frders/%31", "orders/1=7"),
        ("/orders/a%20b", "orders/a b=7"),
        ("/orders/a+b", "orders/a+b=7"),
        ("/orders/a:b@c,d=e&f", "orders/a:b@c,d=e&f=7"),
        ("/orders/%C3%A4", "orders/ä=7"),
        ("/orders/ä", "orders/ä=7"),
        ("/orders/%25", "orders/%=7"),
        ("/orders/%252F", "orders/%2F=7"),
        ("/orders/%3F", "orders/?=7"),
        ("/orders/...", "orders/...=7"),
        ("/orders/.hidden", "orders/.hidden=7"),
        ("/orders/a.", "orders/a.=7"),
        ("/orders/..a", "orders/..a=7"),
        ("/b/x/k", "bucket/x=7"),
        ("/b/x/k/l/m", "bucket/x=7"),
        ("/b/x/k/", "bucket/x=7"),
        ("/b/x/k;v=1", "bucket/x=7"),
        ("/b/x/k%3Bv=1/l", "bucket/x=7"),
        ("/b/%78/k", "bucket/x=7"),
        // No rule takes them.
        ("/", "unmatched-write"),
        ("/orders", "unmatched-write"),
        ("/orders/", "unmatched-write"),
        ("/orders/1/2", "unmatched-write"),
        ("/Orders/1", "unmatched-write"),
        ("/b/x", "unmatched-write"),
        ("/b/x/", "unmatched-write"),
        ("/other", "unmatched-write"),
        ("/ordersx/1", "unmatched-write"),
        ("/other;x", "unmatched-write"),
        // What a backend could read differently.
        ("/orders/.", "ambiguous-path"),
        ("/orders/..", "ambiguous-path"),
        ("/orders/./1", "ambiguous-path"),
        ("/x/../orders/1", "ambiguous-path"),
        ("/orders/%2e", "ambiguous-path"),
        ("/orders/%2E%2e/1", "ambiguous-path"),
        ("/orders/.%2e/1", "ambiguous-path"),
        ("/orders/..;/1", "ambiguous-path"),
        ("/orders/.;x=1/1", "ambiguous-path"),
        ("/orders/%2e%2e%3b/1", "ambiguous-path"),
        ("/orders//1", "ambiguous-path"),
        ("//orders/1", "ambiguous-path"),
        ("/orders/1//", "ambiguous-path"),
        ("//", "ambiguous-path"),
        ("/orders/;x/1", "ambiguous-path"),
        ("/orders/1%2F2", "ambiguous-path"),
        ("/orders%2f1", "ambiguous-path"),
        ("/orders/1%2F", "ambiguous-path"),
        ("/orders\\1", "ambiguous-path"),
        ("/orders%5C1", "ambiguous-path"),
        ("/orders/%5c", "ambiguous-path"),
        ("/orders/1%00", "ambiguous-path"),
        ("/orders/1%0a", "ambiguous-path"),
        ("/orders/1%7F", "ambiguous-path"),
        ("/orders/1\u{1}", "ambiguous-path"),
        ("/orders/1\u{7f}", "ambiguous-path"),
        ("/orders/1\t", "ambiguous-path"),
        ("/orders/1 2", "ambiguous-path"),
        ("/orders/1#x", "ambiguous-path"),
        ("/orders/%", "ambiguous-path"),
        ("/orders/%6", "ambiguous-path"),
        ("/orders/%zz", "ambiguous-path"),
        ("/orders/%+1", "ambiguous-path"),
        ("/orders/%u0041", "ambiguous-path"),
        ("/orders/%C0%AF", "ambiguous-path"),
        ("/orders/%FF", "ambiguous-path"),
        ("/orders/1;v=2", "ambiguous-path"),
        ("/orders/1%3Bv=2", "ambiguous-path"),
        ("/orders;v=2/1", "ambiguous-path"),
        ("/orders%3b/1", "ambiguous-path"),
        ("/b/x;y/k", "ambiguous-path"),
        ("/b;y/x/k", "ambiguous-path"),
        ("/free//x", "ambiguous-path"),
        ("/free/%2e%2e/x", "ambiguous-path"),
        ("orders/1", "ambiguous-path"),
        ("*", "ambiguous-path"),
        ("", "ambiguous-path"),
    ] {
        assert_eq!(put(&rules, target), verdict, "{target:?}");
    }
}

#[test]
fn ambiguous_reads_pass_only_where_no_rule_could_compare_them() {
    let rules = example();
    for (target, verdict) in [
        ("/free//x", "pass"),
        ("/free/%2F", "pass"),
        ("/free/../x", "pass"),
        ("/orders//1", "ambiguous-path"),
        ("//orders/1", "ambiguous-path"),
        ("/free/../orders/1", "ambiguous-path"),
        ("/orders%2F1", "ambiguous-path"),
        ("/orders;x/1", "ambiguous-path"),
        ("/b/x//", "ambiguous-path"),
        ("/orders/1", "pass"),
    ] {
        assert_eq!(ask(&rules, "GET", target, &[]), verdict, "{target:?}");
    }
    let token = [("fencing-TOKEN", "7")];
    assert_eq!(ask(&rules, "GET", "/free//x", &token), "ambiguous-path");
    assert_eq!(ask(&rules, "GET", "/free/x", &token), "pass");
    assert_eq!(ask(&rules, "OPTIONS", "*", &token), "pass");
}

#[test]
fn reads_are_compared_when_they_carry_a_token() {
    let mut rules = example();
    assert_eq!(
        ask(&rules, "GET", "/orders/1", &[("Fencing-Token", "7")]),
        "read orders/1=7"
    );
    assert_eq!(ask(&rules, "HEAD", "/orders/1", &[]), "pass");
    assert_eq!(
        ask(&rules, "GET", "/orders/1", &[("Fencing-Token", "x")]),
        "malformed-token"
    );
    assert_eq!(
        ask(&rules, "get", "/orders/1", &[]),
        "missing-token",
        "methods are case-sensitive"
    );
    rules.rules[1].reads = Reads::Ignore;
    assert_eq!(ask(&rules, "GET", "/orders/1", &[("Fencing-Token", "x")]), "pass");
    rules.unmatched.reads = Policy::Deny;
    assert_eq!(ask(&rules, "GET", "/other", &[]), "not-allowed");
}

#[test]
fn a_token_is_one_field_in_the_rules_format() {
    let rules = example();
    let with = |fields: &[(&str, &str)]| ask(&rules, "PUT", "/orders/1", fields);
    assert_eq!(with(&[("fencing-token", " 7\t")]), "orders/1=7");
    assert_eq!(with(&[]), "missing-token");
    for bad in [
        "",
        " ",
        "x",
        "7,8",
        "7, 7",
        "-1",
        "07",
        "1.2",
        "18446744073709551616",
    ] {
        assert_eq!(with(&[("Fencing-Token", bad)]), "malformed-token", "{bad:?}");
    }
    assert_eq!(
        with(&[("Fencing-Token", "7"), ("Fencing-Token", "7")]),
        "malformed-token"
    );
    assert_eq!(
        with(&[("Fencing-Token", "7"), ("fencing-token", "")]),
        "malformed-token"
    );
}

#[test]
fn writes_without_a_token_pass_where_the_rule_says_so() {
    for missing in [Missing::Pass, Missing::PassUntilFenced] {
        let mut rules = example();
        rules.rules[1].missing = missing;
        assert_eq!(ask(&rules, "PUT", "/orders/1", &[]), "orders/1=none");
        assert_eq!(
            ask(&rules, "PUT", "/orders/1", &[("Fencing-Token", "")]),
            "malformed-token"
        );
    }
}

#[test]
fn the_first_rule_that_takes_path_and_method_counts() {
    let mut first = rule("/{a}/{b}", "first/{a}");
    first.methods = Some(["DELETE".into()].into());
    let rules = set(vec![first, rule("/{a}/{*b}", "second/{a}")]);
    assert_eq!(
        ask(&rules, "DELETE", "/x/y", &[("Fencing-Token", "1")]),
        "first/x=1"
    );
    assert_eq!(put(&rules, "/x/y"), "second/x=7");
    assert_eq!(
        ask(&rules, "GET", "/x/y", &[("Fencing-Token", "1")]),
        "read first/x=1",
        "safe methods go by path alone"
    );
    assert_eq!(
        ask(&rules, "delete", "/x/y", &[("Fencing-Token", "1")]),
        "bad-request"
    );
    assert_eq!(put(&rules, "/x"), "unmatched-write");
    let fields = [];
    let request = Request {
        method: "PUT",
        target: "/x/y",
        host: "",
        fields: &fields,
        from: FROM,
    };
    let trace: Vec<Tried> = rules
        .trace(&request, &mut Scratch::default())
        .into_iter()
        .map(|(_, t)| t)
        .collect();
    assert_eq!(trace, [Tried::OtherMethod, Tried::Matches]);
}

#[test]
fn unmatched_writes_pass_only_where_the_listener_says_so() {
    let mut rules = example();
    rules.unmatched.writes = Policy::Pass;
    assert_eq!(put(&rules, "/other"), "pass");
    assert_eq!(put(&rules, "/other/../orders/1"), "ambiguous-path");
    assert_eq!(put(&rules, "/orders;x/1"), "ambiguous-path");
}

#[test]
fn fields_that_ask_for_another_method_are_refused() {
    let rules = example();
    for name in [
        "X-HTTP-Method-Override",
        "x-http-method",
        "X-Method-Override",
        "X_HTTP_Method_Override",
        "X-Original-Method",
    ] {
        let fields = [("Fencing-Token", "7"), (name, "DELETE")];
        for method in ["PUT", "POST", "GET"] {
            assert_eq!(
                ask(&rules, method, "/orders/1", &fields),
                "method-override",
                "{method} {name}"
            );
        }
        assert_eq!(
            ask(&rules, "GET", "/free/x", &[(name, "DELETE")]),
            "method-override"
        );
        assert_eq!(
            ask(&rules, "GET", "/free//x", &[(name, "DELETE")]),
            "method-override"
        );
    }
    assert_eq!(
        ask(
            &rules,
            "PUT",
            "/orders/1",
            &[("Fencing-Token", "7"), ("X-HTTP-Methods", "x")]
        ),
        "orders/1=7"
    );
}

#[test]
fn fields_that_ask_for_another_path_are_refused_where_a_rule_could_be_passed_by() {
    let mut rules = example();
    rules.unmatched.writes = Policy::Pass;
    for name in [
        "X-Original-URL",
        "x-rewrite-url",
        "X_Original_URL",
        "X_REWRITE_URL",
    ] {
        let (token, path) = (("Fencing-Token", "7"), (name, "/orders/2"));
        for (method, target, fields) in [
            ("PUT", "/orders/1", &[token, path][..]),
            ("GET", "/orders/1", &[token, path]),
            ("GET", "/orders/1", &[path]),
            ("PUT", "/free/x", &[path]),
            ("GET", "/free/x", &[token, path]),
            ("GET", "/free//x", &[token, path]),
            ("OPTIONS", "*", &[path]),
        ] {
            let verdict = ask(&rules, method, target, fields);
            assert_eq!(verdict, "ambiguous-path", "{method} {target} {fields:?}");
        }
        assert_eq!(ask(&rules, "GET", "/free/x", &[path]), "pass");
    }
    assert_eq!(
        ask(&rules, "OPTIONS", "*", &[("X-HTTP-Method", "PUT")]),
        "method-override"
    );
}

#[test]
fn a_connection_field_cannot_take_the_token_away() {
    let rules = example();
    let with = |value| {
        ask(
            &rules,
            "PUT",
            "/orders/1",
            &[("Fencing-Token", "7"), ("Connection", value)],
        )
    };
    assert_eq!(with("keep-alive"), "orders/1=7");
    assert_eq!(with("fencing-token"), "bad-request");
    assert_eq!(with("close ,\tFencing-Token , x"), "bad-request");
    let named = set(vec![rule("/{*all}", "x/{header.X-Share}")]);
    let fields = [
        ("Fencing-Token", "7"),
        ("X-Share", "s"),
        ("Connection", "x-share"),
    ];
    assert_eq!(ask(&named, "PUT", "/a", &fields), "bad-request");
}

#[test]
fn names_come_from_host_header_and_query() {
    let host = set(vec![rule("/{*all}", "h/{host}")]);
    assert_eq!(put(&host, "/a"), "h/store.test=7");
    let header = set(vec![rule("/{*all}", "s/{header.X-Share}")]);
    let with = |values: &[&str]| {
        let mut fields = vec![("Fencing-Token", "7")];
        fields.extend(values.iter().map(|v| ("x-share", *v)));
        ask(&header, "PUT", "/a", &fields)
    };
    assert_eq!(with(&[" a b "]), "s/a b=7");
    assert_eq!(with(&[]), "bad-request");
    assert_eq!(with(&["a", "a"]), "ambiguous-path");
    for twin in ["X_Share", "x_share", "X.Share"] {
        for fields in [[("X-Share", "a"), (twin, "b")], [(twin, "b"), ("X-Share", "a")]] {
            let fields = [&[("Fencing-Token", "7")][..], &fields].concat();
            assert_eq!(ask(&header, "PUT", "/a", &fields), "ambiguous-path", "{twin}");
        }
        let alone = [("Fencing-Token", "7"), (twin, "b")];
        assert_eq!(ask(&header, "PUT", "/a", &alone), "bad-request", "{twin}");
    }
    assert_eq!(with(&[" "]), "bad-request");
    for odd in ["a/../b", "./a", "a//b", "/a", "a\\b", "a\u{7f}"] {
        assert_eq!(with(&[odd]), "ambiguous-path", "{odd:?}");
    }
}

#[test]
fn a_query_field_names_a_resource_only_if_it_can_be_read_in_one_way() {
    let rules = set(vec![rule("/q", "q/{query.bucket}")]);
    for (query, verdict) in [
        ("bucket=a", "q/a=7"),
        ("x&bucket=a&y=%zz", "q/a=7"),
        ("b%75cket=%61", "q/a=7"),
        ("bucket=a%2Fb", "q/a/b=7"),
        ("bucket=a=b", "q/a=b=7"),
        ("bucket=a%2Bb", "q/a+b=7"),
        ("", "bad-request"),
        ("bucket", "bad-request"),
        ("bucket=", "bad-request"),
        ("Bucket=a", "bad-request"),
        ("xbucket=a", "bad-request"),
        ("bucket=a&bucket=a", "ambiguous-path"),
        ("bucket=a&b%75cket=b", "ambiguous-path"),
        ("bucket=a&BUCKET=b", "ambiguous-path"),
        ("bucket=a;bucket=b", "ambiguous-path"),
        ("bucket=a+b", "ambiguous-path"),
        ("bucket=%zz", "ambiguous-path"),
        ("bucket=%FF", "ambiguous-path"),
        ("bucket=%00", "ambiguous-path"),
        ("bucket=a%2F..%2Fb", "ambiguous-path"),
        ("%zz=1&bucket=a", "ambiguous-path"),
        ("bucket=a&bucket[]=b", "ambiguous-path"),
        ("bucket[x]=b&bucket=a", "ambiguous-path"),
        ("bucket=a&[bucket]=b", "ambiguous-path"),
        ("bucket=a&bucket]=b", "ambiguous-path"),
        ("bucket=a&bucket%5B%5D=b", "ambiguous-path"),
        ("bucket=a&bucket%00=b", "ambiguous-path"),
        ("bucket=a&bucket%00x=b", "ambiguous-path"),
        ("bucket=a&%20Bucket%20=b", "ambiguous-path"),
        ("bucket[]=a", "bad-request"),
        ("bucket%00=a", "bad-request"),
        ("bucket=a&bucket.x=b&bucket_x=c&xbucket[]=d&x[bucket]=e", "q/a=7"),
    ] {
        assert_eq!(put(&rules, &format!("/q?{query}")), verdict, "{query:?}");
    }
    assert_eq!(put(&rules, "/q"), "bad-request");
    let dotted = set(vec![rule("/q", "q/{query.my.id}")]);
    assert_eq!(put(&dotted, "/q?my.id=a"), "q/a=7");
    for twin in ["my_id", "my%20id", "MY.ID", "my[id", "my.id[]"] {
        assert_eq!(
            put(&dotted, &format!("/q?my.id=a&{twin}=b")),
            "ambiguous-path",
            "{twin}"
        );
    }
    let listed = set(vec![rule("/q", "q/{query.id[]}")]);
    assert_eq!(put(&listed, "/q?id[]=a"), "q/a=7");
    assert_eq!(put(&listed, "/q?id[]=a&id=b"), "ambiguous-path");
}

fn two_fences(first: &str, second: &str, missing: Missing) -> RuleSet {
    let mut both = rule("/{t}/{p}", "x");
    both.fences = [
        fence(first, "A", TokenFormat::Integer, &both.path),
        fence(second, "B", TokenFormat::Integer, &both.path),
    ]
    .into();
    both.missing = missing;
    set(vec![both])
}

#[test]
fn several_fences_are_decided_each_and_a_resource_counts_once() {
    let rules = two_fences("controller", "partition/{t}", Missing::Deny);
    let with = |rules: &RuleSet, fields: &[(&str, &str)]| ask(rules, "PUT", "/t/0", fields);
    assert_eq!(
        with(&rules, &[("a", "1"), ("b", "2")]),
        "controller=1 partition/t=2"
    );
    assert_eq!(with(&rules, &[("a", "1")]), "missing-token");
    assert_eq!(with(&rules, &[("a", "1"), ("b", "x")]), "malformed-token");
    assert_eq!(ask(&rules, "GET", "/t/0", &[("b", "2")]), "read partition/t=2");

    let same = two_fences("p/{t}", "p/{p}", Missing::Deny);
    let at_one = |fields: &[(&str, &str)]| ask(&same, "PUT", "/0/0", fields);
    assert_eq!(at_one(&[("a", "1"), ("b", "1")]), "p/0=1");
    assert_eq!(at_one(&[("a", "1"), ("b", "2")]), "bad-request");
    assert_eq!(
        ask(&same, "PUT", "/0/1", &[("a", "1"), ("b", "2")]),
        "p/0=1 p/1=2"
    );

    for (missing, verdict) in [
        (Missing::Pass, "p/0=1"),
        (Missing::PassUntilFenced, "missing-token"),
    ] {
        let rules = two_fences("p/{t}", "p/{p}", missing);
        assert_eq!(ask(&rules, "PUT", "/0/0", &[("a", "1")]), verdict);
        assert_eq!(ask(&rules, "PUT", "/0/0", &[("b", "1")]), verdict);
        assert_eq!(ask(&rules, "PUT", "/0/0", &[]), "p/0=none");
        assert_eq!(ask(&rules, "PUT", "/0/1", &[("b", "1")]), "p/0=none p/1=1");
    }
}

#[test]
fn of_a_resource_named_twice_the_smaller_step_counts() {
    for (steps, counts) in [
        ([Some(9), Some(5)], Some(5)),
        ([None, Some(5)], Some(5)),
        ([Some(9), None], Some(9)),
        ([None, None], None),
    ] {
        let mut rules = two_fences("p/{t}", "p/{p}", Missing::Deny);
        for (fence, step) in rules.rules[0].fences.iter_mut().zip(steps) {
            fence.max_step = step;
        }
        let fields = [("A", b"1"), ("B", b"1")].map(|(name, value)| Header { name, value });
        let request = Request {
            method: "PUT",
            target: "/0/0",
            host: "h",
            fields: &fields,
            from: FROM,
        };
        let mut scratch = Scratch::default();
        assert!(matches!(
            rules.judge(&request, &mut scratch),
            Judgement::Fenced { .. }
        ));
        assert_eq!(scratch.claims().len(), 1);
        assert_eq!(scratch.claim(0).unwrap().max_step, counts, "{steps:?}");
    }
}

#[test]
fn fold_case_makes_one_name_of_all_spellings() {
    let mut folding = rule("/Share/{name}", "Share/{name}");
    folding.fold_case = true;
    let rules = set(vec![folding]);
    for target in ["/Share/Docs", "/sHARE/dOCS", "/share/%44ocs"] {
        assert_eq!(put(&rules, target), "share/docs=7", "{target}");
    }
    assert_eq!(put(&rules, "/share/%C3%84"), "share/ä=7");
    assert_eq!(put(&rules, "/share;x/a"), "ambiguous-path");
}

#[test]
fn other_formats_are_read_by_the_fence() {
    let path = Pattern::parse("/{x}").unwrap();
    for (format, text, value) in [
        (TokenFormat::Hex, "0xff", 255),
        (TokenFormat::Pair, "1.2", (1u128 << 64) + 2),
    ] {
        let mut one = rule("/{x}", "x");
        one.fences = [fence("x", "T", format, &path)].into();
        assert_eq!(
            ask(&set(vec![one]), "PUT", "/a", &[("t", text)]),
            format!("x={value}")
        );
    }
}

#[test]
fn an_observing_rule_never_waives_what_makes_its_rule_uncertain() {
    let mut observing = rule("/orders/{id}", "orders/{id}");
    observing.mode = Mode::Observe;
    let rules = set(vec![observing]);
    for (target, token, binds) in [
        ("/orders/1", "x", false),
        ("/orders/1;a", "1", true),
        ("/orders/..", "1", true),
    ] {
        let fields = [Header {
            name: "Fencing-Token",
            value: token.as_bytes(),
        }];
        let request = Request {
            method: "PUT",
            target,
            host: "h",
            fields: &fields,
            from: FROM,
        };
        match rules.judge(&request, &mut Scratch::default()) {
            Judgement::Refused(refusal) => assert_eq!(refusal.binds(), binds, "{target}"),
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn a_refusal_says_which_claim_it_is_about() {
    let rules = example();
    let request = Request {
        method: "PUT",
        target: "/orders/1",
        host: "h",
        fields: &[],
        from: FROM,
    };
    let mut scratch = Scratch::default();
    match rules.judge(&request, &mut scratch) {
        Judgement::Refused(refusal) => {
            assert_eq!(refusal.reason, Reason::MissingToken);
            assert_eq!(
                scratch.claim(refusal.claim.unwrap()).unwrap().resource,
                "orders/1"
            );
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn patterns_and_templates_that_could_not_be_meant_are_refused() {
    for bad in [
        "", "orders", "/a/", "//", "/a//b", "/./a", "/..", "/{a", "/a}", "/{}", "/{*}", "/x{a}", "/{a}x",
        "/{*a}/b", "/{a}/{a}", "/{host}", "/{a.b}", "/*", "/a/**", "/%61", "/a\\b", "/a?b",
    ] {
        assert!(Pattern::parse(bad).is_err(), "{bad:?}");
    }
    let path = Pattern::parse("/{a}/{*b}").unwrap();
    for bad in [
        "",
        "{c}",
        "x/{a}{b}",
        "{a",
        "a}",
        "{header.}",
        "{header.a b}",
        "{header.Host}",
        "{query.}",
        "{a}{host}",
        "{}",
        "x\n",
    ] {
        assert!(Template::parse(bad, &path).is_err(), "{bad:?}");
    }
    for good in [
        "x",
        "{a}",
        "{a}/{b}",
        "{*b}",
        "{host}/{a}",
        "{header.X-A}",
        "{query.a b}",
    ] {
        assert!(Template::parse(good, &path).is_ok(), "{good:?}");
    }
}

#[test]
fn templates_overlap_where_some_name_fits_both() {
    let path = Pattern::parse("/{a}/{b}/{*rest}").unwrap();
    let read = |text| Template::parse(text, &path).unwrap();
    for (first, second, fold_case, wanted) in [
        ("bucket/{a}", "bucket/{b}", false, true),
        ("bucket/{a}", "bucket/x", false, true),
        ("bucket/{a}", "bucket/x/y", false, false),
        ("bucket/{a}", "bucket/{a}/{b}", false, false),
        ("bucket/{rest}", "bucket/{a}/{b}", false, true),
        ("bucket/{a}", "orders/{a}", false, false),
        ("bucket/{a}", "bucket", false, false),
        ("bucket/{a}", "bucket/", false, false),
        ("{a}", "{rest}", false, true),
        ("{a}/x", "{query.q}", false, true),
        ("{a}-x", "y-{a}", false, true),
        ("{a}-x", "y", false, false),
        ("{a}bc", "abc", false, true),
        ("{a}abc", "abc", false, false),
        ("B/{a}", "b/{a}", false, false),
        ("B/{a}", "b/{a}", true, true),
        ("x", "x", false, true),
        ("x", "xy", false, false),
    ] {
        assert_eq!(
            read(first).shape().overlaps(&read(second).shape(), fold_case),
            wanted,
            "{first} {second}"
        );
        assert_eq!(
            read(second).shape().overlaps(&read(first).shape(), fold_case),
            wanted,
            "{second} {first}"
        );
    }
}

#[test]
fn a_rule_covers_what_can_never_reach_a_later_one() {
    let mut some = rule("/{a}/{*b}", "x");
    some.methods = Some(["PUT".into()].into());
    assert!(rule("/{a}/{*b}", "x").covers(&rule("/orders/{id}", "x")));
    assert!(!some.covers(&rule("/orders/{id}", "x")));
    assert!(rule("/{a}/{*b}", "x").covers(&some));
    assert!(!rule("/orders/{id}", "x").covers(&rule("/{a}/{b}", "x")));
    assert!(!rule("/{a}/{b}", "x").covers(&rule("/{a}/{*b}", "x")));
}

#[test]
fn a_destination_is_the_same_resource_or_refused() {
    let with = |rules: &RuleSet, target: &str, values: &[&str]| {
        let mut fields = vec![("Fencing-Token", "7")];
        fields.extend(values.iter().map(|v| ("destination", *v)));
        ask(rules, "MOVE", target, &fields)
    };
    let mut rules = example();
    for (destination, verdict) in [
        ("/b/x/other", "bucket/x=7"),
        ("http://store.test:8080/b/x/other/", "bucket/x=7"),
        (" HTTPS://STORE.test:8080/%62/x/other?q ", "bucket/x=7"),
        ("/b/y/other", "unmatched-write"),
        ("/orders/1", "unmatched-write"),
        ("/free", "unmatched-write"),
        ("http://store.test/b/x/other", "ambiguous-path"),
        ("http://elsewhere/b/x/other", "ambiguous-path"),
        ("http://u@store.test:8080/b/x/other", "ambiguous-path"),
        ("http://store.test:8080", "ambiguous-path"),
        ("//store.test:8080/b/x/other", "ambiguous-path"),
        ("/b/x/../y/other", "ambiguous-path"),
        ("/b/x//other", "ambiguous-path"),
        ("/b;z/x/other", "ambiguous-path"),
        ("b/x/other", "ambiguous-path"),
        ("ftp://store.test/b/x/other", "ambiguous-path"),
        ("", "ambiguous-path"),
    ] {
        assert_eq!(with(&rules, "/b/x/k", &[destination]), verdict, "{destination:?}");
    }
    assert_eq!(with(&rules, "/b/x/k", &["/b/x/l", "/b/x/l"]), "ambiguous-path");
    assert_eq!(with(&rules, "/b/x/k", &[]), "bucket/x=7");
    rules.unmatched.writes = Policy::Pass;
    assert_eq!(with(&rules, "/b/x/k", &["/free"]), "bucket/x=7");
    assert_eq!(with(&rules, "/free", &["/else"]), "pass");
    assert_eq!(with(&rules, "/free", &["/b/x/k"]), "unmatched-write");
    assert_eq!(with(&rules, "/free", &["/else/../b/x/k"]), "ambiguous-path");
}

#[test]
fn a_move_out_of_an_observed_place_cannot_reach_an_enforced_one() {
    let mut observing = rule("/seen/{a}", "seen/{a}");
    observing.mode = Mode::Observe;
    let rules = set(vec![observing, rule("/locked/{a}", "locked/{a}")]);
    for (destination, binds) in [("/seen/y", false), ("/locked/y", true)] {
        let fields = [("Fencing-Token", "7"), ("Destination", destination)].map(|(name, value)| Header {
            name,
            value: value.as_bytes(),
        });
        let request = Request {
            method: "MOVE",
            target: "/seen/x",
            host: "h",
            fields: &fields,
            from: FROM,
        };
        match rules.judge(&request, &mut Scratch::default()) {
            Judgement::Refused(refusal) => assert_eq!(refusal.binds(), binds, "{destination}"),
            other => panic!("{other:?}"),
        }
    }
}

/// A backend, as loose as backends are: each bit of `kind` is one liberty that it takes.
fn backend_reads(path: &str, kind: u32) -> Vec<String> {
    let takes = |bit: u32| kind & (1 << bit) != 0;
    let slash_late = takes(0);
    let split = |text: &[u8]| -> Vec<Vec<u8>> { text.split(|b| *b == b'/').map(<[u8]>::to_vec).collect() };
    let decode = |text: &[u8]| -> Vec<u8> {
        let mut out = Vec::new();
        let mut i = 0;
        while i < text.len() {
            let hex = text.get(i + 1..i + 3).and_then(|h| std::str::from_utf8(h).ok());
            match hex.and_then(|h| u8::from_str_radix(h, 16).ok()) {
                Some(byte) if text[i] == b'%' => {
                    out.push(byte);
                    i += 3;
                }
                _ => {
                    out.push(text[i]);
                    i += 1;
                }
            }
        }
        out
    };
    let cut = |segment: &[u8]| segment.split(|b| *b == b';').next().unwrap_or_default().to_vec();
    let mut segments = if slash_late {
        split(&decode(path.as_bytes()))
    } else {
        split(path.as_bytes()).iter().map(|s| decode(s)).collect()
    };
    if takes(1) {
        segments = segments
            .iter()
            .flat_map(|s| s.split(|b| *b == b'\\').map(<[u8]>::to_vec))
            .collect();
    }
    if takes(2) {
        segments = segments.iter().map(|s| cut(s)).collect();
    }
    let mut out: Vec<Vec<u8>> = Vec::new();
    for segment in segments.into_iter().skip(1) {
        match &segment[..] {
            b"" | b"." if takes(3) => {}
            b".." if takes(4) => drop(out.pop()),
            _ => out.push(segment),
        }
    }
    if out.last().is_some_and(Vec::is_empty) {
        out.pop();
    }
    out.into_iter()
        .map(|s| String::from_utf8_lossy(&s).into_owned())
        .collect()
}

/// The promise of this module, against 32 kinds of backends and many thousand odd paths: what is let through
/// under a name has that name for every backend, and what is let through unfenced means no fenced place.
#[test]
fn no_backend_reads_another_resource_than_the_gate() {
    const PARTS: [&str; 20] = [
        "/", "/", "/", "locked", "a", "b", ".", "..", "%2e", "%2F", "%5C", "\\", ";", "%3b", "%61",
        "%6Cocked", "%", "%25", "%00", "//",
    ];
    let mut rules = set(vec![rule("/locked/{key}", "locked/{key}")]);
    rules.unmatched.writes = Policy::Pass;
    let mut seed = 0x9e37_79b9_7f4a_7c15_u64;
    let mut random = |below: usize| {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        usize::try_from(seed % below as u64).unwrap()
    };
    let (mut fenced, mut passed, mut refused) = (0, 0, 0);
    for round in 0..60_000 {
        let mut path = String::from("/");
        if round % 2 == 0 {
            path.push_str("locked/");
        }
        for _ in 0..=random(6) {
            path.push_str(PARTS[random(PARTS.len())]);
        }
        let verdict = put(&rules, &path);
        match verdict.as_str() {
            "ambiguous-path" => refused += 1,
            "pass" => {
                passed += 1;
                for kind in 0..32 {
                    let read = backend_reads(&path, kind);
                    let fenced = read.len() == 2 && read[0] == "locked";
                    assert!(!fenced, "{path:?} passes, and backend {kind} reads {read:?}");
                }
            }
            named => {
                fenced += 1;
                for kind in 0..32 {
                    let read = backend_reads(&path, kind).join("/");
                    assert_eq!(format!("{read}=7"), named, "{path:?} at backend {kind}");
                }
            }
        }
    }
    assert!(
        fenced > 1_000 && passed > 1_000 && refused > 1_000,
        "{fenced} {passed} {refused}"
    );
}

#[test]
fn judging_a_common_write_reuses_its_buffers() {
    let rules = example();
    let fields = [Header {
        name: "Fencing-Token",
        value: b"34",
    }];
    let request = Request {
        method: "PUT",
        target: "/b/bucket/some%20key",
        host: "h",
        fields: &fields,
        from: FROM,
    };
    let mut scratch = Scratch::default();
    let name = |scratch: &Scratch| scratch.claim(0).map(|c| c.resource.as_ptr());
    rules.judge(&request, &mut scratch);
    let warm = name(&scratch);
    for _ in 0..100 {
        rules.judge(&request, &mut scratch);
        assert_eq!(name(&scratch), warm);
    }
}
