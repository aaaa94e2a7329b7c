//! HTTP/2 from clients: what holds for HTTP/1.1 holds here as well, streams of one connection don't stall each other,
//! and nothing that a client sends has a second reading for the backend (sections 1, 4 and 5 of the contract).
//! What clients do to abuse it stands in `gate_h2_abuse.rs`.

mod gate;

use std::io::Write;
use std::sync::Mutex;
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use gate::frames::{Frames, Outcome, frame};
use gate::h2::{Client, wait};
use gate::{Conn, Gate, RawBackend, Request, Setup, Stub, ask, frames, read_head, read_request, start_with};

fn start() -> (Stub, Gate) {
    // Doubts would last longer than any test: what waits for one fails.
    start_with(Setup::default().settle_after("60s"))
}

fn put(target: &str, token: u64) -> gate::Ask {
    ask("PUT", target).token(token).body("v")
}

const OK: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n";

/// A backend that answers every request with these bytes, and what it was sent.
fn answering(answer: &'static [u8]) -> (RawBackend, Receiver<(Request, Vec<u8>)>) {
    let (tell, told) = channel();
    let tell = Mutex::new(tell);
    let backend = RawBackend::start(move |_, mut reader, mut writer| {
        while let Ok(Some(request)) = read_request(&mut reader) {
            let _nobody_looks = tell.lock().unwrap().send(request);
            if writer.write_all(answer).is_err() {
                return;
            }
        }
    });
    (backend, told)
}

/// So many bytes, of which no two pieces look alike.
fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|at| (at ^ at >> 8 ^ at >> 16) as u8).collect()
}

// ---- tokens

#[test]
fn tokens_are_compared_stream_by_stream() {
    let (stub, gate) = start();
    let client = Client::open(gate.port);
    client.send(put("/orders/1", 34).body("new")).is_ok();
    let asks = [
        (put("/orders/1", 33).body("late"), 412, "stale-token"),
        (put("/users/1", 1), 200, ""),
        (ask("PUT", "/orders/1").body("none"), 428, "missing-token"),
        (
            put("/orders/1", 34).field("fencing-token", 34),
            400,
            "malformed-token",
        ),
        (ask("PUT", "/orders/1").token("0x9"), 400, "malformed-token"),
        (put("/top", 34), 403, "unmatched-write"),
        (put("/orders/a%2fb", 34), 400, "ambiguous-path"),
        (
            put("/orders/2", 34).field("x-http-method", "GET"),
            400,
            "method-override",
        ),
        (ask("GET", "/orders/1").token(33), 412, "stale-token"),
        (ask("GET", "/orders/1"), 200, ""),
        (ask("DELETE", "/orders/2").token(35), 200, ""),
        (put("/orders/1", 34), 412, "stale-token"),
    ];
    for (ask, status, reason) in asks {
        client.send(ask).is(status, reason);
    }
    let reply = client.send(put("/orders/1", 34).body("late"));
    assert_eq!(reply.field("fencing-token-highest"), Some("35"));
    assert_eq!(reply.json()["resource"], "bucket/orders");
    assert_eq!(client.send(ask("GET", "/orders/1")).body, b"new");
    assert_eq!(stub.tokens(), [34, 1, 35]);
}

#[test]
fn streams_of_one_connection_share_the_order_of_tokens_with_other_connections() {
    let (stub, gate) = start();
    let clients = [Client::open(gate.port), Client::open(gate.port)];
    for token in 1..40 {
        let client = &clients[usize::from(token % 2 == 0)];
        let asks = [
            put("/orders/1", token),
            put("/orders/2", token - 1),
            put("/users/3", 7),
        ];
        let exchanges = asks.each_ref().map(|ask| client.start(ask));
        let [first, second, third] = exchanges.map(|exchange| exchange.reply().status);
        assert_eq!((first, third), (200, 200));
        assert!(matches!(second, 200 | 412), "{second}");
        gate.send(put("/orders/1", token - 1)).is(412, "stale-token");
    }
    gate::assert_never_backwards(&stub.journal());
}

// ---- what goes through

#[test]
fn a_request_reaches_the_backend_as_http_1_1_with_nothing_lost() {
    let (backend, told) = answering(OK);
    let gate = Setup::default().start(backend.port);
    let mut client = Frames::open(gate.port);
    client.headers(
        1,
        &[
            (":method", "PUT"),
            (":scheme", "http"),
            (":authority", "Store.Test:9000"),
            (":path", "/orders/%7Ea%20b?x=%2F&y&&z=a+b"),
            ("fencing-token", "7"),
            (
                "authorization",
                "AWS4-HMAC-SHA256 Credential=a/b, SignedHeaders=host;x-amz-date, Signature=0",
            ),
            ("x-amz-date", "20260101T000000Z"),
            ("x-latin", "caf\u{e9}"),
            ("empty", ""),
            ("te", "trailers"),
            ("content-length", "2"),
        ],
        false,
    );
    client.data(1, b"hi", true);
    assert_eq!(client.outcome(1), Outcome::Answered(200, String::new()));
    let (request, body) = told.recv_timeout(gate::PATIENCE).unwrap();
    assert_eq!(body, b"hi");
    assert_eq!(
        request.lines,
        [
            "PUT /orders/%7Ea%20b?x=%2F&y&&z=a+b HTTP/1.1",
            "host: Store.Test:9000",
            "fencing-token: 7",
            "authorization: AWS4-HMAC-SHA256 Credential=a/b, SignedHeaders=host;x-amz-date, Signature=0",
            "x-amz-date: 20260101T000000Z",
            // The test's reader shows each byte of UTF-8 as a character.
            "x-latin: caf\u{c3}\u{a9}",
            "empty: ",
            "content-length: 2",
            "X-Forwarded-For: 127.0.0.1",
            "X-Forwarded-Proto: http",
            "Via: 2.0 fencegate",
        ]
    );
}

