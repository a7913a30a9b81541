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
const TOLD_MOST: usize = 1_024;

/// The connections of one listener.
#[derive(Debug)]
pub(crate) struct ConnectionLimit {
    /// The maximum of each class, and the current number.
    most: [usize; 3],
    count: [AtomicUsize; 3],
    closing: AtomicBool,
    left: Notify,
}

/// What a connection may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ConnectionClass {
    /// All requests.
    Inside = 0,
    /// Requests for health and metrics.
    Doorstep = 1,
    /// Nothing: it is rejected with a response.
    Told = 2,
}

/// Permission for a connection, until this is dropped.
#[derive(Debug)]
pub(crate) struct ConnectionPermit {
    doors: Arc<ConnectionLimit>,
    kind: ConnectionClass,
}

impl ConnectionLimit {
    /// Permits so many connections, and so many more that may request health and metrics.
    pub(crate) fn new(inside: usize, doorstep: usize) -> Self {
        Self {
            most: [inside, doorstep, TOLD_MOST],
            count: Default::default(),
            closing: AtomicBool::new(false),
            left: Notify::new(),
        }
    }

    /// The maximum number of connections of all classes.
    pub(crate) fn most(&self) -> usize {
        self.most.iter().sum()
    }

    /// Permits a connection in the best class that has room; `None` if there is none, not even for a rejection.
    pub(crate) fn enter(self: &Arc<Self>) -> Option<ConnectionPermit> {
        let kinds = [ConnectionClass::Inside, ConnectionClass::Doorstep, ConnectionClass::Told];
        let skip = if self.is_closing() { 2 } else { 0 };
        let kind = kinds.into_iter().skip(skip).find(|kind| {
            let (count, most) = (&self.count[*kind as usize], self.most[*kind as usize]);
            let one_more = |count: usize| (count < most).then_some(count + 1);
            count.fetch_update(Ordering::SeqCst, Ordering::SeqCst, one_more).is_ok()
        })?;
        if kind != ConnectionClass::Told {
            emit(ConnectionAccepted);
        }
        Some(ConnectionPermit { doors: Arc::clone(self), kind })
    }

    /// From now on all connections are rejected.
    pub(crate) fn close(&self) {
        self.closing.store(true, Ordering::SeqCst);
    }

    pub(crate) fn is_closing(&self) -> bool {
        self.closing.load(Ordering::SeqCst)
    }

    fn served(&self) -> usize {
        [ConnectionClass::Inside, ConnectionClass::Doorstep]
            .iter()
            .map(|kind| self.count[*kind as usize].load(Ordering::SeqCst))
            .sum()
    }

    /// Waits until all accepted connections are closed.
    pub(crate) async fn empty(&self) {
        loop {
            let left = self.left.notified();
            if self.served() == 0 {
                return;
            }
            left.await;
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
        self.doors.count[self.kind as usize].fetch_sub(1, Ordering::SeqCst);
        if self.kind != ConnectionClass::Told {
            emit(ConnectionClosed);
            self.doors.left.notify_waiters();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kinds(
        doors: &Arc<ConnectionLimit>,
        count: usize,
    ) -> (Vec<Option<ConnectionPermit>>, Vec<Option<ConnectionClass>>) {
        let places: Vec<_> = (0..count).map(|_| doors.enter()).collect();
        let kinds = places.iter().map(|place| place.as_ref().map(ConnectionPermit::kind)).collect();
        (places, kinds)
    }

    #[test]
    fn those_without_room_wait_at_the_doorstep_then_are_told_then_nothing() {
        let doors = Arc::new(ConnectionLimit::new(2, 1));
        let (places, kinds) = kinds(&doors, 3 + TOLD_MOST + 1);
        assert_eq!(
            kinds[..3],
            [Some(ConnectionClass::Inside), Some(ConnectionClass::Inside), Some(ConnectionClass::Doorstep)]
        );
        assert!(kinds[3..3 + TOLD_MOST].iter().all(|kind| *kind == Some(ConnectionClass::Told)));
        assert_eq!(kinds.last(), Some(&None));
        drop(places);
        assert_eq!(doors.enter().map(|place| place.kind()), Some(ConnectionClass::Inside));
    }

    #[tokio::test(start_paused = true)]
    async fn a_closed_door_lets_nobody_in_and_is_empty_when_the_last_one_has_left() {
        let doors = Arc::new(ConnectionLimit::new(2, 1));
        let place = doors.enter().unwrap();
        doors.close();
        assert_eq!(doors.enter().map(|place| place.kind()), Some(ConnectionClass::Told));
        let waits = tokio::spawn({
            let doors = Arc::clone(&doors);
            async move { doors.empty().await }
        });
        tokio::task::yield_now().await;
        assert!(!waits.is_finished());
        drop(place);
        waits.await.unwrap();
    }
}
