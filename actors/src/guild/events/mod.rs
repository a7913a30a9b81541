//! Handles the events of one guild in order. A handler's output is stored in the same commit as its completion, so a replay after
//! a crash neither loses nor repeats it.
//!
//! ```text
//!  mailbox ─▶ guild ─▶ handlers: rules, webhooks, the broker
//!                 │         │ slow or failed
//!                 ▼         └──▶ inbox ─▶ handlers, in order, until they succeed
//!               acks
//! ```

pub(crate) mod actor;
pub(crate) mod backlog;
pub(crate) mod committer;
pub(crate) mod context;
pub(crate) mod crashed_events;
#[cfg(test)]
pub(crate) mod crashed_events_tests;
pub(crate) mod durable_store;
pub(crate) mod fallback;
pub(crate) mod handler_runner;
pub(crate) mod handler_set;
pub(crate) mod inbox;
pub(crate) mod inbox_entry;
pub(crate) mod interaction;
pub(crate) mod interaction_recorder;
#[cfg(test)]
pub(crate) mod interaction_recorder_tests;
pub(crate) mod load;
pub(crate) mod mailbox;
pub(crate) mod publisher;
pub(crate) mod registry;
pub(crate) mod routed_event;
pub(crate) mod state_keys;
pub(crate) mod stream_positions;
