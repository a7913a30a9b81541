//! Leases on real backends: one suite that runs on SQLite, PostgreSQL and Redis.

#![expect(clippy::unwrap_used, reason = "tests")]

mod backends;
mod contract;
mod failing;
mod model;
#[path = "../support/pgbouncer.rs"]
mod pgbouncer;
#[path = "../support/postgres.rs"]
mod postgres;
#[path = "../support/redis.rs"]
mod redis_server;
