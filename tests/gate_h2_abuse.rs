//! HTTP/2 as a client would abuse it: floods of frames that cost it little and the gate much. Whatever comes, the gate
//! lives, holds little memory, and serves others.

mod gate;

use std::time::{Duration, Instant};

use gate::frames::{
    CONTINUATION, DATA, END_HEADERS, END_STREAM, ENHANCE_YOUR_CALM, Frames, HEADERS, Outcome, PING,
    RST_STREAM, SETTINGS, WINDOW_UPDATE, block, frame,
};
use gate::h2::Client;
use gate::{Gate, Setup, Stub, ask};

/// How much the gate may grow by under any of these, in KiB.
const GROWTH_MAX: u64 = 64 << 10;

fn start() -> (Stub, Gate) {
    let stub = Stub::start();
    let gate = Setup::default().settle_after("60s").start(stub.port);
    put("/orders/1", 1).send(gate.port).is_ok();
    (stub, gate)
}

fn put(target: &str, token: u64) -> gate::Ask {
    ask("PUT", target).token(token).body("v")
}

fn head(method: &'static str, path: &'static str) -> Vec<(&'static str, &'static str)> {
    vec![
        (":method", method),
        (":scheme", "http"),
        (":authority", "store.test"),
        (":path", path),
        ("fencing-token", "9"),
    ]
}

/// Runs an attack; says what holds after each.
#[track_caller]
fn survives<T>(gate: &Gate, attack: impl FnOnce() -> T) -> T {
    let before = gate.memory_kib("VmHWM");
    let result = attack();
    Client::open(gate.port).send(put("/users/1", 1)).is_ok();
    put("/users/1", 1).send(gate.port).is_ok();
    let grown = gate.memory_kib("VmHWM") - before;
    assert!(grown < GROWTH_MAX, "it grew by {grown} KiB");
    result
}

/// Sends until the gate takes no more or `count` pieces went out; gives how many.
fn flood(client: &mut Frames, count: usize, piece: impl Fn(usize) -> Vec<u8>) -> usize {
    client
        .stream
        .set_write_timeout(Some(Duration::from_secs(3)))
        .unwrap();
    (0..count)
        .take_while(|at| client.try_send(piece(*at)).is_ok())
        .count()
}

#[test]
fn a_rapid_reset_ends_its_connection() {
    let (stub, gate) = start();
    let pair = |at: usize| {
        let stream = u32::try_from(2 * at + 1).unwrap();
        let mut out = frame(
            HEADERS,
            END_HEADERS | END_STREAM,
            stream,
            &block(&head("DELETE", "/orders/1")),
        );
        out.extend(frame(RST_STREAM, 0, stream, &8u32.to_be_bytes()));
        out
    };
    survives(&gate, || {
        let mut client = Frames::open(gate.port);
        flood(&mut client, 20_000, pair);
        assert_eq!(client.farewell().unwrap_or(ENHANCE_YOUR_CALM), ENHANCE_YOUR_CALM);
    });
    let reached = stub.look(|state| state.arrived.len());
    assert!(reached < 1000, "{reached} requests of 20000 reached the backend");
}

#[test]
fn a_reset_of_streams_that_wait_ends_its_connection_or_is_bounded() {
    let (stub, gate) = start();
    let old = put("/orders/1", 8).field("x-stub-hold", "old").spawn(gate.port);
    stub.wait_for_head(8);
    survives(&gate, || {
        let mut client = Frames::open(gate.port);
        let sent = flood(&mut client, 20_000, |at| {
            let stream = u32::try_from(2 * at + 1).unwrap();
            let mut out = frame(HEADERS, END_HEADERS, stream, &block(&head("PUT", "/orders/1")));
            out.extend(frame(DATA, 0, stream, &[b'x'; 100]));
            out.extend(frame(RST_STREAM, 0, stream, &8u32.to_be_bytes()));
            out
        });
        let away = if sent < 20_000 { client.farewell() } else { None };
        assert!(matches!(away, None | Some(ENHANCE_YOUR_CALM)), "{away:?}");
    });
    stub.release("old");
    old.join().unwrap().unwrap().is_ok();
    gate.send(put("/orders/1", 10)).is_ok();
    assert!(!stub.tokens().contains(&9));
}

