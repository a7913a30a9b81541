//! REST calls on their way to Discord: the port that callers see, and the transport that only the gate may use.
//!
//! ```text
//!  caller ──Request──▶ Rest::call ──▶ breaker admit ──▶ token bucket acquire ──▶ commit ──▶ Transport::send(Cleared)
//!         ◀─Outcome──             ◀── breaker report ◀── token bucket observe ◀───────────
//! ```
//!
//! A [`Transport`] takes nothing but a [`ClearedRequest`] call, and only the gate can make one: no call can leave that has not
//! passed breaker and token bucket. The commit is the caller's: see [`BeforeSend`].

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
pub use request::{Effects, RequestBody, RestRequest};
pub use transport::{ClearedRequest, RawResponse, SendFuture, Transport, TransportError};

use std::future::Future;
use std::pin::Pin;

/// A call under way.
pub type CallFuture<'a> = Pin<Box<dyn Future<Output = CallOutcome> + Send + 'a>>;

/// Where REST calls go: the local gate, or an egress process that has one.
pub trait Rest: Send + Sync {
    /// Makes a call. It always ends: by its deadline it was either not sent, answered, or has an outcome that nobody
    /// knows.
    fn call(&self, request: RestRequest) -> CallFuture<'_>;
}
