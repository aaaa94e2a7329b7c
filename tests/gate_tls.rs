//! TLS in front of the gate and behind it, Unix sockets, and files that change: through the real binary, with real
//! clients (curl, openssl) where a person would use them.

mod gate;

use std::io::{Read, Write};
use std::net::{Ipv4Addr, Ipv6Addr, Shutdown, TcpStream};
use std::process::{Command, Output};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use gate::{
    Conn, Gate, PATIENCE, Pki, Place, RULE, RawBackend, Reply, Setup, Stub, ask, head, read_head, read_rest,
};
use rustls::{ClientConfig, ServerConnection, StreamOwned};

/// TLS on both sides, with one authority.
fn both_sides(pki: &Pki) -> (Stub, Gate) {
    let stub = Stub::start_on(Place::Tls(
        Ipv4Addr::LOCALHOST.into(),
        pki.server("server", false),
    ));
    let gate = Setup::default()
        .url("https://localhost:{port}")
        .upstream(&pki.upstream())
        .listener(&pki.listener("server"))
        .start(stub.port);
    (stub, gate)
}

/// TLS in front, a plain store behind.
fn in_front(line: &str) -> (Stub, Gate) {
    let stub = Stub::start();
    let gate = Setup::default().listener(line).start(stub.port);
    (stub, gate)
}

fn send(gate: &Gate, client: &Arc<ClientConfig>, ask: &gate::Ask) -> Reply {
    let mut conn = Conn::open_tls(gate.port, client);
    conn.send(ask.bytes());
    conn.try_reply(ask.method == "HEAD").unwrap()
}

