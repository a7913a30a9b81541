//! The listener for interactions over HTTP.

use guildhall_actors::supervisor::EventsHandle;
use guildhall_actors::wall_clock::WallClock;
use tokio::time::Instant;

use super::StartError;
use crate::{
    api::{self, BindError, BoundListener, InteractionsEndpoint, Listener},
    settings::InteractionSettings,
};

/// Receives interactions, if a public key is configured.
#[derive(Debug)]
pub(crate) struct InteractionsComponent(Option<Listener>);

impl InteractionsComponent {
    /// Binds the address. Nothing is served yet.
    pub(crate) fn bind(settings: &InteractionSettings) -> Result<Option<BoundListener>, BindError> {
        settings.public_key.map(|_| api::bind_for(settings.bind, api::INTERACTIONS_BIND)).transpose()
    }

    /// Starts to receive interactions.
    pub(crate) fn start(
        bound: Option<BoundListener>,
        settings: &InteractionSettings,
        events: EventsHandle,
        clock: WallClock,
    ) -> Result<Self, StartError> {
        let (Some(bound), Some(key)) = (bound, settings.public_key) else { return Ok(Self(None)) };
        let endpoint = InteractionsEndpoint { key, window: settings.replay_window, events, clock };
        Ok(Self(Some(bound.serve_interactions(endpoint).map_err(StartError::Serve)?)))
    }

    /// Stops before events do: Discord must not be sent a response that no handler can follow up.
    pub(crate) async fn stop(&mut self, deadline: Instant) {
        if let Some(listener) = self.0.take() {
            listener.stop(deadline.saturating_duration_since(Instant::now())).await;
        }
    }
}
