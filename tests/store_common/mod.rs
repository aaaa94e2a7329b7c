//! A configuration with its store, and `fencegate store` on it.
#![allow(dead_code)]

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Output};
use std::time::Duration;

use fencegate::base::{Token, TokenFormat};
use fencegate::ledger::file::Offline;
use fencegate::ledger::{Change, Contents, Ledger, Mark};

use super::ledger_common::{change, fast_folder, open_with, raise, reset};

pub const SETTLE: Duration = Duration::from_secs(60);

/// A folder with a configuration and, below `data`, its store.
pub struct Place(tempfile::TempDir);

impl Place {
    pub fn new() -> Place {
        Place::with("{ kind: file, path: ./data }")
    }

    /// Of a store that is configured like this.
    pub fn with(store: &str) -> Place {
        let place = Place(fast_folder());
        place.write(
            "gate.yaml",
            format!(
                "version: 1\nstore: {store}\nlisteners:\n  - name: a\n    bind: \"127.0.0.1:8080\"\n    upstream: \
                 {{ url: \"http://127.0.0.1:9000\" }}\n    rules:\n      - {{ name: r, match: {{ path: \"/{{b}}/{{*k}}\" }}, \
                 resource: \"{{b}}\", token: {{ header: T }} }}\n"
            ),
        );
        place
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    pub fn store(&self) -> PathBuf {
        self.path("data")
    }

    pub fn write(&self, name: &str, text: impl AsRef<[u8]>) {
        fs::write(self.path(name), text).unwrap();
    }

    /// Marks a=5, b=9 and c=7.1, b after two resets; stopped cleanly or not.
    pub fn fill(&self, settle: Duration, clean: bool) {
        let opened = open_with(&self.store(), settle).unwrap();
        let pair = Mark {
            token: Token(7 << 64 | 1),
            format: TokenFormat::Pair,
            raised_at_ms: 1_700_000_000_321,
        };
        let changes = [
            raise("a", 5),
            raise("b", 99),
            reset("b", 3, "a typo"),
            reset("b", 4, "another\none"),
            raise("b", 9),
            Change::Raise {
                name: "c".into(),
                mark: pair,
            },
        ];
        for each in changes {
            change(&opened.ledger, each).unwrap();
        }
        if clean {
            opened.ledger.close(true).unwrap();
        }
    }

    pub fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_fencegate"));
        command.arg("store").args(arguments).args(["-c", "gate.yaml"]);
        command.current_dir(self.0.path());
        command
    }

    pub fn run(&self, arguments: &[&str]) -> Output {
        self.command(arguments).output().unwrap()
    }

    pub fn fine(&self, arguments: &[&str]) -> String {
        let output = self.run(arguments);
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    }

    /// What it says on standard error, and its exit code.
    pub fn refused(&self, arguments: &[&str]) -> (String, i32) {
        let output = self.run(arguments);
        assert!(!output.status.success(), "{output:?}");
        let code = output.status.code().expect("it ends by itself");
        (String::from_utf8(output.stderr).unwrap(), code)
    }

    pub fn contents(&self) -> Contents {
        Offline::look(&self.store()).unwrap()
    }

    /// The store's files, byte for byte.
    pub fn bytes(&self) -> Vec<(PathBuf, Vec<u8>)> {
        let files = fs::read_dir(self.store()).unwrap();
        let mut files: Vec<_> = files
            .map(|file| file.unwrap().path())
            .map(|path| (path.clone(), fs::read(path).unwrap()))
            .collect();
        files.sort();
        files
    }
}
