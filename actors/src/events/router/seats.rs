//! The guilds that have had events lately: begun when one comes, begun anew when one breaks, let go when nothing does.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use actix::{ActorFutureExt as _, Addr, AsyncContext as _, Context, Handler as Takes, Message, WrapFuture as _};
use guildhall_core::event::handler::{body, trace};
use guildhall_core::time::UnixMs;

use super::{Router, SpawnEvents};
use crate::events::guild::{EventSeat, GuildEvents};
use crate::events::hub::{Hub, lane_of};
use crate::events::parcel::Parcel;
use crate::events::tray::Tray;
use crate::telemetry::emit;
use crate::telemetry::events::{EventBuried, EventGuildBroke};

/// Restarts within this time count.
const RESTART_WINDOW: Duration = Duration::from_secs(60);

struct Kept {
    tray: Arc<Tray>,
    /// Nothing while its guild rests.
    guild: Option<Addr<GuildEvents>>,
    generation: u64,
    restarts: VecDeque<UnixMs>,
}

/// The guilds that have had events lately.
pub(super) struct Seats {
    spawn: SpawnEvents,
    kept: HashMap<i64, Kept>,
    generations: u64,
}

impl Seats {
    pub(super) fn new(spawn: SpawnEvents) -> Self {
        Self { spawn, kept: HashMap::new(), generations: 0 }
    }

    /// How many there are.
    pub(super) fn len(&self) -> usize {
        self.kept.len()
    }

    /// How many interactions are with somebody.
    pub(super) fn interactions(&self) -> usize {
        self.kept.iter().filter(|(lane, _)| **lane < 0).map(|(_, kept)| kept.tray.len()).sum()
    }

    /// Hands an event to its guild, which begins if it is not there.
    pub(super) fn hand(&mut self, parcel: Parcel, hub: &Arc<Hub>, ctx: &Context<Router>) {
        let lane = lane_of(&parcel.event);
        if !self.kept.contains_key(&lane) {
            self.seat(lane, Tray::new(parcel.event.received_at), VecDeque::new(), hub, ctx);
        }
        if let Some(kept) = self.kept.get(&lane) {
            kept.tray.push(parcel);
        }
    }

    /// Starts a guild for a tray.
    fn seat(&mut self, lane: i64, tray: Arc<Tray>, restarts: VecDeque<UnixMs>, hub: &Arc<Hub>, ctx: &Context<Router>) {
        self.generations += 1;
        let generation = self.generations;
        let seat = EventSeat {
            lane,
            generation,
            hub: Arc::clone(hub),
            tray: Arc::clone(&tray),
            router: ctx.address().downgrade(),
        };
        let guild = Some((self.spawn)(seat));
        self.kept.insert(lane, Kept { tray, guild, generation, restarts });
    }

    /// Lets guilds go that have had nothing to do for long; those of interactions at once.
    pub(super) fn let_idle_go(&mut self, hub: &Hub) {
        let now = hub.clock.now();
        let then = now.before(hub.config.idle_after);
        self.kept.retain(|lane, kept| {
            let since = if *lane < 0 { now } else { then };
            !(kept.guild.is_some() && kept.tray.close_if_idle_since(since))
        });
    }
}

/// A guild is gone.
#[derive(Clone, Copy, Debug, Message)]
#[rtype(result = "()")]
pub(in crate::events) struct GuildGone {
    pub(in crate::events) lane: i64,
    pub(in crate::events) generation: u64,
}

impl Takes<GuildGone> for Router {
    type Result = ();

    fn handle(&mut self, GuildGone { lane, generation }: GuildGone, ctx: &mut Context<Self>) {
        // One that was let go is not kept any more.
        let Some(kept) = self.seats.kept.get_mut(&lane).filter(|kept| kept.generation == generation) else { return };
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
                let trace = trace(&parcel.event.origin);
                emit(EventBuried { handler: &handler.name, event: parcel.event.name.as_str(), trace, why });
                // What broke it may be the event itself: it is kept as it came.
                let body = body(&parcel.event, &BTreeMap::new());
                let mut entry = hub.entry(&parcel.event, handler, body);
                (entry.dead, entry.attempts) = (Some(why.to_owned()), 1);
                hub.commit(vec![hub.put(entry)]).await;
            }
            tokio::time::sleep(wait).await;
        };
        ctx.spawn(buried.into_actor(self).map(move |(), actor, ctx| {
            if let Some(kept) = actor.seats.kept.remove(&lane) {
                actor.seats.seat(lane, kept.tray, kept.restarts, &actor.hub, ctx);
            }
        }));
    }
}
