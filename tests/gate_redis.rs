//! The Redis gate in front of a real Redis: what a paused holder wants to write late, in every way that Redis knows.

mod backends;
mod gate;
mod redis;

use std::time::{Duration, Instant};

use gate::PATIENCE;
use redis::{Client, RULES, Server, setup, start, start_with, until, waiting, written};

#[track_caller]
fn says(reply: &str, words: &[&str]) {
    for word in words {
        assert!(reply.contains(word), "{reply:?} lacks {word:?}");
    }
}

// ---- refusals in their place

#[test]
fn a_stale_token_is_refused_in_its_place_and_the_rest_of_the_pipeline_goes_on() {
    let (_server, gate) = start();
    let mut old = Client::holder(&gate, 33);
    assert_eq!(old.ask("SET orders:1 old"), "+OK");
    let mut new = Client::of(gate.port);
    assert_eq!(new.ask("CLIENT SETNAME app,fencing-token=34"), "+OK");
    assert_eq!(new.ask("SET orders:1 new"), "+OK");
    old.send_all(&["SET orders:2 a", "SET orders:1 late", "GET orders:2", "PING"]);
    let stale = "-FENCED stale token 33 < 34 resource=orders/1 rule=orders";
    assert_eq!(old.replies(4), ["+OK", stale, "a", "+PONG"]);
    assert_eq!(new.ask("GET orders:1"), "new");
    assert_eq!(old.ask("GET orders:1"), stale, "a read of one who is over");
}

#[test]
fn each_refusal_says_what_it_is_and_leaves_the_connection_usable() {
    let (server, gate) = start();
    let mut client = Client::of(gate.port);
    for (command, words) in [
        (
            "SET orders:1 x",
            &["-FENCED missing token", "resource=orders/1", "rule=orders"][..],
        ),
        ("SET x y", &["-FENCED unmatched write"]),
        ("MSET free:1 a x b", &["-FENCED unmatched write"]),
        ("FLUSHDB", &["-FENCED unmatched write"]),
        ("FLUSHALL", &["-FENCED missing token", "rule=flush"]),
        ("SWAPDB 0 1", &["-FENCED unmatched write"]),
        ("DEBUG SLEEP 0", &["-FENCED unmatched write"]),
        ("REPLICAOF no one", &["-FENCED unmatched write"]),
        ("NOSUCH a", &["-FENCED unmatched write", "nosuch"]),
        ("EVAL return(1) 0", &["-FENCED unmatched write", "rule=scripts"]),
        ("EVAL return(1) -1", &["-FENCED unmatched write"]),
        ("EVAL return(1) 9 a", &["-FENCED unmatched write"]),
        ("FENCE 1x", &["-FENCED malformed token"]),
        ("FENCE", &["-ERR wrong number of arguments"]),
        ("CLIENT SETNAME fencing-token=01", &["-FENCED malformed token"]),
        ("EXEC", &["-ERR EXEC without MULTI"]),
    ] {
        says(&client.ask(command), words);
        assert_eq!(client.ask("PING"), "+PONG", "after {command}");
    }
    assert_eq!(client.ask("SET free:1 x"), "+OK", "where a token may be missing");
    assert_eq!(client.ask("FENCE 5"), "+OK");
    assert_eq!(client.ask("SET orders:1 x"), "+OK");
    assert_eq!(client.ask("RESET"), "+RESET");
    says(&client.ask("SET orders:1 x"), &["-FENCED missing token"]);
    assert_eq!(server.client().ask("DBSIZE"), ":2", "nothing else took effect");
    let stale = gate.metric(
        "fencegate_requests_total",
        &["rule=\"orders\"", "decision=\"missing\""],
    );
    assert!(stale >= 2.0, "{stale}");
}

#[test]
fn a_malformed_token_takes_the_one_before_away() {
    let (_server, gate) = start();
    let mut client = Client::holder(&gate, 5);
    assert_eq!(client.ask("SET orders:1 x"), "+OK");
    says(&client.ask("FENCE no"), &["-FENCED malformed token"]);
    says(&client.ask("SET orders:1 x"), &["-FENCED missing token"]);
}

#[test]
fn a_hello_and_a_later_name_carry_the_token() {
    let (_server, gate) = start();
    let mut client = Client::of(gate.port);
    assert!(client.ask("HELLO 3 SETNAME fencing-token=7").starts_with('{'));
    assert_eq!(client.ask("SET orders:1 x"), "+OK");
    says(&client.ask("HELLO 4"), &["NOPROTO"]);
    assert_eq!(client.ask("CLIENT SETNAME plain"), "+OK");
    says(&client.ask("SET orders:1 x"), &["-FENCED missing token"]);
}

