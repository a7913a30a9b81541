//! The adapter to RabbitMQ: one connection that is re-established when it is lost, over which events are published and
//! confirmed.
//!
//! ```text
//!  guild ─EventBroker::publish─▶ window ─▶ channel ─▶ guildhall.events ─▶ queues ─▶ consumers of others
//!                                            ▲ └──confirm: the event is handled
//!                                            └── Keeper: connect, declare, watch, back off, repeat
//! ```

mod connection;
mod dead_letters;
mod error;
mod events;
mod keeper;
mod message;
mod probe;
mod route;
mod topology;

use std::{fmt, path::PathBuf, sync::Arc, time::Duration};

use guildhall_actors::ports::{AvailableFuture, BrokerEvent, EventBroker, PublishError, PublishFuture};
use tokio::sync::{Notify, Semaphore, watch};
use tokio::time::{Instant, timeout_at};

use self::{
    connection::{BrokerConnector, Link, Processed},
    events::{EventPublished, PublishOutcome},
    keeper::KeeperTask,
    message::EventMessage,
};
use crate::{
    events::{FailureLog, emit},
    settings::{BrokerSettings, BrokerUrl},
};

pub(crate) use self::{
    dead_letters::{DeadLetterAction, DeadLetterSelection, DeadMessage, change, list},
    probe::{BrokerProbe, declare, probe},
    topology::{QueueState, Topology},
};

/// Delay before an event is published again that the server has rejected.
const REJECTED_DELAY: Duration = Duration::from_millis(500);

/// Invalid configuration of the connection.
#[derive(Debug, thiserror::Error)]
pub enum BrokerConfigError {
    /// The file of certificate authorities cannot be read.
    #[error("cannot read broker.ca_file {}: {error}", path.display())]
    CaFile {
        /// The file.
        path: PathBuf,
        /// Cause.
        error: std::io::Error,
    },
    /// The file of certificate authorities contains none.
    #[error("broker.ca_file {} contains no certificate; it must be a PEM file", path.display())]
    NoCertificate {
        /// The file.
        path: PathBuf,
    },
}

/// Whether events can be published.
#[derive(Clone)]
enum LinkState {
    Up(Arc<Link>),
    /// The server accepts no messages for now.
    Blocked(Arc<str>),
    Down(Arc<str>),
}

impl LinkState {
    /// The connection, or why nothing can be published.
    fn link(&self) -> Result<&Arc<Link>, &str> {
        match self {
            Self::Up(link) => Ok(link),
            Self::Blocked(reason) | Self::Down(reason) => Err(reason),
        }
    }
}

/// Called when the state changes: with the reason if nothing can be published.
pub type StateListener = Box<dyn Fn(Result<(), &str>) + Send + Sync>;

/// What the publishers and the keeper share.
struct Shared {
    connector: BrokerConnector,
    topology: Topology,
    publish_timeout: Duration,
    window: Semaphore,
    size: usize,
    state: watch::Sender<LinkState>,
    /// A message was returned: a queue may be missing.
    restore: Notify,
    listener: StateListener,
    rejected: FailureLog,
}

/// Publishes events to RabbitMQ. The connection ends when this is dropped.
pub struct Broker {
    shared: Arc<Shared>,
    _keeper: KeeperTask,
}

impl Broker {
    /// Starts to connect in the background, and retries until it succeeds. Must be called on a Tokio runtime.
    ///
    /// # Errors
    ///
    /// When the file of certificate authorities is invalid.
    pub fn start(
        settings: &BrokerSettings,
        url: BrokerUrl,
        listener: StateListener,
    ) -> Result<Self, BrokerConfigError> {
        let shared = Arc::new(Shared {
            connector: BrokerConnector::new(settings, url)?,
            topology: Topology::new(settings),
            publish_timeout: settings.publish_timeout,
            window: Semaphore::new(settings.window),
            size: settings.window,
            state: watch::Sender::new(LinkState::Down("connecting to RabbitMQ".into())),
            restore: Notify::new(),
            listener,
            rejected: FailureLog::new("publishing to RabbitMQ"),
        });
        let keeper = KeeperTask::start(Arc::clone(&shared));
        Ok(Self { shared, _keeper: keeper })
    }
}

