//! Subscriptions to Redis channels that outlive single connections.

use std::{
    collections::HashMap,
    fmt,
    sync::{Mutex, MutexGuard, PoisonError},
};

use bytes::Bytes;
use tokio::sync::broadcast::{self, error::RecvError};

use super::RedisClient;

/// How many events a listener may fall behind before it must reload its state.
const BACKLOG: usize = 256;

/// An event of a subscription.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SubscriptionEvent {
    /// Messages arrive from now on. Some may have been missed before: reload the state that they describe.
    Subscribed,
    /// A message was published.
    Message(Bytes),
    /// Messages no longer arrive, until [`SubscriptionEvent::Subscribed`].
    Lost,
}

/// A subscription to a channel, across all connections.
pub struct Subscription {
    events: broadcast::Receiver<SubscriptionEvent>,
    /// Keeps the connection open.
    _redis: RedisClient,
}

impl Subscription {
    pub(super) fn new(events: broadcast::Receiver<SubscriptionEvent>, redis: RedisClient) -> Self {
        Self { events, _redis: redis }
    }

    /// Waits for the next event. A listener that has fallen too far behind gets [`SubscriptionEvent::Subscribed`].
    pub async fn next(&mut self) -> SubscriptionEvent {
        match self.events.recv().await {
            Ok(event) => event,
            Err(RecvError::Lagged(_)) => SubscriptionEvent::Subscribed,
            Err(RecvError::Closed) => unreachable!("invariant: a channel is retained while it has listeners"),
        }
    }
}

impl fmt::Debug for Subscription {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Subscription").finish_non_exhaustive()
    }
}

/// Forwards the messages of one connection to the listeners.
#[derive(Default)]
pub(super) struct SubscriptionRouter {
    inner: Mutex<RouterState>,
}

#[derive(Default)]
struct RouterState {
    /// The current connection. Late pushes of others are dropped.
    generation: Option<u64>,
    channels: HashMap<String, Channel>,
}

struct Channel {
    listeners: broadcast::Sender<SubscriptionEvent>,
    /// Whether the subscription must still be requested from the server.
    needs_subscribe: bool,
    /// Whether listeners were last notified that messages arrive.
    subscribed: bool,
}

impl RouterState {
    fn clear_connection(&mut self) {
        self.generation = None;
        for channel in self.channels.values_mut() {
            if std::mem::take(&mut channel.subscribed) {
                // There may be no listener any more, which is fine.
                drop(channel.listeners.send(SubscriptionEvent::Lost));
            }
        }
    }
}

impl SubscriptionRouter {
    pub(super) fn listen(&self, channel: &str) -> broadcast::Receiver<SubscriptionEvent> {
        let mut inner = self.inner();
        let entry = inner.channels.entry(channel.to_owned()).or_insert_with(|| Channel {
            listeners: broadcast::Sender::new(BACKLOG),
            needs_subscribe: true,
            subscribed: false,
        });
        // Also when others listen already: the new listener must receive `Subscribed`, too.
        entry.needs_subscribe = true;
        entry.listeners.subscribe()
    }

    /// A connection starts. Channels without listeners are removed.
    pub(super) fn start_connection(&self, generation: u64) {
        let mut inner = self.inner();
        inner.clear_connection();
        inner.generation = Some(generation);
        inner.channels.retain(|_, channel| channel.listeners.receiver_count() > 0);
        inner.channels.values_mut().for_each(|channel| channel.needs_subscribe = true);
    }

    /// Returns the channels to subscribe to, each once.
    pub(super) fn take_pending(&self) -> Vec<String> {
        let mut inner = self.inner();
        let pending = inner.channels.iter_mut().filter(|(_, channel)| channel.needs_subscribe);
        pending
            .map(|(name, channel)| {
                channel.needs_subscribe = false;
                name.clone()
            })
            .collect()
    }

    pub(super) fn subscribed(&self, generation: u64, channel: &[u8]) {
        self.notify(generation, channel, |channel| {
            channel.subscribed = true;
            SubscriptionEvent::Subscribed
        });
    }

    pub(super) fn message(&self, generation: u64, channel: &[u8], message: &[u8]) {
        self.notify(generation, channel, |_| SubscriptionEvent::Message(Bytes::copy_from_slice(message)));
    }

    /// A connection has ended.
    pub(super) fn end_connection(&self, generation: u64) {
        let mut inner = self.inner();
        if inner.generation == Some(generation) {
            inner.clear_connection();
        }
    }

    fn notify(&self, generation: u64, channel: &[u8], event: impl FnOnce(&mut Channel) -> SubscriptionEvent) {
        let mut inner = self.inner();
        if inner.generation != Some(generation) {
            return;
        }
        let Some(channel) = std::str::from_utf8(channel).ok().and_then(|name| inner.channels.get_mut(name)) else {
            return;
        };
        let event = event(channel);
        drop(channel.listeners.send(event));
    }

    fn inner(&self) -> MutexGuard<'_, RouterState> {
        // No code below panics in the middle of a change.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
