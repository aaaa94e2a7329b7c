//! What the HTTP gate would make of a request. It writes the request's head as a client would send it, and asks the
//! very parser and the very rules that judge requests.

mod why;

use std::fmt::Write;
use std::net::{IpAddr, SocketAddr};

use httparse::Header;

use self::why::{came, origin, why};
use super::{Arguments, Lines, named, names};
use crate::base::Reason;
use crate::config::{Config, HttpListener, Listener};
use crate::rules::{
    Judgement, Missing, Mode, Policy, Reads, Refusal, Request, Rule, Scratch, Sender, Tried, is_field_name,
};
use crate::wire::http1::{
    Framing, HeadError, HeaderStorage, RequestHead, Upgrade, parse_request, write_request_head,
};

/// Explains the request that the arguments mean.
pub(super) fn explain(config: &Config, arguments: &Arguments) -> Result<String, String> {
    let [method, url] = &arguments.words[..] else {
        return Err(
            "a request is a METHOD and a URL, as PUT http://127.0.0.1:8080/orders/1 or PUT /orders/1".into(),
        );
    };
    if !is_field_name(method) {
        return Err(format!("{method:?} is not an HTTP method"));
    }
    let (authority, target) = split_url(url)?;
    let listener = choose(config, arguments.listener.as_deref(), authority)?;
    let bind = listener.bind.to_string();
    let sent = Sent {
        method,
        target,
        url: authority.map(|_| &**url),
        from: arguments.from,
        head: write_head(arguments, method, target, authority.unwrap_or(&bind))?,
    };
    Ok(describe(listener, &sent))
}

/// The request as a client sends it.
struct Sent<'a> {
    method: &'a str,
    target: &'a str,
    /// The whole URL, where more than its path was given.
    url: Option<&'a str>,
    from: IpAddr,
    head: String,
}

impl Sent<'_> {
    /// Why a client that sends the whole URL as its target would be refused, where one that sends the path is not.
    fn refused_as_url(&self) -> Option<HeadError> {
        let fields = self.head.split_once("\r\n")?.1;
        let head = format!("{} {} HTTP/1.1\r\n{fields}", self.method, self.url?);
        parse_request(head.as_bytes(), &mut HeaderStorage::new()).err()
    }
}

/// Writes the head that the arguments mean. What is wrong with it as HTTP is for the parser to say.
fn write_head(arguments: &Arguments, method: &str, target: &str, host: &str) -> Result<String, String> {
    let mut head = format!("{method} {target} HTTP/1.1\r\n");
    let mut lines = arguments.headers.clone();
    if !lines.iter().any(|line| is_named(line, "host")) {
        lines.insert(0, format!("Host: {host}"));
    }
    for line in lines {
        if !line.contains(':') || line.contains(['\r', '\n']) {
            return Err(format!(
                "{line:?} is not a header field; write it as 'Name: value'"
            ));
        }
        head.push_str(&line);
        head.push_str("\r\n");
    }
    head.push_str("\r\n");
    Ok(head)
}

fn is_named(line: &str, wanted: &str) -> bool {
    line.split_once(':')
        .is_some_and(|(name, _)| name.eq_ignore_ascii_case(wanted))
}

fn describe(listener: &HttpListener, sent: &Sent<'_>) -> String {
    let kind = if listener.rules.is_safe(sent.method) {
        "a read"
    } else {
        "a write"
    };
    let mut lines = Lines::default();
    lines.add(
        "listener",
        &format!("{} ({} to {})", listener.name, listener.bind, listener.upstream),
    );
    lines.add("request", &format!("{} {}, {kind}", sent.method, sent.target));
    let mut storage = HeaderStorage::new();
    match read(listener, sent, &mut storage) {
        Ok(head) => judge(listener, sent, &head, &mut lines),
        Err(refused) => lines.add("decision", &refused),
    }
    lines.0
}

/// Reads the head as the gate does, or says how it is refused before any rule is looked at.
fn read<'h, 'b>(
    listener: &HttpListener,
    sent: &'b Sent<'_>,
    storage: &'h mut HeaderStorage<'b>,
) -> Result<RequestHead<'h, 'b>, String> {
    let before = |reason: Reason, detail: &str, status: u16| {
        format!(
            "refused ({}): {detail}; the answer is {status}, and no rule is looked at",
            reason.as_str()
        )
    };
    if sent.head.len() > listener.limits.max_header_bytes {
        return Err(before(
            Reason::BadRequest,
            "the head is larger than max_header_bytes",
            431,
        ));
    }
    let head = parse_request(sent.head.as_bytes(), storage)
        .map_err(|error| before(Reason::BadRequest, error.detail, error.status()))?;
    if head.upgrade == Upgrade::Other {
        return Err(before(
            Reason::UpgradeRefused,
            "an upgraded connection can't be fenced",
            403,
        ));
    }
    Ok(head)
}

