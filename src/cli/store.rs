//! `fencegate store`: looks at what the configured store holds, writes it out, and takes it into another one, while
//! no gate runs on either. Looking and writing out change nothing. What is taken in is checked whole before anything
//! is written, and only raises.

mod etcd;
mod lines;
mod plan;
mod seat;
mod show;

use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, BufWriter, ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use self::lines::Export;
use self::plan::Plan;
use self::seat::{Held, Seat};
use super::failed::{Failed, print};
use super::fences::table::plain;
use crate::base::clock::wall_ms;

/// What is asked for.
#[derive(clap::Args)]
pub(super) struct Arguments {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(clap::Subcommand)]
enum Verb {
    /// Say what the store holds.
    Inspect {
        #[command(flatten)]
        configured: super::Configured,
        /// Only marks of resources whose names start so.
        #[arg(long, default_value = "")]
        prefix: String,
        /// At most so many marks, and so many of the newest resets.
        #[arg(long, default_value_t = 20)]
        limit: usize,
        /// As JSON.
        #[arg(long)]
        json: bool,
    },
    /// Write all marks and resets out, as lines of JSON.
    Export {
        #[command(flatten)]
        configured: super::Configured,
        /// A new file; `-` is standard output.
        #[arg(value_name = "FILE", default_value = "-")]
        to: PathBuf,
    },
    /// Take in what was written out: marks go up, never down.
    Import {
        #[command(flatten)]
        configured: super::Configured,
        /// The file; `-` is standard input.
        #[arg(value_name = "FILE")]
        from: PathBuf,
        /// Say what would be done, and do nothing.
        #[arg(long)]
        dry_run: bool,
    },
    /// Say that what etcd holds now counts, after it was restored or replaced: instances that wait for that go on.
    Adopt {
        #[command(flatten)]
        configured: super::Configured,
        /// Why: kept in etcd, in the order of the audit trail.
        #[arg(long, value_parser = words)]
        reason: String,
    },
}

/// Does what was asked for.
pub(super) fn run(arguments: &Arguments) -> ExitCode {
    let (Verb::Inspect { configured, .. }
    | Verb::Export { configured, .. }
    | Verb::Import { configured, .. }
    | Verb::Adopt { configured, .. }) = &arguments.verb;
    let config = match super::load(&configured.config) {
        Ok((config, _warnings)) => config,
        Err(code) => return code,
    };
    let done = Seat::of(&config).and_then(|seat| match &arguments.verb {
        Verb::Inspect {
            prefix, limit, json, ..
        } => inspect(&seat, prefix, *limit, *json),
        Verb::Export { to, .. } => export(&seat, to),
        Verb::Import { from, dry_run, .. } => import(&seat, from, *dry_run),
        Verb::Adopt { reason, .. } => adopt(&seat, reason),
    });
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(failed) => failed.tell(),
    }
}

fn inspect(seat: &Seat, prefix: &str, limit: usize, json: bool) -> Result<(), Failed> {
    let held = seat.look()?;
    if json {
        return print(&show::json(seat, &held, prefix, limit).to_string());
    }
    print(&show::text(seat, &held, prefix, limit))
}

fn export(seat: &Seat, to: &Path) -> Result<(), Failed> {
    let held = seat.look()?;
    if to == Path::new("-") {
        let mut out = BufWriter::new(std::io::stdout().lock());
        let written =
            lines::write(&mut out, seat.kind(), wall_ms(), &held.contents).and_then(|()| out.flush());
        written.map_err(|error| Failed::now(format!("standard output can't be written: {error}")))?;
    } else {
        export_to_file(seat, &held, to)?;
    }
    eprintln!("{}", show::exported(seat, &held));
    if let Some(owner) = &held.owner {
        eprintln!(
            "{} owns the store and goes on changing it: this is no export to move with",
            plain(owner)
        );
    }
    Ok(())
}

/// To a file that is not there yet: an earlier export is never lost to a later one that fails.
fn export_to_file(seat: &Seat, held: &Held, to: &Path) -> Result<(), Failed> {
    let file = OpenOptions::new().write(true).create_new(true).open(to);
    let file = file.map_err(|error| {
        let way_out = match error.kind() {
            ErrorKind::AlreadyExists => "; name a new file",
            _ => "",
        };
        Failed::now(format!("{} can't be made: {error}{way_out}", to.display()))
    })?;
    write_durably(file, to, seat, held).map_err(|error| {
        // Half an export is refused by an import; it only would be in the way.
        let _ = std::fs::remove_file(to);
        Failed::now(format!("{} can't be written: {error}", to.display()))
    })
}

fn write_durably(file: File, to: &Path, seat: &Seat, held: &Held) -> std::io::Result<()> {
    let mut out = BufWriter::new(file);
    lines::write(&mut out, seat.kind(), wall_ms(), &held.contents)?;
    out.into_inner().map_err(|error| error.into_error())?.sync_all()?;
    // The old store may be thrown away after this: the file's name has to stay as well.
    match to.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => File::open(folder)?.sync_all(),
        Some(_) | None => File::open(".")?.sync_all(),
    }
}

fn import(seat: &Seat, from: &Path, dry_run: bool) -> Result<(), Failed> {
    let export = if from == Path::new("-") {
        read(std::io::stdin().lock(), "standard input")?
    } else {
        let shown = from.display().to_string();
        let file =
            File::open(from).map_err(|error| Failed::now(format!("{shown} can't be read: {error}")))?;
        read(BufReader::new(file), &shown)?
    };
    let plan = if dry_run {
        let held = seat.look_or_nothing()?;
        if let Some(owner) = &held.owner {
            eprintln!(
                "{} owns the store: it has to be stopped before anything is taken in",
                plain(owner)
            );
        }
        Plan::of(&held.contents, &export)?
    } else {
        seat.take_in(export.contents.found, |contents| Plan::of(contents, &export))?
    };
    print(&show::imported(seat, &plan, dry_run))
}

/// A reason that says something.
fn words(text: &str) -> Result<String, String> {
    match text.trim() {
        "" => Err("say why".into()),
        words => Ok(words.to_owned()),
    }
}

fn adopt(seat: &Seat, reason: &str) -> Result<(), Failed> {
    match seat {
        Seat::Etcd(shared) => print(&shared.adopt(reason)?),
        Seat::File(_) => Err(Failed::wrong(
            "only a store in etcd is adopted: one in a folder has no history beside itself",
        )),
    }
}

/// Reads and checks all of an export.
fn read(input: impl BufRead, name: &str) -> Result<Export, Failed> {
    lines::read(input).map_err(|(line, wrong)| Failed::now(format!("{name}:{line}: {wrong}")))
}