// ---- transactions

#[test]
fn a_transaction_that_turned_stale_before_exec_is_given_up_whole() {
    let (_server, gate) = start();
    let mut old = Client::holder(&gate, 40);
    assert_eq!(old.ask("MULTI"), "+OK");
    assert_eq!(old.ask("SET orders:1 old"), "+QUEUED");
    assert_eq!(old.ask("SET orders:2 old"), "+QUEUED");
    let mut new = Client::holder(&gate, 41);
    assert_eq!(new.ask("SET orders:1 new"), "+OK");
    says(&old.ask("EXEC"), &["-FENCED stale token 40 < 41", "orders/1"]);
    assert_eq!(new.ask("GET orders:2"), "nil", "nothing is half applied");
    says(&old.ask("DISCARD"), &["DISCARD without MULTI"]);
    assert_eq!(
        old.ask("SET orders:3 x"),
        "+OK",
        "the connection is out of its transaction"
    );
}

#[test]
fn a_refusal_inside_a_transaction_aborts_it() {
    let (_server, gate) = start();
    let mut client = Client::holder(&gate, 1);
    client.send_all(&[
        "MULTI",
        "SET orders:1 a",
        "SET x a",
        "PING",
        "EXEC",
        "GET orders:1",
    ]);
    let replies = client.replies(6);
    says(&replies[2], &["-FENCED unmatched write"]);
    says(&replies[4], &["-EXECABORT"]);
    assert_eq!((&*replies[3], &*replies[5]), ("+QUEUED", "nil"));
}

#[test]
fn queued_commands_raise_only_at_exec() {
    let (_server, gate) = start();
    let mut new = Client::holder(&gate, 9);
    let mut old = Client::holder(&gate, 8);
    assert_eq!(old.ask("SET orders:1 a"), "+OK");
    new.send_all(&["MULTI", "SET orders:1 b"]);
    assert_eq!(new.replies(2), ["+OK", "+QUEUED"]);
    assert_eq!(old.ask("SET orders:1 c"), "+OK", "8 is still the highest");
    assert_eq!(new.ask("EXEC"), "[+OK]");
    says(&old.ask("SET orders:1 d"), &["-FENCED stale token 8 < 9"]);
}

#[test]
fn a_watched_key_that_changed_makes_exec_do_nothing_and_settles_it() {
    let (_server, gate) = start();
    let mut one = Client::holder(&gate, 1);
    let mut other = Client::holder(&gate, 1);
    assert_eq!(one.ask("WATCH orders:1"), "+OK");
    assert_eq!(other.ask("SET orders:1 b"), "+OK");
    one.send_all(&["MULTI", "SET orders:1 a", "EXEC"]);
    assert_eq!(one.replies(3), ["+OK", "+QUEUED", "nil"]);
    let mut new = Client::holder(&gate, 2);
    assert_eq!(new.ask("SET orders:1 c"), "+OK", "nothing is in flight");
}

#[test]
fn a_transaction_by_another_name_is_no_way_round() {
    let server = Server::with(&["rename-command MULTI begin", "rename-command EXEC finish"]);
    let gate = setup(RULES).start(server.port);
    let mut client = Client::holder(&gate, 1);
    says(&client.ask("begin"), &["-FENCED unmatched write"]);
    says(&client.ask("finish"), &["-FENCED unmatched write"]);
    assert_eq!(client.ask("SET orders:1 x"), "+OK");
}

// ---- scripts

#[test]
fn a_script_writes_what_it_declares() {
    let (_server, gate) = start();
    let mut client = Client::holder(&gate, 3);
    let set = "return redis.call('set',KEYS[1],'s')".replace(' ', "\t");
    assert_eq!(client.ask(&format!("EVAL {set} 1 orders:1")), "+OK");
    says(
        &client.ask(&format!("EVAL {set} 1 x")),
        &["-FENCED unmatched write"],
    );
    assert_eq!(client.ask("EVAL_RO return(1) 0"), ":1");
    let mut old = Client::holder(&gate, 2);
    says(
        &old.ask(&format!("EVAL {set} 1 orders:1")),
        &["-FENCED stale token 2 < 3"],
    );
    assert_eq!(
        client.ask("SORT orders:1:l STORE orders:1:m"),
        ":0",
        "asked of the server"
    );
    says(
        &client.ask("SORT orders:1:l STORE x"),
        &["-FENCED unmatched write"],
    );
    assert_eq!(client.ask("COPY x orders:1:y"), ":0", "a source is only read");
}

