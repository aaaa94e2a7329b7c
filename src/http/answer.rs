//! The answers that the gate gives itself: one place that turns a [`Reason`] into a status, a counter and a body.
//! `s3.rs` writes the body that S3's clients read.

mod s3;

use std::fmt::Write as _;

use serde::Serialize;

use crate::base::Reason;
use crate::wire::http1::Version;

pub use self::s3::RequestId;

/// An answer of the gate's own.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Answer {
    /// Why.
    pub reason: Reason,
    /// The status, where it isn't the reason's own: 431, 501, 505, 417, 408.
    pub status: Option<u16>,
    /// In words, for a person.
    pub detail: String,
    /// The resource that it is about.
    pub resource: Option<String>,
    /// The token that was presented, in the rule's format.
    pub token: Option<String>,
    /// The highest token seen, in the rule's format.
    pub highest: Option<String>,
    /// The rule that the request fell under.
    pub rule: Option<String>,
    /// Whether the write may have taken effect.
    pub applied: Applied,
    /// The request is itself conditional: its client would take a 412 for the store's own.
    pub conditional: bool,
}

/// Whether a refused or failed request may have taken effect.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Applied {
    /// It has not, and will not.
    No,
    /// It was sent, and its answer is lost.
    Unknown,
}

impl Applied {
    fn as_str(self) -> &'static str {
        match self {
            Applied::No => "no",
            Applied::Unknown => "unknown",
        }
    }
}

/// How the body is written.
#[derive(Clone, Copy, Debug)]
pub enum Form<'a> {
    /// RFC 9457, as JSON.
    Problem,
    /// S3's XML.
    S3 {
        /// The path that the request named; empty where it was not read.
        path: &'a str,
        /// The name of this request, in the answer and in the log.
        id: RequestId,
    },
}

impl Form<'_> {
    /// The name of this request, where the form has one.
    #[must_use]
    pub fn request_id(&self) -> Option<String> {
        match self {
            Form::Problem => None,
            Form::S3 { id, .. } => Some(id.to_string()),
        }
    }
}

/// RFC 9457.
#[derive(Serialize)]
struct Problem<'a> {
    r#type: String,
    title: &'a str,
    status: u16,
    detail: &'a str,
    reason: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    resource: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    token: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    highest: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    rule: Option<&'a str>,
    applied: &'a str,
}

impl Answer {
    /// An answer for `reason` that names nothing yet.
    #[must_use]
    pub fn new(reason: Reason, detail: impl Into<String>) -> Answer {
        Answer {
            reason,
            status: None,
            detail: detail.into(),
            resource: None,
            token: None,
            highest: None,
            rule: None,
            applied: Applied::No,
            conditional: false,
        }
    }

    /// The status on the wire.
    #[must_use]
    pub fn status(&self) -> u16 {
        self.status.unwrap_or(match self.reason {
            Reason::StaleToken if self.conditional => 403,
            Reason::StaleToken => 412,
            Reason::MissingToken => 428,
            Reason::MalformedToken | Reason::AmbiguousPath | Reason::MethodOverride | Reason::BadRequest => {
                400
            }
            Reason::StepTooLarge => 422,
            Reason::UnmatchedWrite | Reason::NotAllowed | Reason::UpgradeRefused => 403,
            Reason::Draining | Reason::StoreUnavailable | Reason::NotOwner | Reason::Overloaded => 503,
            Reason::UpstreamUnreachable | Reason::UpstreamFailed => 502,
            Reason::UpstreamTimeout => 504,
        })
    }

    /// Appends the answer to `out`. With `head_only` (the request was a HEAD) its body is left out.
    pub fn write(&self, out: &mut Vec<u8>, form: Form<'_>, version: Version, head_only: bool, close: bool) {
        let status = self.status();
        let (kind, body) = self.body(form);
        let mut head = String::with_capacity(320);
        let _ = write!(
            head,
            "HTTP/1.1 {status} {}\r\nContent-Type: {kind}\r\nContent-Length: {}\r\nFencegate-Reason: {}\r\n",
            phrase(status),
            body.len(),
            self.reason.as_str()
        );
        if let Form::S3 { id, .. } = form {
            // Where it is looked for, also in the answer to a HEAD.
            let _ = write!(head, "x-amz-request-id: {id}\r\n");
        }
        if let (Reason::StaleToken, Some(highest)) = (self.reason, &self.highest) {
            let _ = write!(head, "Fencing-Token-Highest: {highest}\r\n");
        }
        if status == 503 {
            head.push_str("Retry-After: 1\r\n");
        }
        match (close, version) {
            (true, _) => head.push_str("Connection: close\r\n"),
            (false, Version::V10) => head.push_str("Connection: keep-alive\r\n"),
            (false, Version::V11) => {}
        }
        head.push_str("\r\n");
        out.extend_from_slice(head.as_bytes());
        if !head_only {
            out.extend_from_slice(&body);
        }
    }

    /// The body and its `Content-Type`.
    #[must_use]
    pub fn body(&self, form: Form<'_>) -> (&'static str, Vec<u8>) {
        match form {
            Form::Problem => {
                let body = serde_json::to_vec(&self.problem(self.status()));
                let body = body.expect("strings and numbers are always JSON");
                ("application/problem+json", body)
            }
            Form::S3 { path, id } => ("application/xml", s3::xml(self, path, id).into_bytes()),
        }
    }

    fn problem(&self, status: u16) -> Problem<'_> {
        Problem {
            r#type: urn(self.reason),
            title: title(self.reason),
            status,
            detail: &self.detail,
            reason: self.reason.as_str(),
            resource: self.resource.as_deref(),
            token: self.token.as_deref(),
            highest: self.highest.as_deref(),
            rule: self.rule.as_deref(),
            applied: self.applied.as_str(),
        }
    }
}

/// The problem type: a name, not an address; what it means stands in the documentation.
fn urn(reason: Reason) -> String {
    format!("urn:fencegate:{}", reason.as_str())
}

fn title(reason: Reason) -> &'static str {
    match reason {
        Reason::StaleToken => "A newer holder has taken over",
        Reason::MissingToken => "A fencing token is required",
        Reason::MalformedToken => "The fencing token is malformed",
        Reason::AmbiguousPath => "The path can be read in more than one way",
        Reason::MethodOverride => "Method overrides are not accepted",
        Reason::BadRequest => "The request is not acceptable",
        Reason::StepTooLarge => "The token is too far ahead",
        Reason::UnmatchedWrite => "No rule allows this write",
        Reason::NotAllowed => "Not allowed",
        Reason::UpgradeRefused => "Upgrades are not accepted",
        Reason::Draining => "Older writes have not settled yet",
        Reason::StoreUnavailable => "The token can't be made durable now",
        Reason::NotOwner => "This instance does not own the fences",
        Reason::Overloaded => "Too many requests wait already",
        Reason::UpstreamUnreachable => "The backend can't be reached",
        Reason::UpstreamFailed => "The backend's answer is lost",
        Reason::UpstreamTimeout => "The backend's answer did not come in time",
    }
}

fn phrase(status: u16) -> &'static str {
    match status {
        400 => "Bad Request",
        403 => "Forbidden",
        408 => "Request Timeout",
        412 => "Precondition Failed",
        417 => "Expectation Failed",
        422 => "Unprocessable Content",
        428 => "Precondition Required",
        431 => "Request Header Fields Too Large",
        501 => "Not Implemented",
        502 => "Bad Gateway",
        503 => "Service Unavailable",
        504 => "Gateway Timeout",
        505 => "HTTP Version Not Supported",
        _ => "Refused",
    }
}
