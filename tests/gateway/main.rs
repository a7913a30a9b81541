//! Complete shards against a simulated Discord: its events arrive complete, in order and once, whatever happens to the
//! connection, to the process, and to the listener.
//!
//! ```text
//!  simulator ──ws──▶ ShardPool (its own threads) ──ShardMessage──▶ listener, which records what it receives
//!      └── faults, storms, score ───────────────▶ test ◀──────────────┘
//! ```

#![expect(clippy::unwrap_used, reason = "tests")]

mod budget;
mod faults;
mod fixture;
mod pause;
mod restart;
mod shard_listener;
mod store;
mod webhook;
