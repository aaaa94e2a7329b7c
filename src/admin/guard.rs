//! Who may use the admin address. Where there is a token: who shows it. Health and readiness are open to all, since
//! probes show none.
//!
//! Where there is no token, other sites' pages are kept out. A page in an operator's browser can send requests to
//! loopback, with the operator's certificate, and by a name that it points there (DNS rebinding) even read the answers.
//! What gives it away is the Host that its browser names, and the Origin that its browser adds. Under TLS any Host
//! will do: a browser takes only a certificate for the name that the page came from.

use std::net::IpAddr;
use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::uri::Authority;
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use super::problem::Problem;
use super::serve::Peer;
use crate::base::Secret;

/// What a request must show.
#[derive(Debug)]
pub(super) struct Guard {
    /// The token, if there is one.
    pub(super) token: Option<Secret>,
    /// Whether it comes by TLS.
    pub(super) secure: bool,
}

/// Refuses what a foreign page could have sent, and marks every answer as not to be kept or guessed at.
pub(super) async fn guard(State(guard): State<Arc<Guard>>, request: Request, next: Next) -> Response {
    let mut response = match check(&request, &guard) {
        Ok(()) => next.run(request).await,
        Err(problem) => problem.into_response(),
    };
    let headers = response.headers_mut();
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert(
        header::X_CONTENT_TYPE_OPTIONS,
        HeaderValue::from_static("nosniff"),
    );
    if response.status() == StatusCode::UNAUTHORIZED {
        response
            .headers_mut()
            .insert(header::WWW_AUTHENTICATE, HeaderValue::from_static(CHALLENGE));
    }
    response
}

const CHALLENGE: &str = "Bearer realm=\"fencegate\"";

fn check(request: &Request, guard: &Guard) -> Result<(), Problem> {
    let reads = matches!(*request.method(), Method::GET | Method::HEAD);
    if reads && matches!(request.uri().path(), "/healthz" | "/readyz") {
        return Ok(());
    }
    if let Some(token) = &guard.token {
        check_token(request, token)?;
        // A foreign page doesn't know the token: what it names as Host or Origin doesn't matter.
        return if reads {
            Ok(())
        } else {
            check_json(request.headers())
        };
    }
    // Scrapers name the host as they like, and learn nothing about a resource.
    if reads && !request.uri().path().starts_with("/api/") {
        return Ok(());
    }
    let host = named_host(request, guard.secure)?;
    if reads {
        return Ok(());
    }
    let headers = request.headers();
    check_origin(headers, &host, guard.secure)?;
    check_json(headers)
}

fn check_token(request: &Request, token: &Secret) -> Result<(), Problem> {
    let mut fields = request.headers().get_all(header::AUTHORIZATION).iter();
    let right = match (fields.next(), fields.next()) {
        (Some(field), None) => bearer(field.as_bytes()).is_some_and(|shown| token.is(shown)),
        (_, _) => false,
    };
    if right {
        return Ok(());
    }
    let peer = request.extensions().get::<Peer>();
    let peer = peer.map_or_else(String::new, |Peer(peer)| peer.to_string());
    tracing::info!(peer, path = ?request.uri().path(), "the admin address was asked without its token");
    Err(Problem::new(
        StatusCode::UNAUTHORIZED,
        "unauthorized",
        "show the token of admin.token_file, as Authorization: Bearer TOKEN (fencegate fences: -c FILE or --token-file FILE)",
    ))
}

fn bearer(field: &[u8]) -> Option<&[u8]> {
    let (scheme, shown) = field.split_at_checked("bearer ".len())?;
    scheme
        .eq_ignore_ascii_case(b"bearer ")
        .then(|| shown.trim_ascii())
}

fn check_json(headers: &HeaderMap) -> Result<(), Problem> {
    if is_json(headers) {
        return Ok(());
    }
    Err(Problem::new(
        StatusCode::UNSUPPORTED_MEDIA_TYPE,
        "bad-request",
        "send JSON, with Content-Type: application/json",
    ))
}

/// The one authority that the request names. Without TLS it must be this machine.
fn named_host(request: &Request, secure: bool) -> Result<Authority, Problem> {
    let refused = |detail: &str| Problem::new(StatusCode::FORBIDDEN, "not-allowed", detail);
    let mut fields = request.headers().get_all(header::HOST).iter();
    let (Some(field), None) = (fields.next(), fields.next()) else {
        return Err(refused("name one Host"));
    };
    let host = field
        .to_str()
        .ok()
        .and_then(|text| text.parse::<Authority>().ok());
    let Some(host) = host.filter(|host| !host.as_str().contains('@')) else {
        return Err(refused("the Host is not written as HOST:PORT"));
    };
    if !secure && !is_this_machine(&host) {
        return Err(refused(
            "the Host is not this machine: use localhost or a loopback address",
        ));
    }
    if request.uri().authority().is_some_and(|named| *named != host) {
        return Err(refused("the target and the Host name different hosts"));
    }
    Ok(host)
}

/// The port is left open: an operator may come through a tunnel.
fn is_this_machine(authority: &Authority) -> bool {
    let host = authority.host();
    let address = host.trim_start_matches('[').trim_end_matches(']');
    let named = host.eq_ignore_ascii_case("localhost");
    named || address.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback())
}

