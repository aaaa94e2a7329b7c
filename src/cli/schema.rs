//! `fencegate schema`: prints the configuration's JSON Schema, for editors.

use std::io::Write;
use std::process::ExitCode;

use crate::config;

/// Prints it. A reader that has gone is no failure.
pub(super) fn run() -> ExitCode {
    match std::io::stdout().write_all(config::json_schema().as_bytes()) {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => {
            eprintln!("fencegate: standard output can't be written: {error}");
            ExitCode::from(super::FAILED)
        }
        Ok(()) | Err(_) => ExitCode::SUCCESS,
    }
}
