//! The Redis gate at the edges of its protocol: who isn't let in yet, who wants no replies, who is half through when the
//! gate stops, who calls a command by another name, and a server behind TLS.

mod backends;
mod gate;
mod redis;

use std::time::{Duration, Instant};

use gate::{Gate, PATIENCE, Pki, sleep_until};
use redis::{Client, RULES, Server, fences, says, setup, start, start_with, until, waiting, written};

#[test]
fn a_large_value_that_turned_stale_takes_no_other_command_of_its_pipeline_with_it() {
    let (server, gate) = start_with(setup(RULES).settle_after("30s"));
    let mut old = Client::holder(&gate, 1);
    let mut new = Client::holder(&gate, 2);
    assert_eq!(old.ask("SET orders:1 a"), "+OK");
    assert_eq!(new.ask("PING"), "+PONG");
    assert_eq!(new.ask("GET free:1"), "nil");
    // The server takes nothing for a while, so that much stands in a row behind each other.
    server.pause();
    let value = vec![b'v'; 60_000];
    for _ in 0..100 {
        old.send_bytes(&written(&[b"SET", b"orders:1", &value]));
    }
    let large = vec![b'l'; 3_000_000];
    let command = written(&[b"SET", b"orders:2", &large]);
    let (half, rest) = command.split_at(command.len() / 2);
    let mut both = [half.to_vec(), rest.to_vec()];
    std::thread::scope(|scope| {
        let [half, rest] = &mut both;
        let sender = &mut old;
        let sending = scope.spawn(move || {
            sender.send_bytes(half);
            sender.send_bytes(rest);
            sender.send("GET orders:1");
            sender.replies(100)
        });
        // It is seen by the gate, and answered once the server works again: whether the large one had begun by then, or
        // is refused from the start.
        new.send("SET orders:2 b");
        until(|| {
            fences(&gate)
                .iter()
                .any(|fence| fence["resource"] == "orders/2" && fence["highest"] == "2")
        });
        server.go_on();
        let replies = sending.join().unwrap();
        assert!(replies.iter().all(|reply| reply == "+OK"), "{:?}", replies.last());
    });
    assert_eq!(new.reply(), "+OK");
    let reply = old.reply();
    if reply != "+OK" {
        says(&reply, &["-FENCED stale token 1 < 2", "resource=orders/2"]);
    }
    assert_eq!(server.client().ask("GET orders:2"), "b");
}

/// One that is at somebody's script, say. What the gate asks it first is waited for no less than a client would wait for
/// its reply, whether the client is new or its command's keys are the server's to tell.
#[test]
fn a_server_that_is_busy_for_long_makes_clients_wait_and_refuses_them_nothing() {
    let (server, gate) = start_with(setup(RULES).upstream("response_timeout: 30s"));
    let mut known = Client::of(gate.port);
    assert_eq!(known.ask("RPUSH free:1 b"), ":1");
    server.pause();
    let mut new = Client::of(gate.port);
    new.send("SET free:2 b");
    known.send("SORT free:1 ALPHA STORE free:3");
    sleep_until(Instant::now() + Duration::from_secs(7));
    server.go_on();
    assert_eq!(known.reply(), ":1", "{}", gate.log());
    assert_eq!(new.reply(), "+OK", "{}", gate.log());
}

#[test]
fn a_server_that_says_nothing_for_response_timeout_is_not_waited_for() {
    let (server, gate) = start_with(setup(RULES).upstream("response_timeout: 300ms"));
    server.pause();
    let reply = Client::of(gate.port).ask("SET free:1 b");
    says(&reply, &["-FENCED upstream unreachable", "within 300ms"]);
    server.go_on();
    until(|| Client::of(gate.port).ask("SET free:1 b") == "+OK");
}

/// A server that wants a password, and a gate that has it.
fn guarded(rules: &str, lines: &[&str]) -> (Server, Gate) {
    let server = Server::with(&[&["requirepass sesame"], lines].concat());
    let password = server.folder.path().join("password");
    std::fs::write(&password, "sesame\n").unwrap();
    let gate = setup(rules)
        .upstream(&format!("password_file: \"{}\"", password.display()))
        .start(server.port);
    (server, gate)
}

