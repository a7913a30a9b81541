//! Handle of the event router.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use actix::{Actor as _, Addr, ArbiterHandle};
use guildhall_core::event::Event;
use guildhall_core::event::handler::EventHandlers;
use tokio::sync::{mpsc, oneshot};

use super::config::EventsConfig;
use super::event_supervisor::EventSupervisor;
use super::router::sessions::SessionView;
use super::router::{
    AttachShard, DetachShard, DrainEvents, DrainShard, EventRouter, EventsSnapshot, HandleInteraction, ObserveEvents,
    ObserveSessions, ResumedSession, WakeInbox,
};
use crate::crash::{CrashStore, CrashedInput, Input};
use crate::guild::events::context::EventContext;
use crate::guild::events::inbox;
use crate::guild::events::routed_event::RoutedBatch;
use crate::guild::{HttpInteractionResponse, TooManyHandlers};
use crate::ports::{EventBroker, EventObserver, EventStore, InteractionResponder, StoredSession, WebhookClient};
use crate::shard::{Credit, FlowLimit, ShardClaim, ShardMessage, ShardSender};
use crate::submission::OperationService;
use crate::wall_clock::WallClock;

/// Capacity of the channel from the shards to the router. Credit bounds it further.
const SHARD_CHANNEL_CAPACITY: usize = 1_024;

/// Capacity of the channel from the router to the guilds' thread. The router waits when it is full.
const BATCH_CHANNEL_CAPACITY: usize = 256;

/// What the event side depends on.
pub struct EventPorts {
    /// The handlers, and the events that each is for.
    pub handlers: EventHandlers,
    /// Stores sessions and the outcomes of handlers.
    pub store: Arc<dyn EventStore>,
    /// Counts inputs that ended a process.
    pub crashes: Arc<dyn CrashStore>,
    /// Calls brains.
    pub brain: Arc<dyn WebhookClient>,
    /// Publishes events, if there is a broker.
    pub broker: Option<Arc<dyn EventBroker>>,
    /// Sends initial responses to interactions.
    pub responder: Arc<dyn InteractionResponder>,
    /// Accepts operations.
    pub operations: Arc<OperationService>,
    /// Notified of every finished event, if set.
    pub observer: Option<Arc<dyn EventObserver>>,
}

impl std::fmt::Debug for EventPorts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("EventPorts").finish_non_exhaustive()
    }
}

/// The event side, before it starts.
pub struct PreparedEvents {
    context: Arc<EventContext>,
    flow_limit: FlowLimit,
}

/// A shard whose events are handled from now on.
#[derive(Debug)]
pub struct AttachedShard {
    /// The claim of the shard.
    pub claim: ShardClaim,
    /// Sends its events to the router.
    pub sender: ShardSender,
    /// The session to resume.
    pub session: Option<StoredSession>,
    /// Sequence numbers of that session that must not be read: these events ended processes.
    pub unread: BTreeSet<u64>,
}

impl std::fmt::Debug for PreparedEvents {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PreparedEvents").field("flow_limit", &self.flow_limit).finish_non_exhaustive()
    }
}

/// The running event side. Cheap to clone.
#[derive(Clone)]
pub struct EventsHandle {
    router: Addr<EventRouter>,
    context: Arc<EventContext>,
    sender: mpsc::Sender<ShardMessage>,
    flow_limit: FlowLimit,
}

impl std::fmt::Debug for EventsHandle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("EventsHandle").field("flow_limit", &self.flow_limit).finish_non_exhaustive()
    }
}

impl EventsHandle {
    /// Builds the event side without starting it. `flow_limit` limits the events in flight of each shard.
    #[must_use]
    pub fn prepare(ports: EventPorts, clock: WallClock, config: EventsConfig, flow_limit: FlowLimit) -> PreparedEvents {
        PreparedEvents { context: EventContext::new(ports, clock, config), flow_limit }
    }

    /// Starts routing. Must be called on the thread on which the router and the guilds run.
    #[must_use]
    #[expect(clippy::disallowed_methods, reason = "its guard is a field of the actor")]
    pub fn start(prepared: PreparedEvents) -> Self {
        let PreparedEvents { context, flow_limit } = prepared;
        let ((sender, messages), (batch_sender, batches)) =
            (mpsc::channel(SHARD_CHANNEL_CAPACITY), mpsc::channel(BATCH_CHANNEL_CAPACITY));
        EventSupervisor::new(Arc::clone(&context), batches).start();
        Self {
            router: EventRouter::new(Arc::clone(&context), messages, batch_sender).start(),
            context,
            sender,
            flow_limit,
        }
    }

    /// Starts the router on one thread, and the guilds on another.
    #[must_use]
    #[expect(clippy::disallowed_methods, reason = "its guard is a field of the actor")]
    pub fn start_on(prepared: PreparedEvents, router: &ArbiterHandle, guilds: &ArbiterHandle) -> Self {
        let PreparedEvents { context, flow_limit } = prepared;
        let ((sender, messages), (batch_sender, batches)) =
            (mpsc::channel(SHARD_CHANNEL_CAPACITY), mpsc::channel::<RoutedBatch>(BATCH_CHANNEL_CAPACITY));
        let (router_context, guild_context) = (Arc::clone(&context), Arc::clone(&context));
        EventSupervisor::start_in_arbiter(guilds, move |_| EventSupervisor::new(guild_context, batches));
        let router =
            EventRouter::start_in_arbiter(router, move |_| EventRouter::new(router_context, messages, batch_sender));
        Self { router, context, sender, flow_limit }
    }

