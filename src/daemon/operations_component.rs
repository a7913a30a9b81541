//! Assembles operations: the store, the executor, and the service that accepts them.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use actix_rt::Arbiter;
use guildhall_actors::access::RoleCache;
use guildhall_actors::budget::SpendStore as _;
use guildhall_actors::gate::ReleaseListener;
use guildhall_actors::guild::GuildSpec;
use guildhall_actors::ports::{
    ChangeFeed, EventStore as _, IdempotencyCache, KeyStore as _, OperationExecutor, OperationStore, PauseTarget,
    Retention, StoreError, SweepSummary,
};
use guildhall_actors::submission::{OperationService, QueueNotifier, SubmissionConfig};
use guildhall_actors::supervision::Part;
use guildhall_actors::supervisor::{OperationsConfig, OperationsHandle, QueueSignal};
use guildhall_actors::wall_clock::WallClock;
use guildhall_actors::{failpoint, supervision};
use guildhall_core::{
    budget::Hour,
    guild::OrderConfig,
    operation::{Backoff, OperationId, Queue},
    time::UnixMs,
};
use tokio::{
    sync::broadcast::{self, error::RecvError},
    task::JoinHandle,
    time::{Instant, MissedTickBehavior},
};

use crate::{
    api::ComponentHandle,
    events::{
        ClockSaveFailed, DepthsCounted, PreviousProcessEnd, ProcessEndsCounted, SweepCompleted as SweptEvent,
        SweepFailed, UsageCounted, emit,
    },
    settings::Settings,
    store::{ClusterEvent, Health, ProcessEnd, Store},
};

/// How long the end of a process is counted.
const ENDS_COUNT_FOR: Duration = Duration::from_secs(3_600);

/// Interval of counting pending work.
const COUNT_EVERY: Duration = Duration::from_secs(5);

/// Interval of storing the clocks without a change.
const SAVE_CLOCKS_EVERY: Duration = Duration::from_secs(60);

/// Interval of comparing the wall clock with the other clocks. They are stored at most this often.
const COMPARE_CLOCKS_EVERY: Duration = Duration::from_secs(1);

/// Operations of this process: submission and execution.
#[derive(Debug)]
pub struct OperationsComponent {
    store: Store,
    operations: OperationsHandle,
    desk: Arc<OperationService>,
    /// Guilds have a thread of their own, so that a busy guild delays nothing else.
    arbiter: Arbiter,
    tasks: Vec<JoinHandle<()>>,
}

impl OperationsComponent {
    /// Starts to execute the operations in the store. Must be called within an actix system.
    pub fn start(
        settings: &Settings,
        application: u64,
        store: Store,
        perform: Arc<dyn OperationExecutor>,
        cache: Option<Arc<dyn IdempotencyCache>>,
        roles: Arc<RoleCache>,
        part: ComponentHandle,
    ) -> Self {
        let arbiter = supervision::arbiter(Part::OperationThread);
        let (clock, handle) = (store.clocks().store_time(), arbiter.handle());
        let spawn = Box::new(move |seat: GuildSpec| seat.run_on(&handle));
        let shared: Arc<dyn OperationStore> = Arc::new(store.clone());
        let operations = OperationsHandle::start(Arc::clone(&shared), perform, clock.clone(), config(settings), spawn);
        let desk = OperationService::new(
            Arc::clone(&shared),
            Arc::new(SupervisorNotifier(operations.clone())),
            cache,
            SubmissionConfig {
                max_attempts: settings.operations.max_attempts,
                application: Some(application),
                ..SubmissionConfig::default()
            },
            {
                let clock = clock.clone();
                Arc::new(move || clock.now())
            },
        )
        .with_roles(roles);
        let sweeper = Sweeper {
            store: shared,
            whole: store.clone(),
            clock: clock.clone(),
            every: settings.operations.sweep_every,
            retention: retention(settings),
            keep_audit: settings.operations.retention.audit,
            keep_spend: settings.operations.retention.budget_spend,
        };
        let tasks = vec![
            supervision::spawn(Part::DepthGauges, count(Arc::clone(&sweeper.store), store.clone(), clock)),
            supervision::spawn(Part::Sweeper, sweeper.run()),
            supervision::spawn(Part::StoreHealth, watch(store.clone(), part)),
            supervision::spawn(Part::ClockWatch, watch_clocks(store.clone())),
            supervision::spawn(Part::StoreNotices, hear(store.notices(), operations.clone())),
        ];
        Self { store, operations, desk: Arc::new(desk), arbiter, tasks }
    }

    /// The service that accepts operations.
    pub fn desk(&self) -> &Arc<OperationService> {
        &self.desk
    }

    /// The feed of changed operations.
    pub fn changes(&self) -> Arc<dyn ChangeFeed> {
        Arc::new(self.store.clone())
    }

