//! What is noted of a request whose rule only observes: it goes through whatever was found.

use super::Client;
use crate::base::Token;
use crate::keeper::Sighting;
use crate::observe::Decision;
use crate::rules::Rule;

impl Client<'_> {
    /// What a rule that only observes would have refused.
    pub(super) fn note_sighting(&self, sighting: Sighting, rule: &Rule) {
        let (index, highest) = match sighting {
            Sighting::Stale { index, highest } => (index, Some(highest)),
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
pub(super) fn sighted(sighting: Sighting) -> Decision {
    match sighting {
        Sighting::Admitted => Decision::Admitted,
        Sighting::Raised => Decision::Raised,
        Sighting::Stale { .. } => Decision::Stale,
        Sighting::Missing { .. } => Decision::Missing,
        Sighting::Passed => Decision::Passed,
    }
}
