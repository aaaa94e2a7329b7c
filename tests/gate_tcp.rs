//! Raw TCP through the gate: what a session is, what cuts it, and that nothing of an older holder takes effect after
//! a newer one was let in.

mod gate;

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::time::{Duration, Instant};

use socket2::SockRef;

use gate::sessions::{
    BY_PREFACE, BY_TLV, Backend, End, Manners, header, holder, is_reset, open, reads, session, tcp,
    wait_for_metric,
};
use gate::{Gate, sleep_until};

fn echoing() -> Backend {
    Backend::start(Manners {
        echoes: true,
        ..Manners::default()
    })
}

fn start(manners: Manners, settle_after: &str) -> (Backend, Gate) {
    let backend = Backend::start(manners);
    let gate = tcp(BY_TLV).settle_after(settle_after).start(backend.port);
    (backend, gate)
}

#[test]
fn bytes_pass_both_ways_and_a_session_ends_in_order() {
    let backend = echoing();
    let mut gate = tcp(BY_TLV).start(backend.port);
    let mut client = session(&gate, "a", 7, b"hello");
    reads(&mut client, b"hello");
    let large: Vec<u8> = (0..3_000_000u32).map(|n| n as u8).collect();
    let mut writer = client.try_clone().unwrap();
    let sent = large.clone();
    let writing = std::thread::spawn(move || {
        writer.write_all(&sent).unwrap();
        writer.shutdown(Shutdown::Write).unwrap();
    });
    let mut back = Vec::new();
    client.read_to_end(&mut back).unwrap();
    writing.join().unwrap();
    assert!(back == large, "{} bytes came back", back.len());
    backend.wait_for_end(0, End::Eof);
    wait_for_metric(&gate, "fencegate_in_flight_writes", &[], 0.0);
    assert!(gate.metric("fencegate_in_doubt_writes", &[]) < 0.1);
    assert_eq!(gate.stop(), Some(0));
}

/// How many ends of pipes the gate has open.
fn pipes(gate: &Gate) -> usize {
    let open = std::fs::read_dir(format!("/proc/{}/fd", gate.pid())).unwrap();
    let is_pipe = |fd: std::io::Result<std::fs::DirEntry>| {
        std::fs::read_link(fd.unwrap().path()).is_ok_and(|to| to.to_string_lossy().starts_with("pipe:"))
    };
    open.map(is_pipe).filter(|is_pipe| *is_pipe).count()
}

#[test]
fn a_long_stream_goes_through_the_kernels_pipes_and_a_quiet_session_keeps_none() {
    let backend = echoing();
    let gate = tcp(BY_TLV).start(backend.port);
    let mut client = session(&gate, "a", 7, b"hello");
    reads(&mut client, b"hello");
    let before = pipes(&gate);
    // No period of a buffer's or a pipe's size.
    let long: Vec<u8> = (0..24_000_000u32).map(|n| (n % 251) as u8).collect();
    let mut writer = client.try_clone().unwrap();
    let sent = long.clone();
    let writing = std::thread::spawn(move || writer.write_all(&sent).unwrap());
    let (mut back, mut most) = (vec![0; long.len()], 0);
    for piece in back.chunks_mut(1_000_000) {
        client.read_exact(piece).unwrap();
        most = most.max(pipes(&gate));
    }
    writing.join().unwrap();
    assert!(back == long, "what came back is something else");
    assert!(most > before, "it took no pipe");
    let end = Instant::now() + gate::PATIENCE;
    while pipes(&gate) > before {
        assert!(Instant::now() < end, "its pipes are still open");
        std::thread::sleep(Duration::from_millis(20));
    }
    client.write_all(b"again").unwrap();
    reads(&mut client, b"again");
}