#[test]
fn who_is_not_authenticated_can_not_make_the_gate_keep_much() {
    let (_server, gate) = guarded(RULES, &[]);
    let before = gate.memory_kib("VmRSS:");
    for first in ["fence", "mset", "nosuch"] {
        let mut client = Client::of(gate.port);
        client.send_bytes(&many_words(first));
        says(
            &client.reply(),
            &["-ERR Protocol error: unauthenticated multibulk length"],
        );
        assert_eq!(client.reply(), "END");
    }
    let kept = gate.memory_kib("VmHWM:") - before;
    assert!(kept < 8_000, "{kept} KiB");
    // One who is let in may send a large one, also as its first.
    let mut client = Client::of(gate.port);
    assert_eq!(client.ask("AUTH sesame"), "+OK");
    assert_eq!(client.ask("FENCE 1"), "+OK");
    let value = vec![b'v'; 100_000];
    let large = written(&[
        b"MSET",
        b"orders:1",
        &value,
        b"orders:2",
        &value,
        b"orders:1",
        b"x",
    ]);
    client.send_bytes(&large);
    assert_eq!(client.reply(), "+OK");
    assert_eq!(client.ask("RESET"), "+RESET");
    client.send_bytes(&many_words("mset"));
    says(&client.reply(), &["unauthenticated"]);
}

/// Most of a command of a million words.
fn many_words(first: &str) -> Vec<u8> {
    let mut bytes = format!("*1000000\r\n${}\r\n{first}\r\n", first.len()).into_bytes();
    bytes.extend(b"$8\r\norders:1\r\n".repeat(999_000));
    bytes
}

#[test]
fn nobody_raises_who_has_not_given_the_servers_password() {
    let (_server, gate) = guarded(RULES, &[]);
    let mut stranger = Client::holder(&gate, 5_000);
    for command in [
        "SET orders:1 x",
        "GET orders:1",
        "SET free:1 x",
        "MULTI",
        "EVAL return(1) 1 orders:1",
    ] {
        says(&stranger.ask(command), &["-NOAUTH Authentication required."]);
    }
    let mut holder = Client::of(gate.port);
    holder.send_all(&["AUTH sesame", "FENCE 3", "SET orders:1 x", "SET free:1 y"]);
    assert_eq!(holder.replies(4), ["+OK", "+OK", "+OK", "+OK"]);
    assert_eq!(stranger.ask("AUTH sesame"), "+OK");
    assert_eq!(
        stranger.ask("SET orders:1 z"),
        "+OK",
        "the token was its own all the time"
    );
    says(&holder.ask("SET orders:1 x"), &["-FENCED stale token 3 < 5000"]);
}

#[test]
fn a_first_command_that_is_large_passes_where_the_server_asks_for_no_password() {
    let (server, gate) = start_with(setup(RULES));
    let mut client = Client::of(gate.port);
    let value = vec![b'v'; 100_000];
    let mut bytes = written(&[b"FENCE", b"3"]);
    bytes.extend(written(&[b"MSET", b"orders:1", &value, b"orders:2", &value]));
    client.send_bytes(&bytes);
    assert_eq!(client.replies(2), ["+OK", "+OK"]);
    assert_eq!(server.client().ask("STRLEN orders:2"), ":100000");
}

#[test]
fn a_client_without_replies_gets_none_for_a_transaction_or_a_name_either() {
    let (server, gate) = start();
    let mut client = Client::of(gate.port);
    client.send_all(&[
        "CLIENT REPLY OFF",
        "CLIENT SETNAME fencing-token=4",
        "HELLO 2",
        "SELECT 0",
        "MULTI",
        "SET orders:1 a",
        "EXEC",
        "MULTI",
        "DISCARD",
        "CLIENT REPLY ON",
        "CLIENT REPLY SKIP",
        "MULTI",
        "SET orders:1 b",
        "EXEC",
        "CLIENT REPLY OFF",
        "RESET",
        "PING",
        "CLIENT REPLY SKIP",
        "RESET",
        "ECHO last",
    ]);
    assert_eq!(
        client.replies(6),
        ["+OK", "+QUEUED", "[+OK]", "+RESET", "+PONG", "last"]
    );
    assert_eq!(server.client().ask("GET orders:1"), "b");
}

