//! Discord's REST API: how calls are built, sent and read.
//!
//! ```text
//!  Calls::create_role(…) ──▶ Call<Role> ──request──▶ gate ──Cleared──▶ HyperTransport ──https──▶ Discord
//!                                ▲                                          │
//!                              parse ◀────────────── Answered ◀── classify ◀┘
//! ```
//!
//! Nothing here decides when a call may go, or whether it is made again: that is the gate's and the operations' business.

mod call;
mod calls;
mod classify;
mod leased;
mod message;
mod raw;
mod transport;

pub use call::{AnswerOf, Call, CallError, ReadError, with_reason};
pub use calls::{Calls, Edit, Page};
pub use classify::{Classified, classify};
pub use raw::{RawError, raw};
pub use transport::{Authorization, HyperTransport, TransportConfig, TransportConfigError};
