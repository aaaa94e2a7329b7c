//! What the story plays on: the store, the gate and the lock service, and the workers that come and go.
//!
//! It starts them, asks them, and looks into the store behind everybody's back. It tells nothing and judges
//! nothing: that is the story's part.

use std::io::{BufRead, BufReader, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::Path;
use std::process::ChildStdin;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Instant;

use super::DemoError;
use super::account::Account;
use super::http::{Answer, Target};
use super::lock::LockService;
use super::process::{Folder, LOOK_AGAIN, PATIENCE, Processes, show};
use super::worker::{Event, Pause};

/// Everything that runs during the story.
pub struct Stage {
    pub processes: Arc<Processes>,
    pub folder: Arc<Folder>,
    pub lock: LockService,
    pub store: Server,
}

/// A server of ours: the store, or the gate.
#[derive(Clone, Copy, Debug)]
pub struct Server {
    pub id: u32,
    pub address: SocketAddr,
}

/// The gate, with its admin address.
#[derive(Clone, Copy, Debug)]
pub struct Gate {
    pub server: Server,
    pub admin: SocketAddr,
}

/// What a worker is to do.
#[derive(Clone, Copy, Debug)]
pub struct Order<'a> {
    pub name: char,
    pub amount: i64,
    pub bucket: &'a str,
    /// The gate to go through; straight to the store without one.
    pub gate: Option<SocketAddr>,
    pub pause: Pause,
}

/// A worker that runs, or is stopped.
pub struct Worker {
    pub id: u32,
    pub name: char,
    stdin: ChildStdin,
    events: Receiver<Event>,
    processes: Arc<Processes>,
}

impl Stage {
    /// Starts the lock service and the store.
    ///
    /// # Errors
    /// When one of them doesn't come up.
    pub fn set(processes: Arc<Processes>, folder: Arc<Folder>) -> Result<Stage, DemoError> {
        let lock = LockService::start().map_err(|source| DemoError::Start {
            what: "the lock service".to_owned(),
            source,
        })?;
        let store = start_store(&processes, folder.path())?;
        Ok(Stage {
            processes,
            folder,
            lock,
            store,
        })
    }

    /// Starts the gate in front of the store, and returns when it is ready.
    ///
    /// # Errors
    /// With what the gate said, when it doesn't come up.
    pub fn start_gate(&self) -> Result<Gate, DemoError> {
        let mut tries_left = 3;
        loop {
            tries_left -= 1;
            match self.try_start_gate() {
                // Its ports were free a moment ago; another program may have taken one since.
                Err(DemoError::GateFailed { said }) if tries_left > 0 && said.contains("in use") => {}
                other => return other,
            }
        }
    }

    fn try_start_gate(&self) -> Result<Gate, DemoError> {
        let (address, admin) = free_ports()?;
        let config = self.folder.path().join("fencegate.yaml");
        write_file(
            &config,
            &gate_config(self.folder.path(), address, admin, self.store.address),
        )?;
        let log = self.folder.path().join("gate.log");
        let arguments = ["serve".to_owned(), "-c".to_owned(), config.display().to_string()];
        let id = self.processes.start_logged(&arguments, &log)?;
        let deadline = Instant::now() + PATIENCE;
        while !is_ready(admin) {
            let ended = self.processes.ended(id);
            if ended.is_some() || Instant::now() > deadline {
                self.processes.end(id);
                let end = ended.map_or_else(|| "not ready in time".to_owned(), show);
                let said = format!("{end}: {}", last_lines(&log));
                return Err(DemoError::GateFailed { said });
            }
            std::thread::sleep(LOOK_AGAIN);
        }
        let server = Server { id, address };
        Ok(Gate { server, admin })
    }

    /// Makes a bucket with an account in it, straight in the store.
    ///
    /// # Errors
    /// When the store refuses.
    pub fn prepare(&self, bucket: &str, account: &Account) -> Result<(), DemoError> {
        self.make_bucket(bucket)?;
        let path = object_path(bucket);
        let written = self.at_store(&path).put(account.to_text().as_bytes())?;
        expect_ok(&written, "writing the account")
    }

