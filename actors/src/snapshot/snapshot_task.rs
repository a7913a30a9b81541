//! Task that restores and saves the snapshot: one write at a time, and as few as possible.

use std::sync::Arc;

use actix::Addr;
use guildhall_core::snapshot::{GateSnapshot, ShutdownKind, Urgency};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::{Instant, sleep_until, timeout};

use super::{DirtyFlag, SnapshotConfig};
use crate::circuit_breaker::{CircuitBreaker, RestoreBreakers, SnapshotBreakers};
use crate::failpoint;
use crate::supervision::{self, Part};
use crate::telemetry::emit;
use crate::telemetry::snapshot::{SnapshotRestored, SnapshotSaveFailed, SnapshotSaved, SnapshotUnreadable};
use crate::token_bucket::TokenBucketHandle;

/// Whether the snapshot is restored, or could not be: from then on calls may be sent.
pub(crate) type RestoredReceiver = watch::Receiver<bool>;

/// Capacity of the request channel.
const ASKS: usize = 8;

/// Handle for the task.
#[derive(Debug)]
pub(crate) struct SnapshotHandle {
    asks: mpsc::Sender<SnapshotRequest>,
}

/// Requests to the task. The sender is notified when the request is done.
#[derive(Debug)]
enum SnapshotRequest {
    /// Save now.
    Keep(oneshot::Sender<()>),
    /// Save a last time.
    End(oneshot::Sender<()>),
}

impl SnapshotHandle {
    /// Starts the task, which ends with the actors. `unsaved` is the number of invalid requests that a crashed process
    /// may have made without saving them.
    pub(crate) fn start(
        config: SnapshotConfig,
        bell: Arc<DirtyFlag>,
        breaker: Addr<CircuitBreaker>,
        tokens: TokenBucketHandle,
        unkept: u32,
    ) -> (Self, RestoredReceiver) {
        let (asks, asked) = mpsc::channel(ASKS);
        let (recalled, is_recalled) = watch::channel(false);
        let task = SnapshotTask { config, bell, breaker, tokens, unkept };
        supervision::spawn(Part::GateSnapshot, task.run(recalled, asked));
        (Self { asks }, is_recalled)
    }

    /// Saves a last time and marks the shutdown as clean. Nothing is saved after that.
    pub(crate) async fn end(&self) {
        self.ask(SnapshotRequest::End).await;
    }

    /// Saves now, and waits until that was tried.
    pub(crate) async fn keep_now(&self) {
        self.ask(SnapshotRequest::Keep).await;
    }

    async fn ask(&self, asked: fn(oneshot::Sender<()>) -> SnapshotRequest) {
        let (done, is_done) = oneshot::channel();
        if self.asks.send(asked(done)).await.is_ok() {
            // The task replies within its timeout, or has stopped.
            let _ = is_done.await;
        }
    }
}

/// The actors have stopped: the process ends.
struct ActorsGone;

/// Result of a write.
enum WriteResult {
    Kept,
    Lost,
}

struct SnapshotTask {
    config: SnapshotConfig,
    bell: Arc<DirtyFlag>,
    breaker: Addr<CircuitBreaker>,
    tokens: TokenBucketHandle,
    unkept: u32,
}

impl SnapshotTask {
    async fn run(self, recalled: watch::Sender<bool>, mut asks: mpsc::Receiver<SnapshotRequest>) {
        let memory = self.recall().await;
        if self.take_over(memory).await.is_err() {
            return;
        }
        recalled.send_replace(true);
        // Recorded so that a crash from now on is recognized as one.
        self.bell.ring(Urgency::Soon);
        let mut earliest = Instant::now();
        let mut gap = self.config.soon;
        loop {
            let asked = tokio::select! {
                biased;
                asked = asks.recv() => asked,
                () = self.due(earliest) => {
                    match self.keep(ShutdownKind::Sudden).await {
                        Ok(WriteResult::Kept) => gap = self.config.soon,
                        // Back off while it fails.
                        Ok(WriteResult::Lost) => gap = (gap * 2).min(self.config.later.max(self.config.soon)),
                        Err(ActorsGone) => return,
                    }
                    earliest = Instant::now() + gap;
                    continue;
                }
            };
            match asked {
                Some(SnapshotRequest::Keep(done)) => {
                    let kept = self.keep(ShutdownKind::Sudden).await;
                    // Other requests that arrived during the write may be about later changes, so they are not answered
                    // with it.
                    let _ = done.send(());
                    if kept.is_err() {
                        return;
                    }
                }
                Some(SnapshotRequest::End(done)) => {
                    let _ = self.keep(ShutdownKind::Clean).await;
                    let _ = done.send(());
                    return;
                }
                // All handles are dropped.
                None => return,
            }
        }
    }

