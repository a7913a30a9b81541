//! Operations in the whole daemon: what a limit of a day holds up, what a crowd of guilds costs, and what
//! people see and change by hand.

#![expect(clippy::unwrap_used, reason = "tests")]

mod clock;
mod crowd;
mod daemon;
#[path = "../support/movable_clock.rs"]
mod movable_clock;
mod parked;
#[path = "../support/postgres.rs"]
mod postgres;
#[path = "../support/redis.rs"]
mod redis_server;
mod scheduled;
mod step_in;
#[path = "../support/mod.rs"]
mod support;
mod unknown_outcome;
