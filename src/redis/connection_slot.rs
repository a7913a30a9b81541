//! The connection there is, or why there is none: what callers look at and whoever keeps it up waits on.

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

/// How things stand with Redis.
enum SlotState {
    /// A connection is being made; it is the first, or the one before has just been lost. Worth waiting for.
    Connecting {
        /// What ended the one before.
        after: Option<Arc<RedisFailure>>,
    },
    /// There is a connection.
    Up(Arc<RedisConnection>),
    /// The last try to connect has failed. More are made, but nobody should wait for them.
    Down(RedisErrorReason),
}

/// Shared by callers, the connection's own task and whoever keeps it up.
pub(super) struct ConnectionSlot {
    state: watch::Sender<SlotState>,
    pub(super) router: SubscriptionRouter,
    /// Rung when a channel is to be asked for.
    pub(super) wanted: Notify,
    /// The newest connection that the other side has closed.
    closed: AtomicU64,
}

impl ConnectionSlot {
    pub(super) fn new() -> Self {
        Self {
            state: watch::Sender::new(SlotState::Connecting { after: None }),
            router: SubscriptionRouter::default(),
            wanted: Notify::new(),
            closed: AtomicU64::new(0),
        }
    }

    /// The connection. Waits while one is being made; fails at once when that is known to be hopeless.
    pub(super) async fn connection(&self) -> Result<Arc<RedisConnection>, RedisErrorReason> {
        let mut state = self.state.subscribe();
        let settled = state.wait_for(|state| !matches!(state, SlotState::Connecting { .. })).await;
        match &*settled.expect("invariant: the link owns the sender") {
            SlotState::Up(connection) => Ok(Arc::clone(connection)),
            SlotState::Down(reason) => Err(*reason),
            SlotState::Connecting { .. } => unreachable!("invariant: that is not what was waited for"),
        }
    }

    /// Waits until there is a connection.
    pub(super) async fn up(&self) {
        let mut state = self.state.subscribe();
        drop(state.wait_for(|state| matches!(state, SlotState::Up(_))).await);
    }

    /// Waits until this connection is given up, and says why.
    pub(super) async fn end_of(&self, generation: u64) -> Arc<RedisFailure> {
        let mut state = self.state.subscribe();
        let ended = state.wait_for(|state| !matches!(state, SlotState::Up(up) if up.generation == generation)).await;
        match &*ended.expect("invariant: the link owns the sender") {
            SlotState::Connecting { after: Some(failure) } => Arc::clone(failure),
            SlotState::Connecting { after: None } | SlotState::Up(_) | SlotState::Down(_) => {
                unreachable!("invariant: a connection ends by being lost")
            }
        }
    }

    pub(super) fn set_up(&self, connection: Arc<RedisConnection>) {
        let generation = connection.generation;
        self.state.send_replace(SlotState::Up(connection));
        // It may have ended before anybody could lose it.
        if self.closed.load(Ordering::SeqCst) == generation {
            self.close(generation);
        }
    }

    fn close(&self, generation: u64) {
        self.closed.store(generation, Ordering::SeqCst);
        self.lose(generation, RedisFailure::new(RedisErrorReason::Disconnected, "the server closed the connection"));
    }

    pub(super) fn set_down(&self, why: RedisErrorReason) {
        self.state.send_replace(SlotState::Down(why));
    }

    /// Gives a connection up, unless that has happened before: nobody gets it from now on, and a new one is made.
    pub(super) fn lose(&self, generation: u64, failure: RedisFailure) {
        let lost = self.state.send_if_modified(|state| {
            let current = matches!(state, SlotState::Up(up) if up.generation == generation);
            if current {
                *state = SlotState::Connecting { after: Some(Arc::new(failure)) };
            }
            current
        });
        if lost {
            self.router.end(generation);
        }
    }
}

/// Where a connection's pushes go. It does not keep the link alive, since the link keeps the connection.
pub(super) fn pushes(
    link: &Arc<ConnectionSlot>,
    generation: u64,
) -> impl Fn(PushInfo) -> Result<(), SlotDropped> + Send + Sync + 'static {
    let link: Weak<ConnectionSlot> = Arc::downgrade(link);
    move |push: PushInfo| {
        let link = link.upgrade().ok_or(SlotDropped)?;
        match (push.kind, push.data.as_slice()) {
            (PushKind::Subscribe, [Value::BulkString(channel), ..]) => link.router.subscribed(generation, channel),
            (PushKind::Message, [Value::BulkString(channel), Value::BulkString(message)]) => {
                link.router.message(generation, channel, message);
            }
            (PushKind::Disconnection, _) => link.close(generation),
            _ => {}
        }
        Ok(())
    }
}

/// Nobody is interested any more.
pub(super) struct SlotDropped;
