//! The one place that opens the configured store for the command line, whatever its kind. Called by `store.rs`.

use std::path::PathBuf;

use super::etcd::Shared;
use super::plan::Plan;
use crate::cli::failed::Failed;
use crate::config::{Config, Store};
use crate::ledger::file::{FORMAT, Offline, OpenError};
use crate::ledger::{Contents, Found};
use crate::server;

/// Where the configured store is.
pub(super) enum Seat {
    /// In a folder of this machine.
    File(PathBuf),
    /// In etcd.
    Etcd(Box<Shared>),
}

/// What a store holds, and what else there is to say about it.
pub(super) struct Held {
    pub(super) contents: Contents,
    /// The format of what is stored.
    pub(super) format: u32,
    /// For people, and as members of the JSON.
    pub(super) more: Vec<(&'static str, String)>,
    /// The instance that owns the store at this moment, and goes on changing it.
    pub(super) owner: Option<String>,
}

impl Seat {
    /// # Errors
    /// A store that holds nothing while no gate runs.
    pub(super) fn of(config: &Config) -> Result<Seat, Failed> {
        match &config.store {
            Store::File { path } => Ok(Seat::File(path.clone())),
            Store::Etcd(store) => {
                let settings = server::settings(store, config.settle_after_max());
                Ok(Seat::Etcd(Box::new(Shared::new(settings))))
            }
            Store::Memory => Err(Failed::wrong(
                "store: kind: memory keeps nothing beyond its run; ask the running gate: fencegate fences list",
            )),
        }
    }

    pub(super) fn kind(&self) -> &'static str {
        match self {
            Seat::File(_) => "file",
            Seat::Etcd(_) => "etcd",
        }
    }

    /// Where it is, for people.
    pub(super) fn place(&self) -> String {
        match self {
            Seat::File(path) => std::path::absolute(path)
                .unwrap_or_else(|_| path.clone())
                .display()
                .to_string(),
            Seat::Etcd(shared) => shared.place(),
        }
    }

    /// Reads all of it, and changes nothing.
    pub(super) fn look(&self) -> Result<Held, Failed> {
        match self {
            Seat::File(path) => Offline::look(path)
                .map(of_file)
                .map_err(|error| not_opened(&error)),
            Seat::Etcd(shared) => shared.look()?.ok_or_else(|| shared.absent()),
        }
    }

    /// As [`Seat::look`]; a store that was never made holds nothing.
    pub(super) fn look_or_nothing(&self) -> Result<Held, Failed> {
        match self {
            Seat::File(path) => match Offline::look(path) {
                Err(OpenError::Absent { .. }) => Ok(of_file(Contents::default())),
                looked => looked.map(of_file).map_err(|error| not_opened(&error)),
            },
            Seat::Etcd(shared) => Ok(shared.look()?.unwrap_or_else(|| of_file(Contents::default()))),
        }
    }

    /// Works out what to change by what the store holds, with every gate kept out, and does it. `offered` is the marker
    /// of what is taken in.
    pub(super) fn take_in(
        &self,
        offered: Found,
        plan: impl FnOnce(&Contents) -> Result<Plan, Failed>,
    ) -> Result<Plan, Failed> {
        match self {
            Seat::File(path) => {
                let (store, contents) = Offline::open(path).map_err(|error| not_opened(&error))?;
                let plan = plan(&contents)?;
                store.change(&plan.changes, plan.marker).map_err(|error| {
                    Failed::now(format!(
                        "it is not known whether the marks were taken in; import them again: {error}"
                    ))
                })?;
                Ok(plan)
            }
            Seat::Etcd(shared) => shared.take_in(offered, plan),
        }
    }
}

fn of_file(contents: Contents) -> Held {
    Held {
        contents,
        format: FORMAT,
        more: Vec::new(),
        owner: None,
    }
}

fn not_opened(error: &OpenError) -> Failed {
    Failed::now(match error {
        OpenError::InUse { folder } => format!(
            "{}: an instance has this store open; stop it, or ask it: fencegate fences list",
            folder.display()
        ),
        other => other.to_string(),
    })
}
