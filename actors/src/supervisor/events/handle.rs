//! The way to the router.

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
use crate::ports::{EventObserver, EventStore, InteractionResponder, StoredSession, WebhookClient};
use crate::shard::{Credit, FlowLimit, ShardClaim, ShardMessage, ShardSender};
use crate::submission::OperationService;
use crate::wall_clock::WallClock;

/// What shards tell that may wait for the router: credit bounds it further.
const TOLD: usize = 1_024;

/// Lots that may wait for the guilds' thread; past it the router waits.
const LOTS: usize = 256;

/// Whom the event side talks to.
pub struct EventPorts {
    /// Who wants to hear of what.
    pub handlers: EventHandlers,
    /// Where sessions and what was handled are kept.
    pub store: Arc<dyn EventStore>,
    /// Where inputs that ended a process are counted.
    pub crashes: Arc<dyn CrashStore>,
    /// Brains.
    pub brain: Arc<dyn WebhookClient>,
    /// What answers interactions at once.
    pub answers: Arc<dyn InteractionResponder>,
    /// The way in for operations.
    pub desk: Arc<OperationService>,
    /// Who sees every event done, if anybody wants to.
    pub watch: Option<Arc<dyn EventObserver>>,
}

impl std::fmt::Debug for EventPorts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("EventPorts").finish_non_exhaustive()
    }
}

/// The event side, about to begin.
pub struct PreparedEvents {
    context: Arc<EventContext>,
    allowance: FlowLimit,
}

/// A shard whose events are handled from now on.
#[derive(Debug)]
pub struct AttachedShard {
    /// Under which claim.
    pub claim: ShardClaim,
    /// Its way in.
    pub feed: ShardSender,
    /// The session that it should resume.
    pub session: Option<StoredSession>,
    /// Sequence numbers of that session that are not to be read: these events ended processes.
    pub unread: BTreeSet<u64>,
}

impl std::fmt::Debug for PreparedEvents {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PreparedEvents").field("allowance", &self.allowance).finish_non_exhaustive()
    }
}

/// The running event side. Cheap to clone.
#[derive(Clone)]
pub struct EventsHandle {
    router: Addr<EventRouter>,
    context: Arc<EventContext>,
    tell: mpsc::Sender<ShardMessage>,
    allowance: FlowLimit,
}

impl std::fmt::Debug for EventsHandle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("EventsHandle").field("allowance", &self.allowance).finish_non_exhaustive()
    }
}

impl EventsHandle {
    /// Puts together what begins to route. Each shard may have as much on its way as `allowance` says.
    #[must_use]
    pub fn prepare(
        outside: EventPorts,
        clock: WallClock,
        config: EventsConfig,
        allowance: FlowLimit,
    ) -> PreparedEvents {
        PreparedEvents { context: EventContext::new(outside, clock, config), allowance }
    }

    /// Begins to route. Must be called where the router and the guilds should run.
    #[must_use]
    #[expect(clippy::disallowed_methods, reason = "its guard is a field of the actor")]
    pub fn start(prepared: PreparedEvents) -> Self {
        let PreparedEvents { context, allowance } = prepared;
        let ((tell, told), (seats, lots)) = (mpsc::channel(TOLD), mpsc::channel(LOTS));
        EventSupervisor::new(Arc::clone(&context), lots).start();
        Self { router: EventRouter::new(Arc::clone(&context), told, seats).start(), context, tell, allowance }
    }

    /// Begins to route on one thread, for guilds on another.
    #[must_use]
    #[expect(clippy::disallowed_methods, reason = "its guard is a field of the actor")]
    pub fn start_on(prepared: PreparedEvents, router: &ArbiterHandle, guilds: &ArbiterHandle) -> Self {
        let PreparedEvents { context, allowance } = prepared;
        let ((tell, told), (seats, lots)) = (mpsc::channel(TOLD), mpsc::channel::<RoutedBatch>(LOTS));
        let (own, of_guilds) = (Arc::clone(&context), Arc::clone(&context));
        EventSupervisor::start_in_arbiter(guilds, move |_| EventSupervisor::new(of_guilds, lots));
        let router = EventRouter::start_in_arbiter(router, move |_| EventRouter::new(own, told, seats));
        Self { router, context, tell, allowance }
    }

