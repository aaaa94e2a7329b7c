//! The ground floor: tokens, reasons, the clock and the atomics shim. Nothing here does I/O.

pub mod atomic;
pub mod buf;
pub mod cert;
pub mod clock;
pub mod field;
pub mod idle;
pub mod reason;
pub mod secret;
pub mod token;

pub use buf::{Buf, Spare};
pub use cert::ClientCert;
pub use clock::{Clock, Moment};
pub use idle::Idle;
pub use reason::Reason;
pub use secret::Secret;
pub use token::{Malformed, Token, TokenFormat};
