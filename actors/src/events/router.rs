//! The event side of the supervisor: takes what shards tell, finds who wants to hear of it, and keeps the guilds.
//!
//! ```text
//!  feeds ─▶ ledger (received, gaps) ─▶ nobody wants it: done
//!                                   └▶ tray of its guild ─▶ guild ─▶ done ─▶ credit back, session confirmed
//! ```

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use actix::{
    Actor, ActorFutureExt as _, Addr, AsyncContext as _, Context, Handler as Takes, Message, ResponseFuture,
    WrapFuture as _,
};
use futures_util::FutureExt as _;
use guildhall_core::event::handler::body;
use guildhall_core::event::{Class, Event, EventName, Origin, Text};
use guildhall_core::session::Received;
use guildhall_core::time::UnixMs;
use serde::Serialize;
use serde_json::json;
use tokio::sync::mpsc;
use tokio::time::Instant;

use super::batch::Batch;
use super::feed::{Credit, Told};
use super::guild::{EventSeat, GuildEvents};
use super::hub::{Hub, lane_of};
use super::inbox;
use super::interaction::{self, Posted, deferral};
use super::parcel::{Parcel, Session, done};
use super::store::KeptSession;
use super::tray::Tray;
use crate::telemetry::emit;
use crate::telemetry::events::{
    EventBuried, EventGap, EventGuildBroke, EventGuildsCounted, EventsHanded, EventsReceived, SessionLags, SessionsKept,
};

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

/// How often it is looked whether events are done that are waited for.
const LOOK_AGAIN: Duration = Duration::from_millis(10);

/// Restarts within this time count.
const RESTART_WINDOW: Duration = Duration::from_secs(60);

struct Kept {
    tray: Arc<Tray>,
    /// Nothing while its guild rests.
    guild: Option<Addr<GuildEvents>>,
    generation: u64,
    restarts: VecDeque<UnixMs>,
}

/// What a session was confirmed to when it was last kept.
struct Line {
    session: Arc<Session>,
    kept: Option<u64>,
    /// Sessions before it whose events are not all done: until they are, a restart has to find the first of them.
    before: VecDeque<Arc<Session>>,
}

/// Routes events.
pub struct Router {
    hub: Arc<Hub>,
    told: Option<mpsc::Receiver<Told>>,
    credits: HashMap<u32, Arc<Credit>>,
    spawn: SpawnEvents,
    lines: HashMap<u32, Line>,
    /// Handlers that were done with events of a session before this process began, by session and number.
    done_before: HashMap<(Arc<str>, u64), Vec<usize>>,
    matching: HashMap<EventName, Arc<[usize]>>,
    guilds: HashMap<i64, Kept>,
    generations: u64,
    keeping: bool,
    /// Shards whose lag was told.
    told_of: BTreeSet<u32>,
}

impl std::fmt::Debug for Router {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Router").field("guilds", &self.guilds.len()).finish_non_exhaustive()
    }
}

