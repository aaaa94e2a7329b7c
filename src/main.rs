//! The command line: reads the arguments and hands over to the verb.

mod cli;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

#[derive(Parser)]
#[command(name = "fencegate", version)]
struct Arguments {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand)]
enum Verb {
    /// Show a paused lock holder's late write corrupting a real store, and the gate refusing it
    #[cfg(feature = "demo")]
    Demo(cli::demo::DemoArgs),
    #[cfg(feature = "demo")]
    #[command(hide = true)]
    DemoStore(cli::demo::StoreArgs),
    #[cfg(feature = "demo")]
    #[command(hide = true)]
    DemoWorker(cli::demo::WorkerArgs),
}

#[cfg_attr(not(feature = "demo"), allow(unreachable_code))]
fn main() -> ExitCode {
    match Arguments::parse().verb {
        #[cfg(feature = "demo")]
        Verb::Demo(args) => cli::demo::run(args),
        #[cfg(feature = "demo")]
        Verb::DemoStore(args) => cli::demo::run_store(args),
        #[cfg(feature = "demo")]
        Verb::DemoWorker(args) => cli::demo::run_worker(args),
    }
}
