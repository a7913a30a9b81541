//! The window that processes share, in a real Redis.

#![expect(clippy::unwrap_used, reason = "tests")]

mod members;
mod mirror;
mod pair;
mod random;
mod script;