/// Only a page of this very address may send; programs send no Origin.
fn check_origin(headers: &HeaderMap, host: &Authority, secure: bool) -> Result<(), Problem> {
    let scheme = if secure { "https" } else { "http" };
    let own = format!("{scheme}://{host}");
    let foreign = headers
        .get_all(header::ORIGIN)
        .iter()
        .any(|origin| !origin.as_bytes().eq_ignore_ascii_case(own.as_bytes()));
    if foreign {
        return Err(Problem::new(
            StatusCode::FORBIDDEN,
            "not-allowed",
            "the Origin is another site",
        ));
    }
    Ok(())
}

fn is_json(headers: &HeaderMap) -> bool {
    let kind = headers.get(header::CONTENT_TYPE).and_then(|v| v.to_str().ok());
    kind.is_some_and(|kind| {
        let essence = kind.split(';').next().unwrap_or_default().trim();
        essence.eq_ignore_ascii_case("application/json")
    })
}

#[cfg(test)]
mod tests {
    use axum::body::Body;
    use axum::extract::Request;
    use axum::http::StatusCode;
    use axum::response::IntoResponse;

    use super::{Guard, check};

    fn judged(method: &str, path: &str, fields: &[(&str, &str)]) -> StatusCode {
        judged_at(false, method, path, fields)
    }

    fn judged_by_tls(method: &str, path: &str, fields: &[(&str, &str)]) -> StatusCode {
        judged_at(true, method, path, fields)
    }

    fn judged_at(secure: bool, method: &str, path: &str, fields: &[(&str, &str)]) -> StatusCode {
        let mut request = Request::builder().method(method).uri(path);
        for (name, value) in fields {
            request = request.header(*name, *value);
        }
        let guard = Guard { token: None, secure };
        match check(&request.body(Body::empty()).unwrap(), &guard) {
            Ok(()) => StatusCode::OK,
            Err(problem) => problem.into_response().status(),
        }
    }

    const JSON: (&str, &str) = ("content-type", "application/json; charset=utf-8");

    #[test]
    fn a_page_of_another_site_can_neither_send_nor_read() {
        let raise = "/api/v1/fences/raise";
        for host in [
            "evil.example",
            "evil.example:9901",
            "localhost.evil.example",
            "127.0.0.1.evil.example",
            "10.0.0.1:9901",
            "a@localhost",
            "",
        ] {
            assert_eq!(
                judged("POST", raise, &[("host", host), JSON]),
                StatusCode::FORBIDDEN,
                "{host:?}"
            );
            assert_eq!(
                judged("GET", "/api/v1/fences", &[("host", host)]),
                StatusCode::FORBIDDEN,
                "{host:?}"
            );
        }
        for origin in [
            "http://evil.example",
            "null",
            "http://localhost:1",
            "https://localhost:9901",
            "",
        ] {
            let fields = [("host", "localhost:9901"), ("origin", origin), JSON];
            assert_eq!(
                judged("POST", raise, &fields),
                StatusCode::FORBIDDEN,
                "{origin:?}"
            );
        }
        assert_eq!(judged("POST", raise, &[JSON]), StatusCode::FORBIDDEN);
    }

    #[test]
    fn programs_and_the_own_page_may_send_json_only() {
        for host in [
            "localhost:9901",
            "LocalHost",
            "127.0.0.1:8000",
            "127.9.9.9",
            "[::1]:9901",
        ] {
            assert_eq!(
                judged("POST", "/x", &[("host", host), JSON]),
                StatusCode::OK,
                "{host}"
            );
        }
        let own = [
            ("host", "localhost:9901"),
            ("origin", "http://localhost:9901"),
            JSON,
        ];
        assert_eq!(judged("POST", "/x", &own), StatusCode::OK);
        for kind in [
            "text/plain",
            "application/x-www-form-urlencoded",
            "application/jsonx",
        ] {
            let fields = [("host", "localhost"), ("content-type", kind)];
            assert_eq!(
                judged("POST", "/x", &fields),
                StatusCode::UNSUPPORTED_MEDIA_TYPE,
                "{kind}"
            );
        }
        assert_eq!(
            judged("GET", "/readyz", &[("host", "gate.internal:9901")]),
            StatusCode::OK
        );
    }

    #[test]
    fn by_tls_any_name_will_do_and_only_its_own_page_may_send() {
        let own = ("origin", "https://gate.internal:9901");
        for (host, origin, status) in [
            ("gate.internal:9901", None, StatusCode::OK),
            ("gate.internal:9901", Some(own), StatusCode::OK),
            (
                "localhost:9901",
                Some(("origin", "https://localhost:9901")),
                StatusCode::OK,
            ),
            ("localhost:9901", Some(own), StatusCode::FORBIDDEN),
            (
                "localhost:9901",
                Some(("origin", "http://localhost:9901")),
                StatusCode::FORBIDDEN,
            ),
            (
                "gate.internal:9901",
                Some(("origin", "null")),
                StatusCode::FORBIDDEN,
            ),
            ("a@gate.internal", None, StatusCode::FORBIDDEN),
            ("", None, StatusCode::FORBIDDEN),
        ] {
            let fields: Vec<_> = [("host", host), JSON].into_iter().chain(origin).collect();
            assert_eq!(judged_by_tls("POST", "/x", &fields), status, "{host} {origin:?}");
        }
        let form = ("content-type", "text/plain");
        assert_eq!(
            judged_by_tls("POST", "/x", &[("host", "gate.internal"), form]),
            StatusCode::UNSUPPORTED_MEDIA_TYPE
        );
        assert_eq!(
            judged_by_tls("GET", "/api/v1/fences", &[("host", "gate.internal")]),
            StatusCode::OK
        );
    }
}