#[test]
fn a_stale_session_is_reset_with_no_connection_to_the_backend() {
    let (backend, gate) = start(Manners::default(), "2s");
    let _new = session(&gate, "a", 2, b"x");
    backend.wait_for(0, b"x");
    is_reset(&mut session(&gate, "a", 1, b"y"));
    let mut other = session(&gate, "b", 1, b"z");
    backend.wait_for(1, b"z");
    assert_eq!(backend.came().len(), 2);
    assert!(gate.metric("fencegate_requests_total", &["by-tlv", "\"stale\""]) > 0.9);
    other.write_all(b"z").unwrap();
    backend.wait_for(1, b"zz");
}

#[test]
fn a_header_raises_by_itself_before_any_byte_of_the_session() {
    let (backend, gate) = start(
        Manners {
            greets: b"220 ready\r\n",
            ..Manners::default()
        },
        "2s",
    );
    let mut new = session(&gate, "a", 2, b"");
    reads(&mut new, b"220 ready\r\n");
    is_reset(&mut session(&gate, "a", 1, b""));
    assert_eq!(backend.came().len(), 1);
    assert!(backend.came()[0].bytes.is_empty());
}

#[test]
fn a_paused_holders_late_bytes_never_arrive() {
    let (backend, gate) = start(Manners::default(), "60s");
    let mut old = session(&gate, "a", 1, b"old-1");
    backend.wait_for(0, b"old-1");
    let _new = session(&gate, "a", 2, b"new-1");
    backend.wait_for(1, b"new-1");
    // The backend had closed its side before.
    assert_eq!(backend.came()[0].end, Some(End::Eof));
    is_reset(&mut old);
    old.write_all(b"old-2").unwrap_err();
    is_reset(&mut session(&gate, "a", 1, b"old-3"));
    assert_eq!(backend.came()[0].bytes, b"old-1");
    assert_eq!(backend.came().len(), 2);
}

#[test]
fn a_new_holder_waits_until_the_backend_has_closed_the_older_session() {
    let (backend, gate) = start(
        Manners {
            clings: true,
            ..Manners::default()
        },
        "60s",
    );
    let mut old = session(&gate, "a", 1, b"old");
    backend.wait_for(0, b"old");
    let _new = session(&gate, "a", 2, b"new");
    // It is told the end at once, and its client is reset at once.
    backend.wait_for_end(0, End::Eof);
    is_reset(&mut old);
    // Other resources never wait for it.
    let _other = session(&gate, "b", 1, b"other");
    backend.wait_for(1, b"other");
    assert_eq!(backend.came().len(), 2);
    backend.release();
    backend.wait_for(2, b"new");
}

#[test]
fn a_backend_that_never_closes_holds_up_a_new_holder_for_a_bounded_time() {
    let (backend, gate) = start(
        Manners {
            clings: true,
            ..Manners::default()
        },
        "500ms",
    );
    let _old = session(&gate, "a", 1, b"old");
    backend.wait_for(0, b"old");
    let began = Instant::now();
    let _new = session(&gate, "a", 2, b"new");
    backend.wait_for(1, b"new");
    // Silence first, then the doubt.
    assert!(began.elapsed() >= Duration::from_secs(1));
    assert_eq!(backend.came()[0].end, Some(End::Reset));
    gate.wait_for_log("did not close its side within settle_after");
}

#[test]
fn a_session_that_the_backend_resets_is_in_doubt_for_settle_after() {
    let (backend, gate) = start(
        Manners {
            resets: true,
            ..Manners::default()
        },
        "1s",
    );
    let began = Instant::now();
    let mut old = session(&gate, "a", 1, b"old");
    is_reset(&mut old);
    assert!(gate.metric("fencegate_in_doubt_writes", &[]) > 0.9);
    // The same token goes on meanwhile.
    is_reset(&mut session(&gate, "a", 1, b"old"));
    backend.wait_for(1, b"old");
    let _new = session(&gate, "a", 2, b"new");
    backend.wait_for(2, b"new");
    assert!(began.elapsed() >= Duration::from_secs(1));
}

