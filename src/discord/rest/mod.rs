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
mod call_builder;
mod classify;
mod leased_connector;
mod nonce;
mod raw;
mod transport;

pub use call::{Call, CallError, DecodeError, ResponseDecoder, with_reason};
pub use call_builder::{CallBuilder, MessagePage, OriginalEdit};
pub use classify::{Classification, classify};
pub use raw::{RawRequestError, raw};
pub use transport::{Authorization, HyperTransport, TransportConfig, TransportConfigError};
