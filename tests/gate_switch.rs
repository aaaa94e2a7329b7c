//! Connections that are more than a row of requests: those that a backend has authenticated as a whole, and those
//! that are upgraded to another protocol.

mod gate;

use std::io::{BufReader, Read, Write};
use std::net::TcpStream;

use gate::{Conn, RawBackend, Setup, Stub, ask, ends_by_reset, read_request};

const OK: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n";

/// A backend that authenticates connections as NTLM does: three legs on one connection, and from then on that
/// connection is somebody's.
fn ntlm() -> RawBackend {
    RawBackend::start(|number, mut reader, mut stream| {
        let mut user = String::new();
        while let Ok(Some((request, _))) = read_request(&mut reader) {
            let answer = match request.field("authorization") {
                Some("NTLM one") => {
                    "HTTP/1.1 401 Unauthorized\r\nWWW-Authenticate: NTLM challenge\r\nContent-Length: 0\r\n\r\n".into()
                }
                Some(authorization) if authorization.starts_with("NTLM two-") => {
                    user = authorization["NTLM two-".len()..].to_owned();
                    answer(&format!("{number} {user}"))
                }
                _ if user.is_empty() => {
                    "HTTP/1.1 401 Unauthorized\r\nWWW-Authenticate: NTLM\r\nContent-Length: 0\r\n\r\n".into()
                }
                _ => answer(&format!("{number} {user}")),
            };
            stream.write_all(answer.as_bytes()).unwrap();
        }
    })
}

fn answer(body: &str) -> String {
    format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{body}", body.len())
}

fn get(authorization: Option<&str>) -> Vec<u8> {
    let ask = ask("GET", "/share/1");
    match authorization {
        Some(authorization) => ask.field("Authorization", authorization).bytes(),
        None => ask.bytes(),
    }
}

/// Logs in on a connection of its own; gives it, and which backend connection it got.
fn log_in(port: u16, user: &str) -> (Conn, String) {
    let mut client = Conn::open(port);
    assert_eq!(client.send(get(None)).reply().status, 401);
    assert_eq!(client.send(get(Some("NTLM one"))).reply().status, 401);
    let reply = client.send(get(Some(&format!("NTLM two-{user}")))).reply();
    reply.is_ok();
    (client, String::from_utf8(reply.body).unwrap())
}

#[test]
fn a_connection_that_was_authenticated_as_a_whole_serves_its_client_alone() {
    let backend = ntlm();
    let gate = Setup::default().start(backend.port);
    let (mut alice, as_alice) = log_in(gate.port, "alice");
    let (mut bob, as_bob) = log_in(gate.port, "bob");
    assert!(as_alice.ends_with("alice") && as_bob.ends_with("bob"));
    assert_ne!(as_alice, as_bob);
    // Requests that follow carry no Authorization: the connection is the user.
    for _ in 0..3 {
        assert_eq!(alice.send(get(None)).reply().body, as_alice.as_bytes());
        assert_eq!(bob.send(get(None)).reply().body, as_bob.as_bytes());
        // Nobody else gets one of theirs.
        assert_eq!(ask("GET", "/share/1").send(gate.port).status, 401);
    }
    drop(alice);
    assert_eq!(ask("GET", "/share/1").send(gate.port).status, 401);
    assert_eq!(bob.send(get(None)).reply().body, as_bob.as_bytes());
}

#[test]
fn a_write_on_an_authenticated_connection_is_fenced_like_any_other() {
    let backend = ntlm();
    let gate = Setup::default().start(backend.port);
    let (mut alice, as_alice) = log_in(gate.port, "alice");
    let put = |token: u64| ask("PUT", "/share/1").token(token).body("v").bytes();
    assert_eq!(alice.send(put(34)).reply().body, as_alice.as_bytes());
    alice.send(put(33)).reply().is(412, "stale-token");
    assert_eq!(alice.send(get(None)).reply().body, as_alice.as_bytes());
}

#[test]
fn a_tab_behind_the_scheme_shares_no_connection_either() {
    let backend = RawBackend::start(|number, mut reader, mut stream| {
        let mut user = String::from("nobody");
        while let Ok(Some((request, _))) = read_request(&mut reader) {
            if let Some(authorization) = request.field("authorization") {
                user = authorization.split_whitespace().last().unwrap().to_owned();
            }
            stream
                .write_all(answer(&format!("{number} {user}")).as_bytes())
                .unwrap();
        }
    });
    let gate = Setup::default().start(backend.port);
    let reply = ask("GET", "/share/1")
        .field("Authorization", "NTLM\tbob")
        .send(gate.port);
    assert!(reply.body.ends_with(b"bob"));
    let reply = ask("GET", "/share/1").send(gate.port);
    assert!(reply.body.ends_with(b"nobody"), "{reply:?}");
}

