//! What the router, the guilds and the inbox share.

use std::sync::Arc;

use guildhall_core::event::handler::EventHandlers;

use super::backlog::InboxBacklog;
use super::committer::EventCommitter;
use super::crashed_events::CrashedEvents;
use super::durable_store::DurableEventStore;
use super::fallback::InteractionFallbacks;
use super::handler_runner::HandlerRunner;
use super::interaction::InteractionLimiter;
use super::interaction_recorder::InteractionRecorder;
use super::load::EventLoad;
use super::publisher::Publisher;
use super::registry::{HandlerRegistry, TooManyHandlers};
use super::stream_positions::StreamPositions;
use crate::ports::{EventObserver, InteractionResponder, WebhookClient};
use crate::shard::ownership::ShardOwnership;
use crate::supervisor::{EventPorts, EventsConfig};
use crate::telemetry::events::FlowMeters;
use crate::wall_clock::WallClock;

/// The services of the event side. Each has one responsibility; this only holds them.
pub(crate) struct EventContext {
    pub(crate) config: EventsConfig,
    pub(crate) clock: WallClock,
    pub(crate) handlers: Arc<HandlerRegistry>,
    pub(crate) runner: HandlerRunner,
    pub(crate) fallbacks: Arc<InteractionFallbacks>,
    pub(crate) store: DurableEventStore,
    pub(crate) committer: EventCommitter,
    pub(crate) backlog: InboxBacklog,
    pub(crate) ownership: Arc<ShardOwnership>,
    /// Events and inbox entries that ended processes.
    pub(crate) crashed: CrashedEvents,
    pub(crate) load: EventLoad,
    pub(crate) meters: FlowMeters,
    pub(crate) responder: Arc<dyn InteractionResponder>,
    pub(crate) observer: Option<Arc<dyn EventObserver>>,
    /// Bounds interactions over HTTP.
    pub(crate) interactions: InteractionLimiter,
    pub(crate) recorder: Arc<InteractionRecorder>,
}

impl EventContext {
    pub(crate) fn new(ports: EventPorts, clock: WallClock, config: EventsConfig) -> Arc<Self> {
        let EventPorts { handlers, store, crashes, brain, broker, responder, operations, observer } = ports;
        let handlers = Arc::new(HandlerRegistry::new(handlers, &brain));
        let store = DurableEventStore::new(store, crashes, config.store_retry());
        let ownership = Arc::new(ShardOwnership::new(config.shards));
        let fallbacks = Arc::new(InteractionFallbacks::new(
            Arc::clone(&handlers),
            Arc::clone(&operations),
            clock.clone(),
            config.clone(),
        ));
        let positions = Arc::new(StreamPositions::new(store.clone(), Arc::clone(&ownership)));
        Arc::new(Self {
            runner: HandlerRunner::new(
                Arc::clone(&handlers),
                Publisher::new(broker, Arc::clone(&positions), clock.clone()),
                store.clone(),
                Arc::clone(&operations),
                Arc::clone(&fallbacks),
                clock.clone(),
                config.clone(),
            ),
            committer: EventCommitter::new(store.clone(), Arc::clone(&ownership), operations, positions),
            backlog: InboxBacklog::new(Arc::clone(&handlers)),
            crashed: CrashedEvents::new(store.clone(), Arc::clone(&handlers), Arc::clone(&fallbacks), clock.clone()),
            recorder: Arc::new(InteractionRecorder::new(store.clone(), clock.clone())),
            load: EventLoad::default(),
            meters: FlowMeters::new(),
            responder,
            observer,
            interactions: InteractionLimiter::default(),
            fallbacks,
            handlers,
            store,
            ownership,
            clock,
            config,
        })
    }

    /// Sends new events to these handlers. Events that were routed before finish with the handlers that they were routed to.
    pub(crate) fn replace_handlers(
        &self,
        handlers: EventHandlers,
        brain: &Arc<dyn WebhookClient>,
    ) -> Result<(), TooManyHandlers> {
        self.handlers.replace(handlers, brain)?;
        // Entries may wait for handlers that were removed, or that were missing before.
        self.backlog.wake();
        Ok(())
    }

    /// How many interactions have not finished, in the inbox or with their guilds.
    pub(crate) fn pending_interactions(&self) -> usize {
        self.load.interactions() + self.backlog.interactions()
    }
}
