//! The entry point for operations.
//!
//! ```text
//!  API, handlers ──Submission──▶ validate ──▶ cache? ──▶ store ──▶ AcceptedOperation
//!                                  │                      └──▶ QueueNotifier::wake ──▶ supervisor
//!                                  └─▶ all errors in all fields of all operations
//!  API ──cancel, retry, redrive, pause──▶ store ──▶ QueueNotifier
//! ```
//!
//! The service decides nothing about order or limits: it validates, assigns ids and passes on. What it reports as
//! accepted is in the store.

mod authorize;
pub(crate) mod completion;
mod dead_letters;
mod id_generator;
mod interactions;
mod parse;
mod queries;
mod request;
mod submit;
mod tenant_store;

use std::fmt;
use std::future::Future;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use guildhall_core::operation::{OperationId, OperationState, Progress, Queue};
use guildhall_core::time::UnixMs;

use self::id_generator::IdGenerator;
use self::interactions::NOT_RECEIVED;
use self::tenant_store::TenantStore;
use crate::access::RoleCache;
use crate::ports::{IdempotencyCache, OperationStore, PauseTarget, StoreError, SubmitError};

pub use self::completion::{CompletionConfig, CompletionWaiters, WaitSlot};
pub use self::dead_letters::{DiscardSummary, RedriveSummary, SkippedLetter};
pub use self::queries::{GuildStatus, OperationBacklog, RetryResult};
pub use self::request::{
    AcceptedOperation, DEFAULT_ATTEMPTS, ENVELOPE, EnvelopeField, FieldError, FieldFormat, MAX_BATCH, OperationRequest,
    Submission, key_problem,
};
pub use self::submit::SubmissionError;

/// Is notified of changes to queues. No call may block or wait.
pub trait QueueNotifier: Send + Sync {
    /// There may be work in a queue.
    fn wake(&self, queue: Queue);

    /// An operation was cancelled.
    fn cancelled(&self, id: OperationId, queue: Queue);

    /// A waiting operation is due now.
    fn expedited(&self, id: OperationId, queue: Queue);

    /// Something was paused or resumed.
    fn paused(&self, target: PauseTarget, paused: bool);
}

/// Source of the current wall clock time.
pub type TimeSource = Arc<dyn Fn() -> UnixMs + Send + Sync>;

/// Limits of the service.
#[derive(Clone, Copy, Debug)]
pub struct SubmissionConfig {
    /// Maximum number of operations in one submission.
    pub max_batch: usize,
    /// Default number of attempts of an operation.
    pub max_attempts: u32,
    /// Timeout of a call to the store, after which it counts as unavailable.
    pub store_timeout: Duration,
    /// Maximum number of dead letters that one call redrives.
    pub max_redrive: usize,
    /// Number of redriven dead letters in one call to the store.
    pub redrive_chunk: usize,
    /// Maximum number of dead letters that are searched for the oldest.
    pub max_redrive_scan: usize,
    /// Maximum number of dead letters that one call discards.
    pub max_discard: usize,
    /// Maximum number of operations that are counted for the depth of a guild's queue.
    pub max_depth: usize,
    /// Application id of this deployment's bot. Without it, every webhook with a token counts as an interaction.
    pub application: Option<u64>,
}

impl Default for SubmissionConfig {
    fn default() -> Self {
        Self {
            max_batch: MAX_BATCH,
            max_attempts: DEFAULT_ATTEMPTS,
            store_timeout: Duration::from_secs(10),
            max_redrive: 1_000,
            redrive_chunk: 100,
            max_redrive_scan: 50_000,
            max_discard: 1_000,
            max_depth: 1_000,
            application: None,
        }
    }
}