#[test]
fn cookie_crumbs_become_one_field() {
    let (backend, told) = answering(OK);
    let gate = Setup::default().start(backend.port);
    let crumbs: Vec<String> = (0..120).map(|n| format!("c{n}={}", "v".repeat(20))).collect();
    let mut request = put("/orders/1", 1);
    for crumb in &crumbs {
        request = request.field("cookie", crumb);
    }
    Client::open(gate.port).send(request).is_ok();
    let (request, _) = told.recv_timeout(gate::PATIENCE).unwrap();
    let cookies: Vec<&String> = request
        .lines
        .iter()
        .filter(|line| line.starts_with("cookie"))
        .collect();
    assert_eq!(cookies, [&format!("cookie: {}", crumbs.join("; "))]);
}

#[test]
fn a_host_field_alone_will_do() {
    let (backend, told) = answering(OK);
    let gate = Setup::default().start(backend.port);
    let mut client = Frames::open(gate.port);
    let head = [
        (":method", "PUT"),
        (":scheme", "http"),
        (":path", "/orders/1"),
        ("host", "store.test"),
        ("fencing-token", "1"),
    ];
    client.headers(1, &head, true);
    assert_eq!(client.outcome(1), Outcome::Answered(200, String::new()));
    let (request, _) = told.recv_timeout(gate::PATIENCE).unwrap();
    assert_eq!(request.field("host"), Some("store.test"));
}

#[test]
fn large_bodies_pass_both_ways_byte_by_byte_the_same() {
    let (stub, gate) = start();
    let client = Client::open(gate.port);
    for (size, chunked) in [
        (0, None),
        (1, None),
        (70_000, Some(1)),
        (3 << 20, None),
        (3 << 20, Some(10_007)),
    ] {
        let body = pattern(size);
        // One byte a frame would be an attack: those of one byte are few.
        let chunked = chunked.map(|chunk| if chunk == 1 { 999 } else { chunk });
        let mut request = put("/orders/1", 1).body(body.clone());
        request.chunked = chunked;
        client.send(request).is_ok();
        assert!(
            stub.look(|state| state.store["/orders/1"] == body),
            "{size} {chunked:?}"
        );
        let reply = client.send(ask("GET", "/orders/1"));
        assert!(reply.is_ok().body == body, "{size} {chunked:?}");
    }
}

#[test]
fn trailers_pass_both_ways() {
    let (tell, told) = channel();
    let tell = Mutex::new(tell);
    let backend = RawBackend::start(move |_, mut reader, mut writer| {
        let _head = read_head(&mut reader);
        let mut body = Vec::new();
        let mut byte = [0];
        while !body.ends_with(b"\r\n\r\n") && std::io::Read::read_exact(&mut reader, &mut byte).is_ok() {
            body.push(byte[0]);
        }
        tell.lock().unwrap().send(body).unwrap();
        writer
            .write_all(
                b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\nX-Sum: 9\r\n\r\n",
            )
            .unwrap();
    });
    let gate = Setup::default().start(backend.port);
    let client = Client::open(gate.port);
    let mut exchange = client.begin(&put("/orders/1", 1).body("").chunked(1));
    exchange
        .data("hello")
        .trailers(&[("x-amz-checksum-crc32", "NhCmhg==")]);
    let reply = exchange.reply();
    assert_eq!(reply.is_ok().body, b"ok");
    assert_eq!(reply.trailers, "x-sum: 9\r\n");
    let body = told.recv_timeout(gate::PATIENCE).unwrap();
    assert_eq!(
        String::from_utf8(body).unwrap(),
        "5\r\nhello\r\n0\r\nx-amz-checksum-crc32: NhCmhg==\r\n\r\n"
    );
}

#[test]
fn interim_answers_are_relayed() {
    let (backend, _told) = answering(
        b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\nHTTP/1.1 102 Processing\r\n\r\nHTTP/1.1 201 Made\r\nContent-Length: 1\r\n\r\nx",
    );
    let gate = Setup::default().start(backend.port);
    let reply = Client::open(gate.port).send(put("/orders/1", 1));
    assert_eq!((reply.interim, reply.status), (vec![103, 102], 201));
}

#[test]
fn a_client_that_expects_a_100_gets_the_backends() {
    let backend = RawBackend::start(|_, mut reader, mut writer| {
        while let Ok(Some(request)) = read_head(&mut reader) {
            assert_eq!(request.field("expect"), Some("100-continue"));
            writer.write_all(b"HTTP/1.1 100 Continue\r\n\r\n").unwrap();
            assert_eq!(gate::read_rest(&mut reader, &request).unwrap(), b"hello");
            writer.write_all(OK).unwrap();
        }
    });
    let gate = Setup::default().start(backend.port);
    let mut client = Frames::open(gate.port);
    client.headers(
        1,
        &[
            &head("PUT", "/orders/1"),
            [("expect", "100-continue"), ("content-length", "5")].as_slice(),
        ]
        .concat(),
        false,
    );
    loop {
        let frame = client.read().unwrap().unwrap();
        if frame.kind == frames::HEADERS {
            assert!(frame.flags & frames::END_STREAM == 0, "the 100 comes first");
            break;
        }
    }
    client.data(1, b"hello", true);
    assert_eq!(client.outcome(1), Outcome::Answered(200, String::new()));
}

#[test]
fn a_refusal_needs_no_100_and_no_body() {
    let (stub, gate) = start();
    gate.send(put("/orders/1", 34)).is_ok();
    let client = Client::open(gate.port);
    let reply = client
        .begin(
            &put("/orders/1", 33)
                .body(vec![0; 1 << 20])
                .field("expect", "100-continue"),
        )
        .reply();
    assert!(reply.is(412, "stale-token").interim.is_empty());
    let reply = client
        .begin(&put("/orders/1", 34).field("expect", "200-ok"))
        .reply();
    assert_eq!(reply.is(417, "bad-request").interim.len(), 0);
    assert_eq!(stub.tokens(), [34]);
}

