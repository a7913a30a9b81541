//! Operations in the whole daemon: what a limit of a day holds up, what a crowd of guilds costs, and what
//! people see and change by hand.

#![expect(clippy::unwrap_used, reason = "tests")]

mod crowd;
mod daemon;
mod parked;
#[path = "../support/redis.rs"]
mod redis_server;
mod scheduled;
mod step_in;
#[path = "../support/mod.rs"]
mod support;
