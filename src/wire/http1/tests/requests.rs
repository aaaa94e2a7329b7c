//! Request heads: which are taken, which are refused and how, and what goes on to the backend.

use super::super::{
    Forwarded, Framing, HeadErrorKind, HeaderStorage, TargetForm, Upgrade, Version, find_head_end,
    parse_request, write_request_head,
};
use super::{head_end, reading, verdict};

/// A PUT with these lines between its Host and its end.
fn put(lines: &str) -> String {
    format!("PUT /a HTTP/1.1\r\nHost: h\r\n{lines}\r\n")
}

/// Requests that are taken, with their target and framing.
fn good() -> Vec<(String, &'static str, Framing)> {
    let none = Framing::None;
    let mut cases = vec![
        (put(""), "/a", none),
        (put("Content-Length: 0\r\n"), "/a", Framing::Length(0)),
        (put("Content-Length: 5\r\n"), "/a", Framing::Length(5)),
        (put("content-length:5\r\n"), "/a", Framing::Length(5)),
        (
            put("Content-Length: 9223372036854775807\r\n"),
            "/a",
            Framing::Length(i64::MAX as u64),
        ),
        (put("Transfer-Encoding: chunked\r\n"), "/a", Framing::Chunked),
        (put("transfer-encoding: CHUNKED\r\n"), "/a", Framing::Chunked),
        (
            put("Transfer-Encoding: chunked\r\nTrailer: x\r\n"),
            "/a",
            Framing::Chunked,
        ),
        (put("Connection: close\r\n"), "/a", none),
        (
            put("Connection: keep-alive, X-Hop,, close ,\r\nX-Hop: 1\r\n"),
            "/a",
            none,
        ),
        (put("Connection: \r\n"), "/a", none),
        (put("Connection: X-Authorization\r\n"), "/a", none),
        (
            put("Expect: 100-continue\r\nContent-Length: 3\r\n"),
            "/a",
            Framing::Length(3),
        ),
        (put("Expect: 100-Continue\r\n"), "/a", none),
        (put("Upgrade: h2c\r\nHTTP2-Settings: AA\r\n"), "/a", none),
        (put("Upgrade: websocket\r\n"), "/a", none),
        (put("X:\r\n"), "/a", none),
        (put("X: \r\n"), "/a", none),
        (put("X: a\tb\r\n"), "/a", none),
        (put("X: \u{e9}\r\n"), "/a", none),
        (put("x-amz-meta-user.xdg.origin.url: v\r\n"), "/a", none),
        (put("!#$%&'*+-.^_`|~9: v\r\n"), "/a", none),
        (put("TE: trailers\r\n"), "/a", none),
        (put(&format!("Cookie: {}\r\n", "c".repeat(60_000))), "/a", none),
        ("\r\nGET /b HTTP/1.1\r\nHost: h\r\n\r\n".into(), "/b", none),
        ("\r\n\r\nGET /b HTTP/1.1\r\nHost: h\r\n\r\n".into(), "/b", none),
        ("GET / HTTP/1.0\r\nHost: h\r\n\r\n".into(), "/", none),
        (
            "PUT / HTTP/1.0\r\nHost: h\r\nContent-Length: 2\r\n\r\n".into(),
            "/",
            Framing::Length(2),
        ),
        (
            "GET / HTTP/1.0\r\nHost: h\r\nExpect: other\r\n\r\n".into(),
            "/",
            none,
        ),
        (
            "PROPFIND /d/ HTTP/1.1\r\nHost: h\r\nDepth: 1\r\n\r\n".into(),
            "/d/",
            none,
        ),
        ("get / HTTP/1.1\r\nHost: h\r\n\r\n".into(), "/", none),
        ("OPTIONS * HTTP/1.1\r\nHost: h\r\n\r\n".into(), "*", none),
        ("OPTIONS http://h HTTP/1.1\r\nHost: h\r\n\r\n".into(), "*", none),
        ("GET http://h HTTP/1.1\r\nHost: h\r\n\r\n".into(), "/", none),
        (
            "GET HTTP://H/x?y HTTP/1.1\r\nHost: h\r\n\r\n".into(),
            "/x?y",
            none,
        ),
        ("GET http://h:80/x HTTP/1.1\r\nHost: h\r\n\r\n".into(), "/x", none),
        ("GET http://h/x HTTP/1.1\r\nHost: h:80\r\n\r\n".into(), "/x", none),
        (
            "GET https://h/x HTTP/1.1\r\nHost: h:443\r\n\r\n".into(),
            "/x",
            none,
        ),
        (
            "GET http://h:9000/x HTTP/1.1\r\nHost: h:9000\r\n\r\n".into(),
            "/x",
            none,
        ),
        (
            "GET http://[::1]:9000/x HTTP/1.1\r\nHost: [::1]:9000\r\n\r\n".into(),
            "/x",
            none,
        ),
    ];
    for target in [
        "/a%2Fb",
        "/a//b",
        "/x/.",
        "/10%2B2",
        "/10+2",
        "/%61",
        "/100%25",
        "/a\\b",
        "/a?b=%2F&c|{}",
        "//h/x",
    ] {
        cases.push((format!("PUT {target} HTTP/1.1\r\nHost: h\r\n\r\n"), target, none));
    }
    for host in [
        "s3.test:9000",
        "H",
        "127.0.0.1:1",
        "[::1]",
        "[fe80::1]:65535",
        "a_b.c-d.",
        "xn--e.test",
    ] {
        cases.push((format!("GET / HTTP/1.1\r\nHost: {host}\r\n\r\n"), "/", none));
    }
    cases
}

