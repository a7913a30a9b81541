//! Operations on their way: accepted once, in order, never lost, never doubled.
//!
//! ```text
//!  API ──▶ submission ──▶ OperationStore ◀──claim, load, record── guild ──perform──▶ Discord
//!           └──────Wake──▶ supervisor ──────────────starts, wakes────▲
//! ```
//!
//! Nothing is told to have been accepted that the store has not kept, and nothing is sent whose intent it has not kept.

mod change_feed;
mod completion;
mod config;
mod executor;
mod guild;
mod handle;
mod idempotency_cache;
mod journal;
mod store;
pub mod submission;
mod supervisor;
#[cfg(test)]
pub(crate) mod testing;
#[cfg(test)]
mod tests;
mod throttle;
mod wakeups;
mod wall_clock;

pub use change_feed::{ChangeFeed, ChangePage, ChangedOperation};
pub use completion::{CompletionConfig, CompletionWaiters, WaitSlot as WaitSeat};
pub use config::OperationsConfig;
pub use executor::{
    Execution, ExecutionOutput, ExecutionResult, ExecutorFuture, HoldScope, OperationExecutor, ReconcileResult,
};
pub use guild::{Guild, GuildSnapshot, GuildSpec};
pub use handle::OperationsHandle;
pub use idempotency_cache::{CacheFuture, IdempotencyCache, IdempotencyRecord};
pub use journal::Journal;
pub use store::{
    Attempt, Binding, Claim, ClaimFrom, DeadLetter, DeadLetterFilter, DelayedBy, Fence, FileUsage, IdempotencyKey,
    Instance, IntentUpdate, NewOperation, OperationDetails, OperationFilter, OperationPage, OperationStore,
    OperationUpdate, PauseTarget, ProgressUpdate, ResolvedReference, Retention, ScopeUsage, StoreError, StoreFuture,
    StoreUsage, StoredOperation, SubmitError, SubmitResult, SweepSummary, UnknownOutcome, UnreadableOperation,
    UnresolvedReference, UpdateResult, WaitReason,
};
pub use submission::OperationService;
pub use supervisor::{OperationsSnapshot, SpawnGuild, Supervisor};
pub use wakeups::QueueSignal;
pub use wall_clock::WallClock;
