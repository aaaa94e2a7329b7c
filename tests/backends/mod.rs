//! Real stores behind the gate and real clients in front of it: servers started on folders and ports of their own,
//! and programs run within bounded time.
//!
//! What is not installed fails the test that needs it: `.ci/setup` installs all of it.

#![allow(dead_code, unused_imports, reason = "each test binary uses a part of it")]

mod apache;
mod nginx;
#[cfg(feature = "demo")]
mod s3;

use std::ffi::OsStr;
use std::net::TcpListener;
use std::path::Path;
use std::process::{Command, Output, Stdio};

pub use self::apache::Apache;
pub use self::nginx::Nginx;
#[cfg(feature = "demo")]
pub use self::s3::{ACCESS_KEY, S3, SECRET_KEY};

/// The path itself, of a file that must be there.
#[track_caller]
pub fn installed(path: &str) -> &str {
    assert!(
        Path::new(path).exists(),
        "{path} is missing: `.ci/setup` installs what the tests need"
    );
    path
}

/// A program that is ended after a minute, in an environment that holds no settings of the user's.
#[track_caller]
pub fn program(path: &str, folder: &Path) -> Command {
    let mut command = Command::new(installed("/usr/bin/timeout"));
    command
        .args(["-k", "5", "60", installed(path)])
        .current_dir(folder)
        .env_clear()
        .envs([("PATH", "/usr/bin:/bin"), ("LC_ALL", "C.UTF-8")])
        .env("HOME", folder)
        .stdin(Stdio::null());
    command
}

/// What a program has said, errors last, and its exit code.
#[derive(Debug)]
pub struct Said {
    pub code: Option<i32>,
    pub out: String,
    pub err: String,
}

impl Said {
    #[track_caller]
    pub fn is_fine(&self) -> &Self {
        assert_eq!(self.code, Some(0), "{}\n{}", self.out, self.err);
        self
    }

    #[track_caller]
    pub fn failed(&self) -> &Self {
        let code = self.code.expect("it was killed");
        assert!(
            code != 0 && code != 124,
            "exit code {code}: {}\n{}",
            self.out,
            self.err
        );
        self
    }
}

/// Runs a program to its end.
#[track_caller]
pub fn run(command: &mut Command) -> Said {
    let output = command.output().unwrap();
    Said {
        code: output.status.code(),
        out: String::from_utf8_lossy(&output.stdout).into_owned(),
        err: String::from_utf8_lossy(&output.stderr).into_owned(),
    }
}

/// The Python that has boto3 and requests. `FENCEGATE_PYTHON` names another one, to try other versions of them.
pub fn python() -> String {
    std::env::var("FENCEGATE_PYTHON").unwrap_or_else(|_| "/usr/bin/python3".into())
}

/// A port that nobody has at the moment.
pub fn free_port() -> u16 {
    let socket = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    socket.local_addr().unwrap().port()
}
