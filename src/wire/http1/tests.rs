//! The codec against tables of good and bad messages.
