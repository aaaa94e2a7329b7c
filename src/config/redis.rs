//! A listener that speaks RESP: its own keys, checked. Called by `listeners.rs`.

use std::sync::Arc;
use std::time::Duration;

use super::allow;
use super::listeners::{self, Heading};
use super::reader::{Map, Placed, Reader};
use super::rules::Origin;
use super::secret;
use super::tls;
use super::types::{Credentials, RedisListener, Upstream};
use super::units;
use crate::rules::redis::{KeyPattern, KeyTemplate, RedisFence, RedisRule, RedisRules};
use crate::rules::{Action, TokenPattern, Unmatched};

/// Reads the listener; `None` where a problem was reported.
pub(super) fn listener(
    reader: &mut Reader,
    map: &Map<'_>,
    heading: &Heading,
    origins: &mut Vec<Origin>,
) -> Option<RedisListener> {
    let tls = tls::server(reader, map, tls::NO_PROTOCOL);
    let backend = reader.section(map, "upstream");
    let upstream = backend.as_ref().and_then(|backend| upstream(reader, backend));
    let credentials = backend.as_ref().map(|backend| credentials(reader, backend));
    let limits = limits(reader, map);
    let unmatched = unmatched(reader, map);
    let rules = rules(reader, map, origins);
    let ((name, bind), (upstream, response_timeout)) = (heading.whole()?, upstream?);
    listeners::check_loop(reader, map, bind, &upstream);
    let (idle_timeout, max_waiting) = limits?;
    Some(RedisListener {
        name,
        bind,
        tls: tls?,
        upstream,
        credentials: credentials??,
        response_timeout,
        idle_timeout,
        max_waiting,
        rules: Arc::new(RedisRules {
            rules: rules?,
            unmatched: unmatched?,
        }),
    })
}

fn upstream(reader: &mut Reader, map: &Map<'_>) -> Option<(Upstream, Duration)> {
    let place = tls::stream_backend(reader, map);
    let response_timeout = reader.value(map, "response_timeout", units::some_duration);
    let settle_after = match map.has("settle_after") {
        true => settle_after(reader, map, response_timeout),
        false => response_timeout,
    };
    let upstream = listeners::upstream(reader, map, place, settle_after)?;
    Some((upstream, response_timeout?))
}

fn settle_after(reader: &mut Reader, map: &Map<'_>, response_timeout: Option<Duration>) -> Option<Duration> {
    let settle_after = reader.placed(map, "settle_after", units::some_duration)?;
    if let Some(response_timeout) = response_timeout.filter(|timeout| settle_after.value < *timeout) {
        let message = format!(
            "{} is less than response_timeout ({:?} < {response_timeout:?}): it must be no less than the longest that the server works on one command",
            map.path_to("settle_after"),
            settle_after.value,
        );
        reader.warn(settle_after.at, message);
    }
    Some(settle_after.value)
}

/// The outer `None` says that a problem was reported, the inner one that the server asks for none.
#[allow(clippy::option_option)]
fn credentials(reader: &mut Reader, map: &Map<'_>) -> Option<Option<Credentials>> {
    let username = match map.has("username") {
        true => Some(reader.value(map, "username", units::text)?),
        false => None,
    };
    let password = secret::below(reader, map, "password_file")?;
    match (username, password) {
        (username, Some(password)) => Some(Some(Credentials { username, password })),
        (None, None) => Some(None),
        (Some(_), None) => {
            let message = format!("{} needs a password_file beside it", map.path_to("username"));
            reader.problem(map.place_of("username"), message);
            None
        }
    }
}

fn limits(reader: &mut Reader, listener: &Map<'_>) -> Option<(Option<Duration>, usize)> {
    let map = reader.section(listener, "limits")?;
    let idle_timeout = match map.has("idle_timeout") {
        true => reader.value(&map, "idle_timeout", units::some_duration).map(Some),
        false => Some(None),
    };
    let max_waiting = reader.value(&map, "max_waiting", units::count);
    Some((idle_timeout?, max_waiting?))
}

fn unmatched(reader: &mut Reader, listener: &Map<'_>) -> Option<Unmatched> {
    let map = reader.section(listener, "unmatched")?;
    let reads = reader.choice(&map, "reads");
    let writes = reader.choice(&map, "writes");
    Some(Unmatched {
        reads: reads?,
        writes: writes?,
    })
}