/// Requests that are refused, with the status.
fn refused() -> Vec<(Vec<u8>, u16)> {
    let mut cases: Vec<(Vec<u8>, u16)> = Vec::new();
    for lines in [
        // Framing.
        "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n",
        "Transfer-Encoding: chunked\r\nContent-Length: 5\r\n",
        "Content-Length: 5\r\nContent-Length: 5\r\n",
        "Content-Length: 5\r\nContent-Length: 50\r\n",
        "Content-Length: 5\r\ncontent-length: 5\r\n",
        "Content-Length: 5, 5\r\n",
        "Content-Length: +5\r\n",
        "Content-Length: -5\r\n",
        "Content-Length: \r\n",
        "Content-Length:\r\n",
        "Content-Length: 0x5\r\n",
        "Content-Length: 5.0\r\n",
        "Content-Length: 5 5\r\n",
        "Content-Length: 05\r\n",
        "Content-Length: 00\r\n",
        "Content-Length: \"5\"\r\n",
        "Content-Length: 5;\r\n",
        "Content-Length: 5 \r\n",
        "Content-Length: \t5\r\n",
        "Content-Length:  5\r\n",
        "Content-Length: \u{665}\r\n",
        "Content-Length: 9223372036854775808\r\n",
        "Content-Length: 18446744073709551616\r\n",
        "Content-Length: 99999999999999999999\r\n",
        "Content-Length: 5\r\nContent_Length: 6\r\n",
        "Transfer_Encoding: chunked\r\n",
        "Content.Length: 5\r\n",
        "Transfer&Encoding: chunked\r\n",
        "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n",
        "Transfer-Encoding: chunked, chunked\r\n",
        "Transfer-Encoding: identity, chunked\r\n",
        "Transfer-Encoding: chunked, identity\r\n",
        "Transfer-Encoding: gzip, chunked\r\n",
        "Transfer-Encoding: identity\r\n",
        "Transfer-Encoding: gzip\r\n",
        "Transfer-Encoding: xchunked\r\n",
        "Transfer-Encoding: \"chunked\"\r\n",
        "Transfer-Encoding: chunked;q=1\r\n",
        "Transfer-Encoding: chunked,\r\n",
        "Transfer-Encoding: chunked\t\r\n",
        "Transfer-Encoding: chunked \r\n",
        "Transfer-Encoding:\tchunked\r\n",
        "Transfer-Encoding:\r\n",
        "Transfer-Encoding: \u{b}chunked\r\n",
        "Transfer-Encoding: chunked\t\r\nContent-Length: 60\r\n",
        // Lines.
        "Content-Length : 5\r\n",
        "Transfer-Encoding : chunked\r\n",
        "Transfer-Encoding\t: chunked\r\n",
        "X : 1\r\n",
        "X: 1\r\n folded\r\n",
        "X: 1\r\n\tfolded\r\n",
        "X: 1\r\n \r\n",
        "X: 1\nY: 2\r\n",
        "X: 1\n",
        "X: 1\rY: 2\r\n",
        "X: 1\r\r\n",
        "\rX: 1\r\n",
        "X: a\0b\r\n",
        "X: a\u{1}b\r\n",
        "X: a\u{7f}b\r\n",
        "X\0: a\r\n",
        "X(: a\r\n",
        "X\u{e9}: a\r\n",
        ": a\r\n",
        "X\r\n",
        "X Y: a\r\n",
        // Host.
        "Host: h\r\n",
        "host: other\r\n",
        // Connection.
        "Connection: Host\r\n",
        "Connection: close, Authorization\r\n",
        "Connection: content-length\r\nContent-Length: 1\r\n",
        "Connection: Transfer-Encoding\r\n",
        "Connection: expect\r\n",
        "Connection: a b\r\n",
        "Connection: \"close\"\r\n",
        "Connection: X: Y\r\n",
    ] {
        cases.push((put(lines).into_bytes(), 400));
    }
    for line in [
        "PUT /a#b HTTP/1.1",
        "PUT # HTTP/1.1",
        "PUT * HTTP/1.1",
        "PUT a HTTP/1.1",
        "PUT ?a HTTP/1.1",
        "PUT ftp://h/a HTTP/1.1",
        "PUT http:/h/a HTTP/1.1",
        "PUT http://h?a HTTP/1.1",
        "PUT http://other/a HTTP/1.1",
        "PUT http://h:81/a HTTP/1.1",
        "PUT https://h:80/a HTTP/1.1",
        "PUT http://u@h/a HTTP/1.1",
        "PUT http:///a HTTP/1.1",
        "PUT http://h,h/a HTTP/1.1",
        "PUT /\u{e9} HTTP/1.1",
        "PUT /\u{1} HTTP/1.1",
        "PUT /\u{7f} HTTP/1.1",
        "PUT /a\tb HTTP/1.1",
        "PUT /a b HTTP/1.1",
        "PUT  /a HTTP/1.1",
        "PUT /a  HTTP/1.1",
        " PUT /a HTTP/1.1",
        "PUT /a HTTP/1.1 ",
        "PUT\t/a HTTP/1.1",
        "PUT /a",
        "PUT /a ",
        "PUT",
        "PUT /a http/1.1",
        "PUT /a HTTP/1",
        "PUT /a HTTP/11",
        "PUT /a HTTP/1.10",
        "PUT /a HTTP/x.1",
        "PUT /a HTTQ/1.1",
        "P(T /a HTTP/1.1",
        "P\u{e9}T /a HTTP/1.1",
        "\0PUT /a HTTP/1.1",
        "PUT /a HTTP/1.1\r",
    ] {
        cases.push((format!("{line}\r\nHost: h\r\n\r\n").into_bytes(), 400));
    }
    for host in [
        "", "a b", "u@h", "a,b", "a/b", "h:", "h:x", "h:65536", "h:80:80", "[::1", "[::1]x", "[x]", "::1",
        "%41", "a?b", "\u{e9}",
    ] {
        cases.push((
            format!("GET / HTTP/1.1\r\nHost: {host}\r\n\r\n").into_bytes(),
            400,
        ));
    }
    cases.extend([
        (b"GET / HTTP/1.1\r\n\r\n".to_vec(), 400),
        (b"GET / HTTP/1.1\r\nX: y\r\n\r\n".to_vec(), 400),
        (b"GET / HTTP/1.0\r\n\r\n".to_vec(), 400),
        (b"GET http://h/ HTTP/1.1\r\n\r\n".to_vec(), 400),
        (
            b"PUT / HTTP/1.0\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n".to_vec(),
            400,
        ),
        (b"GET / HTTP/1.1\nHost: h\n\n".to_vec(), 400),
        (b"GET / HTTP/1.1\nHost: h\r\n\r\n".to_vec(), 400),
        (b"GET / HTTP/1.1\r\nHost: h\r\n\n".to_vec(), 400),
        (b"GET / HTTP/1.1\r\nHost: h\n\r\n".to_vec(), 400),
        (b"\n\nGET / HTTP/1.1\r\nHost: h\r\n\r\n".to_vec(), 400),
        (b"\nGET / HTTP/1.1\r\nHost: h\r\n\r\n".to_vec(), 400),
        (
            b"\r\n\r\n\r\n\r\n\r\nGET / HTTP/1.1\r\nHost: h\r\n\r\n".to_vec(),
            400,
        ),
        (b"\r\n\r\n\r\n\r\n\r\n\r\n".to_vec(), 400),
        (b"GET / HTTP/1.1\r\n Host: h\r\n\r\n".to_vec(), 400),
        (
            b"GET / HTTP/1.1\r\nHost: h\r\nX: \xff\r\nY: \x02\r\n\r\n".to_vec(),
            400,
        ),
        (b"\x16\x03\x01\x02\0\x01\r\n\r\n".to_vec(), 400),
        (b"GET /\xff HTTP/1.1\r\nHost: h\r\n\r\n".to_vec(), 400),
        (b"PRI * HTTP/2.0\r\n\r\n".to_vec(), 505),
        (b"GET / HTTP/1.2\r\nHost: h\r\n\r\n".to_vec(), 505),
        (b"GET / HTTP/3.0\r\nHost: h\r\n\r\n".to_vec(), 505),
        (b"CONNECT h:80 HTTP/1.1\r\nHost: h:80\r\n\r\n".to_vec(), 501),
        (b"connect /a HTTP/1.1\r\nHost: h\r\n\r\n".to_vec(), 501),
        (b"TRACE / HTTP/1.1\r\nHost: h\r\n\r\n".to_vec(), 501),
        (put("Expect: 200-ok\r\n").into_bytes(), 417),
        (put("Expect: 100-continue, x\r\n").into_bytes(), 417),
        (put("Expect:\r\n").into_bytes(), 417),
        (put(&"X: y\r\n".repeat(1000)).into_bytes(), 431),
    ]);
    cases
}

