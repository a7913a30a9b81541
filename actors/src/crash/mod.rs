//! Inputs that end the process.
//!
//! ```text
//!  a part processes an input ─▶ panic ─▶ the hook copies the input ─▶ the process ends, and counts it in the store
//!  next start, claim or takeover ─▶ an input that ended a process twice is set aside, and the work after it continues
//! ```
//!
//! A restart repairs the process, but RESUME and claims replay what was not finished. An input on which a part panics
//! each time would end every process that takes it. Only panics are counted: a process that is killed counts nothing,
//! whatever it was processing.

mod input;
mod scope;

pub use self::input::{CRASHES_BEFORE_SET_ASIDE, Crash, CrashStore, CrashedInput, Input};
pub use self::scope::{EventScope, InputGuard, current, enter, enter_events, with_input};
