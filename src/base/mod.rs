//! The ground floor: tokens, reasons, the clock and the atomics shim. Nothing here does I/O.

pub mod atomic;
pub mod buf;
pub mod cert;
pub mod clock;
pub mod field;
pub mod reason;
pub mod token;

pub use buf::Buf;
pub use cert::ClientCert;
pub use clock::{Clock, Moment};
pub use reason::Reason;
pub use token::{Malformed, Token, TokenFormat};
