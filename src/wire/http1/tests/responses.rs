//! Answers: which are taken, how their bodies end, and what reaches the client.

use super::super::{
    Framing, HeaderStorage, ResponseError, ResponseOptions, Version, find_head_end, parse_response,
    write_response_head,
};

fn framing(raw: &str, method: &str) -> Result<Framing, ResponseError> {
    let mut storage = HeaderStorage::new();
    assert_eq!(find_head_end(raw.as_bytes(), 0), Some(raw.len()), "{raw:?}");
    parse_response(raw.as_bytes(), method, &mut storage).map(|head| head.framing)
}

fn ok(lines: &str) -> String {
    format!("HTTP/1.1 200 OK\r\n{lines}\r\n")
}

#[test]
fn the_end_of_an_answers_body_is_known() {
    for (raw, method, want) in [
        (ok("Content-Length: 5\r\n"), "GET", Framing::Length(5)),
        (ok("Content-Length: 5 \r\n"), "GET", Framing::Length(5)),
        (ok("Content-Length: 0\r\n"), "PUT", Framing::Length(0)),
        (ok("Transfer-Encoding: Chunked\r\n"), "GET", Framing::Chunked),
        (ok(""), "GET", Framing::UntilClose),
        (ok("Content-Length: 5368709120\r\n"), "HEAD", Framing::None),
        (ok("Transfer-Encoding: chunked\r\n"), "HEAD", Framing::None),
        (
            "HTTP/1.1 304 N\r\nContent-Length: 5\r\n\r\n".into(),
            "GET",
            Framing::None,
        ),
        (
            "HTTP/1.1 204 N\r\nContent-Length: 5\r\n\r\n".into(),
            "PUT",
            Framing::None,
        ),
        ("HTTP/1.1 100 Continue\r\n\r\n".into(), "PUT", Framing::None),
        (
            "HTTP/1.1 101 S\r\nUpgrade: x\r\n\r\n".into(),
            "GET",
            Framing::None,
        ),
        ("HTTP/1.0 200 OK\r\n\r\n".into(), "GET", Framing::UntilClose),
        (
            "HTTP/1.1 200\r\nContent-Length: 1\r\n\r\n".into(),
            "GET",
            Framing::Length(1),
        ),
        (
            "HTTP/1.1 999 \r\nContent-Length: 1\r\n\r\n".into(),
            "GET",
            Framing::Length(1),
        ),
    ] {
        assert_eq!(framing(&raw, method), Ok(want), "{method} {raw:?}");
    }
}

#[test]
fn an_answer_with_two_readings_is_lost() {
    for lines in [
        "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n",
        "Content-Length: 5\r\nContent-Length: 5\r\n",
        "Content-Length: 5\r\nContent-Length: 6\r\n",
        "Content-Length: x\r\n",
        "Content-Length: -1\r\n",
        "Content-Length: 5, 5\r\n",
        "Content-Length:\r\n",
        "Transfer-Encoding: gzip, chunked\r\n",
        "Transfer-Encoding: gzip\r\n",
        "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n",
        "Connection: Content-Length\r\n",
        "X : 1\r\n",
        "X: 1\r\n 2\r\n",
        "X: 1\nY: 2\r\n",
        "X: a\0\r\n",
    ] {
        assert!(framing(&ok(lines), "GET").is_err(), "{lines:?}");
    }
    for raw in [
        "HTTP/1.1 200 OK\nX: y\r\n\r\n",
        "HTTP/1.1 200 OK\n\n",
        "HTTP/1.1 20 OK\r\n\r\n",
        "HTTP/1.1 2000 OK\r\n\r\n",
        "HTTP/1.1 099 OK\r\n\r\n",
        "HTTP/1.1 200 a\0b\r\n\r\n",
        "HTTP/2.0 200 OK\r\n\r\n",
        "ICY 200 OK\r\n\r\n",
        "\r\nHTTP/1.1 200 OK\r\n\r\n",
        "HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n",
        "straHTTP/1.1 200 OK\r\n\r\n",
    ] {
        assert!(framing(raw, "GET").is_err(), "{raw:?}");
    }
}

fn relay(raw: &str, method: &str, client: Version, close: bool) -> String {
    let mut storage = HeaderStorage::new();
    let head = parse_response(raw.as_bytes(), method, &mut storage).unwrap();
    let body = head.framing_for(client);
    let close = close || body == Framing::UntilClose;
    let mut out = Vec::new();
    write_response_head(&mut out, &head, ResponseOptions { client, close, body });
    String::from_utf8(out).unwrap()
}