#[test]
fn answers_without_a_body_end_with_their_head() {
    for (answer, method, status, length) in [
        (
            b"HTTP/1.1 204 No Content\r\nETag: \"a\"\r\n\r\n".as_slice(),
            "PUT",
            204,
            None,
        ),
        (
            b"HTTP/1.1 304 Not Modified\r\nContent-Length: 5\r\nETag: \"a\"\r\n\r\n",
            "GET",
            304,
            Some("5"),
        ),
        (
            b"HTTP/1.1 200 OK\r\nContent-Length: 5368709120\r\nETag: \"a\"\r\n\r\n",
            "HEAD",
            200,
            Some("5368709120"),
        ),
        (
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nETag: \"a\"\r\n\r\n",
            "HEAD",
            200,
            None,
        ),
    ] {
        let (backend, _told) = answering(answer);
        let gate = Setup::default().start(backend.port);
        let client = Client::open(gate.port);
        for _ in 0..3 {
            let reply = client.send(ask(method, "/orders/1").token(1));
            assert_eq!((reply.status, reply.field("content-length")), (status, length));
            assert_eq!((reply.field("etag"), reply.body.len()), (Some("\"a\""), 0));
        }
        assert_eq!(backend.connections(), 1);
    }
}

#[test]
fn an_answer_that_the_connections_end_delimits_is_whole() {
    let backend = RawBackend::start(|_, mut reader, mut writer| {
        let _head = read_request(&mut reader);
        writer
            .write_all(b"HTTP/1.1 200 OK\r\nX-Y: 1\r\nConnection: close\r\n\r\nhello")
            .unwrap();
    });
    let gate = Setup::default().start(backend.port);
    let reply = Client::open(gate.port).send(put("/orders/1", 1));
    assert_eq!(reply.is_ok().body, b"hello");
    assert_eq!((reply.field("connection"), reply.field("x-y")), (None, Some("1")));
}

// ---- broken off

#[test]
fn an_answer_broken_off_by_the_backend_never_looks_whole() {
    for answer in [
        b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\npart".as_slice(),
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\npart\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\npart\r\n0\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\npart\r\n0\r\nX-Sum: 9\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\npartzz",
    ] {
        let backend = RawBackend::start(move |_, mut reader, mut writer| {
            let _request = read_request(&mut reader);
            writer.write_all(answer).unwrap();
        });
        let gate = Setup::default().start(backend.port);
        let mut client = Frames::open(gate.port);
        client.headers(1, &head("PUT", "/orders/1"), true);
        let outcome = client.outcome(1);
        assert!(
            matches!(outcome, Outcome::Reset(_, None | Some(200))),
            "{outcome:?}"
        );
        assert_eq!(gate.metric("fencegate_in_doubt_writes", &[]), 1.0);
        // The connection lives on.
        client.headers(3, &head("PUT", "/top"), true);
        assert!(matches!(client.outcome(3), Outcome::Answered(403, _)));
    }
}

#[test]
fn a_lost_answer_is_said_to_be_lost() {
    let backend = RawBackend::start(|_, mut reader, _writer| drop(read_request(&mut reader)));
    let gate = Setup::default().start(backend.port);
    let reply = Client::open(gate.port).send(put("/orders/1", 1));
    assert_eq!(reply.is(502, "upstream-failed").json()["applied"], "unknown");
}

#[test]
fn an_early_answer_reaches_the_client_at_once() {
    let backend = RawBackend::start(|_, mut reader, mut writer| {
        let _head = read_head(&mut reader);
        writer
            .write_all(b"HTTP/1.1 413 Too Large\r\nContent-Length: 3\r\n\r\nbig")
            .unwrap();
        let _reset = std::io::copy(&mut reader, &mut std::io::sink());
    });
    let gate = Setup::default().settle_after("60s").start(backend.port);
    let client = Client::open(gate.port);
    let mut upload = client.begin(&put("/orders/1", 33).body(vec![0; 50 << 20]));
    upload.offer(vec![b'x'; 50 << 20], true);
    let reply = upload.reply();
    assert_eq!((reply.status, reply.body.as_slice()), (413, b"big".as_slice()));
    assert_eq!(gate.metric("fencegate_in_doubt_writes", &[]), 0.0);
    client.send(put("/top", 1)).is(403, "unmatched-write");
}

#[test]
fn refused_uploads_take_no_room_from_those_that_follow() {
    let (_stub, gate) = start();
    gate.send(put("/orders/1", 34)).is_ok();
    let client = Client::open(gate.port);
    for _ in 0..5 {
        let exchanges: Vec<_> = (0..100)
            .map(|_| client.begin(&put("/orders/1", 33).body("late")))
            .collect();
        for exchange in exchanges {
            let (reply, mut body, mut send) = exchange.head();
            reply.is(412, "stale-token");
            while wait(body.data()).is_some() {}
            // The rest comes all the same.
            send.send_data("late".into(), true).unwrap();
        }
    }
}

// ---- S4, S5, S8

#[test]
fn waiting_uploads_stall_no_other_stream_of_their_connection() {
    let (stub, gate) = start();
    let old = put("/orders/1", 33).field("x-stub-hold", "old").spawn(gate.port);
    stub.wait_for_head(33);
    let client = Client::open(gate.port);
    let waiting: Vec<_> = (0..20)
        .map(|n| client.start(&put(&format!("/orders/{n}"), 34).body(pattern(1 << 20))))
        .collect();
    gate.wait_until_stale("/orders/1", 33);
    let body = pattern(5 << 20);
    client.send(put("/users/1", 1).body(body.clone())).is_ok();
    assert!(stub.look(|state| state.store["/users/1"] == body));
    assert_eq!(stub.tokens(), [1], "the others wait");
    stub.release("old");
    old.join().unwrap().unwrap().is_ok();
    for exchange in waiting {
        exchange.reply().is_ok();
    }
    let whole = stub.look(|state| (0..20).all(|n| state.store[&format!("/orders/{n}")].len() == 1 << 20));
    assert!(whole);
}

