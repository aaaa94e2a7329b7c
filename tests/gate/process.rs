//! The gate as a child process: started on a generated configuration, killed by its process id when dropped.

use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use tempfile::TempDir;

use super::{Ask, Front, PATIENCE, Reply};

/// The rule of most tests: a bucket is a resource.
pub const RULE: &str = r#"
      - name: bucket
        match: { path: "/{bucket}/{*key}" }
        resource: "bucket/{bucket}"
        token: { header: Fencing-Token }
"#;

/// What a test may choose about its gate.
#[derive(Clone, Debug)]
pub struct Setup {
    pub rules: String,
    pub settle_after: String,
    /// The backend's, where `{port}` stands for its port.
    pub url: String,
    /// The address that it listens at and at which the backend is, without the ports.
    pub host: String,
    /// Lines inside `upstream`.
    pub upstream: Vec<String>,
    /// Lines inside the listener.
    pub listener: Vec<String>,
    /// Lines at the top level.
    pub top: Vec<String>,
    pub store: String,
    /// Keys of `admin` beside its address.
    pub admin: String,
    /// The most files that the process may open, if that is bounded, and how many at first.
    pub files: Option<(u64, u64)>,
    /// What its clients speak.
    pub front: Front,
}

impl Default for Setup {
    fn default() -> Setup {
        Setup {
            rules: RULE.into(),
            settle_after: "2s".into(),
            url: "http://{host}:{port}".into(),
            host: "127.0.0.1".into(),
            upstream: Vec::new(),
            listener: Vec::new(),
            top: Vec::new(),
            store: "{ kind: file, path: ./data }".into(),
            admin: String::new(),
            files: None,
            front: Front::chosen(),
        }
    }
}

impl Setup {
    pub fn rules(rules: &str) -> Setup {
        Setup {
            rules: rules.into(),
            ..Setup::default()
        }
    }

    pub fn settle_after(mut self, settle_after: &str) -> Setup {
        self.settle_after = settle_after.into();
        self
    }

    pub fn url(mut self, url: &str) -> Setup {
        self.url = url.into();
        self
    }

    pub fn upstream(mut self, line: &str) -> Setup {
        self.upstream.push(line.into());
        self
    }

    pub fn listener(mut self, line: &str) -> Setup {
        self.listener.push(line.into());
        self
    }

    pub fn top(mut self, line: &str) -> Setup {
        self.top.push(line.into());
        self
    }

    pub fn front(mut self, front: Front) -> Setup {
        self.front = front;
        self
    }

    /// A gate in front of the backend at `port`, ready.
    pub fn start(self, port: u16) -> Gate {
        let mut gate = Gate {
            folder: tempfile::tempdir().unwrap(),
            setup: self,
            backend: port,
            port: 0,
            listens: 0,
            admin: 0,
            run: None,
        };
        gate.start();
        gate
    }

    fn text(&self, gate: &Gate) -> String {
        let indented = |lines: &[String], by: &str| -> String {
            lines.iter().map(|line| format!("{by}{line}\n")).collect()
        };
        format!(
            "version: 1\nstore: {}\nadmin: {{ bind: \"127.0.0.1:{}\"{} }}\n{}listeners:\n  - name: store\n    bind: \"{}:{}\"\n    upstream:\n      url: \"{}\"\n      settle_after: {}\n{}{}    rules:{}",
            self.store,
            gate.admin,
            self.admin,
            indented(&self.top, ""),
            self.host,
            gate.listens,
            self.url
                .replace("{host}", &self.host)
                .replace("{port}", &gate.backend.to_string()),
            self.settle_after,
            indented(&self.upstream, "      "),
            indented(&self.listener, "    "),
            self.rules
        )
    }
}

/// The program under test.
#[derive(Debug)]
pub struct Gate {
    pub folder: TempDir,
    pub setup: Setup,
    /// Where clients find it: the gate itself, or the translator in front of it.
    pub port: u16,
    listens: u16,
    pub admin: u16,
    backend: u16,
    run: Option<Run>,
}

#[derive(Debug)]
struct Run {
    child: Child,
    log: Arc<Log>,
}

/// What the child has written to its standard error.
#[derive(Debug, Default)]
struct Log {
    text: Mutex<(String, bool)>,
    changed: Condvar,
}

impl Log {
    /// Waits for a line with this text. False where the output ended before it.
    fn wait_for(&self, text: &str, patience: Duration) -> bool {
        let state = self.text.lock().unwrap();
        let (state, _) = self
            .changed
            .wait_timeout_while(state, patience, |(all, ended)| !*ended && !all.contains(text))
            .unwrap();
        state.0.contains(text)
    }
}

impl Gate {
    /// Starts it on its folder, on new ports, and waits until it is ready. A port that someone else took meanwhile
    /// is not its fault.
    #[track_caller]
    pub fn start(&mut self) {
        for _ in 0..20 {
            if self.try_start() {
                return;
            }
            assert!(
                self.log().contains("can't listen on"),
                "it did not start: {}",
                self.log()
            );
        }
        panic!("no port is free: {}", self.log());
    }

