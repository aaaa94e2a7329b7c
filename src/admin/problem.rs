//! What the admin address answers when it does not do what it was asked: RFC 9457, with the gate's own members.

use axum::http::{HeaderName, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Serialize;

use crate::base::Reason;
use crate::ledger::StoreError;

/// A refusal or a failure. Boxed: it is the rare side of every result here.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Problem(Box<Members>);

#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
struct Members {
    r#type: &'static str,
    title: &'static str,
    #[serde(serialize_with = "as_number")]
    status: StatusCode,
    detail: String,
    reason: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    resource: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    token: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    highest: Option<String>,
}

impl Problem {
    /// A problem; `detail` says what to do.
    pub(super) fn new(status: StatusCode, reason: &'static str, detail: impl Into<String>) -> Problem {
        Problem(Box::new(Members {
            r#type: "about:blank",
            title: status.canonical_reason().unwrap_or("Refused"),
            status,
            detail: detail.into(),
            reason,
            resource: None,
            token: None,
            highest: None,
        }))
    }

    /// The request can't be understood.
    pub(super) fn bad(detail: impl Into<String>) -> Problem {
        Problem::new(StatusCode::BAD_REQUEST, Reason::BadRequest.as_str(), detail)
    }

    /// It can't be done now.
    pub(super) fn later(reason: Reason, detail: impl Into<String>) -> Problem {
        Problem::new(StatusCode::SERVICE_UNAVAILABLE, reason.as_str(), detail)
    }

    /// The store can't be read.
    pub(super) fn unread(error: &StoreError) -> Problem {
        let reason = match error {
            StoreError::NotOwner => Reason::NotOwner,
            StoreError::Full(_) | StoreError::Failed(_) | StoreError::Away(_) | StoreError::Closed => {
                Reason::StoreUnavailable
            }
        };
        Problem::later(reason, format!("{error}; nothing was shown or changed"))
    }

    /// The resource that it is about.
    pub(super) fn about(mut self, resource: &str) -> Problem {
        self.0.resource = Some(resource.into());
        self
    }

    /// The token that was presented.
    pub(super) fn with_token(mut self, token: String) -> Problem {
        self.0.token = Some(token);
        self
    }

    /// The highest token seen.
    pub(super) fn with_highest(mut self, highest: String) -> Problem {
        self.0.highest = Some(highest);
        self
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let body = serde_json::to_vec(&self.0).expect("strings and numbers are always JSON");
        let kind = [(header::CONTENT_TYPE, "application/problem+json")];
        let mut response = (self.0.status, kind, body).into_response();
        let headers = response.headers_mut();
        headers.insert(REASON, HeaderValue::from_static(self.0.reason));
        if self.0.status == StatusCode::SERVICE_UNAVAILABLE {
            headers.insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
        }
        response
    }
}

const REASON: HeaderName = HeaderName::from_static("fencegate-reason");

fn as_number<S: serde::Serializer>(status: &StatusCode, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_u16(status.as_u16())
}