#[test]
fn a_backend_that_closed_its_side_first_leaves_a_doubt() {
    let (backend, gate) = start(
        Manners {
            ends_first: true,
            ..Manners::default()
        },
        "1s",
    );
    let mut old = session(&gate, "a", 1, b"old");
    let mut rest = Vec::new();
    old.read_to_end(&mut rest).unwrap();
    let began = Instant::now();
    old.write_all(b"-more").unwrap();
    backend.wait_for(0, b"old-more");
    drop(old);
    backend.wait_for_end(0, End::Eof);
    let _new = session(&gate, "a", 2, b"new");
    backend.wait_for(1, b"new");
    assert!(began.elapsed() >= Duration::from_secs(1));
}

#[test]
fn bytes_that_the_backend_had_not_taken_are_not_sent_after_a_cut() {
    let (backend, gate) = start(
        Manners {
            waits: true,
            ..Manners::default()
        },
        // The kernel gives a connection up that takes nothing for three quarters of it.
        "8s",
    );
    let mut old = session(&gate, "a", 1, b"");
    old.set_write_timeout(Some(Duration::from_millis(300))).unwrap();
    // Until every buffer on the way is full.
    let piece = [b'o'; 64 * 1024];
    let mut stuck = 0;
    while stuck < 6 {
        stuck = if old.write(&piece).is_ok() { 0 } else { stuck + 1 };
    }
    let new = session(&gate, "a", 2, b"new");
    gate.wait_for_log("had not taken all of what was read");
    backend.release();
    // An end would make the torn stream look whole.
    backend.wait_for_end(0, End::Reset);
    let before = backend.came()[0].bytes.len();
    backend.wait_for(1, b"new");
    assert_eq!(backend.came()[0].bytes.len(), before);
    is_reset(&mut old);
    drop(new);
}

#[test]
fn a_clients_reset_is_an_end_for_the_backend() {
    let (backend, gate) = start(Manners::default(), "60s");
    let client = session(&gate, "a", 1, b"all of it");
    backend.wait_for(0, b"all of it");
    SockRef::from(&client).set_linger(Some(Duration::ZERO)).unwrap();
    drop(client);
    backend.wait_for_end(0, End::Eof);
    wait_for_metric(&gate, "fencegate_in_flight_writes", &[], 0.0);
    assert!(gate.metric("fencegate_in_doubt_writes", &[]) < 0.1);
    let _new = session(&gate, "a", 2, b"new");
    backend.wait_for(1, b"new");
}

#[test]
fn what_is_no_beginning_of_a_session_is_reset_and_goes_nowhere() {
    let backend = echoing();
    let gate = tcp(BY_TLV)
        .listener("limits: { max_header_bytes: 1KiB }")
        .start(backend.port);
    let long = vec![b'r'; 1100];
    let mut too_short = holder("a", 1);
    too_short[15] -= 1;
    let mut reserved = holder("a", 1);
    reserved[13] = 0x41;
    for (what, bytes) in [
        ("another protocol", b"GET / HTTP/1.1\r\nHost: a\r\n\r\n".to_vec()),
        ("no header", b"x".to_vec()),
        (
            "another version",
            [b"\r\n\r\n\0\r\nQUIT\n".as_slice(), &[0x11, 0x11, 0, 0]].concat(),
        ),
        ("a reserved family", reserved),
        ("a TLV that runs past the end", [&too_short[..], b"xxxx"].concat()),
        ("no TLV", header(&[])),
        ("no token", header(&[(0xe0, b"a")])),
        ("no resource", header(&[(0xe1, b"1")])),
        ("two tokens", header(&[(0xe0, b"a"), (0xe1, b"1"), (0xe1, b"1")])),
        (
            "two resources",
            header(&[(0xe0, b"a"), (0xe0, b"a"), (0xe1, b"1")]),
        ),
        ("an empty resource", header(&[(0xe0, b""), (0xe1, b"1")])),
        (
            "a resource that is no text",
            header(&[(0xe0, b"\xff"), (0xe1, b"1")]),
        ),
        ("a token with a sign", header(&[(0xe0, b"a"), (0xe1, b"+1")])),
        ("an empty token", header(&[(0xe0, b"a"), (0xe1, b"")])),
        ("too large a header", header(&[(0xe0, &long), (0xe1, b"1")])),
        (
            "a line of version 1 without a token",
            b"PROXY TCP4 10.0.0.1 10.0.0.2 1 2\r\n".to_vec(),
        ),
        (
            "a malformed line",
            b"PROXY TCP4 10.0.0.1 10.0.0.2 1 2\nxxxxxxxxxxx".to_vec(),
        ),
    ] {
        let mut client = open(&gate, &bytes);
        assert!(gate::ends_by_reset(&mut client), "{what}");
    }
    for cut in [1, 12, 15, 20, holder("a", 1).len() - 1] {
        let mut client = open(&gate, &holder("a", 1)[..cut]);
        client.shutdown(Shutdown::Write).unwrap();
        assert!(gate::ends_by_reset(&mut client), "it ended after {cut} bytes");
    }
    // Whoever only looks whether somebody listens is no matter.
    let mut nobody = open(&gate, b"");
    nobody.shutdown(Shutdown::Write).unwrap();
    assert_eq!(nobody.read(&mut [0]).unwrap(), 0);
    assert_eq!(backend.came().len(), 0);
    reads(
        &mut session(&gate, "a", 0, b"zero is a token, and nothing was raised"),
        b"zero",
    );
}

