//! The REST proxy of the real program, over raw sockets and against a simulated Discord.

#![expect(clippy::unwrap_used, reason = "tests")]

mod access;
mod calls;
mod compat;
mod crowd;
mod examples;
mod fixture;
mod gate;
mod libraries;
mod limits;
mod listeners;
mod refusals;
mod restarts;
mod soak;
mod streams;
mod uploads;
mod upstream;
