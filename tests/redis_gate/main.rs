//! Processes that share one bot's limit over Redis: real processes, a real Redis, and the simulator as the judge of all.

#![expect(clippy::unwrap_used, reason = "tests")]

mod driver;
#[path = "../support/fleet.rs"]
mod fleet;
#[path = "../support/gate.rs"]
mod gate;
#[path = "../support/redis.rs"]
mod redis;
mod sharing;
