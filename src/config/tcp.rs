//! A listener of raw TCP: its own keys, checked. Called by `listeners.rs`.

use std::sync::Arc;

use super::allow;
use super::build::words;
use super::listeners::{self, Heading};
use super::reader::{Either, Map, Placed, Reader, Word};
use super::rules::{self, Origin};
use super::tls;
use super::types::{ProxyProtocol, TcpLimits, TcpListener, Upstream};
use super::units;
use crate::rules::{TcpFence, TcpResource, TcpRule, TcpToken};

/// Reads the listener; `None` where a problem was reported.
pub(super) fn listener(
    reader: &mut Reader,
    map: &Map<'_>,
    heading: &Heading,
    origins: &mut Vec<Origin>,
) -> Option<TcpListener> {
    let tls = tls::server(reader, map, tls::ANY);
    let backend = reader.section(map, "upstream");
    let backend = backend.and_then(|backend| upstream(reader, &backend));
    let limits = limits(reader, map);
    let rule = rules(reader, map, origins);
    let accept_proxy = accept_proxy(reader, map, rule.as_ref());
    let ((name, bind), (upstream, proxy_protocol)) = (heading.whole()?, backend?);
    listeners::check_loop(reader, map, bind, &upstream);
    Some(TcpListener {
        name,
        bind,
        tls: tls?,
        accept_proxy: accept_proxy?,
        upstream,
        proxy_protocol,
        limits: limits?,
        rule: Arc::new(rule?),
    })
}

fn upstream(reader: &mut Reader, map: &Map<'_>) -> Option<(Upstream, ProxyProtocol)> {
    let place = tls::stream_backend(reader, map);
    let settle_after = reader.value(map, "settle_after", units::some_duration);
    let proxy_protocol = reader.choice(map, "proxy_protocol");
    if map.has("tls") && proxy_protocol == Some(ProxyProtocol::V2) {
        // Backends want the header before the handshake.
        let message = format!(
            "{} can't be v2 where the connection to the backend has TLS",
            map.path_to("proxy_protocol")
        );
        reader.problem(map.place_of("proxy_protocol"), message);
    }
    let upstream = listeners::upstream(reader, map, place, settle_after);
    Some((upstream?, proxy_protocol?))
}

fn limits(reader: &mut Reader, listener: &Map<'_>) -> Option<TcpLimits> {
    let map = reader.section(listener, "limits")?;
    let header_timeout = reader.value(&map, "header_timeout", units::some_duration);
    let max_header_bytes = reader.value(&map, "max_header_bytes", units::head_size);
    let idle_timeout = match map.has("idle_timeout") {
        true => reader.value(&map, "idle_timeout", units::some_duration).map(Some),
        false => Some(None),
    };
    let max_waiting = reader.value(&map, "max_waiting", units::count);
    Some(TcpLimits {
        header_timeout: header_timeout?,
        max_header_bytes: max_header_bytes?,
        idle_timeout: idle_timeout?,
        max_waiting: max_waiting?,
    })
}

/// Nothing in front of a session tells which of several rules it could be for.
fn rules(reader: &mut Reader, listener: &Map<'_>, origins: &mut Vec<Origin>) -> Option<TcpRule> {
    let maps = reader.sections(listener, "rules");
    if let Some(second) = maps.get(1) {
        let message = format!(
            "{} is a second rule, and nothing would ever fall under it: a listener of protocol: tcp has one; for several \
             fences at once write fences, for other clients another listener",
            second.name()
        );
        reader.problem(second.at, message);
    }
    let mut read: Vec<Option<TcpRule>> = maps
        .iter()
        .map(|map| rule(reader, map, listener, origins))
        .collect();
    match read.len() {
        1 => read.remove(0),
        _ => None,
    }
}

fn rule(
    reader: &mut Reader,
    map: &Map<'_>,
    listener: &Map<'_>,
    origins: &mut Vec<Origin>,
) -> Option<TcpRule> {
    let name = reader.value(map, "name", units::name);
    let allow = allow::allow(reader, listener, map);
    let missing = reader.choice(map, "missing");
    let mode = reader.choice(map, "mode");
    let drain_timeout = reader.value(map, "drain_timeout", units::duration);
    let fences = rules::fences(reader, map, &mut |reader, map| fence(reader, map))?;
    check_prefaces(reader, map, &fences)?;
    let rule = TcpRule {
        name: name?.into(),
        fences: fences.iter().map(|fence| fence.value.clone()).collect(),
        allow: allow?,
        missing: missing?,
        mode: mode?,
        drain_timeout: drain_timeout?,
    };
    origins.extend(
        fences
            .iter()
            .zip(rule.fences())
            .map(|(placed, fence)| Origin::of(placed.at, fence)),
    );
    Some(rule)
}

