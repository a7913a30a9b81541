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
    backoff::Backoff,
    budget::Hour,
    guild::OrderConfig,
    operation::{OperationId, Queue},
    time::UnixMs,
};
use tokio::{
    sync::broadcast::{self, error::RecvError},
    task::JoinHandle,
    time::{Instant, MissedTickBehavior},
};

use super::restored_watch::RestoredWatch;
use crate::{
    api::ComponentHandle,
    events::{
        ClockSaveFailed, DepthsCounted, FailureLog, OldestWaitingFound, PreviousProcessEnd, ProcessEndsCounted,
        SweepCompleted as SweptEvent, SweepFailed, UsageCounted, emit,
    },
    settings::Settings,
    store::{ClusterEvent, Health, ProcessEnd, Store},
};

/// How long the end of a process is counted.
const PROCESS_END_WINDOW: Duration = Duration::from_secs(3_600);

/// Interval of counting pending work.
const COUNT_INTERVAL: Duration = Duration::from_secs(5);

/// Interval of storing the clocks without a change.
const SAVE_CLOCKS_INTERVAL: Duration = Duration::from_secs(60);

/// Interval of comparing the wall clock with the other clocks. They are stored at most this often.
const COMPARE_CLOCKS_INTERVAL: Duration = Duration::from_secs(1);

