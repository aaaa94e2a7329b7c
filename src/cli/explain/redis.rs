//! What the Redis gate would make of a command. It asks the server about the command, as the gate does, and never
//! executes it.

use super::{Arguments, Lines};
use crate::config::RedisListener;
use crate::redis::{self, Described};
use crate::rules::redis::{Act, Carrier, Identity, Key, NoToken, Notes, Verdict};
use crate::rules::{Missing, Mode, Sender};

/// Explains the command that the arguments mean.
pub(super) fn explain(listener: &RedisListener, arguments: &Arguments) -> Result<String, String> {
    if !arguments.headers.is_empty() {
        return Err("a command has no header fields; its token is given by --token".into());
    }
    if arguments.words.is_empty() {
        return Err("a command is its words, as SET orders:1 x".into());
    }
    let words: Vec<&[u8]> = arguments.words.iter().map(|word| word.as_bytes()).collect();
    let mut identity = Identity::default();
    if let Some(token) = &arguments.token {
        let change = listener.rules.read_token(Carrier::Fence, token.as_bytes());
        let change =
            change.map_err(|NoToken| format!("{token:?} is no token that a rule of this listener reads"))?;
        identity.apply(&change);
    }
    if let Some(decision) = redis::taken(&words) {
        let mut lines = Lines::default();
        lines.add("listener", &place(listener));
        lines.add("decision", decision);
        return Ok(lines.0);
    }
    let command = ask(listener, &words)?;
    Ok(describe(listener, arguments, &identity, &command))
}

fn ask(listener: &RedisListener, words: &[&[u8]]) -> Result<Described, String> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| format!("the system gives no runtime: {error}"))?;
    let asked = runtime.block_on(async { redis::describe(&redis::asker(listener), words).await });
    asked.map_err(|error| {
        format!(
            "which keys a command touches is for its server to say, and {} can't be asked: {error}",
            listener.upstream
        )
    })
}

fn place(listener: &RedisListener) -> String {
    format!("{} ({} to {})", listener.name, listener.bind, listener.upstream)
}

fn describe(
    listener: &RedisListener,
    arguments: &Arguments,
    identity: &Identity,
    command: &Described,
) -> String {
    let mut lines = Lines::default();
    lines.add("listener", &place(listener));
    let kind = match (command.kind.write, command.known) {
        (true, true) => "a write",
        (false, _) => "no write",
        (true, false) => "unknown to the server, and so a write",
    };
    lines.add("command", &format!("{}, {kind}", command.name));
    match &command.keys {
        None => lines.add("keys", "can't be told"),
        Some(keys) if keys.is_empty() => lines.add("keys", "none"),
        Some(keys) => {
            for (key, write) in keys {
                let how = if *write { "written" } else { "read" };
                lines.add("key", &format!("{}, {how}", key.escape_ascii()));
            }
        }
    }
    let act = Act {
        name: &command.name,
        write: command.kind.write,
        undeclared: command.kind.undeclared,
        identity,
        from: Sender::at(arguments.from),
    };
    let keys = command
        .keys
        .iter()
        .flatten()
        .map(|(name, write)| Key { name, write: *write });
    let mut notes = Notes::default();
    let verdict = listener.rules.judge(&act, keys, &mut notes);
    for claim in notes.claims() {
        let rule = &listener.rules.rules[claim.rule];
        let token = match claim.token {
            Some(token) => format!("token {}", listener.rules.format_of(&claim).show(token)),
            None => "no token".into(),
        };
        lines.add(
            "resource",
            &format!("{} by rule {}, {token}", claim.resource, rule.name),
        );
    }
    lines.add("decision", &decision(listener, &notes, verdict));
    lines.0
}

fn decision(listener: &RedisListener, notes: &Notes, verdict: Verdict) -> String {
    let rules = &listener.rules.rules;
    let observed = notes.observed.first().map(|(rule, reason)| {
        format!(
            "; rule {} observes, and would refuse it ({})",
            rules[*rule].name,
            reason.as_str()
        )
    });
    let decision = match verdict {
        Verdict::Pass => "passes without a comparison".into(),
        Verdict::Refused(denial) => {
            let rule = denial.rule.map(|rule| format!(" by rule {}", rules[rule].name));
            format!(
                "refused{} ({}): {}",
                rule.unwrap_or_default(),
                denial.reason.as_str(),
                denial.detail
            )
        }
        Verdict::Fenced => {
            let enforced: Vec<_> = notes
                .claims()
                .filter(|claim| rules[claim.rule].mode == Mode::Enforce)
                .collect();
            let tokenless = enforced.iter().any(|claim| claim.token.is_none());
            let until = enforced
                .iter()
                .any(|claim| rules[claim.rule].missing == Missing::PassUntilFenced);
            match (enforced.is_empty(), tokenless, until) {
                (true, _, _) => "passes; its rules only observe".into(),
                (false, false, _) => {
                    "compared with the highest token seen: a lower one is refused, a higher one raises it"
                        .into()
                }
                (false, true, false) => "passes without a token, as older than every token".into(),
                (false, true, true) => "passes without a token until its resource has seen one".into(),
            }
        }
    };
    decision + &observed.unwrap_or_default()
}
