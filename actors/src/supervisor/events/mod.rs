//! Routes the events of all shards to their guilds, and confirms a session up to the last event whose handlers have all finished.
//!
//! ```text
//!  shard ─▶ router ─batches─▶ supervisor ─mailbox─▶ guild
//!    ▲ credit │ sessions                              │
//!    └────────┴──────────── confirmed ◀── acks ◀──────┘
//! ```

pub(crate) mod acks;
#[cfg(test)]
pub(crate) mod broker_tests;
pub(crate) mod config;
pub(crate) mod event_supervisor;
#[cfg(test)]
pub(crate) mod fallback_tests;
pub(crate) mod handle;
#[cfg(test)]
pub(crate) mod reload_tests;
pub(crate) mod router;
#[cfg(test)]
pub(crate) mod tests;
