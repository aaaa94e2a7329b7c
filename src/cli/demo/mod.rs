//! `fencegate demo`: a paused lock holder's late write corrupts a real store, and the gate refuses it.
//!
//! Everything is real: a store in a process of its own, a lock service with leases and tokens, workers that are
//! processes and are really stopped past their lease, and the gate as `fencegate serve` runs it. All of it
//! listens on 127.0.0.1 on ports of the system's choice, keeps its files in a temporary folder, and is gone at
//! the end. [`run`] is the verb; [`run_store`] and [`run_worker`] are hidden verbs, which the demo starts.

mod account;
mod http;
mod interrupt;
mod lock;
mod process;
mod stage;
mod store;
mod story;
mod tell;
mod worker;

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

pub use store::{StoreArgs, run as run_store};
pub use worker::{WorkerArgs, run as run_worker};

use account::NotABooking;
use http::HttpError;
use interrupt::Interrupt;
use process::{Folder, Processes};
use stage::{Gate, Stage};
use story::{Ending, Story};
use tell::Teller;

/// Show a paused lock holder's late write corrupting a real store, and the gate refusing it
#[derive(clap::Args, Debug)]
pub struct DemoArgs {
    /// Leave the store and the gate running, and say how to try them with curl
    #[arg(long)]
    keep: bool,
    /// Only show what happens without the gate
    #[arg(long, conflicts_with = "keep")]
    without_gate: bool,
}

/// Why the demo didn't come to its good end.
#[derive(Debug, thiserror::Error)]
pub enum DemoError {
    /// The story is wrong: this is what the demo exists to find out.
    #[error("this did not come out as told: {claim}\n  found: {found}")]
    NotAsTold { claim: String, found: String },
    #[error("the gate did not start: {said}")]
    GateFailed { said: String },
    #[error("can't start {what}")]
    Start { what: String, source: std::io::Error },
    #[error("{what}")]
    Ended { what: String },
    #[error("{what}, and it was given {} s", process::PATIENCE.as_secs())]
    Silent { what: String },
    #[error("can't use {}", path.display())]
    File { path: PathBuf, source: std::io::Error },
    #[error("{what}: the store answered with status {status}: {said}")]
    StoreRefused { what: String, status: u16, said: String },
    #[error("the store can't be asked")]
    Store(#[from] HttpError),
    #[error("the account in the store is damaged")]
    Damaged(#[from] NotABooking),
    #[error("interrupted")]
    Interrupted,
}

/// Plays the story; 0 when all came out as told, and with `--keep` when it is ended by Ctrl-C after that.
pub fn run(args: DemoArgs) -> ExitCode {
    let processes = Arc::new(Processes::default());
    let outcome = play(&args, &processes);
    processes.end_all();
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            complain(&error);
            ExitCode::FAILURE
        }
    }
}

fn play(args: &DemoArgs, processes: &Arc<Processes>) -> Result<(), DemoError> {
    let folder = Arc::new(Folder::create()?);
    let interrupt = Interrupt::listen(Arc::clone(processes), Arc::clone(&folder))?;
    let outcome = play_interruptible(args, processes, &folder, &interrupt);
    interrupt.stand_back();
    // Before the folder goes: what still runs would write into it.
    processes.end_all();
    folder.remove();
    outcome
}

fn play_interruptible(
    args: &DemoArgs,
    processes: &Arc<Processes>,
    folder: &Arc<Folder>,
    interrupt: &Interrupt,
) -> Result<(), DemoError> {
    let tell = Teller::new();
    let begin = Instant::now();
    let stage = Stage::set(Arc::clone(processes), Arc::clone(folder))?;
    let mut story = Story {
        stage: &stage,
        tell: &tell,
        checked: 0,
    };
    introduce(&tell, &stage);
    let mut endings = vec![];
    for act in story::without_gate() {
        endings.push(story.play(&act)?);
    }
    let mut gate = None;
    if !args.without_gate {
        let started = stage.start_gate()?;
        introduce_gate(&tell, &started);
        for act in story::with_gate(started.server.address) {
            endings.push(story.play(&act)?);
        }
        gate = Some(started);
    }
    sum_up(&tell, &endings, story.checked, begin.elapsed());
    match gate {
        Some(gate) if args.keep => keep(&tell, &stage, &gate, interrupt),
        Some(_) | None => Ok(()),
    }
}

