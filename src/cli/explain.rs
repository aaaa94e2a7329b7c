//! `fencegate explain`: what the gate would make of a request, in plain words. It asks the very rules that judge
//! requests; it knows no marks, so that a comparison is described and not decided.

use std::fmt::Write;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::process::ExitCode;

use httparse::Header;

use crate::config::{Config, Listener};
use crate::rules::{
    Judgement, Missing, Mode, Policy, Reads, Refusal, Request, Rule, Scratch, Tried, is_field_name,
};

/// The arguments of `fencegate explain`.
#[derive(clap::Args)]
pub(super) struct Arguments {
    /// The configuration.
    #[arg(short, long, value_name = "FILE")]
    config: PathBuf,
    /// The request's method.
    method: String,
    /// The request's URL, or its path alone.
    url: String,
    /// A header field of the request.
    #[arg(short = 'H', long = "header", value_name = "NAME: VALUE")]
    headers: Vec<String>,
    /// The listener that takes the request; else the one at the URL's address, or the first.
    #[arg(long, value_name = "NAME")]
    listener: Option<String>,
}

/// Explains one request.
pub(super) fn run(arguments: &Arguments) -> ExitCode {
    let (config, _) = match super::load(&arguments.config) {
        Ok(loaded) => loaded,
        Err(code) => return code,
    };
    match explain(&config, arguments) {
        Ok(text) => {
            print!("{text}");
            ExitCode::SUCCESS
        }
        Err(message) => {
            eprintln!("fencegate: {message}");
            ExitCode::from(super::WRONG)
        }
    }
}

fn explain(config: &Config, arguments: &Arguments) -> Result<String, String> {
    if !is_field_name(&arguments.method) {
        return Err(format!("{:?} is not an HTTP method", arguments.method));
    }
    let (authority, target) = split_url(&arguments.url)?;
    let listener = choose(config, arguments.listener.as_deref(), authority)?;
    let pairs = arguments
        .headers
        .iter()
        .map(|h| split_header(h))
        .collect::<Result<Vec<_>, _>>()?;
    let bind = listener.bind.to_string();
    let host_field = pairs.iter().find(|(name, _)| name.eq_ignore_ascii_case("host"));
    let host = host_field.map(|(_, value)| *value).or(authority).unwrap_or(&bind);
    let fields: Vec<Header<'_>> = pairs
        .iter()
        .map(|(name, value)| Header {
            name,
            value: value.as_bytes(),
        })
        .collect();
    let request = Request {
        method: &arguments.method,
        target,
        host,
        fields: &fields,
    };
    Ok(describe(listener, &request))
}

fn describe(listener: &Listener, request: &Request<'_>) -> String {
    let rules = &listener.rules;
    let kind = if rules.is_safe(request.method) {
        "a read"
    } else {
        "a write"
    };
    let mut text = String::new();
    let mut line = |label: &str, what: &str| {
        let _ = writeln!(text, "{label:<10}{what}");
    };
    line(
        "listener",
        &format!("{} ({} to {})", listener.name, listener.bind, listener.upstream),
    );
    line(
        "request",
        &format!("{} {}, {kind}", request.method, request.target),
    );
    let mut scratch = Scratch::default();
    for (rule, tried) in rules.trace(request, &mut scratch) {
        line("rule", &format!("{}: {}", rule.name, why(rule, tried, request)));
        if !matches!(tried, Tried::OtherPath | Tried::OtherMethod) {
            break;
        }
    }
    let judgement = rules.judge(request, &mut scratch);
    for claim in scratch.claims() {
        line("resource", claim.resource);
        match claim.token {
            Some(token) => line(
                "token",
                &format!("{} ({})", claim.format.show(token), claim.format.as_str()),
            ),
            None => line("token", "none"),
        }
    }
    line("decision", &decide(listener, &judgement));
    text
}

fn why(rule: &Rule, tried: Tried, request: &Request<'_>) -> String {
    let (path, method) = (rule.path.as_str(), request.method);
    let takes = || {
        rule.methods
            .iter()
            .flatten()
            .map(|m| &**m)
            .collect::<Vec<_>>()
            .join(", ")
    };
    match tried {
        Tried::Matches => format!("matches, by the path {path}"),
        Tried::OtherPath => format!("does not match: the path is not {path}"),
        Tried::OtherMethod => format!(
            "does not match: the path is {path}, and {method} is not one of {}",
            takes()
        ),
        Tried::MethodCase => format!(
            "can't be told: {method} differs from one of {} in letter case only",
            takes()
        ),
        Tried::Parameters => format!("can't be told: the path is {path} only without what follows a ;"),
    }
}

