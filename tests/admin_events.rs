//! `GET /api/v1/events`: a client that reads the stream by hand, while requests go through a real gate.

mod backends;
mod gate;
mod redis;

use std::io;
use std::net::TcpStream;
use std::sync::Arc;

use fencegate::observe::events::{FOLLOWERS_MAX, KEPT_MAX, REFUSALS_PER_SECOND_MAX};
use gate::{Ask, Conn, Gate, PATIENCE, Pki, Setup, Stub, ask, start_with};
use rustls::ClientConfig;
use serde_json::{Value, json};
use socket2::{Domain, SockRef, Socket, Type};

const EVENTS: &str = "/api/v1/events";

/// One event, as a client gets it.
#[derive(Debug)]
struct Event {
    id: String,
    name: String,
    data: Value,
}

impl Event {
    fn sequence(&self) -> u64 {
        self.data["sequence"].as_u64().unwrap()
    }

    /// Asserts its type and these members.
    #[track_caller]
    fn is(&self, name: &str, members: &Value) -> &Self {
        assert_eq!(self.name, name, "{self:?}");
        assert_eq!(self.data["type"], name, "{self:?}");
        for (key, value) in members.as_object().unwrap() {
            assert_eq!(self.data[key], *value, "{key} of {self:?}");
        }
        let at = self.data["at"].as_str().unwrap();
        assert!(at.len() == 24 && at.ends_with('Z'), "{at}");
        self
    }
}

/// A client that listens.
struct Listener {
    conn: Conn,
    head: String,
    text: String,
}

impl Listener {
    /// Asks for the stream; `fields` are further lines of the head.
    fn ask(mut conn: Conn, fields: &str) -> Listener {
        conn.send(format!(
            "GET {EVENTS} HTTP/1.1\r\nHost: localhost\r\n{fields}\r\n"
        ));
        let head = conn.read_head().unwrap();
        Listener {
            conn,
            head,
            text: String::new(),
        }
    }

    #[track_caller]
    fn open(gate: &Gate) -> Listener {
        Listener::resume(gate, "")
    }

    #[track_caller]
    fn resume(gate: &Gate, fields: &str) -> Listener {
        Listener::ask(Conn::open(gate.admin), fields).checked()
    }

    #[track_caller]
    fn open_tls(gate: &Gate, config: &Arc<ClientConfig>) -> Listener {
        Listener::ask(Conn::open_tls(gate.admin, config), "").checked()
    }

    #[track_caller]
    fn checked(self) -> Listener {
        let head = self.head.to_ascii_lowercase();
        assert!(head.starts_with("http/1.1 200 "), "{head}");
        assert!(head.contains("\r\ncontent-type: text/event-stream"), "{head}");
        assert!(head.contains("\r\ncache-control: no-store"), "{head}");
        self
    }

    /// The next chunk; empty at the end.
    fn chunk(&mut self) -> io::Result<Vec<u8>> {
        let mut line = Vec::new();
        while !line.ends_with(b"\r\n") {
            line.extend(self.conn.read_exactly(1)?);
        }
        let size = usize::from_str_radix(str::from_utf8(&line[..line.len() - 2]).unwrap(), 16).unwrap();
        let chunk = self.conn.read_exactly(size)?;
        assert_eq!(self.conn.read_exactly(2)?, b"\r\n");
        Ok(chunk)
    }

    /// The next event; `None` at the end.
    #[track_caller]
    fn try_next(&mut self) -> Option<Event> {
        loop {
            while let Some((block, rest)) = self.text.split_once("\n\n") {
                let (block, rest) = (block.to_owned(), rest.to_owned());
                self.text = rest;
                if let Some(event) = read(&block) {
                    return Some(event);
                }
            }
            let chunk = self.chunk().unwrap();
            if chunk.is_empty() {
                return None;
            }
            self.text.push_str(&String::from_utf8(chunk).unwrap());
        }
    }

    #[track_caller]
    fn next(&mut self) -> Event {
        self.try_next().expect("the stream goes on")
    }

    /// The next event of this name.
    #[track_caller]
    fn next_of(&mut self, name: &str) -> Event {
        loop {
            let event = self.next();
            if event.name == name {
                return event;
            }
        }
    }
}

