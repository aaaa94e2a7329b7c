//! What there is to tell of a listener that speaks RESP.

use serde_json::{Value, json};

use super::{duration, redacted, server_tls, upstream, who};
use crate::config::{Credentials, RedisListener};
use crate::rules::redis::{KeyPattern, RedisFence, RedisRule, RedisRules};
use crate::rules::{Action, Policy, Reads, Unmatched};

pub(super) fn listener(listener: &RedisListener) -> Value {
    let RedisListener {
        name,
        bind,
        tls,
        upstream: backend,
        credentials,
        response_timeout,
        idle_timeout,
        max_waiting,
        rules,
    } = listener;
    let RedisRules {
        rules,
        unmatched: Unmatched { reads, writes },
    } = &**rules;
    let mut backend = upstream(backend);
    backend["response_timeout"] = duration(*response_timeout).into();
    if let Some(Credentials { username, password }) = credentials {
        backend["username"] = json!(username);
        backend["password_file"] = redacted(password).into();
    }
    json!({
        "name": &**name,
        "bind": bind,
        "protocol": "redis",
        "tls": tls.as_ref().map(|tls| server_tls(tls)),
        "upstream": backend,
        "limits": { "idle_timeout": idle_timeout.map(duration), "max_waiting": max_waiting },
        "unmatched": { "reads": policy(*reads), "writes": policy(*writes) },
        "rules": rules.iter().map(rule).collect::<Vec<_>>(),
    })
}

fn rule(rule: &RedisRule) -> Value {
    let RedisRule {
        name,
        index: _,
        keys,
        commands,
        undeclared_keys,
        action,
        fences,
        allow,
        missing,
        mode,
        reads,
        drain_timeout,
        fold_case,
    } = rule;
    let reads = match reads {
        Reads::Raise => "raise",
        Reads::Ignore => "ignore",
    };
    let action = match action {
        Action::Fence => "fence",
        Action::Deny => "deny",
    };
    json!({
        "name": &**name,
        "match": {
            "keys": keys.as_ref().map(KeyPattern::as_str),
            "commands": commands,
            "undeclared_keys": undeclared_keys,
        },
        "action": action,
        "fences": fences.iter().map(fence).collect::<Vec<_>>(),
        "allow": allow.as_ref().map(who),
        "missing": missing.as_str(),
        "mode": mode.as_str(),
        "reads": reads,
        "drain_timeout": duration(*drain_timeout),
        "fold_case": fold_case,
    })
}

fn fence(fence: &RedisFence) -> Value {
    let RedisFence {
        resource,
        pattern,
        format,
        max_step,
        slot: _,
    } = fence;
    let mut token = json!({ "connection": true, "format": format.as_str() });
    if let Some(step) = max_step {
        token["max_step"] = json!(step);
    }
    if let Some(pattern) = pattern {
        token["pattern"] = pattern.as_str().into();
    }
    json!({ "resource": resource.as_str(), "token": token })
}

fn policy(policy: Policy) -> &'static str {
    match policy {
        Policy::Pass => "pass",
        Policy::Deny => "deny",
    }
}