#[test]
fn a_stale_upload_in_flight_is_told_before_it_has_sent_the_rest() {
    let (stub, gate) = start();
    let client = Client::open(gate.port);
    for (token, chunked) in [(33, None), (35, Some(1))] {
        let mut ask = put("/orders/1", token).body(vec![0; 1000]);
        ask.chunked = chunked;
        let mut upload = client.begin(&ask);
        upload.data(vec![b'x'; 999]);
        stub.wait_for_head(token);
        client.send(put("/orders/1", token + 1)).is_ok();
        let reply = upload.reply();
        reply.is(412, "stale-token");
        assert_eq!(reply.json()["applied"], "no");
        stub.wait(|state| {
            state
                .incomplete
                .iter()
                .any(|(request, reset)| *reset && request.token == Some(token))
        });
    }
    assert_eq!(stub.tokens(), [34, 36]);
}

#[test]
fn an_upload_that_its_client_resets_never_takes_effect() {
    let (stub, gate) = start();
    let client = Client::open(gate.port);
    for (token, chunked) in [(33, None), (34, Some(1))] {
        let mut ask = put("/orders/1", token).body(vec![0; 1000]);
        ask.chunked = chunked;
        let mut upload = client.begin(&ask);
        upload.data(vec![b'x'; 999]);
        stub.wait_for_head(token);
        upload.reset();
        stub.wait(|state| {
            state
                .incomplete
                .iter()
                .any(|(request, reset)| *reset && request.token == Some(token))
        });
    }
    // Nor where its whole connection goes.
    let mut upload = client.begin(&put("/orders/1", 35).body(vec![0; 1000]));
    upload.data(vec![b'x'; 999]);
    stub.wait_for_head(35);
    client.kill();
    stub.wait(|state| state.incomplete.len() == 3);
    gate.send(put("/orders/1", 36)).is_ok();
    assert_eq!(stub.tokens(), [36]);
    assert_eq!(gate.metric("fencegate_in_flight_writes", &[]), 0.0);
}

#[test]
fn an_upload_that_is_reset_while_it_waits_is_never_sent() {
    let (stub, gate) = start();
    let old = put("/orders/1", 33).field("x-stub-hold", "old").spawn(gate.port);
    stub.wait_for_head(33);
    let client = Client::open(gate.port);
    let mut upload = client.begin(&put("/orders/1", 34).body(vec![0; 1000]));
    upload.data(vec![b'x'; 999]);
    gate.wait_until_stale("/orders/1", 33);
    upload.reset();
    // Its connection is at work: the reset has been read.
    client.send(put("/users/1", 1)).is_ok();
    stub.release("old");
    old.join().unwrap().unwrap().is_ok();
    gate.send(put("/orders/1", 35)).is_ok();
    assert_eq!(stub.tokens(), [1, 33, 35]);
}

#[test]
fn a_write_past_its_commit_point_is_followed_though_its_client_resets_it() {
    let (stub, gate) = start();
    for (token, by_connection) in [(33, false), (35, true)] {
        let client = Client::open(gate.port);
        let hold = token.to_string();
        let exchange = client.start(&put("/orders/1", token).field("x-stub-hold", &hold));
        stub.wait_for_head(token);
        if by_connection {
            client.kill();
        } else {
            exchange.reset();
        }
        let new = put("/orders/1", token + 1).spawn(gate.port);
        gate.wait_until_stale("/orders/1", token);
        assert!(!new.is_finished());
        stub.release(&hold);
        new.join().unwrap().unwrap().is_ok();
        assert_eq!(gate.metric("fencegate_in_doubt_writes", &[]), 0.0);
    }
    assert_eq!(stub.tokens(), [33, 34, 35, 36]);
}

#[test]
fn a_client_that_does_not_read_its_answer_holds_up_nobody() {
    let (stub, gate) = start();
    let client = Client::open(gate.port);
    let unread = client.start(&put("/orders/1", 33).field("x-stub-answer-size", 64 << 20));
    stub.wait_for_effect(33);
    let (_, body, _send) = unread.head();
    let since = Instant::now();
    client.send(put("/orders/1", 34)).is_ok();
    assert!(since.elapsed() < Duration::from_secs(10), "{:?}", since.elapsed());
    assert_eq!(gate.metric("fencegate_in_doubt_writes", &[]), 0.0);
    drop(body);
}

// ---- lengths

/// The fields of a head with a token.
fn head<'a>(method: &'a str, path: &'a str) -> Vec<(&'a str, &'a str)> {
    vec![
        (":method", method),
        (":scheme", "http"),
        (":authority", "store.test"),
        (":path", path),
        ("fencing-token", "9"),
    ]
}

#[test]
fn a_body_of_another_length_than_it_says_never_reaches_the_backend_whole() {
    let (stub, gate) = start();
    let pieces: [(&str, &[&[u8]]); 8] = [
        ("5", &[b"hell"]),
        ("5", &[b"hello!"]),
        ("5", &[b"hello", b"!"]),
        ("5", &[b"hello", b"!", b""]),
        ("5", &[]),
        ("0", &[b"x"]),
        ("0", &[b"", b"x"]),
        ("200000", &[&[b'x'; 16_000], &[b'x'; 16_000]]),
    ];
    for (length, pieces) in pieces {
        let mut client = Frames::open(gate.port);
        let mut fields = head("PUT", "/orders/1");
        fields.push(("content-length", length));
        client.headers(1, &fields, pieces.is_empty());
        for (at, piece) in pieces.iter().enumerate() {
            let _reset_by_now =
                client.try_send(frame(frames::DATA, u8::from(at + 1 == pieces.len()), 1, piece));
        }
        let outcome = client.outcome(1);
        let refused = matches!(
            outcome,
            Outcome::Reset(_, None) | Outcome::Closed(_) | Outcome::Answered(400, _)
        );
        assert!(refused, "{length} {pieces:?}: {outcome:?}");
    }
    assert!(stub.tokens().is_empty(), "{:?}", stub.journal());
    gate.send(put("/orders/1", 9)).is_ok();
}