fn rules(reader: &mut Reader, listener: &Map<'_>, origins: &mut Vec<Origin>) -> Option<Box<[RedisRule]>> {
    if !listener.has("rules") {
        let message = format!("{} has no rules: nothing is fenced", listener.name());
        reader.warn(listener.at, message);
        return Some(Box::default());
    }
    let before = reader.problems.len();
    let maps = reader.sections(listener, "rules");
    let mut names: Vec<Placed<String>> = Vec::new();
    let mut rules: Vec<Option<RedisRule>> = Vec::new();
    let mut slot = 0;
    for (index, map) in maps.iter().enumerate() {
        let name = reader.placed(map, "name", units::name);
        if let Some(name) = &name {
            if let Some(first) = names.iter().find(|n| n.value == name.value) {
                let message = format!(
                    "two rules are named {:?}; the first is at {}",
                    name.value, first.at
                );
                reader.problem(name.at, message);
            }
            names.push(name.clone());
        }
        let name = name.map(|name| name.value);
        let rule = rule(reader, listener, (index, map), name, (&mut slot, origins));
        if let Some(rule) = &rule
            && let Some(first) = rules.iter().flatten().find(|earlier| earlier.covers(rule))
        {
            let message = format!(
                "rule {:?} never matches: rule {:?} before it takes all of its commands",
                rule.name, first.name
            );
            reader.warn(map.at, message);
        }
        rules.push(rule);
    }
    let rules: Option<Vec<RedisRule>> = rules.into_iter().collect();
    rules.filter(|_| reader.problems.len() == before).map(Into::into)
}