fn introduce(tell: &Teller, stage: &Stage) {
    tell.heading("fencegate demo: what a paused lock holder does to your data");
    tell.explain(&format!(
        "A real store runs as process {} (s3s-fs: a folder served as S3, at {}). A lock service gives leases \
         of {} ms; with each comes a token, a number that only grows.",
        stage.store.id,
        stage.store.address,
        stage::LEASE_MS,
    ));
    tell.explain(
        "Two workers, A and B, are processes too. To book an amount, a worker takes the lock, reads the account, \
         adds a line, and writes the account back: an object is only ever replaced whole. So the lock is all \
         that keeps one booking from overwriting another.",
    );
}

fn introduce_gate(tell: &Teller, gate: &Gate) {
    tell.heading("Now fencegate stands before the same store, which knows nothing of it.");
    tell.explain(&format!(
        "`fencegate serve` runs as process {}, at {}. For each bucket it keeps the highest token that it has \
         seen; the workers send theirs as the header Fencing-Token, now as before.",
        gate.server.id, gate.server.address,
    ));
}

fn sum_up(tell: &Teller, endings: &[Ending], checked: usize, took: Duration) {
    tell.heading("In short");
    for Ending {
        title,
        answer,
        balance,
    } in endings
    {
        let verdict = if *balance == story::RIGHT {
            "right"
        } else {
            "WRONG"
        };
        tell.print(&format!("   {title}"));
        tell.print(&format!(
            "      late write answered {answer}; balance {balance}: {verdict}"
        ));
    }
    tell.explain(&format!(
        "{checked} things were told and checked, what is stored in the store itself. It took {:.1} s.",
        took.as_secs_f64(),
    ));
}

/// Waits for Ctrl-C, with the store and the gate running. Returns only when one of them has ended by itself.
fn keep(tell: &Teller, stage: &Stage, gate: &Gate, interrupt: &Interrupt) -> Result<(), DemoError> {
    stage.make_bucket(TRY_BUCKET)?;
    tell.heading("Try it yourself, in another terminal");
    for line in [
        format!(
            "GATE=http://{} STORE=http://{}",
            gate.server.address, stage.store.address
        ),
        "curl -i -X PUT -d new -H 'Fencing-Token: 42' $GATE/try-it/note    # 200".to_owned(),
        "curl -i -X PUT -d old -H 'Fencing-Token: 41' $GATE/try-it/note    # 412".to_owned(),
        "curl -i -X PUT -d any $GATE/try-it/note                           # 428".to_owned(),
        "curl $STORE/try-it/note                                           # new".to_owned(),
        format!("curl http://{}/api/v1/fences", gate.admin),
    ] {
        tell.print(&format!("   {line}"));
    }
    interrupt.keep();
    tell.explain(&format!(
        "Ctrl-C here (or `kill {}`) ends it all.",
        std::process::id()
    ));
    loop {
        for (what, server) in [("the store", stage.store), ("the gate", gate.server)] {
            if let Some(status) = stage.processes.ended(server.id) {
                let what = format!("{what} has ended by itself, with {}", process::show(status));
                return Err(DemoError::Ended { what });
            }
        }
        std::thread::sleep(KEEP_LOOK);
    }
}

/// The error and its causes, a line each.
fn complain(error: &DemoError) {
    eprintln!("fencegate demo: {error}");
    let mut cause = std::error::Error::source(error);
    while let Some(error) = cause {
        eprintln!("  because: {error}");
        cause = error.source();
    }
}

/// The bucket of the curl lines.
const TRY_BUCKET: &str = "try-it";
/// How often `--keep` looks whether the servers still run.
const KEEP_LOOK: Duration = Duration::from_millis(300);
