//! Operations in the whole daemon: what a limit of a day holds up, and what a crowd of guilds costs.

#![expect(clippy::unwrap_used, reason = "tests")]

mod crowd;
mod daemon;
mod parked;
#[path = "../support/mod.rs"]
mod support;