// ---- what is on its way

#[test]
fn a_write_that_the_server_has_not_done_yet_holds_the_new_holder_back() {
    let (server, gate) = start();
    let mut old = Client::holder(&gate, 1);
    let mut new = Client::holder(&gate, 2);
    assert_eq!(old.ask("SET orders:1 a"), "+OK");
    assert_eq!(new.ask("SET orders:2 a"), "+OK");
    server.pause();
    old.send("SET orders:1 old");
    until(|| gate.metric("fencegate_in_flight_writes", &[]) >= 1.0);
    new.send("SET orders:1 new");
    until(|| waiting(&gate) == 1);
    server.go_on();
    assert_eq!((old.reply(), new.reply()), ("+OK".into(), "+OK".into()));
    assert_eq!(new.ask("GET orders:1"), "new");
}

#[test]
fn a_new_token_on_the_same_connection_waits_for_its_own_older_writes() {
    let (server, gate) = start();
    let mut client = Client::holder(&gate, 1);
    assert_eq!(client.ask("SET orders:1 a"), "+OK");
    server.pause();
    client.send_all(&[
        "SET orders:1 b",
        "FENCE 2",
        "SET orders:1 c",
        "FENCE 1",
        "SET orders:1 d",
    ]);
    until(|| gate.metric("fencegate_in_flight_writes", &[]) >= 1.0);
    server.go_on();
    let replies = client.replies(5);
    assert_eq!(replies[..4], ["+OK", "+OK", "+OK", "+OK"]);
    says(&replies[4], &["-FENCED stale token 1 < 2"]);
}

#[test]
fn a_lost_reply_is_in_doubt_for_settle_after() {
    let rules = setup(RULES)
        .settle_after("1500ms")
        .upstream("response_timeout: 300ms");
    let (server, gate) = start_with(rules);
    let mut old = Client::holder(&gate, 1);
    assert_eq!(old.ask("SET orders:1 a"), "+OK");
    server.pause();
    old.send("SET orders:1 old");
    assert_eq!(old.reply(), "END", "its client can't be told what became of it");
    let lost = Instant::now();
    assert_eq!(gate.metric("fencegate_in_doubt_writes", &[]), 1.0);
    server.go_on();
    let mut new = Client::holder(&gate, 2);
    assert_eq!(new.ask("SET orders:1 new"), "+OK");
    assert!(
        lost.elapsed() >= Duration::from_millis(1400),
        "{:?}",
        lost.elapsed()
    );
    assert_eq!(new.ask("GET orders:1"), "new");
}

#[test]
fn after_kill_9_of_the_gate_a_new_holder_waits_out_what_was_on_its_way() {
    let (server, mut gate) = start_with(setup(RULES).settle_after("1500ms"));
    let mut old = Client::holder(&gate, 1);
    assert_eq!(old.ask("SET orders:1 a"), "+OK");
    server.pause();
    old.send("SET orders:1 late");
    until(|| gate.metric("fencegate_in_flight_writes", &[]) >= 1.0);
    gate.kill();
    let killed = Instant::now();
    gate.start();
    let mut same = Client::holder(&gate, 1);
    let mut new = Client::holder(&gate, 2);
    new.send("SET orders:1 new");
    server.go_on();
    assert_eq!(new.reply(), "+OK");
    assert!(
        killed.elapsed() >= Duration::from_millis(1400),
        "{:?}",
        killed.elapsed()
    );
    says(&same.ask("SET orders:1 late"), &["-FENCED stale token 1 < 2"]);
    assert_eq!(server.client().ask("GET orders:1"), "new");
}

#[test]
fn a_half_sent_value_neither_blocks_the_new_holder_nor_takes_effect() {
    let (_server, gate) = start();
    let mut old = Client::holder(&gate, 1);
    assert_eq!(old.ask("SET orders:1 a"), "+OK");
    let mut half = written(&[b"GET", b"orders:1"]);
    half.extend_from_slice(b"*3\r\n$3\r\nSET\r\n$8\r\norders:1\r\n$2000000\r\n");
    half.resize(half.len() + 1_000_000, b'z');
    old.send_bytes(&half);
    assert_eq!(old.reply(), "a");
    let mut new = Client::holder(&gate, 2);
    assert_eq!(new.ask("SET orders:1 b"), "+OK");
    says(&old.reply(), &["-FENCED stale token 1 < 2"]);
    assert_eq!(old.reply(), "END");
    assert_eq!(new.ask("GET orders:1"), "b");
}

