//! A limit on the number of connections.

use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicUsize, Ordering},
};

use tokio::sync::Notify;

use crate::{
    api::events::{ConnectionAccepted, ConnectionClosed},
    events::emit,
};

/// How many connections above the limit are rejected at once with a response that is sure to arrive. For more, it is
/// sent without waiting.
const MAX_REJECTING: usize = 1_024;

/// The connections of one listener.
#[derive(Debug)]
pub(crate) struct ConnectionLimit {
    /// The maximum of each class, and the current number.
    max: [usize; 3],
    count: [AtomicUsize; 3],
    closing: AtomicBool,
    closed: Notify,
}

/// What a connection may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ConnectionClass {
    /// All requests.
    Normal = 0,
    /// Requests for health and metrics.
    HealthOnly = 1,
    /// Nothing: it is rejected with a response.
    Rejected = 2,
}

/// Permission for a connection, until this is dropped.
#[derive(Debug)]
pub(crate) struct ConnectionPermit {
    limit: Arc<ConnectionLimit>,
    kind: ConnectionClass,
}

impl ConnectionLimit {
    /// Permits this many connections, and this many more that may request health and metrics.
    pub(crate) fn new(connections: usize, health_connections: usize) -> Self {
        Self {
            max: [connections, health_connections, MAX_REJECTING],
            count: Default::default(),
            closing: AtomicBool::new(false),
            closed: Notify::new(),
        }
    }

    /// The maximum number of connections of all classes.
    pub(crate) fn max(&self) -> usize {
        self.max.iter().sum()
    }

    /// Permits a connection in the best class that has room; `None` if there is none, not even for a rejection.
    pub(crate) fn acquire(self: &Arc<Self>) -> Option<ConnectionPermit> {
        let kinds = [ConnectionClass::Normal, ConnectionClass::HealthOnly, ConnectionClass::Rejected];
        let skip = if self.is_closing() { 2 } else { 0 };
        let kind = kinds.into_iter().skip(skip).find(|kind| {
            let (count, max) = (&self.count[*kind as usize], self.max[*kind as usize]);
            let one_more = |count: usize| (count < max).then_some(count + 1);
            count.fetch_update(Ordering::SeqCst, Ordering::SeqCst, one_more).is_ok()
        })?;
        if kind != ConnectionClass::Rejected {
            emit(ConnectionAccepted);
        }
        Some(ConnectionPermit { limit: Arc::clone(self), kind })
    }

    /// From now on all connections are rejected.
    pub(crate) fn close(&self) {
        self.closing.store(true, Ordering::SeqCst);
    }

    pub(crate) fn is_closing(&self) -> bool {
        self.closing.load(Ordering::SeqCst)
    }

    fn served_count(&self) -> usize {
        [ConnectionClass::Normal, ConnectionClass::HealthOnly]
            .iter()
            .map(|kind| self.count[*kind as usize].load(Ordering::SeqCst))
            .sum()
    }

    /// Waits until all accepted connections are closed.
    pub(crate) async fn wait_until_empty(&self) {
        loop {
            let closed = self.closed.notified();
            if self.served_count() == 0 {
                return;
            }
            closed.await;
        }
    }
}

impl ConnectionPermit {
    pub(crate) fn kind(&self) -> ConnectionClass {
        self.kind
    }
}

impl Drop for ConnectionPermit {
    fn drop(&mut self) {
        self.limit.count[self.kind as usize].fetch_sub(1, Ordering::SeqCst);
        if self.kind != ConnectionClass::Rejected {
            emit(ConnectionClosed);
            self.limit.closed.notify_waiters();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kinds(
        limit: &Arc<ConnectionLimit>,
        count: usize,
    ) -> (Vec<Option<ConnectionPermit>>, Vec<Option<ConnectionClass>>) {
        let permits: Vec<_> = (0..count).map(|_| limit.acquire()).collect();
        let kinds = permits.iter().map(|permit| permit.as_ref().map(ConnectionPermit::kind)).collect();
        (permits, kinds)
    }

    #[test]
    fn connections_over_the_limit_get_health_then_a_rejection() {
        let limit = Arc::new(ConnectionLimit::new(2, 1));
        let (permits, kinds) = kinds(&limit, 3 + MAX_REJECTING + 1);
        assert_eq!(
            kinds[..3],
            [Some(ConnectionClass::Normal), Some(ConnectionClass::Normal), Some(ConnectionClass::HealthOnly)]
        );
        assert!(kinds[3..3 + MAX_REJECTING].iter().all(|kind| *kind == Some(ConnectionClass::Rejected)));
        assert_eq!(kinds.last(), Some(&None));
        drop(permits);
        assert_eq!(limit.acquire().map(|permit| permit.kind()), Some(ConnectionClass::Normal));
    }

    #[tokio::test(start_paused = true)]
    async fn closed_limit_is_empty_after_the_last_connection() {
        let limit = Arc::new(ConnectionLimit::new(2, 1));
        let permit = limit.acquire().unwrap();
        limit.close();
        assert_eq!(limit.acquire().map(|permit| permit.kind()), Some(ConnectionClass::Rejected));
        let waiter = tokio::spawn({
            let limit = Arc::clone(&limit);
            async move { limit.wait_until_empty().await }
        });
        tokio::task::yield_now().await;
        assert!(!waiter.is_finished());
        drop(permit);
        waiter.await.unwrap();
    }
}
