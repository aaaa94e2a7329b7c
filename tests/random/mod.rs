//! What the random scenarios of sessions share: a relay in front of the backend that has accidents, and the checkers of what
//! took effect. None of it knows the gate's insides.

#![allow(dead_code, unused_imports, reason = "each test binary uses a part of it")]

pub mod holder;
pub mod lists;
pub mod relay;
pub mod streams;

pub use self::relay::Relay;
pub use crate::gate::dice::{Dice, rounds, seed};