#[test]
fn large_values_pass_through_and_leave_no_trace_in_memory() {
    let (_server, gate) = start();
    let mut client = Client::holder(&gate, 1);
    let value = vec![b'v'; 64 << 20];
    client.send_bytes(&written(&[b"SET", b"orders:1", &value]));
    assert_eq!(client.reply(), "+OK");
    assert_eq!(client.ask("STRLEN orders:1"), format!(":{}", 64 << 20));
    let peak = gate.memory_kib("VmHWM:");
    assert!(peak < 60_000, "{peak} KiB");
    // Keys behind large values: they are waited for.
    let value = vec![b'v'; 200_000];
    client.send_bytes(&written(&[b"MSET", b"orders:1", &value, b"x", &value]));
    says(&client.reply(), &["-FENCED unmatched write"]);
    client.send_bytes(&written(&[b"MSET", b"orders:1", &value, b"orders:2", &value]));
    assert_eq!(client.reply(), "+OK");
    let mut old = Client::holder(&gate, 0);
    old.send_bytes(&written(&[b"SET", b"orders:1", &value]));
    says(&old.reply(), &["-FENCED stale token 0 < 1"]);
    assert_eq!(old.ask("PING"), "+PONG", "the refused value was read to its end");
}

#[test]
fn a_write_whose_client_has_left_is_followed_to_its_reply() {
    let (server, gate) = start();
    let mut old = Client::holder(&gate, 1);
    assert_eq!(old.ask("SET orders:1 a"), "+OK");
    server.pause();
    old.send("SET orders:1 b");
    until(|| gate.metric("fencegate_in_flight_writes", &[]) >= 1.0);
    drop(old);
    server.go_on();
    until(|| gate.metric("fencegate_in_flight_writes", &[]) == 0.0);
    assert_eq!(gate.metric("fencegate_in_doubt_writes", &[]), 0.0);
}

#[test]
fn a_client_that_reads_no_replies_holds_up_nobody_on_any_resource() {
    let (server, gate) = start();
    let value = vec![b'v'; 8 << 20];
    let mut server = server.client();
    server.send_bytes(&written(&[b"SET", b"free:1", &value]));
    assert_eq!(server.reply(), "+OK");
    let mut old = Client::holder(&gate, 1);
    old.send_all(&[
        "GET free:1",
        "GET free:1",
        "GET free:1",
        "RPUSH orders:1 a",
        "RPUSH orders:2 a",
    ]);
    until(|| server.ask("LLEN orders:2") == ":1");
    let mut new = Client::holder(&gate, 2);
    assert_eq!(new.ask("RPUSH orders:2 b"), ":2");
}

// ---- blocking

#[test]
fn a_raise_ends_a_blocking_pop() {
    let (_server, gate) = start();
    let mut old = Client::holder(&gate, 1);
    old.send("BLPOP orders:1 0");
    until(|| gate.metric("fencegate_in_flight_writes", &[]) >= 1.0);
    let mut new = Client::holder(&gate, 2);
    assert_eq!(new.ask("RPUSH orders:1 x"), ":1");
    says(&old.reply(), &["-FENCED stale token 1 < 2"]);
    assert_eq!(old.ask("PING"), "+PONG");
    assert_eq!(new.ask("BLPOP orders:1 1"), "[orders:1 x]");
    assert_eq!(new.ask("BLPOP orders:1 0.01"), "nil");
}

#[test]
fn many_blocked_clients_hold_up_nobody_and_leave_with_theirs() {
    let (server, gate) = start();
    let mut blocked: Vec<Client> = (0..50)
        .map(|n| {
            let mut client = Client::holder(&gate, 1);
            client.send(&format!("BLPOP orders:q{n} 0"));
            client
        })
        .collect();
    until(|| gate.metric("fencegate_in_flight_writes", &[]) == 50.0);
    let mut other = Client::holder(&gate, 2);
    assert_eq!(other.ask("SET orders:1 x"), "+OK");
    blocked.truncate(10);
    until(|| gate.metric("fencegate_in_flight_writes", &[]) == 10.0);
    assert_eq!(
        gate.metric("fencegate_in_doubt_writes", &[]),
        0.0,
        "each was woken and replied"
    );
    assert_eq!(server.client().ask("RPUSH orders:q3 v"), ":1");
    assert_eq!(blocked[3].reply(), "[orders:q3 v]");
}

