//! A real gate in front of a small backend, and just enough HTTP to talk to both. The tests' own.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::OnceLock;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use serde_json::Value;
use tempfile::TempDir;

/// Longer than anything here takes, so that a test that hangs fails.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// An answer, read whole.
#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    pub head: String,
    pub body: String,
}

impl Answer {
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }
}

/// A backend that answers 200 to whatever has come whole. A path with `slow` in it waits for a word.
pub struct Backend {
    pub address: SocketAddr,
    /// The path of each request whose head has come.
    pub arrived: Receiver<String>,
    /// The path of each request that has come whole.
    pub whole: Receiver<String>,
    /// One word lets one slow request go on.
    pub release: Sender<()>,
}

impl Backend {
    pub fn start() -> Backend {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let (arrives, arrived) = channel();
        let (completes, whole) = channel();
        let (release, released) = channel();
        let released = std::sync::Arc::new(std::sync::Mutex::new(released));
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (arrives, completes, released) = (arrives.clone(), completes.clone(), released.clone());
                std::thread::spawn(move || attend(stream, &arrives, &completes, &released));
            }
        });
        Backend {
            address,
            arrived,
            whole,
            release,
        }
    }

    /// Waits until a request to this path has arrived.
    pub fn wait_for(&self, path: &str) {
        while self.arrived.recv_timeout(PATIENCE).expect("the request arrives") != path {}
    }
}

fn attend(
    mut stream: TcpStream,
    arrives: &Sender<String>,
    completes: &Sender<String>,
    released: &std::sync::Mutex<Receiver<()>>,
) {
    let mut bytes = Vec::new();
    loop {
        let Some(end) = read_head(&mut stream, &mut bytes) else {
            return;
        };
        let head = String::from_utf8_lossy(&bytes[..end]).into_owned();
        let path = head.split(' ').nth(1).unwrap_or_default().to_owned();
        let _ended = arrives.send(path.clone());
        if read_body(&mut stream, &mut bytes, end, length(&head)).is_none() {
            return;
        }
        let _ended = completes.send(path.clone());
        if path.contains("slow") && released.lock().unwrap().recv().is_err() {
            return;
        }
        let answer = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";
        if stream.write_all(answer).is_err() {
            return;
        }
    }
}

/// Where the head ends; what came after it stays in `bytes`.
fn read_head(stream: &mut TcpStream, bytes: &mut Vec<u8>) -> Option<usize> {
    loop {
        if let Some(at) = bytes.windows(4).position(|w| w == b"\r\n\r\n") {
            return Some(at + 4);
        }
        more(stream, bytes)?;
    }
}

/// Takes head and body out of `bytes`, and gives the body.
fn read_body(stream: &mut TcpStream, bytes: &mut Vec<u8>, start: usize, length: usize) -> Option<String> {
    while bytes.len() < start + length {
        more(stream, bytes)?;
    }
    let body = String::from_utf8_lossy(&bytes[start..start + length]).into_owned();
    bytes.drain(..start + length);
    Some(body)
}

fn more(stream: &mut TcpStream, bytes: &mut Vec<u8>) -> Option<()> {
    let mut piece = [0; 16 * 1024];
    match stream.read(&mut piece) {
        Ok(0) | Err(_) => None,
        Ok(n) => {
            bytes.extend_from_slice(&piece[..n]);
            Some(())
        }
    }
}

fn length(head: &str) -> usize {
    let field = head.lines().find_map(|line| {
        let (name, value) = line.split_once(':')?;
        name.eq_ignore_ascii_case("content-length").then(|| value.trim())
    });
    field.map_or(0, |value| value.parse().unwrap())
}

/// A connection that may carry several requests.
pub struct Connection {
    pub stream: TcpStream,
    bytes: Vec<u8>,
}

impl Connection {
    pub fn open(address: SocketAddr) -> Connection {
        let stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        Connection {
            stream,
            bytes: Vec::new(),
        }
    }

    /// Sends a head and what there is of a body. A field that is given replaces the one of the helper's own.
    pub fn send(&mut self, method: &str, path: &str, fields: &[(&str, &str)], length: usize, body: &[u8]) {
        let mut head = format!("{method} {path} HTTP/1.1\r\nContent-Length: {length}\r\n");
        if !fields.iter().any(|(name, _)| *name == "Host") {
            head.push_str("Host: localhost\r\n");
        }
        for (name, value) in fields {
            head.push_str(&format!("{name}: {value}\r\n"));
        }
        head.push_str("\r\n");
        self.stream.write_all(&[head.as_bytes(), body].concat()).unwrap();
    }

    pub fn answer(&mut self) -> Answer {
        let end = read_head(&mut self.stream, &mut self.bytes).expect("an answer comes");
        let head = String::from_utf8_lossy(&self.bytes[..end]).into_owned();
        let body = read_body(&mut self.stream, &mut self.bytes, end, length(&head)).expect("it comes whole");
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        Answer { status, head, body }
    }

    pub fn ask(&mut self, method: &str, path: &str, fields: &[(&str, &str)], body: &str) -> Answer {
        self.send(method, path, fields, body.len(), body.as_bytes());
        self.answer()
    }
}

/// A running gate. It is killed with the test.
pub struct Gate {
    child: Child,
    pub listen: SocketAddr,
    pub admin: SocketAddr,
    pub folder: TempDir,
}

/// One rule for objects.
pub const OBJECTS: &str = "{ name: object, match: { path: \"/{*key}\", methods: [PUT] }, resource: \"object/{key}\", token: { header: Fencing-Token } }";

