//! The way to the supervisor.

use std::sync::Arc;
use std::time::Duration;

use actix::Addr;
use guildhall_core::operation::{GateCondition, OperationId, Queue};
use tokio::time::timeout;

use super::wakeups::{QueueSignal, WakeupSet};
use crate::guild::GuildSnapshot;
use crate::ports::{OperationExecutor, OperationStore, PauseTarget, StoreError};
use crate::supervisor::operations::{Drain, LeaseLost, MembersChanged, Observe, ObserveQueue, PausesChanged};
use crate::supervisor::{OperationsConfig, OperationsSnapshot, SpawnGuild, Supervisor};
use crate::wall_clock::WallClock;

/// Tells the guilds of this process what is new. Cheap to clone.
#[derive(Clone)]
pub struct OperationsHandle {
    bell: Arc<WakeupSet>,
    supervisor: Addr<Supervisor>,
    store: Arc<dyn OperationStore>,
}

impl std::fmt::Debug for OperationsHandle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("OperationsHandle").finish_non_exhaustive()
    }
}

impl OperationsHandle {
    /// Starts the supervisor where the caller runs; it starts guilds through `spawn`.
    #[must_use]
    pub fn start(
        store: Arc<dyn OperationStore>,
        perform: Arc<dyn OperationExecutor>,
        clock: WallClock,
        config: OperationsConfig,
        spawn: SpawnGuild,
    ) -> Self {
        let bell = Arc::new(WakeupSet::new(config.most_told));
        let supervisor = Supervisor::new(Arc::clone(&store), perform, clock, config, Arc::clone(&bell), spawn).run();
        Self { bell, supervisor, store }
    }

    /// Something was submitted to this queue. Never lost, never waits.
    pub fn wake(&self, queue: Queue) {
        self.bell.ring(queue, None);
    }

    /// The store has taken an operation of this queue back.
    pub fn cancelled(&self, id: OperationId, queue: Queue) {
        self.bell.ring(queue, Some(QueueSignal::Cancelled(id)));
    }

    /// The store has made an operation of this queue due.
    pub fn hastened(&self, id: OperationId, queue: Queue) {
        self.bell.ring(queue, Some(QueueSignal::Hastened(id)));
    }

    /// Pauses queues, or lets them go on. What is under way is finished. Other processes hear of it within a few seconds.
    ///
    /// # Errors
    ///
    /// When the store could not keep it.
    pub async fn pause(&self, what: PauseTarget, paused: bool) -> Result<(), StoreError> {
        self.store.pause(what, paused).await?;
        self.pauses_changed();
        Ok(())
    }

    /// The store has paused something, or lets it go on.
    pub fn pauses_changed(&self) {
        // A supervisor that is too busy to hear it looks by itself.
        let _ = self.supervisor.try_send(PausesChanged);
    }

    /// Other processes have come or gone: each queue finds its place anew.
    pub fn members_changed(&self) {
        // There are few of these, and none may get lost.
        self.supervisor.do_send(MembersChanged);
    }

    /// This process was taken for dead, and all its queues are somebody else's.
    pub fn disowned(&self) {
        self.supervisor.do_send(LeaseLost);
    }

    /// The gate has changed: operations that this condition held back are due now. The gate still decides whether they
    /// go. Never lost, never waits.
    pub fn release(&self, condition: GateCondition) {
        self.bell.release(condition);
    }

    /// Something is new, and nobody knows of which queues.
    pub fn wake_all(&self) {
        self.bell.ring_all();
    }

    /// How the guilds of this process stand; nothing if it is coming to its end.
    pub async fn observe(&self) -> Option<OperationsSnapshot> {
        self.supervisor.send(Observe).await.ok()
    }

    /// How one guild stands; nothing if this process does not look after it.
    pub async fn observe_one(&self, queue: Queue) -> Option<GuildSnapshot> {
        self.supervisor.send(ObserveQueue(queue)).await.ok().flatten()
    }

    /// Starts nothing more, waits for what is under way and gives every queue back; `false` if that took longer than it
    /// may. What is cut short then is taken up again by whoever comes next.
    pub async fn drain(&self, limit: Duration) -> bool {
        matches!(timeout(limit, self.supervisor.send(Drain)).await, Ok(Ok(())))
    }
}
