//! Records the guilds that the bot is in, by id and name, as the shards report them.
//!
//! ```text
//!  GUILD_CREATE, _UPDATE, _DELETE ──▶ pending, one a guild ──batches──▶ GuildStore
//!  READY ───────────────────────────▶ one list a shard ──first────────────▲
//! ```

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use guildhall_core::event::{GuildChange, ShardGuilds};
use tokio::sync::Notify;
use tokio::time::sleep;

use crate::failpoint;
use crate::ports::GuildStore;
use crate::supervision::{self, Part};
use crate::telemetry::emit;
use crate::telemetry::shard::GuildsNotRecorded;

/// Maximum number of changes in one write.
const BATCH_SIZE: usize = 500;

/// How long changes are collected: a new session reports all guilds at once.
const COLLECT_FOR: Duration = Duration::from_millis(200);

/// Delay before a failed write is repeated.
const RETRY_DELAY: Duration = Duration::from_secs(5);

/// What is not stored yet.
#[derive(Default)]
struct Pending {
    changes: BTreeMap<u64, GuildChange>,
    /// The guilds of new sessions, by shard.
    lists: BTreeMap<u32, ShardGuilds>,
}

/// Collects changes of guilds for the store. It holds at most one change of each guild, and no more than are stored.
pub struct GuildRecorder {
    pending: Mutex<Pending>,
    changed: Notify,
    max_guilds: usize,
}

impl std::fmt::Debug for GuildRecorder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("GuildRecorder").field("max_guilds", &self.max_guilds).finish_non_exhaustive()
    }
}

impl GuildRecorder {
    /// Starts to record up to `max_guilds` guilds; 0 records none.
    pub fn start(store: Arc<dyn GuildStore>, max_guilds: usize) -> Arc<Self> {
        let recorder = Arc::new(Self { pending: Mutex::default(), changed: Notify::new(), max_guilds });
        supervision::spawn(Part::GuildRecorder, Arc::clone(&recorder).run(store));
        recorder
    }

    /// Records a change. Never blocks; a change for which there is no room is dropped.
    pub fn record(&self, change: GuildChange) {
        let mut pending = self.pending();
        let has_room = pending.changes.len() < self.max_guilds || pending.changes.contains_key(&change.guild());
        if has_room {
            pending.changes.insert(change.guild(), change);
            self.changed.notify_one();
        }
    }

    /// Records the guilds with which a session of a shard starts. Never blocks; a list for which there is no room is
    /// dropped, and guilds that the bot has left stay until the next one.
    pub fn record_list(&self, listed: ShardGuilds) {
        let mut pending = self.pending();
        let others = pending.lists.values().filter(|list| list.shard != listed.shard);
        let count: usize = others.map(|list| list.guilds.len()).sum();
        if self.max_guilds > 0 && count + listed.guilds.len() <= self.max_guilds.max(listed.guilds.len()) {
            pending.lists.insert(listed.shard, listed);
            self.changed.notify_one();
        }
    }

    fn pending(&self) -> MutexGuard<'_, Pending> {
        self.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn run(self: Arc<Self>, store: Arc<dyn GuildStore>) {
        loop {
            failpoint::message(Part::GuildRecorder);
            self.changed.notified().await;
            sleep(COLLECT_FOR).await;
            while let Some(listed) = self.take_list() {
                let (shard, count) = (listed.shard, listed.guilds.len());
                if let Err(error) = store.retain_guilds(listed.clone()).await {
                    emit(GuildsNotRecorded { count, error: &error });
                    self.pending().lists.entry(shard).or_insert(listed);
                    sleep(RETRY_DELAY).await;
                }
            }
            while let Some(batch) = self.take_batch() {
                if let Err(error) = store.record_guilds(batch.clone(), self.max_guilds).await {
                    emit(GuildsNotRecorded { count: batch.len(), error: &error });
                    self.restore(batch);
                    sleep(RETRY_DELAY).await;
                }
            }
        }
    }

    fn take_list(&self) -> Option<ShardGuilds> {
        self.pending().lists.pop_first().map(|(_, listed)| listed)
    }

    fn take_batch(&self) -> Option<Vec<GuildChange>> {
        let changes = &mut self.pending().changes;
        let rest = changes.keys().nth(BATCH_SIZE).copied();
        let rest = rest.map(|first| changes.split_off(&first)).unwrap_or_default();
        let batch: Vec<GuildChange> = std::mem::replace(changes, rest).into_values().collect();
        (!batch.is_empty()).then_some(batch)
    }

