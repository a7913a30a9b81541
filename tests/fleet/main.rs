//! Several processes of one bot, which share its limit, its queues and its shards.
//!
//! `scripts/test` runs `ownership` with nothing else beside it, because it measures what daemons do concurrently.

#![expect(clippy::unwrap_used, reason = "tests")]

mod leases;
mod ownership;
mod redis_gate;
mod shards;
