//! Matching by host, header and query: what falls under a rule, what under the next, and what can't be told.

use super::{FROM, Judgement, Request, Scratch, ask, ask_at, rule, set};
use crate::rules::{Action, Conditions, HostPattern, Mode, Policy, Rule, RuleSet, Tried, ValuePattern};

#[derive(Default, Clone, Copy)]
struct Asks<'a> {
    hosts: &'a [&'a str],
    headers: &'a [(&'a str, &'a str)],
    query: &'a [(&'a str, &'a str)],
}

fn with(mut rule: Rule, asks: Asks<'_>) -> Rule {
    let pairs = |pairs: &[(&str, &str)]| {
        let read = |(name, value): &(&str, &str)| ((*name).into(), ValuePattern::parse(value).unwrap());
        pairs.iter().map(read).collect()
    };
    rule.conditions = Some(Box::new(Conditions {
        hosts: asks
            .hosts
            .iter()
            .map(|h| HostPattern::parse(h).unwrap())
            .collect(),
        headers: pairs(asks.headers),
        query: pairs(asks.query),
    }));
    rule
}

/// `first/…` where the conditions hold, else `second/…`.
fn two(asks: Asks<'_>) -> RuleSet {
    set(vec![
        with(rule("/{a}", "first/{a}"), asks),
        rule("/{a}", "second/{a}"),
    ])
}

const TOKEN: (&str, &str) = ("Fencing-Token", "7");

#[test]
fn a_rule_takes_its_hosts_alone() {
    let rules = two(Asks {
        hosts: &["store.test", "*.b.test", "c.test:81"],
        ..Asks::default()
    });
    for (host, verdict) in [
        ("store.test", "first/x=7"),
        ("STORE.test.:8080", "first/x=7"),
        ("a.b.test", "first/x=7"),
        ("b.test", "second/x=7"),
        ("c.test:81", "first/x=7"),
        ("c.test", "second/x=7"),
        ("other.test", "second/x=7"),
        ("?", "bad-request"),
    ] {
        assert_eq!(ask_at(host, &rules, "PUT", "/x", &[TOKEN]), verdict, "{host}");
    }
    for (name, value, verdict) in [
        ("X-Forwarded-Host", "store.test", "first/x=7"),
        ("X-Forwarded-Host", "a.b.test:80", "first/x=7"),
        ("X-Forwarded-Host", "other.test", "bad-request"),
        ("x_forwarded_host", "other.test", "bad-request"),
        ("X-Forwarded-Host", "a, b", "bad-request"),
    ] {
        let fields = [TOKEN, (name, value)];
        assert_eq!(
            ask_at("store.test", &rules, "PUT", "/x", &fields),
            verdict,
            "{value}"
        );
    }
}

#[test]
fn a_name_by_host_is_refused_where_a_field_names_another_host() {
    let rules = set(vec![rule("/{*all}", "h/{host}")]);
    for (value, verdict) in [("store.TEST", "h/store.test=7"), ("other.test", "ambiguous-path")] {
        let fields = [TOKEN, ("X-Forwarded-Host", value)];
        assert_eq!(ask(&rules, "PUT", "/a", &fields), verdict);
    }
    assert_eq!(ask_at("[0::1]:80", &rules, "PUT", "/a", &[TOKEN]), "h/[::1]=7");
}