impl Router {
    pub(super) fn new(hub: Arc<Hub>, told: mpsc::Receiver<Told>, spawn: SpawnEvents) -> Self {
        Self {
            hub,
            told: Some(told),
            credits: HashMap::new(),
            spawn,
            lines: HashMap::new(),
            done_before: HashMap::new(),
            matching: HashMap::new(),
            guilds: HashMap::new(),
            generations: 0,
            keeping: false,
            told_of: BTreeSet::new(),
        }
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
                let Some(line) = self.lines.get(&shard).filter(|line| line.session.id == session) else { return };
                let session = Arc::clone(&line.session);
                let received = session.ledger().on_received(seq);
                self.after(&session, received, ctx);
                session.ledger().on_done(seq);
                // A new session is kept at once: until then a restart would have to begin another one.
                if self.lines.get(&shard).is_some_and(|line| line.kept.is_none()) {
                    self.keep(ctx);
                }
            }
            Told::Events(batch) => self.take(batch, ctx),
            // Who waited may have given up.
            Told::Ended { heard } => drop(heard.send(())),
        }
    }

    /// A shard is this process's own from now on, with a session that may go on.
    fn resume(&mut self, Take { shard, credit, resumed }: Take) {
        self.credits.insert(shard, Arc::clone(&credit));
        let Some((kept, handled)) = resumed else { return };
        for (seq, handler) in handled {
            if let Some(handler) = self.hub.number(&handler) {
                self.done_before.entry((Arc::clone(&kept.session), seq)).or_default().push(handler);
            }
        }
        self.hub.own.has_session(shard, &kept.session);
        let KeptSession { session, resume_url, confirmed, .. } = kept;
        let session = Session::new(session, shard, resume_url, confirmed, credit);
        self.lines.insert(shard, Line { session, kept: Some(confirmed), before: VecDeque::new() });
    }

    /// It is not any more.
    fn let_go(&mut self, shard: u32) {
        self.credits.remove(&shard);
        if let Some(line) = self.lines.remove(&shard) {
            self.done_before.retain(|(session, _), _| *session != line.session.id);
        }
    }

    /// A shard has a new session.
    fn begin(&mut self, shard: u32, id: Arc<str>, resume_url: Option<String>, ctx: &mut Context<Self>) {
        let Some(credit) = self.credits.get(&shard) else { return };
        let session = Session::new(id, shard, resume_url, 0, Arc::clone(credit));
        self.hub.own.has_session(shard, &session.id);
        match self.lines.get_mut(&shard) {
            None => {
                self.lines.insert(shard, Line { session, kept: None, before: VecDeque::new() });
            }
            Some(line) if line.session.id == session.id => {}
            Some(line) => {
                let old = std::mem::replace(&mut line.session, session);
                line.kept = None;
                line.before.push_back(Arc::clone(&old));
                // What Discord had to tell after the last one that came is lost; nobody knows how much that is.
                let first = old.ledger().received() + 1;
                old.ledger().on_received(first);
                self.tell_of_gap(&old, first, None, ctx);
            }
        }
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
        let line = self.lines.get(&first.origin.shard).filter(|line| line.session.id == first.origin.session);
        let Some(session) = line.map(|line| Arc::clone(&line.session)) else {
            // Of a session that nobody began: nothing can be confirmed of it.
            let bytes = events.iter().map(|event| event.text.bytes()).sum();
            if let Some(credit) = self.credits.get(&first.origin.shard) {
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
        let not_to = if self.done_before.is_empty() {
            Vec::new()
        } else {
            let of = (Arc::clone(&event.origin.session), event.origin.seq);
            self.done_before.remove(&of).unwrap_or_default()
        };
        let mut parcel = Parcel { event, to, not_to, session: Arc::clone(session), counts, deferring: None, read_at };
        if parcel.left().next().is_none() {
            done(&[Arc::new(parcel)]);
            return;
        }
        self.defer(&mut parcel);
        let lane = lane_of(&parcel.event);
        let now = parcel.event.received_at;
        if !self.guilds.contains_key(&lane) {
            self.seat(lane, Tray::new(now), VecDeque::new(), ctx);
        }
        if let Some(kept) = self.guilds.get(&lane) {
            kept.tray.push(parcel);
        }
    }

    /// Tells Discord at once that an answer is on its way, before anything else is done.
    fn defer(&self, parcel: &mut Parcel) {
        let Some(interaction) = &parcel.event.interaction else { return };
        let Some(first) = deferral(&self.hub, interaction, parcel.left()) else { return };
        let told = self.hub.answers.tell(Arc::clone(interaction), first).shared();
        // It goes on although nobody waits for it yet.
        tokio::spawn(told.clone().map(drop));
        parcel.deferring = Some(told);
    }

    /// Starts a guild for a tray.
    fn seat(&mut self, lane: i64, tray: Arc<Tray>, restarts: VecDeque<UnixMs>, ctx: &Context<Self>) {
        self.generations += 1;
        let generation = self.generations;
        let seat = EventSeat {
            lane,
            generation,
            hub: Arc::clone(&self.hub),
            tray: Arc::clone(&tray),
            router: ctx.address().downgrade(),
        };
        let guild = Some((self.spawn)(seat));
        self.guilds.insert(lane, Kept { tray, guild, generation, restarts });
    }

    /// Lets guilds go that have had nothing to do for long; those of interactions at once.
    fn let_idle_go(&mut self) {
        let now = self.hub.clock.now();
        let idle_after = self.hub.config.idle_after;
        let then = UnixMs::new(now.millis().saturating_sub(u64::try_from(idle_after.as_millis()).unwrap_or(u64::MAX)));
        self.guilds.retain(|lane, kept| {
            let since = if *lane < 0 { now } else { then };
            !(kept.guild.is_some() && kept.tray.close_if_idle_since(since))
        });
    }

    /// Tells how much waits, and how far sessions are behind, what shards hold back included.
    fn count(&mut self) {
        let inbox = self.hub.inbox_len();
        let held: usize = self.credits.values().map(|credit| credit.held()).sum();
        let trays = self.guilds.iter().filter(|(lane, _)| **lane < 0);
        let interactions = trays.map(|(_, kept)| kept.tray.len()).sum::<usize>() + self.hub.inbox_interactions();
        let events = (held + self.undone() + inbox).saturating_sub(interactions);
        emit(EventGuildsCounted { active: self.guilds.len(), inbox, events, interactions });
        for (shard, line) in &self.lines {
            let behind = |session: &Arc<Session>| {
                let ledger = session.ledger();
                ledger.received() - ledger.confirmed()
            };
            let held = self.credits.get(shard).map_or(0, |credit| credit.held() as u64);
            let lag = held + behind(&line.session) + line.before.iter().map(behind).sum::<u64>();
            emit(SessionLags { shard: *shard, lag });
        }
        // What was last told of a shard that is not here any more would be told for ever.
        let shards: BTreeSet<u32> = self.lines.keys().copied().collect();
        for gone in self.told_of.difference(&shards) {
            emit(SessionLags { shard: *gone, lag: 0 });
        }
        self.told_of = shards;
    }

    /// Keeps how far sessions are confirmed, if that has changed.
    fn keep(&mut self, ctx: &mut Context<Self>) {
        if self.keeping {
            return;
        }
        let sessions = self.unkept();
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
            actor.on_kept(&sessions);
        }));
    }

    fn unkept(&mut self) -> Vec<KeptSession> {
        let (shards, at) = (self.hub.config.shards, self.hub.clock.now());
        let mut sessions = Vec::new();
        for line in self.lines.values_mut() {
            while let Some(old) = line.before.pop_front_if(|old| old.ledger().undone() == 0) {
                self.hub.own.forget_session(&old.id);
            }
            // Until all events of the session before are done, a restart has to find that one.
            let session = line.before.front().unwrap_or(&line.session);
            let confirmed = session.ledger().confirmed();
            // And nothing can be resumed before its READY.
            if !line.before.is_empty() || line.kept == Some(confirmed) || confirmed == 0 {
                continue;
            }
            sessions.push(KeptSession {
                shard: session.shard,
                shards,
                session: Arc::clone(&session.id),
                resume_url: session.resume_url.clone(),
                confirmed,
                at,
                under: self.hub.own.fence(session.shard),
            });
        }
        sessions
    }

    fn on_kept(&mut self, sessions: &[KeptSession]) {
        emit(SessionsKept { sessions: sessions.len() });
        for kept in sessions {
            if let Some(line) = self.lines.get_mut(&kept.shard).filter(|line| line.session.id == kept.session) {
                line.kept = Some(kept.confirmed);
            }
        }
    }

    /// How many events are with somebody.
    fn undone(&self) -> usize {
        let of = |session: &Arc<Session>| session.ledger().undone();
        self.lines.values().map(|line| of(&line.session) + line.before.iter().map(of).sum::<usize>()).sum()
    }

    /// How many of one shard are.
    fn undone_of(&self, shard: u32) -> usize {
        let of = |session: &Arc<Session>| session.ledger().undone();
        self.lines.get(&shard).map_or(0, |line| of(&line.session) + line.before.iter().map(of).sum::<usize>())
    }
}

