//! A limit on the number of streams.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use crate::{
    api::events::{StreamEnded, StreamsCounted},
    events::emit,
};

/// The open streams.
#[derive(Debug)]
pub(crate) struct StreamLimit {
    max: usize,
    max_per_key: usize,
    open: Mutex<HashMap<Arc<str>, usize>>,
}

/// Why a stream cannot be opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StreamLimitReached {
    /// There are too many streams.
    All(usize),
    /// The key has too many streams.
    Key(usize),
}

impl StreamLimit {
    pub(crate) fn new(max: usize, max_per_key: usize) -> Self {
        Self { max, max_per_key, open: Mutex::default() }
    }

    fn open(&self) -> MutexGuard<'_, HashMap<Arc<str>, usize>> {
        // No code panics while it is locked.
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Number of open streams.
    pub(crate) fn count(&self) -> usize {
        self.open().values().sum()
    }

    /// A permit for one more stream of this key.
    pub(crate) fn acquire(self: &Arc<Self>, key: &Arc<str>) -> Result<StreamPermit, StreamLimitReached> {
        let mut open = self.open();
        let (all, own) = (open.values().sum::<usize>(), open.get(key).copied().unwrap_or(0));
        if all >= self.max {
            return Err(StreamLimitReached::All(self.max));
        }
        if own >= self.max_per_key {
            return Err(StreamLimitReached::Key(self.max_per_key));
        }
        open.insert(Arc::clone(key), own + 1);
        emit(StreamsCounted { count: all + 1 });
        Ok(StreamPermit { streams: Arc::clone(self), key: Arc::clone(key), reason: "gone" })
    }
}

/// A permit for one stream.
#[derive(Debug)]
pub(crate) struct StreamPermit {
    streams: Arc<StreamLimit>,
    key: Arc<str>,
    /// Why the stream ends, if it ends now.
    pub(crate) reason: &'static str,
}

impl Drop for StreamPermit {
    fn drop(&mut self) {
        let mut open = self.streams.open();
        if let Some(own) = open.get_mut(&self.key) {
            *own -= 1;
            if *own == 0 {
                open.remove(&self.key);
            }
        }
        emit(StreamsCounted { count: open.values().sum() });
        emit(StreamEnded { key: &self.key, reason: self.reason });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limit_holds_in_total_and_per_key() {
        let streams = Arc::new(StreamLimit::new(3, 2));
        let (one, two) = (Arc::from("one"), Arc::from("two"));
        let first = streams.acquire(&one).unwrap();
        let _second = streams.acquire(&one).unwrap();
        assert_eq!(streams.acquire(&one).unwrap_err(), StreamLimitReached::Key(2));
        let _third = streams.acquire(&two).unwrap();
        assert_eq!(streams.acquire(&two).unwrap_err(), StreamLimitReached::All(3));
        drop(first);
        assert_eq!(streams.count(), 2);
        assert!(streams.acquire(&two).is_ok());
    }
}
