//! The edge of the API of the real program: many, slow or encrypted connections, and connections during shutdown.

#![expect(clippy::unwrap_used, reason = "tests")]

mod drain;
mod flood;
mod http;
#[path = "../support/redis.rs"]
mod redis_server;
mod shared_policies;
#[path = "../support/mod.rs"]
mod support;
mod tls;

/// The admin key of the daemons in these tests.
pub(crate) const KEY: &str = "gh_edge_0123456789";
