//! Which rule, which resource, which token: for commands as servers describe them.

use std::time::Duration;

use super::*;
use crate::base::{Reason, Token};
use crate::rules::{Policy, Sender};

fn pattern(text: &str) -> KeyPattern {
    KeyPattern::parse(text).unwrap()
}

fn rule(keys: Option<&str>, resource: &str) -> RedisRule {
    let keys = keys.map(pattern);
    RedisRule {
        name: resource.into(),
        index: 0,
        fences: [RedisFence {
            resource: KeyTemplate::parse(resource, keys.as_ref()).unwrap(),
            pattern: None,
            format: TokenFormat::Integer,
            max_step: None,
            slot: 0,
        }]
        .into(),
        keys,
        commands: None,
        undeclared_keys: false,
        action: Action::Fence,
        allow: None,
        missing: Missing::Deny,
        mode: Mode::Enforce,
        reads: Reads::Raise,
        drain_timeout: Duration::from_secs(1),
        fold_case: false,
    }
}

fn rules(rules: Vec<RedisRule>) -> RedisRules {
    let mut slot = 0;
    let rules = rules.into_iter().enumerate().map(|(index, mut rule)| {
        rule.index = index;
        for fence in &mut rule.fences {
            fence.slot = slot;
            slot += 1;
        }
        rule
    });
    RedisRules {
        rules: rules.collect(),
        unmatched: Unmatched {
            reads: Policy::Pass,
            writes: Policy::Deny,
        },
    }
}

/// Judges a command for a connection with this token; gives the verdict and the names.
fn judged(
    rules: &RedisRules,
    name: &str,
    keys: &[(&str, bool)],
    token: Option<&str>,
) -> (Verdict, Vec<String>) {
    let mut identity = Identity::default();
    if let Some(token) = token {
        identity.apply(&rules.read_token(Carrier::Fence, token.as_bytes()).unwrap());
    }
    let act = Act {
        name,
        write: keys.is_empty() || keys.iter().any(|(_, write)| *write),
        undeclared: name == "eval",
        identity: &identity,
        from: Sender::at([127, 0, 0, 1].into()),
    };
    let mut notes = Notes::default();
    let keys = keys.iter().map(|(name, write)| Key {
        name: name.as_bytes(),
        write: *write,
    });
    let verdict = rules.judge(&act, keys, &mut notes);
    let names = notes.claims().map(|claim| claim.resource.to_owned()).collect();
    (verdict, names)
}

fn reason(verdict: Verdict) -> Option<Reason> {
    match verdict {
        Verdict::Refused(denial) => Some(denial.reason),
        Verdict::Pass | Verdict::Fenced => None,
    }
}

#[test]
fn a_capture_takes_everything_up_to_the_next_colon() {
    let orders = rules(vec![rule(Some("orders:{id}*"), "orders/{id}")]);
    for (key, name) in [
        ("orders:1", Some("orders/1")),
        ("orders:1:items:7", Some("orders/1")),
        ("orders:a/b{c}", Some("orders/a/b{c}")),
        ("orders:", None),
        ("orders::x", None),
        ("order:1", None),
        ("orders", None),
        ("", None),
    ] {
        let (verdict, names) = judged(&orders, "set", &[(key, true)], Some("3"));
        match name {
            Some(name) => assert_eq!(
                (verdict, &*names),
                (Verdict::Fenced, &[name.to_owned()][..]),
                "{key}"
            ),
            None => assert_eq!(reason(verdict), Some(Reason::UnmatchedWrite), "{key}"),
        }
    }
    let exact = pattern("a:{x}:b:{y}");
    let mut captured = Default::default();
    assert!(exact.take(b"a:1:b:2", &mut captured) && !exact.take(b"a:1:b:2:c", &mut captured));
    assert!(pattern("{{tag}}:*").take(b"{tag}:", &mut captured));
    for bad in ["", "a*b", "a{b}c", "a{", "a}", "{a}{b}", "{a}:{a}", "{}", "{a b}"] {
        assert!(KeyPattern::parse(bad).is_err(), "{bad}");
    }
}

