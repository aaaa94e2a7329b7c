//! A store that keeps a journal of what took effect, in its order. Fields of a request say what it does with it:
//!
//! - `x-stub-delay: SECONDS` it applies the request that long after it arrived whole;
//! - `x-stub-hold: NAME` it applies the request only once the test has released that name;
//! - `x-stub-answer-delay`, `x-stub-answer-hold` it has applied it by then, and only the answer is late;
//! - `x-stub-body-hold: NAME` the answer's head and half of its body are sent, the rest when NAME is released;
//! - `x-stub-answer-size: BYTES` the size of the answer's body;
//! - `x-stub-drop: late` it closes at once and applies after the delay or the hold; `never` it closes and forgets;
//! - `x-stub-status: CODE` the answer's status.

use std::cell::RefCell;
use std::collections::{HashMap, HashSet};
use std::io::{self, BufReader, Read, Write};
use std::net::{IpAddr, Ipv4Addr, TcpListener, TcpStream};
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use rustls::{ServerConfig, ServerConnection, StreamOwned};

use super::PATIENCE;
use super::raw::{Request, read_head, read_rest};

/// A write that took effect.
#[derive(Clone, Debug)]
pub struct Applied {
    pub method: String,
    pub target: String,
    pub token: Option<u64>,
    /// A second token, where the request carries one for the last segment of its path.
    pub other_token: Option<u64>,
    pub at: Instant,
    /// The first bytes of its body, and how many there were.
    pub start: String,
    pub len: usize,
}

impl Applied {
    /// The first segment of its path.
    pub fn resource(&self) -> &str {
        self.target.split('/').nth(1).unwrap_or("")
    }

    /// The last segment of its path.
    pub fn other_resource(&self) -> &str {
        self.target.rsplit('/').next().unwrap_or("")
    }
}

/// What the store knows.
#[derive(Debug, Default)]
pub struct State {
    pub journal: Vec<Applied>,
    /// Every head that arrived.
    pub arrived: Vec<Request>,
    /// Requests whose body never came whole, and whether their connection was reset.
    pub incomplete: Vec<(Request, bool)>,
    pub store: HashMap<String, Vec<u8>>,
    pub connections: usize,
    released: HashSet<String>,
}

impl State {
    pub fn tokens(&self) -> Vec<u64> {
        self.journal.iter().filter_map(|applied| applied.token).collect()
    }
}

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

/// The store, listening.
#[derive(Debug)]
pub struct Stub {
    pub port: u16,
    shared: Arc<Shared>,
}

/// What the store listens on.
pub enum Place {
    Tcp(IpAddr),
    Tls(IpAddr, Arc<ServerConfig>),
    Unix(PathBuf),
}

impl Stub {
    pub fn start() -> Stub {
        Stub::start_on(Place::Tcp(Ipv4Addr::LOCALHOST.into()))
    }

    pub fn start_on(front: Place) -> Stub {
        let shared = Arc::new(Shared::default());
        let of_thread = Arc::clone(&shared);
        let (ip, tls) = match front {
            Place::Tcp(ip) => (ip, None),
            Place::Tls(ip, config) => (ip, Some(config)),
            Place::Unix(path) => {
                let listener = UnixListener::bind(path).unwrap();
                std::thread::spawn(move || {
                    for stream in listener.incoming().flatten() {
                        let shared = Arc::clone(&of_thread);
                        shared.change(|state| state.connections += 1);
                        let reader = stream.try_clone().unwrap();
                        std::thread::spawn(move || serve(reader, stream, &shared));
                    }
                });
                return Stub { port: 0, shared };
            }
        };
        let listener = TcpListener::bind((ip, 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (shared, tls) = (Arc::clone(&of_thread), tls.clone());
                shared.change(|state| state.connections += 1);
                std::thread::spawn(move || match tls {
                    None => serve(stream.try_clone().unwrap(), stream, &shared),
                    Some(config) => {
                        let tls = ServerConnection::new(config).unwrap();
                        let both = Both(Rc::new(RefCell::new(StreamOwned::new(tls, stream))));
                        serve(both.clone(), both, &shared);
                    }
                });
            }
        });
        Stub { port, shared }
    }

    /// What it knows now.
    pub fn look<T>(&self, look: impl FnOnce(&State) -> T) -> T {
        look(&self.shared.state.lock().unwrap())
    }

    /// Waits until it is so.
    #[track_caller]
    pub fn wait(&self, what: impl Fn(&State) -> bool) {
        let state = self.shared.state.lock().unwrap();
        let (state, timeout) = self
            .shared
            .changed
            .wait_timeout_while(state, PATIENCE, |state| !what(state))
            .unwrap();
        assert!(!timeout.timed_out(), "it never happened: {state:#?}");
    }

    /// Waits until the head of a request with that token has arrived.
    #[track_caller]
    pub fn wait_for_head(&self, token: u64) {
        self.wait(|state| state.arrived.iter().any(|r| r.token == Some(token)));
    }

    /// Waits until a write with that token has taken effect.
    #[track_caller]
    pub fn wait_for_effect(&self, token: u64) {
        self.wait(|state| state.tokens().contains(&token));
    }

    /// Lets go what waits for this name.
    pub fn release(&self, name: &str) {
        self.shared.change(|state| state.released.insert(name.into()));
    }

    pub fn tokens(&self) -> Vec<u64> {
        self.look(State::tokens)
    }

    pub fn journal(&self) -> Vec<Applied> {
        self.look(|state| state.journal.clone())
    }

    pub fn content(&self, target: &str) -> Option<String> {
        self.look(|state| {
            let body = state.store.get(target)?;
            Some(String::from_utf8_lossy(body).into_owned())
        })
    }
}

