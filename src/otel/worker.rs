//! Takes spans from the queue and exports them in batches.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use guildhall_actors::telemetry::emit;
use guildhall_actors::telemetry::span::Span;
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
const BATCH: usize = 512;
/// How long the first span of a batch waits for others.
const GATHERS: Duration = Duration::from_secs(1);
/// Attempts to send a batch before it is dropped.
const TRIES: u32 = 3;
/// Attempts, and the delay between them, while the process is shutting down.
const LAST_TRIES: u32 = 2;
const LAST_WAIT: Duration = Duration::from_millis(200);
/// Delay after the first failure; doubles with each attempt.
const BACKOFF: Duration = Duration::from_secs(1);

pub(super) struct ExportWorker {
    pub(super) client: CollectorClient,
    pub(super) resource: Resource,
    pub(super) waiting: mpsc::Receiver<Span>,
    pub(super) lost: Arc<AtomicU64>,
    pub(super) stopped: watch::Receiver<bool>,
}

impl ExportWorker {
    /// Exports spans until it is stopped and the queue is empty.
    pub(super) async fn run(mut self) {
        loop {
            let mut batch = Vec::new();
            self.gather(&mut batch).await;
            if batch.is_empty() {
                break;
            }
            self.export(&batch).await;
            let lost = self.lost.swap(0, Ordering::Relaxed);
            if lost > 0 {
                emit(SpanQueueOverflowed { count: lost });
            }
        }
    }

    /// Waits for the first span, and then a moment for others. `batch` stays empty if there will be no more.
    async fn gather(&mut self, batch: &mut Vec<Span>) {
        let mut until = None;
        while batch.len() < BATCH {
            if *self.stopped.borrow() {
                // No spans are added any more: the queued ones are the last.
                self.waiting.close();
                let room = BATCH - batch.len();
                self.waiting.recv_many(batch, room).await;
                return;
            }
            let room = BATCH - batch.len();
            let (waiting, stopped) = (&mut self.waiting, &mut self.stopped);
            let more = async {
                match until {
                    None => Some(waiting.recv_many(batch, room).await),
                    Some(until) => timeout_at(until, waiting.recv_many(batch, room)).await.ok(),
                }
            };
            tokio::select! {
                more = more => match more {
                    None | Some(0) => return,
                    Some(_) => { until.get_or_insert_with(|| Instant::now() + GATHERS); }
                },
                _ = stopped.changed() => {}
            }
        }
    }

    async fn export(&mut self, batch: &[Span]) {
        let (body, count) = (Bytes::from(self.resource.request(batch)), batch.len() as u64);
        let (began, mut tried) = (Instant::now(), 0);
        loop {
            tried += 1;
            let (says, wait) = match self.client.send(body.clone()).await {
                Ok(rejected) => {
                    let rejected = rejected.min(count);
                    emit(SpansExported { count: count - rejected, took: began.elapsed() });
                    if rejected > 0 {
                        emit(SpansDropped { count: rejected, why: "rejected" });
                    }
                    return;
                }
                Err(ExportError::Never { says }) => return emit(ExportFailed { count, why: "refused", says: &says }),
                Err(ExportError::Later { says, wait }) => (says, wait.unwrap_or(BACKOFF * 2_u32.pow(tried - 1))),
            };
            // During shutdown it retries once, after a short delay.
            let ends = *self.stopped.borrow();
            if tried >= TRIES || ends && tried >= LAST_TRIES {
                return emit(ExportFailed { count, why: "unreachable", says: &says });
            }
            let wait = if ends { wait.min(LAST_WAIT) } else { wait };
            emit(ExportRetried { says: &says, wait });
            tokio::select! {
                () = sleep(wait) => {}
                _ = self.stopped.changed() => {}
            }
        }
    }
}
