//! The way to the router.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use actix::{Actor as _, Addr, ArbiterHandle};
use guildhall_core::event::Event;
use guildhall_core::event::handler::Handlers;
use tokio::sync::mpsc;

use super::answers::Answers;
use super::config::EventsConfig;
use super::feed::{Allowance, Credit, Feed};
use super::hub::Hub;
use super::inbox;
use super::interaction::Posted;
use super::router::{Drain, EventsSnapshot, Interact, LookIntoInbox, Observe, Resumed, Router, SpawnEvents};
use super::store::{EventStore, KeptSession};
use super::watch::Watch;
use super::webhook::Brain;
use crate::operations::WallClock;
use crate::operations::desk::Desk;

/// What shards tell that may wait for the router: credit bounds it further.
const TOLD: usize = 1_024;

/// Whom the event side talks to.
pub struct Outside {
    /// Who wants to hear of what.
    pub handlers: Handlers,
    /// Where sessions and what was handled are kept.
    pub store: Arc<dyn EventStore>,
    /// Brains.
    pub brain: Arc<dyn Brain>,
    /// What answers interactions at once.
    pub answers: Arc<dyn Answers>,
    /// The way in for operations.
    pub desk: Arc<Desk>,
    /// Who sees every event done, if anybody wants to.
    pub watch: Option<Arc<dyn Watch>>,
}

impl std::fmt::Debug for Outside {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Outside").finish_non_exhaustive()
    }
}

/// The event side, about to begin.
pub struct Prepared {
    hub: Arc<Hub>,
    told: mpsc::Receiver<super::feed::Told>,
    credits: HashMap<u32, Arc<Credit>>,
    resumed: Vec<Resumed>,
    /// A way in for each shard of this process.
    pub feeds: HashMap<u32, Feed>,
    /// The sessions that shards should resume.
    pub sessions: Vec<KeptSession>,
}

impl std::fmt::Debug for Prepared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Prepared").field("sessions", &self.sessions).finish_non_exhaustive()
    }
}

/// The running event side. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Events {
    router: Addr<Router>,
}

impl Events {
    /// Reads what the store knows: sessions, what was handled of them, and what waits in the inbox. Asks until it answers.
    pub async fn prepare(outside: Outside, clock: WallClock, config: EventsConfig, allowance: Allowance) -> Prepared {
        let own = config.own.clone();
        let (shards, resumes) = (config.shards, config.resumes);
        let hub = Hub::new(outside, clock, config);
        let known = hub.until_kept("sessions", || hub.store.sessions()).await;
        let mut resumed = Vec::new();
        for kept in known.into_iter().filter(|kept| resumes && kept.shards == shards && own.contains(&kept.shard)) {
            let handled = hub.until_kept("handled", || hub.store.handled_after(&kept.session, kept.confirmed)).await;
            resumed.push((kept, handled));
        }
        inbox::count(&hub).await;
        let (tell, told) = mpsc::channel(TOLD);
        let credits: HashMap<u32, Arc<Credit>> = own.into_iter().map(|shard| (shard, Credit::new(allowance))).collect();
        let feed = |(shard, credit): (&u32, &Arc<Credit>)| (*shard, Feed::new(tell.clone(), Arc::clone(credit)));
        let feeds = credits.iter().map(feed).collect();
        let sessions = resumed.iter().map(|(kept, _)| kept.clone()).collect();
        Prepared { hub, told, credits, resumed, feeds, sessions }
    }

    /// Begins to route. Must be called where the router should run.
    #[must_use]
    pub fn start(prepared: Prepared, spawn: SpawnEvents) -> Self {
        let Prepared { hub, told, credits, resumed, .. } = prepared;
        Self { router: Router::new(hub, told, credits, resumed, spawn).start() }
    }

    /// Begins to route on this thread.
    #[must_use]
    pub fn start_on(prepared: Prepared, arbiter: &ArbiterHandle, spawn: SpawnEvents) -> Self {
        let Prepared { hub, told, credits, resumed, .. } = prepared;
        let router = Router::start_in_arbiter(arbiter, move |_| Router::new(hub, told, credits, resumed, spawn));
        Self { router }
    }

    /// Takes an interaction that came over HTTP, and says what to answer. Handlers that defer are told later: that is kept
    /// before this answers. Others are told now, and are not told twice if the interaction comes again.
    pub async fn interaction(&self, event: Event) -> Posted {
        self.router.send(Interact { event }).await.unwrap_or(Posted::Busy)
    }

    /// Somebody has revived an event: it is looked for now, not only after a while.
    pub fn revived(&self) {
        self.router.do_send(LookIntoInbox);
    }

    /// Waits until all events that came are done, and keeps how far sessions are confirmed. `false` if that took longer than
    /// it may: what is not done comes again.
    pub async fn drain(&self, within: Duration) -> bool {
        self.router.send(Drain { within }).await.unwrap_or(false)
    }

    /// How everything stands; nothing if the process is ending.
    pub async fn observe(&self) -> Option<EventsSnapshot> {
        self.router.send(Observe).await.ok()
    }
}
