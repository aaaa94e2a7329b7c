//! `fencegate health`: is the gate alive, or does it take writes? For health checks on its own machine, a container's
//! above all, where no other program could ask.

use std::process::ExitCode;
use std::time::Duration;

use super::failed::Failed;
use super::fences::Asked;
use super::fences::table::plain;

/// Which gate is asked, and what.
#[derive(clap::Args)]
pub(super) struct Arguments {
    #[command(flatten)]
    asked: Asked,
    /// Whether it takes writes: an instance that stands by is alive, and not ready.
    #[arg(long)]
    ready: bool,
}

/// Succeeds where it is.
pub(super) fn run(arguments: &Arguments) -> ExitCode {
    let client = match arguments.asked.client() {
        Ok(client) => client,
        Err(code) => return code,
    };
    let path = if arguments.ready { "/readyz" } else { "/healthz" };
    let answer = client.call("GET", path, None, PATIENCE);
    let answer = answer.and_then(|reply| match reply.status {
        200 => Ok(()),
        status => Err(Failed::now(format!(
            "{path}: {status} {}",
            plain(reply.text.trim())
        ))),
    });
    match answer {
        Ok(()) => ExitCode::SUCCESS,
        Err(failed) => failed.tell(),
    }
}

/// A health check that hangs tells nothing.
const PATIENCE: Duration = Duration::from_secs(5);
