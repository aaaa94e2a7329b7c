//! Writes under way: drained, cut, in doubt, followed, sent at most once (S4, S5, S6, S8, S9).

mod gate;

use std::io::Write;
use std::net::Shutdown;
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use gate::{Conn, Gate, RawBackend, Setup, Stub, ask, head, read_head, read_request, start_with};

/// A gate whose doubts would last longer than any test: what waits for one fails.
fn start() -> (Stub, Gate) {
    start_with(Setup::default().settle_after("60s"))
}

fn put(target: &str, token: u64) -> gate::Ask {
    ask("PUT", target).token(token).body("v")
}

const OK: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n";

// ---- S4

#[test]
fn a_new_holder_waits_for_the_write_in_flight() {
    let (stub, gate) = start();
    let old = put("/orders/1", 33)
        .body("old")
        .field("x-stub-hold", "old")
        .spawn(gate.port);
    stub.wait_for_head(33);
    let new = put("/orders/1", 34).body("new").spawn(gate.port);
    gate.wait_until_stale("/orders/1", 33);
    gate.send(put("/users/1", 1)).is_ok();
    assert!(!new.is_finished());
    stub.release("old");
    old.join().unwrap().unwrap().is_ok();
    new.join().unwrap().unwrap().is_ok();
    assert_eq!(stub.content("/orders/1").as_deref(), Some("new"));
    assert_eq!(stub.journal()[1].token, Some(33));
}

#[test]
fn a_delete_in_flight_is_drained_like_a_put() {
    let (stub, gate) = start();
    let old = ask("DELETE", "/orders/1")
        .token(33)
        .field("x-stub-hold", "old")
        .spawn(gate.port);
    stub.wait_for_head(33);
    let new = put("/orders/1", 34).spawn(gate.port);
    gate.wait_until_stale("/orders/1", 33);
    assert!(!new.is_finished() && stub.tokens().is_empty());
    stub.release("old");
    old.join().unwrap().unwrap().is_ok();
    new.join().unwrap().unwrap().is_ok();
    assert_eq!(stub.tokens(), [33, 34]);
    assert!(stub.content("/orders/1").is_some());
}

#[test]
fn raises_that_overtake_each_other_end_with_the_highest() {
    let (stub, gate) = start();
    let old = put("/orders/1", 1).field("x-stub-hold", "old").spawn(gate.port);
    stub.wait_for_head(1);
    let waiting: Vec<_> = (2..30)
        .map(|token| put("/orders/1", token).spawn(gate.port))
        .collect();
    gate.wait_until_stale("/orders/1", 1);
    stub.release("old");
    old.join().unwrap().unwrap().is_ok();
    for thread in waiting {
        let status = thread.join().unwrap().unwrap().status;
        assert!(matches!(status, 200 | 412), "{status}");
    }
    let tokens = stub.tokens();
    assert!(tokens.is_sorted() && tokens.last() == Some(&29), "{tokens:?}");
}

#[test]
fn an_answer_holds_the_raise_until_its_last_byte() {
    let (stub, gate) = start();
    let old = put("/orders/1", 33)
        .field("x-stub-answer-size", 100)
        .field("x-stub-body-hold", "rest")
        .spawn(gate.port);
    stub.wait_for_effect(33);
    let new = put("/orders/1", 34).spawn(gate.port);
    gate.wait_until_stale("/orders/1", 33);
    gate.send(put("/users/1", 1)).is_ok();
    assert!(!new.is_finished() && !stub.tokens().contains(&34));
    stub.release("rest");
    assert_eq!(old.join().unwrap().unwrap().is_ok().body.len(), 100);
    new.join().unwrap().unwrap().is_ok();
}

