//! HTTP/1.1 on the wire (section 5): one reading of each request, order, framing, what goes through and what ends
//! at the gate.

mod gate;

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use gate::{
    Conn, Gate, RULE, RawBackend, Request, Setup, Stub, ask, head, read_head, read_request, read_rest,
};

fn start() -> (Stub, Gate) {
    let stub = Stub::start();
    let gate = Setup::default().start(stub.port);
    (stub, gate)
}

fn put(target: &str, token: u64) -> gate::Ask {
    ask("PUT", target).token(token).body("v")
}

const OK: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n";

/// A backend that answers every request with these bytes, then closes if `close`; and what it was sent.
fn answering(answer: &'static [u8], close: bool) -> (RawBackend, Receiver<(Request, Vec<u8>)>) {
    let (tell, told) = channel();
    let tell = Mutex::new(tell);
    let backend = RawBackend::start(move |_, mut reader, mut writer| {
        while let Ok(Some(request)) = read_request(&mut reader) {
            let _nobody_looks = tell.lock().unwrap().send(request);
            if writer.write_all(answer).is_err() || close {
                return;
            }
        }
    });
    (backend, told)
}

// ---- strictness

/// A PUT with these lines after its request line, and what follows its head.
fn raw_put(lines: &[&str], rest: &str) -> Vec<u8> {
    let mut raw = String::from("PUT /orders/1 HTTP/1.1\r\n");
    for line in lines {
        raw += line;
        raw += "\r\n";
    }
    (raw + "\r\n" + rest).into_bytes()
}

/// A chunked PUT with this body.
fn raw_chunked(body: &str) -> Vec<u8> {
    raw_put(&[HOST, TOKEN, "Transfer-Encoding: chunked"], body)
}

const HOST: &str = "Host: a.test";
const TOKEN: &str = "Fencing-Token: 9";

