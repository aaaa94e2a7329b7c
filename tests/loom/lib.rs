//! The fences and what they stand on, as they are in the gate, with loom's atomics (`build.rs`). Used by `door.rs`.
#![allow(dead_code, unused_imports)]

#[path = "../../src/base/mod.rs"]
pub mod base;
#[path = "../../src/fence/mod.rs"]
pub mod fence;
