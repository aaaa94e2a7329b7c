//! What is noted of a request whose rule only observes: it goes through whatever was found.

use super::Client;
use crate::base::{Reason, Token};
use crate::keeper::{Ask, Sighting};
use crate::observe::events;
use crate::rules::Rule;

/// What would have been refused, for the log and for those who listen.
struct Observed<'a> {
    reason: Reason,
    rule: Option<&'a Rule>,
    resource: Option<&'a str>,
    token: Option<String>,
    highest: Option<String>,
}

impl Client<'_> {
    /// A request that would have been refused before its tokens were compared.
    pub(super) fn note_refusal(&self, reason: Reason, rule: Option<&Rule>) {
        self.gate.decisions(rule).count_refused(reason, true);
        self.tell_observed(&Observed {
            reason,
            rule,
            resource: None,
            token: None,
            highest: None,
        });
    }

    /// What comparing its tokens would have led to.
    pub(super) fn note_sighting(&self, sighting: Sighting, asks: &[Ask<'_>], rule: &Rule) {
        sighting.count(asks, self.gate.decisions(Some(rule)));
        let (reason, index, highest) = match sighting {
            Sighting::Stale { index, highest } => (Reason::StaleToken, index, Some(highest)),
            Sighting::StepTooLarge { index, highest } => (Reason::StepTooLarge, index, Some(highest)),
            Sighting::Missing { index } => (Reason::MissingToken, index, None),
            Sighting::Admitted | Sighting::Raised | Sighting::Passed => return,
        };
        let Some(claim) = self.scratch.claim(index) else {
            return;
        };
        let shown = |token: Token| claim.format.show(token).to_string();
        self.tell_observed(&Observed {
            reason,
            rule: Some(rule),
            resource: Some(claim.resource),
            token: claim.token.map(shown),
            highest: highest.map(shown),
        });
    }

    fn tell_observed(&self, observed: &Observed<'_>) {
        let (rule, token) = (observed.rule.map(|rule| &*rule.name), observed.token.as_deref());
        let (highest, resource) = (observed.highest.as_deref(), observed.resource);
        let (method, path) = (self.line.method(), self.line.path());
        tracing::info!(
            rule,
            client = self.peer.ip,
            method,
            path,
            reason = observed.reason.as_str(),
            resource,
            token,
            highest,
            "observed: would be refused"
        );
        self.gate.metrics.events.refusal(events::Refusal {
            listener: &self.gate.listener.name,
            rule,
            reason: observed.reason,
            observed: true,
            status: None,
            resource,
            token,
            highest,
            client: self.peer.address,
            method,
            path,
        });
    }
}
