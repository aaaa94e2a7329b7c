//! A proxy beside another: haproxy in TCP mode, which compares nothing, and fencegate, both pinned to one core, in turns
//! in one run. What counts is the processor time of the proxy's process for a unit of work, user and system together.
//!
//! `FENCEGATE_BINARIES=now=target/release/fencegate,before=/tmp/before` compares several builds with each other;
//! `FENCEGATE_TURNS` says how many turns there are.

#![allow(dead_code, reason = "each bench uses a part of it")]

use std::fs;
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;

/// A proxy that runs.
pub struct Proxy {
    pub name: String,
    pub port: u16,
    /// Whether it takes a token.
    pub fences: bool,
    process: Process,
    _folder: TempDir,
}

/// A process that ends with this.
pub struct Process(Child);

impl Process {
    pub fn start(command: &mut Command) -> Process {
        let log = || Stdio::null();
        let child = command.stdin(Stdio::null()).stdout(log()).stderr(log()).spawn();
        Process(child.unwrap_or_else(|error| panic!("{command:?} does not start: {error}")))
    }

    /// Seconds of processor time so far.
    pub fn cpu(&self) -> f64 {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.0.id())).expect("it runs");
        let behind_name = stat.rsplit_once(')').expect("a stat line has a name").1;
        let ticks = |at: usize| -> f64 { behind_name.split_whitespace().nth(at).unwrap().parse().unwrap() };
        // Fields 14 and 15 of the line: utime and stime, in hundredths of a second.
        (ticks(11) + ticks(12)) / 100.0
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

impl Proxy {
    /// haproxy with these lines in its defaults.
    pub fn haproxy(name: &str, lines: &str, backend: u16) -> Proxy {
        let (port, folder) = (free_port(), tempfile::tempdir().unwrap());
        let config = folder.path().join("haproxy.cfg");
        let text = format!(
            "global\n  nbthread 1\n  maxconn 1000\ndefaults\n  mode tcp\n{lines}\n  timeout connect 5s\n  \
             timeout client 60s\n  timeout server 60s\nlisten l\n  bind 127.0.0.1:{port}\n  server s 127.0.0.1:{backend}\n"
        );
        fs::write(&config, text).unwrap();
        let process = Process::start(pinned("haproxy").arg("-db").arg("-f").arg(&config));
        Proxy::once_it_listens(name, port, false, process, folder)
    }

    /// Each build of fencegate that is compared, with these lines in its listener.
    pub fn fencegates(listener: &str, backend: u16) -> Vec<Proxy> {
        let builds = std::env::var("FENCEGATE_BINARIES")
            .unwrap_or_else(|_| format!("fencegate={}", env!("CARGO_BIN_EXE_fencegate")));
        let build = |build: &str| {
            let (name, path) = build.split_once('=').expect("name=path");
            Proxy::fencegate(name, path.into(), listener, backend)
        };
        builds.split(',').map(build).collect()
    }

    fn fencegate(name: &str, binary: PathBuf, listener: &str, backend: u16) -> Proxy {
        let (port, folder) = (free_port(), tempfile::tempdir().unwrap());
        let config = folder.path().join("fencegate.yaml");
        let text = format!(
            "version: 1\nstore: {{ kind: file, path: {}/data }}\nadmin: {{ bind: \"127.0.0.1:{}\" }}\nlisteners:\n  \
             - name: l\n    bind: \"127.0.0.1:{port}\"\n    upstream: {{ url: \"tcp://127.0.0.1:{backend}\", settle_after: 5s }}\n{listener}",
            folder.path().display(),
            free_port(),
        );
        fs::write(&config, text).unwrap();
        let process = Process::start(
            pinned(&binary.display().to_string())
                .args(["serve", "-c"])
                .arg(&config),
        );
        Proxy::once_it_listens(name, port, true, process, folder)
    }

    fn once_it_listens(name: &str, port: u16, fences: bool, process: Process, folder: TempDir) -> Proxy {
        await_port(port);
        Proxy {
            name: name.into(),
            port,
            fences,
            process,
            _folder: folder,
        }
    }

    /// The processor seconds that it spends on this.
    pub fn spends(&self, work: impl FnOnce()) -> f64 {
        let before = self.process.cpu();
        work();
        self.process.cpu() - before
    }
}

/// What one case costs each proxy, in turns; prints the medians, and how they compare to the first proxy's.
pub fn compare(case: &str, unit: &str, proxies: &[Proxy], mut cost: impl FnMut(&Proxy) -> f64) {
    let turns = std::env::var("FENCEGATE_TURNS").map_or(5, |turns| turns.parse().expect("a number"));
    let mut costs = vec![Vec::new(); proxies.len()];
    for turn in 0..turns {
        for at in 0..proxies.len() {
            // Whoever comes behind another finds its caches: nobody always does.
            let at = (at + turn) % proxies.len();
            costs[at].push(cost(&proxies[at]));
        }
    }
    let medians: Vec<f64> = costs.iter_mut().map(|costs| median(costs)).collect();
    let shown = proxies
        .iter()
        .zip(&medians)
        .map(|(proxy, cost)| format!("{} {cost:.3} {unit} ({:.2})", proxy.name, cost / medians[0]));
    println!("{case}: {}", shown.collect::<Vec<_>>().join(", "));
}

fn median(costs: &mut [f64]) -> f64 {
    costs.sort_by(f64::total_cmp);
    costs[costs.len() / 2]
}

/// On the last of the machine's cores.
fn pinned(program: &str) -> Command {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let mut command = Command::new("taskset");
    command.args(["-c", &(cores - 1).to_string(), program]);
    command
}

pub fn await_port(port: u16) {
    let end = Instant::now() + Duration::from_secs(60);
    while TcpStream::connect(("127.0.0.1", port)).is_err() {
        assert!(Instant::now() < end, "nothing listens at port {port}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

pub fn free_port() -> u16 {
    let socket = std::net::TcpListener::bind(("127.0.0.1", 0)).unwrap();
    socket.local_addr().unwrap().port()
}