impl Gate {
    /// A gate with this store and these rules.
    pub fn start(backend: &Backend, store: &str, rules: &[&str]) -> Gate {
        let folder = tempfile::tempdir().unwrap();
        let (listen, admin) = (free_port(), free_port());
        let path = folder.path().display();
        let text = format!(
            "version: 1\nstore: {{ kind: {store}{} }}\nadmin: {{ bind: \"{admin}\" }}\nlog: {{ level: warn }}\n\
             shutdown_timeout: 10s\nlisteners:\n  - name: objects\n    bind: \"{listen}\"\n    \
             upstream: {{ url: \"http://{}\", settle_after: 60s, response_timeout: 60s }}\n    rules:\n{}",
            if store == "file" {
                format!(", path: \"{path}/marks\"")
            } else {
                String::new()
            },
            backend.address,
            rules
                .iter()
                .map(|rule| format!("      - {rule}\n"))
                .collect::<String>(),
        );
        std::fs::write(folder.path().join("gate.yaml"), text).unwrap();
        // Another letter in this file, later on, makes the store's device fail.
        let faults = folder.path().join("faults");
        std::fs::write(&faults, "").unwrap();
        let child = serve(folder.path());
        let mut gate = Gate {
            child,
            listen,
            admin,
            folder,
        };
        gate.wait_until_ready();
        gate
    }

    fn wait_until_ready(&mut self) {
        let deadline = Instant::now() + PATIENCE;
        while TcpStream::connect(self.admin).is_err() || self.get("/readyz").status != 200 {
            if let Some(status) = self.child.try_wait().unwrap() {
                panic!("the gate has ended: {status}");
            }
            assert!(Instant::now() < deadline, "the gate is not ready in time");
            std::thread::sleep(Duration::from_millis(5)); // between two looks
        }
    }

    /// From now on each fsync of the store fails, or none does.
    pub fn let_the_store_fail(&self, fails: bool) {
        let letter = if fails { "S" } else { "" };
        std::fs::write(self.folder.path().join("faults"), letter).unwrap();
    }

    /// Ends it by this signal, and says how it ended.
    pub fn end(&mut self, signal: libc::c_int) -> ExitStatus {
        let id = libc::pid_t::try_from(self.child.id()).unwrap();
        // SAFETY: no memory is involved, and the child has not been waited for.
        assert_eq!(unsafe { libc::kill(id, signal) }, 0);
        self.child.wait().unwrap()
    }

    /// Starts it again in the same folder.
    pub fn start_again(&mut self) {
        self.child = serve(self.folder.path());
        self.wait_until_ready();
    }

    pub fn get(&self, path: &str) -> Answer {
        Connection::open(self.admin).ask("GET", path, &[], "")
    }

    pub fn post(&self, path: &str, body: &Value) -> Answer {
        let kind = [("Content-Type", "application/json")];
        Connection::open(self.admin).ask("POST", path, &kind, &body.to_string())
    }

    pub fn put(&self, path: &str, token: &str) -> Answer {
        Connection::open(self.listen).ask("PUT", path, &[("Fencing-Token", token)], "text")
    }

    /// What the admin address shows of one fence.
    pub fn fence(&self, encoded: &str) -> Value {
        self.get(&format!("/api/v1/fences?resource={encoded}")).json()["fences"][0].clone()
    }

    /// Looks at a fence until it is as wanted.
    pub fn wait_for_fence(&self, encoded: &str, wanted: impl Fn(&Value) -> bool) -> Value {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let fence = self.fence(encoded);
            if wanted(&fence) {
                return fence;
            }
            assert!(Instant::now() < deadline, "it stays {fence}");
        }
    }

    /// Looks until the store takes marks, or takes none.
    pub fn wait_for_store(&self, state: &str) {
        let deadline = Instant::now() + PATIENCE;
        while self.get("/readyz").json()["store"] != state {
            assert!(Instant::now() < deadline, "the store never is {state}");
        }
    }

    /// `fencegate fences …` against this gate, with nobody at the terminal.
    pub fn fences(&self, arguments: &[&str]) -> Output {
        Command::new(env!("CARGO_BIN_EXE_fencegate"))
            .arg("fences")
            .args(["--admin", &self.admin.to_string()])
            .args(arguments)
            .stdin(Stdio::null())
            .output()
            .unwrap()
    }
}

impl Drop for Gate {
    fn drop(&mut self) {
        let _ended = self.child.kill();
        let _ended = self.child.wait();
    }
}

fn serve(folder: &Path) -> Child {
    Command::new(env!("CARGO_BIN_EXE_fencegate"))
        .args(["serve", "-c"])
        .arg(folder.join("gate.yaml"))
        .env("LD_PRELOAD", shim())
        .env("FENCEGATE_FOLDER", folder.join("marks"))
        .env("FENCEGATE_SHIM", folder.join("faults"))
        .stdin(Stdio::null())
        .spawn()
        .unwrap()
}

/// A port that the system has just given and taken back.
fn free_port() -> SocketAddr {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap()
}

/// The library that makes a device fail, built once.
fn shim() -> &'static Path {
    static SHIM: OnceLock<PathBuf> = OnceLock::new();
    SHIM.get_or_init(|| {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/ledger_common/shim.c");
        let library =
            Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("admin-shim-{}.so", std::process::id()));
        let built = Command::new("cc")
            .args(["-shared", "-fPIC", "-O1", "-o"])
            .args([&library, &source])
            .status()
            .expect("a C compiler is there");
        assert!(built.success());
        library
    })
}
