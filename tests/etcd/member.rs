//! Members of etcd: started in a folder of their own, on ports of the system, ended by their process ids.

use std::cell::RefCell;
use std::net::TcpListener;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use etcd_client::{Client, ConnectOptions, GetOptions, TlsOptions};
use tempfile::TempDir;
use tokio::runtime::Runtime;

use super::wait_for;

/// What a test may choose about its members.
#[derive(Clone, Default)]
pub struct Setup {
    pub members: usize,
    pub flags: Vec<String>,
    /// `https` where this is set: what tests' own clients use.
    pub tls: Option<TlsOptions>,
    pub user: Option<(String, String)>,
    /// A folder with a database that is there already.
    pub data: Option<PathBuf>,
}

impl Setup {
    pub fn members(members: usize) -> Setup {
        Setup {
            members,
            ..Setup::default()
        }
    }

    pub fn flag(mut self, flag: &str) -> Setup {
        self.flags.push(flag.to_owned());
        self
    }

    pub fn start(self) -> Etcd {
        Etcd::start(self)
    }
}

const STARTS_MAX: u32 = 5;

/// Some members that are one cluster.
pub struct Etcd {
    folder: TempDir,
    pub setup: Setup,
    pub members: Vec<Member>,
}

pub struct Member {
    pub client_port: u16,
    peer_port: u16,
    name: String,
    child: Option<Child>,
}

impl Etcd {
    /// One member.
    pub fn one() -> Etcd {
        Setup::members(1).start()
    }

    fn start(mut setup: Setup) -> Etcd {
        for _ in 0..STARTS_MAX {
            let mut etcd = Etcd::assemble(setup);
            if etcd.comes_up() {
                return etcd;
            }
            setup = std::mem::take(&mut etcd.setup);
        }
        panic!("etcd ended at its start, {STARTS_MAX} times");
    }

    fn assemble(setup: Setup) -> Etcd {
        // In memory where that can be: these tests are not about its disk.
        let shm = Path::new("/dev/shm");
        let folder = if shm.is_dir() {
            TempDir::new_in(shm)
        } else {
            TempDir::new()
        }
        .unwrap();
        let members = (0..setup.members.max(1)).map(|n| Member {
            client_port: free_port(),
            peer_port: free_port(),
            name: format!("m{n}"),
            child: None,
        });
        let mut etcd = Etcd {
            folder,
            members: members.collect(),
            setup,
        };
        for n in 0..etcd.members.len() {
            etcd.run(n);
        }
        etcd
    }

    /// Whether all members answer at last; not where one has ended, because another process was faster to take its port.
    fn comes_up(&mut self) -> bool {
        let mut ready = 0;
        wait_for("an answer of etcd, or its end", || {
            let ended = |member: &mut Member| {
                let child = member.child.as_mut().expect("it was started");
                child.try_wait().expect("it is a child").is_some()
            };
            if self.members.iter_mut().any(ended) {
                return Some(false);
            }
            while ready < self.members.len() && self.control_of(ready).try_get("ready").is_ok() {
                ready += 1;
            }
            (ready == self.members.len()).then_some(true)
        })
    }

