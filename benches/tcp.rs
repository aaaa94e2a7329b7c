//! What a GiB costs the TCP gate, beside haproxy in TCP mode: `cargo bench --bench tcp`. Needs haproxy. Words behind `--`
//! choose cases by a part of their names.

mod beside;

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::thread;

use beside::{Proxy, compare};

const LISTENER: &str = r#"    protocol: tcp
    rules:
      - { name: r, resource: { preface: true }, token: { preface: true } }
"#;
const GIB: u64 = 1 << 30;
/// So much all sessions of a turn carry together.
const TOTAL: u64 = 4 * GIB;

fn main() {
    let chosen: Vec<String> = std::env::args()
        .skip(1)
        .filter(|word| !word.starts_with('-'))
        .collect();
    let backend = serve();
    let mut proxies = vec![
        Proxy::haproxy("haproxy", "", backend),
        Proxy::haproxy("haproxy-splice", "  option splice-auto", backend),
    ];
    proxies.extend(Proxy::fencegates(LISTENER, backend));
    for way in [Way::Up, Way::Down, Way::Both] {
        for sessions in [1, 8] {
            let case = format!("{way:?}-{sessions}").to_lowercase();
            if !chosen.is_empty() && !chosen.iter().any(|word| case.contains(word.as_str())) {
                continue;
            }
            compare(&case, "s/GiB", &proxies, |proxy| {
                proxy.spends(|| run(proxy, way, sessions)) * GIB as f64 / TOTAL as f64
            });
        }
    }
}

/// In which direction bytes go.
#[derive(Clone, Copy, Debug)]
enum Way {
    Up,
    Down,
    /// Half of them each way, at once.
    Both,
}

impl Way {
    /// How many go up and down in a session that carries `len`.
    fn lens(self, len: u64) -> (u64, u64) {
        match self {
            Way::Up => (len, 0),
            Way::Down => (0, len),
            Way::Both => (len / 2, len / 2),
        }
    }
}

fn run(proxy: &Proxy, way: Way, sessions: u64) {
    thread::scope(|scope| {
        for at in 0..sessions {
            scope.spawn(move || session(proxy, at, way.lens(TOTAL / sessions)));
        }
    });
}

/// Says what it will send and what it wants, sends it, and reads to the end.
fn session(proxy: &Proxy, at: u64, (up, down): (u64, u64)) {
    let mut socket = TcpStream::connect(("127.0.0.1", proxy.port)).unwrap();
    if proxy.fences {
        writeln!(socket, "FENCE session/{at} 34").unwrap();
    }
    socket.write_all(&down.to_le_bytes()).unwrap();
    let mut other = socket.try_clone().unwrap();
    let sending = thread::spawn(move || {
        send(&mut other, up);
        other.shutdown(Shutdown::Write).unwrap();
    });
    assert_eq!(take(&mut socket), down);
    sending.join().unwrap();
}

/// A backend that does as it is told, and closes once both are through.
fn serve() -> u16 {
    let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    thread::spawn(move || {
        for socket in listener.incoming() {
            thread::spawn(move || answer(socket.unwrap()));
        }
    });
    port
}

fn answer(mut socket: TcpStream) {
    let mut down = [0; 8];
    // What only looks whether somebody listens says nothing.
    if socket.read_exact(&mut down).is_err() {
        return;
    }
    let mut other = socket.try_clone().unwrap();
    let taking = thread::spawn(move || take(&mut other));
    send(&mut socket, u64::from_le_bytes(down));
    taking.join().unwrap();
}

fn send(socket: &mut TcpStream, mut left: u64) {
    let piece = vec![7; 128 * 1024];
    while left > 0 {
        let len = piece.len().min(usize::try_from(left).unwrap());
        socket.write_all(&piece[..len]).unwrap();
        left -= len as u64;
    }
}

fn take(socket: &mut TcpStream) -> u64 {
    let mut room = vec![0; 512 * 1024];
    let mut taken = 0;
    loop {
        match socket.read(&mut room).unwrap() {
            0 => return taken,
            len => taken += len as u64,
        }
    }
}
