//! The command line's verbs, one file or folder a verb.

#[cfg(feature = "demo")]
pub mod demo;
