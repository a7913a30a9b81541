//! The loop of a guild.
//!
//! ```text
//!  load ─▶ next step ─▶ resolve ─▶ execute ─────────────────────────────────────────────▶ decide ─┐
//!              ▲                        └▶ permit ─▶ record [end of the last, start of this] ─▶ send │
//!              └─────────────────────────────────────────────────────────────────────────────────────┘
//! ```
//!
//! The outcome of one operation and the start of the next are saved together, so an operation costs one commit. A call
//! with an effect is sent once it is stored that it may be in flight; see `execution`.

use std::cell::{Cell, RefCell};
use std::time::Duration;

use guildhall_core::guild::OrderStep;
use guildhall_core::time::UnixMs;
use tokio::sync::oneshot;
use tokio::task::coop::consume_budget;
use tokio::time::timeout;

use super::persist::merge_update;
use super::queue_state::QueueState;
use super::{GuildSpec, StopMode, StopResult};
use crate::failpoint;
use crate::ports::OperationUpdate;
use crate::supervision::Part;
use crate::supervisor::operations::wakeups::ReleasedConditions;
use crate::telemetry::emit;
use crate::telemetry::operations::{GuildFenced, OperationsReleased};

/// Maximum wait, because clocks can be changed.
const MAX_WAIT: Duration = Duration::from_secs(60);
/// How often an ending process tries to release a queue before it leaves that to the expiry of its lease.
const MAX_RELEASE_ATTEMPTS: u32 = 3;

/// The guild has lost its queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Fenced;

/// A request to stop, and the channel for its result.
#[derive(Debug)]
struct StopRequest {
    mode: StopMode,
    reply: oneshot::Sender<StopResult>,
}

/// The worker of a guild.
#[derive(Debug)]
pub(super) struct Worker {
    pub(super) spec: GuildSpec,
    pub(super) state: RefCell<QueueState>,
    pub(super) paused: Cell<bool>,
    /// Whether it stops without a request.
    stopping: Cell<bool>,
    stop_request: RefCell<Option<StopRequest>>,
}

impl Worker {
    pub(super) fn new(spec: GuildSpec) -> Self {
        let lease = spec.store.queue_lease(spec.queue, spec.fence);
        let state = RefCell::new(QueueState::new(spec.queue, spec.fence, lease, &spec.config));
        let paused = Cell::new(spec.paused);
        Self { spec, state, paused, stopping: Cell::new(false), stop_request: RefCell::default() }
    }

    pub(super) const fn spec(&self) -> &GuildSpec {
        &self.spec
    }

    pub(super) const fn state(&self) -> &RefCell<QueueState> {
        &self.state
    }

    pub(super) fn is_paused(&self) -> bool {
        self.paused.get()
    }

    pub(super) fn pause(&self, paused: bool) {
        self.paused.set(paused);
        if paused {
            self.spec.shared.nudge();
        } else {
            // Check the gate again, whatever delayed the operations.
            self.spec.shared.release(&ReleasedConditions::All);
        }
    }

    /// Requests that it stops.
    pub(super) fn request_stop(&self, mode: StopMode) -> oneshot::Receiver<StopResult> {
        let (reply, result) = oneshot::channel();
        if mode == StopMode::IfIdle && self.spec.shared.idle_since().is_none() {
            let _ = reply.send(StopResult::Busy);
            return result;
        }
        // The sender of an earlier request no longer waits.
        let previous = self.stop_request.replace(Some(StopRequest { mode, reply }));
        if let Some(StopRequest { reply, .. }) = previous {
            let _ = reply.send(StopResult::Busy);
        }
        self.spec.shared.nudge();
        result
    }

    /// Runs until the queue is released or lost.
    pub(super) async fn run(&self) {
        if self.run_loop().await == Err(Fenced) {
            emit(GuildFenced { queue: self.spec.queue });
            self.reply(StopResult::Released);
        }
        self.spec.shared.set_finished();
    }

