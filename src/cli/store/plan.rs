//! What taking in an export does to a store: worked out before anything is written, from what both hold. Called by
//! `store.rs`; pure.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use super::lines::Export;
use crate::cli::failed::Failed;
use crate::cli::fences::table::plain;
use crate::ledger::{AuditEntry, Change, Contents, Found, Mark};

/// What is done, and what is left as it is.
#[derive(Debug)]
pub(super) struct Plan {
    /// All of it, in the order in which it is done.
    pub(super) changes: Vec<Change>,
    /// What it comes from, for people.
    pub(super) source: String,
    /// The marker afterwards.
    pub(super) marker: Found,
    /// Marks of resources that the store didn't have.
    pub(super) new: usize,
    /// Marks that go up: from, to.
    pub(super) raised: Vec<(String, Mark, Mark)>,
    /// Marks that are there already.
    pub(super) same: usize,
    /// Marks that the store holds higher: held, offered.
    pub(super) higher: Vec<(String, Mark, Mark)>,
    /// Resets that are added to the audit trail.
    pub(super) noted: usize,
    /// Resets that stand there already.
    pub(super) known: usize,
}

impl Plan {
    /// # Errors
    /// Resources whose tokens are of another kind in the store: which of two is the newer can't be told.
    pub(super) fn of(held: &Contents, export: &Export) -> Result<Plan, Failed> {
        let offered = &export.contents;
        check_kinds(held, offered)?;
        let mut plan = Plan {
            changes: Vec::new(),
            source: format!("an export of kind {}, written at {}", export.kind, export.at),
            marker: marker(held.found, offered.found),
            new: 0,
            raised: Vec::new(),
            same: 0,
            higher: Vec::new(),
            noted: 0,
            known: 0,
        };
        for (name, mark) in &offered.marks {
            plan.mark(name, *mark, held.marks.get(name).copied());
        }
        plan.resets(&held.resets, &offered.resets);
        Ok(plan)
    }

    fn mark(&mut self, name: &str, mark: Mark, held: Option<Mark>) {
        match held {
            Some(held) if held.token > mark.token => return self.higher.push((name.to_owned(), held, mark)),
            Some(held) if held.token == mark.token => return self.same += 1,
            Some(held) => self.raised.push((name.to_owned(), held, mark)),
            None => self.new += 1,
        }
        let name = Arc::from(name);
        self.changes.push(Change::Raise { name, mark });
    }

    /// An import that is done again adds nothing twice.
    fn resets(&mut self, held: &[AuditEntry], offered: &[AuditEntry]) {
        let mut there: HashMap<_, usize> = HashMap::new();
        for entry in held {
            *there.entry(words(entry)).or_default() += 1;
        }
        for entry in offered {
            match there.get_mut(&words(entry)) {
                Some(left) if *left > 0 => {
                    *left -= 1;
                    self.known += 1;
                }
                Some(_) | None => {
                    self.noted += 1;
                    self.changes.push(Change::Note {
                        name: Arc::from(entry.name.as_str()),
                        mark: entry.mark,
                        audit: entry.audit.clone(),
                    });
                }
            }
        }
    }
}

/// Everything of an entry but its number, which is another one in each trail.
fn words(entry: &AuditEntry) -> (&str, u128, u64, [&str; 4]) {
    let audit = &entry.audit;
    let format = entry.mark.format.as_str();
    let texts = [format, &audit.from, &audit.reason, &audit.by];
    (&entry.name, entry.mark.token.0, entry.mark.raised_at_ms, texts)
}

fn check_kinds(held: &Contents, offered: &Contents) -> Result<(), Failed> {
    let differs = |(name, mark): (&String, &Mark)| {
        let held = held.marks.get(name)?;
        (!held.format.same_kind(mark.format)).then(|| {
            let (held, mark) = (held.format.as_str(), mark.format.as_str());
            format!("{}: {held} in the store, {mark} in the export", plain(name))
        })
    };
    let mut wrong: Vec<String> = offered.marks.iter().filter_map(differs).collect();
    if wrong.is_empty() {
        return Ok(());
    }
    let more = wrong.len().saturating_sub(SHOWN_MAX);
    wrong.truncate(SHOWN_MAX);
    if more > 0 {
        wrong.push(format!("and {more} more"));
    }
    Err(Failed::now(format!(
        "nothing was changed: the store and the export count these resources by different kinds of tokens, and neither is the newer one:\n{}",
        wrong.join("\n")
    )))
}

/// Clean only where both are: what was in flight under either may still take effect, for the longer of their times.
pub(super) fn marker(held: Found, offered: Found) -> Found {
    let clean = held.clean && offered.clean;
    let counts = |found: &&Found| clean || !found.clean;
    let both = [held, offered];
    let longest = both.iter().filter(counts).map(|found| found.settle_after).max();
    Found {
        clean,
        settle_after: longest.unwrap_or(Duration::ZERO),
    }
}

/// More would hide what they have in common.
const SHOWN_MAX: usize = 10;

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::{Found, marker};

    fn found(clean: bool, seconds: u64) -> Found {
        Found {
            clean,
            settle_after: Duration::from_secs(seconds),
        }
    }

    #[test]
    fn the_marker_is_clean_only_where_both_are_and_else_has_the_longest_wait_that_counts() {
        assert_eq!(marker(found(true, 60), found(true, 5)), found(true, 60));
        assert_eq!(marker(found(true, 60), found(false, 5)), found(false, 5));
        assert_eq!(marker(found(false, 60), found(true, 90)), found(false, 60));
        assert_eq!(marker(found(false, 60), found(false, 90)), found(false, 90));
    }
}