#[test]
fn one_unmatched_written_key_refuses_the_command_and_a_read_one_does_not() {
    let orders = rules(vec![rule(Some("orders:{id}*"), "orders/{id}")]);
    let (verdict, _) = judged(&orders, "mset", &[("orders:1", true), ("x", true)], Some("3"));
    assert_eq!(reason(verdict), Some(Reason::UnmatchedWrite));
    let (verdict, names) = judged(&orders, "copy", &[("x", false), ("orders:1", true)], Some("3"));
    assert_eq!((verdict, names.len()), (Verdict::Fenced, 1));
    let (verdict, names) = judged(&orders, "get", &[("orders:1", false)], None);
    assert_eq!(
        (verdict, names.len()),
        (Verdict::Pass, 0),
        "a read without a token"
    );
    let (verdict, names) = judged(&orders, "get", &[("orders:1", false)], Some("3"));
    assert_eq!((verdict, names.len()), (Verdict::Fenced, 1));
}

#[test]
fn a_resource_named_twice_counts_once() {
    let orders = rules(vec![rule(Some("orders:{id}*"), "orders/{id}")]);
    let keys = [("orders:1:a", true), ("orders:2", true), ("orders:1:b", true)];
    let (verdict, mut names) = judged(&orders, "mset", &keys, Some("3"));
    names.sort();
    assert_eq!(
        (verdict, names.join(" ")),
        (Verdict::Fenced, "orders/1 orders/2".into())
    );
}

#[test]
fn without_a_token_the_rule_says_what_happens() {
    let with = |missing| {
        rules(vec![RedisRule {
            missing,
            ..rule(Some("*"), "all")
        }])
    };
    let (verdict, _) = judged(&with(Missing::Deny), "set", &[("k", true)], None);
    assert_eq!(reason(verdict), Some(Reason::MissingToken));
    let (verdict, names) = judged(&with(Missing::Pass), "set", &[("k", true)], None);
    assert_eq!(
        (verdict, names.len()),
        (Verdict::Fenced, 1),
        "older than every token"
    );
}

#[test]
fn keyless_writes_need_a_rule_that_names_them() {
    let flush = RedisRule {
        commands: Some([Box::from("flushall"), Box::from("function")].into()),
        ..rule(None, "all")
    };
    let set = rules(vec![rule(Some("*"), "any"), flush]);
    for (name, ok) in [
        ("flushall", true),
        ("function load", true),
        ("swapdb", false),
        ("eval", false),
    ] {
        let (verdict, _) = judged(&set, name, &[], Some("3"));
        assert_eq!(verdict == Verdict::Fenced, ok, "{name}");
    }
    let scripts = RedisRule {
        undeclared_keys: true,
        ..rule(None, "scripts")
    };
    let set = rules(vec![scripts]);
    assert_eq!(judged(&set, "eval", &[], Some("3")).1, ["scripts"]);
    assert_eq!(
        reason(judged(&set, "flushall", &[], Some("3")).0),
        Some(Reason::UnmatchedWrite)
    );
    assert_eq!(
        reason(judged(&set, "set", &[("k", true)], Some("3")).0),
        Some(Reason::UnmatchedWrite)
    );
}

#[test]
fn a_rule_that_denies_lets_reads_by() {
    let deny = RedisRule {
        action: Action::Deny,
        fences: Box::default(),
        ..rule(Some("conf:*"), "x")
    };
    let set = rules(vec![deny, rule(Some("*"), "all")]);
    let (verdict, _) = judged(&set, "set", &[("conf:a", true)], Some("3"));
    assert_eq!(reason(verdict), Some(Reason::UnmatchedWrite));
    assert_eq!(judged(&set, "get", &[("conf:a", false)], Some("3")).1, ["all"]);
}

#[test]
fn observing_refuses_nothing_and_claims_apart() {
    let observing = RedisRule {
        mode: Mode::Observe,
        ..rule(Some("a*"), "a")
    };
    let set = rules(vec![observing, rule(Some("b*"), "b")]);
    let (verdict, _) = judged(&set, "set", &[("a", true)], None);
    assert_eq!(verdict, Verdict::Pass);
    let (verdict, names) = judged(&set, "mset", &[("a", true), ("b", true)], Some("1"));
    assert_eq!((verdict, names.len()), (Verdict::Fenced, 2));
}

