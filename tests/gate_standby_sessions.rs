//! Two instances in front of one backend, their marks in a real etcd, and connections that stay open: sessions of raw
//! TCP, and Redis connections with pipelines, transactions and commands that wait. The owner is stopped, killed or cut
//! off from etcd in the middle of them: once the next owner has let somebody in, nothing of the old one takes effect.

mod backends;
mod etcd;
mod gate;
mod redis;

use std::io::Write;
use std::time::{Duration, Instant};

use etcd::{Etcd, Forwarder, Mode};
use gate::sessions::{BY_TLV, Backend, End, Manners, is_reset, reads, session, tcp};
use gate::{Gate, Setup, ask, wait_until};
use redis::{Client, Server, setup as redis_setup, written};

const SETTLE: Duration = Duration::from_secs(1);

/// With its marks in etcd.
fn with(setup: Setup, endpoints: &[String]) -> Setup {
    Setup {
        store: format!("{{ kind: etcd, endpoints: {endpoints:?}, prefix: /fencegate/test/, owner_ttl: 2s }}"),
        ..setup
    }
    .settle_after("1s")
}

fn is_active(gate: &Gate) -> bool {
    let Ok(reply) = ask("GET", "/readyz").try_send(gate.admin) else {
        return false;
    };
    (reply.status, reply.json()["role"].as_str()) == (200, Some("active"))
}

/// SIGSTOP, and none of its threads runs any more.
#[track_caller]
fn stop(gate: &Gate) {
    gate.signal(libc::SIGSTOP);
    wait_until("a stop of every thread", || {
        let threads = std::fs::read_dir(format!("/proc/{}/task", gate.pid())).unwrap();
        threads.flatten().all(|thread| {
            let stat = std::fs::read_to_string(thread.path().join("stat")).unwrap_or_default();
            stat.rsplit(')').next().is_some_and(|rest| rest.starts_with(" T"))
        })
    });
}

/// Two gates before one backend; the first is the owner, and finds etcd by a way that can be held up.
struct Pair {
    _etcd: Etcd,
    way: Forwarder,
    first: Gate,
    second: Gate,
}

impl Pair {
    fn start(setup: &Setup, port: u16) -> Pair {
        let etcd = Etcd::one();
        let own = etcd.endpoint(0).rsplit(':').next().unwrap().parse().unwrap();
        let way = Forwarder::before(own);
        let first = with(setup.clone(), &[way.endpoint()]).start(port);
        wait_until("a time as the owner", || is_active(&first));
        let second = with(setup.clone(), &etcd.endpoints()).start(port);
        Pair {
            _etcd: etcd,
            way,
            first,
            second,
        }
    }

    fn tcp(manners: Manners) -> (Backend, Pair) {
        let backend = Backend::start(manners);
        let pair = Pair::start(&tcp(BY_TLV), backend.port);
        (backend, pair)
    }

    fn redis() -> (Server, Pair) {
        let server = Server::start();
        let pair = Pair::start(&redis_setup(redis::RULES), server.port);
        (server, pair)
    }

    #[track_caller]
    fn taken_over(&self) {
        wait_until("the next owner", || is_active(&self.second));
    }
}

// ---- raw TCP

#[test]
fn a_stopped_owner_that_is_woken_sends_nothing_more_of_its_sessions() {
    let (backend, pair) = Pair::tcp(Manners::default());
    let mut old = session(&pair.first, "a", 5, b"old");
    backend.wait_for(0, b"old");
    stop(&pair.first);
    // It waits at the owner's socket.
    old.write_all(b"late").unwrap();
    pair.taken_over();
    let _new = session(&pair.second, "a", 6, b"new");
    backend.wait_for(1, b"new");
    pair.first.signal(libc::SIGCONT);
    is_reset(&mut old);
    backend.wait_for_end(0, End::Reset);
    assert_eq!(backend.came()[0].bytes, b"old");
    is_reset(&mut session(&pair.first, "a", 7, b"no owner"));
    assert_eq!(backend.came().len(), 2);
}

#[test]
fn a_killed_owners_sessions_are_reset_and_the_next_one_waits_until_they_have_settled() {
    let (backend, mut pair) = Pair::tcp(Manners::default());
    let mut old = session(&pair.first, "a", 5, b"old");
    backend.wait_for(0, b"old");
    pair.first.kill();
    backend.wait_for_end(0, End::Reset);
    is_reset(&mut old);
    pair.taken_over();
    let owner = Instant::now();
    // What needs no raise goes on at once.
    let _same = session(&pair.second, "a", 5, b"same");
    backend.wait_for(1, b"same");
    let _new = session(&pair.second, "a", 6, b"new");
    backend.wait_for(2, b"new");
    // It had been the owner for a moment before that was seen.
    assert!(owner.elapsed() >= SETTLE / 2, "{:?}", owner.elapsed());
    assert_eq!(backend.came()[0].bytes, b"old");
}

#[test]
fn an_owner_cut_off_from_etcd_resets_its_sessions_before_another_may_let_one_in() {
    let (backend, pair) = Pair::tcp(Manners {
        echoes: true,
        ..Manners::default()
    });
    let mut busy = session(&pair.first, "a", 5, b"x");
    reads(&mut busy, b"x");
    let mut silent = session(&pair.first, "b", 5, b"silent");
    reads(&mut silent, b"silent");
    pair.way.set(Mode::Hold);
    // For as long as it is sure its sessions go on.
    wait_until("the end of its certainty", || busy.write_all(b"x").is_err());
    is_reset(&mut silent);
    for number in [0, 1] {
        backend.wait_for_end(number, End::Reset);
    }
    let before = backend.came()[0].bytes.len();
    pair.taken_over();
    let _new = session(&pair.second, "a", 6, b"new");
    backend.wait_for(2, b"new");
    assert_eq!(backend.came()[0].bytes.len(), before);
    pair.way.set(Mode::Pass);
    wait_until("its standing by", || {
        ask("GET", "/readyz").send(pair.first.admin).json()["role"] == "standby"
    });
    is_reset(&mut session(&pair.first, "a", 7, b"no owner"));
}

