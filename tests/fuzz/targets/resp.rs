//! `checks/resp.rs` under libFuzzer.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| checks::resp::check(data));