fn malformed() -> Vec<(u16, Vec<u8>)> {
    let mut all = Vec::new();
    let five = |length: &str| raw_put(&[HOST, TOKEN, &format!("Content-Length:{length}")], "hello");
    for length in [
        " +5",
        " -5",
        " 0x5",
        " 5,5",
        " 5, 5",
        "",
        " ",
        " 5 5",
        " 5.0",
        " 5e0",
        " 05",
        " 5 ",
        "\t5",
        "  5",
        " five",
        " 18446744073709551616",
        " 99999999999999999999999",
        " 9223372036854775808",
        " \u{665}",
    ] {
        all.push((400, five(length)));
    }
    for coding in [
        "gzip",
        "gzip, chunked",
        "chunked, gzip",
        "chunked, chunked",
        "identity",
        "xchunked",
        "chunked;q=1",
        "chunked,",
        ",chunked",
        "\"chunked\"",
        "",
        "\tchunked",
        "chunked ",
        "chunked\u{b}",
    ] {
        all.push((
            400,
            raw_put(
                &[HOST, TOKEN, &format!("Transfer-Encoding: {coding}")],
                "0\r\n\r\n",
            ),
        ));
    }
    let line_sets: &[&[&str]] = &[
        &[HOST, TOKEN, "Content-Length: 5", "Transfer-Encoding: chunked"],
        &[HOST, TOKEN, "Transfer-Encoding: chunked", "Content-Length: 5"],
        &[HOST, TOKEN, "Content-Length: 5", "Content-Length: 5"],
        &[HOST, TOKEN, "Content-Length: 5", "content-length: 6"],
        &[
            HOST,
            TOKEN,
            "Transfer-Encoding: chunked",
            "transfer-encoding: chunked",
        ],
        &[HOST, TOKEN, "Transfer_Encoding: chunked", "Content-Length: 0"],
        &[HOST, TOKEN, "Content_Length: 5"],
        &[HOST, TOKEN, "Content-Length : 5"],
        &[HOST, "Fencing-Token : 9"],
        &["Host : a.test", TOKEN],
        &[HOST, TOKEN, " folded: 1"],
        &[HOST, TOKEN, "\tfolded: 1"],
        &[HOST, TOKEN, "X: a", " b"],
        &[" Host: a.test", TOKEN],
        &[TOKEN],
        &[HOST, HOST, TOKEN],
        &[HOST, "Host: b.test", TOKEN],
        &["Host:", TOKEN],
        &["Host: a b", TOKEN],
        &["Host: a,b", TOKEN],
        &["Host: user@a.test", TOKEN],
        &["Host: a.test/x", TOKEN],
        &["Host: a.test:x", TOKEN],
        &["Host: a.test:70000", TOKEN],
        &["Host: %61.test", TOKEN],
        &[HOST, TOKEN, ": no name"],
        &[HOST, TOKEN, "no colon"],
        &[HOST, "Fencing Token: 9"],
        &[HOST, TOKEN, "X\u{e9}: 1"],
        &[HOST, TOKEN, "X: a\0b"],
        &[HOST, TOKEN, "X\0: b"],
        &[HOST, TOKEN, "X: a\rb"],
        &[HOST, TOKEN, "X: a\nY: b"],
        &[HOST, TOKEN, "X: a\u{7f}b"],
        &[HOST, TOKEN, "X: a\u{1}b"],
        &[HOST, TOKEN, "Connection: host"],
        &[
            HOST,
            TOKEN,
            "Connection: close, Content-Length",
            "Content-Length: 0",
        ],
        &[HOST, TOKEN, "Connection: transfer-encoding"],
        &[HOST, TOKEN, "Connection: Authorization"],
        &[HOST, TOKEN, "Connection: a b"],
    ];
    all.extend(line_sets.iter().map(|lines| (400, raw_put(lines, ""))));
    for line in [
        "PUT /orders/1#x HTTP/1.1",
        "PUT orders/1 HTTP/1.1",
        "PUT * HTTP/1.1",
        "PUT /orders/ 1 HTTP/1.1",
        "PUT\t/orders/1\tHTTP/1.1",
        "PUT  /orders/1 HTTP/1.1",
        "PUT /orders/1  HTTP/1.1",
        "PUT /orders/1",
        "PUT /orders/1 http/1.1",
        "PUT /orders/1 HTTP/1.1 ",
        " PUT /orders/1 HTTP/1.1",
        "PUT /\u{e9}/1 HTTP/1.1",
        "PUT /orders/\u{1}1 HTTP/1.1",
        "PUT http://b.test/orders/1 HTTP/1.1",
        "PUT http://a.test:81/orders/1 HTTP/1.1",
        "PUT http:///orders/1 HTTP/1.1",
        "PUT http://u@a.test/orders/1 HTTP/1.1",
        "PUT ftp://a.test/orders/1 HTTP/1.1",
        "PUT http://a.test?/orders/1 HTTP/1.1",
        "P\u{0}T /orders/1 HTTP/1.1",
        "P(T /orders/1 HTTP/1.1",
        "PUT /orders/1 HTTP/1.1\r",
    ] {
        all.push((400, format!("{line}\r\n{HOST}\r\n{TOKEN}\r\n\r\n").into_bytes()));
    }
    all.push((
        400,
        format!("PUT /orders/1 HTTP/1.0\r\n{HOST}\r\n{TOKEN}\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n")
            .into(),
    ));
    all.push((400, format!("PUT /orders/1 HTTP/1.1\n{HOST}\n{TOKEN}\n\n").into()));
    all.push((
        400,
        format!("PUT /orders/1 HTTP/1.1\r\n{HOST}\n{TOKEN}\r\n\r\n").into(),
    ));
    all.push((
        400,
        format!("PUT /orders/1 HTTP/1.1\r\n{HOST}\r\n{TOKEN}\n\r\n").into(),
    ));
    all.push((
        400,
        format!("PUT /orders/1 HTTP/1.1\r\n{HOST}\r\n{TOKEN}\r\n\n").into(),
    ));
    all.push((
        400,
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n".to_vec(),
    ));
    for version in ["HTTP/1.2", "HTTP/2.0", "HTTP/0.9", "HTTP/3.0"] {
        all.push((
            505,
            format!("PUT /orders/1 {version}\r\n{HOST}\r\n{TOKEN}\r\n\r\n").into(),
        ));
    }
    all.push((
        501,
        format!("CONNECT a.test:80 HTTP/1.1\r\n{HOST}:80\r\n\r\n").into(),
    ));
    all.push((501, format!("TRACE /orders/1 HTTP/1.1\r\n{HOST}\r\n\r\n").into()));
    all.push((417, raw_put(&[HOST, TOKEN, "Expect: 200-ok"], "")));
    all.push((
        431,
        raw_put(&[HOST, TOKEN, &format!("X: {}", "x".repeat(70_000))], ""),
    ));
    all.push((431, raw_put(&[HOST, TOKEN, &"X: y\r\n".repeat(2000)], "")));
    all.push((
        431,
        format!(
            "PUT /orders/{} HTTP/1.1\r\n{HOST}\r\n{TOKEN}\r\n\r\n",
            "x".repeat(70_000)
        )
        .into(),
    ));
    for body in [
        "ZZ\r\nhello\r\n0\r\n\r\n",
        "\r\n",
        "-5\r\nhello\r\n0\r\n\r\n",
        "+5\r\nhello\r\n0\r\n\r\n",
        "0x5\r\nhello\r\n0\r\n\r\n",
        " 5\r\nhello\r\n0\r\n\r\n",
        "5 \r\nhello\r\n0\r\n\r\n",
        "5\nhello\r\n0\r\n\r\n",
        "5\r\nhello\n0\r\n\r\n",
        "5\r\nhello0\r\n\r\n",
        "5\r\nhelloX\r\n0\r\n\r\n",
        "5\r\nhello\r0\r\n\r\n",
        "5\rX\nhello\r\n0\r\n\r\n",
        "00000000000000005\r\nhello\r\n0\r\n\r\n",
        "fffffffffffffffff\r\n",
        "ffffffffffffffff\r\n",
        "8000000000000000\r\n",
        "5;a=\u{1}\r\nhello\r\n0\r\n\r\n",
        "5;a\nhello\r\n0\r\n\r\n",
        "5\r\nhello\r\n0\r\nFencing-Token: 1\r\n\r\n",
        "0\r\nfencing-token: 99\r\n\r\n",
        "0\r\nContent-Length: 5\r\n\r\n",
        "0\r\nTransfer-Encoding: chunked\r\n\r\n",
        "0\r\nHost: b\r\n\r\n",
        "0\r\nX : 1\r\n\r\n",
        "0\r\nX: 1\n\r\n",
        "0\r\n X: 1\r\n\r\n",
        "0\r\nno colon\r\n\r\n",
        "0\r\n\n",
        "0\n\r\n",
        "0\r\nX: a\0\r\n\r\n",
    ] {
        all.push((400, raw_chunked(body)));
    }
    all.push((
        400,
        raw_chunked(&format!("5;{}\r\nhello\r\n0\r\n\r\n", "x".repeat(2000))),
    ));
    all
}

