//! The command line: one file a verb. Exit codes: 0 fine, 1 failed while running, 2 the configuration or the
//! arguments are wrong. Errors go to standard error. Called by `main.rs` alone.

mod check;
#[cfg(feature = "demo")]
pub mod demo;
mod explain;
mod failed;
mod fences;
mod health;
mod schema;
mod serve;
mod store;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Parser, Subcommand};

use crate::config::{self, Config, Problem};
use crate::server;

/// A reverse proxy that checks fencing tokens in front of an unmodified store.
#[derive(Parser)]
#[command(name = "fencegate", version, about, arg_required_else_help = true)]
struct Arguments {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand)]
enum Verb {
    /// Run the gate.
    Serve(Configured),
    /// Check a configuration.
    Check(Configured),
    /// Say what the gate would do with a request, and why.
    Explain(explain::Arguments),
    /// Print the configuration's JSON Schema.
    Schema,
    /// List, show, raise and reset the fences of a running gate.
    Fences(fences::Arguments),
    /// Say whether a running gate is alive.
    Health(health::Arguments),
    /// Look at what the configured store holds, and move it to another one, while no gate runs on it.
    Store(store::Arguments),
    /// Show a late write corrupting a store without the gate, and being refused with it.
    #[cfg(feature = "demo")]
    Demo(demo::DemoArgs),
    /// The demo's store.
    #[cfg(feature = "demo")]
    #[command(hide = true)]
    DemoStore(demo::StoreArgs),
    /// One of the demo's workers.
    #[cfg(feature = "demo")]
    #[command(hide = true)]
    DemoWorker(demo::WorkerArgs),
}

#[derive(clap::Args)]
struct Configured {
    /// The configuration.
    #[arg(short, long, value_name = "FILE")]
    config: PathBuf,
}

/// Runs the program with the arguments of the process.
#[must_use]
pub fn run() -> ExitCode {
    // Before anything is written: `store` writes marks too, and each verb may write to a file that it was given.
    server::outlive_size_limit();
    match Arguments::parse().verb {
        Verb::Check(arguments) => check::run(&arguments.config),
        Verb::Explain(arguments) => explain::run(&arguments),
        Verb::Fences(arguments) => fences::run(&arguments),
        Verb::Health(arguments) => health::run(&arguments),
        Verb::Schema => schema::run(),
        Verb::Serve(arguments) => serve::run(&arguments.config),
        Verb::Store(arguments) => store::run(&arguments),
        #[cfg(feature = "demo")]
        Verb::Demo(arguments) => demo::run(arguments),
        #[cfg(feature = "demo")]
        Verb::DemoStore(arguments) => demo::run_store(arguments),
        #[cfg(feature = "demo")]
        Verb::DemoWorker(arguments) => demo::run_worker(arguments),
    }
}

/// Loads a configuration, or prints what is wrong with it.
fn load(path: &Path) -> Result<(Config, Vec<Problem>), ExitCode> {
    config::load(path).map_err(|problems| {
        eprintln!("{problems}");
        ExitCode::from(WRONG)
    })
}

/// A warning as it is printed.
fn as_warning(problem: &Problem) -> Problem {
    Problem {
        message: format!("warning: {}", problem.message),
        ..problem.clone()
    }
}

/// Failed while running.
const FAILED: u8 = 1;
/// The configuration or the arguments are wrong.
const WRONG: u8 = 2;
