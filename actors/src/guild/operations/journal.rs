//! Lets an executor notify the guild of its operation that a call is about to be sent, or has to wait.
//!
//! ```text
//!  executor ──Request { before_send }──▶ gate ──permit granted──▶ Journal::commit ──▶ guild ──▶ store
//!                                          ▲                                            │
//!                                          └────────── send, or release the permit ◀────┘
//! ```

use std::fmt;
use std::future::poll_fn;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Poll, Waker};

use guildhall_core::operation::ProgressStep;
use tokio::sync::oneshot;

use crate::gate::{BeforeSend, CommitFuture, CommitHook, NotSent};

/// Connects the execution of an operation to its guild. Cheap to clone.
#[derive(Clone, Default)]
pub struct Journal(Option<Arc<Writer>>);

#[derive(Default)]
struct Writer(Mutex<Written>);

/// What the guild has not taken yet. There is one call at a time, so one of each is enough.
#[derive(Default)]
struct Written {
    wait_requested: bool,
    commit: Option<oneshot::Sender<Result<(), NotSent>>>,
    /// At most as many as an operation has.
    steps: Vec<ProgressStep>,
    /// Waker of the guild while it waits for a request.
    waker: Option<Waker>,
    /// The guild takes no more requests.
    closed: bool,
}

impl Writer {
    fn written(&self) -> MutexGuard<'_, Written> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A request of an executor to the guild of the operation.
#[derive(Debug)]
pub(crate) enum JournalRequest {
    /// The execution waits for something before its next call with an effect. Unsaved updates should be saved.
    Wait,
    /// The next call with an effect has its permit. It is sent if the reply is `Ok`.
    Commit(oneshot::Sender<Result<(), NotSent>>),
}

/// The requests of one execution, for its guild. Once this is dropped, nothing more is sent.
pub(crate) struct JournalRequests(Arc<Writer>);

impl JournalRequests {
    /// The next request. A wait that was requested before a commit comes first.
    pub(crate) async fn next(&mut self) -> JournalRequest {
        poll_fn(|cx| {
            let mut written = self.0.written();
            if std::mem::take(&mut written.wait_requested) {
                return Poll::Ready(JournalRequest::Wait);
            }
            if let Some(reply) = written.commit.take() {
                return Poll::Ready(JournalRequest::Commit(reply));
            }
            if !written.waker.as_ref().is_some_and(|waker| waker.will_wake(cx.waker())) {
                written.waker = Some(cx.waker().clone());
            }
            Poll::Pending
        })
        .await
    }
}

impl Drop for JournalRequests {
    fn drop(&mut self) {
        let mut written = self.0.written();
        written.closed = true;
        // Makes a pending commit fail.
        drop(written.commit.take());
    }
}

impl Journal {
    /// A journal that records nothing: every call may be sent.
    #[must_use]
    pub const fn none() -> Self {
        Self(None)
    }

    /// Creates a journal, and the receiver of its requests.
    pub(crate) fn open() -> (Self, JournalRequests) {
        let writer = Arc::new(Writer::default());
        (Self(Some(Arc::clone(&writer))), JournalRequests(writer))
    }

    /// The hook for a call with an effect: it commits the call before it is sent.
    #[must_use]
    pub fn hook(&self) -> CommitHook {
        match &self.0 {
            Some(writer) => CommitHook::new(Arc::clone(writer) as Arc<dyn BeforeSend>),
            None => CommitHook::none(),
        }
    }

    /// Records that a call with an effect has its response, and the operation makes more calls.
    pub fn add_step(&self, step: ProgressStep) {
        if let Some(writer) = &self.0 {
            writer.written().steps.push(step);
        }
    }

    /// Takes the steps since the last call.
    pub(crate) fn take_steps(&self) -> Vec<ProgressStep> {
        self.0.as_ref().map(|writer| std::mem::take(&mut writer.written().steps)).unwrap_or_default()
    }

    /// A call without an effect is about to be sent: unsaved updates need not wait for its response.
    pub fn on_read(&self) {
        if let Some(writer) = &self.0 {
            writer.on_wait();
        }
    }
}

impl fmt::Debug for Journal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Journal").field(&self.0.is_some()).finish()
    }
}

impl BeforeSend for Writer {
    fn on_wait(&self) {
        let mut written = self.written();
        written.wait_requested = true;
        let waker = written.waker.take();
        drop(written);
        waker.into_iter().for_each(Waker::wake);
    }

    fn commit(&self) -> CommitFuture<'_> {
        Box::pin(async move {
            let (reply, committed) = oneshot::channel();
            {
                let mut written = self.written();
                if written.closed {
                    return Err(withdrawn());
                }
                written.commit = Some(reply);
                let waker = written.waker.take();
                drop(written);
                waker.into_iter().for_each(Waker::wake);
            }
            committed.await.unwrap_or_else(|_| Err(withdrawn()))
        })
    }
}

/// The error of a call whose operation must not run now.
pub(crate) fn withdrawn() -> NotSent {
    NotSent {
        retry_after: None,
        message: "the operation was cancelled, paused or handed over before the call was sent".into(),
        reason: "withdrawn",
        bucket: None,
    }
}