    /// Starts a member, with the database that it has.
    pub fn run(&mut self, n: usize) {
        let cluster: Vec<String> = self
            .members
            .iter()
            .map(|m| format!("{}=http://127.0.0.1:{}", m.name, m.peer_port))
            .collect();
        let scheme = self.scheme();
        let member = &self.members[n];
        let peer = format!("http://127.0.0.1:{}", member.peer_port);
        let client = format!("{scheme}://127.0.0.1:{}", member.client_port);
        let log = std::fs::File::options()
            .create(true)
            .append(true)
            .open(self.folder.path().join(format!("{}.log", member.name)))
            .unwrap();
        let mut command = Command::new(binary("etcd"));
        command
            .args(["--name", &member.name, "--data-dir"])
            .arg(self.data(n))
            .args([
                "--listen-client-urls",
                &client,
                "--advertise-client-urls",
                &client,
            ])
            .args([
                "--listen-peer-urls",
                &peer,
                "--initial-advertise-peer-urls",
                &peer,
            ])
            .args(["--initial-cluster", &cluster.join(",")])
            .args(["--heartbeat-interval", "50", "--election-timeout", "500"])
            .args(&self.setup.flags)
            .env("ETCD_UNSUPPORTED_ARCH", std::env::consts::ARCH)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log);
        // SAFETY: prctl is all that happens between fork and exec.
        unsafe {
            command.pre_exec(|| {
                libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
                Ok(())
            });
        }
        self.members[n].child = Some(command.spawn().expect("etcd is installed: .ci/setup"));
    }

    pub fn wait_until_ready(&self) {
        for n in 0..self.members.len() {
            let control = self.control_of(n);
            wait_for("an answer of etcd", || {
                control.try_get("ready").is_ok().then_some(())
            });
        }
    }

    pub fn log(&self, n: usize) -> String {
        std::fs::read_to_string(self.folder.path().join(format!("m{n}.log"))).unwrap_or_default()
    }

    pub fn data(&self, n: usize) -> PathBuf {
        match &self.setup.data {
            Some(data) => data.clone(),
            None => self.folder.path().join(format!("data{n}")),
        }
    }

    /// A path in the folder that goes with the members.
    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn scheme(&self) -> &'static str {
        if self.setup.tls.is_some() { "https" } else { "http" }
    }

    pub fn endpoint(&self, n: usize) -> String {
        format!("{}://127.0.0.1:{}", self.scheme(), self.members[n].client_port)
    }

    pub fn endpoints(&self) -> Vec<String> {
        (0..self.members.len()).map(|n| self.endpoint(n)).collect()
    }

    pub fn signal(&self, n: usize, signal: i32) {
        let child = self.members[n].child.as_ref().expect("it runs");
        let pid = i32::try_from(child.id()).unwrap();
        // SAFETY: the child was not waited for, so the id is still its own.
        assert_eq!(unsafe { libc::kill(pid, signal) }, 0);
    }

    pub fn stop(&self, n: usize) {
        self.signal(n, libc::SIGSTOP);
    }

    pub fn resume(&self, n: usize) {
        self.signal(n, libc::SIGCONT);
    }

    pub fn kill(&mut self, n: usize) {
        if let Some(mut child) = self.members[n].child.take() {
            let _ = child.kill();
            child.wait().unwrap();
        }
    }

    /// Asks the first member, beside the instances.
    pub fn control(&self) -> Control {
        self.control_of(0)
    }

    pub fn control_of(&self, n: usize) -> Control {
        Control::new(&self.endpoint(n), self.setup.tls.clone(), self.setup.user.clone())
    }

    /// Writes a copy of the database.
    pub fn snapshot(&self, file: &Path) {
        let done = Command::new(binary("etcdctl"))
            .env("ETCDCTL_API", "3")
            .args(["--endpoints", &self.endpoint(0), "snapshot", "save"])
            .arg(file)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status()
            .unwrap();
        assert!(done.success());
    }

    /// Kills the one member and starts it on a copy of an older database. With another `token` it is another cluster.
    pub fn restore(&mut self, file: &Path, token: &str) {
        self.kill(0);
        let data = self.data(0);
        std::fs::remove_dir_all(&data).unwrap();
        let peer = format!("http://127.0.0.1:{}", self.members[0].peer_port);
        let done = Command::new(binary("etcdctl"))
            .env("ETCDCTL_API", "3")
            .args(["snapshot", "restore"])
            .arg(file)
            .args(["--name", "m0", "--initial-advertise-peer-urls", &peer])
            .args(["--initial-cluster", &format!("m0={peer}")])
            .args(["--initial-cluster-token", token, "--data-dir"])
            .arg(&data)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status()
            .unwrap();
        assert!(done.success());
        self.run(0);
        self.wait_until_ready();
    }

    /// The member that leads.
    pub fn leader(&self) -> usize {
        wait_for("a leader", || {
            (0..self.members.len()).find(|n| {
                let control = self.control_of(*n);
                control
                    .run(async |mut client| client.status().await)
                    .is_ok_and(|status| status.leader() == status.header().unwrap().member_id())
            })
        })
    }
}

