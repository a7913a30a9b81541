//! Several daemons without ranges on one PostgreSQL: each shard is one's, its session goes on with the next when that one is
//! killed, ended or frozen, and every event has its effect once.
//!
//! ```text
//!  messages ──▶ simulator, 4 shards ──ws──▶ guildhall serve ──┐
//!     │             ▲      └────────ws────▶ guildhall serve ──┼──▶ PostgreSQL: whose is which shard
//!     │             └──────────REST───────────────┘           │
//!     └── what was written ──▶ judge ◀── what was echoed      │
//! ```

#![expect(clippy::unwrap_used, reason = "tests")]

#[allow(dead_code, reason = "the tests of crashes use it")]
#[path = "../crash/life.rs"]
mod life;
#[path = "../support/postgres.rs"]
mod postgres;
#[path = "../support/mod.rs"]
mod support;

mod handover;
mod stage;
