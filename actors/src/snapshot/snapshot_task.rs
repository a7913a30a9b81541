//! Task that restores and saves the snapshot: one write at a time, and as few as possible.

use std::sync::Arc;

use actix::Addr;
use guildhall_core::backoff::{Backoff, BackoffSequence};
use guildhall_core::snapshot::{GateSnapshot, ShutdownKind, Urgency};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::{Instant, sleep_until, timeout};

use super::{DirtyFlag, SnapshotConfig};
use crate::circuit_breaker::{CircuitBreaker, RestoreBreakers, SnapshotBreakers};
use crate::failpoint;
use crate::supervision::{self, Part};
use crate::telemetry::snapshot::{SnapshotRestored, SnapshotSaveFailed, SnapshotSaved, SnapshotUnreadable};
use crate::telemetry::{FailureLog, emit};
use crate::token_bucket::TokenBucketHandle;

/// Whether the snapshot is restored, or could not be: from then on calls may be sent.
pub(crate) type RestoredReceiver = watch::Receiver<bool>;

/// Capacity of the request channel.
const REQUEST_CAPACITY: usize = 8;

/// Handle for the task.
#[derive(Debug)]
pub(crate) struct SnapshotHandle {
    requests: mpsc::Sender<SnapshotRequest>,
}

/// Requests to the task. The sender is notified when the request is done.
#[derive(Debug)]
enum SnapshotRequest {
    /// Save now.
    Save(oneshot::Sender<()>),
    /// Save a last time.
    Finish(oneshot::Sender<()>),
}

impl SnapshotHandle {
    /// Starts the task, which ends with the actors. `unsaved` is the number of invalid requests that a crashed process
    /// may have made without saving them.
    pub(crate) fn start(
        config: SnapshotConfig,
        dirty_flag: Arc<DirtyFlag>,
        breaker: Addr<CircuitBreaker>,
        tokens: TokenBucketHandle,
        unsaved: u32,
    ) -> (Self, RestoredReceiver) {
        let (requests, receiver) = mpsc::channel(REQUEST_CAPACITY);
        let (restored, is_restored) = watch::channel(false);
        let failures = FailureLog::new("saving of the gate's snapshot");
        let task = SnapshotTask { config, dirty_flag, breaker, tokens, unsaved, failures };
        supervision::spawn(Part::GateSnapshot, task.run(restored, receiver));
        (Self { requests }, is_restored)
    }

    /// Saves a last time and marks the shutdown as clean. Nothing is saved after that.
    pub(crate) async fn finish(&self) {
        self.request(SnapshotRequest::Finish).await;
    }

    /// Saves now, and waits until that was tried.
    pub(crate) async fn save_now(&self) {
        self.request(SnapshotRequest::Save).await;
    }

    async fn request(&self, request: fn(oneshot::Sender<()>) -> SnapshotRequest) {
        let (done, is_done) = oneshot::channel();
        if self.requests.send(request(done)).await.is_ok() {
            // The task replies within its timeout, or has stopped.
            let _ = is_done.await;
        }
    }
}

/// The actors have stopped: the process ends.
struct ActorsGone;

/// Result of a write.
enum WriteResult {
    Saved,
    Failed,
}

struct SnapshotTask {
    config: SnapshotConfig,
    dirty_flag: Arc<DirtyFlag>,
    breaker: Addr<CircuitBreaker>,
    tokens: TokenBucketHandle,
    unsaved: u32,
    failures: FailureLog,
}

impl SnapshotTask {
    async fn run(self, restored: watch::Sender<bool>, mut requests: mpsc::Receiver<SnapshotRequest>) {
        let snapshot = self.load().await;
        if self.restore(snapshot).await.is_err() {
            return;
        }
        restored.send_replace(true);
        // Recorded so that a crash from now on is recognized as one.
        self.dirty_flag.set(Urgency::Soon);
        let mut earliest = Instant::now();
        let (soon, later) = (self.config.soon, self.config.later);
        let mut backoff = BackoffSequence::new(Backoff::exact(soon * 2, later.max(soon)));
        loop {
            let request = tokio::select! {
                biased;
                request = requests.recv() => request,
                () = self.wait_until_due(earliest) => {
                    let interval = match self.save(ShutdownKind::Sudden).await {
                        Ok(WriteResult::Saved) => {
                            backoff.reset();
                            soon
                        }
                        Ok(WriteResult::Failed) => backoff.next_delay(0.5),
                        Err(ActorsGone) => return,
                    };
                    earliest = Instant::now() + interval;
                    continue;
                }
            };
            match request {
                Some(SnapshotRequest::Save(done)) => {
                    let result = self.save(ShutdownKind::Sudden).await;
                    // Other requests that arrived during the write may be about later changes, so they are not answered
                    // with it.
                    let _ = done.send(());
                    if result.is_err() {
                        return;
                    }
                }
                Some(SnapshotRequest::Finish(done)) => {
                    let _ = self.save(ShutdownKind::Clean).await;
                    let _ = done.send(());
                    return;
                }
                // All handles are dropped.
                None => return,
            }
        }
    }

