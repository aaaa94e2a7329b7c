//! What clients notice of a gate whose rules let all through: as little as possible. Each of these was found by running
//! Redis's own tests, or those of a client, through it.

mod backends;
mod gate;
mod redis;

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Instant;

use gate::PATIENCE;
use redis::{Client, Server, setup, start_with, until};

/// Everything passes without a token.
const ALL: &str = r#"
      - { name: all, match: { keys: "*" }, resource: "all", token: { connection: true }, missing: pass }
"#;

fn start() -> (Server, gate::Gate) {
    start_with(setup(ALL).listener("unmatched: { writes: pass }"))
}

#[test]
fn garbage_ends_the_connection_also_of_a_client_that_does_not_stop_sending() {
    let (_server, gate) = start();
    let mut socket = TcpStream::connect(("127.0.0.1", gate.port)).unwrap();
    socket.write_all(b"*\0").unwrap();
    let end = Instant::now() + PATIENCE;
    while socket.write_all(b"payload\n").is_ok() {
        assert!(Instant::now() < end, "it may go on");
    }
}

#[test]
fn a_reply_as_deep_as_a_script_can_make_it_passes_through() {
    let (_server, gate) = start();
    let mut client = Client::of(gate.port);
    let script = "local a = {} local b = {a} a[1] = b return a";
    client.send_bytes(&redis::written(&[b"EVAL", script.as_bytes(), b"0"]));
    assert!(client.line().starts_with("*1"));
    let mut deep = 1;
    loop {
        match client.line() {
            line if line == "*1" => deep += 1,
            line => {
                assert_eq!(line, "-ERR reached lua stack limit");
                break;
            }
        }
    }
    assert!(deep > 1024, "{deep}");
    assert_eq!(client.ask("PING"), "+PONG");
}

#[test]
fn a_subscriber_is_seen_as_one() {
    let (server, gate) = start();
    let mut client = Client::of(gate.port);
    client.send("SUBSCRIBE a b");
    assert_eq!(client.replies(2), ["[subscribe a :1]", "[subscribe b :2]"]);
    let list = server.client().ask("CLIENT LIST");
    let line = list.lines().find(|line| line.contains("sub=2")).unwrap();
    assert!(line.contains("cmd=subscribe"), "{line}");
}

#[test]
fn each_subscription_is_over_with_its_last_confirmation() {
    let (_server, gate) = start();
    for version in ["2", "3"] {
        let mut client = Client::of(gate.port);
        client.ask(&format!("HELLO {version}"));
        let push = if version == "3" { ">" } else { "" };
        client.send_all(&[
            "SUBSCRIBE a a b",
            "PSUBSCRIBE c* d*",
            "SUBSCRIBE",
            "SSUBSCRIBE s",
            "UNSUBSCRIBE x a",
            "UNSUBSCRIBE",
            "UNSUBSCRIBE",
            "SUNSUBSCRIBE",
            "PUNSUBSCRIBE",
            "GET free:1",
        ]);
        let replies = client.replies(15);
        let expected = [
            "[subscribe a :1]",
            "[subscribe a :1]",
            "[subscribe b :2]",
            "[psubscribe c* :3]",
            "[psubscribe d* :4]",
            "-ERR wrong number of arguments for 'subscribe' command",
            "[ssubscribe s :1]",
            "[unsubscribe x :4]",
            "[unsubscribe a :3]",
            "[unsubscribe b :2]",
            "[unsubscribe nil :2]",
            "[sunsubscribe s :0]",
        ];
        for (reply, expected) in replies.iter().zip(expected) {
            let push = if expected.starts_with('-') { "" } else { push };
            assert_eq!(*reply, format!("{push}{expected}"));
        }
        // In whichever order the server has its patterns.
        assert!(replies[12].contains("[punsubscribe ") && replies[12].ends_with(":1]"));
        assert!(replies[13].ends_with(":0]"));
        assert_eq!(replies[14], "nil");
        assert_eq!(client.ask("SET free:1 x"), "+OK");
        assert_eq!(client.ask("DEL free:1"), ":1");
    }
}

#[test]
fn the_first_write_of_a_connection_asks_nobody_but_the_server() {
    let (server, gate) = start();
    let mut client = Client::of(gate.port);
    assert_eq!(client.ask("SELECT 0"), "+OK");
    let mut monitor = server.client();
    assert_eq!(monitor.ask("MONITOR"), "+OK");
    assert_eq!(client.ask("SET a b"), "+OK");
    let told = monitor.reply();
    assert!(told.contains("\"SET\" \"a\" \"b\""), "{told}");
}

#[test]
fn a_replica_reads_through_the_gate_and_tells_how_far_it_has_come() {
    let (server, gate) = start();
    let mut writer = Client::of(gate.port);
    assert_eq!(writer.ask("SET before 1"), "+OK");
    let replica = Server::with(&[&format!("replicaof 127.0.0.1 {}", gate.port)]);
    let mut behind = replica.client();
    until(|| behind.ask("GET before") == "1");
    assert_eq!(writer.ask("SET after 2"), "+OK");
    until(|| behind.ask("GET after") == "2");
    assert_eq!(writer.ask("WAIT 1 0"), ":1", "what it tells arrives");
    assert!(server.client().ask("INFO replication").contains("state=online"));
}

#[test]
fn a_connection_that_carries_the_servers_writes_takes_none() {
    let (server, gate) = start();
    let mut socket = TcpStream::connect(("127.0.0.1", gate.port)).unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    socket.write_all(b"SYNC\r\nSET sneaked in\r\n").unwrap();
    let mut told = Vec::new();
    // It ends by a reset, behind what it had been told by then.
    let _reset = socket.read_to_end(&mut told);
    assert_eq!(server.client().ask("GET sneaked"), "nil");
    // An error is a reply like any other.
    let mut client = Client::of(gate.port);
    assert_eq!(client.ask("MULTI"), "+OK");
    assert!(client.ask("SYNC").starts_with("-ERR"));
    assert!(client.ask("EXEC").starts_with("-EXECABORT"));
    assert_eq!(client.ask("PING"), "+PONG");
}
