//! Leases on real backends: one suite that runs on SQLite, PostgreSQL and Redis.

mod backends;
mod contract;
mod failing;
mod model;
