//! Handle of the supervisor.

use std::sync::Arc;
use std::time::Duration;

use actix::Addr;
use guildhall_core::operation::{GateCondition, OperationId, Queue};
use tokio::time::timeout;

use super::wakeups::{QueueSignal, WakeupSet};
use crate::guild::GuildSnapshot;
use crate::ports::{OperationExecutor, OperationStore, PauseTarget, StoreError};
use crate::supervisor::operations::{Drain, LeaseLost, MembersChanged, ObserveQueue, ObserveSupervisor, PausesChanged};
use crate::supervisor::{OperationsConfig, OperationsSnapshot, SpawnGuild, Supervisor};
use crate::wall_clock::WallClock;

/// Notifies the guilds of this process. Cheap to clone.
#[derive(Clone)]
pub struct OperationsHandle {
    wakeups: Arc<WakeupSet>,
    supervisor: Addr<Supervisor>,
    store: Arc<dyn OperationStore>,
}

impl std::fmt::Debug for OperationsHandle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("OperationsHandle").finish_non_exhaustive()
    }
}

impl OperationsHandle {
    /// Starts the supervisor on the current thread. It starts guilds with `spawn`.
    #[must_use]
    pub fn start(
        store: Arc<dyn OperationStore>,
        executor: Arc<dyn OperationExecutor>,
        clock: WallClock,
        config: OperationsConfig,
        spawn: SpawnGuild,
    ) -> Self {
        let wakeups = Arc::new(WakeupSet::new(config.max_wakeups));
        let supervisor =
            Supervisor::new(Arc::clone(&store), executor, clock, config, Arc::clone(&wakeups), spawn).run();
        Self { wakeups, supervisor, store }
    }

    /// Wakes a queue after a submission. Never lost, never blocks.
    pub fn wake(&self, queue: Queue) {
        self.wakeups.wake(queue, None);
    }

    /// Notifies a queue that one of its operations was cancelled in the store.
    pub fn cancelled(&self, id: OperationId, queue: Queue) {
        self.wakeups.wake(queue, Some(QueueSignal::Cancelled(id)));
    }

    /// Notifies a queue that one of its operations was expedited in the store.
    pub fn expedited(&self, id: OperationId, queue: Queue) {
        self.wakeups.wake(queue, Some(QueueSignal::Expedited(id)));
    }

    /// Pauses or resumes queues. Running operations finish. Other processes notice within a few seconds.
    ///
    /// # Errors
    ///
    /// When the store could not save it.
    pub async fn pause(&self, target: PauseTarget, paused: bool) -> Result<(), StoreError> {
        self.store.pause(target, paused).await?;
        self.pauses_changed();
        Ok(())
    }

    /// Notifies the supervisor that queues were paused or resumed in the store.
    pub fn pauses_changed(&self) {
        // If the mailbox is full, the supervisor notices at its next check.
        let _ = self.supervisor.try_send(PausesChanged);
    }

    /// Notifies the supervisor that processes joined or left: queues may have other owners.
    pub fn members_changed(&self) {
        // These are rare, and must not be lost.
        self.supervisor.do_send(MembersChanged);
    }

    /// Notifies the supervisor that the lease was lost, so other processes own all its queues.
    pub fn lease_lost(&self) {
        self.supervisor.do_send(LeaseLost);
    }

    /// Releases operations that the gate delayed for this condition: they are due now. The gate still decides whether
    /// they are sent. Never lost, never blocks.
    pub fn release(&self, condition: GateCondition) {
        self.wakeups.release(condition);
    }

    /// Wakes all queues: it is unknown which ones have changed.
    pub fn wake_all(&self) {
        self.wakeups.wake_all();
    }

    /// State of the guilds of this process. `None` if it is ending.
    pub async fn observe(&self) -> Option<OperationsSnapshot> {
        self.supervisor.send(ObserveSupervisor).await.ok()
    }

    /// State of one guild. `None` if this process does not have its queue.
    pub async fn observe_one(&self, queue: Queue) -> Option<GuildSnapshot> {
        self.supervisor.send(ObserveQueue(queue)).await.ok().flatten()
    }

    /// Starts no more operations, waits for those that run, and releases every queue. Returns `false` on timeout; the
    /// next owner continues what was interrupted.
    pub async fn drain(&self, limit: Duration) -> bool {
        matches!(timeout(limit, self.supervisor.send(Drain)).await, Ok(Ok(())))
    }
}
