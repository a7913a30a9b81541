//! Port to the executor of operations.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use guildhall_core::access::{Bounds, ScopeSet};
use guildhall_core::lane::Lane;
use guildhall_core::operation::{Failure, ManagedKind, Marker, OperationId, Payload, Progress};
use guildhall_core::time::UnixMs;
use guildhall_core::trace::TraceContext;

use crate::guild::Journal;
use crate::lease_guard::LeaseGuard;
use crate::ports::Binding;

/// Pending call to the executor.
pub type ExecutorFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// An operation to execute now.
#[derive(Clone, Debug)]
pub struct Execution {
    /// Id of the operation.
    pub id: OperationId,
    /// Its guild.
    pub guild: Option<u64>,
    /// Tenant of the operation.
    pub tenant: Arc<str>,
    /// Which channels it may use.
    pub bounds: Bounds,
    /// The id of the API key that submitted it.
    pub caller: Arc<str>,
    /// The scopes that it was accepted with.
    pub scopes: ScopeSet,
    /// What to do, with ids only: every reference is resolved, except the `key` of an `ensure_…`.
    pub payload: Payload,
    /// Object of the key of an `ensure_…`, if there is one: its id, and the channel of a message.
    pub existing: Option<(u64, Option<u64>)>,
    /// Steps of earlier executions. They are not repeated.
    pub progress: Progress,
    /// Marker that identifies its effect.
    pub marker: Marker,
    /// For Discord's audit log; the marker is added to it.
    pub reason: Option<String>,
    /// How urgent it is.
    pub lane: Lane,
    /// How long to wait for a permit.
    pub max_wait: Duration,
    /// When a call was first about to be sent; now, if there was none.
    pub intent_at: UnixMs,
    /// Lease of the queue. Every call must carry it.
    pub lease: LeaseGuard,
    /// Records that a call is about to be sent. Every call with an effect carries its hook.
    pub journal: Journal,
    /// Span of this attempt.
    pub trace: Option<TraceContext>,
}

/// Result of an execution.
#[derive(Clone, Debug, PartialEq)]
pub enum ExecutionResult {
    /// It succeeded.
    Done(ExecutionOutput),
    /// The next call was not sent, or a limit refused it: no attempt is used. Earlier steps are in the journal.
    Held {
        /// How long to wait; `None` if a wait does not help by itself.
        retry_after: Option<Duration>,
        /// Whether other operations are delayed too.
        scope: HoldScope,
        /// A short name, for metrics.
        reason: &'static str,
        /// The message for people.
        message: String,
        /// The status, if Discord refused it.
        status: Option<u16>,
    },
    /// It failed without effect. Its class says whether it is permanent.
    Failed(Failure),
    /// It may have taken effect: a call has no response, or one that does not tell. `Ambiguous` if sending it again
    /// could take effect twice, else `Transient`.
    Unknown(Failure),
}

/// Which operations are delayed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HoldScope {
    /// Only those of this route, bucket or resource: others may pass after a while.
    Route,
    /// Those of the caller: operations of others may pass at once.
    Caller,
    /// All: a breaker, a ban, the global limit. Others must not pass.
    All,
}

/// Output of an operation.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ExecutionOutput {
    /// The result for its caller, as JSON.
    pub result: serde_json::Value,
    /// The object that it created or ensured, for operations that refer to this one.
    pub created: Option<u64>,
    /// Keys to bind to objects.
    pub bind: Vec<Binding>,
    /// Objects that no longer exist.
    pub unbind: Vec<(ManagedKind, u64)>,
    /// The status of the final response.
    pub status: Option<u16>,
}

/// Result of a search for the effect of an earlier attempt.
#[derive(Clone, Debug, PartialEq)]
pub enum ReconcileResult {
    /// It took effect, with this output.
    Found(ExecutionOutput),
    /// It did not take effect, as far as Discord reports. It may be sent again.
    Absent,
    /// The outcome cannot be determined: it needs review. The message for the reviewer.
    Unclear(String),
    /// Discord was queried without a usable response.
    Failed(String),
    /// Discord could not be queried now.
    Held {
        /// How long to wait.
        retry_after: Duration,
        /// Whether other operations are delayed too.
        scope: HoldScope,
        /// The message for people.
        message: String,
    },
}

/// Executes operations: the adapter to Discord.
pub trait OperationExecutor: Send + Sync {
    /// Executes an operation once. Every call with an effect carries the hook of its journal.
    fn execute(&self, execution: Execution) -> ExecutorFuture<'_, ExecutionResult>;

    /// Searches for the effect of an earlier attempt. Changes nothing. [`ReconcileResult::Absent`] means that it may be
    /// sent again.
    fn reconcile(&self, execution: Execution) -> ExecutorFuture<'_, ReconcileResult>;

    /// Checks whether an operation that will not be sent again has taken effect. Changes nothing.
    /// [`ReconcileResult::Absent`] means that it has not.
    fn verify(&self, execution: Execution) -> ExecutorFuture<'_, ReconcileResult>;
}
