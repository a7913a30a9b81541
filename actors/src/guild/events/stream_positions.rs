//! Places of published events in the streams of their lanes.
//!
//! ```text
//!  next(handler, lane) ─▶ published, confirmed ─▶ commit { handled, position } ─▶ on_committed
//!        ▲                                                                            │
//!        └─────────── the last committed position: in memory, else in the store ◀─────┘
//! ```
//!
//! The position is stored in the transaction that marks the event as handled. After a crash between the two, the event
//! is published again with the same position.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use guildhall_core::state_key::STREAM;
use guildhall_core::time::UnixMs;

use super::durable_store::DurableEventStore;
use crate::ports::{StateWrite, StreamPosition};
use crate::shard::ownership::ShardOwnership;

/// How long the position of a stream without events is stored.
const LIFETIME: Duration = Duration::from_secs(30 * 24 * 3_600);

/// Maximum number of positions in memory. Others are read from the store.
const MAX_CACHED: usize = 65_536;

/// The last committed position of each stream.
pub(crate) struct StreamPositions {
    store: DurableEventStore,
    ownership: Arc<ShardOwnership>,
    cache: Mutex<PositionCache>,
}

#[derive(Default)]
struct PositionCache {
    /// Changes of the ownership of shards: another process may have continued a stream meanwhile.
    ownership_changes: u64,
    positions: HashMap<String, StreamPosition>,
}

impl StreamPositions {
    pub(crate) fn new(store: DurableEventStore, ownership: Arc<ShardOwnership>) -> Self {
        Self { store, ownership, cache: Mutex::default() }
    }

    /// The position of the next event of a stream. It is not cached until it is committed, so an event that is not
    /// committed does not use its position up.
    pub(crate) async fn next(&self, handler: &str, lane: i64, now: UnixMs) -> (StreamPosition, StateWrite) {
        let key = format!("{STREAM}{handler}:{lane}");
        let last = match self.take(&key) {
            Some(position) => Some(position),
            None => {
                let values = self.store.until_ok("values", |store| store.values(vec![key.clone()], now)).await;
                values.into_iter().flatten().next().and_then(|text| parse(&text))
            }
        };
        let next = match last {
            Some(StreamPosition { epoch, counter }) => StreamPosition { epoch, counter: counter + 1 },
            None => StreamPosition { epoch: now, counter: 1 },
        };
        let write = StateWrite { key, value: Some(format(next)), expires_at: Some(now + LIFETIME) };
        (next, write)
    }

    /// These values were committed.
    pub(crate) fn on_committed(&self, set: &[StateWrite]) {
        for write in set.iter().filter(|write| write.key.starts_with(STREAM)) {
            if let Some(position) = write.value.as_deref().and_then(parse) {
                self.with_cache(|cache| {
                    if cache.positions.len() >= MAX_CACHED {
                        cache.positions.clear();
                    }
                    cache.positions.insert(write.key.clone(), position);
                });
            }
        }
    }

    fn take(&self, key: &str) -> Option<StreamPosition> {
        self.with_cache(|cache| cache.positions.remove(key))
    }

    fn with_cache<T>(&self, run: impl FnOnce(&mut PositionCache) -> T) -> T {
        let mut cache = self.cache.lock().unwrap_or_else(PoisonError::into_inner);
        let changes = self.ownership.changes();
        if std::mem::replace(&mut cache.ownership_changes, changes) != changes {
            cache.positions.clear();
        }
        run(&mut cache)
    }
}

fn format(StreamPosition { epoch, counter }: StreamPosition) -> String {
    format!("[{},{counter}]", epoch.millis())
}

fn parse(text: &str) -> Option<StreamPosition> {
    let (epoch, counter): (u64, u64) = serde_json::from_str(text).ok()?;
    Some(StreamPosition { epoch: UnixMs::new(epoch), counter })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::supervisor::EventsConfig;
    use crate::testing::events::MemoryEventStore;

    #[tokio::test(start_paused = true)]
    async fn positions_count_up_from_what_was_committed() {
        let store = MemoryEventStore::default();
        let ownership = Arc::new(ShardOwnership::new(1));
        let durable = DurableEventStore::new(
            Arc::new(store.clone()),
            Arc::new(store.clone()),
            EventsConfig::default().store_retry(),
        );
        let positions = StreamPositions::new(durable.clone(), Arc::clone(&ownership));
        let (start, later) = (UnixMs::new(1_000), UnixMs::new(2_000));
        let (first, write) = positions.next("bus", 7, start).await;
        assert_eq!(first, StreamPosition { epoch: start, counter: 1 });
        assert_eq!(write.key, "guildhall:stream:bus:7");
        // Without a commit, the event is published again with the same counter.
        assert_eq!(positions.next("bus", 7, later).await.0.counter, 1);
        positions.on_committed(std::slice::from_ref(&write));
        assert_eq!(positions.next("bus", 7, later).await.0, StreamPosition { epoch: start, counter: 2 });
        // A new process continues from the store.
        store.put_state(&write.key, &serde_json::from_str(write.value.as_deref().unwrap()).unwrap());
        let positions = StreamPositions::new(durable, ownership);
        assert_eq!(positions.next("bus", 7, later).await.0, StreamPosition { epoch: start, counter: 2 });
        assert_eq!(positions.next("bus", 8, later).await.0, StreamPosition { epoch: later, counter: 1 });
    }
}
