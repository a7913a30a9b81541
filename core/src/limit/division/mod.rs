//! Divides the global limit among the processes of one store, without Redis.
//!
//! ```text
//!                    table of shares in the store, one row a process
//!   process A ──renew, lower──▶ │ A: 25 │ B: 25 │ C: gone, 17 │ ◀──renew, reserve── process B
//!        │                      └── sum of all rows ≤ limit ──┘                        │
//!        ▼ allowance                                                                   ▼ allowance
//!     limiter                                                                       limiter
//! ```
//!
//! A row states how much of the limit its process has *reserved*. The sum over all rows never exceeds the limit, and a
//! process never has more tokens in use than its row states:
//!
//! - It raises its row only in a transaction that checks the sum, and uses more only after the commit.
//! - It lowers its row only when its tokens in use fit into the rest: a token returns one window after its response.
//! - It sends only while its lease is valid. Others remove its row when they have not seen a renewal for the lease, the
//!   request timeout and a window, by their own clocks: until then its last calls may still arrive.
//!
//! So no clock is compared with another, and the limit holds even if messages are lost. [`LimitShare`] decides; its
//! driver does the I/O with the store.

mod config;
mod member;
#[cfg(test)]
mod model;
#[cfg(test)]
mod tests;

pub use config::DivisionConfig;
pub use member::{Allowance, DivisionView, LimitShare, MemberId, Renewal, ShareAction, ShareRow, ShareUsage};
