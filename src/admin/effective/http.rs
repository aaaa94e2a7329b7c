//! What there is to tell of a listener that speaks HTTP.

use serde_json::{Value, json};

use super::{duration, server_tls, upstream, who};
use crate::config::{CommitPoint, Errors, HttpListener, Limits};
use crate::rules::{
    Action, Carrier, Conditions, FenceRule, Paths, Policy, Reads, Rule, RuleSet, TokenSource, Unmatched,
    ValuePattern,
};

pub(super) fn listener(listener: &HttpListener) -> Value {
    let HttpListener {
        name,
        bind,
        tls,
        upstream: backend,
        response_timeout,
        in_doubt_statuses,
        commit_point,
        limits: bounds,
        upgrades,
        errors,
        forwarded,
        rules,
    } = listener;
    let RuleSet {
        rules,
        safe_methods,
        paths,
        unmatched: Unmatched { reads, writes },
    } = &**rules;
    let errors = match errors {
        Errors::Problem => "problem",
        Errors::S3 => "s3",
    };
    let paths = match paths {
        Paths::Strict => "strict",
        Paths::Lenient => "lenient",
    };
    let commit_point = match commit_point {
        CommitPoint::LastByte => "last_byte",
        CommitPoint::FirstByte => "first_byte",
    };
    let mut backend = upstream(backend);
    backend["response_timeout"] = duration(*response_timeout).into();
    backend["in_doubt_statuses"] = json!(in_doubt_statuses);
    backend["commit_point"] = commit_point.into();
    json!({
        "name": &**name,
        "bind": bind,
        "protocol": "http",
        "paths": paths,
        "tls": tls.as_ref().map(|tls| server_tls(tls)),
        "upstream": backend,
        "limits": limits(*bounds),
        "upgrades": if *upgrades { "pass" } else { "refuse" },
        "errors": errors,
        "forwarded": forwarded,
        "safe_methods": safe_methods,
        "unmatched": { "reads": policy(*reads), "writes": policy(*writes) },
        "rules": rules.iter().map(rule).collect::<Vec<_>>(),
    })
}

fn limits(limits: Limits) -> Value {
    let Limits {
        header_timeout,
        max_header_bytes,
        idle_timeout,
        max_waiting,
    } = limits;
    json!({
        "header_timeout": duration(header_timeout),
        "max_header_bytes": max_header_bytes,
        "idle_timeout": duration(idle_timeout),
        "max_waiting": max_waiting,
    })
}

fn rule(rule: &Rule) -> Value {
    let Rule {
        name,
        index: _,
        path,
        methods,
        conditions,
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
        "match": matches(path.as_str(), methods.as_deref(), conditions.as_deref()),
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

/// Only the conditions that there are.
fn matches(path: &str, methods: Option<&[Box<str>]>, conditions: Option<&Conditions>) -> Value {
    let mut matches = json!({ "path": path, "methods": methods });
    let Some(Conditions {
        hosts,
        headers,
        query,
    }) = conditions
    else {
        return matches;
    };
    if !hosts.is_empty() {
        matches["host"] = hosts.iter().map(|host| host.as_str()).collect();
    }
    for (key, pairs) in [("headers", headers), ("query", query)] {
        if !pairs.is_empty() {
            matches[key] = pairs.iter().map(pair).collect();
        }
    }
    matches
}

fn pair((name, value): &(Box<str>, ValuePattern)) -> (String, Value) {
    (name.to_string(), value.as_str().into())
}

fn fence(fence: &FenceRule) -> Value {
    let FenceRule {
        resource,
        path_from,
        token: TokenSource { carrier, pattern },
        format,
        max_step,
    } = fence;
    let (key, name) = match carrier {
        Carrier::Header(names) => match &**names {
            [name] => ("header", json!(name)),
            names => ("header", json!(names)),
        },
        Carrier::Query(name) => ("query", json!(name)),
        Carrier::Cookie(name) => ("cookie", json!(name)),
    };
    let mut token = json!({ key: name, "format": format.as_str() });
    if let Some(step) = max_step {
        token["max_step"] = json!(step);
    }
    if let Some(pattern) = pattern {
        token["pattern"] = pattern.as_str().into();
    }
    let mut fence = json!({ "resource": resource.as_str(), "token": token });
    if let Some(field) = path_from {
        fence["path_from"] = json!({ "header": field });
    }
    fence
}

fn policy(policy: Policy) -> &'static str {
    match policy {
        Policy::Pass => "pass",
        Policy::Deny => "deny",
    }
}