#[test]
fn more_streams_than_are_allowed_are_refused_one_by_one() {
    let (stub, gate) = start();
    let old = put("/orders/1", 8).field("x-stub-hold", "old").spawn(gate.port);
    stub.wait_for_head(8);
    survives(&gate, || {
        let mut client = Frames::open(gate.port);
        for at in 0..500 {
            client.headers(2 * at + 1, &head("PUT", "/orders/1"), true);
        }
        match client.outcome(999) {
            Outcome::Reset(code, None) => assert_eq!(code, 7, "REFUSED_STREAM"),
            other => assert!(matches!(other, Outcome::Closed(_)), "{other:?}"),
        }
    });
    stub.release("old");
    old.join().unwrap().unwrap().is_ok();
}

#[test]
fn a_flood_of_continuations_ends_its_connection() {
    let (_stub, gate) = start();
    survives(&gate, || {
        for payload in [
            Vec::new(),
            block(&[("x-a", "1")]),
            block(&[("x-a", "v".repeat(16_000))]),
        ] {
            let mut client = Frames::open(gate.port);
            client.send(frame(HEADERS, END_STREAM, 1, &block(&head("PUT", "/orders/1"))));
            let sent = flood(&mut client, 100_000, |_| frame(CONTINUATION, 0, 1, &payload));
            assert!(sent < 100_000, "{} bytes each", payload.len());
            client.farewell();
        }
    });
}

#[test]
fn floods_of_frames_that_ask_for_an_answer_are_bounded() {
    let (_stub, gate) = start();
    for (kind, payload) in [
        (PING, vec![7; 8]),
        (SETTINGS, vec![0, 4, 0, 1, 0, 0]),
        (SETTINGS, Vec::new()),
    ] {
        survives(&gate, || {
            // It never reads what it asked for.
            let mut client = Frames::open(gate.port);
            flood(&mut client, 1_000, |_| frame(kind, 0, 0, &payload).repeat(500));
        });
    }
}

#[test]
fn a_flood_of_empty_data_ends_its_connection() {
    let (_stub, gate) = start();
    survives(&gate, || {
        let mut client = Frames::open(gate.port);
        client.headers(1, &head("PUT", "/orders/1"), false);
        let sent = flood(&mut client, 1_000, |_| frame(DATA, 0, 1, &[]).repeat(500));
        assert!(sent < 1_000);
        assert_eq!(client.farewell().unwrap_or(ENHANCE_YOUR_CALM), ENHANCE_YOUR_CALM);
    });
}

#[test]
fn uploads_that_wait_hold_little_however_small_their_pieces_are() {
    let (stub, gate) = start();
    let old = put("/orders/1", 8).field("x-stub-hold", "old").spawn(gate.port);
    stub.wait_for_head(8);
    let fields = [head("PUT", "/orders/1"), vec![("content-length", "100000")]].concat();
    for fields in [head("PUT", "/orders/1"), fields] {
        survives(&gate, || {
            let mut client = Frames::open(gate.port);
            for at in 0..100 {
                client.headers(2 * at + 1, &fields, false);
            }
            flood(&mut client, 60, |_| {
                (0..100)
                    .flat_map(|at| frame(DATA, 0, 2 * at + 1, b"x").repeat(500))
                    .collect()
            });
        });
    }
    stub.release("old");
    old.join().unwrap().unwrap().is_ok();
}

#[test]
fn a_flood_of_small_windows_is_bounded_and_its_answer_comes() {
    let (_stub, gate) = start();
    put("/orders/1", 9)
        .body(vec![b'x'; 100_000])
        .send(gate.port)
        .is_ok();
    survives(&gate, || {
        let mut client = Frames::connect(gate.port);
        client.send(gate::frames::PREFACE);
        // A window of one byte, that grows by one byte a frame.
        client.send(frame(SETTINGS, 0, 0, &[0, 4, 0, 0, 0, 1]));
        client.headers(1, &head("GET", "/orders/1"), true);
        flood(&mut client, 200, |_| {
            frame(WINDOW_UPDATE, 0, 1, &1u32.to_be_bytes()).repeat(100)
        });
        let since = Instant::now();
        let mut came = 0;
        while came < 20_001 {
            let frame = client.read().unwrap().expect("the connection lives");
            if frame.kind == DATA {
                came += frame.payload.len();
            }
        }
        assert!(since.elapsed() < Duration::from_secs(20));
        assert_eq!(came, 20_001, "never more than the window");
    });
}

