//! What is checked just before a call is sent, however long it has waited for its permit: whether its sender still owns
//! the queue of the guild, and whether the caller repeats a call that the bot may not make.

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use guildhall_actors::clock::Clock;
use guildhall_actors::gate::{BeforeSend, CommitFuture, NotSent};
use guildhall_core::invalid::{ForbiddenStorms, StormConfig, StormKey, StormRefusal};
use guildhall_core::response::ResponseClass;
use tokio::time::timeout;

use super::headers::Fence;
use crate::store::Store;

/// How long the store may take to return a fence.
const FENCE_TIMEOUT: Duration = Duration::from_secs(3);

/// Storms of 403, on the clock of the process.
#[derive(Debug)]
pub(super) struct Storms {
    clock: Clock,
    state: Mutex<ForbiddenStorms>,
}

impl Storms {
    pub(super) fn new() -> Self {
        Self { clock: Clock::start(), state: Mutex::new(ForbiddenStorms::new(StormConfig::default())) }
    }

    /// Whether the caller has received a 403 for this before, so that its calls have to be admitted.
    pub(super) fn is_watched(&self, key: &StormKey) -> bool {
        self.state().is_watched(key)
    }

    /// Refuses a call of a storm before it waits for anything.
    pub(super) fn check(&self, key: &StormKey) -> Result<(), NotSent> {
        self.state().check(key, self.clock.now()).map_err(|refused| self.refusal(refused))
    }

    fn admit(&self, key: &StormKey) -> Result<(), NotSent> {
        let admitted = self.state().admit(key, self.clock.now());
        admitted.map_err(|refused| self.refusal(refused))
    }

    /// Discord has answered a call.
    pub(super) fn on_response(&self, key: &StormKey, class: ResponseClass, code: Option<u32>) {
        match class {
            ResponseClass::Forbidden => self.state().on_forbidden(key, code, self.clock.now()),
            ResponseClass::Success => self.state().on_success(key),
            ResponseClass::RateLimited { .. }
            | ResponseClass::Unauthorized
            | ResponseClass::InteractionEnded
            | ResponseClass::NotFound
            | ResponseClass::WebhookGone
            | ResponseClass::Rejected
            | ResponseClass::ServerError
            | ResponseClass::Blocked { .. } => {}
        }
    }

    /// Discord's error code of the last 403.
    pub(super) fn code(&self, key: &StormKey) -> Option<u32> {
        self.state().code(key)
    }

    fn refusal(&self, StormRefusal { until, .. }: StormRefusal) -> NotSent {
        NotSent {
            retry_after: Some(self.clock.until(until)),
            message: "this call was forbidden repeatedly".to_owned(),
            reason: FORBIDDEN_STORM,
            bucket: None,
        }
    }

    fn state(&self) -> MutexGuard<'_, ForbiddenStorms> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Reason of a refusal in a storm.
pub(super) const FORBIDDEN_STORM: &str = "forbidden_storm";

/// The checks of one call.
pub(super) struct SendChecks {
    pub(super) storms: Arc<Storms>,
    pub(super) key: StormKey,
    /// The queue of which the sender must be the owner, and the store that knows.
    pub(super) fence: Option<(Fence, Store)>,
}

impl BeforeSend for SendChecks {
    fn on_wait(&self) {}

    fn commit(&self) -> CommitFuture<'_> {
        Box::pin(async move {
            if let Some((fence, store)) = &self.fence {
                check_fence(*fence, store).await?;
            }
            self.storms.admit(&self.key)
        })
    }
}

/// Whether the fence of the queue is still the one that the sender has.
pub(super) async fn check_fence(fence: Fence, store: &Store) -> Result<(), NotSent> {
    let not_sent = |reason, message: String, retry_after| NotSent { retry_after, message, reason, bucket: None };
    match timeout(FENCE_TIMEOUT, store.queue_fence(fence.guild)).await {
        Ok(Ok(Some(current))) if current == fence.number => Ok(()),
        Ok(Ok(_)) => {
            let message = "another process owns the queue of this guild since; claim it again".to_owned();
            Err(not_sent("fence_stale", message, None))
        }
        Ok(Err(error)) => {
            Err(not_sent("fence_unknown", format!("the store cannot be read: {error}"), Some(Duration::from_secs(1))))
        }
        Err(_) => {
            let message = "the store did not return the fence in time".to_owned();
            Err(not_sent("fence_unknown", message, Some(Duration::from_secs(1))))
        }
    }
}
