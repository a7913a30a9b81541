//! Records when a shard was permitted to identify. The timeout for READY starts then, not before.

use std::sync::{Arc, Mutex, PoisonError};

use guildhall_actors::supervision::{Part, spawn_finite};
use tokio::{sync::oneshot, time::Instant};
use twilight_gateway::queue::Queue;

/// The identify queue of a shard, which records when it granted the last request. Clones share the record.
#[derive(Clone, Debug)]
pub(super) struct TimedQueue<Q> {
    queue: Q,
    granted_at: Arc<Mutex<Option<Instant>>>,
}

impl<Q> TimedQueue<Q> {
    pub(super) fn new(queue: Q) -> Self {
        Self { queue, granted_at: Arc::default() }
    }

    /// When the last request was granted; `None` while it is pending.
    pub(super) fn granted_at(&self) -> Option<Instant> {
        *self.granted_at.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<Q: Queue> Queue for TimedQueue<Q> {
    fn enqueue(&self, shard: u32) -> oneshot::Receiver<()> {
        let set =
            |granted_at: &Mutex<Option<Instant>>, to| *granted_at.lock().unwrap_or_else(PoisonError::into_inner) = to;
        set(&self.granted_at, None);
        let (mut grant, granted) = oneshot::channel();
        let (request, granted_at) = (self.queue.enqueue(shard), Arc::clone(&self.granted_at));
        // If this task failed, the shard would wait forever.
        spawn_finite(Part::Identify, async move {
            tokio::select! {
                biased;
                // The shard no longer waits; dropping the receiver informs the queue.
                () = grant.closed() => {}
                allowed = request => if allowed.is_ok() {
                    set(&granted_at, Some(Instant::now()));
                    let _ = grant.send(());
                },
            }
        });
        granted
    }
}

#[cfg(test)]
mod tests {
    use twilight_gateway::queue::InMemoryQueue;

    use super::*;

    #[tokio::test]
    async fn grant_time_is_stored_until_the_next_request() {
        let queue = TimedQueue::new(InMemoryQueue::new(1, 10, std::time::Duration::from_secs(60), 10));
        assert_eq!(queue.granted_at(), None);
        queue.enqueue(0).await.unwrap();
        assert!(queue.granted_at().is_some());
        let granted = queue.enqueue(0);
        assert_eq!(queue.granted_at(), None);
        drop(granted);
    }
}