/// A block without data is a comment, or says how long to wait.
fn read(block: &str) -> Option<Event> {
    let field = |name: &str| {
        let mut lines = block.lines().filter_map(|line| line.strip_prefix(name));
        let value = lines.next().map(str::to_owned);
        assert_eq!(lines.next(), None, "{block}");
        value
    };
    let data = field("data: ")?;
    Some(Event {
        id: field("id: ").unwrap(),
        name: field("event: ").unwrap(),
        data: serde_json::from_str(&data).unwrap(),
    })
}

fn put(target: &str, token: u64) -> Ask {
    ask("PUT", target).token(token).body("text")
}

fn in_memory() -> Setup {
    Setup {
        store: "{ kind: memory }".into(),
        ..Setup::default()
    }
}

fn post(gate: &Gate, path: &str, order: &Value) -> u16 {
    let ask = ask("POST", path).field("Content-Type", "application/json");
    let mut bytes = ask.body(order.to_string()).bytes();
    // The harness names the store.
    let text = String::from_utf8(std::mem::take(&mut bytes)).unwrap();
    let mut conn = Conn::open(gate.admin);
    conn.send(text.replace("Host: store.test", "Host: localhost"));
    conn.reply().status
}

#[test]
fn raises_and_refusals_are_told_as_they_happen() {
    let (_stub, gate) = start_with(Setup::default());
    gate.send(put("/docs/report", 32)).is_ok();
    gate.send(put("/docs/report", 31)).is(412, "stale-token");
    let mut listener = Listener::open(&gate);
    let first = listener.next();
    // What came before anybody listened was never built.
    first.is("ownership", &json!({ "role": "active", "sequence": 0 }));

    gate.send(put("/docs/report", 33)).is_ok();
    let raise = listener.next();
    raise.is(
        "raise",
        &json!({
            "sequence": 1, "resource": "bucket/docs", "token": "33", "highest": "33", "reason": "request",
        }),
    );
    assert!(raise.data["drained_ms"].is_u64(), "{raise:?}");
    // An equal token is no event.
    gate.send(put("/docs/report", 33)).is_ok();
    gate.send(put("/docs/late?X-Amz-Signature=secret", 32))
        .is(412, "stale-token");
    let refusal = listener.next();
    refusal.is(
        "refusal",
        &json!({
            "sequence": 2, "resource": "bucket/docs", "token": "32", "highest": "33", "rule": "bucket",
            "listener": "store", "mode": "enforce", "reason": "stale-token", "status": 412,
            "client": "127.0.0.1", "method": "PUT", "path": "/docs/late",
        }),
    );
    assert!(refusal.id.ends_with("-2"), "{refusal:?}");
    gate.send(ask("PUT", "/docs/report").body("text"))
        .is(428, "missing-token");
    let missing = listener.next();
    missing.is("refusal", &json!({ "reason": "missing-token", "rule": "bucket" }));
    assert!(missing.data.get("token").is_none(), "{missing:?}");
    gate.send(put("/docs/..%2Fother", 99)).is(400, "ambiguous-path");
    listener.next().is(
        "refusal",
        &json!({ "reason": "ambiguous-path", "path": "/docs/..%2Fother" }),
    );
    gate.wait_for_log("client=\"127.0.0.1\" method=\"PUT\" path=\"/docs/late\"");
    assert!(!gate.log().contains("secret"), "{}", gate.log());
}

#[test]
fn tokens_are_written_in_the_rules_format() {
    let rule = r#"
      - name: zk
        match: { path: "/{bucket}/{*key}" }
        resource: "bucket/{bucket}"
        token: { header: Fencing-Token, format: hex }
"#;
    let (_stub, gate) = start_with(Setup::rules(rule));
    let mut listener = Listener::open(&gate);
    let send = |token: &str| ask("PUT", "/docs/a").token(token).body("text").send(gate.port);
    send("0xFF").is_ok();
    listener
        .next_of("raise")
        .is("raise", &json!({ "token": "ff", "highest": "ff" }));
    send("fe").is(412, "stale-token");
    listener
        .next_of("refusal")
        .is("refusal", &json!({ "token": "fe", "highest": "ff" }));
    ask("PUT", "/docs/a")
        .token("ff")
        .field("x-stub-drop", "never")
        .body("text")
        .send(gate.port)
        .is(502, "upstream-failed");
    listener
        .next_of("in-doubt")
        .is("in-doubt", &json!({ "token": "ff", "resource": "bucket/docs" }));
}