#[test]
fn a_rule_takes_its_header_fields_alone() {
    let rules = two(Asks {
        headers: &[("X-Kind", "order-*"), ("X-Copy", "")],
        ..Asks::default()
    });
    for (fields, verdict) in [
        (&[("x-kind", "order-1"), ("x-copy", "")][..], "first/x=7"),
        (&[("X-Kind", " order- "), ("X-COPY", "v")], "first/x=7"),
        (&[("X-Kind", "order-1")], "second/x=7"),
        (&[("X-Kind", "user-1"), ("X-Copy", "v")], "second/x=7"),
        (&[], "second/x=7"),
        // What one is definitely not need not be looked at further.
        (&[("X_Kind", "order-1")], "second/x=7"),
        (&[("X-Kind", "ORDER-1"), ("X-Copy", "v")], "bad-request"),
        (&[("X-Kind", "a, order-1"), ("X-Copy", "v")], "bad-request"),
        (
            &[("X-Kind", "order-1"), ("X-Kind", "order-1"), ("X-Copy", "v")],
            "bad-request",
        ),
        (
            &[("X-Kind", "order-1"), ("X_Kind", "u"), ("X-Copy", "v")],
            "bad-request",
        ),
        (&[("X_Kind", "order-1"), ("X-Copy", "v")], "bad-request"),
        (
            &[("X-Kind", "order-1"), ("X-Copy", "v"), ("Connection", "x-copy")],
            "bad-request",
        ),
        (&[("X-Kind", "user-1"), ("Connection", "x-kind")], "bad-request"),
    ] {
        let all = [&[TOKEN][..], fields].concat();
        assert_eq!(ask(&rules, "PUT", "/x", &all), verdict, "{fields:?}");
    }
    assert!(rules.reads_header("x-KIND"), "it must not stand in trailers");
}

#[test]
fn a_rule_takes_its_query_fields_alone() {
    let rules = two(Asks {
        query: &[("delete", ""), ("type", "a*")],
        ..Asks::default()
    });
    for (query, verdict) in [
        ("delete&type=a", "first/x=7"),
        ("type=%61b&x=%zz&delete=", "first/x=7"),
        ("d%65lete=yes&type=a%2Bb", "first/x=7"),
        ("type=a", "second/x=7"),
        ("delete&type=b", "second/x=7"),
        ("delete&type=b+a", "second/x=7"),
        ("", "second/x=7"),
        ("deleted&type=a", "second/x=7"),
        ("delete&delete&type=a", "bad-request"),
        ("delete&Delete&type=a", "bad-request"),
        ("DELETE&type=a", "bad-request"),
        ("delete[]&type=a", "bad-request"),
        ("delete&type=A", "bad-request"),
        ("x;delete&type=a", "bad-request"),
        ("delete;x&type=a", "bad-request"),
        ("%zz&delete&type=a", "bad-request"),
        ("delete&type=%zz", "bad-request"),
    ] {
        let verdict_now = ask(&rules, "PUT", &format!("/x?{query}"), &[TOKEN]);
        assert_eq!(verdict_now, verdict, "{query}");
    }
    let plus = two(Asks {
        query: &[("type", "a b")],
        ..Asks::default()
    });
    assert_eq!(ask(&plus, "PUT", "/x?type=a%20b", &[TOKEN]), "first/x=7");
    assert_eq!(ask(&plus, "PUT", "/x?type=a+b", &[TOKEN]), "bad-request");
}

#[test]
fn reads_are_matched_by_the_conditions_too() {
    let rules = two(Asks {
        query: &[("list", "")],
        ..Asks::default()
    });
    assert_eq!(ask(&rules, "GET", "/x?list", &[TOKEN]), "read first/x=7");
    assert_eq!(ask(&rules, "GET", "/x", &[TOKEN]), "read second/x=7");
    assert_eq!(ask(&rules, "GET", "/x?list&list", &[]), "bad-request");
    // Whether an ambiguous path could mean a rule hangs on its conditions as well.
    let mut alone = set(vec![with(
        rule("/locked/{a}", "x"),
        Asks {
            query: &[("list", "")],
            ..Asks::default()
        },
    )]);
    alone.unmatched.writes = Policy::Pass;
    for (target, verdict) in [
        ("/locked//a", "pass"),
        ("/locked//a?list", "ambiguous-path"),
        ("/locked//a?LIST", "ambiguous-path"),
    ] {
        assert_eq!(ask(&alone, "GET", target, &[]), verdict, "{target}");
    }
    assert_eq!(ask(&alone, "PUT", "/locked/a", &[]), "pass");
}

#[test]
fn letter_case_of_values_is_none_where_the_rule_folds_it() {
    let mut folding = with(
        rule("/{a}", "first/{a}"),
        Asks {
            headers: &[("X-Share", "Docs")],
            ..Asks::default()
        },
    );
    folding.fold_case = true;
    let rules = set(vec![folding]);
    let fields = [TOKEN, ("X-Share", "dOCS")];
    assert_eq!(ask(&rules, "PUT", "/x", &fields), "first/x=7");
}