/// A connection has one first line.
fn check_prefaces(reader: &mut Reader, map: &Map<'_>, fences: &[Placed<TcpFence>]) -> Option<()> {
    let mut tokens = fences
        .iter()
        .filter(|fence| fence.value.token == TcpToken::Preface);
    let (_, Some(second)) = (tokens.next(), tokens.next()) else {
        return Some(());
    };
    let message = format!(
        "{}: a second fence takes its token from the preface, and a session has one; take it from a proxy_tlv",
        map.path_to("fences")
    );
    reader.problem(second.at, message);
    None
}

/// Reads `resource` and `token`, of a rule or of one of its fences.
fn fence(reader: &mut Reader, map: &Map<'_>) -> Option<Placed<TcpFence>> {
    for key in ["resource", "token"] {
        if !map.has(key) {
            reader.missing(map, key);
            return None;
        }
    }
    let at = map.value_place_of("resource");
    let resource = match reader.either(map, "resource", units::fixed_name)? {
        Either::Value(name) => Some(TcpResource::Fixed(name.value)),
        Either::Map(map) => place(reader, &map).map(|place| match place {
            TcpToken::Tlv(kind) => TcpResource::Tlv(kind),
            TcpToken::Preface => TcpResource::Preface,
        }),
    };
    let section = reader.section(map, "token")?;
    let format = reader.choice(&section, "format");
    let max_step = allow::max_step(reader, &section, format);
    let token = place(reader, &section);
    let (resource, token) = (resource?, token?);
    check_pair(reader, map, &resource, token)?;
    let value = TcpFence {
        resource,
        token,
        format: format?,
        max_step: max_step?,
    };
    Some(Placed { at, value })
}

/// Where a client says something: exactly one of a TLV and the preface.
fn place(reader: &mut Reader, map: &Map<'_>) -> Option<TcpToken> {
    match (map.has("proxy_tlv"), map.has("preface")) {
        (true, false) => reader.value(map, "proxy_tlv", units::tlv).map(TcpToken::Tlv),
        (false, true) => reader
            .value(map, "preface", units::only_true)
            .map(|()| TcpToken::Preface),
        (true, true) => {
            let message = format!(
                "{} stands beside proxy_tlv: it comes from one place",
                map.path_to("preface")
            );
            reader.problem(map.place_of("preface"), message);
            None
        }
        (false, false) => {
            let message = format!("{} lacks the key \"proxy_tlv\", or preface: true", map.name());
            reader.problem(map.at, message);
            None
        }
    }
}

fn check_pair(reader: &mut Reader, map: &Map<'_>, resource: &TcpResource, token: TcpToken) -> Option<()> {
    let wrong = match (resource, token) {
        (TcpResource::Tlv(kind), TcpToken::Tlv(other)) if *kind == other => {
            "resource and token come from the same TLV; give each its own, as 0xE0 and 0xE1"
        }
        (TcpResource::Tlv(_), TcpToken::Preface) | (TcpResource::Preface, TcpToken::Tlv(_)) => {
            "one comes from a TLV and the other from the preface, which holds both; take both from one of them"
        }
        _ => return Some(()),
    };
    reader.problem(map.place_of("token"), format!("{}: {wrong}", map.name()));
    None
}

fn accept_proxy(reader: &mut Reader, map: &Map<'_>, rule: Option<&TcpRule>) -> Option<bool> {
    let reads_tlvs = rule.is_some_and(TcpRule::reads_tlvs);
    if !map.has("accept_proxy") {
        return Some(reads_tlvs);
    }
    let told = reader.value(map, "accept_proxy", units::flag)?;
    if !told && reads_tlvs {
        let message = format!(
            "{}: the rule reads a TLV, and that stands in a PROXY header; leave it out, or write true",
            map.path_to("accept_proxy")
        );
        reader.problem(map.place_of("accept_proxy"), message);
        return None;
    }
    Some(told)
}

words!(ProxyProtocol: "none" => ProxyProtocol::None, "v2" => ProxyProtocol::V2);