#[test]
fn a_stop_wakes_who_is_blocked_and_is_clean() {
    let (_server, mut gate) = start();
    let mut client = Client::holder(&gate, 1);
    client.send("BLPOP orders:1 0");
    until(|| gate.metric("fencegate_in_flight_writes", &[]) >= 1.0);
    assert_eq!(gate.stop(), Some(0));
}

// ---- what belongs to a connection

#[test]
fn what_belongs_to_a_connection_stays_its_own() {
    let (_server, gate) = start();
    let mut one = Client::holder(&gate, 1);
    assert_eq!(one.ask("SELECT 5"), "+OK");
    assert_eq!(one.ask("SET orders:1 five"), "+OK");
    assert_eq!(one.ask("WATCH orders:1"), "+OK");
    drop(one);
    let mut two = Client::of(gate.port);
    assert_eq!(two.ask("GET orders:1"), "nil", "database 0");
    says(&two.ask("SET orders:1 x"), &["-FENCED missing token"]);
}

#[test]
fn replies_that_a_client_does_not_want_do_not_come_and_count_all_the_same() {
    let (_server, gate) = start();
    let mut client = Client::holder(&gate, 1);
    client.send_all(&[
        "CLIENT REPLY OFF",
        "SET orders:1 a",
        "SET x a",
        "CLIENT REPLY ON",
        "GET orders:1",
        "CLIENT REPLY SKIP",
        "SET orders:1 b",
        "GET orders:1",
    ]);
    assert_eq!(client.replies(3), ["+OK", "a", "b"]);
    let mut new = Client::holder(&gate, 2);
    assert_eq!(new.ask("SET orders:1 c"), "+OK", "nothing is left in flight");
}

#[test]
fn messages_and_pushes_are_no_replies() {
    let (_server, gate) = start();
    let mut writer = Client::holder(&gate, 1);
    let mut second = Client::of(gate.port);
    second.send("SUBSCRIBE a b");
    assert_eq!(second.replies(2), ["[subscribe a :1]", "[subscribe b :2]"]);
    assert_eq!(writer.ask("PUBLISH a hi"), ":1");
    assert_eq!(second.reply(), "[message a hi]");
    assert_eq!(second.ask("PING"), "[pong ]");
    second.send("UNSUBSCRIBE");
    assert_eq!(second.replies(2).len(), 2);
    assert_eq!(second.ask("GET orders:1"), "nil");

    let mut third = Client::of(gate.port);
    assert!(third.ask("HELLO 3").starts_with('{'));
    assert_eq!(third.ask("CLIENT TRACKING ON"), "+OK");
    third.send("SUBSCRIBE a");
    assert_eq!(third.reply(), ">[subscribe a :1]");
    assert_eq!(third.ask("GET orders:1"), "nil");
    assert_eq!(writer.ask("SET orders:1 v"), "+OK");
    assert_eq!(third.reply(), ">[invalidate [orders:1]]");
    third.send_all(&["GET orders:1"; 200]);
    let mut replies = third.replies(100);
    assert_eq!(writer.ask("SET orders:1 w"), "+OK");
    replies.extend(third.replies(101));
    assert_eq!(replies.iter().filter(|reply| reply.starts_with('>')).count(), 1);
}

#[test]
fn a_push_in_the_middle_of_a_reply_is_none_of_its_elements() {
    let server = Server::with(&["notify-keyspace-events KEA"]);
    let gate = setup(RULES).start(server.port);
    let mut client = Client::holder(&gate, 5);
    assert!(client.ask("HELLO 3").starts_with('{'));
    client.send("PSUBSCRIBE c __keyevent@0__:zpopmin");
    assert_eq!(client.replies(2).len(), 2);
    client.send_all(&["MULTI", "PUBLISH c m", "RPUSH orders:1 x", "EXEC", "PING"]);
    assert_eq!(client.replies(3), ["+OK", "+QUEUED", "+QUEUED"]);
    let push = |channel: &str, message: &str| {
        let words = ["pmessage", channel, channel, message].map(|word| format!("${}\n{word}\n", word.len()));
        format!(">4\n{}", words.concat())
    };
    let lines = |client: &mut Client, text: &str| {
        for line in text.lines() {
            assert_eq!(client.line(), line, "of {text:?}");
        }
    };
    lines(&mut client, &format!("*2\n{}:1\n:1\n+PONG\n", push("c", "m")));
    assert_eq!(client.ask("ZADD orders:2 1 a"), ":1");
    client.send_all(&["ZPOPMIN orders:2 1", "RPUSH orders:1 y"]);
    let popped = push("__keyevent@0__:zpopmin", "orders:2");
    lines(&mut client, &format!("*1\n{popped}*2\n$1\na\n,1\n:2\n"));
    assert_eq!(Client::holder(&gate, 6).ask("RPUSH orders:1 z"), ":3");
}

