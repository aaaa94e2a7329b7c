//! In words: why a rule takes a request or does not, and what came as a token.

use crate::base::TokenFormat;
use crate::rules::{Carrier, Conditions, FenceRule, Request, Rule, Sent, TokenSource, Tried, ValuePattern};

/// Why the rule takes the request, or doesn't, or why that can't be told.
pub(super) fn why(rule: &Rule, tried: Tried, request: &Request<'_>) -> String {
    let (path, method) = (rule.path.as_str(), request.method);
    let conditions = rule.conditions.as_deref();
    let pair = |pairs: Option<&[(Box<str>, ValuePattern)]>, index: usize| {
        pairs
            .and_then(|pairs| pairs.get(index))
            .map(shown)
            .unwrap_or_default()
    };
    match tried {
        Tried::Matches => format!("matches, by the path {path}{}", also(conditions)),
        Tried::OtherPath => format!("does not match: the path is not {path}"),
        Tried::OtherMethod if rule.methods.is_none() => {
            format!("does not match: it is for writes alone, and {method} is a read")
        }
        Tried::OtherMethod => format!(
            "does not match: the path is {path}, and {method} is not one of {}",
            methods(rule)
        ),
        Tried::MethodCase => format!(
            "can't be told: {method} differs from one of {} in letter case only",
            methods(rule)
        ),
        Tried::Parameters => format!("can't be told: the path is {path} only without what follows a ;"),
        Tried::Shifted => format!(
            "can't be told: whether the path is {path} hangs on what the backend makes of an empty segment or a %2F"
        ),
        Tried::OtherHost => format!(
            "does not match: the path is {path}, and the host {} is not {}",
            request.host,
            conditions.map(hosts).unwrap_or_default()
        ),
        Tried::OtherHeader(index) => format!(
            "does not match: the path is {path}, and there is no header field {}",
            pair(conditions.map(|c| &*c.headers), index)
        ),
        Tried::OtherQuery(index) => format!(
            "does not match: the path is {path}, and there is no query field {}",
            pair(conditions.map(|c| &*c.query), index)
        ),
        Tried::Unclear(detail) => format!("can't be told: {detail}"),
    }
}

fn methods(rule: &Rule) -> String {
    let methods: Vec<&str> = rule.methods.iter().flatten().map(|m| &**m).collect();
    methods.join(", ")
}

/// The conditions that hold.
fn also(conditions: Option<&Conditions>) -> String {
    let Some(conditions) = conditions else {
        return String::new();
    };
    let mut text = String::new();
    if !conditions.hosts.is_empty() {
        text += &format!(", the host {}", hosts(conditions));
    }
    for (what, pairs) in [("header", &conditions.headers), ("query", &conditions.query)] {
        for pair in pairs {
            text += &format!(", the {what} field {}", shown(pair));
        }
    }
    text
}

fn hosts(conditions: &Conditions) -> String {
    let hosts: Vec<&str> = conditions.hosts.iter().map(|host| host.as_str()).collect();
    hosts.join(" or ")
}

fn shown((name, value): &(Box<str>, ValuePattern)) -> String {
    match value.as_str() {
        "" | "*" => name.to_string(),
        value => format!("{name} with {value:?}"),
    }
}

/// What was sent as the token of a fence.
pub(super) fn came(request: &Request<'_>, fence: &FenceRule) -> String {
    let format = fence.format.as_str();
    let text = match fence.token.look(request) {
        Sent::Nothing => return "none".into(),
        Sent::Odd(detail) => return several(request, fence).unwrap_or_else(|| format!("none ({detail})")),
        Sent::One(text) => text,
    };
    let shown = String::from_utf8_lossy(&text).trim().to_owned();
    match fence.format.parse(&text) {
        Ok(token) => format!("{} ({format}){}", fence.format.show(token), origin(&fence.token)),
        Err(_) if fence.format == TokenFormat::Integer => format!("{shown} (not an integer)"),
        Err(_) => format!("{shown} (not a {format} token)"),
    }
}

/// The header fields of which one may come, if several came.
fn several(request: &Request<'_>, fence: &FenceRule) -> Option<String> {
    let Carrier::Header(_) = fence.token.carrier else {
        return None;
    };
    let fields = request.fields.iter().filter(|f| fence.token.reads_header(f.name));
    let sent: Vec<_> = fields
        .map(|f| String::from_utf8_lossy(f.value.trim_ascii()))
        .collect();
    (sent.len() > 1).then(|| format!("{} (sent {} times)", sent.join(" and "), sent.len()))
}

/// Where a token comes from, where that is not one header field.
pub(super) fn origin(source: &TokenSource) -> String {
    let carrier = match &source.carrier {
        Carrier::Header(names) if names.len() == 1 && source.pattern.is_none() => return String::new(),
        Carrier::Header(names) => names.join(" or "),
        Carrier::Query(name) => format!("the query field {name}"),
        Carrier::Cookie(name) => format!("the cookie {name}"),
    };
    match source.pattern {
        None => format!(", from {carrier}"),
        Some(_) => format!(", from a part of {carrier}"),
    }
}