impl fmt::Debug for Broker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Broker").field("url", self.shared.connector.url()).finish_non_exhaustive()
    }
}

impl EventBroker for Broker {
    fn publish(&self, event: BrokerEvent) -> PublishFuture<'_> {
        let message = EventMessage::new(&event, self.shared.topology.partitions);
        Box::pin(async move { self.shared.publish(&message).await })
    }

    fn is_available(&self) -> bool {
        matches!(*self.shared.state.borrow(), LinkState::Up(_))
    }

    fn wait_until_available(&self) -> AvailableFuture<'_> {
        let mut state = self.shared.state.subscribe();
        Box::pin(async move {
            // The sender is in `self`, so it is never closed here.
            drop(state.wait_for(|state| matches!(state, LinkState::Up(_))).await);
        })
    }
}

impl Shared {
    async fn publish(&self, message: &EventMessage) -> Result<(), PublishError> {
        let unavailable = |reason: String| PublishError { reason, retry_after: Duration::ZERO };
        let deadline = Instant::now() + self.publish_timeout;
        let Ok(Ok(_permit)) = timeout_at(deadline, self.window.acquire()).await else {
            let size = self.size;
            return Err(unavailable(format!("{size} events (broker.window) are not confirmed yet")));
        };
        // Another state is reported by the keeper.
        let link = self.state.borrow().link().map(Arc::clone).map_err(|reason| unavailable(reason.to_owned()))?;
        let (started, processed) = (Instant::now(), link.processed());
        let result = timeout_at(deadline, link.publish(&self.topology.exchange, message)).await;
        let elapsed = started.elapsed();
        let (outcome, reason) = match result {
            Ok(Ok(Processed::Confirmed)) => (PublishOutcome::Confirmed, None),
            Ok(Ok(Processed::Returned)) => {
                self.restore.notify_one();
                let reason =
                    format!("no queue is bound for the routing key {}; declaring the queues", message.routing_key);
                (PublishOutcome::Returned, Some(reason))
            }
            Ok(Ok(Processed::Nacked)) => {
                let reason = format!(
                    "a queue for the routing key {} is full: its consumers are too slow, or there are none",
                    message.routing_key
                );
                (PublishOutcome::Nacked, Some(reason))
            }
            Ok(Err(failure)) => {
                if failure.is_not_found() {
                    self.restore.notify_one();
                }
                (PublishOutcome::Lost, Some(failure.message))
            }
            Err(_) => {
                link.on_timeout(processed);
                (PublishOutcome::Timeout, Some("it was not confirmed in time".to_owned()))
            }
        };
        let summary = match outcome {
            PublishOutcome::Confirmed => {
                self.rejected.on_success();
                None
            }
            PublishOutcome::Returned | PublishOutcome::Nacked | PublishOutcome::Timeout | PublishOutcome::Lost => {
                self.rejected.on_failure()
            }
        };
        let unconfirmed = self.size - self.window.available_permits() - 1;
        let routing_key = message.routing_key.as_str();
        emit(EventPublished { routing_key, outcome, reason: reason.as_deref(), elapsed, unconfirmed, summary });
        match reason {
            None => Ok(()),
            Some(reason) => Err(PublishError { reason, retry_after: REJECTED_DELAY }),
        }
    }

    /// Sets the state, and reports it.
    fn set_state(&self, state: LinkState) {
        let before = self.state.send_replace(state);
        let now = self.state.borrow();
        if before.link().err() != now.link().err() || before.link().is_ok() != now.link().is_ok() {
            (self.listener)(now.link().map(drop));
        }
    }
}
