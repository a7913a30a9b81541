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
pub(crate) const LOOK_EVERY: Duration = Duration::from_secs(5);

/// Limits of connections.
pub(crate) fn edge(set: &ApiSettings) -> EdgeConfig {
    EdgeConfig {
        connections: set.max_connections,
        header_within: set.header_timeout,
        write_within: set.write_timeout,
        keep_alive: set.keep_alive,
        ..EdgeConfig::default()
    }
}

/// Limits of requests.
pub(crate) fn control(set: &ApiSettings) -> ControlConfig {
    let PolicySettings { heavy, heavy_max_wait, light, failed, max_tracked, shared: _ } = set.policies;
    let defaults = ControlConfig::default();
    let streams = set.max_streams;
    ControlConfig {
        body_most: defaults.body_most.min(set.max_body_bytes),
        submission_most: set.max_body_bytes,
        body_within: set.body_timeout,
        bodies_most: defaults.bodies_most.max(set.max_body_bytes),
        streams: StreamsConfig {
            most: streams,
            most_per_key: (streams / 4).max(1),
            stall: set.stream_stall,
            ..defaults.streams
        },
        waits: CompletionConfig { callers_most: set.max_waiters, ..defaults.waits },
        policies: PoliciesConfig { heavy, heavy_max_wait, light, failed, most: max_tracked },
        ..defaults
    }
}

/// The rates of the current settings; values that need a restart are those of the start.
pub(crate) fn policies(now: &ApiSettings, started: &ApiSettings) -> PoliciesConfig {
    let PolicySettings { heavy, light, failed, .. } = now.policies;
    PoliciesConfig { heavy, light, failed, ..control(started).policies }
}

/// The trusted proxies.
pub(crate) fn proxies(set: &ApiSettings) -> TrustedProxies {
    TrustedProxies { trusted: set.trusted_proxies.clone(), header: set.forwarded_header }
}

/// The API of a daemon that is still starting: it responds from the start.
#[derive(Debug, Default)]
pub struct ApiHandle(Mutex<Option<(Control, ListenerHandle)>>);

impl ApiHandle {
    pub(crate) fn open(&self, control: &Control, listener: &Listener) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some((control.clone(), listener.closer()));
    }

    /// Rejects new requests from now on.
    pub fn drain(&self) {
        if let Some((control, _)) = &*self.0.lock().unwrap_or_else(PoisonError::into_inner) {
            control.drain();
        }
    }

    /// Waits until the requests in flight are finished, but at most this long.
    pub async fn close(&self, within: Duration) {
        let open = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some((_, closer)) = open {
            closer.close(within).await;
        }
    }
}