#[test]
fn what_has_two_readings_is_refused_closed_and_reaches_nobody() {
    let (stub, gate) = start();
    let all = malformed();
    assert!(all.len() > 100);
    for (status, raw) in all {
        let shown = String::from_utf8_lossy(&raw[..raw.len().min(300)]).into_owned();
        let mut conn = Conn::open(gate.port);
        // A second request behind it must not be taken for one.
        let behind = put("/orders/behind", 99).bytes();
        conn.send([raw.as_slice(), &behind].concat());
        let reply = conn
            .try_reply(false)
            .unwrap_or_else(|error| panic!("{error}: {shown:?}"));
        assert_eq!(reply.status, status, "{shown:?}: {reply:?}");
        assert_eq!(reply.reason(), "bad-request", "{shown:?}: {reply:?}");
        assert_eq!(reply.field("connection"), Some("close"), "{shown:?}");
        conn.is_closed();
    }
    assert_eq!(
        stub.look(|state| state.connections),
        0,
        "nothing reached the backend"
    );
    gate.send(put("/orders/1", 1)).is_ok();
}

#[test]
fn a_malformed_body_never_turns_into_a_request() {
    let (stub, gate) = start();
    let inner = String::from_utf8(put("/orders/2", 99).bytes()).unwrap();
    let head_len = raw_chunked("").len();
    for padding in 0..head_len + 20 {
        // However much of it is skipped, what follows looks like the end of a body, and then like a request.
        let body = format!("{}0\r\n\r\n{inner}", "G".repeat(padding + 1));
        let mut conn = Conn::open(gate.port);
        conn.send(raw_chunked(&body));
        conn.reply().is(400, "bad-request");
        conn.is_closed();
    }
    assert_eq!(stub.look(|state| state.arrived.len()), 0);
}

#[test]
fn a_refused_body_is_never_a_request() {
    let (stub, gate) = start();
    gate.send(put("/orders/1", 34)).is_ok();
    let inner = put("/orders/2", 99).bytes();
    for token in [Some("33"), None, Some("x")] {
        for expect in [false, true] {
            for chunked in [None, Some(1000)] {
                let mut outer = ask("PUT", "/orders/1").body(inner.clone());
                outer.chunked = chunked;
                outer
                    .fields
                    .extend(token.map(|token| ("Fencing-Token".into(), token.into())));
                if expect {
                    outer = outer.field("Expect", "100-continue");
                }
                let raw = outer.bytes();
                let split = raw.len() - inner.len() - if chunked.is_some() { 7 } else { 0 };
                for at_once in [true, false] {
                    let mut conn = Conn::open(gate.port);
                    if at_once {
                        conn.send(&raw);
                    } else {
                        conn.send(&raw[..split]);
                    }
                    assert!(matches!(conn.reply().status, 400 | 412 | 428));
                    if !at_once {
                        let _closed_by_now = conn.try_send(&raw[split..]);
                    }
                    let _closed_by_now = conn.try_send(ask("GET", "/orders/1").bytes());
                    let _either_way = conn.try_reply(false);
                }
            }
        }
    }
    assert!(stub.look(|state| state.arrived.iter().all(|request| request.token != Some(99))));
    gate.send(put("/orders/1", 34)).is_ok();
}

#[test]
fn a_chunk_that_turns_out_malformed_on_its_way_resets_the_backend() {
    let (stub, gate) = start();
    for tail in ["ZZ\r\n", "0\r\nFencing-Token: 99\r\n\r\n", "0\r\nX : 1\r\n\r\n"] {
        let before = stub.look(|state| state.incomplete.len());
        let mut conn = Conn::open(gate.port);
        conn.send(raw_chunked("5\r\nhello\r\n"));
        stub.wait(|state| state.arrived.len() > before);
        conn.send(tail);
        conn.reply().is(400, "bad-request");
        conn.is_closed();
        stub.wait(|state| {
            state.incomplete.len() > before && state.incomplete.iter().all(|(_, reset)| *reset)
        });
    }
    assert!(stub.tokens().is_empty());
    gate.send(put("/orders/1", 9)).is_ok();
}

