//! `checks/opening.rs` under libFuzzer.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| checks::opening::check(data));