#[test]
fn a_body_of_no_length_waits_for_its_end() {
    let (stub, gate) = start();
    let mut client = Frames::open(gate.port);
    let mut fields = head("PUT", "/orders/1");
    fields.push(("content-length", "0"));
    client.headers(1, &fields, false).data(1, b"", true);
    assert_eq!(client.outcome(1), Outcome::Answered(200, String::new()));
    assert_eq!(stub.journal()[0].len, 0);
}

#[test]
fn a_token_in_trailers_is_refused_and_nothing_takes_effect() {
    let (stub, gate) = start();
    let client = Client::open(gate.port);
    for (chunked, body) in [(None, "hello"), (Some(1), "hello"), (Some(1), "")] {
        let mut ask = put("/orders/1", 9).body(body);
        ask.chunked = chunked;
        let mut upload = client.begin(&ask);
        upload.data(body.to_owned()).trailers(&[("fencing-token", "99")]);
        upload.reply().is(400, "bad-request");
    }
    // Without a body, but with trailers.
    let mut raw = Frames::open(gate.port);
    let mut fields = head("PUT", "/orders/1");
    fields.push(("content-length", "0"));
    raw.headers(1, &fields, false)
        .headers(1, &[("fencing-token", "99")], true);
    let outcome = raw.outcome(1);
    assert!(matches!(outcome, Outcome::Answered(400, _)), "{outcome:?}");
    assert!(stub.tokens().is_empty(), "{:?}", stub.journal());
    gate.send(put("/orders/1", 9)).is_ok();
}

#[test]
fn trailers_that_frame_or_route_are_refused() {
    let (stub, gate) = start();
    for chunked in [true, false] {
        for trailer in [
            ("content-length", "5"),
            ("host", "a"),
            ("authorization", "a"),
            ("content-range", "bytes 0-4/9"),
            ("x-http-method-override", "DELETE"),
            (":path", "/orders/2"),
            ("transfer-encoding", "chunked"),
            ("X-Upper", "1"),
        ] {
            let mut client = Frames::open(gate.port);
            let mut fields = head("PUT", "/orders/1");
            if !chunked {
                fields.push(("content-length", "5"));
            }
            client.headers(1, &fields, false).data(1, b"hello", false);
            client.headers(1, &[trailer], true);
            let outcome = client.outcome(1);
            match outcome {
                Outcome::Reset(_, None) | Outcome::Closed(_) | Outcome::Answered(400, _) => {}
                // Behind a length no trailer goes on, and a pseudo-field never.
                Outcome::Answered(200, _) if !chunked || trailer.0.starts_with(':') => {}
                _ => panic!("{trailer:?}: {outcome:?}"),
            }
        }
    }
    assert!(stub.journal().iter().all(|applied| applied.start == "hello"));
    assert!(stub.look(|state| {
        state
            .arrived
            .iter()
            .all(|request| request.lines[0].starts_with("PUT /orders/1 "))
    }));
}

// ---- strictness: one reading

const REFUSED: &[u16] = &[400];

/// A head that must be refused: by an answer of one of these statuses, by a reset, or with the whole connection.
#[track_caller]
fn is_refused(gate: &Gate, fields: &[(&[u8], &[u8])], statuses: &[u16]) {
    let shown: Vec<_> = fields
        .iter()
        .map(|(name, value)| format!("{}: {}", name.escape_ascii(), value.escape_ascii()))
        .collect();
    for end in [true, false] {
        let mut client = Frames::open(gate.port);
        client.headers(1, fields, end);
        if !end {
            let _refused_by_now = client.try_send(frame(frames::DATA, frames::END_STREAM, 1, b"hello"));
        }
        match client.outcome(1) {
            Outcome::Answered(status, body) => {
                assert!(statuses.contains(&status), "{shown:?}: {status} {body}");
                assert!(
                    body.contains("\"reason\":") || body.is_empty(),
                    "{shown:?}: {body}"
                );
            }
            Outcome::Reset(_, None) | Outcome::Closed(_) => {}
            other @ Outcome::Reset(..) => panic!("{shown:?}: {other:?}"),
        }
    }
}

/// A good head but for some fields: those of these names are left out, then these are added.
fn but(fields: &[(&'static [u8], &'static [u8])]) -> Vec<(&'static [u8], &'static [u8])> {
    let good: [(&[u8], &[u8]); 5] = [
        (b":method", b"PUT"),
        (b":scheme", b"http"),
        (b":authority", b"store.test"),
        (b":path", b"/orders/1"),
        (b"fencing-token", b"9"),
    ];
    let (pseudo, plain): (Vec<_>, Vec<_>) = fields.iter().partition(|(name, _)| name.starts_with(b":"));
    let kept = |of: bool| {
        good.iter()
            .filter(move |(name, _)| name.starts_with(b":") == of)
            .filter(|(name, _)| !fields.iter().any(|(other, _)| other == name))
            .copied()
    };
    kept(true).chain(pseudo).chain(kept(false)).chain(plain).collect()
}

