//! The configuration: YAML text to checked types, with every problem at once and each at its line and column.
//!
//! The way of a file: `tree.rs` reads the text into located nodes, `expand.rs` puts environment variables in,
//! `schema.rs` knows each key's type, default and meaning, `reader.rs` walks the tree by it, `build.rs` and
//! `listeners.rs` make the checked types, `http.rs` and `tcp.rs` those of a listener of that protocol; `rules.rs`, `token.rs`,
//! `allow.rs` and `tls.rs` make their parts. Nothing here opens a socket or a store; the files that
//! the configuration names are read. Called by `cli/`.

mod allow;
mod build;
mod expand;
mod hint;
mod http;
mod listeners;
mod problem;
mod published;
mod reader;
mod redis;
mod rules;
mod schema;
mod secret;
mod store;
mod tcp;
mod tls;
mod token;
mod tree;
mod types;
mod units;

use std::path::Path;

pub use problem::{At, Problem, Problems};
pub use published::json_schema;
pub use types::{
    Admin, CommitPoint, Config, Credentials, Errors, EtcdStore, EtcdTls, EtcdUser, HttpListener, Limits,
    Listener, Log, LogFormat, LogLevel, Password, ProxyProtocol, RedisListener, Store, Target, TcpLimits,
    TcpListener, Upstream,
};

pub(crate) use secret::read_secret;
pub(crate) use units::some_duration;

use reader::Reader;
use tree::{Found, Value};

/// Reads and checks a configuration; with it come warnings.
///
/// # Errors
/// All that is wrong with it.
pub fn load(path: &Path) -> Result<(Config, Vec<Problem>), Problems> {
    let file = path.display().to_string();
    let text = match read_file(path) {
        Ok(text) => text,
        Err((at, message)) => return Err(Problems(vec![Problem { file, at, message }])),
    };
    parse(&file, &text, &|name| std::env::var(name).ok())
}

/// Checks the text of a configuration, with `environment` for its variables. `file` stands in the problems.
///
/// # Errors
/// All that is wrong with it.
pub fn parse(
    file: &str,
    text: &str,
    environment: &dyn Fn(&str) -> Option<String>,
) -> Result<(Config, Vec<Problem>), Problems> {
    let (root, mut found) = tree::read(text);
    let mut reader = Reader::default();
    let config = root.and_then(|mut root| {
        expand_all(&mut root, environment, &mut found);
        build::config(&mut reader, &root)
    });
    found.append(&mut reader.problems);
    match config {
        Some(config) if found.is_empty() => Ok((config, in_order(file, reader.warnings))),
        _ => Err(Problems(in_order(file, found))),
    }
}

/// Everything but the keys that start with `x-`: those only hold anchors, and nothing in them is a value.
fn expand_all(root: &mut tree::Node, environment: expand::Environment<'_>, found: &mut Vec<Found>) {
    match &mut root.value {
        Value::Map(entries) => {
            for entry in entries.iter_mut().filter(|e| !e.key.starts_with("x-")) {
                expand::expand(&mut entry.node, environment, found);
            }
        }
        _ => expand::expand(root, environment, found),
    }
}

fn in_order(file: &str, mut found: Vec<Found>) -> Vec<Problem> {
    found.sort();
    found.dedup();
    let problem = |(at, message)| Problem {
        file: file.to_string(),
        at: Some(at),
        message,
    };
    found.into_iter().map(problem).collect()
}

fn read_file(path: &Path) -> Result<String, (Option<At>, String)> {
    use std::io::Read;
    let unread = |error: std::io::Error| (None, format!("the configuration can't be read: {error}"));
    let mut bytes = Vec::new();
    let file = std::fs::File::open(path).map_err(unread)?;
    file.take(FILE_BYTES_MAX + 1)
        .read_to_end(&mut bytes)
        .map_err(unread)?;
    if bytes.len() as u64 > FILE_BYTES_MAX {
        return Err((
            None,
            format!("the configuration is larger than {FILE_BYTES_MAX} bytes"),
        ));
    }
    String::from_utf8(bytes).map_err(|error| {
        let valid = &error.as_bytes()[..error.utf8_error().valid_up_to()];
        let line = valid.iter().filter(|b| **b == b'\n').count() + 1;
        let start = valid.iter().rposition(|b| *b == b'\n').map_or(0, |n| n + 1);
        let column = String::from_utf8_lossy(&valid[start..]).chars().count() + 1;
        (
            Some(At { line, column }),
            "the configuration is not UTF-8 here".into(),
        )
    })
}

const FILE_BYTES_MAX: u64 = 1 << 20;
