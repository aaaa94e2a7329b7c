//! Clients that want too much: heads and bodies that never end, idle connections, floods of names and of waiters, huge
//! heads, more connections than there are files. Each costs a bounded amount of memory, and the others go on.
//!
//! What an attack costs is looked up in `/proc/PID/status` and printed; the bounds are generous, since a debug build
//! on a busy machine is no benchmark. `FENCEGATE_LONG=1` makes 100,000 resources and opens up to 100,000
//! connections, as far as the system lets it.

mod gate;

use std::io::Write;
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use gate::{Conn, Gate, PATIENCE, Setup, ask, head, is_long_run, start_with};
use socket2::{Domain, Socket, Type};

fn limits(limits: &str) -> Setup {
    Setup::default().listener(&format!("limits: {{ {limits} }}"))
}

fn put(target: &str, token: u64) -> gate::Ask {
    ask("PUT", target).token(token).body("v")
}

fn rss_kib(gate: &Gate) -> u64 {
    gate.memory_kib("VmRSS:")
}

/// Sends a byte on each connection, round after round, until told to stop. A connection that takes none is let be.
fn dribble(conns: &[Conn], stop: &Arc<AtomicBool>) -> std::thread::JoinHandle<()> {
    let mut streams: Vec<TcpStream> = conns.iter().map(|c| c.stream.try_clone().unwrap()).collect();
    let stop = Arc::clone(stop);
    std::thread::spawn(move || {
        while !stop.load(Ordering::SeqCst) {
            for stream in &mut streams {
                let _refused = stream.write(b"x");
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    })
}

// ---- slow clients

#[test]
fn a_head_that_comes_a_byte_at_a_time_is_refused_however_steadily_it_comes() {
    let (_stub, gate) = start_with(limits("header_timeout: 500ms"));
    let mut slow: Vec<Conn> = (0..200).map(|_| Conn::open(gate.port)).collect();
    let stop = Arc::new(AtomicBool::new(false));
    let dribbling = dribble(&slow, &stop);
    gate.send(put("/orders/1", 34)).is_ok();
    for conn in &mut slow {
        conn.reply().is(408, "bad-request");
    }
    stop.store(true, Ordering::SeqCst);
    dribbling.join().unwrap();
    gate.send(put("/orders/1", 34)).is_ok();
}

#[test]
fn a_body_that_stalls_is_cut_and_one_that_is_slow_gets_through() {
    let (stub, gate) = start_with(limits("idle_timeout: 1s"));
    let mut stalled: Vec<Conn> = (0..100).map(|_| Conn::open(gate.port)).collect();
    for conn in &mut stalled {
        conn.send(head("PUT", "/stalled/1", Some(7), Some(1000), &[]))
            .send("some");
    }
    let slow = std::thread::spawn({
        let port = gate.port;
        move || {
            let mut conn = Conn::open(port);
            conn.send(head("PUT", "/slow/1", Some(8), Some(40), &[]));
            for _ in 0..40 {
                conn.send("x");
                std::thread::sleep(Duration::from_millis(50));
            }
            conn.reply()
        }
    });
    for conn in &mut stalled {
        conn.reply().is(408, "bad-request");
    }
    slow.join().unwrap().is_ok();
    stub.wait(|state| state.incomplete.len() == 100);
    assert_eq!(stub.tokens(), [8], "nothing of a stalled write took effect");
    assert!(gate.metric("fencegate_in_flight_writes", &[]) == 0.0);
}

// ---- many connections

/// What one idle connection may cost, in KiB: its task and its entry in a few tables. Its buffers are given back.
const IDLE_KIB_MAX: u64 = 16;

#[test]
fn an_idle_connection_costs_little_and_thousands_keep_nobody_out() {
    let (_stub, gate) = start_with(limits("idle_timeout: 10m"));
    gate.send(put("/orders/1", 34)).is_ok();
    let count = idle_count();
    let before = rss_kib(&gate);
    let mut idle: Vec<Socket> = Vec::new();
    for n in 0..count {
        idle.push(connect_from(n / 20_000, gate.port));
    }
    // A request on each now and then shows that they were taken; between requests they hold no room.
    let asking = ask("GET", "/orders/1").bytes();
    for socket in idle.iter().step_by((count / 2_000).max(1)) {
        let stream: TcpStream = socket.try_clone().unwrap().into();
        let mut conn = Conn::of(stream);
        conn.send(&asking);
        conn.reply().is_ok();
    }
    gate.send(put("/orders/1", 34)).is_ok();
    let cost = rss_kib(&gate).saturating_sub(before);
    println!(
        "{count} idle connections: {cost} KiB, {:.2} each",
        cost as f64 / count as f64
    );
    assert!(cost < IDLE_KIB_MAX * count as u64, "{cost} KiB for {count}");
    drop(idle);
    gate.send(put("/orders/1", 35)).is_ok();
}

fn idle_count() -> usize {
    let wanted = if is_long_run() { 100_000 } else { 2_000 };
    // Each is a file here as well; some are left for everything else.
    wanted.min(
        usize::try_from(files_max())
            .unwrap_or(usize::MAX)
            .saturating_sub(1_000)
            .max(100),
    )
}

/// How many files this process may open, after it has asked for as many as it may.
fn files_max() -> u64 {
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: `limit` outlives both calls.
    unsafe {
        assert_eq!(libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit), 0);
        limit.rlim_cur = limit.rlim_max;
        assert_eq!(libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit), 0);
    }
    limit.rlim_cur
}

