//! The other end of a connection, to be let go of.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::Context,
};

use futures_util::task::AtomicWaker;

/// A connection that can be cut from anywhere while an answer is on its way, whether its other end reads or not.
#[derive(Clone, Debug, Default)]
pub(super) struct ConnectionAbort(Arc<State>);

#[derive(Debug, Default)]
struct State {
    cut: AtomicBool,
    /// Whoever waits for the other end.
    waits: AtomicWaker,
}

impl ConnectionAbort {
    /// Ends it in both directions, whatever waits on it.
    pub(super) fn cut(&self) {
        self.0.cut.store(true, Ordering::SeqCst);
        self.0.waits.wake();
    }

    /// Whether it was cut. If not, whoever asks is woken when it is.
    pub(super) fn is_cut(&self, cx: &Context<'_>) -> bool {
        self.0.waits.register(cx.waker());
        self.0.cut.load(Ordering::SeqCst)
    }
}
