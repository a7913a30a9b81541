//! Takes spans from the queue and exports them in batches.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use guildhall_actors::telemetry::span::Span;
use guildhall_actors::telemetry::{FailureLog, emit};
use guildhall_core::backoff::Backoff;
use tokio::{
    sync::{mpsc, watch},
    time::{Instant, sleep, timeout_at},
};

use super::{
    client::{CollectorClient, ExportError},
    encode::Resource,
    events::{ExportFailed, ExportRetried, SpanQueueOverflowed, SpansDropped, SpansExported},
};

/// Maximum number of spans in a request.
const BATCH_SIZE: usize = 512;
/// How long the first span of a batch waits for others.
const BATCH_DELAY: Duration = Duration::from_secs(1);
/// Attempts to send a batch before it is dropped.
const MAX_ATTEMPTS: u32 = 3;
/// Attempts, and the delay between them, while the process is shutting down.
const SHUTDOWN_ATTEMPTS: u32 = 2;
const SHUTDOWN_RETRY_DELAY: Duration = Duration::from_millis(200);
/// Delays between attempts, unless the collector requests one.
const BACKOFF: Backoff = Backoff::exact(Duration::from_secs(1), Duration::from_secs(60));

pub(super) struct ExportWorker {
    pub(super) client: CollectorClient,
    pub(super) resource: Resource,
    pub(super) queue: mpsc::Receiver<Span>,
    pub(super) dropped: Arc<AtomicU64>,
    pub(super) stopped: watch::Receiver<bool>,
    pub(super) failures: FailureLog,
    pub(super) overflows: FailureLog,
}

impl ExportWorker {
    /// Exports spans until it is stopped and the queue is empty.
    pub(super) async fn run(mut self) {
        loop {
            let mut batch = Vec::new();
            self.fill_batch(&mut batch).await;
            if batch.is_empty() {
                break;
            }
            self.export(&batch).await;
            if self.dropped.load(Ordering::Relaxed) > 0 && self.overflows.on_isolated_failure().is_some() {
                emit(SpanQueueOverflowed { count: self.dropped.swap(0, Ordering::Relaxed) });
            }
        }
    }

    /// Waits for the first span, and then a moment for others. `batch` stays empty if there will be no more.
    async fn fill_batch(&mut self, batch: &mut Vec<Span>) {
        let mut until = None;
        while batch.len() < BATCH_SIZE {
            if *self.stopped.borrow() {
                // No spans are added any more: the queued ones are the last.
                self.queue.close();
                let room = BATCH_SIZE - batch.len();
                self.queue.recv_many(batch, room).await;
                return;
            }
            let room = BATCH_SIZE - batch.len();
            let (waiting, stopped) = (&mut self.queue, &mut self.stopped);
            let more = async {
                match until {
                    None => Some(waiting.recv_many(batch, room).await),
                    Some(until) => timeout_at(until, waiting.recv_many(batch, room)).await.ok(),
                }
            };
            tokio::select! {
                more = more => match more {
                    None | Some(0) => return,
                    Some(_) => { until.get_or_insert_with(|| Instant::now() + BATCH_DELAY); }
                },
                _ = stopped.changed() => {}
            }
        }
    }

    async fn export(&mut self, batch: &[Span]) {
        let (body, count) = (Bytes::from(self.resource.request(batch)), batch.len() as u64);
        let (started, mut attempts) = (Instant::now(), 0);
        loop {
            attempts += 1;
            let (message, wait) = match self.client.send(body.clone()).await {
                Ok(rejected) => {
                    self.failures.on_success();
                    let rejected = rejected.min(count);
                    emit(SpansExported { count: count - rejected, elapsed: started.elapsed() });
                    if rejected > 0 {
                        emit(SpansDropped { count: rejected, reason: "rejected" });
                    }
                    return;
                }
                Err(ExportError::Permanent { message }) => {
                    return emit(ExportFailed {
                        count,
                        reason: "refused",
                        message: &message,
                        summary: self.failures.on_failure(),
                    });
                }
                Err(ExportError::Retryable { message, wait }) => {
                    (message, wait.unwrap_or(BACKOFF.delay_without_jitter(attempts)))
                }
            };
            // During shutdown it retries once, after a short delay.
            let is_stopping = *self.stopped.borrow();
            if attempts >= MAX_ATTEMPTS || is_stopping && attempts >= SHUTDOWN_ATTEMPTS {
                return emit(ExportFailed {
                    count,
                    reason: "unreachable",
                    message: &message,
                    summary: self.failures.on_failure(),
                });
            }
            let wait = if is_stopping { wait.min(SHUTDOWN_RETRY_DELAY) } else { wait };
            emit(ExportRetried { message: &message, wait });
            tokio::select! {
                () = sleep(wait) => {}
                _ = self.stopped.changed() => {}
            }
        }
    }
}
