//! One global limit for many processes, whoever of them can see Redis.
//!
//! ```text
//!  process ── Member ──Call──▶ ┌ Redis ────────────────┐ ◀──Call── Member ── process
//!     │         ◀──Reply────── │ tokens and membership │ ──Reply──▶          │
//!     ▼                        └───────────────────────┘                    ▼
//!  Discord ◀──── a call for each token, never two within one window ───── Discord
//! ```
//!
//! [`Member`] is a process's side: it books slots ahead, uses them, tells what came of them, and knows what it may do while
//! it cannot reach the others. [`ReferenceWindow`] is the other side, and the reference for the script that Redis runs: the two are
//! checked against each other, and both together, with processes that die, stop and are cut off, by a model.
//!
//! Why it is safe is written in `docs/redis-gate.md`.

mod clock_monitor;
mod clock_sample;
mod config;
mod member;
#[cfg(test)]
mod model;
mod script;
mod window;

pub use config::{LimitFallback, SharedLimitConfig};
pub use member::{Member, MemberPermitId, MemberView, SharingMode};
pub use script::{
    JoinRequest, MembershipState, ScriptCall, ScriptCommand, ScriptReply, Slot, SlotOutcome, SlotReport, SyncRequest,
};
pub use window::ReferenceWindow;
