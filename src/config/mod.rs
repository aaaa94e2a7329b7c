//! The configuration: YAML text to checked types, with every problem at once and each at its line and column.
//!
//! The way of a file: `tree.rs` reads the text into located nodes, `expand.rs` puts environment variables in,
//! `schema.rs` knows each key's type, default and words, `shape.rs` holds the tree against it, `build.rs` makes
//! the checked types. Nothing here opens a socket or a store. Called by `cli/`.

mod problem;
mod types;

pub use problem::{At, Problem, Problems};
pub use types::{Admin, CommitPoint, Config, Limits, Listener, Log, LogFormat, LogLevel, Store, Upstream};
