//! Leases on real backends: one suite that runs on SQLite, PostgreSQL and Redis.

#![expect(clippy::unwrap_used, reason = "tests")]

mod backends;
mod contract;
mod failing;
mod model;