    /// Returns changes that were not stored. A later change of the same guild replaces them.
    fn restore(&self, batch: Vec<GuildChange>) {
        let mut pending = self.pending();
        for change in batch {
            pending.changes.entry(change.guild()).or_insert(change);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use tokio::sync::mpsc;

    use super::*;
    use crate::ports::{StoreError, StoreFuture};

    struct Recording {
        batches: mpsc::UnboundedSender<Vec<GuildChange>>,
        lists: mpsc::UnboundedSender<ShardGuilds>,
        fails: AtomicBool,
    }

    impl GuildStore for Recording {
        fn record_guilds(&self, changes: Vec<GuildChange>, _: usize) -> StoreFuture<'_, ()> {
            self.batches.send(changes).unwrap();
            let fails = self.fails.swap(false, Ordering::Relaxed);
            Box::pin(async move { if fails { Err(StoreError::Unavailable("a test".to_owned())) } else { Ok(()) } })
        }

        fn retain_guilds(&self, listed: ShardGuilds) -> StoreFuture<'_, ()> {
            self.lists.send(listed).unwrap();
            Box::pin(async { Ok(()) })
        }
    }

    fn named(guild: u64, name: &str) -> GuildChange {
        GuildChange::Named { guild, name: name.into() }
    }

    fn start(max_guilds: usize, fails: bool) -> (Arc<GuildRecorder>, mpsc::UnboundedReceiver<Vec<GuildChange>>) {
        let (recorder, received, _) = start_with_lists(max_guilds, fails);
        (recorder, received)
    }

    fn start_with_lists(
        max_guilds: usize,
        fails: bool,
    ) -> (Arc<GuildRecorder>, mpsc::UnboundedReceiver<Vec<GuildChange>>, mpsc::UnboundedReceiver<ShardGuilds>) {
        let ((batches, received), (lists, received_lists)) = (mpsc::unbounded_channel(), mpsc::unbounded_channel());
        let store = Arc::new(Recording { batches, lists, fails: AtomicBool::new(fails) });
        (GuildRecorder::start(store, max_guilds), received, received_lists)
    }

    #[tokio::test(start_paused = true)]
    async fn list_of_a_new_session_is_stored_before_its_names() {
        let (recorder, mut batches, mut lists) = start_with_lists(3, false);
        let listed = |shard, guilds: &[u64]| ShardGuilds { shard, shards: 2, guilds: guilds.to_vec() };
        recorder.record_list(listed(0, &[1]));
        recorder.record(named(2, "Two"));
        recorder.record_list(listed(0, &[2, 4]));
        recorder.record_list(listed(1, &[3, 5, 7]));
        assert_eq!(lists.recv().await.unwrap(), listed(0, &[2, 4]), "the last list of a shard counts");
        assert_eq!(batches.recv().await.unwrap(), [named(2, "Two")]);
        assert!(lists.try_recv().is_err(), "there was no room for another");
    }

    #[tokio::test(start_paused = true)]
    async fn last_change_of_each_guild_is_stored_in_bounded_batches() {
        let (recorder, mut batches) = start(2 * BATCH_SIZE, false);
        recorder.record(named(1, "Old"));
        recorder.record(named(1, "New"));
        for guild in 2..=BATCH_SIZE as u64 + 1 {
            recorder.record(GuildChange::Left { guild });
        }
        let first = batches.recv().await.unwrap();
        assert_eq!((first.len(), &first[0]), (BATCH_SIZE, &named(1, "New")));
        assert_eq!(batches.recv().await.unwrap(), [GuildChange::Left { guild: BATCH_SIZE as u64 + 1 }]);
    }

    #[tokio::test(start_paused = true)]
    async fn failed_write_is_repeated_with_later_changes() {
        let (recorder, mut batches) = start(2, true);
        recorder.record(named(1, "One"));
        recorder.record(named(2, "Two"));
        recorder.record(named(3, "dropped: there is no room"));
        assert_eq!(batches.recv().await.unwrap(), [named(1, "One"), named(2, "Two")]);
        recorder.record(named(2, "Later"));
        assert_eq!(batches.recv().await.unwrap(), [named(1, "One"), named(2, "Later")]);
    }
}
