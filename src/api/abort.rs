//! Aborting a connection.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::Context,
};

use futures_util::task::AtomicWaker;

/// A handle that aborts a connection while a response is being sent, whether the client reads or not.
#[derive(Clone, Debug, Default)]
pub(crate) struct ConnectionAbort(Arc<State>);

#[derive(Debug, Default)]
struct State {
    cut: AtomicBool,
    /// The task that waits for the client.
    waits: AtomicWaker,
}

impl ConnectionAbort {
    /// Closes the connection in both directions, whatever waits on it.
    pub(crate) fn abort(&self) {
        self.0.cut.store(true, Ordering::SeqCst);
        self.0.waits.wake();
    }

    /// Whether the connection was aborted. If not, the task is woken when it is.
    pub(crate) fn is_aborted(&self, cx: &Context<'_>) -> bool {
        self.0.waits.register(cx.waker());
        self.0.cut.load(Ordering::SeqCst)
    }
}
