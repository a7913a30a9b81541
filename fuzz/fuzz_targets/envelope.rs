//! For any bytes, the frame scanner upholds the contract that the core tests check, and parsing a frame never panics.

#![no_main]

#[path = "../../core/tests/promise/mod.rs"]
mod promise;

use std::sync::{Arc, LazyLock};

use guildhall_core::event::{read, read_interaction};
use guildhall_core::time::UnixMs;
use libfuzzer_sys::fuzz_target;

static SESSION: LazyLock<Arc<str>> = LazyLock::new(|| Arc::from("a-session"));

fuzz_target!(|bytes: &[u8]| {
    if let Ok(text) = str::from_utf8(bytes) {
        promise::check_scan(text);
        // The parser tests check which frames are events. Here the result does not matter: the call must return one.
        let _ = read(text.to_owned(), 0, &SESSION, UnixMs::new(0));
        let _ = read_interaction(text.to_owned(), UnixMs::new(0));
    }
});