impl Shared {
    fn change<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        let result = change(&mut self.state.lock().unwrap());
        self.changed.notify_all();
        result
    }

    /// Waits for the test, but not for ever: its process must be able to end.
    fn hold(&self, name: &str) {
        let state = self.state.lock().unwrap();
        drop(
            self.changed
                .wait_timeout_while(state, 3 * PATIENCE, |state| !state.released.contains(name)),
        );
    }

    fn pause(&self, request: &Request, delay: &str, hold: &str) {
        if let Some(seconds) = request.field(delay) {
            std::thread::sleep(Duration::from_secs_f64(seconds.parse().unwrap()));
        }
        if let Some(name) = request.field(hold) {
            self.hold(name);
        }
    }

    fn apply(&self, request: &Request, body: &[u8]) -> Vec<u8> {
        self.change(|state| {
            if matches!(request.method.as_str(), "GET" | "HEAD" | "OPTIONS" | "PROPFIND") {
                return state.store.get(&request.target).cloned().unwrap_or_default();
            }
            state.journal.push(Applied {
                method: request.method.clone(),
                target: request.target.clone(),
                token: request.token,
                other_token: request.field("other-token").and_then(|value| value.parse().ok()),
                at: Instant::now(),
                start: String::from_utf8_lossy(&body[..body.len().min(64)]).into_owned(),
                len: body.len(),
            });
            if request.method == "DELETE" {
                state.store.remove(&request.target);
            } else {
                state.store.insert(request.target.clone(), body.to_vec());
            }
            Vec::new()
        })
    }
}

/// A TLS connection that is read and written in turns.
#[derive(Clone)]
struct Both(Rc<RefCell<StreamOwned<ServerConnection, TcpStream>>>);

impl Read for Both {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        self.0.borrow_mut().read(bytes)
    }
}

impl Write for Both {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.borrow_mut().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.borrow_mut().flush()
    }
}

fn serve(reader: impl Read, mut writer: impl Write, shared: &Arc<Shared>) {
    let mut reader = BufReader::with_capacity(64 * 1024, reader);
    while let Ok(Some(request)) = read_head(&mut reader) {
        shared.change(|state| state.arrived.push(request.clone()));
        if request.field("expect").is_some() && writer.write_all(b"HTTP/1.1 100 Continue\r\n\r\n").is_err() {
            return;
        }
        let body = match read_rest(&mut reader, &request) {
            Ok(body) => body,
            Err(error) => {
                let reset = error.kind() == io::ErrorKind::ConnectionReset;
                shared.change(|state| state.incomplete.push((request, reset)));
                return;
            }
        };
        match request.field("x-stub-drop") {
            Some("late") => {
                drop((reader, writer));
                shared.pause(&request, "x-stub-delay", "x-stub-hold");
                shared.apply(&request, &body);
                return;
            }
            Some(_) => return,
            None => {}
        }
        shared.pause(&request, "x-stub-delay", "x-stub-hold");
        let answer = shared.apply(&request, &body);
        shared.pause(&request, "x-stub-answer-delay", "x-stub-answer-hold");
        if send(&mut writer, shared, &request, answer).is_err()
            || request.field("connection") == Some("close")
        {
            return;
        }
    }
}

fn send(writer: &mut impl Write, shared: &Shared, request: &Request, mut body: Vec<u8>) -> io::Result<()> {
    if let Some(size) = request.field("x-stub-answer-size") {
        body = vec![b'a'; size.parse().unwrap()];
    }
    let status = request.field("x-stub-status").unwrap_or("200");
    let head = format!("HTTP/1.1 {status} X\r\ncontent-length: {}\r\n\r\n", body.len());
    if request.method == "HEAD" {
        return writer.write_all(head.as_bytes());
    }
    let Some(name) = request.field("x-stub-body-hold") else {
        body.splice(0..0, head.bytes());
        return writer.write_all(&body);
    };
    let (first, second) = body.split_at(body.len() / 2);
    writer.write_all(head.as_bytes())?;
    writer.write_all(first)?;
    shared.hold(name);
    writer.write_all(second)
}
