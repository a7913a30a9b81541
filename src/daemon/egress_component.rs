//! The REST proxy for bots that make their own calls.

use std::{net::SocketAddr, time::Duration};

use guildhall_actors::supervision::{self, Part};
use tokio::{
    task::JoinHandle,
    time::{Instant, sleep_until},
};

use super::StartError;
use super::api_component::CERTIFICATE_CHECK_INTERVAL;
use crate::{
    api::{self, Certificates},
    egress::{BoundEgress, BoundSocket, Egress, EgressConfig, EgressListener, EgressListenerConfig, SocketFile},
    settings::EgressSettings,
};

/// The address of the REST proxy, before anything is served.
pub(crate) struct BoundEgressComponent {
    bound: BoundEgress,
    file: Option<SocketFile>,
}

/// Passes calls of bots through the gate, if that is enabled.
#[derive(Debug)]
pub(crate) struct EgressComponent(Option<RunningEgress>);

#[derive(Debug)]
struct RunningEgress {
    listener: EgressListener,
    certificates: Option<(Certificates, JoinHandle<()>)>,
    _file: Option<SocketFile>,
}

impl EgressComponent {
    /// Loads the certificate, and binds the address and the socket. Nothing is served yet.
    pub(crate) fn bind(settings: &EgressSettings) -> Result<Option<BoundEgressComponent>, StartError> {
        if !settings.enabled {
            return Ok(None);
        }
        let certificates = settings.tls.as_ref().map(Certificates::load).transpose()?;
        let tcp = api::bind_for(settings.bind, api::EGRESS_BIND)?;
        let (socket, file) = settings.socket.as_deref().map(BoundSocket::bind).transpose()?.unzip();
        Ok(Some(BoundEgressComponent { bound: BoundEgress { tcp, certificates, socket }, file }))
    }

    /// Starts to serve.
    pub(crate) fn start<'a>(
        bound: Option<BoundEgressComponent>,
        config: impl FnOnce(SocketAddr) -> EgressConfig<'a>,
    ) -> Result<Self, StartError> {
        let Some(BoundEgressComponent { bound, file }) = bound else { return Ok(Self(None)) };
        let config = config(bound.tcp.address());
        let limits = EgressListenerConfig::from(config.settings);
        let certificates = bound.certificates.clone();
        let egress = Egress::new(config).map_err(|error| StartError::TokenFile(error.to_string()))?;
        let listener = EgressListener::start(bound, egress, limits).map_err(StartError::ServeEgress)?;
        let certificates = certificates.map(|certificates| {
            let follow = certificates.clone().follow(CERTIFICATE_CHECK_INTERVAL);
            (certificates, supervision::spawn(Part::Certificates, follow))
        });
        Ok(Self(Some(RunningEgress { listener, certificates, _file: file })))
    }

    /// The certificate in use.
    pub(crate) fn certificates(&self) -> Option<Certificates> {
        self.0.as_ref()?.certificates.as_ref().map(|(certificates, _)| certificates.clone())
    }

    /// Stops before the gate does: calls in progress are answered. New ones are accepted for `delay`, but at least half
    /// of the time is left for those in progress.
    pub(crate) async fn stop(&mut self, delay: Duration, deadline: Instant) {
        let Some(RunningEgress { listener, certificates, _file }) = self.0.take() else { return };
        let now = Instant::now();
        sleep_until(now + delay.min(deadline.saturating_duration_since(now) / 2)).await;
        listener.stop(deadline.saturating_duration_since(Instant::now())).await;
        if let Some((_, following)) = certificates {
            following.abort();
        }
    }
}
