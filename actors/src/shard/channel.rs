//! Channel from the shards to the router, bounded by unconfirmed events and bytes.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::sync::{Notify, mpsc, oneshot};

use super::event_batch::EventBatch;

/// Message from a shard to the router.
#[derive(Debug)]
pub enum ShardMessage {
    /// A new session. Discord has discarded the previous one, if there was one.
    SessionStarted {
        /// Number of the shard.
        shard: u32,
        /// Discord's id of the session.
        session: Arc<str>,
        /// URL at which the session can be resumed.
        resume_url: Option<String>,
    },
    /// Events of one session in the order of arrival, without READY and RESUMED.
    Events(EventBatch),
    /// A sequence number without an event to handle: a dispatch of the gateway itself (READY, RESUMED) or a shed event.
    Skipped {
        /// Number of the shard.
        shard: u32,
        /// Id of the session.
        session: Arc<str>,
        /// Its sequence number.
        seq: u64,
    },
    /// The last message of a shard that has ended.
    Ended {
        /// Completed when the router has received all messages of the shard.
        ack: oneshot::Sender<()>,
    },
}

/// Limit of the events of a shard that are in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlowLimit {
    /// Number of events.
    pub events: usize,
    /// Size of their text in bytes.
    pub bytes: usize,
}

/// How much of a shard is in flight, and how much may be. The shard takes credit; the router returns it on
/// confirmation.
#[derive(Debug)]
pub struct Credit {
    limit: FlowLimit,
    events: AtomicUsize,
    bytes: AtomicUsize,
    /// Events that the shard has read and holds back, for lack of credit or until its next turn.
    held: AtomicUsize,
    freed: Notify,
}

impl Credit {
    /// All credit is free.
    #[must_use]
    pub fn new(limit: FlowLimit) -> Arc<Self> {
        let (events, bytes, held) = (AtomicUsize::new(0), AtomicUsize::new(0), AtomicUsize::new(0));
        Arc::new(Self { limit, events, bytes, held, freed: Notify::new() })
    }

    /// Whether there is room for more. An event that is larger than the whole limit is sent when nothing else is in
    /// flight.
    #[must_use]
    pub fn has_room(&self) -> bool {
        self.events.load(Ordering::Acquire) < self.limit.events && self.bytes.load(Ordering::Acquire) < self.limit.bytes
    }

    /// Whether half of the credit is free.
    #[must_use]
    pub fn is_half_free(&self) -> bool {
        let used = self.used();
        used.events <= self.limit.events / 2 && used.bytes <= self.limit.bytes / 2
    }

    /// Waits until half of the credit is free.
    pub async fn wait_until_half_free(&self) {
        while !self.is_half_free() {
            self.freed.notified().await;
        }
    }

    /// Takes credit. Only the shard itself takes credit, so room that it has seen stays free.
    pub fn take(&self, events: usize, bytes: usize) {
        self.events.fetch_add(events, Ordering::AcqRel);
        self.bytes.fetch_add(bytes, Ordering::AcqRel);
    }

    /// Returns credit.
    pub fn release(&self, events: usize, bytes: usize) {
        self.events.fetch_sub(events, Ordering::AcqRel);
        self.bytes.fetch_sub(bytes, Ordering::AcqRel);
        self.freed.notify_one();
    }

    /// Waits until there is room.
    pub async fn wait_for_room(&self) {
        while !self.has_room() {
            self.freed.notified().await;
        }
    }

    /// Records how many events the shard has read and not sent.
    pub fn set_held(&self, events: usize) {
        self.held.store(events, Ordering::Relaxed);
    }

    /// How many events the shard has read and not sent, as last recorded.
    #[must_use]
    pub fn held(&self) -> usize {
        self.held.load(Ordering::Relaxed)
    }

    /// Number and bytes of the events in flight.
    #[must_use]
    pub fn used(&self) -> FlowLimit {
        FlowLimit { events: self.events.load(Ordering::Acquire), bytes: self.bytes.load(Ordering::Acquire) }
    }
}

/// The sending end of one shard.
#[derive(Clone, Debug)]
pub struct ShardSender {
    sender: mpsc::Sender<ShardMessage>,
    credit: Arc<Credit>,
}

impl ShardSender {
    /// Sends to this channel. The channel's capacity is a further bound for all shards together; credit prevents that
    /// it is reached.
    #[must_use]
    pub fn new(sender: mpsc::Sender<ShardMessage>, credit: Arc<Credit>) -> Self {
        Self { sender, credit }
    }

    /// Credit of the shard.
    #[must_use]
    pub fn credit(&self) -> &Arc<Credit> {
        &self.credit
    }

    /// Sends a message if the channel has room, and returns it otherwise, to be sent later.
    ///
    /// # Errors
    ///
    /// When the channel is full or closed.
    pub fn send(&self, message: ShardMessage) -> Result<(), ShardMessage> {
        let (events, bytes) = match &message {
            ShardMessage::Events(events) => (events.len(), events.iter().map(|event| event.text.bytes()).sum()),
            ShardMessage::SessionStarted { .. } | ShardMessage::Skipped { .. } | ShardMessage::Ended { .. } => (0, 0),
        };
        // Before the send: the router may return the credit at once.
        self.credit.take(events, bytes);
        self.sender.try_send(message).map_err(|error| {
            self.credit.release(events, bytes);
            error.into_inner()
        })
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn exhausted_credit_blocks_until_some_is_released() {
        for (events, bytes) in [(2, 1), (1, 10)] {
            let credit = Credit::new(FlowLimit { events: 2, bytes: 10 });
            credit.wait_for_room().await;
            credit.take(events, bytes);
            assert!(!credit.has_room());
            let result = tokio::time::timeout(Duration::from_secs(1), credit.wait_for_room()).await;
            assert!(result.is_err());
            credit.release(events, bytes);
            credit.wait_for_room().await;
            assert_eq!(credit.used(), FlowLimit { events: 0, bytes: 0 });
        }
    }
}