#[test]
fn an_answer_arrives_as_it_came_but_for_fields_of_this_hop() {
    let raw = "HTTP/1.1 200 Fine  by me\r\nETag:\"x\" \r\nConnection: close, X-Hop\r\nX-Hop: 1\r\nKeep-Alive: 5\r\n\
               set-cookie: a\r\nSet-Cookie: b\r\nTrailer: t\r\nContent-Length: 5\r\n\r\n";
    let want = "HTTP/1.1 200 Fine  by me\r\nETag:\"x\" \r\nset-cookie: a\r\nSet-Cookie: b\r\nTrailer: t\r\n\
                Content-Length: 5\r\n\r\n";
    assert_eq!(relay(raw, "GET", Version::V11, false), want);
    let closing = want.replace("5\r\n\r\n", "5\r\nConnection: close\r\n\r\n");
    assert_eq!(relay(raw, "GET", Version::V11, true), closing);
    let kept = want.replace("5\r\n\r\n", "5\r\nConnection: keep-alive\r\n\r\n");
    assert_eq!(relay(raw, "GET", Version::V10, false), kept);
}

#[test]
fn chunks_become_a_close_for_an_old_client_and_a_close_becomes_chunks_for_a_new_one() {
    let chunked = ok("A: 1\r\nTransfer-Encoding: chunked\r\nConnection: x\r\nB: 2\r\n");
    assert_eq!(
        relay(&chunked, "GET", Version::V10, false),
        ok("A: 1\r\nB: 2\r\nConnection: close\r\n")
    );
    assert_eq!(
        relay(&chunked, "GET", Version::V11, false),
        ok("A: 1\r\nTransfer-Encoding: chunked\r\nB: 2\r\n")
    );
    assert_eq!(
        relay(&ok("A: 1\r\n"), "GET", Version::V11, false),
        ok("A: 1\r\nTransfer-Encoding: chunked\r\n")
    );
    assert_eq!(
        relay("HTTP/1.0 200 OK\r\n\r\n", "GET", Version::V10, false),
        ok("Connection: close\r\n")
    );
}

#[test]
fn bodiless_answers_keep_the_fields_that_tell_of_a_body() {
    let length = ok("Content-Length: 5368709120\r\n");
    assert_eq!(relay(&length, "HEAD", Version::V11, false), length);
    let chunked = ok("Transfer-Encoding: chunked\r\n");
    assert_eq!(relay(&chunked, "HEAD", Version::V11, false), chunked);
    let odd = "HTTP/1.1 204 No Content\r\nTransfer-Encoding: chunked\r\n\r\n";
    assert_eq!(
        relay(odd, "PUT", Version::V11, false),
        "HTTP/1.1 204 No Content\r\n\r\n"
    );
}

#[test]
fn interim_answers_get_no_connection_field() {
    let hints = "HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n";
    assert_eq!(relay(hints, "GET", Version::V11, true), hints);
    let switch = "HTTP/1.1 101 S\r\nConnection: upgrade\r\nUpgrade: websocket\r\nX: 1\r\n\r\n";
    let want = "HTTP/1.1 101 S\r\nX: 1\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n";
    assert_eq!(relay(switch, "GET", Version::V11, false), want);
}

#[test]
fn whether_the_backend_keeps_its_connection_is_read() {
    let facts = |raw: &str| {
        let mut storage = HeaderStorage::new();
        let head = parse_response(raw.as_bytes(), "GET", &mut storage).unwrap();
        (head.keep_alive, head.connection_auth, head.reason.to_vec())
    };
    assert_eq!(facts(&ok("Content-Length: 1\r\n")), (true, false, b"OK".to_vec()));
    assert_eq!(
        facts(&ok("Content-Length: 1\r\nConnection: Close\r\n")),
        (false, false, b"OK".to_vec())
    );
    assert_eq!(facts(&ok("")), (false, false, b"OK".to_vec()));
    assert_eq!(
        facts("HTTP/1.0 200\r\nContent-Length: 1\r\n\r\n"),
        (false, false, Vec::new())
    );
    let auth = "HTTP/1.1 401 \r\nWWW-Authenticate: Basic realm=x, NTLM\r\nContent-Length: 0\r\n\r\n";
    assert_eq!(facts(auth), (true, true, Vec::new()));
}