    /// Waits until a save is due.
    async fn wait_until_due(&self, earliest: Instant) {
        let mut latest: Option<Instant> = None;
        loop {
            let due = match self.dirty_flag.urgency() {
                Some(Urgency::Soon) => return sleep_until(earliest).await,
                Some(Urgency::Later) => *latest.get_or_insert_with(|| Instant::now() + self.config.later),
                None => {
                    self.dirty_flag.notified().await;
                    continue;
                }
            };
            tokio::select! {
                () = sleep_until(due.max(earliest)) => return,
                () = self.dirty_flag.notified() => {}
            }
        }
    }

    /// Loads the snapshot. If that fails it logs a warning, and the gate starts without.
    async fn load(&self) -> Option<GateSnapshot> {
        let error = match timeout(self.config.timeout, self.config.store.load()).await {
            Ok(Ok(None)) => return None,
            Ok(Ok(Some(text))) => match GateSnapshot::decode(&text) {
                Ok(snapshot) => return Some(snapshot),
                Err(unreadable) => (unreadable.name(), unreadable.to_string()),
            },
            Ok(Err(error)) => ("unavailable", error.to_string()),
            Err(_) => ("timed_out", format!("no response within {} ms", self.config.timeout.as_millis())),
        };
        emit(SnapshotUnreadable { reason: error.0, message: &error.1 });
        None
    }

    async fn restore(&self, snapshot: Option<GateSnapshot>) -> Result<(), ActorsGone> {
        let now = self.config.wall.now();
        let is_first = snapshot.is_none();
        let snapshot = snapshot.unwrap_or_default();
        let age = snapshot.age(now);
        if !is_first {
            emit(SnapshotRestored {
                age: now.since(snapshot.saved_at),
                ahead: snapshot.saved_at.since(now),
                ending: snapshot.ending,
                routes: snapshot.limits.routes(),
                closed: snapshot.limits.closed(),
                breakers: snapshot.breakers.len(),
                invalid: snapshot.invalid.total(),
            });
        }
        let unsaved = match snapshot.ending {
            // The first is saved at once; those after it may not have been saved.
            ShutdownKind::Sudden if snapshot.invalid.total() > 0 => self.unsaved,
            ShutdownKind::Sudden | ShutdownKind::Clean => 0,
        };
        // The first process has no predecessor.
        if !is_first {
            self.tokens.restore(snapshot.limits, age, snapshot.ending).await.ok_or(ActorsGone)?;
        }
        // Even without a snapshot: the breaker learns the current tokens.
        let tokens = self.config.tokens.clone();
        let GateSnapshot { breakers, invalid, invalid_holders, .. } = snapshot;
        let restore = RestoreBreakers { breakers, invalid, invalid_holders, unsaved, tokens, age };
        self.breaker.send(restore).await.map_err(|_| ActorsGone)
    }

    /// Saves everything. On failure it is retried later.
    async fn save(&self, ending: ShutdownKind) -> Result<WriteResult, ActorsGone> {
        // Reset before the state is read: what changes in the meantime is part of the next save.
        failpoint::message(Part::GateSnapshot);
        self.dirty_flag.reset();
        let limits = self.tokens.snapshot().await.ok_or(ActorsGone)?;
        let (breakers, invalid) = self.breaker.send(SnapshotBreakers).await.map_err(|_| ActorsGone)?;
        // The timestamp is taken afterwards, so that the age is never overestimated.
        let snapshot = GateSnapshot::new(self.config.wall.now(), ending, limits, breakers, invalid);
        let text = snapshot.encode();
        let (began, bytes) = (Instant::now(), text.len());
        let error = match timeout(self.config.timeout, self.config.store.save(text)).await {
            Ok(Ok(())) => {
                emit(SnapshotSaved { bytes, elapsed: began.elapsed() });
                self.failures.on_success();
                return Ok(WriteResult::Saved);
            }
            Ok(Err(error)) => error.to_string(),
            Err(_) => format!("no response within {} ms", self.config.timeout.as_millis()),
        };
        emit(SnapshotSaveFailed { reason: &error, summary: self.failures.on_failure() });
        self.dirty_flag.set(Urgency::Soon);
        Ok(WriteResult::Failed)
    }
}
