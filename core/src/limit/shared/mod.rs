//! One global limit that many processes share through Redis.
//!
//! ```text
//!  process ── Member ──Call──▶ ┌ Redis ────────────────┐ ◀──Call── Member ── process
//!     │         ◀──Reply────── │ tokens and membership │ ──Reply──▶          │
//!     ▼                        └───────────────────────┘                    ▼
//!  Discord ◀──── a call for each token, never two within one window ───── Discord
//! ```
//!
//! [`Member`] is the client side in a process: it books slots in advance, uses them, reports their outcome, and decides
//! what the process may do while it cannot reach Redis. `ReferenceWindow`, which only tests compile, is the server
//! side, and the reference for the script that Redis runs. Tests compare the script with it, and a model checks both sides
//! together, with processes that die, stop and are disconnected.
//!
//! `docs/redis-gate.md` explains why it is safe.

mod clock_monitor;
mod clock_sample;
mod config;
mod member;
#[cfg(test)]
mod model;
mod script;
#[cfg(any(test, feature = "testing"))]
mod window;

pub use config::{LimitFallback, SharedLimitConfig};
pub use member::{Member, MemberPermitId, MemberView, SharingMode};
pub use script::{
    JoinRequest, MembershipState, ScriptCall, ScriptCommand, ScriptReply, Slot, SlotOutcome, SlotReport, SyncRequest,
};
#[cfg(any(test, feature = "testing"))]
pub use window::ReferenceWindow;
