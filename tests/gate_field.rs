//! What clients and stores in the field do, as users of other proxies have reported it: odd spellings of paths, large
//! heads, slow uploads, registries, IPv6. The gate passes it on as it came, or says plainly why not.

mod gate;

use std::io::{BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Mutex;
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use gate::{Conn, RawBackend, Request, Setup, Stub, ask, head, read_request};

/// A backend that answers every request with these bytes; and what it was sent.
fn answering(answer: impl Into<Vec<u8>>) -> (RawBackend, Receiver<(Request, Vec<u8>)>) {
    let (tell, told) = channel();
    let (tell, answer) = (Mutex::new(tell), answer.into());
    let backend = RawBackend::start(move |_, mut reader, mut writer| {
        while let Ok(Some(request)) = read_request(&mut reader) {
            let _nobody_looks = tell.lock().unwrap().send(request);
            if writer.write_all(&answer).is_err() {
                return;
            }
        }
    });
    (backend, told)
}

const OK: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n";

fn put(target: &str, token: u64) -> gate::Ask {
    ask("PUT", target).token(token).body("v")
}

// ---- as it came

#[test]
fn each_spelling_of_a_path_reaches_the_store_as_it_was_written_and_shares_one_fence() {
    let stub = Stub::start();
    let gate = Setup::default().start(stub.port);
    let spellings = [
        "/orders/10%2B2",
        "/orders/10+2",
        "/orders/%61",
        "/orders/a%2bb",
        "/orders/100%25",
        "/orders/%e4%BD%a0",
        "/orders/a%20b",
        "/orders/a:b@c!$&'()*,=-._~",
        "/%6frders/a",
        "/orders/a?versionId=%2F//..&x=a+b&&=",
        "/orders/a?",
    ];
    for target in spellings {
        gate.send(put(target, 34)).is_ok();
        gate.send(put(target, 33)).is(412, "stale-token");
    }
    assert_eq!(stub.look(|state| state.arrived.len()), spellings.len());
    stub.look(|state| {
        for (request, target) in state.arrived.iter().zip(spellings) {
            assert_eq!(request.lines[0], format!("PUT {target} HTTP/1.1"));
        }
    });
}

/// SDKs sign all of these; a proxy that touches one breaks each of their calls.
#[test]
fn fields_that_are_often_signed_arrive_byte_for_byte() {
    let (backend, told) = answering(OK);
    let gate = Setup::default().listener("forwarded: false").start(backend.port);
    let lines = [
        "Host: s3.test:9000",
        "Accept-Encoding: identity",
        "accept-encoding: gzip;q=0,  identity",
        "Expect: 100-continue",
        "x-amz-meta-user.xdg.origin.url: v",
        "X-Organization: A",
        "x-amz-content-sha256: STREAMING-UNSIGNED-PAYLOAD-TRAILER",
        "Content-Encoding: aws-chunked",
        "x-amz-decoded-content-length: 5",
        "x-amz-trailer: x-amz-checksum-crc32",
        "Content-MD5: XUFAKrxLKna5cZ2REBfFkg==",
        "User-Agent: aws-sdk/1 app/x  (y)",
        "Fencing-Token: 34",
        "Content-Length: 5",
    ];
    let mut conn = Conn::open(gate.port);
    conn.send(format!(
        "PUT /orders/1 HTTP/1.1\r\n{}\r\n\r\nhello",
        lines.join("\r\n")
    ));
    conn.reply().is_ok();
    let (request, body) = told.recv_timeout(gate::PATIENCE).unwrap();
    assert_eq!(request.lines[1..], lines);
    assert_eq!(body, b"hello");
}

#[test]
fn an_aws_chunked_body_stays_as_it_is_also_within_chunks() {
    let body =
        b"5;chunk-signature=0a\r\nhello\r\n0;chunk-signature=0b\r\nx-amz-checksum-crc32:NhCmhg==\r\n\r\n";
    let (backend, told) = answering(OK);
    let gate = Setup::default().start(backend.port);
    for chunked in [None, Some(1), Some(7), Some(1000)] {
        let mut ask = ask("PUT", "/orders/1")
            .token(1)
            .field("Content-Encoding", "aws-chunked")
            .body(body);
        ask.chunked = chunked;
        gate.send(ask).is_ok();
        let (request, arrived) = told.recv_timeout(gate::PATIENCE).unwrap();
        assert_eq!(arrived, body);
        assert_eq!(request.field("content-encoding"), Some("aws-chunked"));
    }
}

/// With a retry forbidden, some proxies throw the store's own error away.
#[test]
fn the_stores_own_errors_are_relayed_whole_and_asked_for_once() {
    for status in [
        "500 Internal Server Error",
        "503 Slow Down",
        "403 Forbidden",
        "412 Failed",
    ] {
        let answer = format!(
            "HTTP/1.1 {status}\r\nContent-Type: application/xml\r\nRetry-After: 7\r\nContent-Length: 35\r\n\r\n<Error><Code>SlowDown</Code></Error"
        );
        let (backend, told) = answering(answer.clone());
        let gate = Setup::default().start(backend.port);
        for method in ["PUT", "POST", "DELETE"] {
            let reply = gate.send(ask(method, "/orders/1").token(1).body("v"));
            let relayed = format!("{}\r\n\r\n{}", reply.head, String::from_utf8(reply.body).unwrap());
            assert_eq!(relayed, answer);
            told.recv_timeout(gate::PATIENCE).unwrap();
        }
        assert!(told.try_recv().is_err(), "{status}: it was sent again");
    }
}

// ---- large

#[test]
fn large_cookies_and_many_fields_pass_and_what_is_too_much_is_said_so() {
    let mut answer = String::from("HTTP/1.1 200 OK\r\n");
    (0..130).for_each(|number| answer += &format!("X-{number}: {number}\r\n"));
    let (backend, told) = answering(answer + "Content-Length: 0\r\n\r\n");
    let gate = Setup::default().start(backend.port);
    let mut ask = put("/orders/1", 1).field("Cookie", "c".repeat(50_000));
    for number in 0..150 {
        ask = ask.field(&format!("x-amz-meta-{number}"), number);
    }
    assert_eq!(gate.send(ask).is_ok().head.lines().count(), 132);
    let (request, _) = told.recv_timeout(gate::PATIENCE).unwrap();
    assert_eq!(request.field("cookie").map(str::len), Some(50_000));
    assert_eq!(request.field("x-amz-meta-149"), Some("149"));
    gate.send(put("/orders/1", 1).field("Cookie", "c".repeat(70_000)))
        .is(431, "bad-request");
}

#[test]
fn an_answer_whose_head_is_too_large_is_a_502() {
    // Whether its end comes with the read that passes the bound or long after it.
    for size in [256 * 1024 + 1, 400_000] {
        let frame = "HTTP/1.1 200 OK\r\nX: \r\n\r\n".len();
        let answer = format!("HTTP/1.1 200 OK\r\nX: {}\r\n\r\n", "x".repeat(size - frame));
        let (backend, _told) = answering(answer);
        let gate = Setup::default().start(backend.port);
        gate.send(put("/orders/1", 1)).is(502, "upstream-failed");
    }
}

// ---- slow

/// No clock runs against the whole of a request, only against its pauses.
#[test]
fn a_slow_but_steady_upload_outlives_every_timeout() {
    let stub = Stub::start();
    let gate = Setup::default()
        .upstream("response_timeout: 1s")
        .listener("limits: { header_timeout: 1s, idle_timeout: 1s }")
        .start(stub.port);
    let mut conn = Conn::open(gate.port);
    let start = Instant::now();
    conn.send(head("PUT", "/orders/1", Some(1), Some(30), &[]));
    for piece in 1..=30 {
        gate::sleep_until(start + piece * Duration::from_millis(100));
        conn.send("x");
    }
    conn.reply().is_ok();
    assert_eq!(stub.content("/orders/1").map(|content| content.len()), Some(30));
}

// ---- registries

/// A push is a POST that gives a place to upload to, PATCHes of pieces, and PUTs; only the tag needs a token.
#[test]
fn an_image_is_pushed_and_its_tag_alone_is_fenced() {
    let rule = r#"
      - name: tag
        match: { path: "/v2/{image}/manifests/{tag}" }
        resource: "image/{image}/{tag}"
        token: { header: Fencing-Token }
"#;
    let location = "Location: http://127.0.0.1:5000/v2/app/blobs/uploads/7?_state=a%2Fb";
    let (backend, told) = answering(format!(
        "HTTP/1.1 202 Accepted\r\n{location}\r\nRange: 0-4\r\nContent-Length: 0\r\n\r\n"
    ));
    let gate = Setup::rules(rule)
        .listener("unmatched: { reads: pass, writes: pass }")
        .start(backend.port);
    let upload = "/v2/app/blobs/uploads/7?_state=a%2Fb";
    for ask in [
        ask("POST", "/v2/app/blobs/uploads/"),
        ask("PATCH", upload)
            .field("Content-Range", "0-4")
            .field("Content-Type", "application/octet-stream")
            .body("layer")
            .chunked(2),
        ask("PUT", &format!("{upload}&digest=sha256:0a")),
        ask("PUT", "/v2/app/manifests/latest").token(34).body("{}"),
    ] {
        let (target, method) = (ask.target.clone(), ask.method.clone());
        let reply = gate.send(ask);
        assert_eq!((reply.status, reply.reason()), (202, ""));
        assert!(reply.head.contains(location), "{}", reply.head);
        let (request, _) = told.recv_timeout(gate::PATIENCE).unwrap();
        assert_eq!(request.lines[0], format!("{method} {target} HTTP/1.1"));
        assert_eq!(request.field("x-forwarded-proto"), Some("http"));
    }
    for (target, token, reason, status) in [
        ("/v2/app/manifests/latest", Some(33), "stale-token", 412),
        ("/v2/app/manifests/latest", None, "missing-token", 428),
    ] {
        let ask = ask("PUT", target).body("{}");
        let ask = token.map_or(ask.clone(), |token| ask.token(token));
        gate.send(ask).is(status, reason);
    }
}

// ---- connections

/// Its greeting holds no end of a line to wait for.
#[test]
fn tls_spoken_to_a_port_without_it_is_refused_at_once() {
    let stub = Stub::start();
    let gate = Setup::default()
        .listener("limits: { header_timeout: 600s }")
        .start(stub.port);
    for greeting in [
        &b"\x16"[..],
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"\r\n\x16\x03",
    ] {
        let mut conn = Conn::open(gate.port);
        conn.send(greeting);
        conn.reply().is(400, "bad-request");
        conn.is_closed();
    }
    let curl = std::process::Command::new("/usr/bin/curl")
        .args(["-sk", "-m", "20", &format!("https://127.0.0.1:{}/", gate.port)])
        .output()
        .expect("`.ci/setup` installs curl");
    // 28 would be its own time-out.
    assert_eq!(curl.status.code(), Some(35), "{curl:?}");
}

#[test]
fn a_backend_at_an_ipv6_address_is_reached_and_host_keeps_its_brackets() {
    let listener = match TcpListener::bind("[::1]:0") {
        Ok(listener) => listener,
        Err(error) => {
            eprintln!("this machine has no IPv6 ({error}): nothing is shown here");
            return;
        }
    };
    let port = listener.local_addr().unwrap().port();
    let backend = std::thread::spawn(move || {
        let (mut writer, _) = listener.accept().unwrap();
        let mut reader = BufReader::new(writer.try_clone().unwrap());
        let (request, _) = read_request(&mut reader).unwrap().unwrap();
        writer.write_all(OK).unwrap();
        request
    });
    let setup = Setup {
        host: "[::1]".into(),
        ..Setup::default()
    };
    let gate = setup.start(port);
    assert!(gate.log().contains(&format!("[::1]:{port}")), "{}", gate.log());
    let mut client = TcpStream::connect(("::1", gate.port)).unwrap();
    client.set_read_timeout(Some(gate::PATIENCE)).unwrap();
    client
        .write_all(b"PUT /orders/1 HTTP/1.1\r\nHost: [::1]:8080\r\nFencing-Token: 1\r\nConnection: close\r\nContent-Length: 0\r\n\r\n")
        .unwrap();
    let mut answer = String::new();
    client.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 200 OK"), "{answer}");
    let request = backend.join().unwrap();
    assert_eq!(request.field("host"), Some("[::1]:8080"));
    assert_eq!(request.field("x-forwarded-for"), Some("::1"));
}

#[test]
fn a_client_that_closes_after_its_request_is_answered_and_closed() {
    let stub = Stub::start();
    let gate = Setup::default().start(stub.port);
    for value in ["close", "Close", "keep-alive, close", "close, x-hop"] {
        let mut conn = Conn::open(gate.port);
        conn.send(put("/orders/1", 1).field("Connection", value).bytes());
        assert_eq!(conn.reply().is_ok().field("connection"), Some("close"), "{value}");
        conn.is_closed();
    }
}

/// An absolute target names the same resource as its path alone.
#[test]
fn an_absolute_target_goes_round_no_fence() {
    let stub = Stub::start();
    let gate = Setup::default().start(stub.port);
    gate.send(put("/orders/1", 34)).is_ok();
    let ask = |token: u64| {
        let mut conn = Conn::open(gate.port);
        conn.send(head(
            "PUT",
            "http://store.test/orders/1",
            Some(token),
            Some(0),
            &[],
        ));
        conn.reply()
    };
    ask(33).is(412, "stale-token");
    ask(34).is_ok();
}
