//! Parts of traces, told to an OpenTelemetry collector: OTLP over HTTP, as JSON.
//!
//! ```text
//!  whoever ends a part ──try──▶ bounded queue ──▶ worker: batches ──POST /v1/traces──▶ collector
//!                        └─ full: counted, gone        └─ tried a few times, then counted, gone
//! ```
//!
//! Nobody waits for it, and nothing depends on it: a collector that is slow or away costs spans, which are counted, and
//! nothing else.

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
use guildhall_actors::telemetry::emit;
use guildhall_actors::telemetry::span::{Span, SpanListener};
use tokio::{
    sync::{mpsc, watch},
    task::JoinHandle,
};

pub use self::client::EndpointError;
use self::{client::CollectorClient, encode::Resource, events::SpansDropped, worker::ExportWorker};
use crate::{logging::Secrets, settings::TelemetrySettings};

/// The way to a collector.
#[derive(Debug)]
pub struct Exporter {
    queue: Arc<SpanQueue>,
    stop: watch::Sender<bool>,
    task: JoinHandle<()>,
}

/// What waits for the worker.
#[derive(Debug)]
pub(crate) struct SpanQueue {
    spans: mpsc::Sender<Span>,
    /// Those that found no room since the worker last looked.
    lost: Arc<AtomicU64>,
}

impl SpanListener for SpanQueue {
    fn on_ended(&self, span: Span) {
        if self.spans.try_send(span).is_err() {
            self.lost.fetch_add(1, Ordering::Relaxed);
            emit(SpansDropped { count: 1, why: "full" });
        }
    }
}

impl Exporter {
    /// Begins to tell the collector of the settings, if they name one. None of these secrets is told.
    ///
    /// # Errors
    ///
    /// When the collector's address or a header cannot be used.
    pub fn start(settings: &TelemetrySettings, secrets: Secrets) -> Result<Option<Self>, EndpointError> {
        let Some(client) = CollectorClient::new(settings)? else { return Ok(None) };
        let (spans, waiting) = mpsc::channel(settings.queue);
        let lost = Arc::new(AtomicU64::new(0));
        let (stop, stopped) = watch::channel(false);
        let resource = Resource::new(&settings.service_name, secrets);
        let worker = ExportWorker { client, resource, waiting, lost: Arc::clone(&lost), stopped };
        let task = supervision::spawn(Part::SpanExporter, worker.run());
        Ok(Some(Self { queue: Arc::new(SpanQueue { spans, lost }), stop, task }))
    }

    /// Where parts are told that are over.
    #[must_use]
    pub fn listener(&self) -> Arc<dyn SpanListener> {
        self.queue.clone()
    }

    /// Tells what waits, once, and ends.
    pub async fn finish(self) {
        self.stop.send_replace(true);
        // A panic of it has been told of already.
        drop(self.task.await);
    }
}
