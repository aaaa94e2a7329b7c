//! What there is to tell of a listener of raw TCP.

use serde_json::{Value, json};

use super::{duration, server_tls, upstream, who};
use crate::config::{ProxyProtocol, TcpLimits, TcpListener};
use crate::rules::{TcpFence, TcpResource, TcpRule, TcpToken};

pub(super) fn listener(listener: &TcpListener) -> Value {
    let TcpListener {
        name,
        bind,
        tls,
        accept_proxy,
        upstream: backend,
        proxy_protocol,
        limits: bounds,
        rule: only,
    } = listener;
    let mut backend = upstream(backend);
    backend["proxy_protocol"] = match proxy_protocol {
        ProxyProtocol::None => "none".into(),
        ProxyProtocol::V2 => "v2".into(),
    };
    json!({
        "name": &**name,
        "bind": bind,
        "protocol": "tcp",
        "tls": tls.as_ref().map(|tls| server_tls(tls)),
        "accept_proxy": accept_proxy,
        "upstream": backend,
        "limits": limits(*bounds),
        "rules": [rule(only)],
    })
}

fn limits(limits: TcpLimits) -> Value {
    let TcpLimits {
        header_timeout,
        max_header_bytes,
        idle_timeout,
        max_waiting,
    } = limits;
    json!({
        "header_timeout": duration(header_timeout),
        "max_header_bytes": max_header_bytes,
        "idle_timeout": idle_timeout.map(duration),
        "max_waiting": max_waiting,
    })
}

fn rule(rule: &TcpRule) -> Value {
    let TcpRule {
        name,
        fences,
        allow,
        missing,
        mode,
        drain_timeout,
    } = rule;
    json!({
        "name": &**name,
        "fences": fences.iter().map(fence).collect::<Vec<_>>(),
        "allow": allow.as_ref().map(who),
        "missing": missing.as_str(),
        "mode": mode.as_str(),
        "drain_timeout": duration(*drain_timeout),
    })
}

fn fence(fence: &TcpFence) -> Value {
    let TcpFence {
        resource,
        token,
        format,
        max_step,
    } = fence;
    let resource = match resource {
        TcpResource::Fixed(name) => json!(name),
        TcpResource::Tlv(kind) => json!({ "proxy_tlv": kind }),
        TcpResource::Preface => json!({ "preface": true }),
    };
    let mut token = match token {
        TcpToken::Tlv(kind) => json!({ "proxy_tlv": kind }),
        TcpToken::Preface => json!({ "preface": true }),
    };
    token["format"] = format.as_str().into();
    if let Some(step) = max_step {
        token["max_step"] = json!(step);
    }
    json!({ "resource": resource, "token": token })
}