#[test]
fn a_write_whose_answer_is_lost_is_told_with_its_resource_and_the_end_of_the_doubt() {
    let (_stub, gate) = start_with(Setup::default());
    gate.send(put("/docs/report", 34)).is_ok();
    let mut listener = Listener::open(&gate);
    // By the quick way, on a fence at rest: such a fence doesn't know its name.
    gate.send(put("/docs/report", 34).field("x-stub-drop", "never"))
        .is(502, "upstream-failed");
    let doubt = listener.next_of("in-doubt");
    doubt.is(
        "in-doubt",
        &json!({
            "resource": "bucket/docs", "token": "34", "rule": "bucket", "listener": "store",
            "reason": "upstream-failed",
        }),
    );
    let (at, until) = (doubt.data["at"].as_str(), doubt.data["until"].as_str());
    assert!(until.unwrap() > at.unwrap(), "{doubt:?}");
    // An intermediary's word.
    let answer = gate.send(put("/docs/report", 34).field("x-stub-status", "504"));
    assert_eq!(answer.status, 504);
    listener.next_of("in-doubt").is(
        "in-doubt",
        &json!({ "resource": "bucket/docs", "reason": "in-doubt-status" }),
    );
    // A raise waits for both, and says how long it did.
    gate.send(put("/docs/report", 35)).is_ok();
    let raise = listener.next_of("raise");
    raise.is("raise", &json!({ "token": "35" }));
    assert!(raise.data["drained_ms"].as_u64().unwrap() > 0, "{raise:?}");
}

#[test]
fn what_an_operator_does_is_told_as_an_operators() {
    let (_stub, gate) = start_with(in_memory());
    let mut listener = Listener::open(&gate);
    let order = json!({ "resource": "bucket/a", "token": "7" });
    assert_eq!(post(&gate, "/api/v1/fences/raise", &order), 200);
    listener.next_of("raise").is(
        "raise",
        &json!({ "resource": "bucket/a", "token": "7", "reason": "operator" }),
    );
    let words = "moved to \u{1b}[2J\u{9b}2J another lock \u{202e} é";
    let order = json!({ "resource": "bucket/a", "token": "3", "reason": words });
    assert_eq!(post(&gate, "/api/v1/fences/reset", &order), 200);
    let reset = listener.next_of("reset");
    reset.is(
        "reset",
        &json!({ "resource": "bucket/a", "token": "3", "before": "7", "reason": words }),
    );
    assert!(
        reset.data["by"].as_str().unwrap().starts_with("127.0.0.1:"),
        "{reset:?}"
    );
    gate.send(put("/a/b", 4)).is_ok();
    listener
        .next_of("raise")
        .is("raise", &json!({ "token": "4", "reason": "request" }));
}

#[test]
fn what_a_rule_that_observes_would_refuse_is_told_as_observed() {
    let rule = r#"
      - name: watched
        match: { path: "/{bucket}/{*key}" }
        resource: "bucket/{bucket}"
        token: { header: Fencing-Token }
        mode: observe
"#;
    let (_stub, gate) = start_with(Setup::rules(rule));
    let mut listener = Listener::open(&gate);
    listener.next_of("ownership");
    gate.send(put("/a/b", 4)).is_ok();
    gate.send(put("/a/c", 3)).is_ok();
    let refusal = listener.next();
    refusal.is(
        "refusal",
        &json!({
            "mode": "observe", "reason": "stale-token", "token": "3", "highest": "4", "rule": "watched",
            "resource": "bucket/a", "path": "/a/c",
        }),
    );
    assert!(refusal.data.get("status").is_none(), "{refusal:?}");
}