#[test]
fn paths_that_can_be_read_in_two_ways_are_refused() {
    let (stub, gate) = start();
    for path in [
        "/orders/./1",
        "/orders/../users/1",
        "/orders/x/..",
        "/orders/%2e%2e/users",
        "/orders/%2E/1",
        "/orders/.%2e/x",
        "//orders/1",
        "/orders//1",
        "/orders/1//",
        "/orders/a%2Fb",
        "/orders/a%2fb",
        "/orders/a%5Cb",
        "/orders/a\\b",
        "/orders/%00",
        "/orders/%1f",
        "/orders/%7f",
        "/orders/%",
        "/orders/%2",
        "/orders/%zz",
        "/orders;x/1",
        "/orders%3Bx/1",
        "/..",
        "/orders/%0d%0a",
    ] {
        let reply = gate.send(put(path, 9));
        reply.is(400, "ambiguous-path");
        let read = gate.send(ask("GET", path).token(9));
        assert_eq!(read.status, 400, "{path}: {read:?}");
    }
    assert_eq!(stub.look(|state| state.arrived.len()), 0);
    gate.send(put("/%6Frders/1", 5)).is_ok();
    gate.send(put("/orders/1", 4)).is(412, "stale-token");
    gate.send(put("/orders/1/", 4)).is(412, "stale-token");
    gate.send(put("/orders/1/", 5)).is_ok();
    gate.send(put("/orders/a;b?x=%2F..//", 5)).is_ok();
    let targets = stub.look(|state| state.arrived.iter().map(|r| r.target.clone()).collect::<Vec<_>>());
    assert_eq!(targets, ["/%6Frders/1", "/orders/1/", "/orders/a;b?x=%2F..//"]);
}

// ---- order, connections

#[test]
fn pipelined_requests_are_answered_in_their_order() {
    let (stub, gate) = start();
    gate.send(put("/orders/1", 34)).is_ok();
    let requests = [
        (put("/orders/1", 34), 200),
        (put("/orders/1", 33), 412),
        (ask("GET", "/orders/1"), 200),
        (ask("PUT", "/orders/1").body("no token"), 428),
        (put("/orders/2", 34).chunked(1), 200),
        (put("/orders/1", 33).body("0123456789").chunked(3), 412),
        (ask("DELETE", "/orders/1").token(34), 200),
        (ask("GET", "/orders/1").token(33), 412),
        (put("/top", 34), 403),
        (put("/users/1", 1), 200),
    ];
    let mut conn = Conn::open(gate.port);
    conn.send(
        requests
            .iter()
            .flat_map(|(request, _)| request.bytes())
            .collect::<Vec<u8>>(),
    );
    for (at, (_, status)) in requests.iter().enumerate() {
        assert_eq!(conn.reply().status, *status, "request {at}");
    }
    assert_eq!(stub.tokens(), [34, 34, 34, 34, 1]);
}

#[test]
fn a_client_that_closes_is_told_so_and_its_backend_connection_lives_on() {
    let (stub, gate) = start();
    for _ in 0..3 {
        let mut conn = Conn::open(gate.port);
        conn.send(put("/orders/1", 33).field("Connection", "close").bytes());
        assert_eq!(conn.reply().is_ok().field("connection"), Some("close"));
        conn.is_closed();
    }
    assert!(stub.look(|state| {
        state
            .arrived
            .iter()
            .all(|request| request.field("connection").is_none())
    }));
    assert!(stub.look(|state| state.connections) <= 2, "one a core");
}

#[test]
fn a_backend_that_closes_costs_its_client_nothing() {
    let (backend, _told) = answering(
        b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nok",
        true,
    );
    let gate = Setup::default().start(backend.port);
    let mut conn = Conn::open(gate.port);
    for _ in 0..10 {
        conn.send(put("/orders/1", 33).bytes());
        let reply = conn.reply();
        assert_eq!(reply.is_ok().field("connection"), None);
    }
    assert_eq!(backend.connections(), 10);
}

#[test]
fn an_http_1_0_client_gets_what_it_understands() {
    let (backend, told) = answering(
        b"HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\nHTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n6\r\n world\r\n0\r\nX: y\r\n\r\n",
        false,
    );
    let gate = Setup::default().start(backend.port);
    let mut conn = Conn::open(gate.port);
    conn.send("PUT /orders/1 HTTP/1.0\r\nHost: a\r\nFencing-Token: 1\r\nConnection: keep-alive\r\nContent-Length: 0\r\n\r\n");
    let reply = conn.reply();
    assert!(reply.interim.is_empty());
    assert_eq!(
        (reply.status, reply.body.as_slice()),
        (200, b"hello world".as_slice())
    );
    assert_eq!(reply.field("transfer-encoding"), None);
    assert_eq!(reply.field("connection"), Some("close"));
    let (request, _) = told.recv_timeout(gate::PATIENCE).unwrap();
    assert_eq!(request.lines[0], "PUT /orders/1 HTTP/1.1");
}

#[test]
fn an_http_1_0_client_keeps_its_connection_if_it_asks() {
    let (_stub, gate) = start();
    let mut conn = Conn::open(gate.port);
    for status in [200, 200] {
        conn.send("PUT /orders/1 HTTP/1.0\r\nHost: a\r\nFencing-Token: 5\r\nConnection: Keep-Alive\r\nContent-Length: 2\r\n\r\nhi");
        let reply = conn.reply();
        assert_eq!(
            (reply.status, reply.field("connection")),
            (status, Some("keep-alive"))
        );
    }
    conn.send("PUT /orders/1 HTTP/1.0\r\nHost: a\r\nFencing-Token: 4\r\nConnection: keep-alive\r\nContent-Length: 0\r\n\r\n");
    assert_eq!(
        conn.reply().is(412, "stale-token").field("connection"),
        Some("keep-alive")
    );
    conn.send("GET /orders/1 HTTP/1.0\r\nHost: a\r\n\r\n");
    assert_eq!(conn.reply().is_ok().field("connection"), Some("close"));
    conn.is_closed();
}

