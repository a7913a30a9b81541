//! The REST proxy of the real program, over raw sockets and against a simulated Discord.

#![expect(clippy::unwrap_used, reason = "tests")]

mod access;
mod calls;
mod fixture;
mod limits;
mod refusals;
mod restarts;
mod soak;
mod streams;
mod upstream;