/// A connection from one of loopback's addresses: each has ports for some 28,000.
fn connect_from(address: usize, port: u16) -> Socket {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    let from = SocketAddr::from(([127, 0, 0, 1 + u8::try_from(address).unwrap()], 0));
    socket.bind(&from.into()).unwrap();
    let to = SocketAddr::from(([127, 0, 0, 1], port));
    socket.connect(&to.into()).unwrap();
    socket
}

#[test]
fn the_bound_on_open_files_is_raised_at_the_start() {
    let setup = Setup {
        files: Some((200, 3_000.min(files_max()))),
        ..Setup::default()
    };
    let (_stub, gate) = start_with(setup);
    let limits = std::fs::read_to_string(format!("/proc/{}/limits", gate.pid())).unwrap();
    let line = limits
        .lines()
        .find(|line| line.starts_with("Max open files"))
        .unwrap();
    let words: Vec<&str> = line.split_whitespace().collect();
    assert_eq!(words[3], words[4], "{line}");
}

#[test]
fn with_no_file_left_connections_that_are_open_go_on_and_others_come_later() {
    let cores = std::thread::available_parallelism().map_or(1, usize::from) as u64;
    let files = 100 + 8 * cores;
    let setup = Setup {
        files: Some((files, files)),
        ..Setup::default()
    };
    let (_stub, gate) = start_with(setup);
    let mut open = Conn::open(gate.port);
    open.send(put("/orders/1", 34).bytes());
    open.reply().is_ok();
    let flood: Vec<Conn> = (0..2 * files).map(|_| Conn::open(gate.port)).collect();
    gate.wait_for_log("a connection can't be taken");
    for _ in 0..10 {
        open.send(put("/orders/1", 34).bytes());
        open.reply().is_ok();
    }
    drop(flood);
    gate.send(put("/orders/1", 35)).is_ok();
    gate.send(put("/orders/1", 34)).is(412, "stale-token");
}

// ---- floods of names and of waiters

/// What one resource may cost in memory, in KiB. Names are kept in the store, not in memory.
const RESOURCE_KIB_MAX: f64 = 1.0;
/// What the store may keep in memory beside that.
const STORE_KIB_MAX: f64 = 96.0 * 1024.0;

#[test]
fn a_resource_costs_a_bounded_amount_of_memory() {
    const CLIENTS: u64 = 64;
    /// Requests that a client sends before it reads the answers.
    const BATCH: u64 = 25;
    // A debug build takes half a millisecond for each.
    let resources: u64 = if is_long_run() { 100_000 } else { 20_000 };
    let (_stub, gate) = start_with(Setup::default());
    gate.send(put("/orders/1", 1)).is_ok();
    let before = rss_kib(&gate);
    let started = Instant::now();
    let next = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for _ in 0..CLIENTS {
            scope.spawn(|| {
                let mut conn = Conn::open(gate.port);
                conn.patience(PATIENCE * 6);
                loop {
                    let first = next.fetch_add(BATCH, Ordering::SeqCst);
                    if first >= resources {
                        break;
                    }
                    let batch = first..first + BATCH;
                    let asks = batch.clone().flat_map(|n| {
                        let target = format!("/a-name-of-some-length-for-resource-{n}/key");
                        ask("GET", &target).token(n + 1).bytes()
                    });
                    conn.send(asks.collect::<Vec<u8>>());
                    for _ in batch {
                        conn.reply().is_ok();
                    }
                }
            });
        }
    });
    assert_eq!(gate.metric("fencegate_fences", &[]), resources as f64 + 1.0);
    let cost = rss_kib(&gate).saturating_sub(before) as f64;
    println!(
        "{resources} resources: {cost} KiB, {:.2} each, in {:.1?}",
        cost / resources as f64,
        started.elapsed()
    );
    assert!(
        cost < RESOURCE_KIB_MAX * resources as f64 + STORE_KIB_MAX,
        "{cost} KiB"
    );
    gate.send(put("/a-name-of-some-length-for-resource-500/key", 500))
        .is(412, "stale-token");
}

