//! Port to a message broker: events are published to it for any number of consumers.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use guildhall_core::event::EventOrigin;
use guildhall_core::time::UnixMs;
use guildhall_core::trace::TraceContext;

/// Pending publish.
pub type PublishFuture<'a> = Pin<Box<dyn Future<Output = Result<(), PublishError>> + Send + 'a>>;

/// Future that resolves when the broker may accept events.
pub type AvailableFuture<'a> = Pin<Box<dyn Future<Output = ()> + Send + 'a>>;

/// Place of an event in the stream of its lane: the events that one handler publishes for one guild.
///
/// Within an epoch the counters are 1, 2, 3 and so on, in the order of publishing. An event that is published again has
/// the same place, so that a consumer can prove that it has all events, in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StreamPosition {
    /// When the count started. A later epoch has a later time.
    pub epoch: UnixMs,
    /// The count, from 1.
    pub counter: u64,
}

/// An event for the broker.
#[derive(Clone, Debug)]
pub struct BrokerEvent {
    /// Name of the handler that publishes it.
    pub handler: Arc<str>,
    /// Id of the event. It is the same for each attempt.
    pub id: String,
    /// Name of the event.
    pub name: String,
    /// Session and sequence number.
    pub origin: EventOrigin,
    /// Whether it is an interaction. Interactions have no order.
    pub is_interaction: bool,
    /// The guild, or outside of guilds the channel or user: what it is in order with.
    pub lane: u64,
    /// The guild, if it is in one.
    pub guild: Option<u64>,
    /// When it was received.
    pub received_at: UnixMs,
    /// Place in the stream of its lane. Interactions have none.
    pub position: Option<StreamPosition>,
    /// Span of the handler in the trace of the event.
    pub trace: TraceContext,
    /// The event, as JSON.
    pub json: Arc<str>,
}

/// The broker has not confirmed an event. It may have received it all the same.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{reason}")]
pub struct PublishError {
    /// The failure, and what to do about it.
    pub reason: String,
    /// Minimum delay before the next attempt.
    pub retry_after: Duration,
}

/// Publishes events.
pub trait EventBroker: Send + Sync {
    /// Publishes an event, and waits until the broker has confirmed it.
    fn publish(&self, event: BrokerEvent) -> PublishFuture<'_>;

    /// Whether the broker accepts events, as far as is known. If not, nothing needs to be tried.
    fn is_available(&self) -> bool;

    /// Waits until the broker may accept events.
    fn wait_until_available(&self) -> AvailableFuture<'_>;
}