#[test]
fn a_command_that_is_refused_is_told_by_its_name_and_one_that_would_be_as_observed() {
    let rules = r#"
      - { name: orders, match: { keys: "orders:{id}" }, resource: "orders/{id}", token: { connection: true } }
      - { name: watched, match: { keys: "watched:{id}" }, resource: "watched/{id}", token: { connection: true }, mode: observe }
"#;
    let server = redis::Server::start();
    let gate = redis::setup(rules).start(server.port);
    let mut listener = Listener::open(&gate);
    listener.next_of("ownership");
    let mut client = redis::Client::of(gate.port);
    client.ask("SET watched:1 x");
    listener.next().is(
        "refusal",
        &json!({ "mode": "observe", "reason": "missing-token", "rule": "watched", "method": "SET" }),
    );
    client.ask("RPUSH orders:1 x");
    listener.next().is(
        "refusal",
        &json!({
            "mode": "enforce", "reason": "missing-token", "rule": "orders", "method": "RPUSH", "resource": "orders/1",
        }),
    );
}

#[test]
fn a_long_name_is_cut_and_says_so() {
    let (_stub, gate) = start_with(in_memory());
    let mut listener = Listener::open(&gate);
    let long = "n".repeat(2_000);
    gate.send(put(&format!("/{long}/a"), 4)).is_ok();
    let raise = listener.next_of("raise");
    let shown = raise.data["resource"].as_str().unwrap();
    assert!(shown.ends_with("n…") && shown.len() < 600, "{shown}");
    gate.send(put(&format!("/{long}/a"), 3)).is(412, "stale-token");
    let refusal = listener.next_of("refusal");
    let path = refusal.data["path"].as_str().unwrap();
    assert!(path.ends_with("n…") && path.len() < 600, "{path}");
}

#[test]
fn who_comes_back_is_told_what_it_missed_and_nothing_twice() {
    let (_stub, gate) = start_with(in_memory());
    let mut listener = Listener::open(&gate);
    gate.send(put("/a/b", 4)).is_ok();
    let raise = listener.next_of("raise");
    drop(listener);
    for token in [1, 2, 3] {
        gate.send(put("/a/b", token)).is(412, "stale-token");
    }
    let mut listener = Listener::resume(&gate, &format!("Last-Event-ID: {}\r\n", raise.id));
    for token in ["1", "2", "3"] {
        listener.next().is("refusal", &json!({ "token": token }));
    }
    let present = listener.next();
    present.is(
        "ownership",
        &json!({ "role": "active", "sequence": raise.sequence() + 3 }),
    );
    gate.send(put("/a/b", 5)).is_ok();
    listener.next().is("raise", &json!({ "token": "5" }));
    // A place that this process did not give out, or cannot have given out yet.
    let (run, _) = raise.id.split_once('-').unwrap();
    for id in ["12", "1-1", "x", &format!("{run}-99999"), &format!("{run}-01")] {
        let mut listener = Listener::resume(&gate, &format!("Last-Event-ID: {id}\r\n"));
        listener
            .next()
            .is("missed", &json!({ "missed": null, "reason": "not-kept" }));
        listener.next().is("raise", &json!({ "token": "4" }));
    }
    // None at all: from now on.
    let mut listener = Listener::open(&gate);
    assert_eq!(listener.next().id, format!("{run}-{}", raise.sequence() + 4));
}

#[test]
fn who_comes_back_too_late_is_told_how_many_it_missed() {
    let (_stub, gate) = start_with(in_memory());
    let mut listener = Listener::open(&gate);
    gate.send(put("/a/b", 4)).is_ok();
    let raise = listener.next_of("raise");
    drop(listener);
    raise_often(&gate, KEPT_MAX + 100, "b");
    let mut listener = Listener::resume(&gate, &format!("Last-Event-ID: {}\r\n", raise.id));
    let missed = listener.next();
    missed.is("missed", &json!({ "missed": 100, "reason": "not-kept" }));
    // Its place is behind the gap, so that the next time does not tell of it again.
    assert_eq!(missed.sequence(), raise.sequence() + 100);
    assert_eq!(listener.next().sequence(), raise.sequence() + 101);
}

/// Raises one fence so often, by reads on one connection.
fn raise_often(gate: &Gate, times: usize, bucket: &str) {
    let mut conn = Conn::open(gate.port);
    for token in 1..=times {
        conn.send(ask("GET", &format!("/{bucket}/key")).token(token as u64).bytes());
        conn.reply().is_ok();
    }
}

/// A connection that takes little before it is read.
fn narrow(gate: &Gate) -> Conn {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    socket.set_recv_buffer_size(4096).unwrap();
    let address: std::net::SocketAddr = ([127, 0, 0, 1], gate.admin).into();
    socket.connect(&address.into()).unwrap();
    Conn::of(TcpStream::from(socket))
}

