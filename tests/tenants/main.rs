//! Authorization on every route of the API of the real program, against a simulated Discord: on SQLite, and on
//! PostgreSQL with row-level security.

#![expect(clippy::unwrap_used, reason = "tests")]

mod access_matrix;
mod audit;
mod channel_access;
mod danger;
mod fixture;
mod interactions;
mod queues;
mod routes;
mod secrets;
mod shares;
mod usage_limits;
