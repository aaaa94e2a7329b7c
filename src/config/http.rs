//! A listener that speaks HTTP: its own keys, checked. Called by `listeners.rs`.

use std::sync::Arc;
use std::time::Duration;

use super::build::words;
use super::listeners::{self, Heading};
use super::reader::{Map, Reader, Word};
use super::rules::{self, Origin};
use super::tls;
use super::types::{CommitPoint, Errors, HttpListener, Limits};
use super::units;
use crate::rules::{Mode, Paths, Policy, Rule, RuleSet, SAFE_METHODS, Unmatched};

/// Reads the listener; `None` where a problem was reported.
pub(super) fn listener(
    reader: &mut Reader,
    map: &Map<'_>,
    heading: &Heading,
    origins: &mut Vec<Origin>,
) -> Option<HttpListener> {
    let errors = reader.choice(map, "errors");
    let paths = reader.choice(map, "paths");
    let upgrades = reader.choice::<Upgrades>(map, "upgrades");
    let tls = tls::server(reader, map, tls::HTTP);
    let backend = reader.section(map, "upstream");
    let backend = backend.and_then(|backend| upstream(reader, &backend));
    let limits = limits(reader, map);
    let forwarded = reader.value(map, "forwarded", units::flag);
    let unmatched = unmatched(reader, map);
    let safe_methods = safe_methods(reader, map);
    let rules = rules::read(reader, map, safe_methods.as_deref(), origins);
    warn_if_unfenced(reader, map, upgrades.as_ref(), rules.as_deref());
    let ((name, bind), backend) = (heading.whole()?, backend?);
    listeners::check_loop(reader, map, bind, &backend.upstream);
    Some(HttpListener {
        name,
        bind,
        tls: tls?,
        upstream: backend.upstream,
        response_timeout: backend.response_timeout,
        in_doubt_statuses: backend.in_doubt_statuses,
        commit_point: backend.commit_point,
        limits: limits?,
        upgrades: matches!(upgrades?, Upgrades::Pass),
        errors: errors?,
        forwarded: forwarded?,
        rules: Arc::new(RuleSet {
            rules: rules?,
            safe_methods: safe_methods?,
            paths: paths?,
            unmatched: unmatched?,
        }),
    })
}

fn warn_if_unfenced(reader: &mut Reader, map: &Map<'_>, upgrades: Option<&Upgrades>, rules: Option<&[Rule]>) {
    let fences = |rule: &Rule| rule.mode == Mode::Enforce && !rule.fences.is_empty();
    if matches!(upgrades, Some(Upgrades::Pass)) && rules.is_some_and(|rules| rules.iter().any(fences)) {
        let message = format!(
            "{}: nothing of an upgraded connection is fenced; right only where the store takes no writes that way",
            map.path_to("upgrades")
        );
        reader.warn(map.place_of("upgrades"), message);
    }
}

/// The keys below `upstream`.
struct HttpUpstream {
    upstream: super::types::Upstream,
    response_timeout: Duration,
    in_doubt_statuses: Vec<u16>,
    commit_point: CommitPoint,
}

fn upstream(reader: &mut Reader, map: &Map<'_>) -> Option<HttpUpstream> {
    let place = tls::backend(reader, map);
    let response_timeout = reader.value(map, "response_timeout", units::some_duration);
    let settle_after = settle_after(reader, map, response_timeout);
    let in_doubt_statuses = in_doubt_statuses(reader, map);
    let commit_point = reader.choice(map, "commit_point");
    let upstream = listeners::upstream(reader, map, place, settle_after);
    Some(HttpUpstream {
        upstream: upstream?,
        response_timeout: response_timeout?,
        in_doubt_statuses: in_doubt_statuses?,
        commit_point: commit_point?,
    })
}

fn settle_after(reader: &mut Reader, map: &Map<'_>, response_timeout: Option<Duration>) -> Option<Duration> {
    if !map.has("settle_after") {
        return response_timeout;
    }
    let settle_after = reader.placed(map, "settle_after", units::some_duration)?;
    if response_timeout.is_some_and(|r| settle_after.value < r) {
        let message = format!(
            "{} is less than response_timeout ({:?} < {:?}): it must be no less than the longest that the backend works on one request",
            map.path_to("settle_after"),
            settle_after.value,
            response_timeout.unwrap_or_default(),
        );
        reader.warn(settle_after.at, message);
    }
    Some(settle_after.value)
}

fn in_doubt_statuses(reader: &mut Reader, map: &Map<'_>) -> Option<Vec<u16>> {
    if !map.has("in_doubt_statuses") {
        return Some(vec![502, 504]);
    }
    let mut statuses: Vec<u16> = reader
        .values(map, "in_doubt_statuses", units::status)?
        .into_iter()
        .map(|placed| placed.value)
        .collect();
    statuses.sort_unstable();
    statuses.dedup();
    Some(statuses)
}

fn limits(reader: &mut Reader, listener: &Map<'_>) -> Option<Limits> {
    let map = reader.section(listener, "limits")?;
    let header_timeout = reader.value(&map, "header_timeout", units::some_duration);
    let max_header_bytes = reader.value(&map, "max_header_bytes", units::head_size);
    let idle_timeout = reader.value(&map, "idle_timeout", units::some_duration);
    let max_waiting = reader.value(&map, "max_waiting", units::count);
    Some(Limits {
        header_timeout: header_timeout?,
        max_header_bytes: max_header_bytes?,
        idle_timeout: idle_timeout?,
        max_waiting: max_waiting?,
    })
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

fn safe_methods(reader: &mut Reader, map: &Map<'_>) -> Option<Box<[Box<str>]>> {
    if !map.has("safe_methods") {
        return Some(SAFE_METHODS.map(Box::from).into());
    }
    let methods = reader.values(map, "safe_methods", units::method)?;
    for method in &methods {
        if matches!(
            &*method.value,
            "PUT" | "POST" | "PATCH" | "DELETE" | "MOVE" | "COPY" | "MKCOL" | "PROPPATCH"
        ) {
            let message = format!(
                "{}: {} writes on most backends, and safe methods are not fenced as writes",
                map.path_to("safe_methods"),
                method.value
            );
            reader.warn(method.at, message);
        }
    }
    Some(methods.into_iter().map(|m| m.value).collect())
}

/// Whether connections may be upgraded.
enum Upgrades {
    Refuse,
    Pass,
}

words!(Paths: "strict" => Paths::Strict, "lenient" => Paths::Lenient);
words!(Upgrades: "refuse" => Upgrades::Refuse, "pass" => Upgrades::Pass);
words!(Errors: "problem" => Errors::Problem, "s3" => Errors::S3);
words!(CommitPoint: "last_byte" => CommitPoint::LastByte, "first_byte" => CommitPoint::FirstByte);
words!(Policy: "pass" => Policy::Pass, "deny" => Policy::Deny);
