//! A write that touches a second place: fences with `path_from`.

use super::{ask, fence, rule, set};
use crate::base::TokenFormat;
use crate::rules::{Missing, Pattern, Policy, Rule, RuleSet};

/// `rename` of the documents: the share of the target and that of the destination.
fn rename(pattern: &str, first: &str, second: &str, field: &str) -> Rule {
    let mut both = rule(pattern, first);
    let path = Pattern::parse(pattern).unwrap();
    let mut there = fence(second, "Fencing-Token", TokenFormat::Integer, &path);
    there.path_from = Some(field.into());
    both.fences = [both.fences[0].clone(), there].into();
    both
}

fn shares() -> RuleSet {
    let mut moves = rename(
        "/{share}/{*rest}",
        "share/{share}",
        "share/{share}",
        "Destination",
    );
    moves.methods = Some(["MOVE".into(), "COPY".into()].into());
    set(vec![
        rule("/locked/{*rest}", "locked"),
        moves,
        rule("/{share}/{*rest}", "share/{share}"),
    ])
}

fn moved(rules: &RuleSet, target: &str, destinations: &[&str]) -> String {
    let mut fields = vec![("Fencing-Token", "7")];
    fields.extend(destinations.iter().map(|value| ("destination", *value)));
    ask(rules, "MOVE", target, &fields)
}

#[test]
fn a_move_claims_both_its_places() {
    let rules = shares();
    for (destination, verdict) in [
        ("/b/k", "share/a=7 share/b=7"),
        ("http://store.test.:8080/b/k", "share/a=7 share/b=7"),
        ("HTTP://STORE.test:8080/%62/k/", "share/a=7 share/b=7"),
        ("/a/l", "share/a=7"),
        // Another rule's, or no rule's.
        ("/locked/k", "unmatched-write"),
        ("/b", "unmatched-write"),
        ("/", "unmatched-write"),
        // What the backend could read differently.
        ("/b/../locked/k", "ambiguous-path"),
        ("/b//k", "ambiguous-path"),
        ("/b;x/k", "ambiguous-path"),
        ("http://other.test/b/k", "ambiguous-path"),
        ("http://store.test/b/k", "ambiguous-path"),
        ("http://store.test:8080", "ambiguous-path"),
        ("b/k", "ambiguous-path"),
        ("", "ambiguous-path"),
    ] {
        assert_eq!(moved(&rules, "/a/k", &[destination]), verdict, "{destination}");
    }
    assert_eq!(moved(&rules, "/a/k", &[]), "bad-request");
    assert_eq!(moved(&rules, "/a/k", &["/b/k", "/b/k"]), "ambiguous-path");
    // It falls under the first rule, whose only place is the target's.
    assert_eq!(moved(&rules, "/locked/k", &["/b/k"]), "unmatched-write");
    assert_eq!(moved(&rules, "/locked/k", &["/locked/l"]), "locked=7");
    let gone = [
        ("Fencing-Token", "7"),
        ("Destination", "/b/k"),
        ("Connection", "destination"),
    ];
    assert_eq!(ask(&rules, "MOVE", "/a/k", &gone), "bad-request");
}

#[test]
fn a_second_place_is_fenced_even_where_unmatched_writes_pass() {
    let mut rules = shares();
    rules.unmatched.writes = Policy::Pass;
    assert_eq!(moved(&rules, "/a/k", &["/b"]), "unmatched-write");
    assert_eq!(moved(&rules, "/b", &["/a/k"]), "unmatched-write");
    assert_eq!(moved(&rules, "/b", &["/c"]), "pass");
}

#[test]
fn a_read_has_no_second_place() {
    let mut moves = rename(
        "/{share}/{*rest}",
        "share/{share}",
        "share/{share}",
        "Destination",
    );
    let rules = set(vec![rename(
        "/{share}/{*rest}",
        "share/{share}",
        "share/{share}",
        "Destination",
    )]);
    let token = [("Fencing-Token", "7")];
    assert_eq!(ask(&rules, "GET", "/a/k", &token), "read share/a=7");
    assert_eq!(ask(&rules, "GET", "/a/k", &[]), "pass");
    moves.fences = [moves.fences[1].clone()].into();
    let next = rule("/{share}/{*rest}", "share/{share}");
    assert!(!moves.covers(&next));
    let rules = set(vec![moves, next]);
    let read = ask(&rules, "GET", "/a/k", &token);
    assert_eq!(read, "read share/a=7", "the next rule compares it");
    assert_eq!(
        moved(&rules, "/a/k", &["/b/k"]),
        "share/b=7",
        "a copy reads its target"
    );
}

#[test]
fn whatever_the_target_would_be_named_by_is_claimed_at_the_second_place_too() {
    let mut rule = rename(
        "/{share}/{dir}/{*rest}",
        "share/{share}",
        "share/{share}",
        "Destination",
    );
    let path = Pattern::parse("/{share}/{dir}/{*rest}").unwrap();
    let dir = fence("dir/{dir}", "Dir-Token", TokenFormat::Integer, &path);
    rule.fences = [rule.fences[0].clone(), dir, rule.fences[1].clone()].into();
    rule.missing = Missing::Pass;
    let rules = set(vec![rule]);
    assert_eq!(
        moved(&rules, "/a/d/k", &["/b/d/k"]),
        "share/a=7 dir/d=none share/b=7"
    );
    assert_eq!(moved(&rules, "/a/d/k", &["/b/e/k"]), "unmatched-write");
}

#[test]
fn another_field_may_name_the_second_place() {
    let rules = set(vec![rename(
        "/{share}/{*rest}",
        "share/{share}",
        "share/{share}",
        "X-Copy-To",
    )]);
    let to = |fields: &[(&str, &str)]| {
        let all = [&[("Fencing-Token", "7")][..], fields].concat();
        ask(&rules, "PUT", "/a/k", &all)
    };
    assert_eq!(to(&[("x-copy-to", "/b/k")]), "share/a=7 share/b=7");
    assert_eq!(to(&[("X_Copy_To", "/b/k")]), "ambiguous-path");
    assert_eq!(
        to(&[("X-Copy-To", "/b/k"), ("X_Copy_To", "/c/k")]),
        "ambiguous-path"
    );
    assert_eq!(to(&[]), "bad-request");
    // A Destination is looked at all the same.
    assert_eq!(
        to(&[("X-Copy-To", "/b/k"), ("Destination", "/c/k")]),
        "unmatched-write"
    );
    assert_eq!(
        to(&[("X-Copy-To", "/b/k"), ("Destination", "/b/l")]),
        "share/a=7 share/b=7"
    );
}
