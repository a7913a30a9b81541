//! The edge of the API as a user has it: the real program, with callers that are many, slow, encrypted, or there while it ends.

#![expect(clippy::unwrap_used, reason = "tests")]

mod drain;
mod flood;
mod http;
#[path = "../support/redis.rs"]
mod redis_server;
mod shared;
#[path = "../support/mod.rs"]
mod support;
mod tls;

/// The key of these tests' daemons.
pub(crate) const KEY: &str = "gh_edge_0123456789";
