//! An HTTP/2 request's head as an HTTP/1.1 head: what the gate judges and forwards is this one text. The strict
//! reader of HTTP/1.1 reads it again afterwards; here is refused what could not be written down without a second
//! meaning.

use http::header::{CONTENT_LENGTH, COOKIE, HOST, HeaderName};
use http::request::Parts;
use http::{HeaderMap, HeaderValue, Method};

use super::super::answer::Answer;
use crate::base::Reason;
use crate::wire::http1::Framing;

/// Fields that HTTP/2 has no place for (RFC 9113, 8.2.2): the h2 crate refuses most of them already.
const CONNECTION_FIELDS: [&str; 5] = [
    "connection",
    "keep-alive",
    "proxy-connection",
    "transfer-encoding",
    "upgrade",
];

/// Appends the head to `out`, and says how the body goes on. `bodiless`: the request ended with its head.
///
/// # Errors
/// The answer for what is malformed.
pub fn write_head(out: &mut Vec<u8>, parts: &Parts, bodiless: bool) -> Result<Framing, Answer> {
    let uri = &parts.uri;
    let framing = framing(&parts.headers, bodiless)?;
    out.extend_from_slice(parts.method.as_str().as_bytes());
    out.push(b' ');
    if parts.method == Method::CONNECT {
        // It is refused as what it is, when it is read.
        out.extend_from_slice(uri.authority().map_or("", |a| a.as_str()).as_bytes());
    } else {
        // The h2 crate asks for a scheme, and keeps it only beside an :authority.
        if uri.authority().is_some() && !matches!(uri.scheme_str(), Some("http" | "https")) {
            return Err(bad("the :scheme is neither http nor https"));
        }
        let target = uri.path_and_query().map_or("", |p| p.as_str());
        if !target.starts_with('/') && target != "*" {
            return Err(bad("the :path doesn't begin with a slash"));
        }
        out.extend_from_slice(target.as_bytes());
    }
    out.extend_from_slice(b" HTTP/1.1\r\n");
    write_host(out, parts)?;
    write_fields(out, &parts.headers)?;
    if framing == Framing::Chunked {
        field(out, "transfer-encoding", b"chunked");
    } else if framing == Framing::None && expects_content(&parts.method) {
        // Some servers ask for it where a body would make sense.
        field(out, "content-length", b"0");
    }
    out.extend_from_slice(b"\r\n");
    Ok(framing)
}

/// The h2 crate holds the body against its length; that there is just one length is looked at when the head is read.
fn framing(headers: &HeaderMap, bodiless: bool) -> Result<Framing, Answer> {
    match headers.get(CONTENT_LENGTH) {
        Some(value) => std::str::from_utf8(value.as_bytes())
            .ok()
            .filter(|text| text.bytes().all(|b| b.is_ascii_digit()))
            .and_then(|text| text.parse().ok())
            .map(Framing::Length)
            .ok_or_else(|| bad("the content-length is not a number")),
        None if bodiless => Ok(Framing::None),
        None => Ok(Framing::Chunked),
    }
}

fn expects_content(method: &Method) -> bool {
    matches!(*method, Method::PUT | Method::POST | Method::PATCH)
}

/// `:authority`, or a `host` field; where both came they must agree (RFC 9113, 8.3.1).
fn write_host(out: &mut Vec<u8>, parts: &Parts) -> Result<(), Answer> {
    let authority = parts.uri.authority().map(|a| a.as_str().as_bytes());
    let mut hosts = parts.headers.get_all(HOST).iter().map(|value| value.as_bytes());
    match (authority, hosts.next(), hosts.next()) {
        (_, _, Some(_)) => Err(bad("two host fields")),
        (Some(authority), Some(host), None) if !authority.eq_ignore_ascii_case(host) => {
            Err(bad("the host differs from the :authority"))
        }
        (Some(host), _, None) | (None, Some(host), None) => {
            field(out, "host", host);
            Ok(())
        }
        (None, None, None) => Err(bad("neither :authority nor host")),
    }
}

fn write_fields(out: &mut Vec<u8>, headers: &HeaderMap) -> Result<(), Answer> {
    if headers.values().any(|value| has_outer_space(value.as_bytes())) {
        return Err(bad("a field's value begins or ends with space"));
    }
    let mut cookies = headers.get_all(COOKIE).iter();
    for (name, value) in headers {
        if name == COOKIE {
            // Where the first one stands, all of them.
            write_cookies(out, &mut cookies);
            continue;
        }
        if name == HOST {
            continue;
        }
        if is_of_the_connection(name) {
            return Err(bad("a field of the connection, which HTTP/2 has no place for"));
        }
        field(out, name.as_str(), value.as_bytes());
    }
    Ok(())
}

