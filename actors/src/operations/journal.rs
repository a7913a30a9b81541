//! What an executor tells the guild of an operation while it does it: that a call is about to be sent, or has to wait.
//!
//! ```text
//!  executor ──Request { before_send }──▶ gate ──permit granted──▶ Journal::commit ──▶ guild ──▶ store
//!                                          ▲                                            │
//!                                          └────────── send, or give the permit back ◀──┘
//! ```

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use guildhall_core::operation::ProgressStep;
use tokio::sync::{mpsc, oneshot};

use crate::rest::{BeforeSend, CommitFuture, CommitHook, NotSent};

/// Requests of one execution that wait for its guild at most. There is one call at a time.
const WAITING: usize = 4;

/// What is written about an operation while it is executed. Cheap to clone.
#[derive(Clone, Default)]
pub struct Journal(Option<Arc<Writer>>);

struct Writer {
    requests: mpsc::Sender<JournalRequest>,
    /// Steps that the guild has not taken yet. As many as an operation has, at most.
    steps: Mutex<Vec<ProgressStep>>,
}

/// What an executor asks of the operation's guild.
#[derive(Debug)]
pub(super) enum JournalRequest {
    /// The execution waits for something before its next call with an effect. What is not stored yet should be.
    Wait,
    /// The next call with an effect has its permit. It is sent if this is answered with `Ok`.
    Commit(oneshot::Sender<Result<(), NotSent>>),
}

impl Journal {
    /// A journal in which nothing is written: every call may be sent.
    #[must_use]
    pub const fn none() -> Self {
        Self(None)
    }

    /// A journal, and what is asked through it.
    pub(super) fn open() -> (Self, mpsc::Receiver<JournalRequest>) {
        let (requests, receiver) = mpsc::channel(WAITING);
        (Self(Some(Arc::new(Writer { requests, steps: Mutex::default() }))), receiver)
    }

    /// What a call with an effect carries: it is committed before it is sent.
    #[must_use]
    pub fn hook(&self) -> CommitHook {
        match &self.0 {
            Some(writer) => CommitHook::new(Arc::clone(writer) as Arc<dyn BeforeSend>),
            None => CommitHook::none(),
        }
    }

    /// A call with an effect was answered, and the operation makes more calls.
    pub fn step(&self, step: ProgressStep) {
        if let Some(writer) = &self.0 {
            writer.steps.lock().unwrap_or_else(PoisonError::into_inner).push(step);
        }
    }

    /// The steps since this was last asked.
    pub(super) fn take_steps(&self) -> Vec<ProgressStep> {
        let take =
            |writer: &Arc<Writer>| std::mem::take(&mut *writer.steps.lock().unwrap_or_else(PoisonError::into_inner));
        self.0.as_ref().map(take).unwrap_or_default()
    }

    /// A call without an effect is about to be made: what is not stored yet need not wait for its answer.
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
        // If there is no room, what waits there is handled the same way.
        let _ = self.requests.try_send(JournalRequest::Wait);
    }

    fn commit(&self) -> CommitFuture<'_> {
        Box::pin(async move {
            let (reply, committed) = oneshot::channel();
            let asked = self.requests.send(JournalRequest::Commit(reply)).await;
            match asked {
                Ok(()) => committed.await.unwrap_or_else(|_| Err(withdrawn())),
                Err(_) => Err(withdrawn()),
            }
        })
    }
}

/// Why a call is not sent whose operation is not to be done now.
pub(super) fn withdrawn() -> NotSent {
    NotSent {
        retry_after: None,
        why: "the operation was cancelled, paused or handed over before the call was sent".into(),
        reason: "withdrawn",
    }
}
