//! The daemon as a process: how it starts, reloads and ends, and what it logs, measures and traces.

#![expect(clippy::unwrap_used, reason = "tests")]

mod examples;
mod observability;
mod outages;
mod reload;
mod secrets;
mod serve;
mod systemd;
mod trace;
