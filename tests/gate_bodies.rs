//! Bodies: streamed both ways within bounded memory, held back by their last piece only, cut at once (S5).

mod gate;

use std::io::{Read, Write};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use gate::{Conn, RawBackend, Setup, Stub, ask, head, read_head};
use socket2::{Domain, SockRef, Socket, Type};

fn put(target: &str, token: u64) -> gate::Ask {
    ask("PUT", target).token(token).body("v")
}

const OK: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n";

/// A gate whose doubts would last longer than any test.
fn patient() -> Setup {
    Setup::default().settle_after("60s")
}

/// So many bytes, of which no two pieces look alike.
fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|at| (at ^ at >> 8 ^ at >> 16) as u8).collect()
}

#[test]
fn a_slow_chunked_upload_of_a_stale_holder_is_cut_at_once() {
    let stub = Stub::start();
    let gate = patient().start(stub.port);
    let mut upload = Conn::open(gate.port);
    upload.send(head(
        "PUT",
        "/orders/1",
        Some(33),
        None,
        &[("Transfer-Encoding", "chunked")],
    ));
    upload.send("5\r\nhello\r\n");
    stub.wait_for_head(33);
    gate.send(put("/orders/1", 34)).is_ok();
    upload.reply().is(412, "stale-token");
    let _closed_by_now = upload.try_send("0\r\n\r\n");
    stub.wait(|state| state.incomplete.len() == 1);
    upload.is_closed();
    assert_eq!(stub.tokens(), [34]);
}

#[test]
fn an_upload_that_is_never_short_of_bytes_is_cut_too() {
    let backend = RawBackend::start(|_, mut reader, mut writer| {
        if read_head(&mut reader).is_ok_and(|request| request.unwrap().method == "DELETE") {
            writer.write_all(OK).unwrap();
        }
        let _until_it_ends = std::io::copy(&mut reader, &mut std::io::sink());
    });
    let gate = patient().start(backend.port);
    let mut upload = Conn::open(gate.port);
    upload.send(head("PUT", "/orders/1", Some(33), Some(1 << 40), &[]));
    let (tell, told) = channel();
    let pusher = std::thread::spawn(move || {
        let piece = vec![b'x'; 1 << 20];
        upload.send(&piece);
        tell.send(()).unwrap();
        while upload.try_send(&piece).is_ok() {}
    });
    told.recv_timeout(gate::PATIENCE).unwrap();
    gate.send(ask("DELETE", "/orders/1").token(34)).is_ok();
    // The rest is drained within bounds; then the gate closes.
    gate.wait_for_log("stale-token");
    drop(gate);
    pusher.join().unwrap();
}

#[test]
fn the_last_piece_alone_is_held_back() {
    let (tell, told) = channel();
    let tell = Mutex::new(tell);
    let backend = RawBackend::start(move |_, mut reader, mut writer| {
        if let Ok(Some(request)) = read_head(&mut reader) {
            let mut part = [0; 99];
            reader.read_exact(&mut part).unwrap();
            tell.lock().unwrap().send(request.target).unwrap();
            reader.read_exact(&mut part[..1]).unwrap();
            writer.write_all(OK).unwrap();
        }
    });
    let gate = patient().start(backend.port);
    let mut upload = Conn::open(gate.port);
    upload
        .send(head("PUT", "/orders/1", Some(33), Some(100), &[]))
        .send([b'x'; 99]);
    told.recv_timeout(gate::PATIENCE)
        .expect("all but the last byte has arrived");
    upload.send("x");
    upload.reply().is_ok();
}

