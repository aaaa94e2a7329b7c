//! `fencegate serve`: runs the gate until it is told to stop.

use std::path::Path;
use std::process::ExitCode;

use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::fmt::MakeWriter;

use crate::config::{Log, LogFormat, LogLevel};
use crate::server;

/// Runs the gate that the configuration at `path` describes.
pub(super) fn run(path: &Path) -> ExitCode {
    let (config, warnings) = match super::load(path) {
        Ok(loaded) => loaded,
        Err(code) => return code,
    };
    log_to_stderr(config.log);
    for warning in warnings {
        tracing::warn!("{warning}");
    }
    match server::run(config) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            tracing::error!("{failure}");
            ExitCode::from(super::FAILED)
        }
    }
}

fn log_to_stderr(log: Log) {
    let level = match log.level {
        LogLevel::Error => LevelFilter::ERROR,
        LogLevel::Warn => LevelFilter::WARN,
        LogLevel::Info => LevelFilter::INFO,
        LogLevel::Debug => LevelFilter::DEBUG,
        LogLevel::Trace => LevelFilter::TRACE,
    };
    let lines = tracing_subscriber::fmt()
        .with_max_level(level)
        .with_writer(Stderr)
        .with_target(false);
    match log.format {
        LogFormat::Text => lines.with_ansi(false).init(),
        LogFormat::Json => lines.json().flatten_event(true).init(),
    }
}

struct Stderr;

impl MakeWriter<'_> for Stderr {
    type Writer = std::io::Stderr;

    fn make_writer(&self) -> Self::Writer {
        std::io::stderr()
    }
}