#[test]
fn a_header_may_come_in_any_pieces() {
    let backend = echoing();
    let gate = tcp(BY_TLV).start(backend.port);
    let whole = [&holder("a", 1)[..], b"payload"].concat();
    for cut in 0..=whole.len() {
        let mut client = open(&gate, &whole[..cut]);
        client.write_all(&whole[cut..]).unwrap();
        reads(&mut client, b"payload");
    }
    let mut client = open(&gate, b"");
    for byte in &whole {
        client.write_all(&[*byte]).unwrap();
    }
    reads(&mut client, b"payload");
}

#[test]
fn a_header_that_does_not_come_in_time_is_reset() {
    for (rules, bytes) in [
        (BY_TLV, &b"\r\n\r\n\0\r\nQU"[..]),
        (BY_TLV, b""),
        (BY_PREFACE, b"FENCE a"),
        (BY_PREFACE, b""),
    ] {
        let backend = echoing();
        let gate = tcp(rules)
            .listener("limits: { header_timeout: 200ms }")
            .start(backend.port);
        is_reset(&mut open(&gate, bytes));
        gate.wait_for_log("did not come within header_timeout");
        assert_eq!(backend.came().len(), 0);
    }
}

#[test]
fn a_first_line_names_resource_and_token_and_is_not_passed_on() {
    let backend = echoing();
    let gate = tcp(BY_PREFACE).start(backend.port);
    let mut old = open(&gate, b"FENCE a 1\nold");
    reads(&mut old, b"old");
    let mut new = open(&gate, b"FENCE a 2\n");
    new.write_all(b"FENCE b 3\n").unwrap();
    reads(&mut new, b"FENCE b 3\n");
    is_reset(&mut old);
    for bad in [
        &b"FENCE a 1\n"[..],
        b"FENCE a\n",
        b"FENCE a x\n",
        b"FENCE a 3\r\n",
        b"hello\n",
        b"fence a 3\n",
    ] {
        is_reset(&mut open(&gate, bad));
    }
    assert_eq!(backend.came().len(), 2);
}