#[test]
fn who_reads_no_answers_of_the_gates_own_can_not_send_for_ever() {
    let (_server, gate) = start();
    let mut client = Client::of(gate.port);
    client.give_up_sending_after(Duration::from_secs(3));
    let commands = b"FENCE\r\n".repeat(64 * 1024);
    let mut sent = 0;
    while let Ok(taken) = client.try_send(&commands[sent % commands.len()..]) {
        sent += taken;
        assert!(
            sent < 40 * 1024 * 1024,
            "all of it is kept for a client that does not read"
        );
    }
    for _ in 0..sent / b"FENCE\r\n".len() {
        assert_eq!(
            client.line(),
            "-ERR wrong number of arguments for 'fence' command"
        );
    }
}

#[test]
fn monitoring_is_possible_and_nothing_else_beside_it() {
    let (_server, gate) = start();
    let mut client = Client::of(gate.port);
    assert_eq!(client.ask("MONITOR"), "+OK");
    assert_eq!(Client::holder(&gate, 1).ask("SET orders:1 x"), "+OK");
    while !client.reply().contains("orders:1") {}
    client.send("QUIT");
    while client.reply() != "END" {}
}

#[test]
fn typed_commands_are_fenced_like_all_others() {
    let (_server, gate) = start();
    let mut client = Client::of(gate.port);
    client.send_bytes(b"SET orders:1 x\r\n\r\nFENCE 3\nSET \"orders:1\" \"a b\"\r\nGET orders:1\r\nQUIT\r\n");
    says(&client.reply(), &["-FENCED missing token"]);
    assert_eq!(client.replies(5), ["+OK", "+OK", "a b", "+OK", "END"]);
    let mut client = Client::of(gate.port);
    client.send_bytes(b"POST / HTTP/1.1\r\nHost: x\r\n\r\nSET free:1 x\r\n");
    says(&client.reply(), &["-ERR Protocol error"]);
    assert_eq!(client.reply(), "END");
    for bad in [
        &b"*3\r\n$3\r\nSET\r\n$8\r\norders:1\r\n$536870913\r\n"[..],
        b"*1048577\r\n",
        b"*1\r\n$-1\r\n",
    ] {
        let mut client = Client::of(gate.port);
        client.send_bytes(bad);
        says(&client.reply(), &["-ERR Protocol error"]);
        assert_eq!(client.reply(), "END");
    }
}

#[test]
fn a_session_reads_the_same_however_it_is_cut() {
    let (_server, gate) = start();
    let mut session = Vec::new();
    for command in [
        "FENCE 3",
        "MULTI",
        "SET orders:1 a",
        "EXEC",
        "SET x 1",
        "GET orders:1",
        "PING",
    ] {
        session.extend(written(
            &command.split(' ').map(str::as_bytes).collect::<Vec<_>>(),
        ));
    }
    session.extend_from_slice(b"SET orders:1 'b c'\r\n");
    let run = |cuts: &[usize]| {
        let mut client = Client::of(gate.port);
        let mut from = 0;
        for cut in cuts.iter().chain([&session.len()]) {
            client.send_bytes(&session[from..*cut]);
            from = *cut;
        }
        client.replies(8)
    };
    let whole = run(&[]);
    assert_eq!((&*whole[3], &*whole[5], &*whole[7]), ("[+OK]", "a", "+OK"));
    for cut in 1..session.len() {
        assert_eq!(run(&[cut]), whole, "cut at {cut}");
    }
}

#[test]
fn ten_thousand_commands_in_a_pipeline_keep_their_order() {
    let (_server, gate) = start();
    let mut client = Client::holder(&gate, 1);
    let mut all = Vec::new();
    for n in 0..10_000 {
        all.extend(written(&[b"SET", b"orders:1", n.to_string().as_bytes()]));
        all.extend(written(&[b"GETDEL", b"orders:1"]));
    }
    client.send_bytes(&all);
    for n in 0..10_000 {
        assert_eq!(client.reply(), "+OK");
        assert_eq!(client.reply(), n.to_string());
    }
}