#[test]
fn the_latest_token_counts_and_a_name_without_one_takes_a_names_back() {
    let set = rules(vec![rule(Some("*"), "all")]);
    let token = |n| Token(n);
    let mut identity = Identity::default();
    let tell = |identity: &mut Identity, carrier, text: &str| {
        set.read_token(carrier, text.as_bytes())
            .map(|change| identity.apply(&change))
    };
    tell(&mut identity, Carrier::Name, "app;fencing-token=33").unwrap();
    assert_eq!(identity.presents(0), Presented::Token(token(33), Carrier::Name));
    tell(&mut identity, Carrier::Fence, "34").unwrap();
    tell(&mut identity, Carrier::Name, "app").unwrap();
    assert_eq!(identity.presents(0), Presented::Token(token(34), Carrier::Fence));
    tell(&mut identity, Carrier::Name, "fencing-token=35,x").unwrap();
    tell(&mut identity, Carrier::User, "fencing-token=36").unwrap();
    assert_eq!(
        identity.presents(0),
        Presented::Token(token(35), Carrier::Name),
        "a user counts by a pattern only"
    );
    tell(&mut identity, Carrier::Name, "app").unwrap();
    assert_eq!(identity.presents(0), Presented::Nothing);
    for bad in [
        "fencing-token=",
        "fencing-token=x",
        "fencing-token=1 fencing-token=2",
        "a-fencing-token=01",
    ] {
        assert_eq!(tell(&mut identity, Carrier::Name, bad), Err(NoToken), "{bad}");
    }
    assert!(tell(&mut identity, Carrier::Name, "xfencing-token=1").is_ok());
    assert_eq!(identity.presents(0), Presented::Nothing);
}

fn spec(begin: Begin, find: Find, access: Access) -> KeySpec {
    KeySpec {
        begin,
        find,
        access,
        incomplete: false,
    }
}

fn range(last: i64, step: i64, limit: i64) -> Find {
    Find::Range { last, step, limit }
}

fn command(name: &str, flags: Flags, specs: Vec<KeySpec>) -> Command {
    Command {
        name: name.into(),
        flags,
        specs: specs.into(),
        ..Command::default()
    }
}

const WRITE: Flags = Flags {
    write: true,
    readonly: false,
    blocking: false,
    movable: false,
};
const READ: Flags = Flags {
    write: false,
    readonly: true,
    ..WRITE
};
const NEITHER: Flags = Flags {
    write: false,
    ..WRITE
};

fn places(command: &Command, text: &str) -> Option<Vec<(usize, Access)>> {
    let words: Vec<&[u8]> = text.split(' ').map(str::as_bytes).collect();
    match command.touched(&words, words.len()) {
        Touched::Keys(keys) => Some(keys.into_vec()),
        Touched::Unclear => None,
        Touched::Later => panic!("all words are there"),
    }
}

#[test]
fn keys_are_found_where_the_server_says_they_stand() {
    use Access::{Read, Write};
    let mset = command("mset", WRITE, vec![spec(Begin::Index(1), range(-1, 2, 0), Write)]);
    assert_eq!(places(&mset, "MSET a 1 b 2"), Some(vec![(1, Write), (3, Write)]));
    let copy = command(
        "copy",
        WRITE,
        vec![
            spec(Begin::Index(1), range(0, 1, 0), Read),
            spec(Begin::Index(2), range(0, 1, 0), Write),
        ],
    );
    assert_eq!(places(&copy, "COPY a b"), Some(vec![(1, Read), (2, Write)]));
    let streams = Begin::Keyword(b"STREAMS".as_slice().into(), 4);
    let group = command("xreadgroup", WRITE, vec![spec(streams, range(-1, 1, 2), Write)]);
    assert_eq!(
        places(&group, "XREADGROUP GROUP g c streams a b 0 0"),
        Some(vec![(5, Write), (6, Write)])
    );
    let counted = Find::Count {
        count_at: 0,
        first: 1,
        step: 1,
    };
    let eval = command("eval", NEITHER, vec![spec(Begin::Index(2), counted, Write)]);
    assert!(eval.writes() && eval.is_script());
    assert_eq!(
        places(&eval, "EVAL s 2 a b x"),
        Some(vec![(3, Write), (4, Write)])
    );
    assert_eq!(places(&eval, "EVAL s 0 x"), Some(vec![]));
    for bad in [
        "EVAL s -1 a",
        "EVAL s 3 a b",
        "EVAL s x",
        "EVAL s",
        "EVAL s 99999999999999999999",
    ] {
        assert_eq!(places(&eval, bad), None, "{bad}");
    }
    let renamed = command("run", NEITHER, eval.specs.to_vec());
    assert!(renamed.writes() && renamed.is_script());
    let pfcount = command(
        "pfcount",
        READ,
        vec![spec(Begin::Index(1), range(-1, 1, 0), Write)],
    );
    assert!(!pfcount.writes());
    assert_eq!(places(&pfcount, "PFCOUNT a"), Some(vec![(1, Read)]));
    let publish = command("publish", NEITHER, vec![]);
    assert!(!publish.writes());
    assert_eq!(places(&publish, "PUBLISH c m"), Some(vec![]));
    let unknown = spec(Begin::Unknown, Find::Unknown, Write);
    let sort = command(
        "sort",
        WRITE,
        vec![spec(Begin::Index(1), range(0, 1, 0), Read), unknown],
    );
    assert_eq!(places(&sort, "SORT a STORE b"), None);
}