#[test]
fn a_client_that_never_reads_holds_little() {
    let (_stub, gate) = start();
    put("/orders/1", 9)
        .body(vec![b'x'; 10 << 20])
        .send(gate.port)
        .is_ok();
    survives(&gate, || {
        let mut client = Frames::connect(gate.port);
        client.send(gate::frames::PREFACE);
        // Windows as large as they get.
        client.send(frame(SETTINGS, 0, 0, &[0, 4, 0x7f, 0xff, 0xff, 0xff]));
        client.send(frame(WINDOW_UPDATE, 0, 0, &0x7fff_0000_u32.to_be_bytes()));
        for at in 0..100 {
            client.headers(2 * at + 1, &head("GET", "/orders/1"), true);
        }
        // Others are served meanwhile.
        for _ in 0..100 {
            put("/users/1", 1).send(gate.port).is_ok();
        }
        assert!(client.read().unwrap().is_some());
    });
}

#[test]
fn a_client_that_never_opens_its_window_is_dropped_in_time() {
    let stub = Stub::start();
    let gate = Setup::default()
        .listener("limits: { idle_timeout: 500ms }")
        .start(stub.port);
    put("/orders/1", 9)
        .body(vec![b'x'; 1 << 20])
        .send(gate.port)
        .is_ok();
    let mut client = Frames::connect(gate.port);
    client.send(gate::frames::PREFACE);
    client.send(frame(SETTINGS, 0, 0, &[0, 4, 0, 0, 0, 0]));
    client.headers(1, &head("GET", "/orders/1"), true);
    let outcome = client.outcome(1);
    assert!(
        matches!(outcome, Outcome::Reset(_, Some(200)) | Outcome::Closed(_)),
        "{outcome:?}"
    );
}

#[test]
fn heads_far_over_the_limit_are_refused_within_bounds() {
    let (stub, gate) = start();
    survives(&gate, || {
        for size in [200_000, 1_000_000, 10_000_000] {
            let mut client = Frames::open(gate.port);
            let mut rest =
                block(&[head("PUT", "/orders/1").as_slice(), &[("x-a", &"v".repeat(size))]].concat());
            let tail = rest.split_off(16_000);
            client.send(frame(HEADERS, END_STREAM, 1, &rest));
            let pieces: Vec<&[u8]> = tail.chunks(16_000).collect();
            for (at, piece) in pieces.iter().enumerate() {
                let flags = if at + 1 == pieces.len() { END_HEADERS } else { 0 };
                let _closed_by_now = client.try_send(frame(CONTINUATION, flags, 1, piece));
            }
            match client.outcome(1) {
                Outcome::Answered(431, _) | Outcome::Reset(_, None) | Outcome::Closed(_) => {}
                other => panic!("{size}: {other:?}"),
            }
        }
    });
    assert_eq!(stub.tokens().len(), 3);
}

#[test]
fn a_table_that_is_told_to_shrink_and_grow_is_no_matter() {
    let (_stub, gate) = start();
    survives(&gate, || {
        let mut client = Frames::open(gate.port);
        for at in 0..200 {
            // Two updates of the dynamic table's size at the start of a block, then an entry that fills it.
            let mut fields = vec![0x20, 0x3f, 0xe1, 0x1f];
            fields.extend(block(&head("PUT", "/top")));
            fields.extend([0x40, 3, b'x', b'-', b'a', 127, 0x81, 0x1e]);
            fields.extend([b'v'; 127 + 0x81 - 0x80 + (0x1e << 7)]);
            client.send(frame(HEADERS, END_HEADERS | END_STREAM, 2 * at + 1, &fields));
            match client.outcome(2 * at + 1) {
                Outcome::Answered(403, _) => {}
                other => panic!("{other:?}"),
            }
        }
        // Larger than was allowed: the connection ends.
        let mut client = Frames::open(gate.port);
        client.send(frame(
            HEADERS,
            END_HEADERS | END_STREAM,
            1,
            &[0x3f, 0xe2, 0x1f, 0x82],
        ));
        client.farewell();
    });
}