// ---- the gate's own questions

#[test]
fn a_server_with_a_password_is_asked_with_the_gates_own() {
    let server = Server::with(&["requirepass a-secret-of-the-server"]);
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("password");
    std::fs::write(&file, "a-secret-of-the-server\n").unwrap();
    let line = format!("password_file: {}", file.display());
    let gate = setup(RULES).upstream(&line).start(server.port);
    let mut client = Client::holder(&gate, 1);
    says(&client.ask("SET orders:1 x"), &["NOAUTH"]);
    assert_eq!(client.ask("AUTH a-secret-of-the-server"), "+OK");
    assert_eq!(client.ask("SET orders:1 x"), "+OK");
    let closed = setup(RULES).start(server.port);
    says(
        &Client::holder(&closed, 1).ask("SET orders:1 x"),
        &["-FENCED upstream unreachable", "NOAUTH"],
    );
}

#[test]
fn a_server_that_is_away_or_comes_back_is_no_ones_end_but_its_connections() {
    let (server, gate) = start();
    let port = server.port;
    let mut client = Client::holder(&gate, 1);
    assert_eq!(client.ask("SET orders:1 x"), "+OK");
    drop(server);
    assert_eq!(client.reply(), "END");
    let mut client = Client::holder(&gate, 1);
    says(&client.ask("SET orders:1 x"), &["-FENCED upstream unreachable"]);
    let again = Server::at(port, &[]);
    until(|| client.ask("SET orders:1 x") == "+OK");
    drop(again);
}

#[test]
fn what_follows_a_transaction_or_a_database_that_can_not_be_had_reaches_nobody() {
    let (server, gate) = start();
    let port = server.port;
    drop(server);
    for first in ["MULTI", "SELECT 1"] {
        let mut client = Client::holder(&gate, 1);
        says(&client.ask(first), &["-FENCED upstream unreachable"]);
        let again = Server::at(port, &[]);
        client.send_all(&["SET orders:1 x", "EXEC"]);
        assert_eq!(client.reply(), "END", "after {first}");
        assert_eq!(again.client().ask("DBSIZE"), ":0", "after {first}");
    }
}

#[test]
fn a_rule_that_observes_refuses_nothing_and_counts() {
    let rules = "\n      - { name: orders, match: { keys: \"orders:{id}*\" }, resource: \"orders/{id}\", token: { connection: true }, mode: observe }\n";
    let (_server, gate) = start_with(setup(rules));
    assert_eq!(Client::holder(&gate, 2).ask("SET orders:1 b"), "+OK");
    assert_eq!(Client::holder(&gate, 1).ask("SET orders:1 a"), "+OK");
    assert_eq!(Client::of(gate.port).ask("SET orders:1 c"), "+OK");
    for decision in ["raised", "stale", "missing"] {
        let count = gate.metric(
            "fencegate_requests_total",
            &["observe", &format!("decision=\"{decision}\"")],
        );
        assert_eq!(count, 1.0, "{decision}");
    }
    let passed = gate.metric("fencegate_requests_total", &["decision=\"passed\""]);
    assert_eq!(passed, 0.0, "each counts once");
    gate.wait_for_log("observed: would be refused");
    for words in [
        "command=\"SET\"",
        "reason=\"stale-token\"",
        "highest=\"2\"",
        "reason=\"missing-token\"",
    ] {
        says(&gate.log(), &[words]);
    }
}

#[test]
fn explain_asks_the_server_which_keys_a_command_touches() {
    let (_server, gate) = start();
    let explain = |words: &[&str]| {
        let output = std::process::Command::new(env!("CARGO_BIN_EXE_fencegate"))
            .args(["explain", "-c"])
            .arg(gate.folder.path().join("fencegate.yaml"))
            .args(["--listener", "store"])
            .args(words)
            .output()
            .unwrap();
        String::from_utf8(output.stdout).unwrap()
    };
    let text = explain(&["--token", "34", "COPY", "x", "orders:1"]);
    says(
        &text,
        &[
            "copy, a write",
            "x, read",
            "orders:1, written",
            "orders/1 by rule orders, token 34",
            "compared",
        ],
    );
    says(
        &explain(&["SET", "orders:1", "x"]),
        &["refused by rule orders (missing-token)"],
    );
    says(&explain(&["PING"]), &["passes"]);
    says(&explain(&["GET", "x"]), &["no write", "passes"]);
    says(&explain(&["FENCE", "3"]), &["the gate's own"]);
    says(&explain(&["MULTI"]), &["begins a transaction"]);
    says(&explain(&["PSYNC", "?", "-1"]), &["a read of everything"]);
}

