//! Any bytes: the scan of a frame keeps the promise that the tests hold it to, and reading one never panics.

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
        promise::holds(text);
        // Whether it is an event is told by the tests of reading; here, that it says so either way.
        let _ = read(text.to_owned(), 0, &SESSION, UnixMs::new(0));
        let _ = read_interaction(text.to_owned(), UnixMs::new(0));
    }
});