    async fn run_loop(&self) -> Result<(), Fenced> {
        let mut unsaved = Vec::new();
        loop {
            // If the store and Discord respond at once, other guilds must still get their turn.
            consume_budget().await;
            self.apply_signals(&mut unsaved);
            if self.must_stop() {
                self.save(&mut unsaved).await?;
                self.release_queue().await;
                return Ok(());
            }
            let now = self.spec.clock.now();
            let step = self.state.borrow_mut().order().next(now);
            let due = match step {
                OrderStep::Run(_) if self.paused.get() => None,
                OrderStep::Run(seq) => {
                    self.on_work();
                    failpoint::message(Part::OperationGuild);
                    self.run_next(seq, &mut unsaved).await?;
                    continue;
                }
                OrderStep::Expire(seq) => {
                    merge_update(&mut unsaved, self.state.borrow_mut().expire(seq, now));
                    self.save_if_many(&mut unsaved).await?;
                    continue;
                }
                OrderStep::Park(seq) => {
                    merge_update(&mut unsaved, self.state.borrow().park(seq, now));
                    continue;
                }
                OrderStep::Join => {
                    self.save(&mut unsaved).await?;
                    self.on_work();
                    self.join_due().await;
                    continue;
                }
                OrderStep::NeedMore => {
                    self.save(&mut unsaved).await?;
                    self.on_work();
                    self.load(&mut unsaved).await?;
                    continue;
                }
                OrderStep::WaitUntil(due) => Some(due),
                OrderStep::Idle => None,
            };
            self.save(&mut unsaved).await?;
            if self.must_stop() {
                // It was requested while the store was busy.
                continue;
            }
            if self.stop_if_idle(due).await {
                return Ok(());
            }
            self.wait(due).await;
        }
    }

    /// Applies pending signals.
    pub(super) fn apply_signals(&self, unsaved: &mut Vec<OperationUpdate>) {
        let Some(pending) = self.spec.shared.take_signals() else { return };
        let now = self.spec.clock.now();
        let mut state = self.state.borrow_mut();
        state.order().on_woken();
        for signal in pending.signals {
            state.apply_signal(signal, now);
        }
        let released = state.release(&pending.released, now);
        if !released.is_empty() {
            emit(OperationsReleased { queue: self.spec.queue, count: released.len() });
        }
        released.into_iter().for_each(|change| merge_update(unsaved, Some(change)));
    }

    async fn wait(&self, due: Option<UnixMs>) {
        let GuildSpec { shared, clock, .. } = &self.spec;
        let wait = due.map_or(MAX_WAIT, |due| clock.until(due)).min(MAX_WAIT);
        shared.set_idle(clock.now(), due);
        if !shared.is_woken() {
            // Waits for a signal or the timeout.
            let _ = timeout(wait, shared.nudged()).await;
        }
        // A request to stop does not end its idle time.
        if shared.is_woken() || due.is_some_and(|due| due <= clock.now()) {
            shared.set_busy();
        }
    }

    /// There is work: a pending request to stop if idle is rejected.
    fn on_work(&self) {
        self.spec.shared.set_busy();
        if self.stop_request.borrow().as_ref().is_some_and(|request| request.mode == StopMode::IfIdle) {
            self.reply(StopResult::Busy);
        }
    }

    /// Stops without a request, as soon as no operation runs.
    pub(super) fn stop_soon(&self) {
        self.stopping.set(true);
    }

    pub(super) fn must_stop(&self) -> bool {
        let is_requested = self.stop_request.borrow().as_ref().is_some_and(|request| match request.mode {
            StopMode::Now | StopMode::Shutdown => true,
            StopMode::IfIdle => false,
        });
        self.stopping.get() || is_requested
    }

    /// Stops if that was requested and there is nothing to do. Returns `true` if it has stopped.
    async fn stop_if_idle(&self, due: Option<UnixMs>) -> bool {
        let GuildSpec { shared, clock, config, .. } = &self.spec;
        if self.stop_request.borrow().is_none() {
            return false;
        }
        let is_due_soon = due.is_some_and(|due| clock.until(due) <= config.long_wait);
        if shared.is_woken() || is_due_soon {
            self.reply(StopResult::Busy);
            return false;
        }
        self.release_queue().await;
        true
    }

    /// Releases the queue, whatever is left in it. From the first attempt on, another process may own it, whatever the
    /// store replies, so this cannot be undone. It is retried, because nothing else would release the queue while this
    /// process runs.
    async fn release_queue(&self) {
        let GuildSpec { store, queue, fence, .. } = &self.spec;
        let mut tried = 0;
        while let Err(error) = self.call_store(store.release(*queue, *fence)).await {
            tried += 1;
            if tried >= MAX_RELEASE_ATTEMPTS && self.is_shutdown() {
                return self.reply(StopResult::Unreleased);
            }
            self.back_off("release", &error, tried).await;
        }
        self.reply(StopResult::Released);
    }

    /// Whether the process is ending.
    fn is_shutdown(&self) -> bool {
        self.stop_request.borrow().as_ref().is_some_and(|request| request.mode == StopMode::Shutdown)
    }

    fn reply(&self, result: StopResult) {
        if let Some(StopRequest { reply, .. }) = self.stop_request.take() {
            let _ = reply.send(result);
        }
    }
}