#[test]
fn heads_with_two_readings_reach_nobody() {
    let (stub, gate) = start();
    let rows: &[&[(&[u8], &[u8])]] = &[
        // What would become another line, or another request, in HTTP/1.1.
        &[(b"x-a", b"1\r\nfencing-token: 99")],
        &[(b"x-a", b"1\r\n\r\nDELETE /orders/1 HTTP/1.1\r\nhost: a")],
        &[(b"x-a", b"1\rfencing-token: 99")],
        &[(b"x-a", b"1\nfencing-token: 99")],
        &[(b"x-a", b"\n")],
        &[(b"x-a", b"\0")],
        &[(b"x-a", b"a\x01b")],
        &[(b"x-a", b"a\x7fb")],
        &[(b"x-a", b" 1")],
        &[(b"x-a", b"1 ")],
        &[(b"x-a", b"\t1")],
        &[(b"fencing-token", b" 9")],
        &[(b"fencing-token", b"9\r")],
        &[(b"x-a: 1\r\nfencing-token", b"99")],
        &[(b"x-a\r\nfencing-token", b"99")],
        &[(b"x-a:", b"1")],
        &[(b"x a", b"1")],
        &[(b"x-a ", b"1")],
        &[(b" x-a", b"1")],
        &[(b"", b"1")],
        &[(b"x\0a", b"1")],
        &[(b"x\xe9", b"1")],
        &[(b"x-a\r", b"1")],
        &[(b"X-A", b"1")],
        &[(b"Fencing-Token", b"9")],
        &[(b"x(a", b"1")],
        &[(b":method", b"PUT /orders/2 HTTP/1.1\r\nx-a: 1\r\n")],
        &[(b":method", b"PUT /orders/2")],
        &[(b":method", b"PUT\r\nx-a: 1")],
        &[(b":method", b"")],
        &[(b":method", b"P(T")],
        &[(b":path", b"/orders/1 HTTP/1.1\r\nx-a: 1")],
        &[(b":path", b"/orders/1\r\nx-a: 1")],
        &[(b":path", b"/orders/1 HTTP/1.1")],
        &[(b":path", b"/orders/ 1")],
        &[(b":path", b"/orders/1\t")],
        &[(b":path", b"/orders/1\0")],
        &[(b":path", b"/orders/\x7f")],
        &[(b":path", b"/orders/\xc3\xa9")],
        &[(b":path", b"/orders/\xe9")],
        &[(b":authority", b"store.test\r\nx-a: 1")],
        &[(b":authority", b"store test")],
        &[(b":authority", b"store.test/orders/2 HTTP/1.1")],
        // Where to.
        &[(b":path", b"/orders/1#x")],
        &[(b":path", b"/orders/1?a#x")],
        &[(b":path", b"/orders/1#")],
        &[(b":path", b"#")],
        &[(b":path", b"orders/1")],
        &[(b":path", b"?a")],
        &[(b":path", b"")],
        &[(b":path", b"*")],
        &[(b":path", b"http://store.test/orders/1")],
        &[(b":path", b"http://other.test/orders/1")],
        &[(b":path", b"//other.test/orders/1")],
        &[(b":path", b"/orders/../users/1")],
        &[(b":path", b"/orders/%2e%2e/1")],
        &[(b":path", b"/orders/a\\b")],
        &[(b":path", b"/orders/1"), (b":path", b"/orders/2")],
        &[(b":authority", b"a.test"), (b":authority", b"b.test")],
        &[(b":authority", b"store.test"), (b"host", b"other.test")],
        &[
            (b":authority", b"store.test"),
            (b"host", b"store.test"),
            (b"host", b"store.test"),
        ],
        &[(b":authority", b"store.test"), (b"host", b"store.test:81")],
        &[(b":authority", b"store.test"), (b"host", b"")],
        &[(b":authority", b"")],
        &[(b":authority", b"user@store.test")],
        &[(b":authority", b"a,b")],
        &[(b":authority", b"%61.test")],
        &[(b":authority", b"store.test:x")],
        &[(b":authority", b"store.test:70000")],
        &[(b":scheme", b"ftp")],
        &[(b":scheme", b"")],
        &[(b":scheme", b"http://x")],
        &[(b":scheme", b"http"), (b":scheme", b"https")],
        &[(b":method", b"PUT"), (b":method", b"GET")],
        &[(b":status", b"200")],
        &[(b":unknown", b"1")],
        // Framing.
        &[(b"transfer-encoding", b"chunked")],
        &[(b"transfer_encoding", b"chunked")],
        &[(b"content_length", b"5")],
        &[(b"content-length", b"5"), (b"content-length", b"5")],
        &[(b"content-length", b"5"), (b"content-length", b"6")],
        &[(b"content-length", b"+5")],
        &[(b"content-length", b"-5")],
        &[(b"content-length", b"05")],
        &[(b"content-length", b"5, 5")],
        &[(b"content-length", b"5,5")],
        &[(b"content-length", b"")],
        &[(b"content-length", b"5 ")],
        &[(b"content-length", b" 5")],
        &[(b"content-length", b"0x5")],
        &[(b"content-length", b"18446744073709551616")],
        &[(b"content-length", b"9223372036854775808")],
        &[(b"connection", b"close")],
        &[(b"connection", b"fencing-token")],
        &[(b"keep-alive", b"1")],
        &[(b"proxy-connection", b"close")],
        &[(b"upgrade", b"websocket")],
        &[(b"upgrade", b"h2c")],
        &[(b"te", b"gzip")],
        &[(b"te", b"trailers, chunked")],
        // Tokens and what else rules read.
        &[(b"fencing-token", b"9"), (b"fencing-token", b"9")],
        &[(b"fencing-token", b"9"), (b"fencing-token", b"10")],
        &[(b"fencing-token", b"9, 9")],
        &[(b"x-http-method-override", b"DELETE")],
        &[(b"x_http_method", b"DELETE")],
        &[(b"x-original-url", b"/orders/2")],
    ];
    for row in rows {
        is_refused(&gate, &but(row), REFUSED);
    }
    is_refused(&gate, &but(&[(b"expect", b"200-ok")]), &[417]);
    is_refused(&gate, &but(&[(b":method", b"TRACE")]), &[501]);
    // Pseudo-fields that are missing, or stand behind others.
    for gone in [":method", ":scheme", ":authority", ":path"] {
        let kept: Vec<_> = but(&[])
            .into_iter()
            .filter(|(name, _)| *name != gone.as_bytes())
            .collect();
        is_refused(&gate, &kept, REFUSED);
    }
    let mut late = but(&[(b":path", b"/orders/1")]);
    late.rotate_left(3);
    is_refused(&gate, &late, REFUSED);
    assert!(
        stub.look(|state| state.arrived.is_empty()),
        "{:#?}",
        stub.look(|state| state.arrived.clone())
    );
    gate.send(put("/orders/1", 1)).is_ok();
}