#[test]
fn a_client_that_does_not_read_its_answer_holds_up_nobody() {
    let (stub, gate) = start();
    let mut old = Conn::open(gate.port);
    old.send(put("/orders/1", 33).field("x-stub-answer-size", 64 << 20).bytes());
    stub.wait_for_effect(33);
    let since = Instant::now();
    put("/orders/1", 34).send(gate.port).is_ok();
    assert!(since.elapsed() < Duration::from_secs(10), "{:?}", since.elapsed());
    assert_eq!(gate.metric("fencegate_in_doubt_writes", &[]), 0.0);
    assert!(
        old.read_to_end().map_or(true, |answer| answer.len() < 64 << 20),
        "it was dropped"
    );
}

#[test]
fn a_client_that_reads_its_answer_a_little_at_a_time_holds_up_nobody() {
    let (stub, gate) = start();
    let mut old = Conn::open(gate.port);
    old.send(
        put("/orders/1", 33)
            .field("x-stub-answer-size", 256 << 20)
            .bytes(),
    );
    stub.wait_for_effect(33);
    let reader = std::thread::spawn(move || {
        // Its pace is the point: it always makes progress, and would need minutes.
        while old.read_exactly(128 << 10).is_ok() {
            std::thread::sleep(Duration::from_millis(50));
        }
    });
    let since = Instant::now();
    put("/orders/1", 34).send(gate.port).is_ok();
    assert!(since.elapsed() < Duration::from_secs(15), "{:?}", since.elapsed());
    drop(gate);
    reader.join().unwrap();
}

#[test]
fn a_client_that_pauses_longer_than_the_response_timeout_gets_its_answer_whole_and_leaves_no_doubt() {
    let (stub, gate) = start_with(
        Setup::default()
            .settle_after("60s")
            .upstream("response_timeout: 300ms"),
    );
    let mut old = Conn::open(gate.port);
    old.send(put("/orders/1", 33).field("x-stub-answer-size", 32 << 20).bytes());
    stub.wait_for_effect(33);
    std::thread::sleep(Duration::from_secs(1)); // the pause is the point
    assert_eq!(old.reply().is_ok().body.len(), 32 << 20);
    put("/orders/1", 34).send(gate.port).is_ok();
}

/// A backend that does `first` for token 33 and answers everything else.
fn backend_with(first: impl Fn(&mut std::net::TcpStream) + Send + Sync + 'static) -> RawBackend {
    RawBackend::start(move |_, mut reader, mut writer| {
        while let Ok(Some((request, _))) = read_request(&mut reader) {
            if request.token == Some(33) && request.method == "PUT" && request.field("x-fine").is_none() {
                first(&mut writer);
                return;
            }
            if writer.write_all(OK).is_err() {
                return;
            }
        }
    })
}

/// Asserts that the same token goes on, and that a raise waits until `settle_after` (2 s) after `since`.
#[track_caller]
fn is_in_doubt_since(gate: &Gate, since: Instant) {
    assert_eq!(gate.metric("fencegate_in_doubt_writes", &[]), 1.0);
    gate.send(put("/orders/1", 33).field("x-fine", "1")).is_ok();
    assert!(
        since.elapsed() < Duration::from_millis(1900),
        "the machine is too slow for this test"
    );
    gate.send(put("/orders/1", 34)).is_ok();
    let waited = since.elapsed();
    assert!(
        waited >= Duration::from_millis(1950),
        "the raise waited {waited:?}"
    );
    assert!(waited < Duration::from_secs(10), "the raise waited {waited:?}");
    gate.send(put("/orders/1", 33)).is(412, "stale-token");
}

fn short_doubts() -> Setup {
    Setup::default()
        .settle_after("2s")
        .upstream("response_timeout: 1s")
}

#[test]
fn an_answer_broken_off_in_its_body_is_in_doubt() {
    let backend = backend_with(|writer| {
        writer
            .write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\npart")
            .unwrap();
    });
    let gate = short_doubts().start(backend.port);
    let since = Instant::now();
    let error = put("/orders/1", 33).try_send(gate.port).unwrap_err();
    assert_eq!(
        error.kind(),
        std::io::ErrorKind::ConnectionReset,
        "never taken for whole: {error}"
    );
    is_in_doubt_since(&gate, since);
}

