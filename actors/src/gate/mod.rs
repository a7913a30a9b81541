//! REST calls to Discord: the port for callers, and the transport that only the gate may use.
//!
//! ```text
//!  caller ──RestRequest──▶ Rest::call ──▶ breaker admit ──▶ token bucket acquire ──▶ commit ──▶ Transport::send
//!         ◀─CallOutcome──             ◀── breaker report ◀── token bucket observe ◀──────────
//! ```
//!
//! A [`Transport`] accepts only a [`ClearedRequest`], and only the gate can create one: no call is sent that has not
//! passed breaker and token bucket. The caller provides the commit: see [`BeforeSend`].

mod admin;
mod before_send;
mod outcome;
mod pipeline;
mod release;
mod request;
mod transport;

pub use before_send::{BeforeSend, CommitFuture, CommitHook};
pub use outcome::{CallOutcome, NoResponse, NotSent, RestResponse};
pub use pipeline::{Gate, GateConfig, GateView};
pub use release::ReleaseListener;
pub use request::{ApiVersion, Effects, RequestBody, ResponseMode, RestRequest};
pub use transport::{ClearedRequest, RawResponse, ResponseStream, SendFuture, Transport, TransportError};

use std::future::Future;
use std::pin::Pin;

/// Pending call.
pub type CallFuture<'a> = Pin<Box<dyn Future<Output = CallOutcome> + Send + 'a>>;

/// Destination of REST calls: the local gate, or an egress process that has one.
pub trait Rest: Send + Sync {
    /// Makes a call. It always finishes: by its deadline it was not sent, was answered, or has an unknown outcome.
    fn call(&self, request: RestRequest) -> CallFuture<'_>;
}