#[test]
fn good_requests_are_taken_with_one_framing() {
    for (raw, target, framing) in good() {
        let read = verdict(raw.as_bytes()).unwrap_or_else(|status| panic!("{status}: {raw:?}"));
        assert_eq!((read.target.as_str(), read.framing), (target, framing), "{raw:?}");
    }
}

#[test]
fn what_has_two_readings_is_refused() {
    for (raw, status) in refused() {
        let text = String::from_utf8_lossy(&raw);
        assert_eq!(verdict(&raw).map(|read| read.framing), Err(status), "{text:?}");
    }
}

#[test]
fn a_head_split_anywhere_ends_at_the_same_byte() {
    let good = good().into_iter().map(|case| case.0.into_bytes());
    let all: Vec<Vec<u8>> = good.chain(refused().into_iter().map(|case| case.0)).collect();
    assert!(all.len() > 150);
    for raw in all.iter().filter(|raw| raw.len() < 1000) {
        let whole = find_head_end(raw, 0).unwrap();
        for at in 0..=raw.len() {
            let (a, b) = raw.split_at(at);
            assert_eq!(head_end([a, b].into_iter()), Some(whole), "{raw:?} at {at}");
        }
        assert_eq!(head_end(raw.chunks(1)), Some(whole), "{raw:?}");
    }
}

