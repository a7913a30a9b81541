//! The port to what an operation does in Discord.

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

/// Something being done.
pub type ExecutorFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// An operation that is to be done now.
#[derive(Clone, Debug)]
pub struct Execution {
    /// Which.
    pub id: OperationId,
    /// Its guild.
    pub guild: Option<u64>,
    /// Whose it is.
    pub tenant: Arc<str>,
    /// Whose channels it may name.
    pub bounds: Bounds,
    /// The id of the API key that submitted it.
    pub caller: Arc<str>,
    /// The scopes that it was accepted with.
    pub scopes: ScopeSet,
    /// What to do, with ids only: every reference is resolved, but for the `key` of what an `ensure_…` is about.
    pub payload: Payload,
    /// What the key of an `ensure_…` stands for, if it stands for something: its id, and a message's channel.
    pub bound: Option<(u64, Option<u64>)>,
    /// What earlier executions have done of it. It is not done again.
    pub progress: Progress,
    /// Its sign.
    pub marker: Marker,
    /// For Discord's audit log; the marker is added to it.
    pub reason: Option<String>,
    /// How urgent it is.
    pub lane: Lane,
    /// How long to wait for a turn.
    pub max_wait: Duration,
    /// When a call of it was first about to be sent; now, if none was.
    pub intent_at: UnixMs,
    /// The right to do it, which every call has to carry.
    pub right: LeaseGuard,
    /// Where it is written that a call is about to be sent. Every call with an effect carries its hook.
    pub journal: Journal,
    /// The part of a trace that this try is.
    pub trace: Option<TraceContext>,
}

/// What came of doing it.
#[derive(Clone, Debug, PartialEq)]
pub enum ExecutionResult {
    /// It is done.
    Done(ExecutionOutput),
    /// The next call did not leave this process, or a limit refused it: no attempt is used. What was done before it is in the
    /// journal.
    Held {
        /// How long to wait; nothing if waiting does not help by itself.
        retry_after: Option<Duration>,
        /// Whether others would be held, too.
        hold: HoldScope,
        /// A short word, for metrics.
        reason: &'static str,
        /// Why, for people.
        why: String,
        /// The status, if it was Discord that refused.
        status: Option<u16>,
    },
    /// It failed and took no effect: its class says whether for good.
    Failed(Failure),
    /// It may have taken effect: a call was not answered, or answered in a way that does not tell. `Ambiguous` if sending it
    /// again could take effect twice, else `Transient`.
    Unknown(Failure),
}

/// Who is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HoldScope {
    /// This route, bucket or resource alone: others may pass after a while.
    Route,
    /// The caller that submitted it: operations of others may pass at once.
    Caller,
    /// Everything: a breaker, a ban, the global limit. Passing would not help.
    All,
}

/// What an operation did.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ExecutionOutput {
    /// What its caller is told, as JSON.
    pub result: serde_json::Value,
    /// The object that it made or saw to, for those who refer to the operation.
    pub made: Option<u64>,
    /// Objects that are known by their keys from now on.
    pub bind: Vec<Binding>,
    /// Objects that are gone.
    pub unbind: Vec<(ManagedKind, u64)>,
    /// The status of the answer that settled it.
    pub status: Option<u16>,
}

/// What came of looking for something that may have been done.
#[derive(Clone, Debug, PartialEq)]
pub enum ReconcileResult {
    /// It was done, and this is it.
    Found(ExecutionOutput),
    /// It was not done, for certain or as far as Discord can tell. It may be sent again.
    Absent,
    /// Nobody can tell: only a person can. Why, for that person.
    Unclear(String),
    /// Discord was asked, and gave no answer that tells.
    Failed(String),
    /// The question could not be asked now.
    Held {
        /// How long to wait.
        retry_after: Duration,
        /// Whether others would be held, too.
        hold: HoldScope,
        /// Why, for people.
        why: String,
    },
}

/// What does operations: the adapter to Discord.
pub trait OperationExecutor: Send + Sync {
    /// Does it, once. Every call with an effect carries the hook of `work.journal`.
    fn perform(&self, work: Execution) -> ExecutorFuture<'_, ExecutionResult>;

    /// Looks for what an earlier try may have done. Changes nothing. [`ReconcileResult::Absent`] means that it may be sent again.
    fn reconcile(&self, work: Execution) -> ExecutorFuture<'_, ReconcileResult>;

    /// Checks whether the effect is in place of an operation that will not be sent again. Changes nothing.
    /// [`ReconcileResult::Absent`] means that it is not.
    fn verify(&self, work: Execution) -> ExecutorFuture<'_, ReconcileResult>;
}
