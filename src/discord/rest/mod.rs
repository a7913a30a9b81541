//! Discord's REST API: how calls are built, sent and read.
//!
//! ```text
//!  Calls::create_role(…) ──▶ Call<Role> ──request──▶ gate ──Cleared──▶ HyperTransport ──https──▶ Discord
//!                                ▲                                          │
//!                              parse ◀────────────── Answered ◀── classify ◀┘
//! ```
//!
//! Nothing here decides when a call may go, or whether it is made again: that is the gate's and the operations' business.

mod classify;
mod transport;

pub use classify::{Classified, classify};
pub use transport::{HyperTransport, TransportConfig, TransportConfigError};