#[test]
fn a_half_command_and_one_that_waits_unfenced_do_not_hold_up_a_stop() {
    let (_server, mut gate) = start_with(setup(RULES).top("shutdown_timeout: 60s"));
    let mut half = Client::holder(&gate, 1);
    half.send_bytes(b"*3\r\n$3\r\nSET\r\n$8\r\norders:1\r\n$5\r\nab");
    let mut reads = Client::of(gate.port);
    reads.send("XREAD BLOCK 0 STREAMS log $");
    let mut waits = Client::of(gate.port);
    assert_eq!(waits.ask("PING"), "+PONG");
    waits.send("WAIT 1 0");
    let begun = Instant::now();
    assert_eq!(gate.stop(), Some(0));
    assert!(begun.elapsed() < PATIENCE);
    assert_eq!(
        [half.reply(), reads.reply(), waits.reply()],
        ["END", "END", "END"]
    );
}

#[test]
fn an_exec_by_another_name_does_not_pass_inside_a_transaction() {
    let server = Server::with(&["rename-command EXEC finish", "rename-command DISCARD drop"]);
    let gate = setup(RULES)
        .listener("unmatched: { writes: pass }")
        .start(server.port);
    let mut client = Client::holder(&gate, 1);
    assert_eq!(client.ask("MULTI"), "+OK");
    assert_eq!(client.ask("SET orders:1 x"), "+QUEUED");
    says(&client.ask("finish"), &["-ERR unknown command 'finish'"]);
    assert_eq!(server.client().ask("GET orders:1"), "nil");
}

#[test]
fn a_server_with_tls_is_reached_by_clients_that_know_nothing_of_it() {
    let pki = Pki::new();
    let (_server, port) = Server::behind_tls(&pki);
    let gate = setup(RULES).upstream(&pki.upstream()).start(port);
    let mut old = Client::holder(&gate, 1);
    let value = vec![b'v'; 3_000_000];
    old.send_bytes(&written(&[b"SET", b"orders:1", &value]));
    assert_eq!(old.reply(), "+OK");
    old.send_all(&["STRLEN orders:1", "MULTI", "SET orders:1 x", "EXEC"]);
    assert_eq!(old.replies(4), [":3000000", "+OK", "+QUEUED", "[+OK]"]);
    let mut new = Client::holder(&gate, 2);
    assert_eq!(new.ask("GET orders:1"), "x");
    says(&old.ask("SET orders:1 late"), &["-FENCED stale token 1 < 2"]);
    // An authority that it doesn't know vouches for nobody.
    let stranger = Pki::new();
    let gate = setup(RULES).upstream(&stranger.upstream()).start(port);
    says(
        &Client::of(gate.port).ask("PING"),
        &["-FENCED upstream unreachable"],
    );
}

#[test]
fn what_a_transaction_holds_beside_writes_is_the_servers_to_answer() {
    let (server, gate) = start();
    let mut client = Client::holder(&gate, 3);
    client.send_all(&[
        "MULTI",
        "SET orders:1 a",
        "PING",
        "GET free:1",
        "MULTI",
        "ECHO x",
        "EXEC",
    ]);
    let replies = client.replies(7);
    assert_eq!(replies[..4], ["+OK", "+QUEUED", "+QUEUED", "+QUEUED"]);
    says(&replies[4], &["-ERR MULTI calls can not be nested"]);
    assert_eq!(replies[5..], ["+QUEUED", "[+OK +PONG nil x]"]);
    client.send_all(&[
        "WATCH orders:1",
        "MULTI",
        "WATCH orders:2",
        "SET orders:1 b",
        "DISCARD",
    ]);
    let replies = client.replies(5);
    says(&replies[2], &["-ERR WATCH inside MULTI is not allowed"]);
    assert_eq!(replies[4], "+OK");
    // Turned stale between its parts, none of it happens, whatever else it holds.
    client.send_all(&["MULTI", "SET orders:1 c", "PING"]);
    assert_eq!(client.replies(3), ["+OK", "+QUEUED", "+QUEUED"]);
    let mut new = Client::holder(&gate, 4);
    assert_eq!(new.ask("SET orders:1 new"), "+OK");
    says(&client.ask("SET orders:1 d"), &["-FENCED stale token 3 < 4"]);
    says(&client.ask("EXEC"), &["-EXECABORT"]);
    assert_eq!(client.ask("PING"), "+PONG");
    assert_eq!(server.client().ask("GET orders:1"), "new");
}

