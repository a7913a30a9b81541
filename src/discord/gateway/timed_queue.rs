//! When a shard was let identify: from then on its READY is waited for, and not before.

use std::sync::{Arc, Mutex, PoisonError};

use guildhall_actors::supervision::{Part, spawn_finite};
use tokio::{sync::oneshot, time::Instant};
use twilight_gateway::queue::Queue;

/// The queue of a shard, which remembers when it was the shard's turn. Clones remember together.
#[derive(Clone, Debug)]
pub(super) struct TimedQueue<Q> {
    queue: Q,
    came: Arc<Mutex<Option<Instant>>>,
}

impl<Q> TimedQueue<Q> {
    pub(super) fn new(queue: Q) -> Self {
        Self { queue, came: Arc::default() }
    }

    /// When it came for the last time that was asked for; nothing while it is waited for.
    pub(super) fn came(&self) -> Option<Instant> {
        *self.came.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<Q: Queue> Queue for TimedQueue<Q> {
    fn enqueue(&self, shard: u32) -> oneshot::Receiver<()> {
        let set = |came: &Mutex<Option<Instant>>, to| *came.lock().unwrap_or_else(PoisonError::into_inner) = to;
        set(&self.came, None);
        let (mut go, waits) = oneshot::channel();
        let (asked, came) = (self.queue.enqueue(shard), Arc::clone(&self.came));
        // If it broke, the shard would wait for ever.
        spawn_finite(Part::Identify, async move {
            tokio::select! {
                biased;
                // It has lost its interest, and so has the queue when it is told.
                () = go.closed() => {}
                allowed = asked => if allowed.is_ok() {
                    set(&came, Some(Instant::now()));
                    let _ = go.send(());
                },
            }
        });
        waits
    }
}

#[cfg(test)]
mod tests {
    use twilight_gateway::queue::InMemoryQueue;

    use super::*;

    #[tokio::test]
    async fn a_turn_is_remembered_until_the_next_is_asked_for() {
        let turn = TimedQueue::new(InMemoryQueue::new(1, 10, std::time::Duration::from_secs(60), 10));
        assert_eq!(turn.came(), None);
        turn.enqueue(0).await.unwrap();
        assert!(turn.came().is_some());
        let waits = turn.enqueue(0);
        assert_eq!(turn.came(), None);
        drop(waits);
    }
}
