//! The configuration that the process runs with, defaults filled in, under the names of the configuration file.
//! No secret is shown: of keys only where their files are.

use std::time::Duration;

use serde_json::{Value, json};

use crate::base::TokenFormat;
use crate::config::{Admin, CommitPoint, Config, Limits, Listener, Log, LogFormat, Store, Upstream};
use crate::net::{ClientFiles, ClientTls, ServerFiles, ServerTls};
use crate::rules::{FenceRule, Kinds, Missing, Mode, Policy, Reads, Rule, RuleSet, Unmatched};

/// What the admin address tells of the configuration.
#[derive(Clone, Debug)]
pub struct Effective {
    json: Value,
    kinds: Kinds,
    format: Option<TokenFormat>,
}

impl Effective {
    /// What there is to tell of this configuration.
    #[must_use]
    pub fn of(config: &Config) -> Effective {
        Effective {
            json: whole(config),
            kinds: Kinds::of(config.listeners.iter().map(|listener| &*listener.rules)),
            format: agreed_format(config),
        }
    }

    /// The whole of it.
    #[must_use]
    pub fn json(&self) -> &Value {
        &self.json
    }

    /// Which kinds of tokens the rules read.
    #[must_use]
    pub fn kinds(&self) -> &Kinds {
        &self.kinds
    }

    /// The format of all rules' tokens, if they agree.
    #[must_use]
    pub fn format(&self) -> Option<TokenFormat> {
        self.format
    }
}

fn agreed_format(config: &Config) -> Option<TokenFormat> {
    let rules = config.listeners.iter().flat_map(|listener| &listener.rules.rules);
    let mut formats = rules.flat_map(|rule| &rule.fences).map(|fence| fence.format);
    let first = formats.next()?;
    formats.all(|other| other == first).then_some(first)
}

// Each function below takes its part apart by name, so that a new key can't be forgotten.

fn whole(config: &Config) -> Value {
    let Config {
        store,
        admin: Admin { bind },
        log: Log { format, level },
        shutdown_timeout,
        listeners,
    } = config;
    let store = match store {
        Store::File { path } => json!({ "kind": "file", "path": path.to_string_lossy() }),
        Store::Memory => json!({ "kind": "memory" }),
    };
    let format = match format {
        LogFormat::Text => "text",
        LogFormat::Json => "json",
    };
    json!({
        "version": 1,
        "store": store,
        "admin": { "bind": bind },
        "log": { "format": format, "level": level.as_str() },
        "shutdown_timeout": duration(*shutdown_timeout),
        "listeners": listeners.iter().map(listener).collect::<Vec<_>>(),
    })
}

fn listener(listener: &Listener) -> Value {
    let Listener {
        name,
        bind,
        tls,
        upstream: backend,
        limits: bounds,
        upgrades,
        forwarded,
        rules,
    } = listener;
    let RuleSet {
        rules,
        safe_methods,
        unmatched: Unmatched { reads, writes },
    } = &**rules;
    json!({
        "name": &**name,
        "bind": bind,
        "protocol": "http",
        "tls": tls.as_ref().map(|tls| server_tls(tls)),
        "upstream": upstream(backend),
        "limits": limits(*bounds),
        "upgrades": if *upgrades { "pass" } else { "refuse" },
        "forwarded": forwarded,
        "safe_methods": safe_methods,
        "unmatched": { "reads": policy(*reads), "writes": policy(*writes) },
        "rules": rules.iter().map(rule).collect::<Vec<_>>(),
    })
}

fn upstream(upstream: &Upstream) -> Value {
    let Upstream {
        target: _,
        tls,
        connect_timeout,
        response_timeout,
        settle_after,
        in_doubt_statuses,
        commit_point,
        max_connections,
    } = upstream;
    let commit_point = match commit_point {
        CommitPoint::LastByte => "last_byte",
        CommitPoint::FirstByte => "first_byte",
    };
    json!({
        "url": upstream.to_string(),
        "tls": tls.as_ref().map(|tls| client_tls(tls)),
        "connect_timeout": duration(*connect_timeout),
        "response_timeout": duration(*response_timeout),
        "settle_after": duration(*settle_after),
        "in_doubt_statuses": in_doubt_statuses,
        "commit_point": commit_point,
        "max_connections": max_connections,
    })
}

/// Where the files are, never what stands in them.
fn server_tls(tls: &ServerTls) -> Value {
    let ServerFiles { cert, key, client_ca } = tls.files();
    json!({ "cert_file": cert, "key_file": key, "client_ca_file": client_ca })
}

fn client_tls(tls: &ClientTls) -> Value {
    let ClientFiles { ca, pair } = tls.files();
    let (cert, key) = pair.clone().unzip();
    json!({ "ca_file": ca, "cert_file": cert, "key_file": key, "server_name": tls.server_name() })
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
        fences,
        missing,
        mode,
        reads,
        drain_timeout,
        fold_case,
    } = rule;
    let missing = match missing {
        Missing::Deny => "deny",
        Missing::Pass => "pass",
        Missing::PassUntilFenced => "pass_until_fenced",
    };
    let mode = match mode {
        Mode::Enforce => "enforce",
        Mode::Observe => "observe",
    };
    let reads = match reads {
        Reads::Raise => "raise",
        Reads::Ignore => "ignore",
    };
    json!({
        "name": &**name,
        "match": { "path": path.as_str(), "methods": methods },
        "fences": fences.iter().map(fence).collect::<Vec<_>>(),
        "missing": missing,
        "mode": mode,
        "reads": reads,
        "drain_timeout": duration(*drain_timeout),
        "fold_case": fold_case,
    })
}

fn fence(fence: &FenceRule) -> Value {
    let FenceRule {
        resource,
        header,
        format,
    } = fence;
    json!({
        "resource": resource.as_str(),
        "token": { "header": header, "format": format.as_str() },
    })
}

fn policy(policy: Policy) -> &'static str {
    match policy {
        Policy::Pass => "pass",
        Policy::Deny => "deny",
    }
}

/// As the configuration writes it.
fn duration(duration: Duration) -> String {
    match duration.as_millis() {
        ms if ms % 1000 == 0 => format!("{}s", ms / 1000),
        ms => format!("{ms}ms"),
    }
}