#[test]
fn a_hello_is_the_servers_to_answer_and_its_user_and_name_are_heard() {
    let rules = RULES.replace(
        "{ connection: true }, drain_timeout",
        "{ connection: true, pattern: 'holder-(\\d+)' }, drain_timeout",
    );
    let (server, gate) = guarded(&rules, &["user worker on >secret ~* &* +@all"]);
    let mut client = Client::of(gate.port);
    let direct = |command: &str| server.client().ask(command);
    for command in [
        "GET free:1",
        "HELLO 3",
        "HELLO 4",
        "HELLO x",
        "HELLO 3 AUTH worker wrong",
        "HELLO 3 AUTH worker",
        "HELLO 2 SETNAME holder-7",
        "AUTH wrong",
        "AUTH worker wrong SETNAME",
    ] {
        assert_eq!(client.ask(command), direct(command), "{command}");
    }
    says(
        &client.ask("HELLO 3 AUTH worker secret SETNAME holder-8"),
        &["proto :3"],
    );
    assert_eq!(client.ask("SET orders:1 a"), "+OK");
    assert_eq!(client.ask("GET orders:9"), "nil");
    says(&client.ask("HELLO 2"), &["[server redis"]);
    assert_eq!(client.ask("SET orders:1 b"), "+OK", "nothing was said of a name");
    let mut old = Client::of(gate.port);
    says(
        &old.ask("HELLO 3 AUTH worker secret SETNAME holder-7"),
        &["proto :3"],
    );
    says(&old.ask("SET orders:1 late"), &["-FENCED stale token 7 < 8"]);
}

#[test]
fn every_type_of_either_version_passes_as_it_is() {
    let (server, gate) = start_with(setup(RULES).listener("unmatched: { writes: pass }"));
    for version in ["HELLO 2", "HELLO 3"] {
        let (mut through, mut direct) = (Client::of(gate.port), server.client());
        through.ask(version);
        direct.ask(version);
        for kind in [
            "string", "integer", "double", "null", "array", "set", "map", "bignum", "true", "false",
            "verbatim",
        ] {
            let command = format!("DEBUG PROTOCOL {kind}");
            assert_eq!(through.ask(&command), direct.ask(&command), "{version} {kind}");
            assert_eq!(through.ask("PING"), "+PONG", "{version} {kind}");
        }
    }
    // What comes beside a reply.
    for kind in ["attrib", "push"] {
        let (mut through, mut direct) = (Client::of(gate.port), server.client());
        let mut whole = [Vec::new(), Vec::new()];
        for (client, bytes) in [&mut through, &mut direct].into_iter().zip(&mut whole) {
            client.send_all(&["HELLO 3", &format!("DEBUG PROTOCOL {kind}"), "PING", "QUIT"]);
            client.read_to_end(bytes);
        }
        let after_hello = |bytes: &[u8]| {
            let text = String::from_utf8_lossy(bytes).into_owned();
            text[text.find("modules").unwrap()..].to_owned()
        };
        assert_eq!(after_hello(&whole[0]), after_hello(&whole[1]), "{kind}");
        assert!(after_hello(&whole[0]).ends_with("+PONG\r\n+OK\r\n"), "{kind}");
    }
}

