//! What the gate for raw TCP would make of a session that names a resource and presents a token, in the way that its
//! rule looks for them.

use super::{Arguments, Lines};
use crate::config::TcpListener;
use crate::rules::{Missing, Mode, Opening, Scratch, Sender, TcpResource, TcpRule, TcpToken, Unfit};

/// Explains the session that the arguments mean.
pub(super) fn explain(listener: &TcpListener, arguments: &Arguments) -> Result<String, String> {
    if !arguments.words.is_empty() || !arguments.headers.is_empty() {
        return Err(format!(
            "listener {:?} is one of raw TCP: a session has no method, URL or fields; say what it names by --resource and --token",
            &*listener.name
        ));
    }
    let rule = &listener.rule;
    let (tlvs, preface) = presented(rule, arguments)?;
    let opening = Opening { tlvs: &tlvs, preface };
    let mut scratch = Scratch::default();
    let judged = rule.judge(&opening, &Sender::at(arguments.from), &mut scratch);
    let mut lines = Lines::default();
    lines.add(
        "listener",
        &format!("{} ({} to {})", listener.name, listener.bind, listener.upstream),
    );
    lines.add("session", &opens_with(listener));
    lines.add("rule", &format!("{}: takes every session", rule.name));
    for claim in scratch.claims() {
        lines.add("resource", claim.resource);
        let token = claim
            .token
            .map(|t| format!("{} ({})", claim.format.show(t), claim.format.as_str()));
        let token = token.or_else(|| arguments.token.clone().filter(|_| judged.is_err()));
        lines.add("token", token.as_deref().unwrap_or("none"));
    }
    lines.add("decision", &decide(rule, judged));
    Ok(lines.0)
}

type Tlvs<'a> = Vec<(u8, &'a [u8])>;
type Preface<'a> = Option<(&'a str, Option<&'a str>)>;

/// What a client would put in front of the session, where the rule looks: the first fence's resource and token.
fn presented<'a>(rule: &TcpRule, arguments: &'a Arguments) -> Result<(Tlvs<'a>, Preface<'a>), String> {
    let (resource, token) = (arguments.resource.as_deref(), arguments.token.as_deref());
    let mut tlvs = Tlvs::new();
    for fence in &rule.fences {
        if let (TcpResource::Tlv(kind), Some(name)) = (&fence.resource, resource) {
            tlvs.push((*kind, name.as_bytes()));
        }
        if let (TcpToken::Tlv(kind), Some(text)) = (fence.token, token) {
            tlvs.push((kind, text.as_bytes()));
        }
    }
    if !rule.reads_preface() {
        return Ok((tlvs, None));
    }
    match (resource, token) {
        (Some(name), token) => Ok((tlvs, Some((name, token)))),
        (None, Some(_)) => Err("a preface names a resource too: give --resource".into()),
        (None, None) => Ok((tlvs, None)),
    }
}

fn opens_with(listener: &TcpListener) -> String {
    let mut parts = Vec::new();
    if listener.accept_proxy {
        parts.push("a PROXY header");
    }
    if listener.tls.is_some() {
        parts.push("TLS");
    }
    if listener.rule.reads_preface() {
        parts.push("the line FENCE RESOURCE TOKEN");
    }
    match parts.is_empty() {
        true => "begins at once: nothing stands in front of it".into(),
        false => format!("opens with {}", parts.join(", then ")),
    }
}

fn decide(rule: &TcpRule, judged: Result<(), Unfit>) -> String {
    let text = match judged {
        Err(unfit) => format!(
            "refused ({}): {}; its connection is reset",
            unfit.reason.as_str(),
            unfit.detail
        ),
        Ok(()) => {
            let text = format!(
                "compared: a token lower than the highest seen for its resource is refused and reset, an equal one goes on, \
                 a higher one raises the mark, cuts older sessions and waits for them, for up to {:?}",
                rule.drain_timeout
            );
            match rule.missing {
                Missing::Deny => text,
                Missing::Pass => text + "; without a token it passes as older than every token",
                Missing::PassUntilFenced => {
                    text + "; without a token it passes until the resource has seen one"
                }
            }
        }
    };
    match rule.mode {
        Mode::Enforce => text,
        Mode::Observe => {
            text + "; the rule only observes: this is counted and logged, and the session goes through"
        }
    }
}
