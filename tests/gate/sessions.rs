//! Raw TCP on both sides of the gate: headers by hand, and a backend that keeps what each connection sent and how it
//! ended, and does what the test tells it.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex};
use std::thread;
use std::time::Duration;

use socket2::SockRef;

use super::{Front, Gate, PATIENCE, Setup, ends_by_reset};

/// The rule of most tests.
pub const BY_TLV: &str = r#"
      - name: by-tlv
        resource: { proxy_tlv: 0xE0 }
        token: { proxy_tlv: 0xE1 }
"#;

/// The same with a first line.
pub const BY_PREFACE: &str = r#"
      - name: by-preface
        resource: { preface: true }
        token: { preface: true }
"#;

/// A gate for raw TCP.
pub fn tcp(rules: &str) -> Setup {
    Setup::rules(rules)
        .listener("protocol: tcp")
        .url("tcp://{host}:{port}")
        .front(Front::Http1)
}

/// How one connection to the backend has ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum End {
    /// Its client had no more to say.
    Eof,
    Reset,
}

/// One connection to the backend.
#[derive(Clone, Default, Debug)]
pub struct Came {
    pub bytes: Vec<u8>,
    pub end: Option<End>,
}

/// What the backend does.
#[derive(Clone, Copy, Default, Debug)]
pub struct Manners {
    /// Says this first.
    pub greets: &'static [u8],
    /// Sends back what it reads.
    pub echoes: bool,
    /// Reads nothing until it is released.
    pub waits: bool,
    /// Does not close its side after its client has, until it is released.
    pub clings: bool,
    /// Resets each connection once it has read something.
    pub resets: bool,
    /// Ends its side as soon as it has read something, and reads on.
    pub ends_first: bool,
}

#[derive(Default)]
struct State {
    came: Vec<Came>,
    released: bool,
}

pub struct Backend {
    pub port: u16,
    shared: Arc<(Mutex<State>, Condvar)>,
}

impl Backend {
    pub fn start(manners: Manners) -> Backend {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        let shared = Arc::<(Mutex<State>, Condvar)>::default();
        let of_thread = Arc::clone(&shared);
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let shared = Arc::clone(&of_thread);
                thread::spawn(move || serve(stream, manners, &shared));
            }
        });
        Backend { port, shared }
    }

    /// Waits until this holds of its connections.
    #[track_caller]
    pub fn wait(&self, what: impl Fn(&[Came]) -> bool) {
        let state = self.shared.0.lock().unwrap();
        let (state, late) = self
            .shared
            .1
            .wait_timeout_while(state, PATIENCE, |state| !what(&state.came))
            .unwrap();
        assert!(!late.timed_out(), "it never came to that: {:?}", state.came);
    }

    pub fn came(&self) -> Vec<Came> {
        self.shared.0.lock().unwrap().came.clone()
    }

    /// Whoever waits goes on.
    pub fn release(&self) {
        self.shared.0.lock().unwrap().released = true;
        self.shared.1.notify_all();
    }

    /// Waits until this connection has sent exactly this.
    #[track_caller]
    pub fn wait_for(&self, number: usize, bytes: &[u8]) {
        self.wait(|came| came.get(number).is_some_and(|came| came.bytes == bytes));
    }

    #[track_caller]
    pub fn wait_for_end(&self, number: usize, end: End) {
        self.wait(|came| came.get(number).is_some_and(|came| came.end == Some(end)));
    }
}

fn serve(mut stream: TcpStream, manners: Manners, shared: &(Mutex<State>, Condvar)) {
    let number = {
        let mut state = shared.0.lock().unwrap();
        state.came.push(Came::default());
        shared.1.notify_all();
        state.came.len() - 1
    };
    let released = || {
        let state = shared.0.lock().unwrap();
        drop(shared.1.wait_while(state, |state| !state.released).unwrap());
    };
    let note = |change: &dyn Fn(&mut Came)| {
        change(&mut shared.0.lock().unwrap().came[number]);
        shared.1.notify_all();
    };
    stream.write_all(manners.greets).unwrap();
    if manners.waits {
        released();
    }
    let mut room = [0; 64 * 1024];
    loop {
        match stream.read(&mut room) {
            Ok(0) => break note(&|came| came.end = Some(End::Eof)),
            Ok(read) => {
                note(&|came| came.bytes.extend_from_slice(&room[..read]));
                if manners.echoes && stream.write_all(&room[..read]).is_err() {
                    return note(&|came| came.end = Some(End::Reset));
                }
                if manners.resets {
                    SockRef::from(&stream).set_linger(Some(Duration::ZERO)).unwrap();
                    return;
                }
                if manners.ends_first {
                    // Again each time: by then both sides may have ended.
                    let _ended_already = stream.shutdown(Shutdown::Write);
                }
            }
            Err(_) => return note(&|came| came.end = Some(End::Reset)),
        }
    }
    if manners.clings {
        // Until it is reset, or told to close.
        let mut state = shared.0.lock().unwrap();
        loop {
            if state.released {
                return;
            }
            if stream.take_error().unwrap().is_some() {
                state.came[number].end = Some(End::Reset);
                shared.1.notify_all();
                return;
            }
            state = shared.1.wait_timeout(state, Duration::from_millis(5)).unwrap().0;
        }
    }
}

/// A PROXY header of version 2 with these TLVs, of a client at 192.0.2.7:4711.
pub fn header(tlvs: &[(u8, &[u8])]) -> Vec<u8> {
    let mut block = vec![192, 0, 2, 7, 198, 51, 100, 1, 0x12, 0x67, 0, 80];
    for (kind, value) in tlvs {
        block.push(*kind);
        block.extend_from_slice(&u16::try_from(value.len()).unwrap().to_be_bytes());
        block.extend_from_slice(value);
    }
    let mut header = b"\r\n\r\n\0\r\nQUIT\n\x21\x11".to_vec();
    header.extend_from_slice(&u16::try_from(block.len()).unwrap().to_be_bytes());
    header.extend_from_slice(&block);
    header
}

/// The header of a session of this holder.
pub fn holder(resource: &str, token: u64) -> Vec<u8> {
    header(&[(0xe0, resource.as_bytes()), (0xe1, token.to_string().as_bytes())])
}

/// A client that has sent this. Its reads end after a while.
pub fn open(gate: &Gate, bytes: &[u8]) -> TcpStream {
    let mut stream = TcpStream::connect(("127.0.0.1", gate.port)).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.set_nodelay(true).unwrap();
    // The gate may have refused it already.
    let _sent = stream.write_all(bytes);
    stream
}

/// A session of this holder that has sent this.
pub fn session(gate: &Gate, resource: &str, token: u64, bytes: &[u8]) -> TcpStream {
    open(gate, &[&holder(resource, token)[..], bytes].concat())
}

#[track_caller]
pub fn reads(stream: &mut TcpStream, wanted: &[u8]) {
    let mut came = vec![0; wanted.len()];
    stream.read_exact(&mut came).unwrap();
    assert_eq!(came, wanted);
}

#[track_caller]
pub fn is_reset(stream: &mut TcpStream) {
    assert!(ends_by_reset(stream), "it ended in order");
}

/// Waits until a metric has this value.
#[track_caller]
pub fn wait_for_metric(gate: &Gate, name: &str, parts: &[&str], value: f64) {
    let end = std::time::Instant::now() + PATIENCE;
    while (gate.metric(name, parts) - value).abs() > 0.1 {
        assert!(std::time::Instant::now() < end, "{name} is never {value}");
        thread::sleep(Duration::from_millis(5));
    }
}