#[test]
fn sessions_without_a_token_fall_under_missing() {
    let with = |missing: &str| {
        let backend = echoing();
        let rules = format!(
            "\n      - {{ name: r, resource: db, token: {{ preface: true }}, missing: {missing} }}\n"
        );
        let gate = tcp(&rules).start(backend.port);
        (backend, gate)
    };
    let (backend, gate) = with("deny");
    is_reset(&mut open(&gate, b"SELECT 1\n"));
    assert_eq!(backend.came().len(), 0);

    let (_backend, gate) = with("pass");
    let mut without = open(&gate, b"SELECT 1\n");
    reads(&mut without, b"SELECT 1\n");
    // It counts as older than every token.
    let mut first = open(&gate, b"FENCE ignored 1\nx");
    reads(&mut first, b"x");
    is_reset(&mut without);
    reads(&mut open(&gate, b"SELECT 2\n"), b"SELECT 2\n");

    let (_backend, gate) = with("pass_until_fenced");
    let mut without = open(&gate, b"SELECT 1\n");
    reads(&mut without, b"SELECT 1\n");
    reads(&mut open(&gate, b"FENCE ignored 1\nx"), b"x");
    is_reset(&mut without);
    is_reset(&mut open(&gate, b"SELECT 2\n"));
}

#[test]
fn a_silent_client_has_no_token_where_one_may_be_missing() {
    let backend = Backend::start(Manners {
        greets: b"220 ready\r\n",
        ..Manners::default()
    });
    let rules = "\n      - { name: r, resource: db, token: { preface: true }, missing: pass }\n";
    let gate = tcp(rules)
        .listener("limits: { header_timeout: 200ms }")
        .start(backend.port);
    let mut silent = open(&gate, b"");
    reads(&mut silent, b"220 ready\r\n");
    silent.write_all(b"FENCE db 1\n").unwrap();
    backend.wait_for(0, b"FENCE db 1\n");
    // Half a line is no silence.
    is_reset(&mut open(&gate, b"FEN"));
    reads(&mut open(&gate, b"FENCE db 2\n"), b"220 ready\r\n");
    is_reset(&mut silent);
}

