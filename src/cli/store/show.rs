//! What a store holds and what was done to it, for people and as JSON. Names come from requests: for people control
//! characters in them are escaped. Called by `store.rs`.

use std::time::Duration;

use serde_json::{Value, json};

use super::plan::Plan;
use super::seat::{Held, Seat};
use crate::admin::time::rfc3339;
use crate::cli::fences::table::{aligned, plain};
use crate::ledger::{AuditEntry, Found, Mark};

/// What `inspect` tells.
pub(super) fn text(seat: &Seat, held: &Held, prefix: &str, limit: usize) -> String {
    let contents = &held.contents;
    let mut lines = vec![
        format!("store    {} {}", seat.kind(), plain(&seat.place())),
        format!("format   {}", held.format),
        format!("marker   {}", marker(contents.found)),
    ];
    lines.extend(
        held.more
            .iter()
            .map(|(name, value)| format!("{name:<8} {}", plain(value))),
    );
    lines.push(format!("marks    {}", contents.marks.len()));
    lines.push(format!("resets   {}", contents.resets.len()));
    let (shown, more) = marks(held, prefix, limit);
    if !shown.is_empty() {
        let rows = shown.into_iter().map(|(name, mark)| {
            [
                plain(name),
                written(mark),
                mark.format.as_str().into(),
                rfc3339(mark.raised_at_ms),
            ]
        });
        lines.push(String::new());
        lines.push(aligned(
            ["RESOURCE", "MARK", "FORMAT", "RAISED AT"],
            rows.collect(),
        ));
    }
    if more {
        lines.push("there are more marks: --limit, --prefix".into());
    }
    let newest: Vec<_> = newest(held, limit).map(row).collect();
    if !newest.is_empty() {
        lines.push(String::new());
        let head = ["RESET", "AT", "RESOURCE", "FROM", "TO", "BY", "REASON"];
        lines.push(aligned(head, newest));
    }
    lines.join("\n")
}

/// What `inspect --json` tells.
pub(super) fn json(seat: &Seat, held: &Held, prefix: &str, limit: usize) -> Value {
    let contents = &held.contents;
    let (shown, more) = marks(held, prefix, limit);
    let shown: Vec<Value> = shown
        .into_iter()
        .map(|(name, mark)| {
            json!({
                "resource": name,
                "token": written(mark),
                "format": mark.format.as_str(),
                "raised_at": rfc3339(mark.raised_at_ms),
            })
        })
        .collect();
    let mut value = json!({
        "kind": seat.kind(),
        "place": seat.place(),
        "format": held.format,
        "clean": contents.found.clean,
        "settle_after_ms": u64::try_from(contents.found.settle_after.as_millis()).unwrap_or(u64::MAX),
        "mark_count": contents.marks.len(),
        "reset_count": contents.resets.len(),
        "marks": shown,
        "more": more,
        "resets": newest(held, limit).map(reset).collect::<Vec<_>>(),
    });
    for (name, text) in &held.more {
        value[*name] = text.as_str().into();
    }
    value
}

/// What `export` tells.
pub(super) fn exported(seat: &Seat, held: &Held) -> String {
    let contents = &held.contents;
    format!(
        "{} {}: {} and {} written out; {}",
        seat.kind(),
        plain(&seat.place()),
        counted(contents.marks.len(), "mark"),
        counted(contents.resets.len(), "reset"),
        marker(contents.found),
    )
}

/// What `import` tells.
pub(super) fn imported(seat: &Seat, plan: &Plan, dry_run: bool) -> String {
    let arrow = |(name, from, to): &(String, Mark, Mark)| {
        format!("raised  {}: {} -> {}", plain(name), written(from), written(to))
    };
    let stays = |(name, held, offered): &(String, Mark, Mark)| {
        format!(
            "stays   {}: {}, which is higher than the export's {}",
            plain(name),
            written(held),
            written(offered)
        )
    };
    let mut lines: Vec<String> = plan.raised.iter().map(arrow).collect();
    lines.extend(plan.higher.iter().map(stays));
    let would = if dry_run { "would be done to " } else { "" };
    lines.push(format!(
        "{would}{} {}, from {}:",
        seat.kind(),
        plain(&seat.place()),
        plain(&plan.source)
    ));
    lines.push(format!(
        "marks    {} new, {} raised, {} there already, {} higher in the store",
        plan.new,
        plan.raised.len(),
        plan.same,
        plan.higher.len()
    ));
    lines.push(format!(
        "resets   {} added, {} there already",
        plan.noted, plan.known
    ));
    lines.push(format!("marker   {}", marker(plan.marker)));
    lines.join("\n")
}

fn marks<'h>(held: &'h Held, prefix: &str, limit: usize) -> (Vec<(&'h str, &'h Mark)>, bool) {
    let all = &held.contents.marks;
    let mut matching = all
        .range::<str, _>((std::ops::Bound::Included(prefix), std::ops::Bound::Unbounded))
        .map(|(name, mark)| (name.as_str(), mark))
        .take_while(|(name, _)| name.starts_with(prefix));
    let shown = matching.by_ref().take(limit).collect();
    (shown, matching.next().is_some())
}

fn newest(held: &Held, limit: usize) -> impl Iterator<Item = &AuditEntry> {
    held.contents.resets.iter().rev().take(limit)
}

fn row(entry: &AuditEntry) -> [String; 7] {
    let AuditEntry {
        sequence,
        name,
        mark,
        audit,
    } = entry;
    let from = if audit.from.is_empty() { "-" } else { &audit.from };
    [
        sequence.to_string(),
        rfc3339(mark.raised_at_ms),
        plain(name),
        plain(from),
        written(mark),
        plain(&audit.by),
        plain(&audit.reason),
    ]
}

fn reset(entry: &AuditEntry) -> Value {
    let AuditEntry {
        sequence,
        name,
        mark,
        audit,
    } = entry;
    json!({
        "sequence": sequence,
        "at": rfc3339(mark.raised_at_ms),
        "resource": name,
        "from": (!audit.from.is_empty()).then_some(&audit.from),
        "to": written(mark),
        "format": mark.format.as_str(),
        "by": audit.by,
        "reason": audit.reason,
    })
}

fn marker(found: Found) -> String {
    let time = seconds(found.settle_after);
    if found.clean {
        format!("clean (settle_after {time}): the next start waits for nothing")
    } else {
        format!("not clean, settle_after {time}: new holders wait at least so long after the next start")
    }
}

fn seconds(time: Duration) -> String {
    let ms = time.as_millis();
    if ms.is_multiple_of(1000) {
        format!("{}s", ms / 1000)
    } else {
        format!("{ms}ms")
    }
}

fn written(mark: &Mark) -> String {
    mark.format.show(mark.token).to_string()
}

fn counted(n: usize, what: &str) -> String {
    let plural = if n == 1 { "" } else { "s" };
    format!("{n} {what}{plural}")
}