    /// Waits until a save is due.
    async fn due(&self, earliest: Instant) {
        let mut latest: Option<Instant> = None;
        loop {
            let due = match self.bell.urgency() {
                Some(Urgency::Soon) => return sleep_until(earliest).await,
                Some(Urgency::Later) => *latest.get_or_insert_with(|| Instant::now() + self.config.later),
                None => {
                    self.bell.rung().await;
                    continue;
                }
            };
            tokio::select! {
                () = sleep_until(due.max(earliest)) => return,
                () = self.bell.rung() => {}
            }
        }
    }

    /// Loads the snapshot. If that fails it logs a warning, and the gate starts without.
    async fn recall(&self) -> Option<GateSnapshot> {
        let why = match timeout(self.config.timeout, self.config.memory.recall()).await {
            Ok(Ok(None)) => return None,
            Ok(Ok(Some(text))) => match GateSnapshot::decode(&text) {
                Ok(memory) => return Some(memory),
                Err(unreadable) => (unreadable.name(), unreadable.to_string()),
            },
            Ok(Err(error)) => ("unavailable", error.to_string()),
            Err(_) => ("timed_out", format!("no response within {} ms", self.config.timeout.as_millis())),
        };
        emit(SnapshotUnreadable { reason: why.0, why: &why.1 });
        None
    }

    async fn take_over(&self, memory: Option<GateSnapshot>) -> Result<(), ActorsGone> {
        let now = self.config.wall.now();
        let is_first = memory.is_none();
        let memory = memory.unwrap_or_default();
        let age = memory.age(now);
        if !is_first {
            emit(SnapshotRestored {
                age: now.since(memory.saved_at),
                ahead: memory.saved_at.since(now),
                ending: memory.ending,
                routes: memory.limits.routes(),
                closed: memory.limits.closed(),
                breakers: memory.breakers.len(),
                invalid: memory.invalid.total(),
            });
        }
        let unkept = match memory.ending {
            // The first is saved at once; those after it may not have been saved.
            ShutdownKind::Sudden if memory.invalid.total() > 0 => self.unkept,
            ShutdownKind::Sudden | ShutdownKind::Clean => 0,
        };
        self.tokens.recall(memory.limits, age).await.ok_or(ActorsGone)?;
        // Even without a snapshot: the breaker learns the current tokens.
        let tokens = self.config.tokens.clone();
        let GateSnapshot { breakers, invalid, invalid_holders, .. } = memory;
        let recall = RestoreBreakers { breakers, invalid, invalid_holders, unkept, tokens, age };
        self.breaker.send(recall).await.map_err(|_| ActorsGone)
    }

    /// Saves everything. On failure it is retried later.
    async fn keep(&self, ending: ShutdownKind) -> Result<WriteResult, ActorsGone> {
        // Reset before the state is read: what changes in the meantime is part of the next save.
        failpoint::message(Part::GateSnapshot);
        self.bell.silence();
        let limits = self.tokens.remember().await.ok_or(ActorsGone)?;
        let (breakers, invalid) = self.breaker.send(SnapshotBreakers).await.map_err(|_| ActorsGone)?;
        // The timestamp is taken afterwards, so that the age is never overestimated.
        let memory = GateSnapshot::new(self.config.wall.now(), ending, limits, breakers, invalid);
        let text = memory.encode();
        let (began, bytes) = (Instant::now(), text.len());
        let why = match timeout(self.config.timeout, self.config.memory.keep(text)).await {
            Ok(Ok(())) => {
                emit(SnapshotSaved { bytes, took: began.elapsed() });
                return Ok(WriteResult::Kept);
            }
            Ok(Err(error)) => error.to_string(),
            Err(_) => format!("no response within {} ms", self.config.timeout.as_millis()),
        };
        emit(SnapshotSaveFailed { why: &why });
        self.bell.ring(Urgency::Soon);
        Ok(WriteResult::Lost)
    }
}
