//! The commands of the real program.

#![expect(clippy::unwrap_used, reason = "tests")]

mod commands_sync;
mod demo;
mod doctor;
mod output;
mod redis_demo;
mod remote;
mod sim;