#[test]
fn a_head_cut_short_is_never_taken() {
    for (raw, _, _) in good().iter().filter(|case| case.0.len() < 1000) {
        for end in 0..raw.len() {
            assert_eq!(
                find_head_end(&raw.as_bytes()[..end], 0),
                None,
                "{raw:?} cut at {end}"
            );
            let mut storage = HeaderStorage::new();
            assert!(
                parse_request(&raw.as_bytes()[..end], &mut storage).is_err(),
                "{raw:?} cut at {end}"
            );
        }
    }
}

#[test]
fn bytes_behind_the_head_are_not_part_of_it() {
    for (raw, target, framing) in good() {
        let longer = format!("{raw}GET /smuggled HTTP/1.1\r\nHost: h\r\n\r\n");
        assert_eq!(find_head_end(longer.as_bytes(), 0), Some(raw.len()), "{raw:?}");
        let read = verdict(longer.as_bytes()).unwrap();
        assert_eq!((read.target.as_str(), read.framing), (target, framing));
    }
}

fn forward(raw: &str, forwarded: Option<&Forwarded<'_>>, pass_upgrade: bool) -> String {
    let mut storage = HeaderStorage::new();
    let head = parse_request(raw.as_bytes(), &mut storage).unwrap();
    let mut out = Vec::new();
    write_request_head(&mut out, &head, forwarded, pass_upgrade);
    String::from_utf8(out).unwrap()
}