    /// A listener for changes of the gate: operations that waited for the gate become due.
    pub fn release_listener(&self) -> ReleaseListener {
        let operations = self.operations.clone();
        Arc::new(move |condition| operations.release(condition))
    }

    /// Takes this process's part of the work once it can send: operations of other processes would otherwise wait here
    /// for that.
    pub fn arrive_when(&self, opens: impl Future<Output = ()> + Send + 'static) {
        let store = self.store.clone();
        // Supervised: if this task panicked, the process would never take its share.
        supervision::spawn_finite(Part::Arrival, async move {
            opens.await;
            store.arrive();
        });
    }

    /// Starts no more operations, and waits for those in flight. `false` if that takes longer than `timeout`; the next
    /// owner continues them.
    pub async fn drain(&self, within: Duration) -> bool {
        self.store.leave().await;
        self.operations.drain(within).await
    }

    /// Closes the store. Call this when nothing uses it any more.
    pub async fn close(self) {
        for task in &self.tasks {
            task.abort();
        }
        self.arbiter.stop();
        self.store.close().await;
    }
}

fn config(settings: &Settings) -> OperationsConfig {
    let set = &settings.operations;
    let defaults = OperationsConfig::default();
    OperationsConfig {
        line: OrderConfig { park_after: set.park_after, ..defaults.line },
        backoff: Backoff { base: set.backoff_base, cap: set.backoff_cap, ..defaults.backoff },
        max_wait: set.max_wait,
        request_timeout: set.settle,
        check_timeout: set.check_timeout,
        poll: set.poll,
        most_active: set.active_guilds,
        idle_after: set.idle,
        max_running: set.max_running.map_or(0, |most| most as usize),
        per_second: set.per_second.unwrap_or(0),
        ..defaults
    }
}

fn retention(settings: &Settings) -> Retention {
    let keep = settings.operations.retention;
    Retention {
        completed: keep.completed,
        failed: keep.failed,
        dead_letters: keep.dead_letters,
        idempotency: keep.idempotency,
    }
}

/// Notifies the supervisor of changes by the operation service.
struct SupervisorNotifier(OperationsHandle);

impl QueueNotifier for SupervisorNotifier {
    fn wake(&self, queue: Queue) {
        self.0.wake(queue);
    }

    fn cancelled(&self, id: OperationId, queue: Queue) {
        self.0.cancelled(id, queue);
    }

    fn hastened(&self, id: OperationId, queue: Queue) {
        self.0.hastened(id, queue);
    }

    fn paused(&self, _: PauseTarget, _: bool) {
        self.0.pauses_changed();
    }
}

/// Removes rows whose retention has ended.
struct Sweeper {
    store: Arc<dyn OperationStore>,
    whole: Store,
    clock: WallClock,
    every: Duration,
    retention: Retention,
    keep_audit: Duration,
    keep_spend: Duration,
}

impl Sweeper {
    async fn run(self) {
        let mut tick = tokio::time::interval(self.every);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tick.tick().await;
            failpoint::message(Part::Sweeper);
            if let Err(error) = self.sweep().await {
                emit(SweepFailed { error: &error });
            }
        }
    }

    /// Removes small batches until nothing is left, so that nothing waits long for the store.
    async fn sweep(&self) -> Result<(), StoreError> {
        loop {
            let now = self.clock.now();
            let swept = self.store.sweep(self.retention, now).await?;
            // A step of the clock delays expiry; the store's own sweep accounts for that.
            let now = now.before(self.whole.clocks().expiry_lag());
            let kept_for = u64::try_from(self.retention.dead_letters.as_millis()).unwrap_or(u64::MAX);
            let events = self.whole.sweep_events(UnixMs::new(now.millis().saturating_sub(kept_for))).await?;
            let notes = self.whole.sweep_access(now.before(self.keep_audit)).await?;
            let spend = self.whole.sweep_spend(Hour::first_within(now, self.keep_spend)).await?;
            if swept == SweepSummary::default() && events == 0 && notes == 0 && spend == 0 {
                return Ok(());
            }
            emit(SweptEvent { swept });
        }
    }
}

/// Compares the wall clock with the other clocks, and stores what the next process needs to know: soon after a change,
/// and periodically.
async fn watch_clocks(store: Store) {
    let clocks = store.clocks().clone();
    let mut tick = tokio::time::interval(COMPARE_CLOCKS_EVERY);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut saved: Option<Instant> = None;
    loop {
        tick.tick().await;
        failpoint::message(Part::ClockWatch);
        clocks.compare_again();
        let is_due = saved.is_none_or(|at| at.elapsed() >= SAVE_CLOCKS_EVERY);
        if !clocks.take_changed() && !is_due {
            continue;
        }
        match store.save_clocks().await {
            Ok(()) => saved = Some(Instant::now()),
            Err(error) => emit(ClockSaveFailed { error: &error }),
        }
    }
}

