//! A real Redis behind the gate, and RESP by hand in front of it.

#![allow(dead_code, reason = "each test binary uses a part of it")]

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;

use crate::backends::{free_port, installed};
use crate::gate::{Conn, Front, Gate, PATIENCE, Pki, Setup};

/// The rules of most tests.
pub const RULES: &str = r#"
      - { name: orders, match: { keys: "orders:{id}*" }, resource: "orders/{id}", token: { connection: true }, drain_timeout: 10s }
      - { name: free, match: { keys: "free:*" }, resource: "free", token: { connection: true }, missing: pass }
      - { name: flush, match: { commands: [FLUSHALL] }, resource: "everything", token: { connection: true } }
      - { name: scripts, match: { undeclared_keys: true }, action: deny }
"#;

/// A running redis-server: it ends with it.
pub struct Server {
    pub folder: TempDir,
    pub port: u16,
    child: Child,
}

impl Server {
    pub fn start() -> Server {
        Server::with(&[])
    }

    /// With lines of its configuration.
    pub fn with(lines: &[&str]) -> Server {
        Server::at(free_port(), lines)
    }

    /// With TLS at another port, the second.
    pub fn behind_tls(pki: &Pki) -> (Server, u16) {
        let port = free_port();
        let lines = [
            format!("tls-port {port}"),
            format!("tls-cert-file {}", pki.show("server.pem")),
            format!("tls-key-file {}", pki.show("server.key")),
            "tls-auth-clients no".into(),
        ];
        let server = Server::with(&lines.each_ref().map(String::as_str));
        (server, port)
    }

    /// At this port.
    pub fn at(port: u16, lines: &[&str]) -> Server {
        let folder = tempfile::tempdir().unwrap();
        let config = folder.path().join("redis.conf");
        let text = format!(
            "port {port}\nbind 127.0.0.1\nsave \"\"\ndir {}\nenable-debug-command yes\n{}\n",
            folder.path().display(),
            lines.join("\n")
        );
        fs::write(&config, text).unwrap();
        let child = Command::new(installed("/usr/bin/redis-server"))
            .arg(&config)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let server = Server { folder, port, child };
        let end = Instant::now() + PATIENCE;
        while TcpStream::connect(("127.0.0.1", port)).is_err() {
            assert!(Instant::now() < end, "redis-server does not listen");
            std::thread::sleep(Duration::from_millis(5));
        }
        server
    }

    /// A client that goes round the gate.
    pub fn client(&self) -> Client {
        Client::of(self.port)
    }

    /// It is there, and works on nothing, until [`Server::go_on`].
    pub fn pause(&self) {
        self.signal(libc::SIGSTOP);
    }

    pub fn go_on(&self) {
        self.signal(libc::SIGCONT);
    }