#[test]
fn what_goes_on_is_what_came_but_for_fields_of_this_hop() {
    let raw = "PUT /orders/%7Ea%20b?x=%2F&y HTTP/1.1\r\nKeep-Alive: 5\r\nHost: store.test\r\nx-LOWER-Upper:a,  b \t\r\n\
               Te: trailers\r\nproxy-connection: x\r\nX-Amz-Meta-A: 2\r\nx-amz-meta-a: 1\r\nX-Hop: 1\r\n\
               Connection: keep-alive, x-hop\r\nx-hop: 2\r\nProxy-Authorization: p\r\nTrailer: t\r\n\
               Transfer-Encoding: chunked\r\nUpgrade: h2c\r\nHTTP2-Settings: AA\r\n\r\n";
    let want = "PUT /orders/%7Ea%20b?x=%2F&y HTTP/1.1\r\nHost: store.test\r\nx-LOWER-Upper:a,  b \t\r\n\
                X-Amz-Meta-A: 2\r\nx-amz-meta-a: 1\r\nProxy-Authorization: p\r\nTrailer: t\r\n\
                Transfer-Encoding: chunked\r\n\r\n";
    assert_eq!(forward(raw, None, false), want);
    let plain = "PUT /a HTTP/1.1\r\nHost: h\r\nAccept-Encoding: identity\r\nContent-Length: 2\r\n\r\n";
    assert_eq!(forward(plain, None, false), plain);
}

#[test]
fn every_good_request_goes_on_with_the_same_reading() {
    for (raw, _, _) in good() {
        let raw = raw.trim_start_matches("\r\n");
        let mut storage = HeaderStorage::new();
        let head = parse_request(raw.as_bytes(), &mut storage).unwrap();
        let mut want = reading(&head);
        let mut index = 0u16..;
        want.fields
            .retain(|_| !head.dropped.contains(&index.next().unwrap()));
        let again = verdict(forward(raw, None, false).as_bytes()).unwrap();
        assert_eq!(again, want, "{raw:?}");
    }
}

#[test]
fn forwarded_fields_are_added_behind_what_the_client_sent() {
    let forwarded = Forwarded {
        client_ip: "10.0.0.7",
        proto: "http",
        via: "1.1",
    };
    let out = forward(
        "GET / HTTP/1.1\r\nHost: h\r\nX-Forwarded-For: 1.2.3.4\r\n\r\n",
        Some(&forwarded),
        false,
    );
    assert_eq!(
        out,
        "GET / HTTP/1.1\r\nHost: h\r\nX-Forwarded-For: 1.2.3.4\r\nX-Forwarded-For: 10.0.0.7\r\n\
         X-Forwarded-Proto: http\r\nVia: 1.1 fencegate\r\n\r\n"
    );
    let kept = forward(
        "GET / HTTP/1.1\r\nHost: h\r\nX-Forwarded-Proto: https\r\n\r\n",
        Some(&forwarded),
        false,
    );
    assert_eq!(kept.matches("X-Forwarded-Proto").count(), 1);
    let named =
        "GET / HTTP/1.1\r\nHost: h\r\nConnection: x-forwarded-proto\r\nX-Forwarded-Proto: https\r\n\r\n";
    assert!(forward(named, Some(&forwarded), false).contains("X-Forwarded-Proto: http\r\n"));
}

#[test]
fn an_absolute_target_goes_on_in_origin_form() {
    let out = forward("GET http://h:80/x?y HTTP/1.1\r\nHost: H\r\n\r\n", None, false);
    assert_eq!(out, "GET /x?y HTTP/1.1\r\nHost: H\r\n\r\n");
    let mut storage = HeaderStorage::new();
    let head = parse_request(b"OPTIONS * HTTP/1.1\r\nHost: h\r\n\r\n", &mut storage).unwrap();
    assert_eq!(head.form, TargetForm::Asterisk);
}

