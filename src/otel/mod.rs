//! Exports spans to an OpenTelemetry collector: OTLP over HTTP, as JSON.
//!
//! ```text
//!  end of a span ──try_send──▶ bounded queue ──▶ worker: batches ──POST /v1/traces──▶ collector
//!                  └─ full: counted, dropped        └─ retried a few times, then counted, dropped
//! ```
//!
//! No other code waits for the export or depends on it: if a collector is slow or unreachable, spans are dropped and
//! counted, and nothing else is affected.

mod client;
mod encode;
mod events;
mod worker;

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use guildhall_actors::supervision;
use guildhall_actors::supervision::Part;
use guildhall_actors::telemetry::span::{Span, SpanListener};
use guildhall_actors::telemetry::{FailureLog, emit};
use tokio::{
    sync::{mpsc, watch},
    task::JoinHandle,
};

pub use self::client::EndpointError;
use self::{client::CollectorClient, encode::Resource, events::SpansDropped, worker::ExportWorker};
use crate::{logging::Secrets, settings::TelemetrySettings};

/// Exports spans to a collector.
#[derive(Debug)]
pub struct Exporter {
    queue: Arc<SpanQueue>,
    stop: watch::Sender<bool>,
    task: JoinHandle<()>,
}

/// Sending side of the worker's queue.
#[derive(Debug)]
pub(crate) struct SpanQueue {
    spans: mpsc::Sender<Span>,
    /// Spans that were dropped since the worker last reported, because the queue was full.
    dropped: Arc<AtomicU64>,
}

impl SpanListener for SpanQueue {
    fn on_ended(&self, span: Span) {
        if self.spans.try_send(span).is_err() {
            self.dropped.fetch_add(1, Ordering::Relaxed);
            emit(SpansDropped { count: 1, reason: "full" });
        }
    }
}

impl Exporter {
    /// Starts the export to the collector in the settings, if they name one. The secrets are replaced in all exported
    /// text.
    ///
    /// # Errors
    ///
    /// If the collector's URL or a header is invalid.
    pub fn start(settings: &TelemetrySettings, secrets: Secrets) -> Result<Option<Self>, EndpointError> {
        let Some(client) = CollectorClient::new(settings)? else { return Ok(None) };
        let (spans, waiting) = mpsc::channel(settings.queue);
        let lost = Arc::new(AtomicU64::new(0));
        let (stop, stopped) = watch::channel(false);
        let resource = Resource::new(&settings.service_name, secrets);
        let worker = ExportWorker {
            client,
            resource,
            queue: waiting,
            dropped: Arc::clone(&lost),
            stopped,
            failures: FailureLog::new("span export"),
            overflows: FailureLog::new("queue of spans"),
        };
        let task = supervision::spawn(Part::SpanExporter, worker.run());
        Ok(Some(Self { queue: Arc::new(SpanQueue { spans, dropped: lost }), stop, task }))
    }

    /// Returns the listener for spans that end.
    #[must_use]
    pub fn listener(&self) -> Arc<dyn SpanListener> {
        self.queue.clone()
    }

    /// Exports the queued spans, once, and stops.
    pub async fn finish(self) {
        self.stop.send_replace(true);
        // A panic of the task has been reported already.
        drop(self.task.await);
    }
}