    /// Starts it; false where it ended before it was ready.
    pub fn try_start(&mut self) -> bool {
        self.kill();
        (self.listens, self.admin) = free_ports();
        let config = self.folder.path().join("fencegate.yaml");
        std::fs::write(&config, self.setup.text(self)).unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_fencegate"));
        command
            .args(["serve", "-c"])
            .arg(&config)
            .current_dir(self.folder.path())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped());
        let files = self.setup.files;
        // SAFETY: all calls are async-signal-safe and touch no memory of ours.
        unsafe {
            command.pre_exec(move || {
                // It must not outlive a test that is killed.
                libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
                if let Some((at_first, at_most)) = files {
                    let limit = libc::rlimit {
                        rlim_cur: at_first,
                        rlim_max: at_most,
                    };
                    libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit);
                }
                Ok(())
            });
        }
        let mut child = command.spawn().unwrap();
        let log = Arc::new(Log::default());
        let (of_thread, stderr) = (Arc::clone(&log), child.stderr.take().unwrap());
        std::thread::spawn(move || {
            for line in BufReader::new(stderr).split(b'\n').map_while(Result::ok) {
                of_thread.text.lock().unwrap().0 += &(String::from_utf8_lossy(&line) + "\n");
                of_thread.changed.notify_all();
            }
            of_thread.text.lock().unwrap().1 = true;
            of_thread.changed.notify_all();
        });
        let ready = log.wait_for(" ready ", PATIENCE);
        self.run = Some(Run { child, log });
        self.port = self.setup.front.start(self.listens);
        ready
    }

    /// What it has said since its start.
    pub fn log(&self) -> String {
        self.run
            .as_ref()
            .map_or_else(String::new, |run| run.log.text.lock().unwrap().0.clone())
    }

    #[track_caller]
    pub fn wait_for_log(&self, text: &str) {
        let found = self.run.as_ref().unwrap().log.wait_for(text, PATIENCE);
        assert!(found, "{text:?} was never said: {}", self.log());
    }

    pub fn pid(&self) -> i32 {
        i32::try_from(self.run.as_ref().expect("it runs").child.id()).unwrap()
    }

    pub fn signal(&self, signal: i32) {
        // SAFETY: no memory is involved, and the child has not been waited for.
        assert_eq!(unsafe { libc::kill(self.pid(), signal) }, 0);
    }

    /// kill -9.
    pub fn kill(&mut self) {
        if let Some(mut run) = self.run.take() {
            run.child.kill().unwrap();
            run.child.wait().unwrap();
        }
    }

    /// Waits for its end.
    #[track_caller]
    pub fn wait(&mut self) -> ExitStatus {
        let end = Instant::now() + 2 * PATIENCE;
        loop {
            let run = self.run.as_mut().expect("it runs");
            if let Some(status) = run.child.try_wait().unwrap() {
                return status;
            }
            assert!(Instant::now() < end, "it does not end: {}", self.log());
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// SIGTERM, and its exit code.
    #[track_caller]
    pub fn stop(&mut self) -> Option<i32> {
        self.signal(libc::SIGTERM);
        let code = self.wait().code();
        // Its end has been seen: nothing is left to kill.
        self.run = None;
        code
    }

    #[track_caller]
    pub fn send(&self, ask: Ask) -> Reply {
        ask.send(self.port)
    }

    /// Waits until a higher token than this one, the mark, has been seen. It asks by reads, which hold up nobody.
    #[track_caller]
    pub fn wait_until_stale(&self, target: &str, token: u64) {
        let end = Instant::now() + PATIENCE;
        while super::ask("GET", target).token(token).send(self.port).status != 412 {
            assert!(Instant::now() < end, "nobody has raised {target} above {token}");
        }
    }

    /// A number out of `/proc/PID/status`, in KiB.
    pub fn memory_kib(&self, key: &str) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.pid())).unwrap();
        let line = status.lines().find(|line| line.starts_with(key)).unwrap();
        line.split_whitespace().nth(1).unwrap().parse().unwrap()
    }

    /// Bounds the size of every file that it writes; `None` lifts the bound.
    pub fn limit_files(&self, bytes: Option<u64>) {
        let limit = libc::rlimit {
            rlim_cur: bytes.unwrap_or(libc::RLIM_INFINITY),
            rlim_max: libc::RLIM_INFINITY,
        };
        // SAFETY: `limit` outlives the call, and no old value is asked for.
        let result = unsafe { libc::prlimit(self.pid(), libc::RLIMIT_FSIZE, &limit, std::ptr::null_mut()) };
        assert_eq!(result, 0, "{}", std::io::Error::last_os_error());
    }

    /// The value of a metric's first line that contains all of `parts`; 0 where there is none.
    pub fn metric(&self, name: &str, parts: &[&str]) -> f64 {
        let text = super::ask("GET", "/metrics").send(self.admin).body;
        let text = String::from_utf8(text).unwrap();
        text.lines()
            .find(|line| line.starts_with(name) && parts.iter().all(|part| line.contains(part)))
            .map_or(0.0, |line| {
                line.split_whitespace().last().unwrap().parse().unwrap()
            })
    }
}

impl Drop for Gate {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let log = self.log();
            let tail: Vec<&str> = log.lines().rev().take(20).collect();
            eprintln!(
                "the end of the gate's log, the last line first:\n{}",
                tail.join("\n")
            );
        }
        self.kill();
    }
}

fn free_ports() -> (u16, u16) {
    // Both at once, so that they differ.
    let sockets = [(); 2].map(|()| TcpListener::bind(("127.0.0.1", 0)).unwrap());
    let [one, two] = sockets.map(|socket| socket.local_addr().unwrap().port());
    (one, two)
}
