//! Fuzzes `dialects::realtime`: see there for what it promises.
#![no_main]

#[path = "../dialects.rs"]
mod dialects;

libfuzzer_sys::fuzz_target!(|data: &[u8]| dialects::realtime(data));
