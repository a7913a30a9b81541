//! Named budgets in a real Redis: the script beside its model, and processes that share budgets, lose Redis and find it
//! again.

#![expect(clippy::unwrap_used, reason = "tests")]

#[path = "../support/redis.rs"]
mod support;

mod contract;
mod equivalence;
mod lives;
mod loss;
mod process;
mod script;
