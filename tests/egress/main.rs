//! The REST proxy of the real program, over raw sockets and against a simulated Discord.

#![expect(clippy::unwrap_used, reason = "tests")]

mod access;
mod calls;
mod compat;
mod examples;
mod fixture;
mod libraries;
mod limits;
mod refusals;
mod streams;
mod upstream;