#[test]
fn a_client_that_only_claims_to_authenticate_holds_no_connection() {
    let stub = Stub::start();
    let gate = Setup::default().upstream("max_connections: 2").start(stub.port);
    let mut clients: Vec<Conn> = (0..4).map(|_| Conn::open(gate.port)).collect();
    for client in &mut clients {
        client.send(get(Some("NTLM x"))).reply();
    }
    // All of them are still there, idle.
    ask("PUT", "/share/1").token(34).body("v").send(gate.port).is_ok();
    ask("GET", "/share/1").send(gate.port).is_ok();
}

#[test]
fn an_upgrade_without_its_connection_option_is_no_upgrade() {
    let gate = Setup::default().listener("upgrades: pass").start(echo().port);
    let mut client = Conn::open(gate.port);
    client
        .send(ask("GET", "/share/1").field("Upgrade", "echo").bytes())
        .reply()
        .is_ok();
}

/// A backend that switches to a protocol of echoes where it is asked to, and says what it was asked for.
fn echo() -> RawBackend {
    RawBackend::start(|_, mut reader, mut stream| {
        while let Ok(Some((request, _))) = read_request(&mut reader) {
            if request.field("upgrade") != Some("echo") {
                stream.write_all(OK).unwrap();
                continue;
            }
            stream
                .write_all(
                    b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: echo\r\nConnection: Upgrade\r\n\r\nhello:",
                )
                .unwrap();
            return repeat(&mut reader, &mut stream);
        }
    })
}

fn repeat(reader: &mut BufReader<TcpStream>, stream: &mut TcpStream) {
    let mut bytes = [0; 65536];
    while let Ok(len @ 1..) = reader.read(&mut bytes) {
        if stream.write_all(&bytes[..len]).is_err() {
            return;
        }
    }
    let _ = stream.write_all(b":bye");
}

fn upgrade(protocol: &str) -> Vec<u8> {
    ask("GET", "/share/1")
        .field("Connection", "Upgrade")
        .field("Upgrade", protocol)
        .bytes()
}

#[test]
fn an_upgraded_connection_carries_bytes_both_ways_to_their_end() {
    let gate = Setup::default().listener("upgrades: pass").start(echo().port);
    let mut client = Conn::open(gate.port);
    let mut first = upgrade("echo");
    // Sent at once: it belongs to the new protocol, and is never read as a request.
    first.extend_from_slice(b"DELETE /share/1 HTTP/1.1\r\n\r\n");
    client.send(first);
    let head = client.read_head().unwrap();
    assert!(
        head.starts_with("HTTP/1.1 101 ") && head.contains("Upgrade: echo"),
        "{head}"
    );
    assert_eq!(client.read_exactly(6).unwrap(), b"hello:");
    assert_eq!(
        client.read_exactly(28).unwrap(),
        b"DELETE /share/1 HTTP/1.1\r\n\r\n"
    );
    let large: Vec<u8> = (0..3_000_000u32).map(|n| (n / 7) as u8).collect();
    let mut writer = client.stream.try_clone().unwrap();
    let sent = large.clone();
    let sending = std::thread::spawn(move || writer.write_all(&sent));
    assert!(client.read_exactly(large.len()).unwrap() == large);
    sending.join().unwrap().unwrap();
    client.end();
    assert_eq!(client.read_to_end().unwrap(), b":bye");
}

#[test]
fn an_upgrade_that_the_backend_does_not_take_is_a_request_like_others() {
    let gate = Setup::default().listener("upgrades: pass").start(echo().port);
    let mut client = Conn::open(gate.port);
    client.send(upgrade("other")).reply().is_ok();
    client.send(upgrade("h2c")).reply().is_ok();
    client.send(ask("GET", "/share/1").bytes()).reply().is_ok();
}

#[test]
fn a_switch_that_nobody_asked_for_is_a_lost_answer() {
    let backend = RawBackend::start(|_, mut reader, mut stream| {
        let _ = read_request(&mut reader);
        stream
            .write_all(b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: echo\r\nConnection: Upgrade\r\n\r\n")
            .unwrap();
        assert!(ends_by_reset(&mut reader));
    });
    let gate = Setup::default().listener("upgrades: pass").start(backend.port);
    let mut client = Conn::open(gate.port);
    client
        .send(ask("GET", "/share/1").bytes())
        .reply()
        .is(502, "upstream-failed");
}

#[test]
fn upgrades_are_refused_unless_the_listener_passes_them() {
    let backend = echo();
    let gate = Setup::default().start(backend.port);
    let mut client = Conn::open(gate.port);
    client.send(upgrade("echo")).reply().is(403, "upgrade-refused");
    assert_eq!(backend.connections(), 0);
}
