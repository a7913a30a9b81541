//! The way from the shards to the router: bounded by events and by bytes that nobody has confirmed yet.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::sync::{Notify, mpsc, oneshot};

use super::event_batch::EventBatch;

/// What a shard tells.
#[derive(Debug)]
pub enum ShardMessage {
    /// It has a new session: Discord has forgotten the one before, if there was one.
    Began {
        /// Which shard.
        shard: u32,
        /// What Discord calls the session.
        session: Arc<str>,
        /// Where it can be resumed.
        resume_url: Option<String>,
    },
    /// Events of one session, in the order in which they came, and without READY and RESUMED.
    Events(EventBatch),
    /// The session's own dispatches (READY, RESUMED), which nobody handles: the session counts them.
    Passed {
        /// Which shard.
        shard: u32,
        /// Of which session.
        session: Arc<str>,
        /// Its number there.
        seq: u64,
    },
    /// A shard has ended, and this is the last of it.
    Ended {
        /// Who waits until all that it has told was heard.
        heard: oneshot::Sender<()>,
    },
}

/// How much of a shard may be on its way at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlowLimit {
    /// Events.
    pub events: usize,
    /// Bytes of their text.
    pub bytes: usize,
}

/// How much of a shard is on its way, and how much may be. It is taken by the shard and given back by whoever confirms.
#[derive(Debug)]
pub struct Credit {
    most: FlowLimit,
    events: AtomicUsize,
    bytes: AtomicUsize,
    /// What the shard has read and holds back, for want of room or until its next turn.
    held: AtomicUsize,
    freed: Notify,
}

impl Credit {
    /// All of it is free.
    #[must_use]
    pub fn new(most: FlowLimit) -> Arc<Self> {
        let (events, bytes, held) = (AtomicUsize::new(0), AtomicUsize::new(0), AtomicUsize::new(0));
        Arc::new(Self { most, events, bytes, held, freed: Notify::new() })
    }

    /// Whether there is room for more. One that is larger than all there is goes when nothing else is under way.
    #[must_use]
    pub fn has_room(&self) -> bool {
        self.events.load(Ordering::Acquire) < self.most.events && self.bytes.load(Ordering::Acquire) < self.most.bytes
    }

    /// Whether half of it is free.
    #[must_use]
    pub fn has_eased(&self) -> bool {
        let used = self.used();
        used.events <= self.most.events / 2 && used.bytes <= self.most.bytes / 2
    }

    /// Waits until half of it is free.
    pub async fn ease(&self) {
        while !self.has_eased() {
            self.freed.notified().await;
        }
    }

    /// So much is on its way. Only the shard itself takes, so that what had room keeps it.
    pub fn take(&self, events: usize, bytes: usize) {
        self.events.fetch_add(events, Ordering::AcqRel);
        self.bytes.fetch_add(bytes, Ordering::AcqRel);
    }

    /// So much has arrived.
    pub fn give_back(&self, events: usize, bytes: usize) {
        self.events.fetch_sub(events, Ordering::AcqRel);
        self.bytes.fetch_sub(bytes, Ordering::AcqRel);
        self.freed.notify_one();
    }

    /// Waits until there is room.
    pub async fn room(&self) {
        while !self.has_room() {
            self.freed.notified().await;
        }
    }

    /// The shard says how many events it has read and not told.
    pub fn hold(&self, events: usize) {
        self.held.store(events, Ordering::Relaxed);
    }

    /// How many events the shard has read and not told, as it last said.
    #[must_use]
    pub fn held(&self) -> usize {
        self.held.load(Ordering::Relaxed)
    }

    /// How many events, and how many bytes, are on their way.
    #[must_use]
    pub fn used(&self) -> FlowLimit {
        FlowLimit { events: self.events.load(Ordering::Acquire), bytes: self.bytes.load(Ordering::Acquire) }
    }
}

/// One shard's end of the way.
#[derive(Clone, Debug)]
pub struct ShardSender {
    told: mpsc::Sender<ShardMessage>,
    credit: Arc<Credit>,
}

impl ShardSender {
    /// A way that ends at this receiver. The receiver's bound is one more for all shards together; credit keeps it from
    /// being met.
    #[must_use]
    pub fn new(told: mpsc::Sender<ShardMessage>, credit: Arc<Credit>) -> Self {
        Self { told, credit }
    }

    /// What may be on its way.
    #[must_use]
    pub fn credit(&self) -> &Arc<Credit> {
        &self.credit
    }

    /// Tells it, if there is room; else it is given back, to be told later.
    ///
    /// # Errors
    ///
    /// When there is no room, or nobody listens any more.
    pub fn tell(&self, told: ShardMessage) -> Result<(), ShardMessage> {
        let (events, bytes) = match &told {
            ShardMessage::Events(events) => (events.len(), events.iter().map(|event| event.text.bytes()).sum()),
            ShardMessage::Began { .. } | ShardMessage::Passed { .. } | ShardMessage::Ended { .. } => (0, 0),
        };
        // Before the router can give it back.
        self.credit.take(events, bytes);
        self.told.try_send(told).map_err(|refused| {
            self.credit.give_back(events, bytes);
            refused.into_inner()
        })
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn who_has_used_up_either_kind_waits_until_some_is_given_back() {
        for (events, bytes) in [(2, 1), (1, 10)] {
            let credit = Credit::new(FlowLimit { events: 2, bytes: 10 });
            credit.room().await;
            credit.take(events, bytes);
            assert!(!credit.has_room());
            let waits = tokio::time::timeout(Duration::from_secs(1), credit.room()).await;
            assert!(waits.is_err());
            credit.give_back(events, bytes);
            credit.room().await;
            assert_eq!(credit.used(), FlowLimit { events: 0, bytes: 0 });
        }
    }
}
