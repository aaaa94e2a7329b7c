//! `checks/tokens.rs` under libFuzzer.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| checks::tokens::check(data));
