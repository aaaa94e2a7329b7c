//! Refusals as S3's clients read them: the XML, and the code that decides what an SDK does next.
//!
//! In S3 the code outranks the status: what an SDK retries by code (`SlowDown`, `RequestTimeout`, `InternalError`,
//! `Throttling…`, `ServiceUnavailable`) is never said of a request that can't succeed.

use std::fmt::{self, Write as _};
use std::hash::{BuildHasher, RandomState};
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering};

use super::Answer;
use crate::base::Reason;

/// The name of one refused request, in its answer and in the log.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RequestId(u64);

impl RequestId {
    /// One that this process has not given yet.
    #[must_use]
    pub fn next() -> RequestId {
        // From a place of its own in each process, so that the logs of two runs don't share names.
        static NEXT: LazyLock<AtomicU64> = LazyLock::new(|| AtomicU64::new(RandomState::new().hash_one(0u8)));
        RequestId(NEXT.fetch_add(1, Ordering::Relaxed))
    }
}

impl fmt::Display for RequestId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016X}", self.0)
    }
}

/// The body. `path` is what S3 calls the resource; the fence's own name stands beside it.
pub(super) fn xml(answer: &Answer, path: &str, id: RequestId) -> String {
    let mut xml = String::from("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<Error>");
    let id = id.to_string();
    let elements = [
        ("Code", Some(code(answer))),
        ("Message", Some(&*answer.detail)),
        ("Resource", Some(path)),
        ("RequestId", Some(&*id)),
        ("Reason", Some(answer.reason.as_str())),
        ("Fence", answer.resource.as_deref()),
        ("Token", answer.token.as_deref()),
        ("Highest", answer.highest.as_deref()),
        ("Rule", answer.rule.as_deref()),
        ("Applied", Some(answer.applied.as_str())),
    ];
    for (name, text) in elements {
        let Some(text) = text else { continue };
        let _ = write!(xml, "<{name}>");
        escape(&mut xml, text);
        let _ = write!(xml, "</{name}>");
    }
    xml.push_str("</Error>");
    xml
}

/// S3's own word for it.
fn code(answer: &Answer) -> &'static str {
    match answer.reason {
        // Its client would take the code of a failed condition for the store's word.
        Reason::StaleToken if answer.conditional => "AccessDenied",
        Reason::StaleToken => "PreconditionFailed",
        Reason::MissingToken | Reason::UnmatchedWrite | Reason::NotAllowed | Reason::UpgradeRefused => {
            "AccessDenied"
        }
        Reason::MalformedToken | Reason::AmbiguousPath | Reason::MethodOverride | Reason::StepTooLarge => {
            "InvalidRequest"
        }
        Reason::BadRequest => match answer.status() {
            408 => "RequestTimeout",
            431 => "RequestHeaderSectionTooLarge",
            501 => "NotImplemented",
            _ => "InvalidRequest",
        },
        Reason::Draining
        | Reason::StoreUnavailable
        | Reason::NotOwner
        | Reason::Overloaded
        | Reason::UpstreamUnreachable => "ServiceUnavailable",
        Reason::UpstreamFailed | Reason::UpstreamTimeout => "InternalError",
    }
}

/// Much of it came from the client. What XML can't hold at all becomes U+FFFD.
fn escape(xml: &mut String, text: &str) {
    for c in text.chars() {
        match c {
            '&' => xml.push_str("&amp;"),
            '<' => xml.push_str("&lt;"),
            '>' => xml.push_str("&gt;"),
            '"' => xml.push_str("&quot;"),
            '\'' => xml.push_str("&apos;"),
            // A parser would turn it into a line feed.
            '\r' => xml.push_str("&#13;"),
            '\t' | '\n' => xml.push(c),
            '\0'..='\u{1f}' | '\u{fffe}' | '\u{ffff}' => xml.push('\u{fffd}'),
            _ => xml.push(c),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Answer, RequestId, code, escape, xml};
    use crate::base::Reason;

    /// What botocore 1.43 retries by code, whatever the status (`retries/standard.py`, `data/_retry.json`).
    const RETRIED: [&str; 18] = [
        "RequestTimeout",
        "RequestTimeoutException",
        "PriorRequestNotComplete",
        "Throttling",
        "ThrottlingException",
        "ThrottledException",
        "RequestThrottledException",
        "TooManyRequestsException",
        "ProvisionedThroughputExceededException",
        "TransactionInProgressException",
        "RequestLimitExceeded",
        "BandwidthLimitExceeded",
        "LimitExceededException",
        "RequestThrottled",
        "SlowDown",
        "EC2ThrottledException",
        "InternalError",
        "BadDigest",
    ];

    #[test]
    fn what_cannot_succeed_has_no_code_that_is_retried() {
        for reason in [
            Reason::StaleToken,
            Reason::MissingToken,
            Reason::MalformedToken,
            Reason::AmbiguousPath,
            Reason::MethodOverride,
            Reason::BadRequest,
            Reason::StepTooLarge,
            Reason::UnmatchedWrite,
            Reason::NotAllowed,
            Reason::UpgradeRefused,
        ] {
            for conditional in [false, true] {
                let answer = Answer {
                    conditional,
                    ..Answer::new(reason, "")
                };
                assert!(
                    !RETRIED.contains(&code(&answer)) && code(&answer) != "ServiceUnavailable",
                    "{reason:?}"
                );
                assert!(answer.status() < 429 || answer.status() == 431, "{reason:?}");
            }
        }
    }

    #[test]
    fn a_stale_token_of_a_conditional_request_is_not_the_stores_failed_condition() {
        let mut answer = Answer::new(Reason::StaleToken, "");
        assert_eq!(code(&answer), "PreconditionFailed");
        answer.conditional = true;
        assert_eq!((code(&answer), answer.status()), ("AccessDenied", 403));
    }

    #[test]
    fn nothing_that_came_from_a_client_ends_an_element() {
        let mut answer = Answer::new(Reason::StaleToken, "a]]><b>\u{0}\u{1b}&'\"\r");
        answer.resource = Some("</Fence><Code>SlowDown</Code>".into());
        let text = xml(&answer, "/b/<Code>", RequestId(0xff));
        assert!(
            text.contains("<Message>a]]&gt;&lt;b&gt;\u{fffd}\u{fffd}&amp;&apos;&quot;&#13;</Message>"),
            "{text}"
        );
        assert!(
            text.contains("<Resource>/b/&lt;Code&gt;</Resource><RequestId>00000000000000FF</RequestId>"),
            "{text}"
        );
        assert_eq!(text.matches("<Code>").count(), 1, "{text}");
        let mut plain = String::new();
        escape(&mut plain, "é/\u{10ffff}\t");
        assert_eq!(plain, "é/\u{10ffff}\t");
    }

    #[test]
    fn no_two_requests_share_a_name() {
        assert_ne!(RequestId::next(), RequestId::next());
    }
}