// ---- real clients

#[test]
fn redis_py_tells_its_token_and_sees_the_refusal() {
    let (_server, gate) = start();
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/clients/redis_py.py");
    let folder = tempfile::tempdir().unwrap();
    let mut command = backends::program(&backends::python(), folder.path());
    command.arg(script).arg(gate.port.to_string());
    let said = backends::run(&mut command);
    said.is_fine();
    assert_eq!(said.out.trim(), "fine");
}

#[test]
fn redis_cli_and_redis_benchmark_work_through_the_gate() {
    let (_server, gate) = start();
    let folder = tempfile::tempdir().unwrap();
    let port = gate.port.to_string();
    let mut cli = backends::program("/usr/bin/redis-cli", folder.path());
    cli.args(["-p", &port, "SET", "free:1", "x"]);
    assert_eq!(backends::run(&mut cli).is_fine().out.trim(), "OK");
    let mut benchmark = backends::program("/usr/bin/redis-benchmark", folder.path());
    benchmark.args([
        "-p",
        &port,
        "-n",
        "2000",
        "-c",
        "10",
        "-P",
        "8",
        "-q",
        "SET",
        "free:__rand_int__",
        "x",
    ]);
    backends::run(&mut benchmark).is_fine();
}

// ---- the checker

/// Each write appends its token to its key's list: whatever happens, a list never goes down.
#[test]
fn appended_tokens_never_go_down_whatever_happens() {
    let (server, mut gate) = start_with(
        setup(RULES)
            .settle_after("300ms")
            .upstream("response_timeout: 200ms"),
    );
    let mut dice = 0x9E37_79B9_7F4A_7C15_u64;
    let mut draw = |below: u64| {
        dice ^= dice << 13;
        dice ^= dice >> 7;
        dice ^= dice << 17;
        dice % below
    };
    let rounds: u64 = if gate::is_long_run() { 40 } else { 4 };
    for round in 0..rounds {
        let first = round * 100 + 1;
        let port = gate.port;
        let holders: Vec<_> = (0..6)
            .map(|n| (draw(u64::MAX) | 1, first + n))
            .map(|(seed, token)| std::thread::spawn(move || hold(port, seed, token)))
            .collect();
        for _ in 0..3 {
            std::thread::sleep(Duration::from_millis(30 + draw(60)));
            server.pause();
            std::thread::sleep(Duration::from_millis(draw(300)));
            server.go_on();
        }
        if round % 2 == 1 {
            gate.kill();
            gate.start();
        }
        holders.into_iter().for_each(|holder| holder.join().unwrap());
        check_lists(&server);
    }
}

fn check_lists(server: &Server) {
    let mut client = server.client();
    for key in 0..3 {
        let list = client.ask(&format!("LRANGE orders:{key} 0 -1"));
        let tokens: Vec<u64> = list
            .trim_matches(['[', ']'])
            .split_whitespace()
            .map(|token| token.parse().unwrap())
            .collect();
        assert!(tokens.is_sorted(), "orders:{key}: {list}");
    }
}

/// One holder: writes in every way until its token is over, its connection broken, or its time up.
fn hold(port: u16, mut seed: u64, token: u64) {
    let Ok(socket) = std::net::TcpStream::connect(("127.0.0.1", port)) else {
        return;
    };
    drop(socket);
    let end = Instant::now() + PATIENCE.min(Duration::from_millis(600));
    let mut client = Client::of(port);
    if client.ask(&format!("FENCE {token}")) != "+OK" {
        return;
    }
    while Instant::now() < end {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        let push = format!("RPUSH orders:{} {token}", seed % 3);
        let count = match seed % 5 {
            0 | 1 => {
                client.send(&push);
                1
            }
            2 => {
                client.send_all(&[&push, &push, "PING", &push]);
                4
            }
            3 => {
                client.send_all(&["MULTI", &push, &push, "EXEC"]);
                4
            }
            _ => {
                let script = "return(redis.call('rpush',KEYS[1],ARGV[1]))";
                client.send(&format!("EVAL {script} 1 orders:{} {token}", seed % 3));
                1
            }
        };
        if client.replies(count).iter().any(|reply| reply == "END") {
            return;
        }
    }
}