/// Why a request about an operation, a dead letter or a guild failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OperationError {
    /// There is no such operation.
    #[error("operation {0} not found; it may have been deleted after its retention period")]
    OperationNotFound(OperationId),
    /// There is no such guild that the caller may see.
    #[error("guild {0} not found, or this key has no access to it")]
    GuildNotFound(u64),
    /// There is no such dead letter.
    #[error("dead letter {0} not found; it may have been discarded, or deleted after its retention period")]
    DeadLetterNotFound(OperationId),
    /// The state of the operation does not allow the request.
    #[error("operation {id} is {}, so it cannot be {action}", state.name())]
    WrongState {
        /// The operation.
        id: OperationId,
        /// Its state.
        state: OperationState,
        /// What was requested: `cancelled` or `retried`.
        action: &'static str,
    },
    /// The operation is not finished, but some of its calls were already sent.
    #[error("operation {id} is {} and cannot be cancelled: {}; it continues", state.name(), describe_progress(progress))]
    AlreadyAttempted {
        /// The operation.
        id: OperationId,
        /// Its state.
        state: OperationState,
        /// Its steps that are known to be done.
        progress: Progress,
    },
    /// Another operation already repeats it.
    #[error("{id} was already redriven{}; see that operation instead", by.map_or_else(String::new, |by| format!(", as operation {by}")))]
    AlreadyRedriven {
        /// What was to be redriven.
        id: OperationId,
        /// The operation that repeats it.
        by: Option<OperationId>,
    },
    /// The caller's key does not permit what the operation does.
    #[error("operation {id} {missing}")]
    Forbidden {
        /// The operation.
        id: OperationId,
        /// What the key lacks.
        missing: String,
    },
    /// The operation names an object that the caller may not use.
    #[error("operation {id} cannot be redriven: {reason}")]
    ForeignTarget {
        /// The operation.
        id: OperationId,
        /// The object.
        reason: String,
    },
    /// It responds to an interaction that was not received, or has expired.
    #[error("operation {0} responds to {NOT_RECEIVED}")]
    NotReceived(OperationId),
    /// It cannot be accepted again.
    #[error(transparent)]
    Submit(#[from] SubmitError),
}

/// Describes what an attempted operation has done, for people.
fn describe_progress(progress: &Progress) -> String {
    if progress.is_empty() {
        return "one of its calls was already sent and may have had an effect".to_owned();
    }
    format!("it already {progress}")
}

impl From<StoreError> for OperationError {
    fn from(error: StoreError) -> Self {
        Self::Submit(error.into())
    }
}

/// The entry point for operations. Share it as an `Arc`.
pub struct OperationService {
    store: TenantStore,
    notifier: Arc<dyn QueueNotifier>,
    cache: Option<Arc<dyn IdempotencyCache>>,
    roles: Option<Arc<RoleCache>>,
    config: SubmissionConfig,
    now: TimeSource,
    ids: Mutex<IdGenerator>,
}

impl OperationService {
    /// Creates a service for this store.
    #[must_use]
    pub fn new(
        store: Arc<dyn OperationStore>,
        notifier: Arc<dyn QueueNotifier>,
        cache: Option<Arc<dyn IdempotencyCache>>,
        config: SubmissionConfig,
        now: TimeSource,
    ) -> Self {
        Self { store: TenantStore::new(store), notifier, cache, roles: None, config, now, ids: Mutex::default() }
    }

    /// Refuses operations that assign a role which is known to be dangerous, unless their key has the scope for it.
    #[must_use]
    pub fn with_roles(self, roles: Arc<RoleCache>) -> Self {
        Self { roles: Some(roles), ..self }
    }

    /// Limits of the service.
    #[must_use]
    pub fn config(&self) -> &SubmissionConfig {
        &self.config
    }

    fn now(&self) -> UnixMs {
        (self.now)()
    }

    fn next_id(&self, now: UnixMs) -> OperationId {
        // No code panics while it holds the lock.
        self.ids.lock().unwrap_or_else(PoisonError::into_inner).next(now, fastrand::u128(..))
    }

    /// Waits for the store, with a timeout.
    async fn call_store<T, E: From<StoreError>>(&self, call: impl Future<Output = Result<T, E>>) -> Result<T, E> {
        match tokio::time::timeout(self.config.store_timeout, call).await {
            Ok(result) => result,
            Err(_) => {
                let waited = self.config.store_timeout.as_millis();
                Err(StoreError::Unavailable(format!("no response within {waited} ms")).into())
            }
        }
    }
}

impl fmt::Debug for OperationService {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OperationService").field("config", &self.config).finish_non_exhaustive()
    }
}
