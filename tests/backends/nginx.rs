//! nginx with its own WebDAV module and the one that adds PROPFIND and locks, on a folder and a port of its own.

use std::fs;
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;

use super::{free_port, installed};
use crate::gate::PATIENCE;

const SERVER: &str = "/usr/sbin/nginx";
const MODULE: &str = "/usr/lib/nginx/modules/ngx_http_dav_ext_module.so";

/// A running nginx: one process, which ends with it.
pub struct Nginx {
    _folder: TempDir,
    pub port: u16,
    child: Child,
}

impl Nginx {
    pub fn start() -> Nginx {
        let folder = tempfile::tempdir().unwrap();
        let port = free_port();
        fs::create_dir(folder.path().join("www")).unwrap();
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
        let config = folder.path().join("nginx.conf");
        fs::write(&config, configuration(folder.path(), port)).unwrap();
        let child = Command::new(installed(SERVER))
            .arg("-c")
            .arg(&config)
            .stdin(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut nginx = Nginx {
            _folder: folder,
            port,
            child,
        };
        let end = Instant::now() + PATIENCE;
        while TcpStream::connect(("127.0.0.1", port)).is_err() {
            let log = fs::read_to_string(config.with_file_name("error.log")).unwrap_or_default();
            assert!(nginx.child.try_wait().unwrap().is_none(), "nginx ended: {log}");
            assert!(Instant::now() < end, "nginx does not listen: {log}");
            std::thread::sleep(Duration::from_millis(5));
        }
        nginx
    }
}

impl Drop for Nginx {
    fn drop(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

fn configuration(folder: &Path, port: u16) -> String {
    let folder = folder.display();
    format!(
        "load_module {};
daemon off;
master_process off;
pid {folder}/pid;
error_log {folder}/error.log;
events {{ worker_connections 64; }}
http {{
  access_log off;
  client_body_temp_path {folder}/body;
  proxy_temp_path {folder}/proxy;
  fastcgi_temp_path {folder}/fastcgi;
  uwsgi_temp_path {folder}/uwsgi;
  scgi_temp_path {folder}/scgi;
  dav_ext_lock_zone zone=locks:1m;
  server {{
    listen 127.0.0.1:{port};
    root {folder}/www;
    client_max_body_size 0;
    dav_methods PUT DELETE MKCOL COPY MOVE;
    dav_ext_methods PROPFIND OPTIONS LOCK UNLOCK;
    dav_ext_lock zone=locks;
  }}
}}
",
        installed(MODULE)
    )
}