#[test]
fn one_stale_fence_of_several_refuses_the_session_and_raises_none() {
    let backend = echoing();
    let gate = tcp(r#"
      - name: two
        fences:
          - { resource: controller, token: { proxy_tlv: 0xE2 } }
          - { resource: { proxy_tlv: 0xE0 }, token: { proxy_tlv: 0xE1 } }
"#)
    .start(backend.port);
    let with = |epoch: &'static [u8], token: &'static [u8]| {
        let header = header(&[(0xe2, epoch), (0xe0, b"p"), (0xe1, token)]);
        open(&gate, &[&header[..], b"x"].concat())
    };
    reads(&mut with(b"5", b"5"), b"x");
    is_reset(&mut with(b"6", b"4"));
    let mut old = with(b"5", b"5");
    reads(&mut old, b"x");
    reads(&mut with(b"6", b"5"), b"x");
    is_reset(&mut old);
}

#[test]
fn the_backend_is_told_the_clients_address_and_nothing_of_the_tlvs() {
    let backend = Backend::start(Manners::default());
    let gate = tcp(BY_TLV).upstream("proxy_protocol: v2").start(backend.port);
    let _client = session(&gate, "a", 1, b"hello");
    backend.wait_for(0, &[&header(&[])[..], b"hello"].concat());

    let rules = "\n      - { name: r, resource: db, token: { preface: true } }\n";
    let gate = tcp(rules)
        .upstream("proxy_protocol: v2")
        .listener("accept_proxy: true")
        .start(backend.port);
    let line = b"PROXY TCP4 192.0.2.7 198.51.100.1 4711 80\r\nFENCE - 1\nhello";
    let _client = open(&gate, line);
    backend.wait_for(1, &[&header(&[])[..], b"hello"].concat());
    // Whoever says nothing is at the socket's own address.
    let client = open(&gate, b"PROXY UNKNOWN\r\nFENCE - 1\nhello");
    let (own, port) = (client.local_addr().unwrap(), gate.port);
    let mut told = b"\r\n\r\n\0\r\nQUIT\n\x21\x11\x00\x0c\x7f\0\0\x01\x7f\0\0\x01".to_vec();
    told.extend_from_slice(&own.port().to_be_bytes());
    told.extend_from_slice(&port.to_be_bytes());
    backend.wait_for(2, &[&told[..], b"hello"].concat());
}

#[test]
fn after_a_crash_a_raise_waits_for_what_may_still_take_effect() {
    let backend = Backend::start(Manners::default());
    let mut gate = tcp(BY_TLV).settle_after("1s").start(backend.port);
    let mut old = session(&gate, "a", 1, b"old");
    backend.wait_for(0, b"old");
    gate.kill();
    // The kernel resets what the process had: no end in order on either side.
    backend.wait_for_end(0, End::Reset);
    is_reset(&mut old);
    gate.start();
    let _same = session(&gate, "a", 1, b"same");
    backend.wait_for(1, b"same");
    let _new = session(&gate, "a", 2, b"new");
    backend.wait_for(2, b"new");
    assert!(gate.log().contains("did not stop cleanly"));
    is_reset(&mut session(&gate, "a", 1, b"late"));
}

/// Waits until so many sessions of the resource `a` are in flight, in doubt and waiting.
#[track_caller]
fn wait_for_fence(gate: &Gate, wanted: [u64; 3]) {
    let shown = || {
        let json = gate::Conn::open(gate.admin)
            .send("GET /api/v1/fences?resource=a HTTP/1.1\r\nHost: localhost\r\n\r\n")
            .reply()
            .json();
        let fence = &json["fences"][0];
        ["in_flight", "in_doubt", "waiting"].map(|key| fence[key].as_u64())
    };
    let wanted = wanted.map(Some);
    let end = Instant::now() + gate::PATIENCE;
    while shown() != wanted {
        assert!(Instant::now() < end, "{:?} is never {wanted:?}", shown());
    }
}

#[test]
fn the_admin_address_shows_a_session_as_one_write_in_flight() {
    let (backend, gate) = start(
        Manners {
            clings: true,
            ..Manners::default()
        },
        "60s",
    );
    let _old = session(&gate, "a", 1, b"old");
    backend.wait_for(0, b"old");
    wait_for_fence(&gate, [1, 0, 0]);
    let _new = session(&gate, "a", 2, b"new");
    wait_for_fence(&gate, [1, 0, 1]);
    backend.release();
    backend.wait_for(1, b"new");
    wait_for_fence(&gate, [1, 0, 0]);
}

#[test]
fn a_stop_ends_quiet_sessions_in_order() {
    let backend = Backend::start(Manners::default());
    let mut gate = tcp(BY_TLV).settle_after("60s").start(backend.port);
    let mut client = session(&gate, "a", 1, b"hello");
    backend.wait_for(0, b"hello");
    let waits = open(&gate, b"\r\n\r\n");
    assert_eq!(gate.stop(), Some(0));
    assert_eq!(backend.came()[0].end, Some(End::Eof));
    assert_eq!(client.read(&mut [0]).unwrap(), 0);
    drop(waits);
}

#[test]
fn a_stop_that_leaves_a_session_behind_is_unclean() {
    let backend = Backend::start(Manners {
        clings: true,
        ..Manners::default()
    });
    let mut gate = tcp(BY_TLV)
        .settle_after("60s")
        .top("shutdown_timeout: 1s")
        .start(backend.port);
    let mut client = session(&gate, "a", 1, b"hello");
    backend.wait_for(0, b"hello");
    assert_eq!(gate.stop(), Some(1));
    backend.wait_for_end(0, End::Reset);
    is_reset(&mut client);
}

#[test]
fn a_stop_with_time_enough_is_clean_whatever_the_backend_clings_to() {
    let backend = Backend::start(Manners {
        clings: true,
        ..Manners::default()
    });
    let mut gate = tcp(BY_TLV)
        .settle_after("500ms")
        .top("shutdown_timeout: 60s")
        .start(backend.port);
    let mut client = session(&gate, "a", 1, b"hello");
    backend.wait_for(0, b"hello");
    assert_eq!(gate.stop(), Some(0));
    backend.wait_for_end(0, End::Reset);
    is_reset(&mut client);
}

#[test]
fn whoever_waits_for_too_long_is_reset_and_the_raise_goes_on() {
    let backend = Backend::start(Manners {
        clings: true,
        ..Manners::default()
    });
    let rules = BY_TLV.to_owned() + "        drain_timeout: 200ms\n";
    let gate = tcp(&rules).settle_after("60s").start(backend.port);
    let _old = stays(&gate, 1, b"old");
    backend.wait_for(0, b"old");
    is_reset(&mut session(&gate, "a", 2, b"new"));
    is_reset(&mut session(&gate, "a", 1, b"old"));
    assert!(gate.metric("fencegate_requests_total", &["\"unavailable\""]) > 0.9);
    backend.release();
    let _new = stays(&gate, 2, b"new");
    backend.wait(|came| came.last().is_some_and(|last| last.bytes == b"new"));
}

/// A session that is let through, tried until it is: a disk under load may take longer than `drain_timeout` too. Its
/// backend says nothing.
fn stays(gate: &Gate, token: u64, bytes: &[u8]) -> TcpStream {
    let end = Instant::now() + gate::PATIENCE;
    loop {
        let mut client = session(gate, "a", token, bytes);
        client.set_read_timeout(Some(Duration::from_secs(1))).unwrap();
        match client.read(&mut [0]) {
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => return client,
            refused => assert!(Instant::now() < end, "{refused:?}"),
        }
    }
}

/// A backend that clings to its sessions, and a gate with room for one that waits.
fn one_may_wait() -> (Backend, Gate) {
    let backend = Backend::start(Manners {
        clings: true,
        ..Manners::default()
    });
    let gate = tcp(BY_TLV)
        .settle_after("60s")
        .listener("limits: { max_waiting: 1 }")
        .start(backend.port);
    (backend, gate)
}

#[test]
fn no_more_than_max_waiting_sessions_wait() {
    let (backend, gate) = one_may_wait();
    let _old = session(&gate, "a", 1, b"old");
    backend.wait_for(0, b"old");
    let _waits = session(&gate, "a", 2, b"new");
    backend.wait_for_end(0, End::Eof);
    is_reset(&mut session(&gate, "a", 2, b"another"));
    gate.wait_for_log("overloaded");
    backend.release();
    backend.wait_for(1, b"new");
}

#[test]
fn a_client_that_resets_while_it_waits_gives_its_place_away_at_once() {
    let (backend, gate) = one_may_wait();
    let _old = session(&gate, "a", 1, b"old");
    backend.wait_for(0, b"old");
    let gone = session(&gate, "a", 2, b"gone");
    backend.wait_for_end(0, End::Eof);
    SockRef::from(&gone).set_linger(Some(Duration::ZERO)).unwrap();
    drop(gone);
    gate.wait_for_log("left while its session waited");
    let _new = session(&gate, "a", 2, b"new");
    wait_for_fence(&gate, [1, 0, 1]);
    backend.release();
    backend.wait_for(1, b"new");
    assert_eq!(backend.came().len(), 2);
    assert!(!gate.log().contains("overloaded"), "{}", gate.log());
}

/// It may have no more to say, and still wait for an answer.
#[test]
fn a_client_that_ends_its_side_while_it_waits_has_its_session() {
    let backend = Backend::start(Manners {
        clings: true,
        ..Manners::default()
    });
    let gate = tcp(BY_TLV).settle_after("60s").start(backend.port);
    let _old = session(&gate, "a", 1, b"old");
    backend.wait_for(0, b"old");
    let new = session(&gate, "a", 2, b"all of it");
    new.shutdown(Shutdown::Write).unwrap();
    backend.wait_for_end(0, End::Eof);
    backend.release();
    backend.wait_for(1, b"all of it");
    backend.wait_for_end(1, End::Eof);
}

#[test]
fn the_log_names_the_client_of_the_header_and_who_connects_for_it() {
    let backend = echoing();
    let gate = tcp(BY_TLV).start(backend.port);
    reads(&mut session(&gate, "a", 2, b"new"), b"new");
    is_reset(&mut session(&gate, "a", 1, b"old"));
    gate.wait_for_log("client=192.0.2.7 peer=127.0.0.1 reason=\"stale-token\"");
    // Who sends no header is the client itself, and who speaks for itself too.
    let gate = tcp(BY_PREFACE).start(backend.port);
    reads(&mut open(&gate, b"FENCE b 2\nnew"), b"new");
    is_reset(&mut open(&gate, b"FENCE b 1\nold"));
    gate.wait_for_log("client=127.0.0.1 reason=\"stale-token\"");
}

#[test]
fn a_rule_that_only_observes_lets_everything_through_and_counts() {
    let backend = echoing();
    let gate = tcp(&(BY_TLV.to_owned() + "        mode: observe\n")).start(backend.port);
    let mut new = session(&gate, "a", 2, b"new");
    reads(&mut new, b"new");
    let mut old = session(&gate, "a", 1, b"old");
    reads(&mut old, b"old");
    reads(&mut open(&gate, &[&header(&[])[..], b"none"].concat()), b"none");
    new.write_all(b"more").unwrap();
    reads(&mut new, b"more");
    for decision in ["raised", "stale", "missing"] {
        assert!(
            gate.metric(
                "fencegate_requests_total",
                &["observe", &format!("\"{decision}\"")]
            ) > 0.9
        );
    }
}

#[test]
fn tokens_are_taken_from_allowed_networks_alone_by_the_sockets_address() {
    let backend = echoing();
    let rules = BY_TLV.to_owned() + "        allow: { cidr: [192.0.2.0/24] }\n";
    let gate = tcp(&rules).start(backend.port);
    // The header says 192.0.2.7; that proves nothing.
    is_reset(&mut session(&gate, "a", 1, b"x"));
    gate.wait_for_log("not-allowed");
    assert_eq!(backend.came().len(), 0);
    let rules = BY_TLV.to_owned() + "        allow: { cidr: [127.0.0.0/8] }\n";
    let gate = tcp(&rules).start(backend.port);
    reads(&mut session(&gate, "a", 1, b"x"), b"x");
}

#[test]
fn an_idle_session_stays_unless_it_is_told_otherwise() {
    let backend = echoing();
    let gate = tcp(BY_TLV)
        .listener("limits: { idle_timeout: 300ms }")
        .start(backend.port);
    let mut client = session(&gate, "a", 1, b"x");
    reads(&mut client, b"x");
    is_reset(&mut client);
    backend.wait_for_end(0, End::Eof);
    let gate = tcp(BY_TLV).start(backend.port);
    let mut client = session(&gate, "a", 1, b"x");
    reads(&mut client, b"x");
    // Longer than a session needs to give its room away.
    sleep_until(Instant::now() + Duration::from_millis(1500));
    client.write_all(b"y").unwrap();
    reads(&mut client, b"y");
}

#[test]
fn a_backend_that_can_not_be_reached_is_a_reset_and_leaves_nothing() {
    let port = {
        let listener = std::net::TcpListener::bind(("127.0.0.1", 0)).unwrap();
        listener.local_addr().unwrap().port()
    };
    let mut gate = tcp(BY_TLV).start(port);
    is_reset(&mut session(&gate, "a", 1, b"x"));
    gate.wait_for_log("the backend can't be connected");
    assert_eq!(gate.stop(), Some(0));
}

#[test]
fn a_session_that_has_sent_nothing_is_cut_without_a_doubt() {
    let (backend, gate) = start(Manners::default(), "60s");
    let mut old = session(&gate, "a", 1, b"");
    backend.wait(|came| came.len() == 1);
    let _new = session(&gate, "a", 2, b"new");
    backend.wait_for(1, b"new");
    is_reset(&mut old);
    backend.wait_for_end(0, End::Reset);
    assert!(gate.metric("fencegate_in_doubt_writes", &[]) < 0.1);
}
