//! Discord's REST API: builds and sends calls, and reads responses.
//!
//! ```text
//!  CallBuilder::create_role(…) ─▶ Call<Role> ─request─▶ gate ─ClearedRequest─▶ HyperTransport ─https─▶ Discord
//!                                     ▲                                               │
//!                                   parse ◀───────────── RestResponse ◀── classify ◀──┘
//! ```
//!
//! Nothing here decides when a call is permitted or retried: the gate and the operations decide that.

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
