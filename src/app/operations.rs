//! Operations put together: the store, what carries them out, and the one way in.

use std::{sync::Arc, time::Duration};

use actix_rt::Arbiter;
use guildhall_actors::access::{KeyStore as _, RoleCache};
use guildhall_actors::budgets::SpendStore as _;
use guildhall_actors::events::EventStore as _;
use guildhall_actors::operations::{
    Changes, Desk, IdempotencyCache, OperationStore, Operations, OperationsConfig, Pausable, Perform, Retention, Seat,
    StoreError, Swept, WallClock, Word,
    desk::{DeskConfig, Hears},
};
use guildhall_core::{
    budget::Hour,
    guild::LineConfig,
    operation::{Backoff, OperationId, Queue},
    time::UnixMs,
};
use tokio::{
    sync::broadcast::{self, error::RecvError},
    task::JoinHandle,
    time::MissedTickBehavior,
};

use crate::{
    api::PartHandle,
    events::{DepthsCounted, SweepFailed, Swept as SweptEvent, UsageCounted, emit},
    settings::Settings,
    store::{Health, Notice, Store},
};

/// How often it is counted what waits.
const COUNT_EVERY: Duration = Duration::from_secs(5);

/// Operations of this process, under way and on their way in.
#[derive(Debug)]
pub struct OperationsPart {
    store: Store,
    operations: Operations,
    desk: Arc<Desk>,
    /// The guilds' own thread: a busy guild keeps nobody else waiting.
    arbiter: Arbiter,
    tasks: Vec<JoinHandle<()>>,
}

impl OperationsPart {
    /// Starts to carry out what the store holds. Must be called within an actix system.
    pub fn start(
        settings: &Settings,
        application: u64,
        store: Store,
        perform: Arc<dyn Perform>,
        cache: Option<Arc<dyn IdempotencyCache>>,
        roles: Arc<RoleCache>,
        part: PartHandle,
    ) -> Self {
        let arbiter = Arbiter::new();
        let (clock, handle) = (WallClock::system(), arbiter.handle());
        let spawn = Box::new(move |seat: Seat| seat.run_on(&handle));
        let shared: Arc<dyn OperationStore> = Arc::new(store.clone());
        let operations = Operations::start(Arc::clone(&shared), perform, clock, config(settings), spawn);
        let desk = Desk::new(
            Arc::clone(&shared),
            Arc::new(Told(operations.clone())),
            cache,
            DeskConfig {
                max_attempts: settings.operations.max_attempts,
                application: Some(application),
                ..DeskConfig::default()
            },
            Arc::new(move || clock.now()),
        )
        .with_roles(roles);
        let sweeper = Sweeper {
            store: shared,
            whole: store.clone(),
            clock,
            every: settings.operations.sweep_every,
            retention: retention(settings),
            keep_audit: settings.operations.retention.audit,
            keep_spend: settings.operations.retention.budget_spend,
        };
        let tasks = vec![
            tokio::spawn(count(Arc::clone(&sweeper.store))),
            tokio::spawn(sweeper.run()),
            tokio::spawn(watch(store.clone(), part)),
            tokio::spawn(hear(store.notices(), operations.clone())),
        ];
        Self { store, operations, desk: Arc::new(desk), arbiter, tasks }
    }

    /// The one way in.
    pub fn desk(&self) -> &Arc<Desk> {
        &self.desk
    }

    /// Operations as they change.
    pub fn changes(&self) -> Arc<dyn Changes> {
        Arc::new(self.store.clone())
    }

    /// Takes this process's part of the work once it can send: what other processes have would wait here for that.
    pub fn arrive_when(&self, opens: impl Future<Output = ()> + Send + 'static) {
        let store = self.store.clone();
        tokio::spawn(async move {
            opens.await;
            store.arrive();
        });
    }

    /// Starts nothing more, and waits for what is under way. `false` if that took longer than it may; whoever comes next
    /// takes it up.
    pub async fn drain(&self, within: Duration) -> bool {
        self.store.leave().await;
        self.operations.drain(within).await
    }

    /// Lets go of the store, once nothing uses it any more.
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
        line: LineConfig { park_after: set.park_after, ..defaults.line },
        backoff: Backoff { base: set.backoff_base, cap: set.backoff_cap, ..defaults.backoff },
        max_wait: set.max_wait,
        request_timeout: set.settle,
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

/// Tells the supervisor what the desk has done.
struct Told(Operations);

impl Hears for Told {
    fn wake(&self, queue: Queue) {
        self.0.wake(queue);
    }

    fn cancelled(&self, id: OperationId, queue: Queue) {
        self.0.cancelled(id, queue);
    }

    fn hastened(&self, id: OperationId, queue: Queue) {
        self.0.hastened(id, queue);
    }

    fn paused(&self, _: Pausable, _: bool) {
        self.0.pauses_changed();
    }
}

/// Removes what was kept long enough.
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
            if let Err(error) = self.sweep().await {
                emit(SweepFailed { error: &error });
            }
        }
    }

    /// Small batches until nothing is left, so that nobody waits long for the store.
    async fn sweep(&self) -> Result<(), StoreError> {
        loop {
            let now = self.clock.now();
            let swept = self.store.sweep(self.retention, now).await?;
            let kept_for = u64::try_from(self.retention.dead_letters.as_millis()).unwrap_or(u64::MAX);
            let events = self.whole.sweep_events(UnixMs::new(now.millis().saturating_sub(kept_for))).await?;
            let notes = self.whole.sweep_access(now.before(self.keep_audit)).await?;
            let spend = self.whole.sweep_spend(Hour::first_within(now, self.keep_spend)).await?;
            if swept == Swept::default() && events == 0 && notes == 0 && spend == 0 {
                return Ok(());
            }
            emit(SweptEvent { swept });
        }
    }
}

/// Keeps the gauges of what waits.
async fn count(store: Arc<dyn OperationStore>) {
    let mut tick = tokio::time::interval(COUNT_EVERY);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tick.tick().await;
        // A store that does not answer is told of by its own part; the gauges keep what was last known.
        if let Ok(depths) = store.depths().await {
            emit(DepthsCounted { depths: &depths });
        }
        if let Ok(usage) = store.usage(None).await {
            emit(UsageCounted { usage: &usage });
        }
    }
}

/// Passes on what other processes did.
async fn hear(mut notices: broadcast::Receiver<Notice>, operations: Operations) {
    loop {
        match notices.recv().await {
            Ok(Notice::Queues(queues)) => {
                for (queue, word) in queues {
                    match word {
                        None => operations.wake(queue),
                        Some(Word::Cancelled(id)) => operations.cancelled(id, queue),
                        Some(Word::Hastened(id)) => operations.hastened(id, queue),
                    }
                }
            }
            Ok(Notice::Pauses) => operations.pauses_changed(),
            Ok(Notice::Members) => operations.members_changed(),
            Ok(Notice::Disowned) => operations.disowned(),
            Ok(Notice::Shards) => {}
            Ok(Notice::Anything) => operations.wake_all(),
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

/// Keeps the store's line in the register.
async fn watch(store: Store, part: PartHandle) {
    let mut health = store.watch();
    loop {
        match &*health.borrow_and_update() {
            Health::Up => part.ready(),
            Health::Down(why) => part.not_ready(why),
        }
        if health.changed().await.is_err() {
            return;
        }
    }
}
