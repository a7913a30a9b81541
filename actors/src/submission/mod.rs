//! The one way in for operations.
//!
//! ```text
//!  API, handlers ──Submission──▶ draft ──▶ cache? ──▶ store ──▶ Accepted
//!                                  │                    └──▶ Hears::wake ──▶ supervisor
//!                                  └─▶ every field of every operation that is wrong
//!  people ──cancel, retry, redrive, pause──▶ store ──▶ Hears
//! ```
//!
//! The service decides nothing about order or limits: it validates, assigns ids and passes on. What it reports as accepted
//! is in the store.

mod authorize;
pub(crate) mod completion;
mod dead_letters;
mod id_generator;
mod interactions;
mod queries;
mod request;
mod submit;
mod tenant_store;
mod validate;

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
pub use self::queries::{GuildStatus, RetryResult};
pub use self::request::{AcceptedOperation, FieldError, OperationRequest, Submission, key_problem};
pub use self::submit::SubmissionError;

/// Is notified of changes to queues. No call may block or wait.
pub trait QueueNotifier: Send + Sync {
    /// There may be something to do in a queue.
    fn wake(&self, queue: Queue);

    /// An operation was taken back.
    fn cancelled(&self, id: OperationId, queue: Queue);

    /// An operation that waits is due now.
    fn hastened(&self, id: OperationId, queue: Queue);

    /// Something was paused, or goes on.
    fn paused(&self, what: PauseTarget, paused: bool);
}

/// The present time by the wall clock.
pub type TimeSource = Arc<dyn Fn() -> UnixMs + Send + Sync>;

/// Its bounds.
#[derive(Clone, Copy, Debug)]
pub struct SubmissionConfig {
    /// Operations in one submission.
    pub batch_most: usize,
    /// How often an operation is tried that does not say it.
    pub max_attempts: u32,
    /// How long the store may take to answer before it counts as unavailable.
    pub store_within: Duration,
    /// Dead letters that one call does again.
    pub redrive_most: usize,
    /// How many of them are handed to the store at once.
    pub redrive_chunk: usize,
    /// Dead letters that are looked through for the oldest.
    pub redrive_walk: usize,
    /// Dead letters that one call throws away.
    pub discard_most: usize,
    /// Operations of a guild that are counted for showing how deep its queue is.
    pub depth_most: usize,
    /// The application of this deployment's bot. Without it, every webhook with a token counts as an interaction.
    pub application: Option<u64>,
}

impl Default for SubmissionConfig {
    fn default() -> Self {
        Self {
            batch_most: 1_000,
            max_attempts: 3,
            store_within: Duration::from_secs(10),
            redrive_most: 1_000,
            redrive_chunk: 100,
            redrive_walk: 50_000,
            discard_most: 1_000,
            depth_most: 1_000,
            application: None,
        }
    }
}

/// Why the service did not do what a person asked of an operation, a letter or a guild.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OperationError {
    /// There is none.
    #[error("there is no operation {0}; it may have been done so long ago that it was forgotten")]
    NoOperation(OperationId),
    /// There is no such guild, as far as the caller may know.
    #[error("there is no guild {0}, or this key is not for it")]
    NoGuild(u64),
    /// There is no such dead letter.
    #[error("there is no dead letter {0}; it may have been discarded, or have been kept for its time")]
    NoLetter(OperationId),
    /// It is too late, or too early.
    #[error("operation {id} is {}, and so cannot be {asked}", state.name())]
    Unfit {
        /// Which.
        id: OperationId,
        /// What it is.
        state: OperationState,
        /// What should have become of it: `cancelled` or `retried`.
        asked: &'static str,
    },
    /// It is not done, but calls of it were sent before.
    #[error("operation {id} is {} and cannot be cancelled: {}; it continues by itself", state.name(), done_so_far(progress))]
    Tried {
        /// Which.
        id: OperationId,
        /// What it is.
        state: OperationState,
        /// What is known to be done of it.
        progress: Progress,
    },
    /// Another operation does it again already.
    #[error("{id} is done again already{}; look at that one instead", by.map_or_else(String::new, |by| format!(", as operation {by}")))]
    AlreadyRedriven {
        /// What should have been done again.
        id: OperationId,
        /// What does it.
        by: Option<OperationId>,
    },
    /// The caller's key does not allow what the operation does.
    #[error("operation {id} {lack}")]
    Forbidden {
        /// Which.
        id: OperationId,
        /// What the key lacks.
        lack: String,
    },
    /// The operation names something that the caller may not name.
    #[error("operation {id} cannot be done again: {why}")]
    Elsewhere {
        /// Which.
        id: OperationId,
        /// What it names.
        why: String,
    },
    /// It responds to an interaction that was not received, or has expired.
    #[error("operation {0} responds to {NOT_RECEIVED}")]
    NotReceived(OperationId),
    /// It cannot be accepted again.
    #[error(transparent)]
    Submit(#[from] SubmitError),
}

/// What an operation that was tried has done, for people.
fn done_so_far(progress: &Progress) -> String {
    if progress.is_empty() {
        return "a call of it was sent before and may have had its effect".to_owned();
    }
    format!("it already {progress}")
}

impl From<StoreError> for OperationError {
    fn from(error: StoreError) -> Self {
        Self::Submit(error.into())
    }
}

/// The one way in for operations. Share it as an `Arc`.
pub struct OperationService {
    store: TenantStore,
    hears: Arc<dyn QueueNotifier>,
    cache: Option<Arc<dyn IdempotencyCache>>,
    roles: Option<Arc<RoleCache>>,
    config: SubmissionConfig,
    now: TimeSource,
    names: Mutex<IdGenerator>,
}

impl OperationService {
    /// A service in front of this store.
    #[must_use]
    pub fn new(
        store: Arc<dyn OperationStore>,
        hears: Arc<dyn QueueNotifier>,
        cache: Option<Arc<dyn IdempotencyCache>>,
        config: SubmissionConfig,
        now: TimeSource,
    ) -> Self {
        Self { store: TenantStore::new(store), hears, cache, roles: None, config, now, names: Mutex::default() }
    }

    /// Refuses operations that assign a role which is known to be dangerous, unless their key has the scope for it.
    #[must_use]
    pub fn with_roles(self, roles: Arc<RoleCache>) -> Self {
        Self { roles: Some(roles), ..self }
    }

    /// Its bounds.
    #[must_use]
    pub fn config(&self) -> &SubmissionConfig {
        &self.config
    }

    fn now(&self) -> UnixMs {
        (self.now)()
    }

    fn name(&self, now: UnixMs) -> OperationId {
        // Nobody panics while holding it.
        self.names.lock().unwrap_or_else(PoisonError::into_inner).next(now, fastrand::u128(..))
    }

    /// Waits for the store, but not for ever.
    async fn ask<T, E: From<StoreError>>(&self, call: impl Future<Output = Result<T, E>>) -> Result<T, E> {
        match tokio::time::timeout(self.config.store_within, call).await {
            Ok(answer) => answer,
            Err(_) => {
                let waited = self.config.store_within.as_millis();
                Err(StoreError::Unavailable(format!("it did not answer within {waited} ms")).into())
            }
        }
    }
}

impl fmt::Debug for OperationService {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OperationService").field("config", &self.config).finish_non_exhaustive()
    }
}