    fn signal(&self, signal: i32) {
        let pid = i32::try_from(self.child.id()).unwrap();
        // SAFETY: no memory is involved, and the child has not been waited for.
        assert_eq!(unsafe { libc::kill(pid, signal) }, 0);
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

/// What a test of this gate begins with.
pub fn setup(rules: &str) -> Setup {
    Setup::rules(rules)
        .url("tcp://{host}:{port}")
        .listener("protocol: redis")
        .front(Front::Http1)
}

pub fn start() -> (Server, Gate) {
    start_with(setup(RULES))
}

pub fn start_with(setup: Setup) -> (Server, Gate) {
    let server = Server::start();
    let gate = setup.start(server.port);
    (server, gate)
}

/// A connection.
pub struct Client {
    reader: BufReader<TcpStream>,
}

impl Client {
    pub fn of(port: u16) -> Client {
        let socket = TcpStream::connect(("127.0.0.1", port)).unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        socket.set_nodelay(true).unwrap();
        Client {
            reader: BufReader::new(socket),
        }
    }

    /// A connection that holds this token.
    pub fn holder(gate: &Gate, token: u64) -> Client {
        let mut client = Client::of(gate.port);
        assert_eq!(client.ask(&format!("FENCE {token}")), "+OK");
        client
    }

    /// Sends a command, its words split at spaces, and gives its reply.
    pub fn ask(&mut self, command: &str) -> String {
        self.send(command);
        self.reply()
    }

    pub fn send(&mut self, command: &str) {
        let bytes = written(&command.split(' ').map(str::as_bytes).collect::<Vec<_>>());
        self.send_bytes(&bytes);
    }

    pub fn send_bytes(&mut self, bytes: &[u8]) {
        // A connection that has ended shows it when a reply is asked for.
        let _sent = self.reader.get_mut().write_all(bytes);
    }

    /// How many of the bytes are taken; fails where none is for longer than [`Client::give_up_sending_after`].
    pub fn try_send(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.reader.get_mut().write(bytes)
    }

    pub fn give_up_sending_after(&self, patience: Duration) {
        self.reader.get_ref().set_write_timeout(Some(patience)).unwrap();
    }

    /// Several commands in one write.
    pub fn send_all(&mut self, commands: &[&str]) {
        let mut bytes = Vec::new();
        for command in commands {
            bytes.extend(written(
                &command.split(' ').map(str::as_bytes).collect::<Vec<_>>(),
            ));
        }
        self.send_bytes(&bytes);
    }

    pub fn replies(&mut self, count: usize) -> Vec<String> {
        (0..count).map(|_| self.reply()).collect()
    }

    /// All that still comes.
    pub fn read_to_end(&mut self, bytes: &mut Vec<u8>) {
        self.reader.read_to_end(bytes).unwrap();
    }

    /// The next line as it is; `END` for the connection's end.
    pub fn line(&mut self) -> String {
        let mut line = Vec::new();
        match self.reader.read_until(b'\n', &mut line) {
            Ok(0) => "END".into(),
            Ok(_) => String::from_utf8_lossy(&line).trim_end().to_owned(),
            Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => "END".into(),
            Err(error) => panic!("no reply: {error}"),
        }
    }

    /// The next reply: `+OK`, `-ERR …`, `:1`, a text as it is, `nil`, `[a b]`, `>[a b]`, `{a b}`; `END` for the
    /// connection's end.
    pub fn reply(&mut self) -> String {
        let line = self.line();
        if line == "END" {
            return line;
        }
        let (kind, rest) = line.split_at(1);
        let each = |client: &mut Client, count: usize| client.replies(count).join(" ");
        match kind {
            "$" | "=" if rest == "-1" => "nil".into(),
            "$" | "=" => {
                let mut text = vec![0; rest.parse::<usize>().unwrap() + 2];
                self.reader.read_exact(&mut text).unwrap();
                text.truncate(text.len() - 2);
                String::from_utf8_lossy(&text).into_owned()
            }
            "*" if rest == "-1" => "nil".into(),
            "*" | "~" => format!("[{}]", each(self, rest.parse().unwrap())),
            ">" => format!(">[{}]", each(self, rest.parse().unwrap())),
            "%" => format!("{{{}}}", each(self, 2 * rest.parse::<usize>().unwrap())),
            "_" => "nil".into(),
            _ => line,
        }
    }
}

/// The reply has all of these words.
#[track_caller]
pub fn says(reply: &str, words: &[&str]) {
    for word in words {
        assert!(reply.contains(word), "{reply:?} lacks {word:?}");
    }
}

/// A command as clients write it.
pub fn written(words: &[&[u8]]) -> Vec<u8> {
    let mut bytes = format!("*{}\r\n", words.len()).into_bytes();
    for word in words {
        bytes.extend(format!("${}\r\n", word.len()).bytes());
        bytes.extend_from_slice(word);
        bytes.extend_from_slice(b"\r\n");
    }
    bytes
}

/// Asks until the answer is another one than `not`.
#[track_caller]
pub fn until(mut ask: impl FnMut() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !ask() {
        assert!(Instant::now() < end, "it does not come to pass");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// What the admin address says of all fences.
pub fn fences(gate: &Gate) -> Vec<serde_json::Value> {
    let json = Conn::open(gate.admin)
        .send("GET /api/v1/fences HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        .reply()
        .json();
    json["fences"].as_array().unwrap().clone()
}

/// How many commands wait at all fences together.
pub fn waiting(gate: &Gate) -> u64 {
    let waiting = |fence: &serde_json::Value| fence["waiting"].as_u64().unwrap();
    fences(gate).iter().map(waiting).sum()
}
