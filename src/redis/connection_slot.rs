//! Holds the current connection, or why there is none. Callers read it, and the reconnect task waits on it.

use std::sync::{
    Arc, Weak,
    atomic::{AtomicU64, Ordering},
};

use ::redis::{PushInfo, PushKind, Value};
use tokio::sync::{Notify, watch};

use super::{
    connection::RedisConnection,
    error::{RedisErrorReason, RedisFailure},
    subscription::SubscriptionRouter,
};

/// State of the connection.
enum SlotState {
    /// A connection is being made: the first one, or a replacement for one that has just been lost. Callers wait for
    /// it.
    Connecting {
        /// Why the previous one ended.
        after: Option<Arc<RedisFailure>>,
    },
    /// Connected.
    Up(Arc<RedisConnection>),
    /// The last attempt to connect has failed. Attempts continue, but callers do not wait for them.
    Down(RedisErrorReason),
}

/// Shared by callers, the connection's own task and the reconnect task.
pub(super) struct ConnectionSlot {
    state: watch::Sender<SlotState>,
    pub(super) router: SubscriptionRouter,
    /// Notified when a channel must be subscribed to.
    pub(super) subscribe_requested: Notify,
    /// Generation of the newest connection that the server has closed.
    closed: AtomicU64,
}

impl ConnectionSlot {
    pub(super) fn new() -> Self {
        Self {
            state: watch::Sender::new(SlotState::Connecting { after: None }),
            router: SubscriptionRouter::default(),
            subscribe_requested: Notify::new(),
            closed: AtomicU64::new(0),
        }
    }

    /// Returns the connection. Waits while one is being made; fails at once after a failed attempt.
    pub(super) async fn connection(&self) -> Result<Arc<RedisConnection>, RedisErrorReason> {
        let mut state = self.state.subscribe();
        let ready = state.wait_for(|state| !matches!(state, SlotState::Connecting { .. })).await;
        match &*ready.expect("invariant: the slot owns the sender") {
            SlotState::Up(connection) => Ok(Arc::clone(connection)),
            SlotState::Down(reason) => Err(*reason),
            SlotState::Connecting { .. } => unreachable!("invariant: excluded by the condition above"),
        }
    }

    /// Waits until there is a connection.
    pub(super) async fn wait_until_up(&self) {
        let mut state = self.state.subscribe();
        drop(state.wait_for(|state| matches!(state, SlotState::Up(_))).await);
    }

    /// Waits until this connection is dropped, and returns the reason.
    pub(super) async fn wait_for_end(&self, generation: u64) -> Arc<RedisFailure> {
        let mut state = self.state.subscribe();
        let ended = state.wait_for(|state| !matches!(state, SlotState::Up(up) if up.generation == generation)).await;
        match &*ended.expect("invariant: the slot owns the sender") {
            SlotState::Connecting { after: Some(failure) } => Arc::clone(failure),
            SlotState::Connecting { after: None } | SlotState::Up(_) | SlotState::Down(_) => {
                unreachable!("invariant: a connection ends only by being lost")
            }
        }
    }

    pub(super) fn set_up(&self, connection: Arc<RedisConnection>) {
        let generation = connection.generation;
        self.state.send_replace(SlotState::Up(connection));
        // It may have been closed before it was stored here.
        if self.closed.load(Ordering::SeqCst) == generation {
            self.close(generation);
        }
    }

    fn close(&self, generation: u64) {
        self.closed.store(generation, Ordering::SeqCst);
        self.drop_connection(
            generation,
            RedisFailure::new(RedisErrorReason::Disconnected, "the server closed the connection"),
        );
    }

    pub(super) fn set_down(&self, reason: RedisErrorReason) {
        self.state.send_replace(SlotState::Down(reason));
    }

    /// Drops a connection, unless that has happened already: callers no longer get it, and a new one is made.
    pub(super) fn drop_connection(&self, generation: u64, failure: RedisFailure) {
        let lost = self.state.send_if_modified(|state| {
            let current = matches!(state, SlotState::Up(up) if up.generation == generation);
            if current {
                *state = SlotState::Connecting { after: Some(Arc::new(failure)) };
            }
            current
        });
        if lost {
            self.router.end_connection(generation);
        }
    }
}

/// Handles the pushes of a connection. It holds only a weak reference to the slot, because the slot owns the
/// connection.
pub(super) fn push_handler(
    slot: &Arc<ConnectionSlot>,
    generation: u64,
) -> impl Fn(PushInfo) -> Result<(), SlotDropped> + Send + Sync + 'static {
    let slot: Weak<ConnectionSlot> = Arc::downgrade(slot);
    move |push: PushInfo| {
        let slot = slot.upgrade().ok_or(SlotDropped)?;
        match (push.kind, push.data.as_slice()) {
            (PushKind::Subscribe, [Value::BulkString(channel), ..]) => slot.router.subscribed(generation, channel),
            (PushKind::Message, [Value::BulkString(channel), Value::BulkString(message)]) => {
                slot.router.message(generation, channel, message);
            }
            (PushKind::Disconnection, _) => slot.close(generation),
            _ => {}
        }
        Ok(())
    }
}

/// The slot is gone.
pub(super) struct SlotDropped;
