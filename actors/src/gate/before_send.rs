//! What a caller does between the grant of a call's permit and the send.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use super::NotSent;

/// A commit in progress.
pub type CommitFuture<'a> = Pin<Box<dyn Future<Output = Result<(), NotSent>> + Send + 'a>>;

/// Makes durable that a call is about to be sent, after its permit is granted and not before: after a crash there is no
/// need to wait for an effect of a call that only waited for its permit.
pub trait BeforeSend: Send + Sync {
    /// The permit cannot be granted immediately: the call waits. Must return quickly.
    fn on_wait(&self);

    /// The permit is granted. The call is sent only if this succeeds; otherwise the permit is returned and nothing is
    /// sent. Called again if the call had to wait for another permit after the first commit; then it succeeds without a
    /// write unless something has to be written.
    fn commit(&self) -> CommitFuture<'_>;
}

/// A call's [`BeforeSend`], if it has one.
#[derive(Clone, Default)]
pub struct CommitHook(Option<Arc<dyn BeforeSend>>);

impl CommitHook {
    /// No commit before the send.
    #[must_use]
    pub const fn none() -> Self {
        Self(None)
    }

    /// Commits with this.
    #[must_use]
    pub fn new(hook: Arc<dyn BeforeSend>) -> Self {
        Self(Some(hook))
    }

    pub(crate) fn get(&self) -> Option<&Arc<dyn BeforeSend>> {
        self.0.as_ref()
    }

    pub(crate) fn on_wait(&self) {
        if let Some(hook) = &self.0 {
            hook.on_wait();
        }
    }
}

impl fmt::Debug for CommitHook {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("CommitHook").field(&self.0.is_some()).finish()
    }
}