#[test]
fn bodies_of_all_sizes_around_the_buffers_go_through_whole() {
    let stub = Stub::start();
    let gate = patient().start(stub.port);
    let mut conn = Conn::open(gate.port);
    let edges = [1, 4096, 8192, 16_384, 65_536, 131_072, 262_144, 524_288, 1 << 20];
    let sizes = edges.iter().flat_map(|edge| [edge - 1, *edge, edge + 1]);
    for size in sizes.chain([8192 - 150, 8192 - 120, 8192 - 100]) {
        let body = pattern(size);
        for chunk in [None, Some(1 + size / 3), Some(usize::MAX >> 1), Some(100)] {
            if chunk == Some(100) && size > 70_000 {
                continue;
            }
            let mut request = ask("PUT", "/orders/1").token(33).body(body.clone());
            request.chunked = chunk;
            conn.send(request.bytes());
            conn.reply().is_ok();
            conn.send(ask("GET", "/orders/1").token(33).bytes());
            assert!(
                conn.reply().is_ok().body == body,
                "{size} bytes, chunks of {chunk:?}"
            );
        }
    }
    assert_eq!(stub.look(|state| state.connections), 1);
}

#[test]
fn a_body_that_comes_byte_by_byte_goes_through_whole() {
    let stub = Stub::start();
    let gate = patient().start(stub.port);
    for chunked in [None, Some(7)] {
        let mut request = ask("PUT", "/orders/1").token(33).body(pattern(50));
        request.chunked = chunked;
        let mut conn = Conn::open(gate.port);
        for byte in request.bytes() {
            conn.send([byte]);
        }
        conn.reply().is_ok();
        assert_eq!(gate.send(ask("GET", "/orders/1")).body, pattern(50));
    }
}

#[test]
fn large_bodies_pass_both_ways_within_bounded_memory() {
    const SIZE: usize = 64 << 20;
    let stub = Stub::start();
    let gate = patient().start(stub.port);
    gate.send(put("/orders/1", 33)).is_ok();
    let before = gate.memory_kib("VmHWM");
    for chunk in [None, Some(100_000)] {
        let mut request = ask("PUT", "/orders/1").token(33).body(vec![b'x'; SIZE]);
        request.chunked = chunk;
        gate.send(request).is_ok();
        assert_eq!(gate.send(ask("GET", "/orders/1")).is_ok().body.len(), SIZE);
    }
    // A client that takes its answer late does not fill the gate either.
    let mut late = Conn::open(gate.port);
    late.send(ask("GET", "/orders/1").bytes());
    late.read_exactly(1).unwrap();
    let grown = gate.memory_kib("VmHWM") - before;
    assert!(grown < 16 << 10, "it grew by {grown} KiB for bodies of 64 MiB");
}

/// A backend that reads nothing of a body until it is told, through a small window.
fn narrow_backend() -> (u16, std::sync::mpsc::Sender<()>) {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    socket.set_recv_buffer_size(16 << 10).unwrap();
    socket
        .bind(&std::net::SocketAddr::from(([127, 0, 0, 1], 0)).into())
        .unwrap();
    socket.listen(16).unwrap();
    let listener: std::net::TcpListener = socket.into();
    let port = listener.local_addr().unwrap().port();
    let (go, gone) = channel();
    std::thread::spawn(move || {
        let (stream, _) = listener.accept().unwrap();
        let mut reader = std::io::BufReader::with_capacity(8192, stream.try_clone().unwrap());
        let mut writer = stream;
        while let Ok(Some(request)) = read_head(&mut reader) {
            gone.recv_timeout(gate::PATIENCE).unwrap();
            let body = gate::read_rest(&mut reader, &request).unwrap();
            let answer = format!(
                "HTTP/1.1 200 OK\r\nContent-Length: 0\r\nGot: {}\r\n\r\n",
                body.len()
            );
            writer.write_all(answer.as_bytes()).unwrap();
        }
    });
    (port, go)
}