#[test]
fn an_owner_that_stops_in_order_ends_its_sessions_and_nobody_waits() {
    let (backend, mut pair) = Pair::tcp(Manners::default());
    let mut old = session(&pair.first, "a", 5, b"old");
    backend.wait_for(0, b"old");
    assert_eq!(pair.first.stop(), Some(0));
    backend.wait_for_end(0, End::Eof);
    assert!(!gate::ends_by_reset(&mut old));
    pair.taken_over();
    let _new = session(&pair.second, "a", 6, b"new");
    backend.wait_for(1, b"new");
    assert!(
        !pair.second.log().contains("raises wait"),
        "{}",
        pair.second.log()
    );
}

// ---- Redis

fn list(server: &Server, key: &str) -> String {
    server.client().ask(&format!("LRANGE {key} 0 -1"))
}

#[test]
fn a_stopped_owner_that_is_woken_sends_nothing_of_its_pipelines_and_transactions() {
    let (server, pair) = Pair::redis();
    let mut old = Client::holder(&pair.first, 5);
    assert_eq!(old.ask("RPUSH orders:1 5"), ":1");
    let mut queued = Client::holder(&pair.first, 5);
    queued.send_all(&["MULTI", "RPUSH orders:1 5"]);
    assert_eq!(queued.replies(2), ["+OK", "+QUEUED"]);
    let mut half = Client::holder(&pair.first, 5);
    let large = written(&[b"RPUSH", b"orders:1", &[b'5'; 200_000]]);
    half.send_bytes(&large[..150_000]);
    // That much of it is at the server.
    wait_until("a half-sent value", || {
        server.client().ask("CLIENT LIST").contains("qbuf=1")
    });
    stop(&pair.first);
    for _ in 0..20 {
        old.send_all(&["PING", "RPUSH orders:1 5"]);
    }
    queued.send("EXEC");
    half.send_bytes(&large[150_000..]);
    pair.taken_over();
    let mut new = Client::holder(&pair.second, 6);
    assert_eq!(new.ask("RPUSH orders:1 6"), ":2");
    pair.first.signal(libc::SIGCONT);
    // Each is refused, or its connection ends with what it had under way.
    for (client, commands) in [(&mut old, 40), (&mut queued, 1), (&mut half, 1)] {
        for reply in client.replies(commands) {
            let known = ["END", "+PONG"].contains(&&*reply) || reply.starts_with("-FENCED not owner");
            assert!(known, "{reply}");
        }
    }
    assert_eq!(new.ask("RPUSH orders:1 6"), ":3");
    assert_eq!(list(&server, "orders:1"), "[5 6 6]");
    let mut late = Client::holder(&pair.first, 7);
    assert!(late.ask("RPUSH orders:1 7").starts_with("-FENCED not owner"));
}

#[test]
fn a_killed_owners_waiting_commands_and_transactions_are_over_for_the_next_one() {
    let (server, mut pair) = Pair::redis();
    let mut waiting = Client::holder(&pair.first, 5);
    waiting.send("BLPOP orders:1 0");
    let mut queued = Client::holder(&pair.first, 5);
    queued.send_all(&["MULTI", "RPUSH orders:1 5"]);
    assert_eq!(queued.replies(2), ["+OK", "+QUEUED"]);
    wait_until("a blocked client", || {
        server.client().ask("INFO clients").contains("blocked_clients:1")
    });
    pair.first.kill();
    assert_eq!(waiting.reply(), "END");
    pair.taken_over();
    let mut new = Client::holder(&pair.second, 6);
    assert_eq!(new.ask("RPUSH orders:1 6"), ":1");
    assert_eq!(new.ask("RPUSH orders:1 6"), ":2");
    assert_eq!(list(&server, "orders:1"), "[6 6]");
}

#[test]
fn an_owner_cut_off_from_etcd_ends_its_pipelines_and_waiting_commands_before_another_may_write() {
    let (server, pair) = Pair::redis();
    let mut waiting = Client::holder(&pair.first, 5);
    waiting.send("BLPOP orders:2 0");
    let mut busy = Client::holder(&pair.first, 5);
    assert_eq!(busy.ask("RPUSH orders:1 5"), ":1");
    pair.way.set(Mode::Hold);
    let mut told = 1;
    wait_until("the end of its certainty", || {
        busy.send_all(&["RPUSH orders:1 5", "RPUSH orders:1 5"]);
        let replies = busy.replies(2);
        told += replies.iter().filter(|reply| reply.starts_with(':')).count();
        replies.iter().any(|reply| !reply.starts_with(':'))
    });
    let end = waiting.reply();
    assert!(end == "END" || end.starts_with("-FENCED not owner"), "{end}");
    let before = list(&server, "orders:1");
    // A reply may have been lost, and none was made up.
    let written = before.split(' ').count();
    assert!(written >= told, "{told} were told: {before}");
    pair.taken_over();
    let mut new = Client::holder(&pair.second, 6);
    assert_eq!(new.ask("RPUSH orders:2 6"), ":1", "nobody takes it");
    assert_eq!(new.ask("RPUSH orders:1 6"), format!(":{}", written + 1));
    assert_eq!(list(&server, "orders:1"), before.replace(']', " 6]"));
}
