//! What processes share over a real Redis.

#![expect(clippy::unwrap_used, reason = "tests")]

mod budgets;
mod connection;
mod state;
mod window;