fn curl(gate: &Gate, pki: &Pki, arguments: &[&str]) -> Output {
    Command::new("curl")
        .args([
            "-sS",
            "--noproxy",
            "*",
            "--max-time",
            "20",
            "--cacert",
            &pki.show("ca.pem"),
        ])
        .args(["-o", "/dev/null", "-w", "%{http_code} %{http_version}"])
        .args(arguments)
        .arg(format!("https://localhost:{}/docs/report", gate.port))
        .output()
        .expect("curl is installed by .ci/setup")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Waits until a higher token than this one has been seen.
fn wait_until_stale(gate: &Gate, client: &Arc<ClientConfig>, target: &str, token: u64) {
    let end = Instant::now() + PATIENCE;
    while send(gate, client, &ask("GET", target).token(token)).status != 412 {
        assert!(Instant::now() < end, "nobody has raised {target} above {token}");
    }
}

/// Waits until it is so, looking again and again.
#[track_caller]
fn wait_until(what: impl Fn() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !what() {
        assert!(Instant::now() < end, "it never happened");
        std::thread::sleep(Duration::from_millis(50));
    }
}

// ---- towards clients

#[test]
fn curl_speaks_both_versions_by_tls_and_a_stale_token_is_refused() {
    let pki = Pki::new();
    let (stub, gate) = in_front(&pki.listener("server"));
    let put = |token: &str, more: &[&str]| {
        let field = format!("Fencing-Token: {token}");
        let arguments = [&["-X", "PUT", "-d", "x", "-H", &field], more].concat();
        let output = curl(&gate, &pki, &arguments);
        assert!(output.status.success(), "{}", text(&output.stderr));
        text(&output.stdout)
    };
    assert_eq!(put("34", &[]), "200 2");
    assert_eq!(put("33", &["--tlsv1.2", "--tls-max", "1.2"]), "412 2");
    assert_eq!(put("34", &["--tlsv1.3", "--http1.1"]), "200 1.1");
    assert_eq!(stub.tokens(), [34, 34]);
    let arrived = stub.look(|state| state.arrived[0].clone());
    assert_eq!(arrived.field("x-forwarded-proto"), Some("https"));
    assert_eq!(arrived.field("x-forwarded-for"), Some("127.0.0.1"));
}

#[test]
fn openssl_agrees_on_a_protocol_and_verifies_the_chain() {
    let pki = Pki::new();
    let (_stub, gate) = in_front(&pki.listener("server"));
    let output = Command::new("openssl")
        .args(["s_client", "-connect", &format!("127.0.0.1:{}", gate.port)])
        .args([
            "-CAfile",
            &pki.show("ca.pem"),
            "-verify_return_error",
            "-verify_ip",
            "127.0.0.1",
        ])
        .args(["-alpn", "http/1.1,h2"])
        .stdin(std::process::Stdio::null())
        .output()
        .expect("openssl is installed by .ci/setup");
    let said = text(&output.stdout);
    assert!(said.contains("ALPN protocol: h2"), "{said}");
    assert!(said.contains("Verify return code: 0 (ok)"), "{said}");
}

#[test]
fn only_a_certificate_of_the_right_name_may_present_a_token() {
    let pki = Pki::new();
    pki.issue("orders-1", &["orders-1.test"]);
    pki.issue("stock-1", &["stock-1.test"]);
    let stub = Stub::start();
    let gate = Setup::rules(&format!(
        "{RULE}        allow: {{ client_cert: \"CN=orders-*\" }}\n"
    ))
    .listener(&pki.listener_asking_clients("server"))
    .start(stub.port);
    let put = |name: &str, token: u64| {
        let put = ask("PUT", "/b/k").token(token).body("x");
        send(&gate, &pki.client(Some(name)), &put)
    };
    put("orders-1", 1).is_ok();
    put("stock-1", 9).is(403, "not-allowed");
    put("orders-1", 1).is_ok();
    assert_eq!(stub.tokens(), [1, 1]);
}

#[test]
fn with_client_ca_file_only_clients_with_a_certificate_of_it_get_through() {
    let (pki, other) = (Pki::new(), Pki::new());
    pki.issue("orders-1", &["orders-1.test"]);
    other.issue("orders-1", &["orders-1.test"]);
    let (stub, gate) = in_front(&pki.listener_asking_clients("server"));
    let good = send(
        &gate,
        &pki.client(Some("orders-1")),
        &ask("PUT", "/b/k").token(1).body("x"),
    );
    good.is_ok();
    let client_of = |pair: Option<&Pki>| {
        let pair = pair.map(|pki| pki.show("orders-1"));
        let mut arguments = vec!["-X".to_owned(), "PUT".to_owned(), "-d".to_owned(), "x".to_owned()];
        if let Some(pair) = pair {
            arguments.extend([
                "--cert".into(),
                format!("{pair}.pem"),
                "--key".into(),
                format!("{pair}.key"),
            ]);
        }
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        curl(&gate, &pki, &arguments)
    };
    assert!(client_of(Some(&pki)).status.success());
    for wrong in [None, Some(&other)] {
        let output = client_of(wrong);
        assert!(!output.status.success(), "{}", text(&output.stdout));
    }
    assert_eq!(stub.tokens(), [1]);
    assert_eq!(
        stub.look(|state| state.arrived.len()),
        1,
        "the refused ones never reach the store, tokenless or not"
    );
    wait_until(|| gate.metric("fencegate_tls_handshake_failures_total", &["store"]) >= 2.0);
}

#[test]
fn plain_http_and_noise_on_a_tls_port_end_with_an_alert_and_nothing_else_suffers() {
    let pki = Pki::new();
    let (stub, gate) = in_front(&pki.listener("server"));
    let noise: Vec<u8> = (0..4096u32)
        .map(|at| (at.wrapping_mul(2_654_435_761) >> 13) as u8)
        .collect();
    let (http, half) = (ask("PUT", "/b/k").token(9).body("x").bytes(), [0x16, 3, 1, 0xff]);
    for garbage in [&http[..], &noise, &half] {
        let mut conn = Conn::open(gate.port);
        conn.send(garbage);
        conn.stream.shutdown(Shutdown::Write).unwrap();
        if let Ok(said) = conn.read_to_end() {
            assert!(said.is_empty() || said[0] == 0x15, "no alert: {said:?}");
        }
    }
    let mut conn = Conn::open(gate.port);
    conn.send(&http);
    assert_eq!(conn.read_to_end().unwrap()[0], 0x15);
    assert!(stub.tokens().is_empty());
    send(&gate, &pki.client(None), &ask("PUT", "/b/k").token(1).body("x")).is_ok();
    assert!(!gate.log().contains("panic"), "{}", gate.log());
}

#[test]
fn a_handshake_that_never_ends_is_closed_after_header_timeout() {
    let pki = Pki::new();
    let stub = Stub::start();
    let gate = Setup::default()
        .listener(&pki.listener("server"))
        .listener("limits: { header_timeout: 300ms, idle_timeout: 60s }")
        .start(stub.port);
    let mut silent = Conn::open(gate.port);
    let mut half = Conn::open(gate.port);
    half.send([0x16, 3, 1, 2, 0, 1, 0]);
    silent.is_closed();
    half.is_closed();
}

#[test]
fn a_stop_ends_idle_tls_connections_in_order_and_half_open_ones_at_once() {
    let pki = Pki::new();
    let (_stub, mut gate) = in_front(&pki.listener("server"));
    let mut idle = Conn::open_tls(gate.port, &pki.client(None));
    idle.send(ask("GET", "/b/k").bytes()).reply().is_ok();
    let half_open = Conn::open(gate.port);
    assert_eq!(gate.stop(), Some(0));
    // A connection that breaks off would be an error here.
    assert_eq!(idle.read_to_end().unwrap(), b"");
    drop(half_open);
}

// ---- towards the backend

#[test]
fn a_backend_by_tls_is_verified_by_its_authority_its_name_and_its_date() {
    let (pki, other) = (Pki::new(), Pki::new());
    pki.issue("elsewhere", &["elsewhere.test"]);
    pki.issue_with("expired", &["localhost"], |params| {
        params.not_before = rcgen::date_time_ymd(2019, 1, 1);
        params.not_after = rcgen::date_time_ymd(2020, 1, 1);
    });
    let try_it = |shown: &str, upstream: String| {
        let stub = Stub::start_on(Place::Tls(Ipv4Addr::LOCALHOST.into(), pki.server(shown, false)));
        let gate = Setup::default()
            .url("https://localhost:{port}")
            .upstream(&upstream)
            .start(stub.port);
        let reply = gate.send(ask("PUT", "/b/k").token(1).body("x"));
        (reply, stub.tokens())
    };
    let (reply, tokens) = try_it("server", pki.upstream());
    reply.is_ok();
    assert_eq!(tokens, [1]);
    let named = format!(
        "tls: {{ ca_file: {}, server_name: elsewhere.test }}",
        pki.show("ca.pem")
    );
    try_it("elsewhere", named).0.is_ok();
    for (shown, upstream, says) in [
        ("server", other.upstream(), "invalid peer certificate: "),
        ("elsewhere", pki.upstream(), "not valid for name"),
        ("expired", pki.upstream(), "expired"),
    ] {
        let (reply, tokens) = try_it(shown, upstream);
        reply.is(502, "upstream-unreachable");
        let body = text(&reply.body);
        assert!(
            body.contains(says) && body.contains(r#""applied":"no""#),
            "{shown}: {body}"
        );
        assert!(tokens.is_empty());
    }
}

#[test]
fn an_ipv6_literal_is_dialled_without_brackets_and_verified_as_an_address() {
    let pki = Pki::new();
    let stub = Stub::start_on(Place::Tls(
        Ipv6Addr::LOCALHOST.into(),
        pki.server("server", false),
    ));
    let gate = Setup::default()
        .url("https://[::1]:{port}")
        .upstream(&pki.upstream())
        .start(stub.port);
    let mut conn = Conn::open(gate.port);
    conn.send("PUT /b/k HTTP/1.1\r\nHost: [::1]:8080\r\nFencing-Token: 1\r\nContent-Length: 1\r\n\r\nx");
    conn.reply().is_ok();
    let arrived = stub.look(|state| state.arrived[0].clone());
    assert_eq!(arrived.field("host"), Some("[::1]:8080"));
    let mut admin = Conn::open(gate.admin);
    let shown = admin
        .send("GET /api/v1/config HTTP/1.1\r\nHost: localhost\r\n\r\n")
        .reply()
        .json();
    let upstream = &shown["listeners"][0]["upstream"];
    assert_eq!(upstream["url"], format!("https://[::1]:{}", stub.port));
    assert_eq!(upstream["tls"]["server_name"], "::1");
}

#[test]
fn a_backend_that_wants_a_certificate_is_shown_the_configured_one() {
    let pki = Pki::new();
    pki.issue("gate", &["gate.test"]);
    let with = |upstream: String| {
        let stub = Stub::start_on(Place::Tls(Ipv4Addr::LOCALHOST.into(), pki.server("server", true)));
        let gate = Setup::default()
            .settle_after("1s")
            .url("https://127.0.0.1:{port}")
            .upstream(&upstream)
            .start(stub.port);
        let reply = gate.send(ask("PUT", "/b/k").token(1).body("x"));
        (reply.status, stub.tokens())
    };
    let (ca, pair) = (pki.show("ca.pem"), pki.show("gate"));
    let shown = format!("tls: {{ ca_file: {ca}, cert_file: {pair}.pem, key_file: {pair}.key }}");
    assert_eq!(with(shown), (200, vec![1]));
    assert_eq!(with(pki.upstream()), (502, vec![]));
}

#[test]
fn a_store_behind_a_unix_socket_is_fenced_like_any_other() {
    for scheme in ["unix:", "unix://"] {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("store.sock");
        let stub = Stub::start_on(Place::Unix(path.clone()));
        let gate = Setup::default()
            .url(&format!("{scheme}{}", path.display()))
            .start(0);
        let first = ask("PUT", "/b/k")
            .token(1)
            .field("x-stub-hold", "go")
            .body("x")
            .spawn(gate.port);
        stub.wait_for_head(1);
        let second = ask("PUT", "/b/k").token(2).body("y").spawn(gate.port);
        gate.wait_until_stale("/b/k", 1);
        assert!(stub.tokens().is_empty());
        stub.release("go");
        first.join().unwrap().unwrap().is_ok();
        second.join().unwrap().unwrap().is_ok();
        assert_eq!(stub.tokens(), [1, 2]);
        gate.send(ask("PUT", "/b/k").token(1).body("z"))
            .is(412, "stale-token");
        assert_eq!(stub.content("/b/k").unwrap(), "y");
        let before = stub.look(|state| state.connections);
        let mut client = Conn::open(gate.port);
        for _ in 0..4 {
            client
                .send(ask("PUT", "/b/k").token(2).body("y").bytes())
                .reply()
                .is_ok();
        }
        // One client stays on one core, which connects once at most.
        assert!(stub.look(|state| state.connections) <= before + 1);
    }
}

#[test]
fn a_unix_socket_that_nobody_listens_on_is_unreachable() {
    let gate = Setup::default().url("unix:/nonexistent/store.sock").start(0);
    gate.send(ask("PUT", "/b/k").token(1).body("x"))
        .is(502, "upstream-unreachable");
}

// ---- the fence, with TLS on both sides

#[test]
fn an_upload_by_tls_is_cut_before_its_end_and_its_client_told_at_once() {
    let pki = Pki::new();
    let (stub, gate) = both_sides(&pki);
    let client = pki.client(None);
    let mut slow = Conn::open_tls(gate.port, &client);
    slow.send(head("PUT", "/b/k", Some(33), Some(300_000), &[]));
    slow.send(vec![b'a'; 200_000]);
    stub.wait_for_head(33);
    send(&gate, &client, &ask("PUT", "/b/k").token(34).body("new")).is_ok();
    slow.reply().is(412, "stale-token");
    stub.wait(|state| !state.incomplete.is_empty());
    assert_eq!(stub.tokens(), [34]);
    assert_eq!(stub.content("/b/k").unwrap(), "new");
}

#[test]
fn a_raise_by_tls_waits_for_the_write_that_the_store_is_at() {
    let pki = Pki::new();
    let (stub, gate) = both_sides(&pki);
    let client = pki.client(None);
    std::thread::scope(|scope| {
        let put = |token: u64, hold: bool| {
            let mut request = ask("PUT", "/b/k").token(token).body(format!("by {token}"));
            if hold {
                request = request.field("x-stub-hold", "go");
            }
            let (gate, client) = (&gate, &client);
            scope.spawn(move || send(gate, client, &request))
        };
        let first = put(33, true);
        stub.wait_for_head(33);
        let second = put(34, false);
        wait_until_stale(&gate, &client, "/b/k", 33);
        assert!(stub.tokens().is_empty());
        stub.release("go");
        first.join().unwrap().is_ok();
        second.join().unwrap().is_ok();
    });
    assert_eq!(stub.tokens(), [33, 34]);
    send(&gate, &client, &ask("PUT", "/b/k").token(33).body("late")).is(412, "stale-token");
}

#[test]
fn bodies_of_many_sizes_come_through_two_layers_of_tls_unchanged() {
    let pki = Pki::new();
    let (stub, gate) = both_sides(&pki);
    let mut conn = Conn::open_tls(gate.port, &pki.client(None));
    let borders = [200, 4096, 16_384, 32_768, 65_536, 131_072];
    let sizes = borders
        .iter()
        .flat_map(|at| [at - 1, *at, at + 1])
        .chain([1_000_003, 10 << 20]);
    for (round, size) in sizes.enumerate() {
        let body: Vec<u8> = (0..size)
            .map(|at| (at * 7 + round * 13 + at / 251) as u8)
            .collect();
        let put = ask("PUT", "/b/k").token(1).body(body.clone());
        let put = if round % 2 == 1 { put.chunked(10_000) } else { put };
        conn.send(put.bytes()).reply().is_ok();
        let back = conn.send(ask("GET", "/b/k").bytes()).reply();
        assert!(back.body == body, "{size} bytes came back as {}", back.body.len());
    }
    let connections = stub.look(|state| state.connections);
    assert!(connections < 20, "connections are used again: {connections}");
}

/// A backend that reads a head and then nothing more until it is told to: then it says whether the whole request
/// came.
fn stalling(pki: &Pki, tell: &std::sync::mpsc::Sender<bool>, go: &Arc<std::sync::Barrier>) -> RawBackend {
    let (config, tell, go) = (pki.server("server", false), tell.clone(), Arc::clone(go));
    let any_yet = AtomicBool::new(false);
    RawBackend::start(move |_, reader, stream| {
        drop(reader);
        let tls = ServerConnection::new(Arc::clone(&config)).unwrap();
        let mut reader = std::io::BufReader::new(StreamOwned::new(tls, stream));
        let Ok(Some(request)) = read_head(&mut reader) else {
            // The gate has only looked whether it is there.
            return;
        };
        if !any_yet.swap(true, Ordering::SeqCst) {
            go.wait();
            go.wait();
            let whole = read_rest(&mut reader, &request).is_ok();
            tell.send(whole).unwrap();
            if !whole {
                return;
            }
        } else {
            read_rest(&mut reader, &request).unwrap();
        }
        let _ = reader
            .get_mut()
            .write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")
            .and_then(|()| reader.get_mut().flush());
    })
}

#[test]
fn a_write_that_is_told_to_be_cut_never_arrives_whole_whatever_part_of_its_last_record_was_taken() {
    let pki = Pki::new();
    let client = pki.client(None);
    let sizes = [
        200,
        16_384,
        70_000,
        150_000,
        300_000,
        700_000,
        1_500_000,
        2_700_001,
        3_500_003,
        10 << 20,
    ];
    let (mut cut, mut committed) = (0, 0);
    for size in sizes {
        let go = Arc::new(std::sync::Barrier::new(2));
        let (tell, told) = std::sync::mpsc::channel();
        let backend = stalling(&pki, &tell, &go);
        let gate = Setup::default()
            .settle_after("60s")
            .url("https://localhost:{port}")
            .upstream(&pki.upstream())
            .listener(&pki.listener("server"))
            .start(backend.port);
        std::thread::scope(|scope| {
            let old = scope.spawn(|| {
                let mut conn = Conn::open_tls(gate.port, &client);
                let _ = conn.try_send(ask("PUT", "/b/k").token(1).body(vec![b'a'; size]).bytes());
                conn.try_reply(false).unwrap()
            });
            // The backend has the head, and reads nothing more.
            go.wait();
            let new = scope.spawn(|| send(&gate, &client, &ask("PUT", "/b/k").token(2).body("y")));
            wait_until_stale(&gate, &client, "/b/k", 1);
            go.wait();
            let whole = told.recv_timeout(PATIENCE).unwrap();
            let old = old.join().unwrap();
            new.join().unwrap().is_ok();
            match old.status {
                412 => {
                    cut += 1;
                    assert!(!whole, "{size}: told to be cut, and it arrived whole");
                }
                200 => {
                    committed += 1;
                    assert!(whole, "{size}");
                }
                _ => panic!("{size}: {old:?}"),
            }
        });
    }
    assert!(cut > 0 && committed > 0, "{cut} cut, {committed} committed");
}

// ---- files that change

/// The number of the certificate that the gate shows.
fn shown(gate: &Gate, client: &Arc<ClientConfig>) -> Vec<u8> {
    let conn = Conn::open_tls(gate.port, client);
    conn.tls.unwrap().peer_certificates().unwrap()[0].to_vec()
}

#[test]
fn a_new_certificate_is_shown_to_new_connections_and_old_ones_go_on() {
    let pki = Pki::new();
    let (_stub, gate) = in_front(&pki.listener("server"));
    let client = pki.client(None);
    let mut old = Conn::open_tls(gate.port, &client);
    old.send(ask("PUT", "/b/k").token(1).body("x").bytes())
        .reply()
        .is_ok();
    let before = shown(&gate, &client);
    let expiry = gate.metric(
        "fencegate_tls_certificate_expiry_timestamp_seconds",
        &["store", "clients"],
    );
    assert!(expiry > 1e9);
    // One after the other, as a person would copy them.
    pki.issue_with("next", &["localhost"], |params| {
        params.not_after = rcgen::date_time_ymd(2044, 4, 4);
    });
    std::fs::copy(pki.path("next.key"), pki.path("server.key")).unwrap();
    std::fs::copy(pki.path("next.pem"), pki.path("server.pem")).unwrap();
    wait_until(|| shown(&gate, &client) != before);
    old.send(ask("PUT", "/b/k").token(1).body("x").bytes())
        .reply()
        .is_ok();
    assert_ne!(
        gate.metric("fencegate_tls_certificate_expiry_timestamp_seconds", &["store"]),
        expiry
    );
    assert_eq!(
        gate.metric("fencegate_tls_last_reload_successful", &["store"]),
        1.0
    );
}

#[test]
fn a_pair_that_does_not_fit_keeps_the_old_one_and_shows_in_the_metrics() {
    let pki = Pki::new();
    let (_stub, gate) = in_front(&pki.listener("server"));
    let client = pki.client(None);
    let before = shown(&gate, &client);
    let failures = || gate.metric("fencegate_tls_reload_failures_total", &["store", "clients"]);
    assert_eq!(failures(), 0.0);
    pki.issue("other", &["localhost"]);
    let key = std::fs::read(pki.path("server.key")).unwrap();
    std::fs::copy(pki.path("other.key"), pki.path("server.key")).unwrap();
    wait_until(|| failures() == 1.0);
    assert_eq!(
        gate.metric("fencegate_tls_last_reload_successful", &["store"]),
        0.0
    );
    assert_eq!(shown(&gate, &client), before);
    gate.wait_for_log("not that of the certificate");
    std::fs::write(pki.path("server.key"), key).unwrap();
    wait_until(|| gate.metric("fencegate_tls_last_reload_successful", &["store"]) == 1.0);
    assert_eq!((failures(), shown(&gate, &client)), (1.0, before));
}

#[test]
fn authorities_that_change_hold_for_new_connections_on_both_sides() {
    let (pki, next) = (Pki::new(), Pki::new());
    pki.issue("one", &[]);
    next.issue("two", &[]);
    let stub = Stub::start_on(Place::Tls(
        Ipv4Addr::LOCALHOST.into(),
        next.server("server", false),
    ));
    std::fs::copy(pki.path("ca.pem"), pki.path("authorities.pem")).unwrap();
    let (name, ca) = (pki.show("server"), pki.show("authorities.pem"));
    let gate = Setup::default()
        .url("https://localhost:{port}")
        .upstream(&format!("tls: {{ ca_file: {ca} }}"))
        .listener(&format!(
            "tls: {{ cert_file: {name}.pem, key_file: {name}.key, client_ca_file: {ca} }}"
        ))
        .start(stub.port);
    let put = |config: &Arc<ClientConfig>| {
        let mut conn = Conn::try_open_tls(gate.port, config)?;
        conn.try_send(ask("PUT", "/b/k").token(1).body("x").bytes())?;
        conn.try_reply(false)
    };
    put(&pki.client(Some("one")))
        .unwrap()
        .is(502, "upstream-unreachable");
    // Both sides trust another authority now. The gate still shows a certificate of the first.
    std::fs::copy(next.path("ca.pem"), pki.path("authorities.pem")).unwrap();
    let pair = gate::client_config_of(&pki.path("ca.pem"), &next, "two");
    wait_until(|| put(&pair).is_ok_and(|reply| reply.status == 200));
    assert!(
        put(&pki.client(Some("one"))).is_err(),
        "the first authority isn't trusted any more"
    );
}

// ---- before the start

fn check(pki: &Pki, listener: &str, upstream: &str) -> (Option<i32>, String) {
    let config = pki.path("fencegate.yaml");
    let text_of_config = format!(
        "version: 1\nlisteners:\n  - name: a\n    bind: \"127.0.0.1:8080\"\n{listener}    upstream:\n{upstream}{RULE_OF_CHECK}"
    );
    std::fs::write(&config, text_of_config).unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_fencegate"))
        .args(["check", "-c"])
        .arg(&config)
        .output()
        .unwrap();
    (output.status.code(), text(&output.stderr))
}

const RULE_OF_CHECK: &str = "    rules:\n      - { name: a, match: { path: \"/{a}/{*b}\" }, resource: \"a/{a}\", token: { header: Fencing-Token } }\n";
const PLAIN: &str = "      url: \"http://127.0.0.1:9000\"\n      response_timeout: 30s\n";

#[test]
fn files_that_do_not_fit_are_problems_at_their_line_and_column() {
    let pki = Pki::new();
    pki.issue("other", &["localhost"]);
    let listener = |cert: &str, key: &str| {
        format!(
            "    tls:\n      cert_file: {}\n      key_file: {}\n",
            pki.show(cert),
            pki.show(key)
        )
    };
    assert_eq!(
        check(&pki, &listener("server.pem", "server.key"), PLAIN),
        (Some(0), String::new())
    );
    for (cert, key, says) in [
        ("none.pem", "server.key", "6:18: listeners[0].tls.cert_file: "),
        ("server.pem", "none.key", "7:17: listeners[0].tls.key_file: "),
        ("server.pem", "other.key", "7:17: listeners[0].tls.key_file: "),
        ("server.key", "server.key", "6:18: listeners[0].tls.cert_file: "),
    ] {
        let (code, said) = check(&pki, &listener(cert, key), PLAIN);
        assert!(code == Some(2) && said.contains(says), "{cert} {key}: {said}");
        assert!(!said.contains("BEGIN PRIVATE"), "{said}");
    }
    let tls = |url: &str, lines: &str| format!("      url: \"{url}\"\n      tls: {{ {lines} }}\n");
    let pair = format!(
        "ca_file: {}, cert_file: {}",
        pki.show("ca.pem"),
        pki.show("server.pem")
    );
    for (upstream, says) in [
        (
            tls("http://127.0.0.1:9", "server_name: x"),
            "is for a backend with https://",
        ),
        (
            tls("unix:/run/s.sock", "server_name: x"),
            "is for a backend with https://",
        ),
        (
            tls("https://127.0.0.1:9", "server_name: \"a b\""),
            "tls.server_name: ",
        ),
        (tls("https://127.0.0.1:9", &pair), "needs key_file beside it"),
        (
            tls("https://127.0.0.1:9", "ca_file: /nonexistent"),
            "tls.ca_file: ",
        ),
        (
            tls("https://127.0.0.1:9", "ca_fil: x"),
            "did you mean \"ca_file\"?",
        ),
    ] {
        let (code, said) = check(&pki, "", &upstream);
        assert!(code == Some(2) && said.contains(says), "{upstream}: {said}");
    }
}

#[test]
fn an_expired_certificate_is_a_warning() {
    let pki = Pki::new();
    pki.issue_with("expired", &["localhost"], |params| {
        params.not_before = rcgen::date_time_ymd(2019, 1, 1);
        params.not_after = rcgen::date_time_ymd(2020, 1, 1);
    });
    let (code, said) = check(&pki, &format!("    {}\n", pki.listener("expired")), PLAIN);
    assert!(
        code == Some(0) && said.contains("5:") && said.contains("has expired"),
        "{said}"
    );
}

#[test]
fn keys_are_read_in_all_three_forms() {
    let pki = Pki::new();
    let openssl = |arguments: &[&str]| {
        let output = Command::new("openssl")
            .args(arguments)
            .current_dir(pki.path(""))
            .output()
            .unwrap();
        assert!(output.status.success(), "{}", text(&output.stderr));
    };
    openssl(&["genrsa", "-traditional", "-out", "pkcs1.key", "2048"]);
    openssl(&[
        "ecparam",
        "-name",
        "prime256v1",
        "-genkey",
        "-noout",
        "-out",
        "sec1.key",
    ]);
    openssl(&[
        "pkcs8",
        "-topk8",
        "-nocrypt",
        "-in",
        "pkcs1.key",
        "-out",
        "pkcs8.key",
    ]);
    for (name, begins) in [
        ("pkcs1", "-----BEGIN RSA PRIVATE KEY"),
        ("sec1", "-----BEGIN EC PRIVATE KEY"),
        ("pkcs8", "-----BEGIN PRIVATE KEY"),
    ] {
        let key = std::fs::read_to_string(pki.path(&format!("{name}.key"))).unwrap();
        assert!(key.starts_with(begins), "{key}");
        let (key, cert) = (format!("{name}.key"), format!("{name}.pem"));
        openssl(&[
            "req",
            "-x509",
            "-new",
            "-key",
            &key,
            "-subj",
            "/CN=localhost",
            "-out",
            &cert,
        ]);
        assert_eq!(
            check(&pki, &format!("    {}\n", pki.listener(name)), PLAIN),
            (Some(0), String::new())
        );
    }
}

/// What an idle TLS connection costs. Shown, and bounded loosely: the bound is there to notice a buffer that stays.
#[test]
fn an_idle_tls_connection_is_small() {
    let pki = Pki::new();
    let (_stub, gate) = in_front(&pki.listener("server"));
    let client = pki.client(None);
    let open = |count: usize| -> Vec<Conn> {
        let connected = |_| {
            let mut conn = Conn::open_tls(gate.port, &client);
            conn.send(ask("GET", "/b/k").bytes()).reply().is_ok();
            conn
        };
        (0..count).map(connected).collect()
    };
    let _first = open(20);
    let before = gate.memory_kib("VmRSS:");
    let _more = open(100);
    let each = (gate.memory_kib("VmRSS:") - before) as f64 / 100.0;
    eprintln!("an idle TLS connection: {each:.1} KiB");
    assert!(each < 64.0, "{each} KiB");
}

#[test]
fn a_client_that_breaks_off_without_tls_own_end_has_not_sent_its_request() {
    let pki = Pki::new();
    let (stub, gate) = both_sides(&pki);
    let mut conn = Conn::open_tls(gate.port, &pki.client(None));
    conn.send(head("PUT", "/b/k", Some(1), Some(10), &[]));
    conn.send("12345");
    stub.wait_for_head(1);
    conn.stream.shutdown(Shutdown::Write).unwrap();
    stub.wait(|state| !state.incomplete.is_empty());
    assert!(stub.tokens().is_empty());
    let mut rest = Vec::new();
    let _ = TcpStream::read_to_end(&mut conn.stream, &mut rest);
}
