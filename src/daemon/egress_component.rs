//! The REST proxy for bots that make their own calls.

use std::net::SocketAddr;

use tokio::time::Instant;

use super::StartError;
use crate::{
    api::{self, BindError, BoundListener},
    egress::{Egress, EgressConfig, EgressListener, EgressListenerConfig},
    settings::EgressSettings,
};

/// Passes calls of bots through the gate, if that is enabled.
#[derive(Debug)]
pub(crate) struct EgressComponent(Option<EgressListener>);

impl EgressComponent {
    /// Binds the address. Nothing is served yet.
    pub(crate) fn bind(settings: &EgressSettings) -> Result<Option<BoundListener>, BindError> {
        settings.enabled.then(|| api::bind_for(settings.bind, api::EGRESS_BIND)).transpose()
    }

    /// Starts to serve.
    pub(crate) fn start<'a>(
        bound: Option<BoundListener>,
        config: impl FnOnce(SocketAddr) -> EgressConfig<'a>,
    ) -> Result<Self, StartError> {
        let Some(bound) = bound else { return Ok(Self(None)) };
        let config = config(bound.address());
        let limits = EgressListenerConfig::from(config.settings);
        let egress = Egress::new(config).map_err(|error| StartError::TokenFile(error.to_string()))?;
        let listener = EgressListener::start(bound, egress, limits);
        Ok(Self(Some(listener.map_err(StartError::Serve)?)))
    }

    /// Stops before the gate does: calls in progress are answered.
    pub(crate) async fn stop(&mut self, deadline: Instant) {
        if let Some(listener) = self.0.take() {
            listener.stop(deadline.saturating_duration_since(Instant::now())).await;
        }
    }
}
