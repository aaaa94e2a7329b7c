//! Apache's mod_dav, on a folder and a port of its own.

use std::fs;
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;

use super::{free_port, installed};
use crate::gate::PATIENCE;

const SERVER: &str = "/usr/sbin/apache2";
const MODULES: &str = "/usr/lib/apache2/modules";

/// A running Apache. It and its children are one process group, which ends with it.
pub struct Apache {
    folder: TempDir,
    pub port: u16,
    child: Child,
}

impl Apache {
    pub fn start() -> Apache {
        installed(SERVER);
        let folder = tempfile::tempdir().unwrap();
        let port = free_port();
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
        let end = Instant::now() + PATIENCE;
        while TcpStream::connect(("127.0.0.1", port)).is_err() {
            let log = fs::read_to_string(apache.folder.path().join("error.log")).unwrap_or_default();
            assert!(apache.child.try_wait().unwrap().is_none(), "Apache ended: {log}");
            assert!(Instant::now() < end, "Apache does not listen: {log}");
            std::thread::sleep(Duration::from_millis(5));
        }
        apache
    }

    pub fn file(&self, target: &str) -> PathBuf {
        self.folder
            .path()
            .join("www")
            .join(target.trim_start_matches('/'))
    }

    /// The first byte of a file says whose it is.
    pub fn owner(&self, target: &str) -> Option<u8> {
        fs::read(self.file(target)).ok()?.first().copied()
    }

    /// Waits until an upload is being written to disk.
    pub fn wait_for_upload(&self) {
        let end = Instant::now() + PATIENCE;
        let folder = self.folder.path().join("www/orders");
        let is_temporary =
            |entry: fs::DirEntry| entry.file_name().to_string_lossy().starts_with(".davfs.tmp");
        while !fs::read_dir(&folder).unwrap().flatten().any(is_temporary) {
            assert!(Instant::now() < end, "no upload has arrived");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Waits until so many bytes lie in the buffers of its sockets, unread.
    pub fn wait_for_unread(&self, bytes: u64) {
        let end = Instant::now() + PATIENCE;
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
    pub fn stop(&self) {
        self.signal(libc::SIGSTOP);
        let end = Instant::now() + PATIENCE;
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
    pub fn signal(&self, signal: i32) {
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