#[test]
fn a_slow_reader_holds_nobody_up_and_is_told_what_it_missed() {
    let (_stub, gate) = start_with(in_memory());
    let mut slow = Listener::ask(narrow(&gate), "").checked();
    let mut quick = Listener::open(&gate);
    quick.next_of("ownership");
    // More than the kernel and the gate together take for a client that doesn't read.
    let times = 2_000;
    let bucket = "n".repeat(480);
    std::thread::scope(|scope| {
        scope.spawn(|| raise_often(&gate, times, &bucket));
        let mut seen = 0;
        while seen < times as u64 {
            let event = quick.next();
            // On a machine that is busy with other tests even this one may be late.
            seen += event.data["missed"].as_u64().unwrap_or(1);
        }
    });
    // What it reads now may come in large pieces.
    SockRef::from(&slow.conn.stream)
        .set_recv_buffer_size(1 << 20)
        .unwrap();
    slow.next_of("ownership");
    let (mut seen, mut missed) = (0, 0);
    while seen + missed < times as u64 {
        let event = slow.next();
        match event.name.as_str() {
            "raise" => seen += 1,
            "missed" => {
                assert_eq!(event.data["reason"], "slow-reader", "{event:?}");
                missed += event.data["missed"].as_u64().unwrap();
            }
            other => panic!("{other}: {event:?}"),
        }
        assert_eq!(event.sequence(), seen + missed, "each number once: {event:?}");
    }
    assert!(missed > 0, "it took all {times}");
}

#[test]
fn a_refused_herd_is_told_in_part_and_counted_in_full() {
    let (_stub, gate) = start_with(in_memory());
    gate.send(put("/a/b", 1_000)).is_ok();
    let mut listener = Listener::open(&gate);
    listener.next_of("ownership");
    let times = 12 * u64::from(REFUSALS_PER_SECOND_MAX);
    // All at once, so that they come faster than they may be told.
    let herd: Vec<u8> = (0..times)
        .flat_map(|_| ask("GET", "/a/b").token(7).bytes())
        .collect();
    let begun = std::time::Instant::now();
    let mut conn = Conn::open(gate.port);
    let writes = conn.stream.try_clone().unwrap();
    std::thread::scope(|scope| {
        scope.spawn(move || io::Write::write_all(&mut &writes, &herd).unwrap());
        for _ in 0..times {
            conn.reply().is(412, "stale-token");
        }
    });
    let (mut told, mut left_out) = (0, 0);
    while told + left_out < times {
        let event = listener.next();
        match event.name.as_str() {
            "refusal" => told += 1,
            "missed" => {
                assert_eq!(event.data["reason"], "too-many-refusals", "{event:?}");
                left_out += event.data["missed"].as_u64().unwrap();
            }
            other => panic!("{other}: {event:?}"),
        }
    }
    assert_eq!(told + left_out, times);
    // On a busy machine they may come slowly enough to be told each: then the bound is still that of each second.
    let seconds = begun.elapsed().as_secs() + 2;
    let most = seconds * u64::from(REFUSALS_PER_SECOND_MAX);
    assert!(
        told > 0 && told <= most,
        "{told} in {seconds} s, {left_out} left out"
    );
}

#[test]
fn an_open_stream_ends_with_the_stop_and_does_not_hold_it_up() {
    let (stub, mut gate) = start_with(Setup::default());
    gate.send(put("/a/b", 4)).is_ok();
    let mut listener = Listener::open(&gate);
    let mut unread = Listener::open(&gate);
    listener.next_of("ownership");
    // What happens during the stop is told as well.
    let last = put("/a/b", 4)
        .field("x-stub-hold", "last")
        .field("x-stub-status", "502");
    let last = last.spawn(gate.port);
    stub.wait(|state| state.arrived.len() == 2);
    gate.signal(libc::SIGTERM);
    gate.wait_for_log("stopping");
    stub.release("last");
    assert_eq!(last.join().unwrap().unwrap().status, 502);
    listener.next().is("in-doubt", &json!({ "resource": "bucket/a" }));
    // In order: with the last chunk, not by the end of the process.
    assert!(listener.try_next().is_none());
    listener.conn.is_closed();
    assert_eq!(gate.wait().code(), Some(0), "{}", gate.log());
    assert!(unread.next_of("in-doubt").id.ends_with("-1"));
}