#[test]
fn frames_out_of_place_end_the_connection_and_reach_nobody() {
    let (stub, gate) = start();
    let good = block(&head("DELETE", "/orders/1"));
    let rows: &[(&str, Vec<u8>)] = &[
        ("data on no stream", frame(DATA, 0, 0, b"x")),
        ("data on an idle stream", frame(DATA, 0, 5, b"x")),
        (
            "a head on stream 0",
            frame(HEADERS, END_HEADERS | END_STREAM, 0, &good),
        ),
        (
            "a head on an even stream",
            frame(HEADERS, END_HEADERS | END_STREAM, 2, &good),
        ),
        (
            "a continuation of nothing",
            frame(CONTINUATION, END_HEADERS, 1, &good),
        ),
        (
            "a head interrupted by a ping",
            [
                frame(HEADERS, END_STREAM, 1, &good[..9]),
                frame(PING, 0, 0, &[0; 8]),
            ]
            .concat(),
        ),
        (
            "a head interrupted by another stream",
            [
                frame(HEADERS, END_STREAM, 1, &good[..9]),
                frame(CONTINUATION, END_HEADERS, 3, &good[9..]),
            ]
            .concat(),
        ),
        ("a push", frame(5, END_HEADERS, 1, &good)),
        ("a settings frame of 5 bytes", frame(SETTINGS, 0, 0, &[0; 5])),
        ("a settings frame on a stream", frame(SETTINGS, 0, 1, &[])),
        (
            "a window above 2^31-1",
            frame(SETTINGS, 0, 0, &[0, 4, 0x80, 0, 0, 0]),
        ),
        ("a window update of nothing", frame(WINDOW_UPDATE, 0, 0, &[0; 4])),
        ("a ping of 7 bytes", frame(PING, 0, 0, &[0; 7])),
        ("a reset of no stream", frame(RST_STREAM, 0, 0, &[0; 4])),
        ("padding longer than the frame", frame(DATA, 8, 1, &[200, 1])),
        (
            "a frame larger than allowed",
            frame(HEADERS, END_HEADERS | END_STREAM, 1, &[0; 20_000]),
        ),
        (
            "an index of nothing",
            frame(HEADERS, END_HEADERS | END_STREAM, 1, &[0x80]),
        ),
        (
            "an index beyond the tables",
            frame(HEADERS, END_HEADERS | END_STREAM, 1, &[0xff, 0x80, 0x10]),
        ),
        (
            "an integer without end",
            frame(HEADERS, END_HEADERS | END_STREAM, 1, &[0xff; 40]),
        ),
        (
            "a string longer than its block",
            frame(HEADERS, END_HEADERS | END_STREAM, 1, &[0x10, 5, b'a']),
        ),
    ];
    for (name, bytes) in rows {
        let mut client = Frames::open(gate.port);
        client.send(bytes);
        // A good request behind it counts for nothing.
        let _closed_by_now = client.try_send(frame(HEADERS, END_HEADERS | END_STREAM, 9, &good));
        let outcome = client.outcome(9);
        assert!(matches!(outcome, Outcome::Closed(_)), "{name}: {outcome:?}");
    }
    // A stream that was used goes by its number alone.
    let mut client = Frames::open(gate.port);
    client.headers(5, &head("PUT", "/top"), true);
    assert!(matches!(client.outcome(5), Outcome::Answered(403, _)));
    client.headers(3, &head("PUT", "/top"), true);
    client.farewell();
    assert!(stub.look(|state| state.arrived.iter().all(|request| request.token != Some(9))));
    gate.send(put("/orders/1", 1)).is_ok();
}

#[test]
fn streams_that_were_reset_while_they_waited_keep_no_place_from_others() {
    let stub = Stub::start();
    let gate = Setup::default()
        .settle_after("60s")
        .listener("limits: { max_waiting: 20 }")
        .start(stub.port);
    let held = put("/orders/1", 1).field("x-stub-hold", "old").spawn(gate.port);
    stub.wait_for_head(1);
    let client = Client::open(gate.port);
    for round in 0..4 {
        let waiting: Vec<_> = (0..10)
            .map(|at| client.start(&put("/orders/1", 10 + 10 * round + at)))
            .collect();
        gate.wait_until_stale("/orders/1", 19 + 10 * round - 1);
        waiting.into_iter().for_each(gate::h2::Exchange::reset);
    }
    // With every place taken this would be refused as overloaded.
    put("/users/1", 1).send(gate.port).is_ok();
    stub.release("old");
    held.join().unwrap().unwrap();
}

#[test]
fn a_head_that_does_not_end_has_header_timeout_and_no_more() {
    let stub = Stub::start();
    let gate = Setup::default()
        .listener("limits: { header_timeout: 300ms, idle_timeout: 10m }")
        .start(stub.port);
    let whole = frame(HEADERS, END_STREAM, 1, &block(&head("DELETE", "/orders/1")));
    for part in [whole.len(), whole.len() / 2, 5] {
        let mut client = Frames::open(gate.port);
        client.send(&whole[..part]);
        // Long before idle_timeout, or this test would not end.
        while let Ok(Some(_)) = client.read() {}
    }
    assert!(stub.look(|state| state.arrived.is_empty()));
}