#[test]
fn earlier_servers_have_all_named_keys_taken_as_written() {
    let earlier = |name: &str, flags, range, movable| Command {
        range,
        flags: Flags { movable, ..flags },
        ..command(name, flags, vec![])
    };
    let set = earlier("set", WRITE, (1, 1, 1), false);
    assert_eq!(places(&set, "SET a x"), Some(vec![(1, Access::Write)]));
    let blpop = earlier("blpop", WRITE, (1, -2, 1), false);
    assert_eq!(places(&blpop, "BLPOP a b 0").map(|keys| keys.len()), Some(2));
    assert_eq!(
        places(
            &earlier("zunionstore", WRITE, (1, 1, 1), true),
            "ZUNIONSTORE a 1 b"
        ),
        None
    );
    let eval = earlier("eval", NEITHER, (0, 0, 0), true);
    assert_eq!(places(&eval, "EVAL s 1 a"), Some(vec![(3, Access::Write)]));
    assert!(!earlier("watch", NEITHER, (1, -1, 1), false).writes());
    assert!(earlier("custom", NEITHER, (1, 1, 1), false).writes());
}

#[test]
fn a_large_value_hides_no_key_that_stands_behind_it() {
    let set = command(
        "set",
        WRITE,
        vec![spec(Begin::Index(1), range(0, 1, 0), Access::Write)],
    );
    let mset = command(
        "mset",
        WRITE,
        vec![spec(Begin::Index(1), range(-1, 2, 0), Access::Write)],
    );
    let words: [&[u8]; 2] = [b"X", b"a"];
    assert!(matches!(set.touched(&words, 3), Touched::Keys(keys) if keys.len() == 1));
    assert_eq!(mset.touched(&words, 5), Touched::Later);
    assert!(matches!(mset.touched(&words, 3), Touched::Keys(keys) if keys.len() == 1));
}