    /// Handles the events of these shards from now on. Reads what the store knows: their sessions, what was handled of them,
    /// and what waits in the inbox; asks until it answers.
    pub async fn take(&self, claims: Vec<ShardClaim>) -> Vec<AttachedShard> {
        if claims.is_empty() {
            return Vec::new();
        }
        let context = &self.context;
        let known = context.store.until_ok("sessions", |store| store.sessions()).await;
        claims.iter().for_each(|claim| context.ownership.add(*claim));
        // A process that ends records why before its claims are anybody's.
        let crashed = context.store.inputs_to_set_aside().await;
        context.crashed.add(&crashed);
        // What comes has to wait behind what waits there.
        inbox::fill_backlog(context).await;
        context.backlog.wake();
        let mut all = Vec::with_capacity(claims.len());
        for claim in claims {
            let session = known.iter().find(|kept| (kept.shards, kept.shard) == (claim.shards, claim.shard)).cloned();
            let handled = match &session {
                Some(kept) => {
                    context.store.until_ok("handled", |store| store.handled_after(&kept.session, kept.confirmed)).await
                }
                None => Vec::new(),
            };
            let credit = Credit::new(self.allowance);
            let crashed: Vec<CrashedInput> =
                session.iter().flat_map(|kept| crashed.iter().filter(|one| is_of(one, kept)).cloned()).collect();
            let unread = crashed.iter().filter_map(|one| number(&one.input)).collect();
            let resumed = session.clone().map(|session| ResumedSession { session, handled, crashed });
            // If it is gone, the process is ending.
            let _ = self.router.send(AttachShard { shard: claim.shard, credit: Arc::clone(&credit), resumed }).await;
            all.push(AttachedShard { claim, feed: ShardSender::new(self.tell.clone(), credit), session, unread });
        }
        all
    }

    /// Waits until all events that came of a shard are done, keeps how far its session is confirmed, and looks after it no
    /// more. The shard has ended. `false` if that took longer than it may: whoever has the shard next does the rest.
    pub async fn let_go(&self, shard: u32, within: Duration) -> bool {
        let (heard, hears) = oneshot::channel();
        if self.tell.send(ShardMessage::Ended { heard }).await.is_ok() {
            let _ = hears.await;
        }
        let drained = self.router.send(DrainShard { shard, timeout: within }).await.unwrap_or(false);
        self.context.ownership.remove(shard);
        let _ = self.router.send(DetachShard { shard }).await;
        self.context.backlog.wake();
        drained
    }

    /// Takes an interaction that came over HTTP, and says what to answer. Handlers that defer are told later: that is kept
    /// before this answers. Others are told now, and are not told twice if the interaction comes again.
    pub async fn interaction(&self, event: Event) -> HttpInteractionResponse {
        self.router.send(HandleInteraction { event }).await.unwrap_or(HttpInteractionResponse::Busy)
    }

    /// New events go to these handlers from now on. Events that came before finish with the handlers that they were given to. What
    /// waits in the inbox goes to the handler that has the same name now; without one it waits until there is one again.
    ///
    /// # Errors
    ///
    /// When handlers were replaced too often; nothing has changed then.
    pub fn replace_handlers(
        &self,
        handlers: EventHandlers,
        brain: &Arc<dyn WebhookClient>,
    ) -> Result<(), TooManyHandlers> {
        self.context.replace_handlers(handlers, brain)
    }

    /// Somebody has revived an event: it is looked for now, not only after a while.
    pub fn revived(&self) {
        self.router.do_send(WakeInbox);
    }

    /// Waits until all events that came are done, and keeps how far sessions are confirmed. `false` if that took longer than
    /// it may: what is not done comes again.
    pub async fn drain(&self, within: Duration) -> bool {
        self.router.send(DrainEvents { timeout: within }).await.unwrap_or(false)
    }

    /// How everything stands; nothing if the process is ending.
    pub async fn observe(&self) -> Option<EventsSnapshot> {
        self.router.send(ObserveEvents).await.ok()
    }

    /// How far the session of each shard is, by shard; nothing if the process is ending.
    pub async fn sessions(&self) -> Option<Vec<SessionView>> {
        self.router.send(ObserveSessions).await.ok()
    }
}

/// Whether an input is an event of a session that is not confirmed.
fn is_of(crashed: &CrashedInput, kept: &StoredSession) -> bool {
    match &crashed.input {
        Input::Event { session, seq } => *session == kept.session && *seq > kept.confirmed,
        Input::InboxEntry(_) | Input::Operation(_) => false,
    }
}

fn number(input: &Input) -> Option<u64> {
    match input {
        Input::Event { seq, .. } => Some(*seq),
        Input::InboxEntry(_) | Input::Operation(_) => None,
    }
}