#[test]
fn a_fragment_is_found_however_its_head_is_written() {
    let (stub, gate) = start();
    let mut client = Frames::open(gate.port);
    let mut next = 1;
    let mut is_bad = |client: &mut Frames, frames: &dyn Fn(u32) -> Vec<u8>, how: &str| {
        client.send(frames(next));
        let outcome = client.outcome(next);
        assert!(matches!(outcome, Outcome::Answered(400, _)), "{how}: {outcome:?}");
        next += 2;
    };
    let rest = frames::block(&[(":scheme", "http"), (":authority", "a"), ("fencing-token", "9")]);
    let literal = |path: &str| frames::block(&[(":path", path)]);
    let head = |path: &[u8]| [frames::block(&[(":method", "PUT")]).as_slice(), path, &rest].concat();
    let whole = frames::END_HEADERS | frames::END_STREAM;
    // The first puts it into the decoder's table, the second takes it out of there.
    let added = head(&[b"\x44\x0b/orders/1#x".as_slice()].concat());
    is_bad(
        &mut client,
        &|id| frame(frames::HEADERS, whole, id, &added),
        "added to the table",
    );
    let indexed = head(&[0x80 | 62]);
    is_bad(
        &mut client,
        &|id| frame(frames::HEADERS, whole, id, &indexed),
        "out of the table",
    );
    // "/#" in the Huffman code.
    let coded = head(&[0x04, 0x83, 0x63, 0xfe, 0xbf]);
    is_bad(
        &mut client,
        &|id| frame(frames::HEADERS, whole, id, &coded),
        "in the Huffman code",
    );
    let plain = head(&literal("/orders/1#"));
    for cut in [0, 1, 20, plain.len() - 1] {
        let split = |id| {
            let (first, second) = plain.split_at(cut);
            let mut out = frame(frames::HEADERS, frames::END_STREAM, id, first);
            out.extend(frame(frames::CONTINUATION, frames::END_HEADERS, id, second));
            out
        };
        is_bad(&mut client, &split, "in two frames");
    }
    // With padding, and with a priority.
    let padded = [&[7], plain.as_slice(), &[0; 7]].concat();
    is_bad(
        &mut client,
        &|id| frame(frames::HEADERS, whole | 0x8, id, &padded),
        "padded",
    );
    let priority = [&[0, 0, 0, 0, 5], plain.as_slice()].concat();
    is_bad(
        &mut client,
        &|id| frame(frames::HEADERS, whole | 0x20, id, &priority),
        "with a priority",
    );
    // Behind a head that is malformed, which ends its own stream alone.
    let malformed = [
        &head(&literal("/orders/1")),
        frames::block(&[("connection", "close")]).as_slice(),
    ]
    .concat();
    client.send(frame(frames::HEADERS, whole, 101, &malformed));
    assert!(matches!(client.outcome(101), Outcome::Reset(..)));
    client.send(frame(frames::HEADERS, whole, 103, &plain));
    assert!(matches!(client.outcome(103), Outcome::Answered(400, _)));
    client.send(frame(frames::HEADERS, whole, 105, &head(&literal("/orders/1"))));
    assert_eq!(client.outcome(105), Outcome::Answered(200, String::new()));
    assert_eq!(stub.tokens(), [9]);
}

#[test]
fn padding_is_no_part_of_a_body() {
    let (stub, gate) = start();
    for length in [Some("10"), None] {
        let mut client = Frames::open(gate.port);
        let mut fields = head("PUT", "/orders/1");
        fields.extend(length.map(|length| ("content-length", length)));
        client.headers(1, &fields, false);
        client.send(frame(frames::DATA, 0x8, 1, b"\x05hello\0\0\0\0\0"));
        client.send(frame(frames::DATA, 0x8, 1, b"\x02\0\0"));
        client.send(frame(
            frames::DATA,
            0x8 | frames::END_STREAM,
            1,
            b"\x03world\0\0\0",
        ));
        assert_eq!(client.outcome(1), Outcome::Answered(200, String::new()));
        assert_eq!(stub.content("/orders/1").as_deref(), Some("helloworld"));
    }
}

#[test]
fn tunnels_are_not_served() {
    let (stub, gate) = start();
    let connect: [(&[u8], &[u8]); 2] = [(b":method", b"CONNECT"), (b":authority", b"store.test:80")];
    is_refused(&gate, &connect, &[501]);
    let mut client = Frames::open(gate.port);
    client.headers(1, &connect, false);
    assert!(matches!(client.outcome(1), Outcome::Answered(501, _)));
    let extended: [(&[u8], &[u8]); 5] = [
        (b":method", b"CONNECT"),
        (b":protocol", b"websocket"),
        (b":scheme", b"http"),
        (b":authority", b"store.test"),
        (b":path", b"/orders/1"),
    ];
    is_refused(&gate, &extended, &[400, 501]);
    let protocol = but(&[(b":protocol", b"websocket")]);
    is_refused(&gate, &protocol, REFUSED);
    assert_eq!(stub.look(|state| state.connections), 0);
}

