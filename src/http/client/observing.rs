//! What is noted of a request whose rule only observes: it goes through whatever was found.

use super::Client;
use crate::base::{Reason, Token};
use crate::keeper::Sighting;
use crate::observe::Decision;
use crate::rules::Rule;

impl Client<'_> {
    /// A request that would have been refused before its tokens were compared.
    pub(super) fn note_refusal(&self, reason: Reason, rule: Option<&Rule>) {
        if let Some(decision) = Decision::of(reason) {
            self.gate.decisions(rule).count(decision);
        }
        let rule = rule.map_or("", |rule| &rule.name);
        tracing::info!(rule, reason = reason.as_str(), "observed: would be refused");
    }

    /// What comparing its tokens would have led to.
    pub(super) fn note_sighting(&self, sighting: Sighting, rule: &Rule) {
        self.gate.decisions(Some(rule)).count(sighted(sighting));
        let (index, highest) = match sighting {
            Sighting::Stale { index, highest } => (index, Some(highest)),
            Sighting::StepTooLarge { index, highest } => (index, Some(highest)),
            Sighting::Missing { index } => (index, None),
            Sighting::Admitted | Sighting::Raised | Sighting::Passed => return,
        };
        let Some(claim) = self.scratch.claim(index) else {
            return;
        };
        let shown = |token: Option<Token>| token.map_or(String::new(), |t| claim.format.show(t).to_string());
        let (token, highest) = (shown(claim.token), shown(highest));
        tracing::info!(
            rule = &*rule.name,
            resource = claim.resource,
            token,
            highest,
            "observed: would be refused"
        );
    }
}

/// How a sighting is counted.
fn sighted(sighting: Sighting) -> Decision {
    match sighting {
        Sighting::Admitted => Decision::Admitted,
        Sighting::Raised => Decision::Raised,
        Sighting::Stale { .. } => Decision::Stale,
        Sighting::Missing { .. } => Decision::Missing,
        Sighting::StepTooLarge { .. } => Decision::Malformed,
        Sighting::Passed => Decision::Passed,
    }
}
