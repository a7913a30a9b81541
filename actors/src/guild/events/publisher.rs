//! Publishes events of handlers to the broker, each with its position in its stream.

use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use guildhall_core::event::Event;
use guildhall_core::event::handler::{EventHandler, event_id};

use super::handler_runner::{HandlerTask, HandlerTaskResult, span_of};
use super::inbox_entry::lane_of;
use super::stream_positions::StreamPositions;
use crate::ports::{BrokerEvent, EventBroker, PublishError, StateWrite};
use crate::supervision::spawn_work;
use crate::wall_clock::WallClock;

/// The position of a confirmed event, to be stored; or why the event is not confirmed.
pub(crate) type PublishResult = Result<Option<StateWrite>, PublishError>;

/// Publishes events, if there is a broker.
pub(crate) struct Publisher {
    broker: Option<Arc<dyn EventBroker>>,
    positions: Arc<StreamPositions>,
    clock: WallClock,
}

impl Publisher {
    pub(crate) fn new(broker: Option<Arc<dyn EventBroker>>, positions: Arc<StreamPositions>, clock: WallClock) -> Self {
        Self { broker, positions, clock }
    }

    pub(crate) fn is_available(&self) -> bool {
        self.broker.as_ref().is_some_and(|broker| broker.is_available())
    }

    /// Never resolves without a broker.
    pub(crate) async fn wait_until_available(&self) {
        match &self.broker {
            Some(broker) => broker.wait_until_available().await,
            None => pending().await,
        }
    }

    /// The error of an event that is not tried.
    pub(crate) fn unavailable() -> PublishError {
        let reason = "the broker is not available; /readyz and the log say why".to_owned();
        PublishError { reason, retry_after: Duration::ZERO }
    }

    /// Starts to publish an event. Events of one lane are published one after the other.
    pub(crate) fn start(&self, event: &Event, handler: &EventHandler, body: &str) -> HandlerTask {
        let lane = lane_of(event);
        let mut message = BrokerEvent {
            handler: Arc::clone(&handler.name),
            id: event_id(&event.origin),
            name: event.name.to_string(),
            origin: event.origin.clone(),
            is_interaction: event.interaction.is_some(),
            lane: lane.unsigned_abs(),
            guild: event.guild,
            received_at: event.received_at,
            position: None,
            trace: span_of(event, handler),
            json: Arc::from(body),
        };
        let (broker, positions, now) = (self.broker.clone(), Arc::clone(&self.positions), self.clock.now());
        spawn_work(async move {
            let Some(broker) = broker else { return HandlerTaskResult::Publish(Err(Self::unavailable())) };
            let mut write = None;
            if !message.is_interaction {
                let (position, to_store) = positions.next(&message.handler, lane, now).await;
                (message.position, write) = (Some(position), Some(to_store));
            }
            HandlerTaskResult::Publish(broker.publish(message).await.map(|()| write))
        })
    }
}
