//! The event side of the supervisor: takes what shards tell, finds who wants to hear of it, and keeps the guilds.
//!
//! ```text
//!  feeds ─▶ ledger (received, gaps) ─▶ nobody wants it: done
//!                                   └▶ tray of its guild ─▶ guild ─▶ done ─▶ credit back, session confirmed
//! ```

mod drain;
mod seats;
mod sessions;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use actix::{
    Actor, ActorFutureExt as _, Addr, AsyncContext as _, Context, Handler as Takes, Message, ResponseFuture,
    WrapFuture as _,
};
use futures_util::FutureExt as _;
use guildhall_core::event::handler::trace;
use guildhall_core::event::{Class, Event, EventName, Origin, Text};
use guildhall_core::session::Received;
use serde::Serialize;
use serde_json::json;
use tokio::sync::mpsc;
use tokio::time::Instant;

pub(super) use self::drain::{Drain, DrainShard};
pub(super) use self::seats::GuildGone;
use self::seats::Seats;
pub(super) use self::sessions::ObserveSessions;
pub use self::sessions::SessionView;
use self::sessions::Sessions;
use super::batch::Batch;
use super::feed::{Credit, Told};
use super::guild::{EventSeat, GuildEvents};
use super::hub::Hub;
use super::inbox;
use super::interaction::{self, Posted, deferral};
use super::parcel::{Parcel, Session, done};
use super::store::KeptSession;
use crate::telemetry::emit;
use crate::telemetry::events::{EventGap, EventGuildsCounted, EventsHanded, EventsReceived};

/// Starts a guild, where guilds should run.
pub type SpawnEvents = Box<dyn Fn(EventSeat) -> Addr<GuildEvents> + Send>;

/// A session that goes on, and which handlers are done with which of its events that are not confirmed.
pub(super) type Resumed = (KeptSession, Vec<(u64, Arc<str>)>);

/// Names whose handlers are remembered. Some names are chosen by anybody.
const NAMES: usize = 10_000;

/// How often it is looked for guilds that have nothing to do.
const LOOK_FOR_IDLE: Duration = Duration::from_secs(10);

/// How often it is told how much waits.
const COUNT_EVERY: Duration = Duration::from_secs(5);

/// Routes events.
pub struct Router {
    hub: Arc<Hub>,
    told: Option<mpsc::Receiver<Told>>,
    sessions: Sessions,
    seats: Seats,
    matching: HashMap<EventName, Arc<[usize]>>,
    /// Whether it is being kept how far sessions are confirmed.
    keeping: bool,
}

impl std::fmt::Debug for Router {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Router").field("guilds", &self.seats.len()).finish_non_exhaustive()
    }
}

impl Router {
    pub(super) fn new(hub: Arc<Hub>, told: mpsc::Receiver<Told>, spawn: SpawnEvents) -> Self {
        let (sessions, seats) = (Sessions::new(Arc::clone(&hub)), Seats::new(spawn));
        Self { hub, told: Some(told), sessions, seats, matching: HashMap::new(), keeping: false }
    }

    /// Takes what shards tell, again and again.
    fn listen(&self, mut told: mpsc::Receiver<Told>, ctx: &mut Context<Self>) {
        const AT_ONCE: usize = 16;
        let heard = async move {
            let mut news = Vec::with_capacity(AT_ONCE);
            told.recv_many(&mut news, AT_ONCE).await;
            (told, news)
        };
        ctx.spawn(heard.into_actor(self).map(|(told, news), actor, ctx| {
            if news.is_empty() {
                return;
            }
            for one in news {
                actor.hear(one, ctx);
            }
            actor.listen(told, ctx);
        }));
    }

    fn hear(&mut self, told: Told, ctx: &mut Context<Self>) {
        match told {
            Told::Began { shard, session, resume_url } => self.begin(shard, session, resume_url, ctx),
            Told::Passed { shard, session, seq } => {
                let Some(session) = self.sessions.current(shard, &session) else { return };
                let received = session.ledger().on_received(seq);
                self.after(&session, received, ctx);
                session.ledger().on_done(seq);
                // A new session is kept at once: until then a restart would have to begin another one.
                if self.sessions.is_new(shard) {
                    self.keep(ctx);
                }
            }
            Told::Events(batch) => self.take(batch, ctx),
            // Who waited may have given up.
            Told::Ended { heard } => drop(heard.send(())),
        }
    }

