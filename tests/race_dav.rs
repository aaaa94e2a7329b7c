//! The race on a real backend: Apache's mod_dav, started here on a folder and a port of its own.
//!
//! A write that is on its way when a newer holder takes over must not come last: neither a slow upload nor a
//! request that the backend has in its buffers while the gate is killed. `FENCEGATE_LONG=1` makes fifty trials of
//! each; `FENCEGATE_SKIP_DAV=1` does without, for machines that have no Apache.

mod gate;

use std::fs;
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use gate::{Conn, Setup, ask, head};
use tempfile::TempDir;

const SERVER: &str = "/usr/sbin/apache2";
const MODULES: &str = "/usr/lib/apache2/modules";

/// A running Apache. It and its children are one process group, which ends with it.
struct Apache {
    folder: TempDir,
    port: u16,
    child: Child,
}

impl Apache {
    /// `None` where the environment says to do without.
    fn start() -> Option<Apache> {
        if std::env::var_os("FENCEGATE_SKIP_DAV").is_some_and(|value| value == "1") {
            eprintln!("FENCEGATE_SKIP_DAV=1: the race on Apache is not tried");
            return None;
        }
        assert!(
            Path::new(SERVER).exists(),
            "{SERVER} is missing: install Apache (Debian: apt-get install apache2), or set FENCEGATE_SKIP_DAV=1"
        );
        let folder = tempfile::tempdir().unwrap();
        let port = TcpListener::bind(("127.0.0.1", 0))
            .unwrap()
            .local_addr()
            .unwrap()
            .port();
        // Its children run as another user where it is started by root.
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
        for name in ["www", "www/orders", "locks"] {
            let path = folder.path().join(name);
            fs::create_dir(&path).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(0o777)).unwrap();
        }
        let config = folder.path().join("httpd.conf");
        fs::write(&config, configuration(folder.path(), port)).unwrap();
        let child = Command::new(SERVER)
            .args(["-D", "FOREGROUND", "-f"])
            .arg(&config)
            .stdin(Stdio::null())
            .process_group(0)
            .spawn()
            .unwrap();
        let mut apache = Apache { folder, port, child };
        let end = Instant::now() + gate::PATIENCE;
        while TcpStream::connect(("127.0.0.1", port)).is_err() {
            let log = fs::read_to_string(apache.folder.path().join("error.log")).unwrap_or_default();
            assert!(apache.child.try_wait().unwrap().is_none(), "Apache ended: {log}");
            assert!(Instant::now() < end, "Apache does not listen: {log}");
            std::thread::sleep(Duration::from_millis(5));
        }
        Some(apache)
    }

    fn file(&self, target: &str) -> PathBuf {
        self.folder
            .path()
            .join("www")
            .join(target.trim_start_matches('/'))
    }

    /// The first byte of a file says whose it is.
    fn owner(&self, target: &str) -> Option<u8> {
        fs::read(self.file(target)).ok()?.first().copied()
    }

    /// Waits until an upload is being written to disk.
    fn wait_for_upload(&self) {
        let end = Instant::now() + gate::PATIENCE;
        let folder = self.folder.path().join("www/orders");
        let is_temporary =
            |entry: fs::DirEntry| entry.file_name().to_string_lossy().starts_with(".davfs.tmp");
        while !fs::read_dir(&folder).unwrap().flatten().any(is_temporary) {
            assert!(Instant::now() < end, "no upload has arrived");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Waits until so many bytes lie in the buffers of its sockets, unread.
    fn wait_for_unread(&self, bytes: u64) {
        let end = Instant::now() + gate::PATIENCE;
        let port = format!(":{:04X}", self.port);
        let unread = || -> u64 {
            let table = fs::read_to_string("/proc/net/tcp").unwrap();
            let sockets = table
                .lines()
                .skip(1)
                .map(|line| line.split_whitespace().collect::<Vec<_>>());
            // Established (01), and ours: the queue to read comes after the one to send.
            let ours = sockets.filter(|words| words[1].ends_with(&port) && words[3] == "01");
            ours.map(|words| u64::from_str_radix(words[4].split_once(':').unwrap().1, 16).unwrap())
                .sum()
        };
        while unread() < bytes {
            assert!(
                Instant::now() < end,
                "the request never reached the backend's buffers"
            );
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Stops all its processes, and waits until each of their threads stands still: a signal takes its time.
    fn stop(&self) {
        self.signal(libc::SIGSTOP);
        let end = Instant::now() + gate::PATIENCE;
        while !self.stands_still() {
            assert!(Instant::now() < end, "Apache does not stop");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    fn stands_still(&self) -> bool {
        let group = self.child.id().to_string();
        let of_process = |entry: fs::DirEntry| fs::read_dir(entry.path().join("task")).into_iter().flatten();
        let threads = fs::read_dir("/proc")
            .unwrap()
            .flatten()
            .flat_map(of_process)
            .flatten();
        threads
            .filter_map(|thread| fs::read_to_string(thread.path().join("stat")).ok())
            .all(|stat| {
                // After the name in brackets: state, parent, process group.
                let mut words = stat.rsplit(')').next().unwrap_or("").split_whitespace();
                let state = words.next();
                words.nth(1) != Some(group.as_str()) || state == Some("T")
            })
    }

    /// Signals all its processes.
    fn signal(&self, signal: i32) {
        let group = i32::try_from(self.child.id()).unwrap();
        // SAFETY: no memory is involved; the group is the child's own, which has not been waited for.
        assert_eq!(unsafe { libc::kill(-group, signal) }, 0);
    }
}

impl Drop for Apache {
    fn drop(&mut self) {
        self.signal(libc::SIGKILL);
        self.child.wait().unwrap();
    }
}

fn configuration(folder: &Path, port: u16) -> String {
    let folder = folder.display();
    // SAFETY: it only asks.
    let user = if unsafe { libc::geteuid() } == 0 {
        "User www-data\nGroup www-data\n"
    } else {
        ""
    };
    format!(
        "ServerRoot {folder}
DefaultRuntimeDir {folder}
PidFile {folder}/httpd.pid
ErrorLog {folder}/error.log
Mutex file:{folder} default
ServerName localhost
Listen 127.0.0.1:{port}
LoadModule mpm_event_module {MODULES}/mod_mpm_event.so
LoadModule authz_core_module {MODULES}/mod_authz_core.so
LoadModule dav_module {MODULES}/mod_dav.so
LoadModule dav_fs_module {MODULES}/mod_dav_fs.so
{user}StartServers 1
KeepAliveTimeout 5
DavLockDB {folder}/locks/db
DocumentRoot {folder}/www
<Directory {folder}/www>
  Dav On
  Require all granted
</Directory>
"
    )
}

fn trials() -> u64 {
    if gate::is_long_run() { 50 } else { 5 }
}

fn body(owner: u8, len: usize) -> Vec<u8> {
    vec![owner; len]
}

#[track_caller]
fn is_written(reply: &gate::Reply) {
    assert!(matches!(reply.status, 201 | 204), "{reply:?}");
}

#[test]
fn a_slow_upload_of_an_old_holder_never_replaces_the_new_holders_file() {
    let Some(apache) = Apache::start() else { return };
    let gate = Setup::default().settle_after("60s").start(apache.port);
    for trial in 0..trials() {
        let target = format!("/orders/{trial}");
        let (old, new) = (2 * trial + 1, 2 * trial + 2);
        let mut upload = Conn::open(gate.port);
        upload
            .send(head("PUT", &target, Some(old), Some(200_000), &[]))
            .send(body(b'1', 150_000));
        apache.wait_for_upload();
        is_written(&gate.send(ask("PUT", &target).token(new).body(body(b'2', 1000))));
        upload.reply().is(412, "stale-token");
        let _closed_by_now = upload.try_send(body(b'1', 50_000));
        assert_eq!(apache.owner(&target), Some(b'2'), "trial {trial}");
    }
    for trial in 0..trials() {
        assert_eq!(
            apache.owner(&format!("/orders/{trial}")),
            Some(b'2'),
            "trial {trial}, in the end"
        );
    }
    eprintln!("{} slow uploads, none came last", trials());
}

#[test]
fn a_write_that_the_backend_had_not_read_when_the_gate_was_killed_never_comes_last() {
    let Some(apache) = Apache::start() else { return };
    let mut gate = Setup::default().settle_after("800ms").start(apache.port);
    let mut applied = 0;
    for trial in 0..trials() {
        let target = format!("/orders/{trial}");
        let (old, new) = (2 * trial + 1, 2 * trial + 2);
        is_written(&gate.send(ask("PUT", &target).token(old).body("0")));
        apache.stop();
        let late = ask("PUT", &target)
            .token(old)
            .body(body(b'1', 2000))
            .spawn(gate.port);
        apache.wait_for_unread(2000);
        gate.kill();
        assert!(late.join().unwrap().is_err());
        gate.start();
        let next = ask("PUT", &target)
            .token(new)
            .body(body(b'2', 1000))
            .spawn(gate.port);
        // The backend goes on within settle_after of the gate's end: that is what it stands for (A4).
        gate::sleep_until(Instant::now() + Duration::from_millis(200));
        apache.signal(libc::SIGCONT);
        while !next.is_finished() {
            if apache.owner(&target) == Some(b'1') {
                applied += 1;
                break;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        is_written(&next.join().unwrap().unwrap());
        assert_eq!(apache.owner(&target), Some(b'2'), "trial {trial}");
    }
    for trial in 0..trials() {
        assert_eq!(
            apache.owner(&format!("/orders/{trial}")),
            Some(b'2'),
            "trial {trial}, in the end"
        );
    }
    eprintln!(
        "{} killed gates: the old write took effect afterwards in {applied} of them, and came last in none",
        trials()
    );
}