/// Updates the gauges of pending work.
async fn count(store: Arc<dyn OperationStore>, whole: Store, clock: WallClock) {
    let mut ends = ProcessEnds::default();
    let mut tick = tokio::time::interval(COUNT_EVERY);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tick.tick().await;
        failpoint::message(Part::DepthGauges);
        // The store's own component reports that the store is unavailable; the gauges keep their last values.
        if let Ok(depths) = store.depths().await {
            emit(DepthsCounted { depths: &depths });
        }
        if let Ok(usage) = store.usage(None).await {
            emit(UsageCounted { usage: &usage });
        }
        if ends.is_due()
            && let Ok(stored) = whole.process_ends().await
        {
            ends.tell(&stored, clock.now());
        }
    }
}

/// Counts the processes of this store that parts have ended recently.
#[derive(Debug, Default)]
struct ProcessEnds {
    looks: u32,
    /// Every part that was reported, so that its gauge falls back to 0.
    told: BTreeSet<&'static str>,
}

impl ProcessEnds {
    /// They seldom change: every twelfth tick is enough.
    fn is_due(&mut self) -> bool {
        let due = self.looks.is_multiple_of(12);
        self.looks = self.looks.wrapping_add(1);
        due
    }

    fn tell(&mut self, stored: &[ProcessEnd], now: UnixMs) {
        if let (true, Some(end)) = (self.looks == 1, stored.first()) {
            emit(PreviousProcessEnd { end, ago: now.since(end.at) });
        }
        let ends = self.count(stored, now);
        emit(ProcessEndsCounted { ends });
    }

    fn count(&mut self, stored: &[ProcessEnd], now: UnixMs) -> BTreeMap<&'static str, u32> {
        let mut ends: BTreeMap<&'static str, u32> = self.told.iter().map(|part| (*part, 0)).collect();
        for end in stored.iter().filter(|end| now.since(end.at) < ENDS_COUNT_FOR) {
            // A newer version may have other parts.
            let part = Part::ALL.iter().find(|part| part.name() == end.part).map_or("other", |part| part.name());
            *ends.entry(part).or_default() += 1;
        }
        self.told.extend(ends.keys());
        ends
    }
}

/// Forwards events of other processes.
async fn hear(mut notices: broadcast::Receiver<ClusterEvent>, operations: OperationsHandle) {
    loop {
        let notice = notices.recv().await;
        failpoint::message(Part::StoreNotices);
        match notice {
            Ok(ClusterEvent::Queues(queues)) => {
                for (queue, word) in queues {
                    match word {
                        None => operations.wake(queue),
                        Some(QueueSignal::Cancelled(id)) => operations.cancelled(id, queue),
                        Some(QueueSignal::Hastened(id)) => operations.hastened(id, queue),
                    }
                }
            }
            Ok(ClusterEvent::Pauses) => operations.pauses_changed(),
            Ok(ClusterEvent::Members) => operations.members_changed(),
            Ok(ClusterEvent::Disowned) => operations.disowned(),
            Ok(ClusterEvent::Shards) => {}
            Ok(ClusterEvent::Anything) => operations.wake_all(),
            Err(RecvError::Lagged(_)) => {
                operations.disowned();
                operations.members_changed();
                operations.pauses_changed();
                operations.wake_all();
            }
            Err(RecvError::Closed) => return,
        }
    }
}

/// Updates the readiness of the store.
async fn watch(store: Store, part: ComponentHandle) {
    let mut health = store.watch();
    loop {
        failpoint::message(Part::StoreHealth);
        match &*health.borrow_and_update() {
            Health::Up => part.ready(),
            Health::Down(why) => part.not_ready(why),
        }
        if health.changed().await.is_err() {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ends_count_for_an_hour_and_fall_back_to_zero() {
        let end = |part: &str, at| ProcessEnd {
            instance: "a".to_owned(),
            part: part.to_owned(),
            cause: "panicked".to_owned(),
            at: UnixMs::new(at),
        };
        let stored = [end("token_bucket", 7_000_000), end("of_a_newer_version", 7_000_000), end("token_bucket", 1)];
        let mut ends = ProcessEnds::default();
        let now = UnixMs::new(7_000_001);
        assert_eq!(ends.count(&stored, now), BTreeMap::from([("other", 1), ("token_bucket", 1)]));
        let later = UnixMs::new(7_000_000 + 3_600_000);
        assert_eq!(ends.count(&stored, later), BTreeMap::from([("other", 0), ("token_bucket", 0)]));
        let looks: Vec<bool> = (0..13).map(|_| ends.is_due()).collect();
        assert_eq!(looks.iter().filter(|due| **due).count(), 2, "immediately, and after a minute");
    }
}
