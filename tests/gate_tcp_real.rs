//! Raw TCP through the gate with what speaks it in earnest: Redis behind it, HAProxy and TLS in front of it, and the
//! lines of the documentation.

mod backends;
mod gate;

use std::fs;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustls::pki_types::ServerName;
use rustls::{ClientConnection, StreamOwned};
use tempfile::TempDir;

use backends::{free_port, installed, program, python, run};
use gate::sessions::{BY_PREFACE, BY_TLV, Backend, End, Manners, holder, is_reset, open, tcp};
use gate::{Gate, PATIENCE, Pki};

/// A server as a child process, ended by its process id.
struct Server {
    _folder: TempDir,
    port: u16,
    child: Child,
}

impl Server {
    fn start(command: impl FnOnce(&Path, u16) -> Command) -> Server {
        let (folder, port) = (tempfile::tempdir().unwrap(), free_port());
        let child = command(folder.path(), port)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut server = Server {
            _folder: folder,
            port,
            child,
        };
        let end = Instant::now() + PATIENCE;
        while TcpStream::connect(("127.0.0.1", port)).is_err() {
            assert!(server.child.try_wait().unwrap().is_none(), "it ended");
            assert!(Instant::now() < end, "it does not listen");
            std::thread::sleep(Duration::from_millis(5));
        }
        server
    }

