//! What happens, as server-sent events: each one a line of JSON under a name of a closed set. An answer without an end:
//! it ends with its client, or with the stop.
//!
//! What is waiting is written as far as the client takes it; the rest stays where all listeners read it, and what is no
//! longer there by then is told as missed.

use std::convert::Infallible;
use std::fmt::Write as _;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::Extension;
use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::{HeaderMap, Method, header};
use axum::response::{IntoResponse, Response};
use futures_core::Stream;
use serde::Serialize;
use tokio::time::{Interval, MissedTickBehavior, interval};

use super::Admin;
use super::problem::Problem;
use super::serve::Closing;
use super::time::rfc3339;
use crate::base::Reason;
use crate::base::clock::wall_ms;
use crate::observe::events::{FOLLOWERS_MAX, Follower, Gap, Happening, Note, Position};

/// How often a stream is looked at where nothing happens, and after how many such looks it says that it is alive.
const TICK: Duration = Duration::from_secs(1);
const QUIET_TICKS_MAX: u32 = 15;
/// So much is written at once.
const PIECE_BYTES: usize = 16 * 1024;
/// How long a client should wait before it connects again, in milliseconds.
const OPENING: &str = "retry: 2000\n: events of this gate, from here on\n\n";

/// `GET /api/v1/events`.
pub(super) async fn follow(
    State(admin): State<Admin>,
    Extension(Closing(mut closed)): Extension<Closing>,
    method: Method,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    let fields = [
        (header::CONTENT_TYPE, "text/event-stream; charset=utf-8"),
        // Some proxies keep answers until they have a buffer full.
        (header::HeaderName::from_static("x-accel-buffering"), "no"),
    ];
    if method == Method::HEAD {
        return Ok(fields.into_response());
    }
    let Some(follower) = admin.metrics.events.follow(since(&headers)) else {
        let detail = format!("{FOLLOWERS_MAX} clients listen already");
        return Err(Problem::later(Reason::Overloaded, detail));
    };
    let mut tick = interval(TICK);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let told = Told {
        follower,
        tick,
        quiet: 0,
        piece: OPENING.into(),
        closed: Box::pin(async move {
            // An error says so too: whoever would tell it has gone.
            let _told = closed.changed().await;
        }),
    };
    Ok((fields, Body::from_stream(told)).into_response())
}

/// The place up to which the client has seen everything, if it says so; `Some(None)` where nobody gave out such a place.
fn since(headers: &HeaderMap) -> Option<Option<Position>> {
    let text = headers.get("last-event-id")?.as_bytes();
    if text.is_empty() {
        return None;
    }
    let text = std::str::from_utf8(text).ok();
    Some(text.and_then(|text| text.parse().ok()))
}

/// The body of an answer.
struct Told {
    follower: Follower,
    tick: Interval,
    /// Ticks since something was written.
    quiet: u32,
    piece: String,
    closed: Pin<Box<dyn Future<Output = ()> + Send>>,
}

impl Stream for Told {
    type Item = Result<Bytes, Infallible>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let told = self.get_mut();
        while told.tick.poll_tick(cx).is_ready() {
            told.quiet += 1;
        }
        while told.piece.len() < PIECE_BYTES
            && let Poll::Ready(note) = told.follower.poll_next(cx)
        {
            write(&mut told.piece, &note, told.follower.position());
        }
        // After what has happened up to the stop.
        if told.piece.is_empty() && told.closed.as_mut().poll(cx).is_ready() {
            return Poll::Ready(None);
        }
        if told.piece.is_empty() && told.quiet >= QUIET_TICKS_MAX {
            told.piece.push_str(": alive\n\n");
        }
        if told.piece.is_empty() {
            return Poll::Pending;
        }
        told.quiet = 0;
        Poll::Ready(Some(Ok(std::mem::take(&mut told.piece).into())))
    }
}

/// The data of an event. What does not apply is left out.
#[derive(Serialize, Default, Debug)]
struct Data<'a> {
    r#type: &'static str,
    sequence: u64,
    at: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    role: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    listener: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    rule: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    mode: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    resource: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    token: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    highest: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    before: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    drained_ms: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    until: Option<String>,
    /// `Some(None)` where nobody knows.
    #[serde(skip_serializing_if = "Option::is_none")]
    missed: Option<Option<u64>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    status: Option<u16>,
    #[serde(skip_serializing_if = "Option::is_none")]
    client: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    method: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    path: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    by: Option<&'a str>,
}

