//! Operations in the whole daemon: a limit of a day, the memory of many guilds, and administrative actions.

#![expect(clippy::unwrap_used, reason = "tests")]

mod admin_actions;
mod clock;
mod daemon;
mod many_guilds;
#[path = "../support/movable_clock.rs"]
mod movable_clock;
mod parked;
#[path = "../support/postgres.rs"]
mod postgres;
#[path = "../support/redis.rs"]
mod redis_server;
mod scheduled;
#[path = "../support/mod.rs"]
mod support;
mod unknown_outcome;
