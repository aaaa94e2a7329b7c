//! What a client reads where its command does not go through: the one place that turns a [`Reason`] into RESP.
//!
//! `-FENCED` and words that a program can look for, then what is known of the resource, the rule, and why.

use std::fmt::Write as _;

use crate::base::Reason;
use crate::wire::resp::write_error;

/// A refusal.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Refusal {
    /// Why.
    pub reason: Reason,
    /// In words, for a person.
    pub detail: String,
    /// The resource that it is about.
    pub resource: Option<String>,
    /// The token that the connection presents, in the rule's format.
    pub token: Option<String>,
    /// The highest token seen, in the rule's format.
    pub highest: Option<String>,
    /// The index of the rule that it falls under.
    pub rule: Option<usize>,
    /// The command's name, where it is known.
    pub command: Option<String>,
}

/// Longer names are cut in an answer; the log has them whole.
const NAME_CHARS_MAX: usize = 200;

impl Refusal {
    /// A refusal that names nothing yet.
    #[must_use]
    pub fn new(reason: Reason, detail: impl Into<String>) -> Refusal {
        Refusal {
            reason,
            detail: detail.into(),
            resource: None,
            token: None,
            highest: None,
            rule: None,
            command: None,
        }
    }

    /// Appends it as an error of RESP; `rule` is the rule's name.
    pub fn write(&self, rule: Option<&str>, out: &mut Vec<u8>) {
        let mut text = format!("FENCED {}", words(self.reason));
        if let (Reason::StaleToken | Reason::StepTooLarge, Some(token), Some(highest)) =
            (self.reason, &self.token, &self.highest)
        {
            let sign = if self.reason == Reason::StaleToken {
                '<'
            } else {
                '>'
            };
            let _ = write!(text, " {token} {sign} {highest}");
        }
        if let Some(resource) = &self.resource {
            let shown: String = resource.chars().take(NAME_CHARS_MAX).collect();
            let _ = write!(text, " resource={shown}");
        }
        if let Some(rule) = rule {
            let _ = write!(text, " rule={rule}");
        }
        if !self.detail.is_empty() {
            let _ = write!(text, ": {}", self.detail);
        }
        write_error(out, &text);
    }
}

/// The words behind `-FENCED`.
fn words(reason: Reason) -> &'static str {
    match reason {
        Reason::StaleToken => "stale token",
        Reason::MissingToken => "missing token",
        Reason::MalformedToken => "malformed token",
        Reason::StepTooLarge => "step too large",
        Reason::UnmatchedWrite => "unmatched write",
        Reason::NotAllowed => "not allowed",
        Reason::Draining => "draining",
        Reason::StoreUnavailable => "store unavailable",
        Reason::NotOwner => "not owner",
        Reason::Overloaded => "overloaded",
        Reason::UpstreamUnreachable => "upstream unreachable",
        Reason::UpstreamFailed => "upstream failed",
        Reason::UpstreamTimeout => "upstream timeout",
        Reason::BadRequest => "bad request",
        Reason::AmbiguousPath | Reason::MethodOverride | Reason::UpgradeRefused => "refused",
    }
}

#[cfg(test)]
mod tests {
    use super::Refusal;
    use crate::base::Reason;

    #[test]
    fn a_stale_token_reads_as_documented() {
        let refusal = Refusal {
            resource: Some("orders/1\r\n+OK".into()),
            token: Some("33".into()),
            highest: Some("34".into()),
            ..Refusal::new(Reason::StaleToken, "")
        };
        let mut out = Vec::new();
        refusal.write(Some("orders"), &mut out);
        let text = String::from_utf8(out).unwrap();
        assert_eq!(
            text,
            "-FENCED stale token 33 < 34 resource=orders/1  +OK rule=orders\r\n"
        );
    }
}