/// HTTP/2 clients cut cookies into crumbs; in HTTP/1.1 they are one field (RFC 9113, 8.2.3).
fn write_cookies<'a>(out: &mut Vec<u8>, cookies: &mut impl Iterator<Item = &'a HeaderValue>) {
    let Some(first) = cookies.next() else { return };
    out.extend_from_slice(b"cookie: ");
    out.extend_from_slice(first.as_bytes());
    for crumb in cookies {
        out.extend_from_slice(b"; ");
        out.extend_from_slice(crumb.as_bytes());
    }
    out.extend_from_slice(b"\r\n");
}

/// HTTP/1.1 takes such space off, HTTP/2 calls it malformed (RFC 9113, 8.2.1).
fn has_outer_space(value: &[u8]) -> bool {
    let is_space = |byte: Option<&u8>| matches!(byte, Some(b' ' | b'\t'));
    is_space(value.first()) || is_space(value.last())
}

pub fn is_of_the_connection(name: &HeaderName) -> bool {
    CONNECTION_FIELDS.contains(&name.as_str())
}

fn field(out: &mut Vec<u8>, name: &str, value: &[u8]) {
    out.extend_from_slice(name.as_bytes());
    out.extend_from_slice(b": ");
    out.extend_from_slice(value);
    out.extend_from_slice(b"\r\n");
}

/// The answer to what does not come in time.
pub fn late(detail: &str) -> Answer {
    let mut answer = bad(detail);
    answer.status = Some(408);
    answer
}

/// The answer to a malformed head.
pub fn bad(detail: &str) -> Answer {
    Answer::new(Reason::BadRequest, detail)
}

#[cfg(test)]
mod tests {
    use super::write_head;
    use crate::wire::http1::{Framing, HeaderStorage, parse_request};
    use http::Request;

    fn written(request: http::request::Builder, bodiless: bool) -> Result<(String, Framing), String> {
        let (parts, ()) = request
            .body(())
            .expect("the test's request can be built")
            .into_parts();
        let mut out = Vec::new();
        let framing = write_head(&mut out, &parts, bodiless).map_err(|answer| answer.detail)?;
        Ok((String::from_utf8(out).expect("the test's head is text"), framing))
    }

    #[test]
    fn a_head_is_one_that_the_strict_reader_takes() {
        let request = Request::put("https://store.test:9000/b/k%20x?partNumber=1")
            .header("fencing-token", "34")
            .header("cookie", "a=1")
            .header("x-amz-date", "20261129T000000Z")
            .header("cookie", "b=2");
        let (head, framing) = written(request, false).unwrap();
        assert_eq!(
            head,
            "PUT /b/k%20x?partNumber=1 HTTP/1.1\r\nhost: store.test:9000\r\nfencing-token: 34\r\ncookie: a=1; b=2\r\n\
             x-amz-date: 20261129T000000Z\r\ntransfer-encoding: chunked\r\n\r\n"
        );
        assert_eq!(framing, Framing::Chunked);
        let read = parse_request(head.as_bytes(), &mut HeaderStorage::new()).map(|head| head.framing);
        assert_eq!(read, Ok(Framing::Chunked));
    }

    #[test]
    fn two_places_are_refused() {
        let request = Request::get("http://a.test/r").header("host", "b.test");
        assert_eq!(
            written(request, true).unwrap_err(),
            "the host differs from the :authority"
        );
        let request = Request::get("http://a.test/r")
            .header("host", "a.test")
            .header("host", "a.test");
        assert_eq!(written(request, true).unwrap_err(), "two host fields");
    }

    #[test]
    fn a_host_field_takes_the_place_of_an_authority() {
        let (head, _) = written(Request::get("/r").header("host", "a.test"), true).unwrap();
        assert_eq!(head, "GET /r HTTP/1.1\r\nhost: a.test\r\n\r\n");
        assert!(written(Request::get("/r"), true).is_err());
    }

    #[test]
    fn space_around_a_value_is_refused() {
        for value in [" 9", "9 ", "\t9", "9\t", " "] {
            for name in ["fencing-token", "x-a", "cookie"] {
                let request = Request::get("http://a.test/r").header(name, value);
                assert!(written(request, true).is_err(), "{name}: {value:?}");
            }
        }
    }

    #[test]
    fn an_empty_put_says_that_it_is_empty() {
        let (head, framing) = written(Request::put("http://a.test/r"), true).unwrap();
        assert!(head.ends_with("content-length: 0\r\n\r\n"), "{head}");
        assert_eq!(framing, Framing::None);
        let (head, _) = written(Request::delete("http://a.test/r"), true).unwrap();
        assert!(!head.contains("content-length"), "{head}");
    }

    #[test]
    fn fields_of_a_connection_and_other_schemes_are_refused() {
        let request = Request::get("http://a.test/r").header("transfer-encoding", "chunked");
        assert!(written(request, true).unwrap_err().contains("no place"));
        let request = Request::get("ftp://a.test/r");
        assert!(written(request, true).unwrap_err().contains(":scheme"));
    }

    #[test]
    fn a_length_that_is_no_number_is_refused() {
        for length in ["+5", "5, 5", "", "18446744073709551616"] {
            let request = Request::put("http://a.test/r").header("content-length", length);
            assert!(written(request, false).is_err(), "{length}");
        }
    }
}
