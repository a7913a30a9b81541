//! Dividing the global limit among the processes of one store, when no Redis counts for all of them.
//!
//! ```text
//!                    table of shares in the store, one row a process
//!   process A ──renew, lower──▶ │ A: 25 │ B: 25 │ C: gone, 17 │ ◀──renew, reserve── process B
//!        │                      └── sum of all rows ≤ limit ──┘                        │
//!        ▼ allowance                                                                   ▼ allowance
//!     limiter                                                                       limiter
//! ```
//!
//! A row says how much of the limit its process has *reserved*. The sum over all rows never exceeds the limit, and a process
//! never has more tokens in use than its row says:
//!
//! - It raises its row only in a transaction that checks the sum, and uses more only when that is committed.
//! - It lowers its row only when its tokens in use fit into what remains: a token comes back one window after its answer.
//! - It sends only while its lease lasts. Others remove its row when they have not seen it renewed for the lease, the request
//!   timeout and a window, by their own clocks: until then its last calls may still arrive.
//!
//! So no clock is compared with another, and no message has to arrive for the limit to hold. [`LimitShare`] decides; what drives
//! it talks to the store.

mod config;
mod member;
#[cfg(test)]
mod model;
#[cfg(test)]
mod tests;

pub use config::DivisionConfig;
pub use member::{Allowance, DivisionView, LimitShare, MemberId, Renewal, ShareAction, ShareRow, ShareUsage};
