//! `checks/codec_response.rs` under libFuzzer.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| checks::codec_response::check(data));