fn decide(listener: &Listener, judgement: &Judgement<'_>) -> String {
    match judgement {
        Judgement::Pass { rule: None, write } => format!(
            "passes unfenced: no rule matches, and unmatched.{} is {}",
            if *write { "writes" } else { "reads" },
            policy(if *write {
                listener.rules.unmatched.writes
            } else {
                listener.rules.unmatched.reads
            })
        ),
        Judgement::Pass { rule: Some(rule), .. } if rule.reads == Reads::Ignore => {
            "passes: the rule has reads: ignore".into()
        }
        Judgement::Pass { rule: Some(_), .. } => "passes: it is a read, and carries no token".into(),
        Judgement::Fenced { rule, write } => compared(rule, *write),
        Judgement::Refused(refusal) => refused(refusal),
    }
}

fn compared(rule: &Rule, write: bool) -> String {
    let mut text = String::from(
        "compared: a token lower than the highest seen for its resource is refused (stale-token), an equal one goes on, \
         a higher one raises the mark and waits for older writes",
    );
    let _ = write!(text, ", for up to {:?}", rule.drain_timeout);
    match rule.missing {
        Missing::Deny => {}
        Missing::Pass if write => text.push_str("; without a token it passes as older than every token"),
        Missing::PassUntilFenced if write => {
            text.push_str("; without a token it passes until the resource has seen one")
        }
        Missing::Pass | Missing::PassUntilFenced => {}
    }
    text + observed(rule)
}

fn refused(refusal: &Refusal<'_>) -> String {
    let text = format!("refused ({}): {}", refusal.reason.as_str(), refusal.detail);
    match refusal.rule {
        Some(rule) if !refusal.binds() => text + observed(rule),
        _ => text,
    }
}

fn observed(rule: &Rule) -> &'static str {
    match rule.mode {
        Mode::Enforce => "",
        Mode::Observe => "; the rule only observes: this is counted and logged, and the request goes through",
    }
}

fn policy(policy: Policy) -> &'static str {
    match policy {
        Policy::Pass => "pass",
        Policy::Deny => "deny",
    }
}

fn split_url(url: &str) -> Result<(Option<&str>, &str), String> {
    if url.contains('#') {
        return Err(format!(
            "{url:?} has a fragment, and clients never send one: leave it out"
        ));
    }
    if url.starts_with('/') {
        return Ok((None, url));
    }
    let rest = url
        .strip_prefix("http://")
        .or_else(|| url.strip_prefix("https://"))
        .ok_or_else(|| format!("{url:?} is neither a URL, as http://HOST/PATH, nor a path, as /PATH"))?;
    let at = rest.find(['/', '?']).unwrap_or(rest.len());
    let target = match &rest[at..] {
        "" => "/",
        target if target.starts_with('/') => target,
        _ => return Err(format!("{url:?} has a query and no path: write a / before the ?")),
    };
    Ok((Some(&rest[..at]), target))
}

fn split_header(text: &str) -> Result<(&str, &str), String> {
    match text.split_once(':') {
        Some((name, value)) if is_field_name(name) => Ok((name, value.trim_matches([' ', '\t']))),
        _ => Err(format!(
            "{text:?} is not a header field; write it as 'Name: value'"
        )),
    }
}

/// The listener that was named, or that is at the URL's address; else the first, if none can be told from the
/// others.
fn choose<'c>(
    config: &'c Config,
    name: Option<&str>,
    authority: Option<&str>,
) -> Result<&'c Listener, String> {
    let listeners = &config.listeners;
    let names = || listeners.iter().map(|l| &*l.name).collect::<Vec<_>>().join(", ");
    if let Some(name) = name {
        let found = listeners.iter().find(|l| *l.name == *name);
        return found.ok_or_else(|| format!("no listener is named {name:?}; there are {}", names()));
    }
    let first = listeners.first().ok_or("the configuration has no listener")?;
    match authority {
        Some(authority) if listeners.len() > 1 => listeners
            .iter()
            .find(|l| listens_at(l.bind, authority))
            .ok_or_else(|| {
                format!(
                    "no listener is at {authority}; name one with --listener: {}",
                    names()
                )
            }),
        _ => Ok(first),
    }
}

fn listens_at(bind: SocketAddr, authority: &str) -> bool {
    let (host, port) = match authority.rsplit_once(':') {
        Some((host, port)) if !port.contains(']') => (host, port.parse().unwrap_or(0)),
        _ => (authority, 80),
    };
    let host = host.trim_start_matches('[').trim_end_matches(']');
    let same_host = match host.parse::<IpAddr>() {
        Ok(ip) => bind.ip() == ip || bind.ip().is_unspecified(),
        Err(_) => true,
    };
    port == bind.port() && same_host
}