impl Actor for Router {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Context<Self>) {
        if let Some(told) = self.told.take() {
            self.listen(told, ctx);
        }
        ctx.run_interval(self.hub.config.keep_every, Self::keep);
        ctx.run_interval(LOOK_FOR_IDLE, |actor, _| actor.let_idle_go());
        self.count();
        ctx.run_interval(COUNT_EVERY, |actor, _| actor.count());
        let hub = Arc::clone(&self.hub);
        ctx.spawn(async move { inbox::work(hub).await }.into_actor(self));
    }
}

/// A guild is gone.
#[derive(Clone, Copy, Debug, Message)]
#[rtype(result = "()")]
pub(super) struct GuildGone {
    pub(super) lane: i64,
    pub(super) generation: u64,
}

impl Takes<GuildGone> for Router {
    type Result = ();

    fn handle(&mut self, GuildGone { lane, generation }: GuildGone, ctx: &mut Context<Self>) {
        // One that was let go is not kept any more.
        let Some(kept) = self.guilds.get_mut(&lane).filter(|kept| kept.generation == generation) else { return };
        let now = self.hub.clock.now();
        kept.guild = None;
        kept.restarts.push_back(now);
        while kept.restarts.front().is_some_and(|at| now.since(*at) >= RESTART_WINDOW) {
            kept.restarts.pop_front();
        }
        let rests = kept.restarts.len() > self.hub.config.most_restarts;
        let poison = kept.tray.take_poison();
        let wait = if rests { self.hub.config.rest } else { Duration::ZERO };
        let what = poison.as_ref().map(|(parcel, _)| parcel.event.name.to_string());
        emit(EventGuildBroke { lane, executing: what.as_deref(), rests: rests.then_some(wait) });
        let hub = Arc::clone(&self.hub);
        let buried = async move {
            if let Some((parcel, handler)) = poison {
                let handler = hub.handler(handler);
                let why =
                    "it broke what handles events, and was taken out so that the others go on; the log tells where";
                emit(EventBuried { handler: &handler.name, event: parcel.event.name.as_str(), why });
                // What broke it may be the event itself: it is kept as it came.
                let body = body(&parcel.event, &BTreeMap::new());
                let mut entry = hub.entry(&parcel.event, handler, body);
                (entry.dead, entry.attempts) = (Some(why.to_owned()), 1);
                hub.commit(vec![hub.put(entry)]).await;
            }
            tokio::time::sleep(wait).await;
        };
        ctx.spawn(buried.into_actor(self).map(move |(), actor, ctx| {
            if let Some(kept) = actor.guilds.remove(&lane) {
                actor.seat(lane, kept.tray, kept.restarts, ctx);
            }
        }));
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

/// Wait until all events that came are done, then keep that they are.
#[derive(Clone, Copy, Debug, Message)]
#[rtype(result = "bool")]
pub(super) struct Drain {
    pub(super) within: Duration,
}

impl Takes<Drain> for Router {
    type Result = ResponseFuture<bool>;

    fn handle(&mut self, Drain { within }: Drain, ctx: &mut Context<Self>) -> Self::Result {
        let router = ctx.address();
        Box::pin(async move {
            let deadline = Instant::now() + within;
            let mut drained = false;
            while !drained && Instant::now() < deadline {
                drained = router.send(Observe).await.is_ok_and(|seen| seen.undone == 0);
                if !drained {
                    tokio::time::sleep(LOOK_AGAIN).await;
                }
            }
            let kept = tokio::time::timeout_at(deadline + Duration::from_secs(1), router.send(KeepAll)).await;
            drained && kept.is_ok()
        })
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
        self.resume(take);
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
        self.let_go(shard);
    }
}

/// Wait until all events of a shard that came are done, then keep that they are.
#[derive(Clone, Copy, Debug, Message)]
#[rtype(result = "bool")]
pub(super) struct DrainShard {
    pub(super) shard: u32,
    pub(super) within: Duration,
}

impl Takes<DrainShard> for Router {
    type Result = ResponseFuture<bool>;

    fn handle(&mut self, DrainShard { shard, within }: DrainShard, ctx: &mut Context<Self>) -> Self::Result {
        let router = ctx.address();
        Box::pin(async move {
            let deadline = Instant::now() + within;
            let is_done = async || router.send(UndoneOf { shard }).await.is_ok_and(|undone| undone == 0);
            let mut drained = is_done().await;
            while !drained && Instant::now() < deadline {
                tokio::time::sleep(LOOK_AGAIN).await;
                drained = is_done().await;
            }
            if within.is_zero() {
                return drained;
            }
            let kept = tokio::time::timeout_at(deadline + Duration::from_secs(1), router.send(KeepAll)).await;
            drained && kept.is_ok()
        })
    }
}

/// How many events of a shard are not done.
#[derive(Clone, Copy, Debug, Message)]
#[rtype(result = "usize")]
struct UndoneOf {
    shard: u32,
}

impl Takes<UndoneOf> for Router {
    type Result = usize;

    fn handle(&mut self, UndoneOf { shard }: UndoneOf, _: &mut Context<Self>) -> usize {
        self.undone_of(shard)
    }
}

/// Keep how far all sessions are confirmed, now.
#[derive(Clone, Copy, Debug, Message)]
#[rtype(result = "()")]
struct KeepAll;

impl Takes<KeepAll> for Router {
    type Result = ResponseFuture<()>;

    fn handle(&mut self, _: KeepAll, _: &mut Context<Self>) -> Self::Result {
        let (hub, sessions) = (Arc::clone(&self.hub), self.unkept());
        Box::pin(async move {
            if !sessions.is_empty() {
                hub.until_kept("sessions", || hub.store.keep_sessions(sessions.clone())).await;
            }
        })
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
        actix::MessageResult(EventsSnapshot { guilds: self.guilds.len(), undone: self.undone(), inbox })
    }
}