    /// A shard has a new session.
    fn begin(&mut self, shard: u32, id: Arc<str>, resume_url: Option<String>, ctx: &mut Context<Self>) {
        let Some(old) = self.sessions.begin(shard, id, resume_url) else { return };
        // What Discord had to tell after the last one that came is lost; nobody knows how much that is.
        let first = old.ledger().received() + 1;
        old.ledger().on_received(first);
        self.tell_of_gap(&old, first, None, ctx);
    }

    /// Something may be missing before what was received.
    fn after(&mut self, session: &Arc<Session>, received: Received, ctx: &mut Context<Self>) {
        if let Received::AfterGap { first, last } = received {
            self.tell_of_gap(session, first, Some(last), ctx);
        }
    }

    fn tell_of_gap(&mut self, session: &Arc<Session>, first: u64, last: Option<u64>, ctx: &mut Context<Self>) {
        emit(EventGap { shard: session.shard, session: &session.id, first, last });
        let data = json!({ "shard": session.shard, "session": &*session.id, "first": first, "last": last }).to_string();
        let whole = 0..data.len();
        let event = Event {
            origin: Origin { session: Arc::clone(&session.id), shard: session.shard, seq: last.unwrap_or(first) },
            name: EventName::Known("gateway.gap"),
            class: Class::Gateway,
            guild: None,
            channel: None,
            user: None,
            interaction: None,
            received_at: self.hub.clock.now(),
            text: Text::new(data, whole),
        };
        self.route(event, session, Instant::now(), false, ctx);
    }

    fn take(&mut self, batch: Batch, ctx: &mut Context<Self>) {
        let Batch { events, read_at } = batch;
        let Some(first) = events.first() else { return };
        let Some(session) = self.sessions.current(first.origin.shard, &first.origin.session) else {
            // Of a session that nobody began: nothing can be confirmed of it.
            let bytes = events.iter().map(|event| event.text.bytes()).sum();
            if let Some(credit) = self.sessions.credit(first.origin.shard) {
                credit.give_back(events.len(), bytes);
            }
            return;
        };
        emit(EventsReceived { meters: &self.hub.flow, count: events.len() });
        let mut received = Vec::with_capacity(events.len());
        {
            let mut ledger = session.ledger();
            received.extend(events.iter().map(|event| ledger.on_received(event.origin.seq)));
        }
        for (event, received) in events.into_iter().zip(received) {
            if received == Received::Before {
                session.give_back(1, event.text.bytes());
                continue;
            }
            self.after(&session, received, ctx);
            self.route(event, &session, read_at, true, ctx);
        }
        emit(EventsHanded { meters: &self.hub.flow, took: read_at.elapsed() });
    }

    fn matching(&mut self, name: &EventName) -> Arc<[usize]> {
        if let Some(found) = self.matching.get(name) {
            return Arc::clone(found);
        }
        if self.matching.len() >= NAMES {
            self.matching.clear();
        }
        let found: Arc<[usize]> = self.hub.handlers.matching(name.as_str()).into();
        self.matching.insert(name.clone(), Arc::clone(&found));
        found
    }

    /// Hands an event to its guild, if anybody wants to hear of it.
    fn route(&mut self, event: Event, session: &Arc<Session>, read_at: Instant, counts: bool, ctx: &mut Context<Self>) {
        let to = self.matching(&event.name);
        let not_to = self.sessions.done_before(&event.origin.session, event.origin.seq);
        let mut parcel = Parcel { event, to, not_to, session: Arc::clone(session), counts, deferring: None, read_at };
        if parcel.left().next().is_none() {
            done(&[Arc::new(parcel)]);
            return;
        }
        self.defer(&mut parcel);
        self.seats.hand(parcel, &self.hub, ctx);
    }

    /// Tells Discord at once that an answer is on its way, before anything else is done.
    fn defer(&self, parcel: &mut Parcel) {
        let Some(interaction) = &parcel.event.interaction else { return };
        let Some(first) = deferral(&self.hub, interaction, parcel.left()) else { return };
        let told = self.hub.answers.tell(Arc::clone(interaction), first, trace(&parcel.event.origin)).shared();
        // It goes on although nobody waits for it yet.
        tokio::spawn(told.clone().map(drop));
        parcel.deferring = Some(told);
    }

