//! Why the gate refused or failed a request: one closed set, matched without a catch-all wherever it is turned
//! into a status, a metric, an event or a reply of another protocol.

/// The value of `Fencegate-Reason`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Reason {
    /// The token is lower than the highest seen for the resource.
    StaleToken,
    /// The rule wants a token and none came.
    MissingToken,
    /// A token came that is not one in the rule's format.
    MalformedToken,
    /// The backend could read the path differently than the gate.
    AmbiguousPath,
    /// A field that asks the backend to take another method.
    MethodOverride,
    /// The request is not well-formed HTTP, or was not sent in time.
    BadRequest,
    /// A raise by more than the rule's `max_step`.
    StepTooLarge,
    /// A write that no rule matches.
    UnmatchedWrite,
    /// This client may not present tokens here.
    NotAllowed,
    /// An upgraded connection can't be fenced.
    UpgradeRefused,
    /// Older writes were not settled within `drain_timeout`, or the wait after a crash is not over.
    Draining,
    /// The mark could not be made durable.
    StoreUnavailable,
    /// Another instance owns the fences.
    NotOwner,
    /// A limit on what may wait was reached.
    Overloaded,
    /// The backend could not be connected; nothing was sent.
    UpstreamUnreachable,
    /// The request was sent, at least in part, and the answer was lost.
    UpstreamFailed,
    /// The answer did not come in time.
    UpstreamTimeout,
}

impl Reason {
    /// The word on the wire, as in `Fencegate-Reason`.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Reason::StaleToken => "stale-token",
            Reason::MissingToken => "missing-token",
            Reason::MalformedToken => "malformed-token",
            Reason::AmbiguousPath => "ambiguous-path",
            Reason::MethodOverride => "method-override",
            Reason::BadRequest => "bad-request",
            Reason::StepTooLarge => "step-too-large",
            Reason::UnmatchedWrite => "unmatched-write",
            Reason::NotAllowed => "not-allowed",
            Reason::UpgradeRefused => "upgrade-refused",
            Reason::Draining => "draining",
            Reason::StoreUnavailable => "store-unavailable",
            Reason::NotOwner => "not-owner",
            Reason::Overloaded => "overloaded",
            Reason::UpstreamUnreachable => "upstream-unreachable",
            Reason::UpstreamFailed => "upstream-failed",
            Reason::UpstreamTimeout => "upstream-timeout",
        }
    }
}
