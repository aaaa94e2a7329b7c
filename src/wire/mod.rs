//! Pure codecs: bytes to meaning and back. Nothing here does I/O, waits, asks a clock, logs or counts. Called by
//! the gates and by `upstream/`.

#![deny(clippy::disallowed_methods, clippy::disallowed_macros)]

pub mod http1;
pub mod preface;
pub mod proxy;
pub mod resp;
