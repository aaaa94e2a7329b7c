//! Where tokens come from: one of several header fields, a query field, a cookie, a part of a longer value.

use super::{ask, rule, set};
use crate::rules::{Carrier, RuleSet, TokenPattern, TokenSource};

fn from(carrier: Carrier, pattern: Option<&str>) -> RuleSet {
    let mut one = rule("/orders/{id}", "orders/{id}");
    one.fences[0].token = TokenSource {
        carrier,
        pattern: pattern.map(|text| TokenPattern::parse(text).unwrap()),
    };
    set(vec![one])
}

fn header(names: &[&str]) -> Carrier {
    Carrier::Header(names.iter().map(|name| (*name).into()).collect())
}

fn put(rules: &RuleSet, target: &str, fields: &[(&str, &str)]) -> String {
    ask(rules, "PUT", target, fields)
}

#[test]
fn one_of_several_header_fields_may_come_and_no_two() {
    let rules = from(header(&["Fencing-Token", "X-Epoch"]), None);
    for (fields, verdict) in [
        (&[("x-epoch", "7")][..], "orders/1=7"),
        (&[("Fencing-Token", "7")], "orders/1=7"),
        (&[], "missing-token"),
        (&[("X-Epoch", "7"), ("Fencing-Token", "7")], "malformed-token"),
        (&[("X-Epoch", "7"), ("X-Epoch", "7")], "malformed-token"),
        (&[("X-Epoch", ""), ("Fencing-Token", "7")], "malformed-token"),
        (&[("X-Epoch", "7"), ("Connection", "x-EPOCH")], "bad-request"),
    ] {
        assert_eq!(put(&rules, "/orders/1", fields), verdict, "{fields:?}");
    }
    assert!(rules.reads_header("x-epoch") && rules.reads_header("fencing-token"));
}

#[test]
fn a_token_in_the_query_is_one_field_of_its_exact_name() {
    let rules = from(Carrier::Query("fence".into()), None);
    for (query, verdict) in [
        ("fence=7", "orders/1=7"),
        ("a=%zz&fence=7&b;c", "orders/1=7"),
        ("f%65nce=%37", "orders/1=7"),
        ("fence=%207", "orders/1=7"),
        ("Fence=7", "missing-token"),
        ("fence[]=7", "missing-token"),
        ("a=fence=7", "missing-token"),
        ("", "missing-token"),
        ("fence", "malformed-token"),
        ("fence=", "malformed-token"),
        ("fence=07", "malformed-token"),
        ("fence=+7", "malformed-token"),
        ("fence=%zz", "malformed-token"),
        ("fence=7&fence=7", "malformed-token"),
        ("fence=7&f%65nce=8", "malformed-token"),
        ("fence=7;a", "malformed-token"),
        ("a;fence=7", "malformed-token"),
    ] {
        assert_eq!(
            put(&rules, &format!("/orders/1?{query}"), &[]),
            verdict,
            "{query}"
        );
    }
    assert_eq!(ask(&rules, "GET", "/orders/1?fence=7", &[]), "read orders/1=7");
    assert_eq!(ask(&rules, "GET", "/orders/1?x=7", &[]), "pass");
    assert_eq!(ask(&rules, "GET", "/free//x?fence=7", &[]), "ambiguous-path");
    assert_eq!(ask(&rules, "GET", "/free//x?x=7", &[]), "pass");
}

#[test]
fn a_token_in_a_cookie_is_one_of_its_exact_name_in_all_cookie_fields() {
    let rules = from(Carrier::Cookie("fence".into()), None);
    for (cookies, verdict) in [
        (&["fence=7"][..], "orders/1=7"),
        (&["a=1; fence=7;b", "c=2"], "orders/1=7"),
        (&["a=1", " fence = 7 "], "orders/1=7"),
        (&["Fence=7; xfence=8; fence8; a=fence=9"], "missing-token"),
        (&[], "missing-token"),
        (&["fence="], "malformed-token"),
        (&["fence=\"7\""], "malformed-token"),
        (&["fence=7; fence=7"], "malformed-token"),
        (&["fence=7", "fence=7"], "malformed-token"),
        (&["fence=7=8"], "malformed-token"),
    ] {
        let fields: Vec<_> = cookies.iter().map(|value| ("cookie", *value)).collect();
        assert_eq!(put(&rules, "/orders/1", &fields), verdict, "{cookies:?}");
    }
    let named = [("Cookie", "fence=7"), ("Connection", "cookie")];
    assert_eq!(put(&rules, "/orders/1", &named), "bad-request");
    assert!(rules.reads_header("COOKIE"));
    // Another cookie is no token: what a browser sends with every read stays what it was.
    assert_eq!(ask(&rules, "GET", "/free//x", &[("Cookie", "a=1")]), "pass");
    assert_eq!(
        ask(&rules, "GET", "/free//x", &[("Cookie", "fence=1")]),
        "ambiguous-path"
    );
}

#[test]
fn a_pattern_takes_the_token_out_of_a_longer_value() {
    let rules = from(header(&["User-Agent"]), Some(r"app/fencing-token\.(\d+)"));
    for (fields, verdict) in [
        (
            &[("User-Agent", "aws-cli/2.0 app/fencing-token.34 x")][..],
            "orders/1=34",
        ),
        (&[("user-agent", "app/fencing-token.7")], "orders/1=7"),
        (&[("User-Agent", "aws-cli/2.0")], "missing-token"),
        (&[], "missing-token"),
        (
            &[("User-Agent", "app/fencing-token.7 app/fencing-token.7")],
            "malformed-token",
        ),
        (
            &[("User-Agent", "app/fencing-token.99999999999999999999")],
            "malformed-token",
        ),
        (&[("User-Agent", "app/fencing-token.07")], "malformed-token"),
        (
            &[("User-Agent", "app/fencing-token.7"), ("User-Agent", "x")],
            "malformed-token",
        ),
        (
            &[
                ("User-Agent", "app/fencing-token.7"),
                ("Connection", "user-agent"),
            ],
            "bad-request",
        ),
    ] {
        assert_eq!(put(&rules, "/orders/1", fields), verdict, "{fields:?}");
    }
    assert_eq!(
        ask(&rules, "GET", "/free//x", &[("User-Agent", "curl/8")]),
        "pass"
    );
    let optional = from(header(&["T"]), Some(r"token(?:=(\d+))?"));
    assert_eq!(put(&optional, "/orders/1", &[("T", "token")]), "malformed-token");
    let query = from(Carrier::Query("t".into()), Some(r"^v1-(\d+)$"));
    assert_eq!(put(&query, "/orders/1?t=v1%2D7", &[]), "orders/1=7");
    let cookie = from(Carrier::Cookie("t".into()), Some(r"^v1-(\d+)$"));
    assert_eq!(put(&cookie, "/orders/1", &[("Cookie", "t=v1-7")]), "orders/1=7");
}

#[test]
fn an_expression_has_exactly_one_group() {
    for bad in ["", r"\d+", r"(\d+)-(\d+)", "(", r"(\d+", "[", r"(?P<a>x)(y)"] {
        let error = TokenPattern::parse(bad).unwrap_err();
        assert!(!error.contains('\n'), "{error}");
    }
    for good in [r"(\d+)", r"a(?:b|c)=(\d+)", r"(?P<token>[0-9a-f]+)"] {
        assert!(TokenPattern::parse(good).is_ok(), "{good}");
    }
}