#[test]
fn a_chunked_answer_without_its_last_chunk_is_in_doubt() {
    let backend = backend_with(|writer| {
        writer
            .write_all(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\npart\r\n")
            .unwrap();
    });
    let gate = short_doubts().start(backend.port);
    let since = Instant::now();
    put("/orders/1", 33).try_send(gate.port).unwrap_err();
    is_in_doubt_since(&gate, since);
}

#[test]
fn an_answer_that_is_not_http_is_in_doubt_and_not_relayed() {
    let backend = backend_with(|writer| writer.write_all(b"HTTP/1.1 2OO OK\r\nX: y\r\n\r\n").unwrap());
    let gate = short_doubts().start(backend.port);
    let since = Instant::now();
    let reply = gate.send(put("/orders/1", 33));
    reply.is(502, "upstream-failed");
    let problem = reply.json();
    assert_eq!(
        (&problem["applied"], &problem["token"]),
        (&"unknown".into(), &"33".into())
    );
    assert_eq!(problem["resource"], "bucket/orders");
    is_in_doubt_since(&gate, since);
}

// ---- S5

#[test]
fn an_early_answer_reaches_the_client_at_once_and_ends_the_write_as_cut() {
    let (tell, told) = channel();
    let tell = Mutex::new(tell);
    let backend = RawBackend::start(move |_, mut reader, mut writer| {
        while let Ok(Some(request)) = read_head(&mut reader) {
            if request.token != Some(33) {
                writer.write_all(OK).unwrap();
                continue;
            }
            writer
                .write_all(b"HTTP/1.1 413 Too Large\r\nContent-Length: 3\r\n\r\nbig")
                .unwrap();
            let mut rest = Vec::new();
            let ended = std::io::Read::read_to_end(&mut reader, &mut rest);
            tell.lock().unwrap().send((rest, ended.is_err())).unwrap();
            return;
        }
    });
    let gate = Setup::default().settle_after("60s").start(backend.port);
    let mut upload = Conn::open(gate.port);
    upload
        .send(head("PUT", "/orders/1", Some(33), Some(1000), &[]))
        .send([b'x'; 400]);
    let reply = upload.reply();
    assert_eq!((reply.status, reply.body.as_slice()), (413, b"big".as_slice()));
    assert_eq!(reply.field("connection"), Some("close"));
    let (rest, _) = told.recv_timeout(gate::PATIENCE).unwrap();
    assert!(rest.len() <= 400, "the connection was closed");
    let _closed_by_now = upload.try_send([b'x'; 600]);
    upload.is_closed();
    gate.send(ask("DELETE", "/orders/1").token(34)).is_ok();
    assert_eq!(gate.metric("fencegate_in_doubt_writes", &[]), 0.0);
}

#[test]
fn an_early_answer_with_the_rest_of_the_body_pushed_flat_out_is_seen() {
    let backend = RawBackend::start(move |_, mut reader, mut writer| {
        if let Ok(Some(_)) = read_head(&mut reader) {
            writer
                .write_all(b"HTTP/1.1 403 No\r\nContent-Length: 2\r\n\r\nno")
                .unwrap();
            let _reset = std::io::copy(&mut reader, &mut std::io::sink());
        }
    });
    let gate = Setup::default().start(backend.port);
    let mut upload = Conn::open(gate.port);
    upload.send(head("PUT", "/orders/1", Some(33), Some(20 << 20), &[]));
    for _ in 0..20 {
        upload.send(vec![b'x'; 1 << 20]);
    }
    assert_eq!(upload.reply().status, 403);
}

#[test]
fn a_cut_upload_is_reset_at_the_backend() {
    let (stub, gate) = start();
    let mut upload = Conn::open(gate.port);
    upload
        .send(head("PUT", "/orders/1", Some(33), Some(1000), &[]))
        .send([b'x'; 999]);
    stub.wait_for_head(33);
    gate.send(put("/orders/1", 34)).is_ok();
    upload.reply().is(412, "stale-token");
    stub.wait(|state| state.incomplete.len() == 1);
    assert!(
        stub.look(|state| state.incomplete[0].1),
        "reset, not ended in order"
    );
    let _closed_by_now = upload.try_send(b"x");
    assert_eq!(stub.tokens(), [34]);
}

#[test]
fn a_client_that_leaves_in_its_upload_takes_its_write_with_it() {
    let (stub, gate) = start();
    for shutdown_first in [true, false] {
        let mut upload = Conn::open(gate.port);
        let before = stub.look(|state| state.arrived.len());
        upload
            .send(head("PUT", "/orders/1", Some(33), Some(10), &[]))
            .send("123456789");
        stub.wait(|state| state.arrived.len() > before);
        if shutdown_first {
            upload.stream.shutdown(Shutdown::Write).unwrap();
        } else {
            drop(upload);
        }
        stub.wait(|state| state.incomplete.len() == state.arrived.len());
    }
    gate.send(put("/orders/1", 34)).is_ok();
    assert_eq!(stub.tokens(), [34]);
    assert!(stub.look(|state| state.incomplete.iter().all(|(_, reset)| *reset)));
}

#[test]
fn an_upload_that_stops_is_told_so_and_never_applied() {
    let (stub, gate) = start_with(Setup::default().listener("limits: { idle_timeout: 300ms }"));
    let mut upload = Conn::open(gate.port);
    upload
        .send(head("PUT", "/orders/1", Some(33), Some(10), &[]))
        .send("123456789");
    let reply = upload.reply();
    reply.is(408, "bad-request");
    assert_eq!(reply.json()["applied"], "no");
    stub.wait(|state| state.incomplete.len() == 1);
    assert!(stub.tokens().is_empty());
}

// ---- S6

#[test]
fn a_write_whose_answer_is_lost_is_in_doubt() {
    for drop in ["late", "never"] {
        let (stub, gate) = start_with(short_doubts());
        let since = Instant::now();
        let reply = gate.send(
            put("/orders/1", 33)
                .field("x-stub-drop", drop)
                .field("x-stub-delay", "0.7"),
        );
        reply.is(502, "upstream-failed");
        assert_eq!(reply.json()["applied"], "unknown");
        assert_eq!(reply.json()["rule"], "bucket");
        assert_eq!(reply.field("retry-after"), None);
        is_in_doubt_since(&gate, since);
        let expected: &[u64] = if drop == "late" { &[33, 33, 34] } else { &[33, 34] };
        assert_eq!(stub.tokens(), expected);
    }
}

#[test]
fn a_write_whose_answer_does_not_come_in_time_is_in_doubt_and_its_connection_reset() {
    let (stub, gate) = start_with(
        Setup::default()
            .settle_after("2s")
            .upstream("response_timeout: 200ms"),
    );
    let reply = gate.send(put("/orders/1", 33).field("x-stub-hold", "old"));
    let since = Instant::now();
    reply.is(504, "upstream-timeout");
    assert_eq!(reply.json()["applied"], "unknown");
    is_in_doubt_since(&gate, since.checked_sub(Duration::from_millis(50)).unwrap());
    stub.release("old");
}

#[test]
fn an_intermediarys_word_is_relayed_and_in_doubt() {
    for status in [502, 504] {
        let (_stub, gate) = start_with(short_doubts());
        let since = Instant::now();
        let reply = gate.send(put("/orders/1", 33).field("x-stub-status", status));
        assert_eq!((reply.status, reply.reason()), (status, ""));
        is_in_doubt_since(&gate, since);
    }
}

#[test]
fn the_backends_own_word_is_final() {
    let (_stub, gate) = start();
    for (token, status) in (33..).zip([200, 201, 204, 400, 404, 409, 412, 429, 500, 501, 503, 507]) {
        let reply = gate.send(put("/orders/1", token).field("x-stub-status", status));
        assert_eq!((reply.status, reply.reason()), (status, ""));
    }
    gate.send(put("/orders/1", 100)).is_ok();
}

#[test]
fn which_statuses_are_in_doubt_can_be_set() {
    let (_stub, gate) = start_with(short_doubts().upstream("in_doubt_statuses: [503]"));
    gate.send(put("/orders/1", 32).field("x-stub-status", 502));
    let since = Instant::now();
    gate.send(put("/orders/1", 33).field("x-stub-status", 503));
    is_in_doubt_since(&gate, since);
}

#[test]
fn a_read_that_fails_leaves_no_doubt() {
    let (_stub, gate) = start();
    gate.send(put("/orders/1", 33)).is_ok();
    let reply = gate.send(ask("GET", "/orders/1").token(33).field("x-stub-drop", "never"));
    reply.is(502, "upstream-failed");
    assert_eq!(reply.json()["applied"], "no");
    gate.send(put("/orders/1", 34)).is_ok();
}

// ---- S8

#[test]
fn a_write_is_followed_to_its_answer_even_if_its_client_has_left() {
    let (stub, gate) = start();
    let mut old = Conn::open(gate.port);
    old.send(put("/orders/1", 33).field("x-stub-hold", "old").bytes());
    stub.wait_for_head(33);
    drop(old);
    let new = put("/orders/1", 34).spawn(gate.port);
    gate.wait_until_stale("/orders/1", 33);
    assert!(!new.is_finished());
    stub.release("old");
    new.join().unwrap().unwrap().is_ok();
    assert_eq!(stub.tokens(), [33, 34]);
    assert_eq!(gate.metric("fencegate_in_doubt_writes", &[]), 0.0);
    assert_eq!(gate.metric("fencegate_in_flight_writes", &[]), 0.0);
}

#[test]
fn a_large_answer_is_read_to_its_end_though_its_client_has_left() {
    let (stub, gate) = start();
    let mut old = Conn::open(gate.port);
    let request = put("/orders/1", 33)
        .field("x-stub-answer-size", 32 << 20)
        .field("x-stub-answer-hold", "old");
    old.send(request.bytes());
    stub.wait_for_effect(33);
    drop(old);
    stub.release("old");
    gate.send(put("/orders/1", 34)).is_ok();
    assert_eq!(gate.metric("fencegate_in_doubt_writes", &[]), 0.0);
}

// ---- S9

#[test]
fn one_connection_to_the_backend_serves_many_requests() {
    let (stub, gate) = start();
    let mut conn = Conn::open(gate.port);
    for _ in 0..50 {
        conn.send(put("/orders/1", 33).bytes());
        conn.reply().is_ok();
    }
    assert_eq!(stub.look(|state| state.connections), 1);
}

#[test]
fn a_connection_that_the_backend_closed_while_idle_fails_nobody() {
    let (tell, told) = channel();
    let tell = Mutex::new(tell);
    let seen = Arc::new(Mutex::new(Vec::new()));
    let of_backend = Arc::clone(&seen);
    let backend = RawBackend::start(move |_, mut reader, mut writer| {
        if let Ok(Some((request, _))) = read_request(&mut reader) {
            of_backend.lock().unwrap().push(request.target);
            writer.write_all(OK).unwrap();
            drop((reader, writer));
            tell.lock().unwrap().send(()).unwrap();
        }
    });
    let gate = Setup::default().settle_after("60s").start(backend.port);
    let mut conn = Conn::open(gate.port);
    for number in 0..200 {
        conn.send(put(&format!("/orders/{number}"), 33).bytes());
        conn.reply().is_ok();
        told.recv_timeout(gate::PATIENCE).unwrap();
    }
    assert_eq!(seen.lock().unwrap().len(), 200);
}

#[test]
fn a_write_is_sent_once_wherever_the_backend_breaks_off() {
    for mode in ["before", "head", "body", "applied", "half an answer"] {
        let seen = Arc::new(Mutex::new(Vec::<String>::new()));
        let of_backend = Arc::clone(&seen);
        let backend = RawBackend::start(move |_, mut reader, mut writer| {
            for number in 0.. {
                if number == 1 && mode == "before" {
                    // Waits for its first byte and closes without reading it: a reset.
                    let mut first = [0];
                    let _peeked = writer.peek(&mut first);
                    return;
                }
                let Ok(Some(request)) = read_head(&mut reader) else {
                    return;
                };
                of_backend.lock().unwrap().push(request.target.clone());
                if number == 1 && mode == "head" {
                    return;
                }
                if gate::read_rest(&mut reader, &request).is_err() || number == 1 && mode != "half an answer"
                {
                    return;
                }
                if number == 1 {
                    let _sent = writer.write_all(b"HTTP/1.1 200 OK\r\nConte");
                    return;
                }
                if writer.write_all(OK).is_err() {
                    return;
                }
            }
        });
        let gate = Setup::default().settle_after("60s").start(backend.port);
        let (mut fine, mut failed) = (0, 0);
        let mut conn = Conn::open(gate.port);
        for number in 0..20 {
            conn.send(put(&format!("/orders/{number}"), 33).bytes());
            let reply = conn.reply();
            match reply.status {
                200 => fine += 1,
                502 => {
                    reply.is(502, "upstream-failed");
                    assert_eq!(reply.json()["applied"], "unknown", "{mode}");
                    failed += 1;
                }
                _ => panic!("{mode}: {reply:?}"),
            }
        }
        assert_eq!(
            (fine, failed),
            (10, 10),
            "{mode}: every second request of a connection breaks"
        );
        let mut seen = seen.lock().unwrap().clone();
        let count = seen.len();
        seen.sort();
        seen.dedup();
        assert_eq!(seen.len(), count, "{mode}: one of them came twice");
    }
}

#[test]
fn a_read_on_a_connection_that_breaks_before_any_answer_is_sent_again() {
    for reset in [false, true] {
        let backend = RawBackend::start(move |_, mut reader, mut writer| {
            let Ok(Some(_)) = read_request(&mut reader) else {
                return;
            };
            writer.write_all(OK).unwrap();
            if reset {
                // Unread bytes turn the close into a reset.
                let _peeked = writer.peek(&mut [0]);
            } else {
                let _head = read_head(&mut reader);
            }
        });
        let gate = Setup::default().start(backend.port);
        let mut conn = Conn::open(gate.port);
        for _ in 0..20 {
            conn.send(ask("GET", "/orders/1").bytes());
            conn.reply().is_ok();
        }
    }
}

#[test]
fn stray_bytes_after_an_answer_poison_nobody() {
    let backend = RawBackend::start(move |_, mut reader, mut writer| {
        while let Ok(Some((request, _))) = read_request(&mut reader) {
            let answer = format!(
                "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nFor: {}\r\n\r\nok",
                request.target
            );
            let stray = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nFor: nobody\r\n\r\nno";
            if writer.write_all((answer + stray).as_bytes()).is_err() {
                return;
            }
        }
    });
    let gate = Setup::default().start(backend.port);
    let mut conn = Conn::open(gate.port);
    for number in 0..50 {
        let target = format!("/orders/{number}");
        conn.send(put(&target, 33).bytes());
        assert_eq!(conn.reply().is_ok().field("for"), Some(target.as_str()));
    }
    assert!(backend.connections() >= 50, "such a connection is not used again");
}

#[test]
fn with_all_connections_in_use_a_request_waits_for_one_and_is_overloaded_only_if_it_has_not_raised() {
    let rule = format!("{}        drain_timeout: 1s\n", gate::RULE);
    let setup = Setup::rules(&rule)
        .upstream("max_connections: 1")
        .upstream("connect_timeout: 300ms");
    let (stub, gate) = start_with(setup);
    gate.send(put("/users/1", 5)).is_ok();
    let old = put("/orders/1", 33).field("x-stub-hold", "old").spawn(gate.port);
    stub.wait_for_head(33);
    let reply = gate.send(put("/users/1", 5));
    reply.is(503, "overloaded");
    assert!(reply.field("retry-after").is_some());
    gate.send(put("/users/1", 6)).is(503, "draining");
    gate.send(put("/users/1", 5)).is(412, "stale-token");
    stub.release("old");
    old.join().unwrap().unwrap().is_ok();
    gate.send(put("/users/1", 6)).is_ok();
    assert_eq!(stub.tokens(), [5, 33, 6]);
}

#[test]
fn stale_uploads_that_hold_every_connection_do_not_keep_the_new_holder_out() {
    let (stub, gate) = start_with(Setup::default().upstream("max_connections: 4"));
    let mut uploads: Vec<Conn> = (0..4)
        .map(|n| {
            let mut upload = Conn::open(gate.port);
            upload.send(head("PUT", &format!("/orders/{n}"), Some(33), Some(100), &[]));
            upload.send(vec![b'x'; 50]);
            upload
        })
        .collect();
    stub.wait(|state| state.arrived.len() == 4);
    gate.send(put("/orders/new", 34)).is_ok();
    for upload in &mut uploads {
        upload.reply().is(412, "stale-token");
    }
    assert_eq!(stub.tokens(), [34]);
}

// ---- commit_point: first_byte

#[test]
fn a_write_in_place_counts_as_committed_from_its_first_byte_and_is_never_cut() {
    let in_place = Setup::default().settle_after("60s");
    let by_config = in_place.clone().upstream("commit_point: first_byte");
    for (setup, fields) in [
        (in_place, [("Content-Range", "bytes 0-99/200")].as_slice()),
        (by_config, &[]),
    ] {
        let (stub, gate) = start_with(setup);
        let mut upload = Conn::open(gate.port);
        upload
            .send(head("PUT", "/orders/1", Some(33), Some(100), fields))
            .send([b'x'; 60]);
        stub.wait_for_head(33);
        let new = put("/orders/1", 34).spawn(gate.port);
        gate.wait_until_stale("/orders/1", 33);
        gate.send(put("/users/1", 1)).is_ok();
        assert!(!new.is_finished() && stub.tokens() == [1]);
        upload.send([b'x'; 40]);
        upload.reply().is_ok();
        new.join().unwrap().unwrap().is_ok();
        assert_eq!(stub.tokens(), [1, 33, 34]);
    }
}

#[test]
fn a_write_in_place_whose_client_leaves_is_in_doubt() {
    let (stub, gate) = start_with(short_doubts().upstream("commit_point: first_byte"));
    let mut upload = Conn::open(gate.port);
    upload
        .send(head("PUT", "/orders/1", Some(33), Some(100), &[]))
        .send([b'x'; 60]);
    stub.wait_for_head(33);
    let since = Instant::now();
    drop(upload);
    stub.wait(|state| state.incomplete.len() == 1);
    is_in_doubt_since(&gate, since);
}

#[test]
fn an_answer_that_never_ends_holds_a_raise_no_longer_than_the_response_timeout() {
    let backend = backend_with(|writer| {
        writer
            .write_all(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
            .unwrap();
        while writer.write_all(b"1\r\nx\r\n").is_ok() {
            std::thread::sleep(Duration::from_millis(20)); // its pace is the point
        }
    });
    let setup = Setup::default()
        .settle_after("500ms")
        .upstream("response_timeout: 500ms");
    let gate = setup.start(backend.port);
    let mut old = Conn::open(gate.port);
    old.send(put("/orders/1", 33).bytes());
    assert!(old.read_head().unwrap().starts_with("HTTP/1.1 200"));
    let reader = std::thread::spawn(move || old.read_to_end());
    let since = Instant::now();
    gate.send(put("/orders/1", 34)).is_ok();
    let waited = since.elapsed();
    assert!(
        waited >= Duration::from_millis(900) && waited < Duration::from_secs(8),
        "{waited:?}"
    );
    reader.join().unwrap().unwrap_err();
}
