//! The last panic of a thread, stored for the part that it ends.
//!
//! The panic hook runs before the stack unwinds; the guard of the part is dropped while it unwinds, on the same thread.

use std::cell::RefCell;
use std::panic::PanicHookInfo;

use super::PanicInfo;
use crate::crash;

thread_local! {
    static LAST: RefCell<Option<PanicInfo>> = const { RefCell::new(None) };
}

/// Stores the location, message and input of a panic of this thread. To be called by the panic hook.
pub fn record_panic(panic: &PanicHookInfo<'_>) {
    let message = panic.payload_as_str().unwrap_or("no message").to_owned();
    let info = PanicInfo { location: panic.location().map(ToString::to_string), message, input: crash::current() };
    // A thread that is being torn down no longer has a part.
    let _ = LAST.try_with(|last| last.replace(Some(info)));
}

/// The panic that unwinds this thread.
pub(super) fn current_panic() -> Option<PanicInfo> {
    std::thread::panicking().then(|| {
        let recorded = LAST.try_with(|last| last.borrow().clone());
        recorded
            .ok()
            .flatten()
            .unwrap_or_else(|| PanicInfo { message: "no message".to_owned(), ..PanicInfo::default() })
    })
}
