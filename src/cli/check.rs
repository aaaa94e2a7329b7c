//! `fencegate check`: is the configuration fine, and what is worth a warning. It opens nothing but the file
//! and the secrets that it names.

use std::path::Path;
use std::process::ExitCode;

use crate::config::Listener;

/// Checks the configuration at `path`.
pub(super) fn run(path: &Path) -> ExitCode {
    let (config, warnings) = match super::load(path) {
        Ok(loaded) => loaded,
        Err(code) => return code,
    };
    for warning in warnings {
        eprintln!("{}", super::as_warning(&warning));
    }
    let rules = config.listeners.iter().map(Listener::rules).sum();
    println!(
        "{}: ok ({}, {})",
        path.display(),
        counted(config.listeners.len(), "listener"),
        counted(rules, "rule")
    );
    ExitCode::SUCCESS
}

fn counted(n: usize, what: &str) -> String {
    let plural = if n == 1 { "" } else { "s" };
    format!("{n} {what}{plural}")
}
