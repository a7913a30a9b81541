//! The edge of the API of the real program: many, slow or encrypted connections, and connections during shutdown.

mod drain;
mod flood;
mod http;
mod shared_policies;
mod tls;

/// The admin key of the daemons in these tests.
pub(crate) const KEY: &str = "gh_edge_0123456789";
