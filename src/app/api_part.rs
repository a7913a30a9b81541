//! What the API is told of the settings.

use std::time::Duration;

use crate::{
    api::{ControlConfig, EdgeConfig, PoliciesConfig, Proxies},
    settings::{Api, Policies},
};

/// How often the certificate's files are looked at.
pub(super) const LOOK_EVERY: Duration = Duration::from_secs(5);

/// What connections may cost.
pub(super) fn edge(set: &Api) -> EdgeConfig {
    EdgeConfig {
        connections: set.max_connections,
        header_within: set.header_timeout,
        write_within: set.write_timeout,
        keep_alive: set.keep_alive,
        ..EdgeConfig::default()
    }
}

/// What requests may cost.
pub(super) fn control(set: &Api) -> ControlConfig {
    let Policies { heavy, heavy_max_wait, light, failed, max_tracked, shared: _ } = set.policies;
    let defaults = ControlConfig::default();
    ControlConfig {
        body_most: set.max_body_bytes,
        body_within: set.body_timeout,
        bodies_most: defaults.bodies_most.max(set.max_body_bytes),
        policies: PoliciesConfig { heavy, heavy_max_wait, light, failed, most: max_tracked },
        ..defaults
    }
}

/// Who may speak for others.
pub(super) fn proxies(set: &Api) -> Proxies {
    Proxies { trusted: set.trusted_proxies.clone(), header: set.forwarded_header }
}
