//! Events that were read together.

use std::ops::Deref;
use std::sync::Arc;

use guildhall_core::event::Event;
use tokio::time::Instant;

/// Events of one session, in the order of arrival.
#[derive(Debug)]
pub struct EventBatch {
    /// The events.
    pub events: Vec<Arc<Event>>,
    /// When the first of them was read.
    pub read_at: Instant,
}

impl From<Vec<Event>> for EventBatch {
    fn from(events: Vec<Event>) -> Self {
        Self { events: events.into_iter().map(Arc::new).collect(), read_at: Instant::now() }
    }
}

impl FromIterator<Event> for EventBatch {
    fn from_iter<T: IntoIterator<Item = Event>>(events: T) -> Self {
        events.into_iter().collect::<Vec<_>>().into()
    }
}

impl Deref for EventBatch {
    type Target = [Arc<Event>];

    fn deref(&self) -> &[Arc<Event>] {
        &self.events
    }
}

impl<'a> IntoIterator for &'a EventBatch {
    type Item = &'a Arc<Event>;
    type IntoIter = std::slice::Iter<'a, Arc<Event>>;

    fn into_iter(self) -> Self::IntoIter {
        self.events.iter()
    }
}