    fn redis() -> Server {
        Server::start(|folder, port| {
            let mut command = Command::new(installed("/usr/bin/redis-server"));
            command
                .current_dir(folder)
                .args(["--save", "", "--bind", "127.0.0.1", "--port"]);
            command.arg(port.to_string());
            command
        })
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

/// One command of Redis in its inline form, and its answer's first line.
fn redis(stream: &mut TcpStream, command: &str) -> std::io::Result<String> {
    stream.write_all(format!("{command}\r\n").as_bytes())?;
    let mut line = Vec::new();
    let mut byte = [0];
    while !line.ends_with(b"\r\n") {
        stream.read_exact(&mut byte)?;
        line.push(byte[0]);
    }
    Ok(String::from_utf8(line).unwrap().trim_end().to_owned())
}

#[test]
fn a_paused_holders_late_command_never_reaches_redis() {
    let server = Server::redis();
    let gate = tcp(BY_PREFACE).start(server.port);
    let mut old = open(&gate, b"FENCE orders 33\n");
    assert_eq!(redis(&mut old, "RPUSH log 33").unwrap(), ":1");
    assert_eq!(redis(&mut old, "MULTI").unwrap(), "+OK");
    assert_eq!(redis(&mut old, "RPUSH log 33-queued").unwrap(), "+QUEUED");
    // It is paused here; another one takes the lock.
    let mut new = open(&gate, b"FENCE orders 34\n");
    assert_eq!(redis(&mut new, "RPUSH log 34").unwrap(), ":2");
    assert!(redis(&mut old, "EXEC").is_err());
    is_reset(&mut open(&gate, b"FENCE orders 33\nRPUSH log 33-late\r\n"));
    assert_eq!(redis(&mut new, "RPUSH log 34").unwrap(), ":3");
    let mut past = TcpStream::connect(("127.0.0.1", server.port)).unwrap();
    assert_eq!(redis(&mut past, "LLEN log").unwrap(), ":3");
}

#[test]
fn a_backend_with_tls_is_reached_by_clients_that_know_nothing_of_it() {
    let pki = Pki::new();
    let tls_port = free_port();
    let server = Server::start(|folder, port| {
        let mut command = Command::new(installed("/usr/bin/redis-server"));
        command
            .current_dir(folder)
            .args(["--save", "", "--bind", "127.0.0.1", "--tls-auth-clients", "no"])
            .args(["--port", &port.to_string(), "--tls-port", &tls_port.to_string()])
            .args(["--tls-cert-file", &pki.show("server.pem")])
            .args(["--tls-key-file", &pki.show("server.key")]);
        command
    });
    let gate = tcp(BY_PREFACE)
        .settle_after("1s")
        .upstream(&pki.upstream())
        .start(tls_port);
    let mut old = open(&gate, b"FENCE orders 33\n");
    assert_eq!(redis(&mut old, "RPUSH log 33").unwrap(), ":1");
    // The server ends its side without TLS's own end, which anybody on the way could have done: a doubt.
    let mut new = open(&gate, b"FENCE orders 34\n");
    assert_eq!(redis(&mut new, "RPUSH log 34").unwrap(), ":2");
    assert!(redis(&mut old, "RPUSH log 33-late").is_err());
    let mut past = TcpStream::connect(("127.0.0.1", server.port)).unwrap();
    assert_eq!(redis(&mut past, "LLEN log").unwrap(), ":2");
}

#[test]
fn a_blocked_command_of_an_older_holder_is_ended_by_a_newer_one() {
    let server = Server::redis();
    let gate = tcp(BY_PREFACE).settle_after("60s").start(server.port);
    let mut old = open(&gate, b"FENCE orders 33\nBLMOVE from to LEFT LEFT 0\r\n");
    let mut past = TcpStream::connect(("127.0.0.1", server.port)).unwrap();
    let end = Instant::now() + PATIENCE;
    while !info(&mut past, "clients").contains("blocked_clients:1") {
        assert!(Instant::now() < end, "nobody is blocked");
    }
    // Redis closes its side once it has read the end, whatever its client waits for.
    let mut new = open(&gate, b"FENCE orders 34\n");
    assert_eq!(redis(&mut new, "RPUSH from 1").unwrap(), ":1");
    assert_eq!(redis(&mut past, "LLEN to").unwrap(), ":0");
    is_reset(&mut old);
}

fn info(stream: &mut TcpStream, section: &str) -> String {
    stream
        .write_all(format!("INFO {section}\r\n").as_bytes())
        .unwrap();
    let mut text = String::new();
    let mut byte = [0];
    while !text.ends_with("\r\n") {
        stream.read_exact(&mut byte).unwrap();
        text.push(char::from(byte[0]));
    }
    let len: usize = text[1..].trim().parse().unwrap();
    let mut body = vec![0; len + 2];
    stream.read_exact(&mut body).unwrap();
    String::from_utf8(body).unwrap()
}

#[test]
fn haproxy_in_front_says_who_the_client_is() {
    let backend = Backend::start(Manners::default());
    let rules = "\n      - { name: r, resource: { preface: true }, token: { preface: true } }\n";
    let gate = tcp(rules)
        .upstream("proxy_protocol: v2")
        .listener("accept_proxy: true")
        .start(backend.port);
    for (number, version) in [
        "send-proxy",
        "send-proxy-v2",
        "send-proxy-v2 proxy-v2-options crc32c,unique-id",
    ]
    .iter()
    .enumerate()
    {
        let haproxy = Server::start(|folder, port| {
            let file = folder.join("haproxy.cfg");
            let text = format!(
                "defaults\n  mode tcp\n  timeout connect 5s\n  timeout client 1m\n  timeout server 1m\n\
                 frontend front\n  bind 127.0.0.1:{port}\n  unique-id-format %rt\n  default_backend gate\n\
                 backend gate\n  server gate 127.0.0.1:{} {version}\n",
                gate.port
            );
            fs::write(&file, text).unwrap();
            let mut command = Command::new(installed("/usr/sbin/haproxy"));
            command.arg("-db").arg("-f").arg(&file);
            command
        });
        let mut client = TcpStream::connect(("127.0.0.1", haproxy.port)).unwrap();
        client.set_read_timeout(Some(PATIENCE)).unwrap();
        client.write_all(b"FENCE a 1\nhello").unwrap();
        let own = client.local_addr().unwrap();
        let mut told = b"\r\n\r\n\0\r\nQUIT\n\x21\x11\x00\x0c\x7f\0\0\x01\x7f\0\0\x01".to_vec();
        told.extend_from_slice(&own.port().to_be_bytes());
        told.extend_from_slice(&haproxy.port.to_be_bytes());
        told.extend_from_slice(b"hello");
        backend.wait(|came| came.iter().any(|came| came.bytes == told));
        client.shutdown(Shutdown::Write).unwrap();
        let mut rest = Vec::new();
        client.read_to_end(&mut rest).unwrap();
        assert!(backend.came().len() > number);
    }
}

#[test]
fn tls_stands_behind_the_header_and_before_the_session() {
    let pki = Pki::new();
    pki.issue("orders-1", &["orders-1"]);
    let backend = Backend::start(Manners {
        echoes: true,
        ..Manners::default()
    });
    let rules = BY_TLV.to_owned() + "        allow: { client_cert: \"CN=orders-*\" }\n";
    let gate = tcp(&rules)
        .listener(&pki.listener_asking_clients("server"))
        .start(backend.port);
    let mut old = secured(&gate, &pki, &holder("a", 1));
    old.write_all(b"over TLS").unwrap();
    let mut back = [0; 8];
    old.read_exact(&mut back).unwrap();
    assert_eq!(&back, b"over TLS");
    let mut new = secured(&gate, &pki, &holder("a", 2));
    new.write_all(b"newer").unwrap();
    let mut back = [0; 5];
    new.read_exact(&mut back).unwrap();
    backend.wait_for_end(0, End::Eof);
    let mut waste = Vec::new();
    assert!(
        old.read_to_end(&mut waste).is_err(),
        "a cut session ended in order"
    );
    // Its own end is one for the backend.
    new.conn.send_close_notify();
    new.flush().unwrap();
    new.sock.shutdown(Shutdown::Write).unwrap();
    new.read_to_end(&mut waste).unwrap();
    backend.wait_for_end(1, End::Eof);
    // Without TLS nothing is let through.
    is_reset_or_ended(&mut open(&gate, &[&holder("a", 3)[..], b"plain"].concat()));
    assert_eq!(backend.came().len(), 2);
}

fn is_reset_or_ended(stream: &mut TcpStream) {
    let mut waste = Vec::new();
    let _either = stream.read_to_end(&mut waste);
}

fn secured(gate: &Gate, pki: &Pki, header: &[u8]) -> StreamOwned<ClientConnection, TcpStream> {
    let socket = open(gate, header);
    let name = ServerName::try_from("localhost").unwrap();
    let tls = ClientConnection::new(Arc::clone(&pki.client(Some("orders-1"))), name).unwrap();
    StreamOwned::new(tls, socket)
}

#[test]
fn the_lines_of_the_document_are_let_through_with_a_good_token_and_reset_with_a_stale_one() {
    let backend = Backend::start(Manners {
        echoes: true,
        ..Manners::default()
    });
    let (by_tlv, by_line) = (
        tcp(BY_TLV).start(backend.port),
        tcp(BY_PREFACE).start(backend.port),
    );
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/clients.md");
    let text = fs::read_to_string(path).unwrap();
    let blocks: Vec<&str> = text
        .split("```py\n")
        .skip(1)
        .map(|rest| rest.split("```").next().unwrap())
        .collect();
    assert_eq!(blocks.len(), 2);
    let folder = tempfile::tempdir().unwrap();
    let say = |block: &str| {
        let block = block
            .replace("7001", &by_tlv.port.to_string())
            .replace("7002", &by_line.port.to_string());
        let mut command = program(&python(), folder.path());
        command.args(["-c", &block]);
        run(&mut command)
    };
    for block in &blocks {
        let said = say(block);
        assert!(said.is_fine().out.contains("own bytes"), "{}", said.out);
    }
    for gate in [&by_tlv, &by_line] {
        assert!(gate.metric("fencegate_requests_total", &["\"raised\""]) > 0.9);
    }
    for block in &blocks {
        say(&block.replace("34", "33")).failed();
    }
    assert_eq!(backend.came().len(), 2);
}

#[test]
fn explain_says_what_becomes_of_a_session() {
    let config = Path::new(env!("CARGO_MANIFEST_DIR")).join("config/tcp.yaml");
    let explain = |arguments: &[&str]| {
        let output = Command::new(env!("CARGO_BIN_EXE_fencegate"))
            .args(["explain", "-c"])
            .arg(&config)
            .args(arguments)
            .output()
            .unwrap();
        let text = String::from_utf8(output.stdout).unwrap() + &String::from_utf8(output.stderr).unwrap();
        (output.status.code(), text)
    };
    let of = |name: &str, resource: &str, token: &str| {
        explain(&["--listener", name, "--resource", resource, "--token", token])
    };
    let (code, text) = of("anything", "orders/1", "34");
    assert_eq!(code, Some(0), "{text}");
    for words in [
        "opens with a PROXY header",
        "resource  orders/1",
        "token     34 (integer)",
        "decision  compared",
    ] {
        assert!(text.contains(words), "{words}: {text}");
    }
    let (_, text) = of("by-first-line", "orders/1", "034");
    assert!(
        text.contains("refused (malformed-token)") && text.contains("034"),
        "{text}"
    );
    let (_, text) = explain(&[
        "--listener",
        "anything",
        "--resource",
        "a",
        "--token",
        "1",
        "--from",
        "192.0.2.1",
    ]);
    assert!(text.contains("refused (not-allowed)"), "{text}");
    let (_, text) = explain(&["--listener", "one-resource"]);
    assert!(
        text.contains("resource  backend") && text.contains("passes until"),
        "{text}"
    );
    let (_, text) = explain(&["--listener", "anything"]);
    assert!(text.contains("refused (missing-token)"), "{text}");
    let (code, text) = explain(&["--listener", "anything", "PUT", "/a"]);
    assert!(code == Some(2) && text.contains("no method"), "{text}");
    let (code, text) = explain(&["PUT", "/a"]);
    assert!(code == Some(2) && text.contains("no listener for HTTP"), "{text}");
}

#[test]
fn many_holders_one_after_the_other_never_go_back() {
    let backend = Backend::start(Manners::default());
    let gate = tcp(BY_TLV).start(backend.port);
    let holders: Vec<_> = (0..8u64)
        .map(|first| {
            let port = gate.port;
            std::thread::spawn(move || {
                for round in 0..12 {
                    let token = round * 8 + first;
                    let Ok(mut stream) = TcpStream::connect(("127.0.0.1", port)) else {
                        continue;
                    };
                    for piece in 0..20 {
                        let text = format!("{token} ");
                        let bytes = match piece {
                            0 => [&holder("a", token)[..], text.as_bytes()].concat(),
                            _ => text.into_bytes(),
                        };
                        if stream.write_all(&bytes).is_err() {
                            break;
                        }
                    }
                    let _either = stream.shutdown(Shutdown::Write);
                    let _either = stream.read(&mut [0; 16]);
                }
            })
        })
        .collect();
    for holder in holders {
        holder.join().unwrap();
    }
    // Each connection carries one token, and they begin in the order in which the gate let them through.
    let mut highest = 0;
    for came in backend.came() {
        let text = String::from_utf8(came.bytes).unwrap();
        let tokens: Vec<u64> = text
            .split_whitespace()
            .map(|token| token.parse().unwrap())
            .collect();
        assert!(tokens.windows(2).all(|pair| pair[0] == pair[1]), "{text}");
        if let Some(token) = tokens.first() {
            assert!(*token >= highest, "{token} after {highest}");
            highest = *token;
        }
    }
    assert!(highest > 0);
}