#[test]
fn a_look_alike_of_the_token_is_no_token() {
    let (stub, gate) = start();
    for name in [
        "fencing_token",
        "fencing-token-x",
        "x-fencing-token",
        "fencingtoken",
    ] {
        let mut client = Frames::open(gate.port);
        let fields: Vec<_> = head("PUT", "/orders/1")
            .into_iter()
            .map(|(field, value)| {
                if field == "fencing-token" {
                    (name, value)
                } else {
                    (field, value)
                }
            })
            .collect();
        client.headers(1, &fields, true);
        assert!(matches!(client.outcome(1), Outcome::Answered(428, _)), "{name}");
    }
    assert!(stub.tokens().is_empty());
}

// ---- sizes

#[test]
fn a_head_just_under_the_limit_passes_and_one_just_over_it_is_told_why() {
    for (max, fields) in [("4KiB", 1), ("4KiB", 100), ("64KiB", 1), ("64KiB", 900)] {
        let stub = Stub::start();
        let gate = Setup::default()
            .listener(&format!("limits: {{ max_header_bytes: {max} }}"))
            .start(stub.port);
        let client = Client::open(gate.port);
        let max: usize = max.trim_end_matches("KiB").parse::<usize>().unwrap() << 10;
        let of_size = |size: usize| {
            // What the head takes in HTTP/1.1, without those fields.
            let fixed =
                "PUT /orders/1 HTTP/1.1\r\nhost: store.test\r\nfencing-token: 1\r\ncontent-length: 1\r\n\r\n"
                    .len();
            let names: Vec<String> = (0..fields).map(|n| format!("x-{n}")).collect();
            let frame: usize = names.iter().map(|name| name.len() + ": \r\n".len()).sum();
            let mut left = size - fixed - frame;
            let mut request = put("/orders/1", 1);
            for (at, name) in names.iter().enumerate() {
                let value = left / (fields - at);
                left -= value;
                request = request.field(name, "v".repeat(value));
            }
            request
        };
        client.send(of_size(max)).is_ok();
        client.send(of_size(max + 1)).is(431, "bad-request");
        assert_eq!(client.send(put("/orders/1", 1)).is_ok().status, 200);
        assert_eq!(stub.tokens(), [1, 1]);
    }
}

// ---- connections

#[test]
fn http_2_begins_with_the_first_byte_or_not_at_all() {
    let (stub, gate) = start();
    for first in ["", "\r\n"] {
        let mut conn = Conn::open(gate.port);
        if first.is_empty() {
            conn.send(put("/orders/1", 1).bytes());
            conn.reply().is_ok();
        }
        conn.send(first)
            .send(frames::PREFACE)
            .send(frame(frames::SETTINGS, 0, 0, &[]));
        let reply = conn.reply();
        assert_eq!(reply.status, 505, "{reply:?}");
        conn.is_closed();
    }
    // Behind a request, in one piece with it.
    let mut conn = Conn::open(gate.port);
    conn.send([put("/orders/1", 1).bytes().as_slice(), frames::PREFACE].concat());
    conn.reply().is_ok();
    assert_eq!(conn.reply().status, 505);
    // Something else behind a good beginning.
    let mut conn = Conn::open(gate.port);
    conn.send("PRI * HTTP/2.0\r\n\r\nDELETE /orders/1 HTTP/1.1\r\nHost: a\r\nFencing-Token: 99\r\n\r\n");
    let _any = conn.read_to_end();
    assert_eq!(stub.tokens(), [1, 1]);
}

#[test]
fn a_preface_that_comes_byte_by_byte_is_one() {
    let (_stub, gate) = start();
    let mut client = Frames::connect(gate.port);
    for byte in frames::PREFACE {
        client.send([*byte]);
    }
    client.send(frame(frames::SETTINGS, 0, 0, &[0, 1, 0, 0, 0, 0]));
    client.headers(1, &head("PUT", "/orders/1"), true);
    assert_eq!(client.outcome(1), Outcome::Answered(200, String::new()));
}

#[test]
fn a_stop_lets_streams_under_way_finish() {
    let (stub, mut gate) = start();
    let client = Client::open(gate.port);
    let held = client.start(&put("/orders/1", 1).field("x-stub-hold", "held"));
    let mut upload = client.begin(&put("/users/1", 1).body(vec![b'x'; 10]));
    upload.data("12345");
    stub.wait(|state| state.arrived.len() == 2);
    gate.signal(libc::SIGTERM);
    gate.wait_for_log("stopping");
    upload.data("67890").end();
    stub.wait_for_effect(1);
    stub.release("held");
    held.reply().is_ok();
    upload.reply().is_ok();
    client.ended().unwrap();
    assert_eq!(gate.wait().code(), Some(0), "{}", gate.log());
}

#[test]
fn a_client_that_answers_nothing_does_not_hold_up_a_stop() {
    // Longer than the test waits.
    let (stub, mut gate) = start_with(Setup::default().top("shutdown_timeout: 10m"));
    let mut client = Frames::open(gate.port);
    client.headers(1, &head("PUT", "/orders/1"), true);
    assert_eq!(client.outcome(1), Outcome::Answered(200, String::new()));
    let fields = [head("PUT", "/users/1"), vec![("x-stub-hold", "held")]].concat();
    client.headers(3, &fields, true);
    stub.wait(|state| state.arrived.len() == 2);
    gate.signal(libc::SIGTERM);
    while client.read().unwrap().unwrap().kind != frames::GOAWAY {}
    stub.release("held");
    assert_eq!(gate.wait().code(), Some(0), "{}", gate.log());
}

#[test]
fn an_idle_connection_is_told_to_go() {
    let stub = Stub::start();
    let gate = Setup::default()
        .listener("limits: { idle_timeout: 300ms }")
        .start(stub.port);
    let client = Client::open(gate.port);
    client.send(put("/orders/1", 1)).is_ok();
    client.ended().unwrap();
    let mut silent = Frames::open(gate.port);
    assert_eq!(silent.farewell(), Some(0));
}
