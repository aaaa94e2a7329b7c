//! fencegate: a reverse proxy that checks a fencing token before a write reaches an unmodified store.
//!
//! The modules stand on floors; a module imports only from lower ones (`tests/architecture.rs` checks it).
//!
//! ```text
//! 9 main.rs            the program: calls cli/ alone
//! 8 cli/               serve, check, explain, fences, health, store, schema, demo: one file a verb
//! 7 server/            assembles the parts from the checked config; signals, ordered drain
//! 6 http/ tcp/ redis/  one gate a protocol. They never import each other
//!   admin/             the admin address
//! 5 upstream/          connect, pool, send: it takes a `&Flight`
//! 4 keeper/            the async shell around the fences: the only caller of fence transitions and of the ledger
//! 3 ledger/            where marks are durable: the trait, the file, memory; group commit
//! 2 config/ observe/   raw text → checked config with problems that carry line and column; metrics, events
//! 1 fence/             pure: state and transitions of one resource, time passed in
//!   rules/             pure: request → rule, resource names, tokens
//!   owner/             pure: who may admit where several instances share a store
//!   wire/              pure codecs
//!   net/               one face for sockets, TLS and pipes; TLS's files
//! 0 base/              tokens, reasons, clock, the shim for model-checked atomics
//! ```
//!
//! Words, one meaning each: *token* what a client presents · *mark* the highest token of a resource that is
//! durable · *fence* the state of one resource · *flight* an admitted request until it is settled · *commit
//! point* the moment before its last byte goes out · *settled* answered, cut, or out of doubt · *in doubt* past
//! the commit point and the answer lost · *raise* a mark going up · *drain* a raise waiting for older flights ·
//! *ledger* where marks are durable · *owner* the instance that may admit.

pub mod admin;
pub mod base;
pub mod cli;
pub mod config;
pub mod fence;
pub mod http;
pub mod keeper;
pub mod ledger;
pub mod net;
pub mod observe;
pub mod owner;
pub mod redis;
pub mod rules;
pub mod server;
pub mod tcp;
pub mod upstream;
pub mod wire;