/// Appends one event. Its `id` is `place`, from which a client that comes back goes on.
fn write(out: &mut String, note: &Note, place: Position) {
    let (at_ms, mut data) = match note {
        Note::Event(event) => (event.at_ms, shown(&event.what)),
        Note::Ownership { at_ms, what } => (*at_ms, shown(what)),
        Note::Missed(gap) => (wall_ms(), missed(*gap)),
    };
    data.sequence = place.sequence;
    data.at = rfc3339(at_ms);
    let json = serde_json::to_string(&data).expect("strings and numbers are always JSON");
    let _ = write!(out, "id: {place}\nevent: {}\ndata: ", data.r#type);
    escape(out, &json);
    out.push_str("\n\n");
}

fn shown(what: &Happening) -> Data<'_> {
    match what {
        Happening::Raised {
            resource,
            token,
            highest,
            drained,
            by_operator,
        } => Data {
            r#type: "raise",
            resource: Some(resource),
            token: Some(token),
            highest: highest.as_deref(),
            drained_ms: Some(u64::try_from(drained.as_millis()).unwrap_or(u64::MAX)),
            reason: Some(if *by_operator { "operator" } else { "request" }),
            ..Data::default()
        },
        Happening::Reset {
            resource,
            token,
            before,
            reason,
            by,
        } => Data {
            r#type: "reset",
            resource: Some(resource),
            token: Some(token),
            highest: Some(token),
            before: Some(&**before).filter(|before| !before.is_empty()),
            reason: Some(reason),
            by: Some(by),
            ..Data::default()
        },
        Happening::Refused(refused) => Data {
            r#type: "refusal",
            listener: Some(&refused.listener),
            rule: refused.rule.as_deref(),
            mode: Some(if refused.observed { "observe" } else { "enforce" }),
            resource: refused.resource.as_deref(),
            token: refused.token.as_deref(),
            highest: refused.highest.as_deref(),
            reason: Some(refused.reason.as_str()),
            status: refused.status,
            client: Some(refused.client.to_string()),
            method: refused.method.as_deref(),
            path: refused.path.as_deref(),
            ..Data::default()
        },
        Happening::InDoubt(doubt) => Data {
            r#type: "in-doubt",
            listener: doubt.listener.as_deref(),
            rule: doubt.rule.as_deref(),
            resource: doubt.resource.as_deref(),
            token: doubt.token.as_deref(),
            until: Some(rfc3339(doubt.until_ms)),
            reason: Some(doubt.reason),
            ..Data::default()
        },
        Happening::Ownership { role, why } => Data {
            r#type: "ownership",
            role: Some(role.as_str()),
            reason: Some(why),
            ..Data::default()
        },
        Happening::LeftOut { refusals } => Data {
            r#type: "missed",
            missed: Some(Some(*refusals)),
            reason: Some("too-many-refusals"),
            ..Data::default()
        },
    }
}

fn missed(gap: Gap) -> Data<'static> {
    let (missed, reason) = match gap {
        Gap::NotKept(n) => (Some(n), "not-kept"),
        Gap::Unknown => (None, "not-kept"),
        Gap::TooSlow(n) => (Some(n), "slow-reader"),
    };
    Data {
        r#type: "missed",
        missed: Some(missed),
        reason: Some(reason),
        ..Data::default()
    }
}

/// JSON as it is, but for what a terminal or a page could take for an order: such characters stand in its strings only.
fn escape(out: &mut String, json: &str) {
    for c in json.chars() {
        match c {
            '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{feff}' => {
                let _ = write!(out, "\\u{:04x}", u32::from(c));
            }
            c if c.is_control() => {
                let _ = write!(out, "\\u{:04x}", u32::from(c));
            }
            c => out.push(c),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Data, escape, write};
    use crate::observe::events::{Gap, Note, Position};

    fn escaped(resource: &str) -> String {
        let data = Data {
            resource: Some(resource),
            ..Data::default()
        };
        let mut out = String::new();
        escape(&mut out, &serde_json::to_string(&data).unwrap());
        out
    }

    #[test]
    fn no_text_of_a_client_ends_a_line_or_moves_a_cursor() {
        let text = "é \u{1b}[2J \u{9b}2J \u{7f} \r\n\ndata: x \u{202e} \u{2028} \"\\";
        let out = escaped(text);
        assert!(out.contains('é') && out.chars().all(|c| !c.is_control()), "{out}");
        let read: serde_json::Value = serde_json::from_str(&out).unwrap();
        assert_eq!(read["resource"], text);
    }

    #[test]
    fn a_gap_of_unknown_size_says_so() {
        let mut out = String::new();
        let place = Position {
            run: 255,
            sequence: 7,
        };
        write(&mut out, &Note::Missed(Gap::Unknown), place);
        let (head, data) = out.split_once("data: ").unwrap();
        assert_eq!(head, "id: ff-7\nevent: missed\n");
        let data: serde_json::Value = serde_json::from_str(data).unwrap();
        assert!(data["missed"].is_null() && data.get("missed").is_some(), "{data}");
        assert_eq!(data["sequence"], 7);
    }
}