#[test]
fn no_more_wait_than_max_waiting_and_the_others_are_told_at_once() {
    const MAX: usize = 50;
    const ALL: usize = 300;
    let (stub, gate) = start_with(limits(&format!("max_waiting: {MAX}")));
    gate.send(put("/users/1", 1)).is_ok();
    let old = put("/orders/1", 33).field("x-stub-hold", "old").spawn(gate.port);
    stub.wait_for_head(33);
    let mut waiting: Vec<Conn> = (0..ALL).map(|_| Conn::open(gate.port)).collect();
    for conn in &mut waiting {
        conn.send(put("/orders/1", 34).bytes());
    }
    let counted = |decision: &str| gate.metric("fencegate_requests_total", &["bucket", decision]);
    let end = Instant::now() + PATIENCE;
    while counted("unavailable") < (ALL - MAX) as f64 {
        assert!(Instant::now() < end, "{} were told", counted("unavailable"));
        std::thread::sleep(Duration::from_millis(10));
    }
    // Who need not wait is not turned away; whoever raises waits for the store at least.
    gate.send(put("/users/1", 1)).is_ok();
    gate.send(put("/users/1", 2)).is(503, "overloaded");
    stub.release("old");
    old.join().unwrap().unwrap().is_ok();
    let (mut through, mut told) = (0, 0);
    for conn in &mut waiting {
        match conn.reply().status {
            200 => through += 1,
            503 => told += 1,
            other => panic!("{other}"),
        }
    }
    assert_eq!((through, told), (MAX, ALL - MAX));
    gate.send(put("/users/1", 1)).is_ok();
    gate.send(put("/users/1", 2)).is_ok();
}

// ---- large heads

#[test]
fn a_head_is_taken_up_to_its_bound_and_refused_from_there_on() {
    let (_stub, gate) = start_with(limits("max_header_bytes: 4KiB"));
    let of = |bytes: usize| {
        let bare = ask("GET", "/orders/1").token(34).field("X-Pad", "").bytes().len();
        ask("GET", "/orders/1")
            .token(34)
            .field("X-Pad", "p".repeat(bytes - bare))
    };
    assert_eq!(of(4096).bytes().len(), 4096);
    gate.send(of(4096)).is_ok();
    gate.send(of(4097)).is(431, "bad-request");
    // One that never ends is refused as soon as it is too large, and costs no more than that.
    let before = rss_kib(&gate);
    for _ in 0..100 {
        let mut conn = Conn::open(gate.port);
        let mut sent = conn.try_send("GET /orders/1 HTTP/1.1\r\nX-Pad: ");
        for _ in 0..1_000 {
            sent = sent.and_then(|()| conn.try_send("p".repeat(1024)));
        }
        if sent.is_ok() {
            conn.reply().is(431, "bad-request");
        }
    }
    let cost = rss_kib(&gate).saturating_sub(before);
    println!("100 heads without an end: {cost} KiB");
    assert!(cost < 32 * 1024, "{cost} KiB");
    gate.send(of(4096)).is_ok();
}

#[test]
fn many_fields_are_taken_up_to_a_bound_and_refused_from_there_on() {
    let (_stub, gate) = start_with(limits("max_header_bytes: 1MiB"));
    let with = |fields: usize| {
        let mut ask = ask("GET", "/orders/1").token(34);
        for n in 0..fields {
            ask = ask.field(&format!("X-{n}"), "v");
        }
        gate.send(ask)
    };
    with(900).is_ok();
    with(5_000).is(431, "bad-request");
    with(900).is_ok();
}
