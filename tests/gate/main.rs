//! The gate in front of a simulated Discord that checks what arrives.

#![expect(clippy::unwrap_used, reason = "tests")]

mod breaker;
mod days;
mod invalid;
mod limits;
mod order;
mod responses;
mod restart;
mod snapshot;
