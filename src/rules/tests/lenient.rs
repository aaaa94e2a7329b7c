//! `paths: lenient`: empty segments and encoded slashes pass where no rule looks, and nowhere else.

use super::{ask, backend_reads, put, rule, set};
use crate::rules::{Paths, Policy, RuleSet};

fn lenient(patterns: &[(&str, &str)]) -> RuleSet {
    let mut rules = set(patterns.iter().map(|(path, name)| rule(path, name)).collect());
    rules.paths = Paths::Lenient;
    rules
}

#[test]
fn what_no_name_is_made_of_may_be_read_in_several_ways() {
    let rules = lenient(&[
        ("/locks/{name}", "lock/{name}"),
        ("/{bucket}/{*key}", "bucket/{bucket}"),
    ]);
    for (target, verdict) in [
        ("/b/k", "bucket/b=7"),
        ("/b/a//b%2Fc", "bucket/b=7"),
        ("/b//k", "bucket/b=7"),
        ("/b/k//", "bucket/b=7"),
        ("/b/%2Fk", "bucket/b=7"),
        ("/b/k%2f", "bucket/b=7"),
        ("/%62/a%2F%2Fb", "bucket/b=7"),
        ("/b/a%2Fb;v=1", "bucket/b=7"),
        // The segments that a rule looks at.
        ("//b/k", "ambiguous-path"),
        ("/b%2Fk", "ambiguous-path"),
        ("/b%2Fk/l", "ambiguous-path"),
        ("/locks//a", "ambiguous-path"),
        ("/locks/a%2Fb", "ambiguous-path"),
        ("/locks/a//", "ambiguous-path"),
        ("/b;x//k", "ambiguous-path"),
        // Nothing is left of the key where slashes are collapsed.
        ("/b//", "ambiguous-path"),
        ("/b/%2F", "ambiguous-path"),
        // Refused as ever.
        ("/b/a//../k", "ambiguous-path"),
        ("/b/a%2F..%2Fk", "ambiguous-path"),
        ("/b/a%2F%2e%2e", "ambiguous-path"),
        ("/b/%2F./k", "ambiguous-path"),
        ("/b/a//;x/k", "ambiguous-path"),
        ("/b/a%2F;x", "ambiguous-path"),
        ("/b//k%5C", "ambiguous-path"),
        ("/b//k\\l", "ambiguous-path"),
        ("/b//k%00", "ambiguous-path"),
        ("/b//%zz", "ambiguous-path"),
        ("/b//%FF", "ambiguous-path"),
        ("/b/../c//k", "ambiguous-path"),
    ] {
        assert_eq!(put(&rules, target), verdict, "{target}");
    }
    let named = lenient(&[("/{bucket}/{*key}", "object/{bucket}/{key}")]);
    assert_eq!(put(&named, "/b/k/l"), "object/b/k/l=7");
    for target in ["/b/k//l", "/b/k%2Fl"] {
        assert_eq!(put(&named, target), "ambiguous-path", "{target}");
    }
    let any = {
        let mut any = rule("/{*all}", "all");
        any.path = crate::rules::Pattern::any();
        let mut rules = set(vec![any]);
        rules.paths = Paths::Lenient;
        rules
    };
    assert_eq!(put(&any, "/a%2Fb//"), "all=7");
}

#[test]
fn a_rule_that_no_reading_fits_is_passed_by() {
    let mut rules = lenient(&[("/locks/{name}", "lock/{name}")]);
    rules.unmatched.writes = Policy::Pass;
    for (target, verdict) in [
        ("/free//x", "pass"),
        ("/free%2Fx", "ambiguous-path"),
        ("/locks/a/b//c", "pass"),
        ("/locks//a/b", "pass"),
        ("/locks//a", "ambiguous-path"),
        ("//x", "ambiguous-path"),
        ("//host/locks/x", "ambiguous-path"),
        ("/%2fhost/a/b/c", "ambiguous-path"),
    ] {
        assert_eq!(put(&rules, target), verdict, "{target}");
    }
    assert_eq!(ask(&rules, "GET", "/free//x", &[]), "pass");
    assert_eq!(ask(&rules, "GET", "/locks//x", &[]), "ambiguous-path");
}

#[test]
fn a_destination_is_read_as_leniently() {
    let rules = lenient(&[("/{bucket}/{*key}", "bucket/{bucket}")]);
    for (destination, verdict) in [
        ("/b/x//y", "bucket/b=7"),
        ("/b//y", "bucket/b=7"),
        ("//b/y", "ambiguous-path"),
        ("/c//y", "unmatched-write"),
    ] {
        let fields = [("Fencing-Token", "7"), ("Destination", destination)];
        assert_eq!(ask(&rules, "MOVE", "/b//k", &fields), verdict, "{destination}");
    }
}

/// The promise of `path.rs`, against 32 kinds of backends: under a name goes only what all of them read under it,
/// and unfenced only what none of them takes for a fenced place.
#[test]
fn no_backend_reads_a_lenient_path_into_another_place() {
    const PARTS: [&str; 18] = [
        "/", "/", "//", "a", "b", "locked", "%2F", "%2f", ".", "..", "%2e", ";", "%3b", "%61", "%6Cocked",
        "%5C", "/a", "/k",
    ];
    let mut rules = lenient(&[("/locked/{key}/{*rest}", "locked/{key}")]);
    rules.unmatched.writes = Policy::Pass;
    let mut seed = 0x2545_f491_4f6c_dd1d_u64;
    let mut random = |below: usize| {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        usize::try_from(seed % below as u64).unwrap()
    };
    let (mut fenced, mut loose, mut passed) = (0, 0, 0);
    for round in 0..60_000 {
        let mut path = String::from(["/", "/locked/", "/locked/a/"][round % 3]);
        for _ in 0..=random(6) {
            path.push_str(PARTS[random(PARTS.len())]);
        }
        match put(&rules, &path).as_str() {
            "ambiguous-path" => {}
            "pass" => {
                passed += 1;
                for kind in 0..32 {
                    let read = backend_reads(&path, kind);
                    let fenced = read.len() > 2 && read[0] == "locked";
                    assert!(!fenced, "{path:?} passes, and backend {kind} reads {read:?}");
                }
            }
            named => {
                fenced += 1;
                loose += usize::from(path.contains("//") || path.contains("%2F"));
                for kind in 0..32 {
                    let read = backend_reads(&path, kind);
                    let there = read.len() > 2 && format!("{}/{}=7", read[0], read[1]) == named;
                    assert!(there, "{path:?} is {named}, and backend {kind} reads {read:?}");
                }
            }
        }
    }
    assert!(
        fenced > 1_000 && loose > 1_000 && passed > 1_000,
        "{fenced} {loose} {passed}"
    );
}
