//! Configures the API from the settings, and closes it if the daemon ends before it has started.

use std::{
    sync::{Mutex, PoisonError},
    time::Duration,
};

use guildhall_actors::submission::CompletionConfig;

use crate::{
    api::{
        Control, ControlConfig, EdgeConfig, Listener, ListenerHandle, PoliciesConfig, StreamsConfig, TrustedProxies,
    },
    settings::{ApiSettings, PolicySettings},
};

/// How often the certificate's files are checked.
pub(crate) const CERTIFICATE_CHECK_INTERVAL: Duration = Duration::from_secs(5);

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