#[test]
fn a_rule_that_denies_refuses_writes_and_leaves_reads_to_the_next() {
    let mut denying = with(
        rule("/{a}", "x"),
        Asks {
            query: &[("delete", "")],
            ..Asks::default()
        },
    );
    denying.action = Action::Deny;
    denying.fences = [].into();
    denying.methods = Some(["POST".into()].into());
    let mut rules = set(vec![denying, rule("/{a}", "second/{a}")]);
    for (method, target, verdict) in [
        ("POST", "/x?delete", "not-allowed"),
        ("POST", "/x", "second/x=7"),
        ("PUT", "/x?delete", "second/x=7"),
        ("GET", "/x?delete", "read second/x=7"),
        ("POST", "/x?delete&delete", "bad-request"),
        ("post", "/x?delete", "bad-request"),
    ] {
        assert_eq!(
            ask(&rules, method, target, &[TOKEN]),
            verdict,
            "{method} {target}"
        );
    }
    rules.unmatched.writes = Policy::Pass;
    assert_eq!(ask(&rules, "POST", "/x?delete", &[]), "not-allowed");
}

#[test]
fn what_cannot_be_told_is_refused_also_where_the_rule_only_observes() {
    let mut observing = with(
        rule("/{a}", "first/{a}"),
        Asks {
            query: &[("list", "")],
            ..Asks::default()
        },
    );
    observing.mode = Mode::Observe;
    observing.methods = Some(["PUT".into()].into());
    let rules = set(vec![observing, rule("/{a}", "second/{a}")]);
    for (method, target) in [("PUT", "/x?list&list"), ("put", "/x?list")] {
        let request = Request {
            method,
            target,
            host: "h",
            fields: &[],
            from: FROM,
        };
        match rules.judge(&request, &mut Scratch::default()) {
            Judgement::Refused(refusal) => assert!(refusal.binds(), "{method} {target}"),
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn a_trace_says_which_condition_does_not_hold() {
    let rules = set(vec![with(
        rule("/{a}", "x"),
        Asks {
            hosts: &["store.test"],
            headers: &[("A", ""), ("B", "b")],
            query: &[("q", "")],
        },
    )]);
    let field = |name, value: &'static str| httparse::Header {
        name,
        value: value.as_bytes(),
    };
    let both = [field("A", ""), field("B", "b")];
    for (host, fields, target, wanted) in [
        ("other", &both[..], "/x?q", Tried::OtherHost),
        ("store.test", &both[..1], "/x?q", Tried::OtherHeader(1)),
        ("store.test", &both, "/x", Tried::OtherQuery(0)),
        ("store.test", &both, "/x?q", Tried::Matches),
        ("store.test", &both, "/y/x", Tried::OtherPath),
    ] {
        let request = Request {
            method: "PUT",
            target,
            host,
            fields,
            from: FROM,
        };
        let trace = rules.trace(&request, &mut Scratch::default());
        assert_eq!(trace[0].1, wanted, "{host} {target}");
    }
}

#[test]
fn a_rule_covers_only_what_its_conditions_take() {
    let plain = || rule("/{a}", "x");
    let asks = |hosts, headers, query| {
        with(
            plain(),
            Asks {
                hosts,
                headers,
                query,
            },
        )
    };
    let host = asks(&["*.test"], &[], &[]);
    assert!(!host.covers(&plain()) && plain().covers(&host));
    assert!(host.covers(&asks(&["a.test", "*.b.test"], &[], &[("q", "")])));
    assert!(!host.covers(&asks(&["a.test", "a.org"], &[], &[])));
    assert!(!asks(&["a.test:81"], &[], &[]).covers(&asks(&["a.test"], &[], &[])));
    let header = asks(&[], &[("A", "x*")], &[]);
    assert!(header.covers(&asks(&[], &[("a", "xy"), ("B", "")], &[])));
    assert!(header.covers(&asks(&[], &[("a", "x*")], &[])));
    assert!(!header.covers(&asks(&[], &[("A", "")], &[])));
    assert!(!header.covers(&asks(&[], &[("A", "y")], &[])));
    assert!(!header.covers(&asks(&[], &[("B", "x")], &[])));
    let query = asks(&[], &[], &[("delete", "")]);
    assert!(query.covers(&asks(&[], &[], &[("delete", "1")])));
    assert!(!query.covers(&asks(&[], &[], &[("Delete", "1")])) && !query.covers(&plain()));
    let mut denying = plain();
    (denying.action, denying.fences) = (Action::Deny, [].into());
    assert!(!denying.covers(&plain()), "reads go past it");
}

/// What a backend takes for the value of `kind`, as loose as backends are: each bit is one liberty that it takes.
fn backend_takes(query: &str, backend: u32) -> Option<String> {
    let takes = |bit: u32| backend & (1 << bit) != 0;
    let decode = |text: &str| {
        let mut bytes = Vec::new();
        let mut rest = text.as_bytes();
        while let [first, tail @ ..] = rest {
            let hex = tail.get(..2).and_then(|hex| std::str::from_utf8(hex).ok());
            let byte = hex.and_then(|hex| u8::from_str_radix(hex, 16).ok());
            (match (first, byte) {
                (b'%', Some(byte)) => {
                    bytes.push(byte);
                    rest = &tail[2..];
                }
                (b'+', _) if takes(0) => {
                    bytes.push(b' ');
                    rest = tail;
                }
                (byte, _) => {
                    bytes.push(*byte);
                    rest = tail;
                }
            });
        }
        let mut text = String::from_utf8_lossy(&bytes).into_owned();
        if takes(1) {
            text.truncate(text.find('\0').unwrap_or(text.len()));
            text = text.trim().to_owned();
        }
        if takes(2) {
            text.make_ascii_lowercase();
        }
        text
    };
    let separators: &[char] = if takes(3) { &['&', ';'] } else { &['&'] };
    let fields = query.split(separators).map(|pair| {
        let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
        let key = decode(key);
        let key = match key.split_once('[') {
            Some((stem, _)) if takes(4) => stem.to_owned(),
            _ => key,
        };
        (key, decode(value))
    });
    let mut found = fields.filter(|(key, _)| key == "kind").map(|(_, value)| value);
    if takes(5) { found.next() } else { found.next_back() }
}

/// The promise of this module, against 64 kinds of backends and thousands of odd queries.
#[test]
fn no_backend_reads_another_query_field_than_the_gate() {
    const PARTS: [&str; 22] = [
        "kind", "kind", "kind=", "kind=", "Kind=", "k%69nd=", "kind%00=", "+kind=", "kind[]=", "ab", "ab",
        "AB", "a%62", "%41b", "%00", "%20", "+", "&", "&", ";", "x", "%zz",
    ];
    let rules = two(Asks {
        query: &[("kind", "ab")],
        ..Asks::default()
    });
    let mut seed = 0x9e37_79b9_7f4a_7c15_u64;
    let mut random = |below: usize| {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        usize::try_from(seed % below as u64).unwrap()
    };
    let (mut first, mut second, mut refused) = (0, 0, 0);
    for round in 0..12_000 {
        let mut query = String::from(["", "kind=ab&"][round % 2]);
        for _ in 0..=random(5) {
            query.push_str(PARTS[random(PARTS.len())]);
        }
        let verdict = ask(&rules, "PUT", &format!("/x?{query}"), &[TOKEN]);
        let wanted = match verdict.as_str() {
            "bad-request" => {
                refused += 1;
                continue;
            }
            "first/x=7" => {
                first += 1;
                true
            }
            "second/x=7" => {
                second += 1;
                false
            }
            other => panic!("{query:?}: {other}"),
        };
        for backend in 0..64 {
            let taken = backend_takes(&query, backend);
            let holds = taken.as_deref() == Some("ab");
            assert_eq!(holds, wanted, "{query:?}: backend {backend} takes {taken:?}");
        }
    }
    assert!(
        first > 500 && second > 2_000 && refused > 2_000,
        "{first} {second} {refused}"
    );
}