#[test]
fn an_upload_in_many_chunks_outlives_a_backend_that_pauses() {
    let (port, go) = narrow_backend();
    let gate = patient().listener("limits: { idle_timeout: 3s }").start(port);
    for size in [
        600_000, 900_000, 1_200_000, 1_500_000, 2_000_000, 3_000_000, 5_000_000,
    ] {
        let request = ask("PUT", "/orders/1").token(33).body(pattern(size)).chunked(500);
        let mut conn = Conn::open(gate.port);
        let mut writer = conn.stream.try_clone().unwrap();
        let (tell, told) = channel();
        let upload = std::thread::spawn(move || {
            let sent = writer.write_all(&request.bytes());
            tell.send(()).unwrap();
            sent
        });
        // All sent, or all buffers full: either is fine.
        let _full = told.recv_timeout(Duration::from_millis(300));
        go.send(()).unwrap();
        let reply = conn.reply();
        assert_eq!(reply.is_ok().field("got"), Some(size.to_string().as_str()));
        upload.join().unwrap().unwrap();
    }
}

#[test]
fn a_refused_upload_pushed_flat_out_sees_its_refusal() {
    let stub = Stub::start();
    let gate = patient().start(stub.port);
    gate.send(put("/orders/1", 34)).is_ok();
    for chunked in [false, true] {
        let mut upload = Conn::open(gate.port);
        let size = 50 << 20;
        if chunked {
            upload.send(head(
                "PUT",
                "/orders/1",
                Some(33),
                None,
                &[("Transfer-Encoding", "chunked")],
            ));
            upload.send(format!("{size:x}\r\n"));
        } else {
            upload.send(head("PUT", "/orders/1", Some(33), Some(size), &[]));
        }
        for _ in 0..50 {
            upload.send(vec![b'x'; 1 << 20]);
        }
        upload.reply().is(412, "stale-token");
        upload.is_closed();
    }
    assert_eq!(stub.look(|state| state.arrived.len()), 1);
}

#[test]
fn uploads_that_are_never_short_of_bytes_starve_nobody() {
    let backend = RawBackend::start(|_, mut reader, mut writer| {
        while let Ok(Some(request)) = read_head(&mut reader) {
            if request
                .field("content-length")
                .is_some_and(|length| length.len() > 6)
            {
                let mut waste = vec![0; 1 << 20];
                while reader.get_mut().read(&mut waste).is_ok_and(|read| read > 0) {}
                return;
            }
            if gate::read_rest(&mut reader, &request).is_err() || writer.write_all(OK).is_err() {
                return;
            }
        }
    });
    let gate = patient().start(backend.port);
    let stop = Arc::new(std::sync::atomic::AtomicBool::new(false));
    let floods: Vec<_> = (0..3)
        .map(|_| {
            let mut conn = Conn::open(gate.port);
            let stop = Arc::clone(&stop);
            std::thread::spawn(move || {
                conn.send(head("PUT", "/flood/1", Some(1), Some(1 << 40), &[]));
                let piece = vec![b'x'; 4 << 20];
                while !stop.load(std::sync::atomic::Ordering::Relaxed) && conn.try_send(&piece).is_ok() {}
            })
        })
        .collect();
    let mut longest = Duration::ZERO;
    for _ in 0..20 {
        let since = Instant::now();
        gate.send(put("/orders/1", 1)).is_ok();
        longest = longest.max(since.elapsed());
    }
    stop.store(true, std::sync::atomic::Ordering::Relaxed);
    floods.into_iter().for_each(|flood| flood.join().unwrap());
    assert!(longest < Duration::from_secs(3), "one waited {longest:?}");
}

#[test]
fn a_connection_reset_by_its_client_in_an_upload_is_noticed() {
    let stub = Stub::start();
    let gate = patient().start(stub.port);
    let mut upload = Conn::open(gate.port);
    upload
        .send(head("PUT", "/orders/1", Some(33), Some(100), &[]))
        .send("x");
    stub.wait_for_head(33);
    SockRef::from(&upload.stream)
        .set_linger(Some(Duration::ZERO))
        .unwrap();
    drop(upload);
    stub.wait(|state| state.incomplete.len() == 1);
    gate.send(put("/orders/1", 34)).is_ok();
}
