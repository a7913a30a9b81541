//! The API of the daemon: its listener, and what it serves. It responds from the start, and is closed last.

use std::{
    sync::{Mutex, PoisonError},
    time::Duration,
};

use guildhall_actors::submission::CompletionConfig;
use guildhall_actors::supervision;
use guildhall_actors::supervision::Part;
use metrics_exporter_prometheus::PrometheusHandle;
use tokio::{task::JoinHandle, time::Instant};

use super::StartError;
use crate::{
    api::{
        self, BoundListener, Certificates, Control, ControlConfig, EdgeConfig, Listener, ListenerHandle,
        PoliciesConfig, Readiness, StreamsConfig, TrustedProxies,
    },
    events::{ListenerStarted, emit},
    settings::{ApiSettings, PolicySettings},
};

/// How often the certificate's files are checked.
pub(super) const CERTIFICATE_CHECK_INTERVAL: Duration = Duration::from_secs(5);

/// The address of the API, before anything is served.
pub(crate) struct BoundApi {
    listener: BoundListener,
    certificates: Option<Certificates>,
}

impl BoundApi {
    /// Loads the certificate and binds the address.
    pub(crate) fn bind(settings: &ApiSettings) -> Result<Self, StartError> {
        let certificates = settings.tls.as_ref().map(Certificates::load).transpose()?;
        let listener = api::bind(settings.bind)?.with_limits(edge_config(settings)).with_tls(certificates.clone());
        Ok(Self { listener, certificates })
    }
}

/// The API.
#[derive(Debug)]
pub(crate) struct ApiComponent {
    pub(crate) control: Control,
    listener: Listener,
    certificates: Option<(Certificates, JoinHandle<()>)>,
    /// How long requests are accepted after a shutdown has begun.
    drain_delay: Duration,
}

impl ApiComponent {
    /// Starts to respond. `handle` can close it from now on.
    pub(crate) fn start(
        bound: BoundApi,
        control: Control,
        readiness: &Readiness,
        recorder: PrometheusHandle,
        handle: &ApiHandle,
        drain_delay: Duration,
    ) -> Result<Self, StartError> {
        let BoundApi { listener, certificates } = bound;
        let listener = listener.serve(readiness.clone(), recorder, Some(control.clone())).map_err(StartError::Serve)?;
        handle.open(&control, &listener);
        emit(ListenerStarted { address: listener.address(), tls: certificates.is_some() });
        let certificates = certificates.map(|certificates| {
            let follow = certificates.clone().follow(CERTIFICATE_CHECK_INTERVAL);
            (certificates, supervision::spawn(Part::Certificates, follow))
        });
        Ok(Self { control, listener, certificates, drain_delay })
    }

    pub(crate) fn listener(&self) -> &Listener {
        &self.listener
    }

    pub(crate) fn certificates(&self) -> Option<Certificates> {
        self.certificates.as_ref().map(|(certificates, _)| certificates.clone())
    }

    /// Rejects new requests at once, unless they are accepted for a while.
    pub(crate) fn begin_shutdown(&self) {
        if self.drain_delay.is_zero() {
            self.control.drain();
        }
    }

    /// Rejects new requests once that while is over, but at the latest after `timeout`.
    pub(crate) async fn drain(&self, timeout: Duration) {
        tokio::time::sleep(self.drain_delay.min(timeout)).await;
        self.control.drain();
    }

    /// How long requests are accepted after a shutdown has begun.
    pub(crate) fn drain_delay(&self) -> Duration {
        self.drain_delay
    }

    /// Waits until the requests in flight are finished. Returns `false` if that takes longer.
    pub(crate) async fn stop(self, deadline: Instant) -> bool {
        let stopped = self.listener.stop(deadline.saturating_duration_since(Instant::now())).await;
        if let Some((_, following)) = self.certificates {
            following.abort();
        }
        stopped
    }
}

/// Limits of connections.
pub(crate) fn edge_config(settings: &ApiSettings) -> EdgeConfig {
    EdgeConfig {
        connections: settings.max_connections,
        header_timeout: settings.header_timeout,
        write_timeout: settings.write_timeout,
        keep_alive: settings.keep_alive,
        ..EdgeConfig::default()
    }
}

/// Limits of requests.
pub(crate) fn control_config(settings: &ApiSettings) -> ControlConfig {
    let PolicySettings { heavy, heavy_max_wait, light, failed, max_tracked, shared: _ } = settings.policies;
    let defaults = ControlConfig::default();
    let streams = settings.max_streams;
    ControlConfig {
        max_body: defaults.max_body.min(settings.max_body_bytes),
        max_submission: settings.max_body_bytes,
        body_timeout: settings.body_timeout,
        max_bodies: defaults.max_bodies.max(settings.max_body_bytes),
        streams: StreamsConfig {
            max: streams,
            max_per_key: (streams / 4).max(1),
            stall_timeout: settings.stream_stall,
            ..defaults.streams
        },
        completion: CompletionConfig { max_callers: settings.max_waiters, ..defaults.completion },
        policies: PoliciesConfig { heavy, heavy_max_wait, light, failed, max_tracked },
        ..defaults
    }
}

/// The rates of the current settings; values that need a restart are those of the start.
pub(crate) fn policies_config(current: &ApiSettings, started: &ApiSettings) -> PoliciesConfig {
    let PolicySettings { heavy, light, failed, .. } = current.policies;
    PoliciesConfig { heavy, light, failed, ..control_config(started).policies }
}

/// The trusted proxies.
pub(crate) fn trusted_proxies(settings: &ApiSettings) -> TrustedProxies {
    TrustedProxies { networks: settings.trusted_proxies.clone(), header: settings.forwarded_header }
}

/// The API of a daemon that is still starting: it responds from the start.
#[derive(Debug, Default)]
pub struct ApiHandle(Mutex<Option<(Control, ListenerHandle)>>);

impl ApiHandle {
    pub(crate) fn open(&self, control: &Control, listener: &Listener) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some((control.clone(), listener.handle()));
    }

    /// Rejects new requests from now on.
    pub fn drain(&self) {
        if let Some((control, _)) = &*self.0.lock().unwrap_or_else(PoisonError::into_inner) {
            control.drain();
        }
    }

    /// Waits until the requests in flight are finished, but at most this long.
    pub async fn close(&self, timeout: Duration) {
        let open = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some((_, handle)) = open {
            handle.close(timeout).await;
        }
    }
}