#[test]
fn what_all_calls_have_in_common_is_what_each_of_them_has() {
    use Access::{None as Nothing, Read, Write};
    let counted = Find::Count {
        count_at: 0,
        first: 1,
        step: 1,
    };
    let begins = [Begin::Index(1), Begin::Index(2), Begin::Index(0), Begin::Unknown];
    let begins = begins
        .into_iter()
        .chain([Begin::Keyword(b"K".as_slice().into(), 1)]);
    let finds = [range(0, 1, 0), range(0, 0, 0), range(1, 1, 0), range(-1, 1, 0)];
    let finds = finds.into_iter().chain([range(-1, 1, 2), counted, Find::Unknown]);
    let mut commands = Vec::new();
    for (begin, find) in begins.flat_map(|begin| finds.clone().map(move |find| (begin.clone(), find))) {
        for access in [Read, Write, Nothing] {
            for incomplete in [false, true] {
                let spec = KeySpec {
                    incomplete,
                    ..spec(begin.clone(), find, access)
                };
                commands.push(vec![spec]);
            }
        }
    }
    commands.push(vec![spec(Begin::Index(1), range(0, 1, 0), Write); 2]);
    let mut commands: Vec<Command> = commands
        .into_iter()
        .flat_map(|specs| [WRITE, READ, NEITHER].map(|flags| command("get", flags, specs.clone())))
        .collect();
    for range in [
        (1, 1, 1),
        (0, 0, 0),
        (1, -1, 1),
        (2, 2, 1),
        (1, 1, 0),
        (-1, -1, 1),
    ] {
        for (name, movable) in [("set", false), ("set", true), ("watch", false), ("eval", false)] {
            let flags = Flags { movable, ..NEITHER };
            commands.push(Command {
                range,
                ..command(name, flags, vec![])
            });
        }
    }
    let words: [&[u8]; 6] = [b"X", b"2", b"K", b"1", b"K", b"c"];
    let (mut usual, mut other) = (0, 0);
    for command in commands {
        let Some(one) = command.one_key() else {
            other += 1;
            continue;
        };
        usual += 1;
        assert_eq!(one.write, command.writes(), "{command:?}");
        for count in one.key + 1..=words.len() {
            let access = if one.changes { Write } else { Read };
            let Touched::Keys(keys) = command.touched(&words[..count], count) else {
                panic!("{command:?}: its key can't be told");
            };
            let keys = keys
                .iter()
                .map(|(at, access)| (*at, command.writes() && *access == Write));
            assert_eq!(
                keys.collect::<Vec<_>>(),
                [(one.key, access == Write)],
                "{command:?}"
            );
        }
    }
    assert!(usual >= 20 && other >= 400, "{usual} {other}");
}

#[test]
fn no_command_is_taken_for_one_with_a_similar_name() {
    let mut table = Table::default();
    let names = ["get", "getset", "get8byte", "get9bytes", "a.very.long.name"];
    names
        .iter()
        .for_each(|name| table.add(command(name, READ, vec![])));
    assert_eq!(table.len(), names.len());
    for name in names {
        let found = table.find(name.to_ascii_uppercase().as_bytes(), None);
        assert_eq!(found.map(|command| &*command.name), Some(name));
    }
    let others: [&[u8]; 8] = [
        b"",
        b"ge",
        b"get\0",
        b"\0get",
        b"get\0\0\0\0\0",
        b"get\0\0\0\0\0\0",
        b"get9bytes\0",
        b"GE\xd4",
    ];
    for other in others {
        assert_eq!(table.find(other, None), None, "{}", other.escape_ascii());
        assert!(!table.knows(other));
    }
}

#[test]
fn names_of_commands_know_no_letter_case() {
    let mut table = Table::default();
    let mut config = command("config", NEITHER, vec![]);
    config
        .below
        .insert(b"set".as_slice().into(), command("config set", NEITHER, vec![]));
    table.add(config);
    table.add(command("get", READ, vec![]));
    let name = |first: &[u8], second: Option<&[u8]>| table.find(first, second).map(|command| &*command.name);
    assert_eq!(name(b"GeT", Some(b"x")), Some("get"));
    assert_eq!(name(b"CONFIG", Some(b"SET")), Some("config set"));
    assert_eq!(name(b"CONFIG", Some(b"NO")), None);
    assert_eq!(name(b"NO", None), None);
    assert!(table.knows(b"Config"));
}

#[test]
fn a_pattern_covers_what_begins_with_it() {
    for (first, later, covers) in [
        ("*", "a", true),
        ("ord*", "orders:{id}*", true),
        ("orders:{id}*", "orders:{id}:items", true),
        ("orders:{id}*", "orders:{id}*", true),
        ("orders:{id}:*", "orders:{id}:items:{item}", true),
        ("orders:{id}", "orders:{id}", true),
        ("orders:{id}", "orders:{id}*", false),
        ("orders:1*", "orders:{id}*", false),
        ("orders:{id}*", "orders:1", false),
        ("ord", "orders:{id}*", false),
        ("orders:{id}:*", "orders:{id}*", false),
    ] {
        let pattern = |text| KeyPattern::parse(text).unwrap();
        assert_eq!(pattern(first).covers(&pattern(later)), covers, "{first} {later}");
    }
}