/// What the rules make of a head that was read.
fn judge(listener: &HttpListener, sent: &Sent<'_>, head: &RequestHead<'_, '_>, lines: &mut Lines) {
    let rules = &listener.rules;
    let request = Request {
        method: head.method,
        target: head.target,
        host: head.host,
        fields: head.fields,
        from: Sender::at(sent.from),
    };
    let mut scratch = Scratch::default();
    let mut taken = None;
    for (rule, tried) in rules.trace(&request, &mut scratch) {
        lines.add("rule", &format!("{}: {}", rule.name, why(rule, tried, &request)));
        if is_taken(tried) {
            taken = Some(rule);
            break;
        }
    }
    if taken.is_some_and(|rule| rule.allow.is_some()) {
        lines.add("from", &format!("{} (--from says who sends it)", sent.from));
    }
    let judgement = rules.judge(&request, &mut scratch);
    let refused = matches!(judgement, Judgement::Refused(_));
    for claim in scratch.claims() {
        lines.add("resource", claim.resource);
        let fence = taken.and_then(|rule| rule.fences.get(claim.fence));
        let token = match (claim.token, fence) {
            (Some(token), Some(fence)) => format!(
                "{} ({}){}",
                claim.format.show(token),
                claim.format.as_str(),
                origin(&fence.token)
            ),
            // The refusal may have come before its token was read.
            (None, Some(fence)) if refused => came(&request, fence),
            (_, _) => "none".into(),
        };
        lines.add("token", &token);
    }
    lines.add("decision", &decide(listener, &judgement));
    match judgement {
        Judgement::Refused(refusal) if refusal.binds() => {}
        _ => note_changes(sent, head, lines),
    }
}

/// Whether no later rule is asked.
fn is_taken(tried: Tried) -> bool {
    match tried {
        Tried::Matches | Tried::MethodCase | Tried::Parameters | Tried::Shifted | Tried::Unclear(_) => true,
        Tried::OtherPath
        | Tried::OtherMethod
        | Tried::OtherHost
        | Tried::OtherHeader(_)
        | Tried::OtherQuery(_) => false,
    }
}

/// What does not reach the backend as it came, and what hangs on how the request is sent.
fn note_changes(sent: &Sent<'_>, head: &RequestHead<'_, '_>, lines: &mut Lines) {
    let mut forwarded = Vec::new();
    write_request_head(&mut forwarded, head, None, false);
    let forwarded = String::from_utf8_lossy(&forwarded);
    let ends_here = |f: &&Header<'_>| !forwarded.lines().any(|line| is_named(line, f.name));
    let names: Vec<&str> = head.fields.iter().filter(ends_here).map(|f| f.name).collect();
    if !names.is_empty() {
        lines.add("note", &format!("not forwarded: {}", names.join(", ")));
    }
    if head.framing == Framing::Chunked {
        lines.add(
            "note",
            "the body goes on in chunks of the gate's own, without extensions; a token in its trailers is refused (400)",
        );
    }
    if let Some(error) = sent.refused_as_url() {
        lines.add(
            "note",
            &format!(
                "sent with the whole URL as its target it is refused ({}): {}",
                error.status(),
                error.detail
            ),
        );
    }
}

fn decide(listener: &HttpListener, judgement: &Judgement<'_>) -> String {
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
    if url.contains(['\r', '\n']) {
        return Err(format!("{url:?} has a line break"));
    }
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

/// The listener that was named, or that is at the URL's address; else the first, if none can be told from the
/// others.
fn choose<'c>(
    config: &'c Config,
    name: Option<&str>,
    authority: Option<&str>,
) -> Result<&'c HttpListener, String> {
    let speaks = |listener: &'c Listener| {
        let other = || format!("listener {:?} does not speak HTTP", &**listener.name());
        listener.http().ok_or_else(other)
    };
    if let Some(name) = name {
        return speaks(named(config, name)?);
    }
    let mut listeners = config.listeners.iter().filter_map(Listener::http);
    let first = listeners
        .next()
        .ok_or("the configuration has no listener for HTTP")?;
    match authority {
        Some(authority) if config.listeners.len() > 1 => {
            let found = config.listeners.iter().find(|l| listens_at(l.bind(), authority));
            speaks(found.ok_or_else(|| {
                format!(
                    "no listener is at {authority}; name one with --listener: {}",
                    names(config)
                )
            })?)
        }
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