// ---- answers

#[test]
fn interim_answers_are_relayed() {
    let (backend, _told) = answering(
        b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\nHTTP/1.1 102 Processing\r\n\r\nHTTP/1.1 201 Made\r\nContent-Length: 1\r\n\r\nx",
        false,
    );
    let gate = Setup::default().start(backend.port);
    let reply = gate.send(put("/orders/1", 1));
    assert_eq!((reply.interim, reply.status), (vec![103, 102], 201));
}

#[test]
fn answers_without_a_body_leave_the_connection_in_step() {
    for answer in [
        b"HTTP/1.1 204 No Content\r\n\r\n".as_slice(),
        b"HTTP/1.1 204 No Content\r\nContent-Length: 5\r\n\r\n",
        b"HTTP/1.1 304 Not Modified\r\nContent-Length: 5\r\nETag: \"a\"\r\n\r\n",
    ] {
        let (backend, _told) = answering(answer, false);
        let gate = Setup::default().start(backend.port);
        let mut conn = Conn::open(gate.port);
        for _ in 0..3 {
            conn.send(put("/orders/1", 1).bytes());
            assert!(matches!(conn.reply().status, 204 | 304));
        }
        assert_eq!(backend.connections(), 1);
    }
    let (backend, _told) = answering(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nX: y\r\n\r\n", false);
    let gate = Setup::default().start(backend.port);
    let mut conn = Conn::open(gate.port);
    for _ in 0..3 {
        conn.send(ask("HEAD", "/orders/1").bytes());
        assert_eq!(conn.reply_to_head().is_ok().field("content-length"), Some("5"));
    }
    assert_eq!(backend.connections(), 1);
}

#[test]
fn chunked_answers_go_through_with_their_trailers() {
    let (backend, _told) = answering(
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTrailer: X-Sum\r\n\r\n5;ext=1\r\nhello\r\n0\r\nX-Sum: 7\r\nx-two:  8\r\n\r\n",
        false,
    );
    let gate = Setup::default().start(backend.port);
    let mut conn = Conn::open(gate.port);
    for _ in 0..3 {
        conn.send(put("/orders/1", 1).bytes());
        let reply = conn.reply();
        assert_eq!(reply.is_ok().body, b"hello");
        assert_eq!(reply.trailers, "X-Sum: 7\r\nx-two:  8\r\n");
    }
    assert_eq!(backend.connections(), 1);
}

#[test]
fn an_answer_that_the_connections_end_delimits_is_chunked_for_its_client() {
    for answer in [
        b"HTTP/1.1 200 OK\r\n\r\nhello".as_slice(),
        b"HTTP/1.0 200 OK\r\n\r\nhello",
    ] {
        let (backend, _told) = answering(answer, true);
        let gate = Setup::default().settle_after("60s").start(backend.port);
        let mut conn = Conn::open(gate.port);
        for token in 1..4 {
            conn.send(put("/orders/1", token).bytes());
            let reply = conn.reply();
            assert_eq!(reply.is_ok().body, b"hello");
            assert_eq!(reply.field("transfer-encoding"), Some("chunked"));
        }
    }
}

#[test]
fn answers_with_two_readings_are_not_relayed() {
    for answer in [
        b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n".as_slice(),
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 2\r\n\r\nok",
        b"HTTP/1.1 200 OK\r\nContent-Length: 2, 2\r\n\r\nok",
        b"HTTP/1.1 200 OK\r\nContent-Length: -2\r\n\r\nok",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\nok",
        b"HTTP/1.1 200 OK\nContent-Length: 2\n\nok",
        b"HTTP/1.1 200 OK\r\nX : y\r\nContent-Length: 2\r\n\r\nok",
        b"HTTP/1.1 200 OK\r\nX: y\r\n z\r\nContent-Length: 2\r\n\r\nok",
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\n\r\n",
        b"HTTP/2.0 200 OK\r\nContent-Length: 2\r\n\r\nok",
        b"SSH-2.0-OpenSSH\r\n\r\n",
        b"\r\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok",
    ] {
        let (backend, _told) = answering(answer, false);
        let gate = Setup::default().start(backend.port);
        let shown = String::from_utf8_lossy(answer);
        let reply = gate.send(put("/orders/1", 1));
        assert_eq!(
            (reply.status, reply.reason()),
            (502, "upstream-failed"),
            "{shown:?}: {reply:?}"
        );
        assert_eq!(reply.json()["applied"], "unknown");
        assert_eq!(gate.metric("fencegate_in_doubt_writes", &[]), 1.0, "{shown:?}");
    }
}

// ---- what goes through

#[test]
fn a_request_reaches_the_backend_as_it_came() {
    let (backend, told) = answering(OK, false);
    let gate = Setup::default().start(backend.port);
    let lines = [
        "Host: Store.Test:9000",
        "fencing-TOKEN: 0",
        "X-Amz-Date: 20260101T000000Z",
        "Authorization: AWS4-HMAC-SHA256 Credential=a/b, SignedHeaders=host;x-amz-date, Signature=0",
        "x-LOWER-Upper:   a,  b",
        "Cookie: a=1",
        "X-Amz-Meta-A: 2",
        "x-amz-meta-a: 1",
        "Empty:",
        "X-Latin: caf\u{e9}",
        "If: (<opaquelocktoken:x>)",
        "Forwarded: for=x",
        "Content-Length: 2",
    ];
    let mut raw = b"PUT /orders/%7Ea%20b?x=%2F&y&&z=a+b HTTP/1.1\r\n".to_vec();
    for line in lines {
        // As Latin 1: one byte a character.
        raw.extend(line.chars().map(|c| c as u8));
        raw.extend(b"\r\n");
    }
    raw.extend(b"\r\nhi");
    let mut conn = Conn::open(gate.port);
    conn.send(raw);
    conn.reply().is_ok();
    let (request, body) = told.recv_timeout(gate::PATIENCE).unwrap();
    assert_eq!(body, b"hi");
    let mut expected = vec!["PUT /orders/%7Ea%20b?x=%2F&y&&z=a+b HTTP/1.1"];
    expected.extend(lines);
    expected.extend([
        "X-Forwarded-For: 127.0.0.1",
        "X-Forwarded-Proto: http",
        "Via: 1.1 fencegate",
    ]);
    assert_eq!(request.lines, expected);
}

#[test]
fn an_answer_reaches_the_client_as_it_came() {
    let (backend, _told) = answering(
        b"HTTP/1.1 299 Quite  Fine\r\nserver: X\r\nETag: \"a\"\r\nx-B:   c\r\nX-b: d\r\nSet-Cookie: a=1\r\nSet-Cookie: b=2\r\nContent-Length: 1\r\n\r\n!",
        false,
    );
    let gate = Setup::default().start(backend.port);
    let reply = gate.send(put("/orders/1", 1));
    assert_eq!(
        reply.head,
        "HTTP/1.1 299 Quite  Fine\r\nserver: X\r\nETag: \"a\"\r\nx-B:   c\r\nX-b: d\r\nSet-Cookie: a=1\r\nSet-Cookie: b=2\r\nContent-Length: 1"
    );
    assert_eq!(reply.body, b"!");
}

#[test]
fn hop_by_hop_fields_end_at_the_gate_both_ways() {
    let (backend, told) = answering(
        b"HTTP/1.1 200 OK\r\nConnection: X-Mine, keep-alive\r\nX-Mine: 1\r\nKeep-Alive: timeout=5\r\nProxy-Connection: keep-alive\r\nX-Yours: 2\r\nContent-Length: 0\r\n\r\n",
        false,
    );
    let gate = Setup::default().listener("forwarded: false").start(backend.port);
    let mut conn = Conn::open(gate.port);
    conn.send(raw_put(
        &[
            HOST,
            TOKEN,
            "Connection: x-hop, Keep-Alive",
            "X-Hop: 1",
            "Keep-Alive: 5",
            "TE: trailers",
            "Proxy-Connection: keep-alive",
            "Upgrade: h2c",
            "HTTP2-Settings: AAMAAABkAAQAAP__",
            "X-Stays: 1",
            "Content-Length: 0",
        ],
        "",
    ));
    let reply = conn.reply();
    assert_eq!(
        reply.is_ok().head,
        "HTTP/1.1 200 OK\r\nX-Yours: 2\r\nContent-Length: 0"
    );
    let (request, _) = told.recv_timeout(gate::PATIENCE).unwrap();
    assert_eq!(
        request.lines,
        [
            "PUT /orders/1 HTTP/1.1",
            HOST,
            TOKEN,
            "X-Stays: 1",
            "Content-Length: 0"
        ]
    );
}

#[test]
fn trailers_reach_the_backend() {
    let (tell, told) = channel();
    let tell = Mutex::new(tell);
    let backend = RawBackend::start(move |_, mut reader, mut writer| {
        let _head = read_head(&mut reader);
        let mut body = Vec::new();
        let mut byte = [0];
        while !body.ends_with(b"X-Sum: 7\r\nx-two:  8\r\n\r\n") && reader.read_exact(&mut byte).is_ok() {
            body.push(byte[0]);
        }
        tell.lock().unwrap().send(body).unwrap();
        writer.write_all(OK).unwrap();
    });
    let gate = Setup::default().start(backend.port);
    let mut conn = Conn::open(gate.port);
    conn.send(raw_chunked(
        "5;ext=\"1\"\r\nhello\r\n0\r\nX-Sum: 7\r\nx-two:  8\r\n\r\n",
    ));
    conn.reply().is_ok();
    let body = told.recv_timeout(gate::PATIENCE).unwrap();
    assert_eq!(
        String::from_utf8(body).unwrap(),
        "5\r\nhello\r\n0\r\nX-Sum: 7\r\nx-two:  8\r\n\r\n"
    );
}

#[test]
fn an_absolute_target_is_forwarded_in_origin_form() {
    let (backend, told) = answering(OK, false);
    let gate = Setup::default().start(backend.port);
    for (target, expected) in [
        ("http://a.test/orders/1?x", "/orders/1?x"),
        ("HTTP://A.TEST:80/orders/1", "/orders/1"),
    ] {
        let mut conn = Conn::open(gate.port);
        conn.send(format!(
            "PUT {target} HTTP/1.1\r\n{HOST}\r\n{TOKEN}\r\nContent-Length: 0\r\n\r\n"
        ));
        conn.reply().is_ok();
        let (request, _) = told.recv_timeout(gate::PATIENCE).unwrap();
        assert_eq!(request.target, expected);
        assert_eq!(request.field("host"), Some("a.test"));
    }
    gate.send(put("/orders/1", 8)).is(412, "stale-token");
}

// ---- Expect: 100-continue

/// A backend for one request with an expectation; `answer` gets what is left to read and where to write.
fn expecting(
    answer: impl Fn(&mut std::io::BufReader<TcpStream>, &mut TcpStream, &Request) + Send + Sync + 'static,
) -> RawBackend {
    RawBackend::start(move |_, mut reader, mut writer| {
        if let Ok(Some(request)) = read_head(&mut reader) {
            assert_eq!(request.field("expect"), Some("100-continue"));
            answer(&mut reader, &mut writer, &request);
        }
    })
}

fn expectation() -> String {
    head(
        "PUT",
        "/orders/1",
        Some(1),
        Some(5),
        &[("Expect", "100-continue")],
    )
}

#[test]
fn the_backends_100_is_relayed() {
    let backend = expecting(|reader, writer, request| {
        writer.write_all(b"HTTP/1.1 100 Continue\r\n\r\n").unwrap();
        assert_eq!(read_rest(reader, request).unwrap(), b"hello");
        writer.write_all(OK).unwrap();
    });
    let gate = Setup::default().start(backend.port);
    let mut conn = Conn::open(gate.port);
    conn.send(expectation());
    assert_eq!(conn.read_head().unwrap(), "HTTP/1.1 100 Continue");
    conn.send("hello");
    assert!(conn.reply().is_ok().interim.is_empty());
}

#[test]
fn a_final_answer_instead_of_the_100_ends_the_request() {
    let backend = expecting(|reader, writer, _| {
        writer
            .write_all(b"HTTP/1.1 401 No\r\nContent-Length: 2\r\n\r\nno")
            .unwrap();
        let mut rest = Vec::new();
        let _reset = reader.read_to_end(&mut rest);
        assert!(rest.is_empty());
    });
    let gate = Setup::default().settle_after("60s").start(backend.port);
    let mut conn = Conn::open(gate.port);
    conn.send(expectation());
    let reply = conn.reply();
    assert_eq!((reply.status, reply.interim.len()), (401, 0));
    assert_eq!(reply.field("connection"), Some("close"));
    let _closed_by_now = conn.try_send("hello");
    conn.is_closed();
    assert_eq!(gate.metric("fencegate_in_doubt_writes", &[]), 0.0);
}

#[test]
fn a_backend_that_knows_no_100_gets_the_body_all_the_same() {
    let backend = expecting(|reader, writer, request| {
        assert_eq!(read_rest(reader, request).unwrap(), b"hello");
        writer.write_all(OK).unwrap();
    });
    let gate = Setup::default().start(backend.port);
    let mut conn = Conn::open(gate.port);
    conn.send(expectation());
    let since = Instant::now();
    assert_eq!(conn.read_head().unwrap(), "HTTP/1.1 100 Continue");
    assert!(since.elapsed() < Duration::from_secs(10));
    conn.send("hello");
    assert!(conn.reply().is_ok().interim.is_empty());
    // And one that doesn't wait needs none.
    let mut conn = Conn::open(gate.port);
    conn.send(expectation()).send("hello");
    conn.reply().is_ok();
}

#[test]
fn a_holder_that_turns_stale_while_it_expects_a_100_gets_412() {
    let (seen, told) = channel();
    let seen = Mutex::new(seen);
    let backend = RawBackend::start(move |_, mut reader, mut writer| {
        while let Ok(Some(request)) = read_head(&mut reader) {
            if request.field("expect").is_some() {
                seen.lock().unwrap().send(()).unwrap();
                let _reset = std::io::copy(&mut reader, &mut std::io::sink());
                return;
            }
            let _body = read_rest(&mut reader, &request);
            writer.write_all(OK).unwrap();
        }
    });
    let gate = Setup::default().settle_after("60s").start(backend.port);
    let mut conn = Conn::open(gate.port);
    conn.send(expectation());
    told.recv_timeout(gate::PATIENCE).unwrap();
    gate.send(put("/orders/1", 2)).is_ok();
    let reply = conn.reply();
    reply.is(412, "stale-token");
}

// ---- slow heads

#[test]
fn a_head_that_does_not_come_gets_408() {
    let (stub, _) = start();
    let gate = Setup::default()
        .listener("limits: { header_timeout: 200ms }")
        .start(stub.port);
    let mut conn = Conn::open(gate.port);
    conn.send("PUT /orders/1 HTTP/1.1\r\nHost: a");
    let reply = conn.reply();
    assert_eq!(reply.status, 408);
    conn.is_closed();
    assert_eq!(stub.look(|state| state.arrived.len()), 0);
}

#[test]
fn an_idle_connection_is_closed_without_a_word() {
    let (stub, _) = start();
    let gate = Setup::default()
        .listener("limits: { idle_timeout: 200ms }")
        .start(stub.port);
    let mut conn = Conn::open(gate.port);
    conn.is_closed();
    let mut conn = Conn::open(gate.port);
    conn.send(put("/orders/1", 1).bytes());
    conn.reply().is_ok();
    conn.is_closed();
}

#[test]
fn forwarding_fields_of_earlier_proxies_stay() {
    let (backend, told) = answering(OK, false);
    let gate = Setup::rules(RULE).start(backend.port);
    let request = put("/orders/1", 1)
        .field("X-Forwarded-For", "10.0.0.1")
        .field("X-Forwarded-Proto", "https")
        .field("Via", "1.1 a");
    gate.send(request).is_ok();
    let (request, _) = told.recv_timeout(gate::PATIENCE).unwrap();
    let named = |name: &str| -> Vec<String> {
        let prefix = format!("{name}: ");
        request
            .lines
            .iter()
            .filter_map(|line| line.strip_prefix(&prefix).map(str::to_owned))
            .collect()
    };
    assert_eq!(named("X-Forwarded-For"), ["10.0.0.1", "127.0.0.1"]);
    assert_eq!(named("X-Forwarded-Proto"), ["https"]);
    assert_eq!(named("Via"), ["1.1 a", "1.1 fencegate"]);
}

#[test]
fn many_connections_are_served_at_once() {
    let (stub, gate) = start();
    let results = Arc::new(Mutex::new(Vec::new()));
    let port = gate.port;
    std::thread::scope(|scope| {
        for number in 0..50 {
            let results = Arc::clone(&results);
            scope.spawn(move || {
                let mut conn = Conn::open(port);
                for _ in 0..20 {
                    conn.send(put(&format!("/r{number}/k"), number).bytes());
                    results.lock().unwrap().push(conn.reply().status);
                }
            });
        }
    });
    assert!(results.lock().unwrap().iter().all(|status| *status == 200));
    assert_eq!(stub.look(|state| state.journal.len()), 1000);
}

#[test]
fn requests_behind_a_long_chunked_body_are_answered_in_their_order() {
    let (stub, gate) = start();
    let mut conn = Conn::open(gate.port);
    for size in [100_000, 600_000, 1_500_000] {
        let first = ask("PUT", "/orders/1")
            .token(33)
            .body(vec![b'x'; size])
            .chunked(700);
        let rest = [
            put("/orders/2", 33),
            put("/orders/3", 32),
            ask("GET", "/orders/2"),
            put("/orders/4", 33).chunked(1),
        ];
        let mut writer = conn.stream.try_clone().unwrap();
        let bytes: Vec<u8> = [first].iter().chain(&rest).flat_map(gate::Ask::bytes).collect();
        let sender = std::thread::spawn(move || writer.write_all(&bytes).unwrap());
        let statuses = [(); 5].map(|()| conn.reply().status);
        assert_eq!(statuses, [200, 200, 412, 200, 200]);
        sender.join().unwrap();
        assert!(stub.look(|state| state.store["/orders/1"].len() == size));
    }
}

#[test]
fn a_client_that_ends_its_side_after_its_request_gets_its_answer() {
    let (stub, gate) = start();
    let mut old = Conn::open(gate.port);
    old.send(put("/orders/1", 33).field("x-stub-hold", "old").bytes());
    stub.wait_for_head(33);
    old.end();
    let mut new = Conn::open(gate.port);
    new.send(put("/orders/1", 34).bytes());
    gate.wait_until_stale("/orders/1", 33);
    new.end();
    stub.release("old");
    for conn in [&mut old, &mut new] {
        conn.reply().is_ok();
        conn.is_closed();
    }
}

#[test]
fn heads_with_many_and_long_fields_pass_both_ways() {
    let backend = RawBackend::start(|_, mut reader, mut writer| {
        while let Ok(Some((request, _))) = read_request(&mut reader) {
            let kept: Vec<&String> = request
                .lines
                .iter()
                .filter(|line| line.starts_with("X-Many"))
                .collect();
            let mut answer = String::from("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n");
            kept.iter().for_each(|line| answer += &format!("{line}\r\n"));
            answer += &format!("X-Long: {}\r\n\r\n", "y".repeat(100_000));
            writer.write_all(answer.as_bytes()).unwrap();
        }
    });
    let gate = Setup::default().start(backend.port);
    let mut conn = Conn::open(gate.port);
    for _ in 0..3 {
        let mut request = put("/orders/1", 1);
        for number in 0..200 {
            request = request.field(&format!("X-Many-{number}"), "z".repeat(200));
        }
        conn.send(request.bytes());
        let reply = conn.reply();
        assert_eq!(
            reply
                .is_ok()
                .head
                .lines()
                .filter(|line| line.starts_with("X-Many"))
                .count(),
            200
        );
        assert_eq!(reply.field("x-long").map(str::len), Some(100_000));
    }
}

#[test]
fn an_answer_is_seen_though_its_client_goes_on_sending_after_connection_close() {
    let (_stub, gate) = start();
    for _ in 0..20 {
        let mut conn = Conn::open(gate.port);
        conn.send(put("/orders/1", 33).field("Connection", "close").bytes());
        let _closed_by_now = conn.try_send(vec![b'\n'; 100_000]);
        conn.reply().is_ok();
    }
}