    /// Makes an empty bucket, straight in the store.
    ///
    /// # Errors
    /// When the store refuses.
    pub fn make_bucket(&self, bucket: &str) -> Result<(), DemoError> {
        let path = format!("/{bucket}");
        let made = self.at_store(&path).put(b"")?;
        expect_ok(&made, "making a bucket")
    }

    /// What the store itself holds, asked past the gate.
    ///
    /// # Errors
    /// When it can't be read, or isn't an account any more.
    pub fn look(&self, bucket: &str) -> Result<Account, DemoError> {
        let path = object_path(bucket);
        let answer = self.at_store(&path).get()?;
        expect_ok(&answer, "reading the account")?;
        Ok(Account::parse(&answer.body)?)
    }

    /// Starts a worker.
    ///
    /// # Errors
    /// When the process can't be started.
    pub fn hire(&self, order: Order<'_>) -> Result<Worker, DemoError> {
        let arguments = [
            "demo-worker".to_owned(),
            format!("--name={}", order.name),
            format!("--amount={}", order.amount),
            format!("--lock={}", self.lock.address),
            format!("--store={}", order.gate.unwrap_or(self.store.address)),
            format!("--bucket={}", order.bucket),
            format!("--key={KEY}"),
            format!("--lease-ms={LEASE_MS}"),
            format!("--pause={}", order.pause.as_arg()),
        ];
        let started = self.processes.start(&arguments)?;
        Ok(Worker {
            id: started.id,
            name: order.name,
            stdin: started.stdin,
            events: read_events(started.stdout),
            processes: Arc::clone(&self.processes),
        })
    }

    fn at_store<'a>(&self, path: &'a str) -> Target<'a> {
        Target {
            address: self.store.address,
            path,
            token: None,
        }
    }
}

impl Worker {
    /// Waits for the next thing that the worker tells; `pick` takes it, or gives it back.
    ///
    /// # Errors
    /// When it is another than expected, when the worker ends instead, or says nothing in time.
    pub fn expect<T>(
        &self,
        what: &'static str,
        pick: impl FnOnce(Event) -> Result<T, Event>,
    ) -> Result<T, DemoError> {
        let name = self.name;
        let event = self.events.recv_timeout(PATIENCE).map_err(|error| match error {
            RecvTimeoutError::Timeout => DemoError::Silent {
                what: format!("worker {name} says nothing; expected: {what}"),
            },
            RecvTimeoutError::Disconnected => DemoError::Ended {
                what: format!("worker {name} gave up; expected: {what}"),
            },
        })?;
        pick(event).map_err(|event| DemoError::NotAsTold {
            claim: what.to_owned(),
            found: format!("worker {name}: {event:?}"),
        })
    }

    /// Lets a worker that waits for a line go on: at once, or if it is stopped, when it is resumed.
    ///
    /// # Errors
    /// When it has ended.
    pub fn nod(&mut self) -> Result<(), DemoError> {
        writeln!(self.stdin, "go").map_err(|source| DemoError::Start {
            what: format!("worker {} again", self.name),
            source,
        })
    }

    /// Stops it where it stands (SIGSTOP).
    ///
    /// # Errors
    /// As [`Processes::freeze`].
    pub fn freeze(&self) -> Result<(), DemoError> {
        self.processes.freeze(self.id)
    }

    /// Lets it go on (SIGCONT).
    ///
    /// # Errors
    /// As [`Processes::thaw`].
    pub fn thaw(&self) -> Result<(), DemoError> {
        self.processes.thaw(self.id)
    }

    /// Waits until its process has ended well.
    ///
    /// # Errors
    /// As [`Processes::wait`].
    pub fn leave(self) -> Result<(), DemoError> {
        self.processes.wait(self.id)
    }
}