    /// Handles the events of these shards from now on. Loads their sessions, handled events and inbox entries from the
    /// store, and retries until the store responds.
    pub async fn attach(&self, claims: Vec<ShardClaim>) -> Vec<AttachedShard> {
        if claims.is_empty() {
            return Vec::new();
        }
        let context = &self.context;
        let sessions = context.store.until_ok("sessions", |store| store.sessions()).await;
        claims.iter().for_each(|claim| context.ownership.add(*claim));
        // A process that ends records the reason before its claims can be taken.
        let crashed = context.store.inputs_to_set_aside().await;
        context.crashed.add(&crashed);
        // New events must wait behind these.
        inbox::fill_backlog(context).await;
        context.backlog.wake();
        let mut attached = Vec::with_capacity(claims.len());
        for claim in claims {
            let session =
                sessions.iter().find(|stored| (stored.shards, stored.shard) == (claim.shards, claim.shard)).cloned();
            let handled = match &session {
                Some(stored) => {
                    context
                        .store
                        .until_ok("handled", |store| store.handled_after(&stored.session, stored.confirmed))
                        .await
                }
                None => Vec::new(),
            };
            let credit = Credit::new(self.flow_limit);
            let crashed: Vec<CrashedInput> = session
                .iter()
                .flat_map(|stored| crashed.iter().filter(|one| is_unconfirmed_event(one, stored)).cloned())
                .collect();
            let unread = crashed.iter().filter_map(|one| event_seq(&one.input)).collect();
            let resumed = session.clone().map(|session| ResumedSession { session, handled, crashed });
            // If the router has stopped, the process is ending.
            let _ = self.router.send(AttachShard { shard: claim.shard, credit: Arc::clone(&credit), resumed }).await;
            attached.push(AttachedShard {
                claim,
                sender: ShardSender::new(self.sender.clone(), credit),
                session,
                unread,
            });
        }
        attached
    }

    /// Releases a shard that has ended: waits until all its events are handled, stores how far its session is
    /// confirmed, and detaches it. Returns `false` on timeout; the next owner of the shard handles the rest.
    pub async fn release(&self, shard: u32, timeout: Duration) -> bool {
        let (ack, acked) = oneshot::channel();
        if self.sender.send(ShardMessage::Ended { ack }).await.is_ok() {
            let _ = acked.await;
        }
        let drained = self.router.send(DrainShard { shard, timeout }).await.unwrap_or(false);
        self.context.ownership.remove(shard);
        let _ = self.router.send(DetachShard { shard }).await;
        self.context.backlog.wake();
        drained
    }

    /// Handles an interaction that arrived over HTTP, and returns the response. For handlers that defer, the
    /// interaction is stored before this returns and delivered later. Other handlers are called now, and not again if
    /// the interaction is repeated.
    pub async fn handle_interaction(&self, event: Event) -> HttpInteractionResponse {
        self.router.send(HandleInteraction { event }).await.unwrap_or(HttpInteractionResponse::Busy)
    }

    /// Sends new events to these handlers from now on. Earlier events finish with the handlers that they were routed
    /// to. An inbox entry goes to the handler that has the same name now; without one it waits until there is one.
    ///
    /// # Errors
    ///
    /// When handlers were replaced too often. Nothing has changed then.
    pub fn replace_handlers(
        &self,
        handlers: EventHandlers,
        brain: &Arc<dyn WebhookClient>,
    ) -> Result<(), TooManyHandlers> {
        self.context.replace_handlers(handlers, brain)
    }

    /// Checks the inbox now, because an event was revived.
    pub fn wake_inbox(&self) {
        self.router.do_send(WakeInbox);
    }

    /// Waits until all events are handled, and stores how far sessions are confirmed. Returns `false` on timeout;
    /// events that are not handled are delivered again.
    pub async fn drain(&self, timeout: Duration) -> bool {
        self.router.send(DrainEvents { timeout }).await.unwrap_or(false)
    }

    /// State of the event side; `None` if the process is ending.
    pub async fn observe(&self) -> Option<EventsSnapshot> {
        self.router.send(ObserveEvents).await.ok()
    }

    /// Progress of each session, by shard; `None` if the process is ending.
    pub async fn sessions(&self) -> Option<Vec<SessionView>> {
        self.router.send(ObserveSessions).await.ok()
    }
}

/// Whether an input is an unconfirmed event of this session.
fn is_unconfirmed_event(crashed: &CrashedInput, stored: &StoredSession) -> bool {
    match &crashed.input {
        Input::Event { session, seq } => *session == stored.session && *seq > stored.confirmed,
        Input::InboxEntry(_) | Input::Operation(_) => false,
    }
}

fn event_seq(input: &Input) -> Option<u64> {
    match input {
        Input::Event { seq, .. } => Some(*seq),
        Input::InboxEntry(_) | Input::Operation(_) => None,
    }
}
