#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| untorn_fuzz::replica(bytes));
