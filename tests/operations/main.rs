//! Operations in the whole daemon: a limit of a day, the memory of many guilds, and administrative actions.

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