#[test]
fn upgrades_end_here_unless_they_are_passed_and_h2c_always() {
    let ask = |value: &str| {
        put(&format!(
            "Connection: Upgrade, HTTP2-Settings\r\nUpgrade: {value}\r\nHTTP2-Settings: A\r\n"
        ))
    };
    let wish = |raw: &str| {
        let mut storage = HeaderStorage::new();
        parse_request(raw.as_bytes(), &mut storage).unwrap().upgrade
    };
    assert_eq!(wish(&put("")), Upgrade::None);
    assert_eq!(wish(&ask("H2C")), Upgrade::H2cDropped);
    assert_eq!(wish(&ask("websocket")), Upgrade::Other);
    assert_eq!(wish(&ask("h2c, websocket")), Upgrade::Other);
    assert_eq!(forward(&ask("h2c"), None, true), put(""));
    assert_eq!(forward(&ask("websocket"), None, false), put(""));
    assert_eq!(
        forward(&ask("h2c, websocket"), None, true),
        put("Upgrade: websocket\r\nConnection: Upgrade\r\n")
    );
}

#[test]
fn the_facts_about_the_connection_are_read() {
    let facts = |version: &str, lines: &str| {
        let raw = format!("PUT / HTTP/{version}\r\nHost: h\r\nContent-Length: 1\r\n{lines}\r\n");
        let mut storage = HeaderStorage::new();
        let head = parse_request(raw.as_bytes(), &mut storage).unwrap();
        (
            head.version,
            head.keep_alive,
            head.expect_continue,
            head.connection_auth,
        )
    };
    let (v10, v11) = (Version::V10, Version::V11);
    assert_eq!(facts("1.1", ""), (v11, true, false, false));
    assert_eq!(facts("1.1", "Connection: CLOSE\r\n"), (v11, false, false, false));
    assert_eq!(
        facts("1.1", "Connection: a\r\nConnection: b, close\r\n"),
        (v11, false, false, false)
    );
    assert_eq!(facts("1.0", ""), (v10, false, false, false));
    assert_eq!(
        facts("1.0", "Connection: Keep-Alive\r\n"),
        (v10, true, false, false)
    );
    assert_eq!(
        facts("1.0", "Connection: keep-alive, close\r\n"),
        (v10, false, false, false)
    );
    assert_eq!(facts("1.1", "Expect: 100-continue\r\n"), (v11, true, true, false));
    assert_eq!(
        facts("1.0", "Expect: 100-continue\r\n"),
        (v10, false, false, false)
    );
    assert_eq!(
        facts("1.1", "Authorization: Negotiate YII\r\n"),
        (v11, true, false, true)
    );
}

#[test]
fn a_field_named_by_connection_is_known_before_it_is_dropped() {
    let raw = put("Connection: close, fencing-TOKEN\r\nFencing-Token: 41\r\n");
    let mut storage = HeaderStorage::new();
    let head = parse_request(raw.as_bytes(), &mut storage).unwrap();
    assert!(head.connection_names("Fencing-Token") && !head.connection_names("close"));
    assert!(head.fields.iter().any(|f| f.name == "Fencing-Token"));
    assert_eq!(forward(&raw, None, false), put(""));
}

#[test]
fn more_fields_than_fit_in_place_are_read_up_to_the_limit() {
    let raw = put(&"x-amz-meta: 1\r\n".repeat(150));
    assert_eq!(verdict(raw.as_bytes()).unwrap().fields.len(), 151);
    assert_eq!(forward(&raw, None, false), raw);
    let mut storage = HeaderStorage::with_limit(100);
    let error = parse_request(raw.as_bytes(), &mut storage).unwrap_err();
    assert_eq!(error.kind, HeadErrorKind::TooLarge);
}

#[test]
fn a_connection_field_cannot_name_fields_without_end() {
    let raw = put(&format!("Connection: {}\r\n", "x,".repeat(33)));
    assert_eq!(verdict(raw.as_bytes()).map(|read| read.framing), Err(400));
}