fn rule(
    reader: &mut Reader,
    listener: &Map<'_>,
    (index, map): (usize, &Map<'_>),
    name: Option<String>,
    (slot, origins): (&mut usize, &mut Vec<Origin>),
) -> Option<RedisRule> {
    let matches = reader.section(map, "match");
    let matches = matches.and_then(|section| matched(reader, &section));
    let allow = allow::allow(reader, listener, map);
    let action = reader.choice(map, "action");
    let missing = reader.choice(map, "missing");
    let mode = reader.choice(map, "mode");
    let reads = reader.choice(map, "reads");
    let drain_timeout = reader.value(map, "drain_timeout", units::duration);
    let fold_case = reader.value(map, "fold_case", units::flag);
    let pattern = matches.as_ref().and_then(|matches| matches.keys.as_ref());
    let fences = match action? {
        Action::Fence => fences(reader, map, pattern, matches.is_some()),
        Action::Deny => no_fences(reader, map),
    };
    let mut fences = fences?;
    for fence in &mut fences {
        fence.value.slot = *slot;
        *slot += 1;
    }
    let matches = matches?;
    let rule = RedisRule {
        name: name?.into(),
        index,
        keys: matches.keys,
        commands: matches.commands,
        undeclared_keys: matches.undeclared_keys,
        action: action?,
        fences: fences.iter().map(|fence| fence.value.clone()).collect(),
        allow: allow?,
        missing: missing?,
        mode: mode?,
        reads: reads?,
        drain_timeout: drain_timeout?,
        fold_case: fold_case?,
    };
    let places = fences.iter().map(|fence| fence.at);
    origins.extend(
        places
            .zip(rule.fenced())
            .map(|(at, fenced)| Origin::of(at, fenced)),
    );
    Some(rule)
}

struct Matched {
    keys: Option<KeyPattern>,
    commands: Option<Box<[Box<str>]>>,
    undeclared_keys: bool,
}

fn matched(reader: &mut Reader, map: &Map<'_>) -> Option<Matched> {
    let keys = match map.has("keys") {
        true => reader.value(map, "keys", KeyPattern::parse).map(Some),
        false => Some(None),
    };
    let commands = match map.has("commands") {
        true => reader
            .values(map, "commands", command)
            .map(|names| Some(names.into_iter().map(|name| name.value).collect())),
        false => Some(None),
    };
    let undeclared_keys = reader.value(map, "undeclared_keys", units::flag);
    let matched = Matched {
        keys: keys?,
        commands: commands?,
        undeclared_keys: undeclared_keys?,
    };
    if matched.keys.is_none() && matched.commands.is_none() && !matched.undeclared_keys {
        let message = format!(
            "{} matches nothing; give it keys, commands, or undeclared_keys: true",
            map.name()
        );
        reader.problem(map.at, message);
        return None;
    }
    if matched.keys.is_some() && matched.undeclared_keys {
        let message = format!(
            "{} takes commands without keys, and stands beside keys; make it a rule of its own",
            map.path_to("undeclared_keys")
        );
        reader.problem(map.place_of("undeclared_keys"), message);
        return None;
    }
    Some(matched)
}

/// `FLUSHALL`, or `CONFIG SET`.
fn command(text: &str) -> Result<Box<str>, String> {
    let words: Vec<&str> = text.split(' ').collect();
    let plain = |word: &&str| !word.is_empty() && word.bytes().all(|b| b.is_ascii_graphic());
    match words.len() <= 2 && words.iter().all(plain) {
        true => Ok(text.to_ascii_lowercase().into()),
        false => Err(format!(
            "{text:?} is not the name of a command; write it as FLUSHALL, or with a subcommand as CONFIG SET"
        )),
    }
}

/// A rule that denies compares nothing.
fn no_fences(reader: &mut Reader, map: &Map<'_>) -> Option<Vec<Placed<RedisFence>>> {
    let useless = ["resource", "token", "fences", "missing", "reads", "drain_timeout"];
    let Some(key) = useless.into_iter().find(|key| map.has(key)) else {
        return Some(Vec::new());
    };
    let message = format!(
        "{} says nothing beside action: deny; leave it out",
        map.path_to(key)
    );
    reader.problem(map.place_of(key), message);
    None
}

fn fences(
    reader: &mut Reader,
    map: &Map<'_>,
    keys: Option<&KeyPattern>,
    matched: bool,
) -> Option<Vec<Placed<RedisFence>>> {
    let single = ["resource", "token"].into_iter().find(|key| map.has(key));
    match (single, map.has("fences")) {
        (Some(key), true) => {
            let message = format!("{} stands beside fences; move it into the list", map.path_to(key));
            reader.problem(map.place_of(key), message);
            None
        }
        (None, false) => {
            let message = format!(
                "{} names nothing to fence; give it resource and token, or fences",
                map.name()
            );
            reader.problem(map.at, message);
            None
        }
        (Some(_), false) => fence(reader, map, keys, matched).map(|fence| vec![fence]),
        (None, true) => {
            let maps = reader.sections(map, "fences");
            let read: Vec<_> = maps.iter().map(|map| fence(reader, map, keys, matched)).collect();
            let read: Option<Vec<_>> = read.into_iter().collect();
            read.filter(|fences| !fences.is_empty())
        }
    }
}

/// Reads `resource` and `token`, of a rule or of one of its fences.
fn fence(
    reader: &mut Reader,
    map: &Map<'_>,
    keys: Option<&KeyPattern>,
    matched: bool,
) -> Option<Placed<RedisFence>> {
    for key in ["resource", "token"] {
        if !map.has(key) {
            reader.missing(map, key);
            return None;
        }
    }
    let text = reader.placed(map, "resource", |text| Ok(text.to_string()));
    let token = reader.section(map, "token")?;
    let _is_true = reader.value(&token, "connection", yes);
    let format = reader.choice(&token, "format");
    let max_step = allow::max_step(reader, &token, format);
    let pattern = match token.has("pattern") {
        true => reader.value(&token, "pattern", TokenPattern::parse).map(Some),
        false => Some(None),
    };
    let text = text.filter(|_| matched)?;
    let resource = match KeyTemplate::parse(&text.value, keys) {
        Ok(resource) => resource,
        Err(message) => {
            reader.problem(text.at, format!("{}: {message}", map.path_to("resource")));
            return None;
        }
    };
    Some(Placed {
        at: text.at,
        value: RedisFence {
            resource,
            pattern: pattern?,
            format: format?,
            max_step: max_step?,
            slot: 0,
        },
    })
}

fn yes(text: &str) -> Result<(), String> {
    match text {
        "true" => Ok(()),
        other => Err(format!(
            "{other:?} is not true, the only thing that it can be: the token is the connection's"
        )),
    }
}
