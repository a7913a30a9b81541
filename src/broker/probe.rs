//! Looks at the RabbitMQ once, for `guildhall broker` and `guildhall doctor`.

use std::time::Duration;

use tokio::time::Instant;

use super::{
    BrokerConfigError,
    connection::BrokerConnector,
    error::BrokerFailure,
    topology::{QueueState, Topology},
};
use crate::settings::{BrokerSettings, BrokerUrl};

/// Why RabbitMQ cannot be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum BrokerProbeError {
    /// The settings are invalid.
    #[error(transparent)]
    Config(#[from] BrokerConfigError),
    /// RabbitMQ refuses, or does not respond.
    #[error(transparent)]
    Failed(#[from] BrokerFailure),
}

/// What was seen.
#[derive(Debug)]
pub(crate) struct BrokerProbe {
    /// Time that the connection took.
    pub(crate) connect_time: Duration,
    /// The queues.
    pub(crate) queues: Vec<QueueState>,
}

/// Connects, and looks at all exchanges and queues. Changes nothing.
pub(crate) async fn probe(settings: &BrokerSettings, url: &BrokerUrl) -> Result<BrokerProbe, BrokerProbeError> {
    let started = Instant::now();
    let connection = BrokerConnector::new(settings, url.clone())?.connect().await?;
    let connect_time = started.elapsed();
    let queues = Topology::new(settings).check(&connection).await?;
    drop(connection.close(200, "done".into()).await);
    Ok(BrokerProbe { connect_time, queues })
}

/// Declares what does not exist, and compares what does.
pub(crate) async fn declare(settings: &BrokerSettings, url: &BrokerUrl) -> Result<BrokerProbe, BrokerProbeError> {
    let started = Instant::now();
    let connection = BrokerConnector::new(settings, url.clone())?.connect().await?;
    let connect_time = started.elapsed();
    let topology = Topology::new(settings);
    topology.declare(&connection).await?;
    let queues = topology.check(&connection).await?;
    drop(connection.close(200, "done".into()).await);
    Ok(BrokerProbe { connect_time, queues })
}