    /// Keeps how far sessions are confirmed, if that has changed.
    fn keep(&mut self, ctx: &mut Context<Self>) {
        if self.keeping {
            return;
        }
        let sessions = self.sessions.unkept();
        if sessions.is_empty() {
            return;
        }
        self.keeping = true;
        let hub = Arc::clone(&self.hub);
        let kept = async move {
            hub.until_kept("sessions", || hub.store.keep_sessions(sessions.clone())).await;
            sessions
        };
        ctx.spawn(kept.into_actor(self).map(|sessions, actor, _| {
            actor.keeping = false;
            actor.sessions.on_kept(&sessions);
        }));
    }

    /// Tells how much waits, and how far sessions are behind.
    fn count(&mut self) {
        let inbox = self.hub.inbox_len();
        let interactions = self.seats.interactions() + self.hub.inbox_interactions();
        let events = (self.sessions.held() + self.sessions.undone() + inbox).saturating_sub(interactions);
        emit(EventGuildsCounted { active: self.seats.len(), inbox, events, interactions });
        self.sessions.tell_lags();
    }
}

impl Actor for Router {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Context<Self>) {
        if let Some(told) = self.told.take() {
            self.listen(told, ctx);
        }
        ctx.run_interval(self.hub.config.keep_every, Self::keep);
        ctx.run_interval(LOOK_FOR_IDLE, |actor, _| actor.seats.let_idle_go(&actor.hub));
        self.count();
        ctx.run_interval(COUNT_EVERY, |actor, _| actor.count());
        let hub = Arc::clone(&self.hub);
        ctx.spawn(async move { inbox::work(hub).await }.into_actor(self));
    }
}

/// A shard is this process's own.
#[derive(Debug, Message)]
#[rtype(result = "()")]
pub(super) struct Take {
    pub(super) shard: u32,
    pub(super) credit: Arc<Credit>,
    /// Its session, if it had one.
    pub(super) resumed: Option<Resumed>,
}

impl Takes<Take> for Router {
    type Result = ();

    fn handle(&mut self, take: Take, _: &mut Context<Self>) {
        self.sessions.take(take);
    }
}

/// A shard is somebody else's.
#[derive(Clone, Copy, Debug, Message)]
#[rtype(result = "()")]
pub(super) struct LetGo {
    pub(super) shard: u32,
}

impl Takes<LetGo> for Router {
    type Result = ();

    fn handle(&mut self, LetGo { shard }: LetGo, _: &mut Context<Self>) {
        self.sessions.let_go(shard);
    }
}

/// Somebody began an interaction, and it came over HTTP.
#[derive(Clone, Debug, Message)]
#[rtype(result = "Posted")]
pub(super) struct Interact {
    pub(super) event: Event,
}

impl Takes<Interact> for Router {
    type Result = ResponseFuture<Posted>;

    fn handle(&mut self, Interact { event }: Interact, _: &mut Context<Self>) -> Self::Result {
        Box::pin(interaction::take(Arc::clone(&self.hub), event))
    }
}

/// Look into the inbox: somebody has put something there.
#[derive(Clone, Copy, Debug, Message)]
#[rtype(result = "()")]
pub(super) struct LookIntoInbox;

impl Takes<LookIntoInbox> for Router {
    type Result = ();

    fn handle(&mut self, _: LookIntoInbox, _: &mut Context<Self>) {
        self.hub.on_put();
    }
}

/// Show how everything stands.
#[derive(Clone, Copy, Debug, Message)]
#[rtype(result = "EventsSnapshot")]
pub(super) struct Observe;

/// How the events of this process stand.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct EventsSnapshot {
    /// Guilds that have had events lately.
    pub guilds: usize,
    /// Events that came and are not done.
    pub undone: usize,
    /// Events in the inbox.
    pub inbox: usize,
}

impl Takes<Observe> for Router {
    type Result = actix::MessageResult<Observe>;

    fn handle(&mut self, _: Observe, _: &mut Context<Self>) -> Self::Result {
        let inbox = self.hub.inbox_len();
        actix::MessageResult(EventsSnapshot { guilds: self.seats.len(), undone: self.sessions.undone(), inbox })
    }
}
