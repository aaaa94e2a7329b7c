//! The atomics that the fences use: the standard library's, or loom's when built with `--cfg fence_loom`.
//!
//! Our own cfg, because `--cfg loom` itself changes tokio.

#[cfg(not(fence_loom))]
pub use std::sync::atomic::{AtomicU64, Ordering};

#[cfg(fence_loom)]
pub use loom::sync::atomic::{AtomicU64, Ordering};
