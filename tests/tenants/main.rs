//! Who may do what, over every way into the API of the real program, on a simulated Discord: on SQLite, and on a PostgreSQL
//! that keeps tenants apart itself.

#![expect(clippy::unwrap_used, reason = "tests")]

mod audit;
mod bounds;
mod channels;
mod danger;
mod interactions;
mod matrix;
#[path = "../support/postgres.rs"]
mod postgres;
mod queues;
mod secrets;
mod shares;
#[path = "../support/mod.rs"]
mod support;
mod town;
mod ways;
