//! Records when a shard was permitted to identify. The timeout for READY starts then, not before.

use std::sync::{Arc, Mutex, PoisonError};

use guildhall_actors::supervision::{Part, spawn_finite};
use tokio::{sync::oneshot, time::Instant};
use twilight_gateway::queue::Queue;

/// The identify queue of a shard, which records when it granted the last request. Clones share the record.
#[derive(Clone, Debug)]
pub(super) struct TimedQueue<Q> {
    queue: Q,
    came: Arc<Mutex<Option<Instant>>>,
}

impl<Q> TimedQueue<Q> {
    pub(super) fn new(queue: Q) -> Self {
        Self { queue, came: Arc::default() }
    }

    /// When the last request was granted; `None` while it is pending.
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
        // If this task failed, the shard would wait forever.
        spawn_finite(Part::Identify, async move {
            tokio::select! {
                biased;
                // The shard no longer waits; dropping the receiver informs the queue.
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
