//! Metrics and spans of the daemon.

use std::time::Duration;

use guildhall_actors::supervision::{Part, Supervision};
use guildhall_actors::{failpoint, supervision};
use guildhall_core::event::handler::EventHandlers;
use metrics_exporter_prometheus::PrometheusHandle;
use tokio::{
    task::JoinHandle,
    time::{Instant, timeout_at},
};

use super::StartError;
use super::spans_component::SpansComponent;
use crate::{handlers, logging::Secrets, metrics, process, settings::Settings};

/// How often the recorder folds what it has collected, which bounds its memory when nothing scrapes it.
const UPKEEP_INTERVAL: Duration = Duration::from_secs(5);

/// The metrics recorder, and the exporter of spans.
#[derive(Debug)]
pub(crate) struct TelemetryComponent {
    recorder: PrometheusHandle,
    upkeep: JoinHandle<()>,
    spans: SpansComponent,
    /// What no span may contain.
    secrets: Secrets,
}

impl TelemetryComponent {
    /// Starts to record metrics, and to export spans if that is configured.
    pub(crate) fn start(settings: &Settings, handlers: &EventHandlers) -> Result<Self, StartError> {
        let recorder = metrics::install()?;
        Supervision::installed().iter().for_each(Supervision::report_counts);
        let secrets = Secrets::new(settings.secrets().into_iter().chain(handlers::secrets(handlers)).collect());
        let spans = SpansComponent::start(settings, secrets.clone());
        let spans = spans.map_err(|error| StartError::Spans(error.to_string()))?;
        process::record_start();
        let upkeep = supervision::spawn(Part::MetricsUpkeep, upkeep(recorder.clone()));
        Ok(Self { recorder, upkeep, spans, secrets })
    }

    /// Renders the metrics.
    pub(crate) fn recorder(&self) -> PrometheusHandle {
        self.recorder.clone()
    }

    pub(crate) fn secrets(&self) -> &Secrets {
        &self.secrets
    }

    /// Exports the spans that have ended. A slow collector delays nothing past the deadline.
    pub(crate) async fn stop(self, deadline: Instant) {
        self.upkeep.abort();
        let _ = timeout_at(deadline, self.spans.finish()).await;
    }
}

async fn upkeep(recorder: PrometheusHandle) {
    let mut tick = tokio::time::interval(UPKEEP_INTERVAL);
    loop {
        tick.tick().await;
        failpoint::message(Part::MetricsUpkeep);
        recorder.run_upkeep();
    }
}