impl Drop for Etcd {
    fn drop(&mut self) {
        for n in 0..self.members.len() {
            self.kill(n);
        }
    }
}

/// A client of one member, for what a test does by hand.
pub struct Control {
    runtime: Runtime,
    endpoint: String,
    tls: Option<TlsOptions>,
    user: Option<(String, String)>,
    client: RefCell<Option<Client>>,
}

impl Control {
    pub fn new(endpoint: &str, tls: Option<TlsOptions>, user: Option<(String, String)>) -> Control {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        Control {
            runtime,
            endpoint: endpoint.to_owned(),
            tls,
            user,
            client: RefCell::new(None),
        }
    }

    pub fn run<T>(
        &self,
        work: impl AsyncFnOnce(Client) -> Result<T, etcd_client::Error>,
    ) -> Result<T, String> {
        self.runtime.block_on(async {
            let known = self.client.borrow().clone();
            let client = match known {
                Some(client) => client,
                None => {
                    let mut options = ConnectOptions::new()
                        .with_connect_timeout(Duration::from_secs(2))
                        .with_timeout(Duration::from_secs(5))
                        .with_auto_token_refresh(true);
                    if let Some(tls) = &self.tls {
                        options = options.with_tls(tls.clone());
                    }
                    if let Some((name, password)) = &self.user {
                        options = options.with_user(name, password);
                    }
                    Client::connect([&self.endpoint], Some(options))
                        .await
                        .map_err(|error| error.to_string())?
                }
            };
            self.client.replace(Some(client.clone()));
            work(client).await.map_err(|error| error.to_string())
        })
    }

    /// Does it, however often it takes.
    #[track_caller]
    pub fn must<T>(&self, work: impl AsyncFn(Client) -> Result<T, etcd_client::Error>) -> T {
        wait_for("an answer", || self.run(&work).ok())
    }

    pub fn try_get(&self, key: &str) -> Result<Option<String>, String> {
        self.run(async |mut client| client.get(key, None).await)
            .map(|answer| {
                let kv = answer.kvs().first();
                kv.map(|kv| String::from_utf8(kv.value().to_vec()).unwrap())
            })
    }

    #[track_caller]
    pub fn get(&self, key: &str) -> Option<String> {
        self.try_get(key).unwrap()
    }

    #[track_caller]
    pub fn put(&self, key: &str, value: &str) {
        self.must(async |mut client| client.put(key, value, None).await);
    }

    #[track_caller]
    pub fn delete(&self, key: &str) {
        self.must(async |mut client| client.delete(key, None).await);
    }

    /// The lease that a key lives by.
    #[track_caller]
    pub fn lease_of(&self, key: &str) -> i64 {
        let answer = self.must(async |mut client| client.get(key, None).await);
        answer.kvs()[0].lease()
    }

    #[track_caller]
    pub fn count(&self, prefix: &str) -> i64 {
        let options = GetOptions::new().with_prefix().with_count_only();
        self.must(async |mut client| client.get(prefix, Some(options.clone())).await)
            .count()
    }

    #[track_caller]
    pub fn revision(&self) -> i64 {
        let answer = self.must(async |mut client| client.get("x", None).await);
        answer.header().unwrap().revision()
    }
}

/// `FENCEGATE_ETCD` names another etcd than the installed one; its etcdctl stands beside it.
fn binary(name: &str) -> PathBuf {
    match std::env::var_os("FENCEGATE_ETCD") {
        Some(etcd) => Path::new(&etcd).with_file_name(name),
        None => PathBuf::from(name),
    }
}

pub fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap()
        .port()
}