/// Operations of this process: submission and execution.
#[derive(Debug)]
pub struct OperationsComponent {
    store: Store,
    operations: OperationsHandle,
    service: Arc<OperationService>,
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
        executor: Arc<dyn OperationExecutor>,
        cache: Option<Arc<dyn IdempotencyCache>>,
        roles: Arc<RoleCache>,
        part: ComponentHandle,
    ) -> Self {
        let arbiter = supervision::arbiter(Part::OperationThread);
        let (clock, handle) = (store.clocks().store_time(), arbiter.handle());
        let spawn = Box::new(move |spec: GuildSpec| spec.run_on(&handle));
        let shared: Arc<dyn OperationStore> = Arc::new(store.clone());
        let operations = OperationsHandle::start(Arc::clone(&shared), executor, clock.clone(), config(settings), spawn);
        let service = OperationService::new(
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
            full_store: store.clone(),
            clock: clock.clone(),
            interval: settings.operations.sweep_every,
            retention: retention(settings),
            audit_retention: settings.operations.retention.audit,
            spend_retention: settings.operations.retention.budget_spend,
        };
        let tasks = vec![
            supervision::spawn(Part::DepthGauges, update_gauges(Arc::clone(&sweeper.store), store.clone(), clock)),
            supervision::spawn(Part::Sweeper, sweeper.run()),
            supervision::spawn(Part::StoreHealth, watch_health(store.clone(), part)),
            supervision::spawn(Part::ClockWatch, watch_clocks(store.clone())),
            supervision::spawn(Part::StoreNotices, forward_cluster_events(store.cluster_events(), operations.clone())),
        ];
        Self { store, operations, service: Arc::new(service), arbiter, tasks }
    }

    /// The service that accepts operations.
    pub fn service(&self) -> &Arc<OperationService> {
        &self.service
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
    pub fn arrive_when(&self, gate_open: impl Future<Output = ()> + Send + 'static) {
        let store = self.store.clone();
        // Supervised: if this task panicked, the process would never take its share.
        supervision::spawn_finite(Part::Arrival, async move {
            gate_open.await;
            store.arrive();
        });
    }

    /// Starts no more operations, and waits for those in flight. `false` if that takes longer than `timeout`; the next
    /// owner continues them.
    pub async fn drain(&self, timeout: Duration) -> bool {
        self.store.leave().await;
        self.operations.drain(timeout).await
    }

    /// Closes the store, if there is time: everything is stored, and other processes only notice the end sooner.
    pub(crate) async fn stop(self, deadline: Instant) {
        let _ = tokio::time::timeout_at(deadline, self.close()).await;
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
    let operation_settings = &settings.operations;
    let defaults = OperationsConfig::default();
    OperationsConfig {
        order: OrderConfig { park_after: operation_settings.park_after, ..defaults.order },
        backoff: Backoff {
            base: operation_settings.backoff_base,
            cap: operation_settings.backoff_cap,
            ..defaults.backoff
        },
        max_wait: operation_settings.max_wait,
        request_timeout: operation_settings.settle,
        check_timeout: operation_settings.check_timeout,
        poll_interval: operation_settings.poll,
        max_active: operation_settings.active_guilds,
        idle_after: operation_settings.idle,
        max_running: operation_settings.max_running.map_or(0, |max| max as usize),
        per_second: operation_settings.per_second.unwrap_or(0),
        ..defaults
    }
}

fn retention(settings: &Settings) -> Retention {
    let periods = settings.operations.retention;
    Retention {
        completed: periods.completed,
        failed: periods.failed,
        dead_letters: periods.dead_letters,
        idempotency: periods.idempotency,
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

    fn expedited(&self, id: OperationId, queue: Queue) {
        self.0.expedited(id, queue);
    }

    fn paused(&self, _: PauseTarget, _: bool) {
        self.0.pauses_changed();
    }
}

/// Removes rows whose retention has ended.
struct Sweeper {
    store: Arc<dyn OperationStore>,
    full_store: Store,
    clock: WallClock,
    interval: Duration,
    retention: Retention,
    audit_retention: Duration,
    spend_retention: Duration,
}

impl Sweeper {
    async fn run(self) {
        let failures = FailureLog::new("removal of expired rows");
        let mut tick = tokio::time::interval(self.interval);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tick.tick().await;
            failpoint::message(Part::Sweeper);
            match self.sweep().await {
                Ok(()) => failures.on_success(),
                Err(error) => emit(SweepFailed { error: &error, summary: failures.on_failure() }),
            }
        }
    }

    /// Removes small batches until nothing is left, so that nothing waits long for the store.
    async fn sweep(&self) -> Result<(), StoreError> {
        loop {
            let now = self.clock.now();
            let swept = self.store.sweep(self.retention, now).await?;
            // A step of the clock delays expiry; the store's own sweep accounts for that.
            let now = now.before(self.full_store.clocks().expiry_lag());
            let retention_ms = u64::try_from(self.retention.dead_letters.as_millis()).unwrap_or(u64::MAX);
            let events = self.full_store.sweep_events(UnixMs::new(now.millis().saturating_sub(retention_ms))).await?;
            let audit_records = self.full_store.sweep_access(now.before(self.audit_retention)).await?;
            let spend = self.full_store.sweep_spend(Hour::first_within(now, self.spend_retention)).await?;
            if swept == SweepSummary::default() && events == 0 && audit_records == 0 && spend == 0 {
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
    let mut tick = tokio::time::interval(COMPARE_CLOCKS_INTERVAL);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut saved: Option<Instant> = None;
    let failures = FailureLog::new("saving of the clocks");
    loop {
        tick.tick().await;
        failpoint::message(Part::ClockWatch);
        clocks.compare_again();
        let is_due = saved.is_none_or(|at| at.elapsed() >= SAVE_CLOCKS_INTERVAL);
        if !clocks.take_changed() && !is_due {
            continue;
        }
        match store.save_clocks().await {
            Ok(()) => {
                failures.on_success();
                saved = Some(Instant::now());
            }
            Err(error) => emit(ClockSaveFailed { error: &error, summary: failures.on_failure() }),
        }
    }
}

/// Updates the gauges of pending work.
async fn update_gauges(store: Arc<dyn OperationStore>, full_store: Store, clock: WallClock) {
    let mut ends = ProcessEnds::default();
    let mut restored = RestoredWatch::new(full_store.clone());
    let mut tick = tokio::time::interval(COUNT_INTERVAL);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tick.tick().await;
        failpoint::message(Part::DepthGauges);
        // The store's own component reports that the store is unavailable; the gauges keep their last values.
        if let Ok(depths) = store.depths().await {
            emit(DepthsCounted { depths: &depths });
        }
        if let Ok(since) = full_store.oldest_waiting().await {
            emit(OldestWaitingFound { since: &since, now: clock.now() });
        }
        if let Ok(usage) = store.usage(None).await {
            emit(UsageCounted { usage: &usage });
        }
        if ends.is_due()
            && let Ok(stored) = full_store.process_ends().await
        {
            ends.report(&stored, clock.now());
        }
        restored.tick().await;
    }
}

/// Counts the processes of this store that parts have ended recently.
#[derive(Debug, Default)]
struct ProcessEnds {
    ticks: u32,
    /// Every part that was reported, so that its gauge falls back to 0.
    reported: BTreeSet<&'static str>,
}

impl ProcessEnds {
    /// They seldom change: every twelfth tick is enough.
    fn is_due(&mut self) -> bool {
        let due = self.ticks.is_multiple_of(12);
        self.ticks = self.ticks.wrapping_add(1);
        due
    }

    fn report(&mut self, stored: &[ProcessEnd], now: UnixMs) {
        if let (true, Some(end)) = (self.ticks == 1, stored.first()) {
            emit(PreviousProcessEnd { end, ago: now.since(end.at) });
        }
        let ends = self.update_gauges(stored, now);
        emit(ProcessEndsCounted { ends });
    }

    fn update_gauges(&mut self, stored: &[ProcessEnd], now: UnixMs) -> BTreeMap<&'static str, u32> {
        let mut ends: BTreeMap<&'static str, u32> = self.reported.iter().map(|part| (*part, 0)).collect();
        for end in stored.iter().filter(|end| now.since(end.at) < PROCESS_END_WINDOW) {
            // A newer version may have other parts.
            let part = Part::ALL.iter().find(|part| part.name() == end.part).map_or("other", |part| part.name());
            *ends.entry(part).or_default() += 1;
        }
        self.reported.extend(ends.keys());
        ends
    }
}

/// Forwards events of other processes.
async fn forward_cluster_events(mut cluster_events: broadcast::Receiver<ClusterEvent>, operations: OperationsHandle) {
    loop {
        let event = cluster_events.recv().await;
        failpoint::message(Part::StoreNotices);
        match event {
            Ok(ClusterEvent::Queues(queues)) => {
                for (queue, signal) in queues {
                    match signal {
                        None => operations.wake(queue),
                        Some(QueueSignal::Cancelled(id)) => operations.cancelled(id, queue),
                        Some(QueueSignal::Expedited(id)) => operations.expedited(id, queue),
                    }
                }
            }
            Ok(ClusterEvent::Pauses) => operations.pauses_changed(),
            Ok(ClusterEvent::Members) => operations.members_changed(),
            Ok(ClusterEvent::LeaseLost) => operations.lease_lost(),
            Ok(ClusterEvent::Shards) => {}
            Ok(ClusterEvent::Anything) => operations.wake_all(),
            Err(RecvError::Lagged(_)) => {
                operations.lease_lost();
                operations.members_changed();
                operations.pauses_changed();
                operations.wake_all();
            }
            Err(RecvError::Closed) => return,
        }
    }
}

/// Updates the readiness of the store.
async fn watch_health(store: Store, part: ComponentHandle) {
    let mut health = store.watch_health();
    loop {
        failpoint::message(Part::StoreHealth);
        match &*health.borrow_and_update() {
            Health::Up => part.ready(),
            Health::Down(reason) => part.not_ready(reason),
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
    fn process_ends_count_for_an_hour() {
        let end = |part: &str, at| ProcessEnd {
            instance: "a".to_owned(),
            part: part.to_owned(),
            cause: "panicked".to_owned(),
            at: UnixMs::new(at),
        };
        let stored = [end("token_bucket", 7_000_000), end("of_a_newer_version", 7_000_000), end("token_bucket", 1)];
        let mut ends = ProcessEnds::default();
        let now = UnixMs::new(7_000_001);
        assert_eq!(ends.update_gauges(&stored, now), BTreeMap::from([("other", 1), ("token_bucket", 1)]));
        let later = UnixMs::new(7_000_000 + 3_600_000);
        assert_eq!(ends.update_gauges(&stored, later), BTreeMap::from([("other", 0), ("token_bucket", 0)]));
        let ticks: Vec<bool> = (0..13).map(|_| ends.is_due()).collect();
        assert_eq!(ticks.iter().filter(|due| **due).count(), 2, "immediately, and after a minute");
    }
}