#[test]
fn who_may_not_use_the_admin_address_may_not_listen() {
    let stub = Stub::start();
    let folder = tempfile::tempdir().unwrap();
    let token = folder.path().join("token");
    std::fs::write(&token, "0123456789abcdef").unwrap();
    let setup = Setup {
        admin: format!(", token_file: \"{}\"", token.display()),
        ..in_memory()
    };
    let gate = setup.start(stub.port);
    let asked = |fields: &str| Listener::ask(Conn::open(gate.admin), fields).head;
    assert!(asked("").starts_with("HTTP/1.1 401 "));
    assert!(asked("Authorization: Bearer 0123456789abcdeF\r\n").starts_with("HTTP/1.1 401 "));
    let mut listener = Listener::resume(&gate, "Authorization: Bearer 0123456789abcdef\r\n");
    listener.next_of("ownership");
}

#[test]
fn a_page_of_another_site_may_not_listen() {
    let (_stub, gate) = start_with(in_memory());
    let mut conn = Conn::open(gate.admin);
    conn.send(format!("GET {EVENTS} HTTP/1.1\r\nHost: evil.example\r\n\r\n"));
    conn.reply().is(403, "not-allowed");
}

#[test]
fn by_tls_it_is_the_same_stream() {
    let pki = Pki::new();
    pki.issue("operator", &["operator.test"]);
    let stub = Stub::start();
    let setup = Setup {
        admin: format!(", {}", pki.listener_asking_clients("server")),
        ..in_memory()
    };
    let mut gate = setup.start(stub.port);
    let mut listener = Listener::open_tls(&gate, &pki.client(Some("operator")));
    listener.next_of("ownership");
    gate.send(put("/a/b", 4)).is_ok();
    listener.next().is("raise", &json!({ "token": "4" }));
    // TLS 1.3 tells of a missing certificate only behind the handshake.
    let nobody = Conn::try_open_tls(gate.admin, &pki.client(None)).and_then(|mut conn| {
        conn.try_send(format!("GET {EVENTS} HTTP/1.1\r\nHost: localhost\r\n\r\n"))?;
        conn.read_head()
    });
    assert!(nobody.is_err(), "{nobody:?}");
    assert_eq!(gate.stop(), Some(0));
    assert!(listener.try_next().is_none());
}

#[test]
fn a_head_ends_and_other_methods_are_refused() {
    let (_stub, gate) = start_with(in_memory());
    let mut conn = Conn::open(gate.admin);
    for _ in 0..2 {
        conn.send(format!("HEAD {EVENTS} HTTP/1.1\r\nHost: localhost\r\n\r\n"));
        let head = conn.reply_to_head();
        assert_eq!(head.status, 200, "{head:?}");
        assert!(
            head.field("content-type")
                .unwrap()
                .starts_with("text/event-stream"),
            "{head:?}"
        );
    }
    for method in ["POST", "PUT", "DELETE"] {
        conn.send(format!(
            "{method} {EVENTS} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{{}}"
        ));
        conn.reply().is(405, "method-not-allowed");
    }
}

#[test]
fn streams_are_bounded_and_leave_the_rest_of_the_address_alone() {
    let (_stub, gate) = start_with(in_memory());
    let mut open: Vec<Listener> = (0..FOLLOWERS_MAX).map(|_| Listener::open(&gate)).collect();
    let one_more = || {
        let mut conn = Conn::open(gate.admin);
        conn.send(format!(
            "GET {EVENTS} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
        ));
        conn.read_head().unwrap()
    };
    let refused = one_more();
    assert!(refused.starts_with("HTTP/1.1 503 "), "{refused}");
    assert!(
        refused.to_lowercase().contains("fencegate-reason: overloaded"),
        "{refused}"
    );
    assert_eq!(ask("GET", "/readyz").send(gate.admin).status, 200);
    open.pop();
    let end = std::time::Instant::now() + PATIENCE;
    while !one_more().starts_with("HTTP/1.1 200 ") {
        assert!(std::time::Instant::now() < end, "its place is never free again");
        std::thread::sleep(std::time::Duration::from_millis(5)); // between two looks
    }
}