#[test]
fn scripts_by_their_hash_and_functions_are_fenced_by_the_keys_that_they_declare() {
    let (server, gate) = start();
    let mut client = Client::holder(&gate, 3);
    let sha = client.ask("SCRIPT LOAD return(redis.call('set',KEYS[1],'s'))");
    assert_eq!(sha.len(), 40);
    assert_eq!(client.ask(&format!("EVALSHA {sha} 1 orders:1")), "+OK");
    let library = "#!lua name=tests\nredis.register_function('put', function(keys) return redis.call('set', keys[1], 'f') end)\n\
                   redis.register_function{function_name='look', callback=function() return 1 end, flags={'no-writes'}}";
    let load = written(&[b"FUNCTION", b"LOAD", library.as_bytes()]);
    client.send_bytes(&load);
    says(&client.reply(), &["-FENCED unmatched write"]);
    let mut past = server.client();
    past.send_bytes(&load);
    assert_eq!(past.reply(), "tests");
    assert_eq!(client.ask("FCALL put 1 orders:1"), "+OK");
    assert_eq!(client.ask("FCALL_RO look 0"), ":1");
    for command in [&format!("EVALSHA {sha} 0")[..], "FCALL look 0"] {
        says(&client.ask(command), &["-FENCED unmatched write", "rule=scripts"]);
    }
    let mut old = Client::holder(&gate, 2);
    for command in [
        &format!("EVALSHA {sha} 1 orders:1")[..],
        "FCALL put 1 orders:1",
        "FCALL_RO look 1 orders:1",
    ] {
        says(&old.ask(command), &["-FENCED stale token 2 < 3"]);
    }
    assert_eq!(past.ask("GET orders:1"), "f");
}

#[test]
fn a_server_at_a_socket_in_the_file_system_is_fenced_alike() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("redis.sock");
    let server = Server::with(&[&format!("unixsocket {}", path.display())]);
    until(|| path.exists());
    let gate = setup(RULES)
        .url(&format!("unix:{}", path.display()))
        .start(server.port);
    let mut old = Client::holder(&gate, 1);
    assert_eq!(old.ask("SET orders:1 a"), "+OK");
    old.send("BLPOP orders:1:queue 0");
    until(|| server.client().ask("INFO clients").contains("blocked_clients:1"));
    let mut new = Client::holder(&gate, 2);
    assert_eq!(new.ask("SET orders:1 b"), "+OK");
    says(&old.reply(), &["-FENCED stale token 1 < 2"]);
}

/// A record of TLS that the socket has not taken whole is made all the same: none of it may go once a command in it is
/// stale, and none of it may be said to have been refused and go.
#[test]
fn what_stands_in_a_record_of_tls_that_was_not_taken_goes_nowhere_once_it_is_stale() {
    const PUSHES: usize = 12_000;
    let pki = Pki::new();
    let (server, port) = Server::behind_tls(&pki);
    let gate = setup(RULES)
        .settle_after("30s")
        .upstream(&pki.upstream())
        .start(port);
    let mut old = Client::holder(&gate, 1);
    let mut new = Client::holder(&gate, 2);
    assert_eq!(old.ask("GET orders:1"), "nil");
    assert_eq!(new.ask("GET free:1"), "nil");
    server.pause();
    let padding = vec![b'p'; 1_000];
    let mut row = written(&[b"RPUSH", b"orders:1", &padding]).repeat(PUSHES);
    // Something that may go, behind all that may not.
    row.extend(written(&[b"ECHO", &[b'e'; 100_000]]));
    let (pushed, came) = std::thread::scope(|scope| {
        let sender = &mut old;
        let sending = scope.spawn(move || {
            sender.send_bytes(&row);
            let mut replies = Vec::new();
            while replies.len() <= PUSHES && replies.last().is_none_or(|last| last != "END") {
                replies.push(sender.reply());
            }
            replies
        });
        // As much as goes is at the server's door, and what comes next is blocked.
        let mut before = 0.0;
        until(|| {
            std::thread::sleep(std::time::Duration::from_millis(200));
            let now = gate.metric("fencegate_in_flight_writes", &[]);
            std::mem::replace(&mut before, now) == now && now > 100.0
        });
        new.send("RPUSH orders:1 new");
        until(|| waiting(&gate) == 1);
        server.go_on();
        let pushed = new.reply();
        (pushed, sending.join().unwrap())
    });
    let applied = came.iter().filter(|reply| reply.starts_with(':')).count();
    assert_eq!(pushed, format!(":{}", applied + 1), "{:?}", came.last());
    assert_eq!(server.client().ask("LLEN orders:1"), format!(":{}", applied + 1));
    assert_eq!(server.client().ask("LINDEX orders:1 -1"), "new");
}
