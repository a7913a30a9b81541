//! Authorization on every route of the API of the real program, against a simulated Discord: on SQLite, and on
//! PostgreSQL with row-level security.

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