/// The path of a bucket's account.
pub fn object_path(bucket: &str) -> String {
    format!("/{bucket}/{KEY}")
}

/// The gate's whole configuration.
fn gate_config(folder: &Path, bind: SocketAddr, admin: SocketAddr, store: SocketAddr) -> String {
    // A JSON string is a YAML string, whatever is in the path.
    let marks = serde_json::Value::from(folder.join("marks").display().to_string());
    format!(
        r#"version: 1
store: {{ kind: file, path: {marks} }}
admin: {{ bind: "{admin}" }}
listeners:
  - name: accounts
    bind: "{bind}"
    protocol: http
    upstream:
      url: "http://{store}"
      response_timeout: 2s
      settle_after: 2s
    rules:
      - name: bucket
        match: {{ path: "/{{bucket}}/{{*key}}" }}
        resource: "bucket/{{bucket}}"
        token: {{ header: Fencing-Token, format: integer }}
"#
    )
}

fn start_store(processes: &Processes, folder: &Path) -> Result<Server, DemoError> {
    let dir = folder.join("store");
    std::fs::create_dir(&dir).map_err(|source| DemoError::File {
        path: dir.clone(),
        source,
    })?;
    let arguments = [
        "demo-store".to_owned(),
        "--dir".to_owned(),
        dir.display().to_string(),
    ];
    let started = processes.start(&arguments)?;
    let mut line = String::new();
    let read = BufReader::new(started.stdout).read_line(&mut line);
    let address = line
        .trim_end()
        .strip_prefix("listening ")
        .and_then(|text| text.parse().ok());
    match (read, address) {
        (Ok(_), Some(address)) => Ok(Server {
            id: started.id,
            address,
        }),
        (Ok(_) | Err(_), _) => Err(DemoError::Ended {
            what: "the store did not come up".to_owned(),
        }),
    }
}

/// Two ports that were free just now. They are bound at the same time, so that they differ.
fn free_ports() -> Result<(SocketAddr, SocketAddr), DemoError> {
    let free = || {
        let (one, two) = (bind_any()?, bind_any()?);
        Ok((one.local_addr()?, two.local_addr()?))
    };
    free().map_err(|source| DemoError::Start {
        what: "a listener on 127.0.0.1".to_owned(),
        source,
    })
}

fn bind_any() -> std::io::Result<TcpListener> {
    TcpListener::bind((Ipv4Addr::LOCALHOST, 0))
}

fn is_ready(admin: SocketAddr) -> bool {
    let target = Target {
        address: admin,
        path: "/readyz",
        token: None,
    };
    target.get().is_ok_and(|answer| answer.status == 200)
}

/// A worker's lines as events; ends with the worker, or with its first line that isn't an event.
fn read_events(stdout: std::process::ChildStdout) -> Receiver<Event> {
    let (send, events) = channel();
    std::thread::spawn(move || {
        let lines = BufReader::new(stdout).lines().map_while(Result::ok);
        for event in lines.map_while(|line| serde_json::from_str(&line).ok()) {
            if send.send(event).is_err() {
                return;
            }
        }
    });
    events
}

fn expect_ok(answer: &Answer, what: &str) -> Result<(), DemoError> {
    if answer.status == 200 {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&answer.body).into_owned();
    Err(DemoError::StoreRefused {
        what: what.to_owned(),
        status: answer.status,
        said,
    })
}

fn write_file(path: &Path, text: &str) -> Result<(), DemoError> {
    std::fs::write(path, text).map_err(|source| DemoError::File {
        path: path.to_owned(),
        source,
    })
}

/// The end of a log, for the message of a failure.
fn last_lines(log: &Path) -> String {
    let text = std::fs::read_to_string(log).unwrap_or_default();
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(5)..].join("\n")
}

/// The account's name in its bucket.
const KEY: &str = "account";
/// How long a lease lasts.
pub const LEASE_MS: u64 = 1000;
