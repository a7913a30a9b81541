//! The limiter: who may go, and when.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, VecDeque};
use std::time::Duration;

use super::book::{Book, HashId, Knowledge};
use super::bucket::Bucket;
use super::config::LimitConfig;
use super::domain::{Domain, DomainId};
use super::global::Global;
use super::lot::{Gatekeeper, LotId, LotKey, SideKey, Ticket};
use super::side::Side;
use super::turn::Turn;
use super::yard::Yard;
use crate::answer::{Answer, Class, Credential, RateHeaders, Scope};
use crate::lane::Lane;
use crate::route::{Major, Route};
use crate::time::Timestamp;

/// A call that wants to go.
#[derive(Clone, Debug)]
pub struct Ask {
    /// Who it is made as.
    pub credential: Credential,
    /// Where it goes.
    pub route: Route,
    /// How urgent it is.
    pub lane: Lane,
    /// When its caller no longer waits.
    pub deadline: Timestamp,
}

/// A call that was granted and has not ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PermitId(u64);

/// What became of an [`Ask`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Acquired {
    /// It may go now.
    Granted(PermitId),
    /// It waits; an [`Effect`] will tell.
    Waiting(Ticket),
    /// It cannot go before its deadline. Nothing was changed.
    Delay(Delay),
}

/// Why a call cannot go in time, and when it could at the earliest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Delay {
    /// Not before then.
    pub until: Timestamp,
    /// What it would have waited for.
    pub reason: Reason,
}

/// What a call waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// Its route's bucket.
    Route,
    /// The global limit, or the order of lanes.
    Global,
    /// A place to wait at all: too many do already.
    Full,
}

impl Reason {
    /// Its name, as metrics and logs have it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Route => "route_limit",
            Self::Global => "global_limit",
            Self::Full => "queue_full",
        }
    }
}

/// What happened to somebody who waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// It may go now.
    Grant {
        /// Who.
        ticket: Ticket,
        /// Its permit.
        permit: PermitId,
        /// How long it waited.
        waited: Duration,
    },
    /// Its deadline came first. Nothing was changed.
    Expire {
        /// Who.
        ticket: Ticket,
        /// When it could go, and why not before.
        delay: Delay,
    },
}

/// Somebody who waits.
#[derive(Debug)]
struct Waiter {
    ask: Ask,
    domain: DomainId,
    since: Timestamp,
    lot: LotId,
    /// The side door it has passed, whose place it holds.
    side: Option<LotId>,
}

/// A call under way.
#[derive(Debug)]
struct Permit {
    ask: Ask,
    domain: DomainId,
    dispatched: Timestamp,
    /// The slot that it took.
    slot: Option<(LotId, u64)>,
    /// The lot whose one call ahead it is.
    probe: Option<LotId>,
    side: Option<LotId>,
}

/// A call of an unknown route whose answer was lost: it used a slot of a bucket that is not known yet.
#[derive(Debug)]
struct Ghost {
    credential: Credential,
    template: String,
    major: Major,
    /// When it can no longer arrive.
    gone: Timestamp,
}

impl Ghost {
    fn haunts(&self, ask: &Ask) -> bool {
        self.credential == ask.credential && self.major == ask.route.major && self.template == ask.route.key.template()
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Alarm {
    Lot(LotId),
    Deadline(Ticket),
}

/// So many alarms are not worth tidying.
const MIN_ALARMS: usize = 256;

/// Whether an alarm is still for something.
fn is_live((_, alarm): &(Timestamp, Alarm), waiters: &HashMap<Ticket, Waiter>, yard: &mut Yard) -> bool {
    match alarm {
        Alarm::Deadline(ticket) => waiters.contains_key(ticket),
        Alarm::Lot(lot) => yard.get(*lot).is_some(),
    }
}

/// The machine. Every method that may let somebody go leaves that in [`Limiter::take_effects`].
#[derive(Debug)]
pub struct Limiter {
    pub(super) config: LimitConfig,
    pub(super) book: Book,
    pub(super) yard: Yard,
    /// No more than two for each credential, and so few that they are found by looking at each.
    pub(super) domains: Vec<Domain>,
    waiters: HashMap<Ticket, Waiter>,
    permits: HashMap<PermitId, Permit>,
    alarms: BinaryHeap<Reverse<(Timestamp, Alarm)>>,
    /// With more alarms than this, some are for what has long happened.
    tidy_above: usize,
    /// Lots behind a side door; usually none.
    sides: usize,
    ghosts: Vec<Ghost>,
    effects: VecDeque<Effect>,
    next: u64,
    started: Timestamp,
}

impl Limiter {
    /// A limiter that has just started: it grants nothing under a global limit for one window.
    #[must_use]
    pub fn new(config: LimitConfig, now: Timestamp) -> Self {
        Self {
            book: Book::new(&config),
            yard: Yard::new(config.max_buckets),
            domains: Vec::new(),
            waiters: HashMap::new(),
            permits: HashMap::new(),
            alarms: BinaryHeap::new(),
            tidy_above: MIN_ALARMS,
            sides: 0,
            ghosts: Vec::new(),
            effects: VecDeque::new(),
            next: 0,
            started: now,
            config,
        }
    }

    /// Asks for a call to go. The lane only matters against those who wait.
    pub fn acquire(&mut self, ask: Ask, now: Timestamp) -> Acquired {
        let domain = self.domain_of(&ask);
        let Some(lot) = self.lot_of(&ask, now) else {
            return Acquired::Delay(Delay { until: now + Duration::from_secs(1), reason: Reason::Full });
        };
        // Nothing refers to it yet, and a bucket that it may share could take its place.
        self.yard.hold(lot);
        let acquired = self.acquire_at(lot, ask, domain, now);
        self.yard.release(lot);
        acquired
    }

    fn acquire_at(&mut self, lot: LotId, ask: Ask, domain: DomainId, now: Timestamp) -> Acquired {
        if self.may_go_at_once(&ask, domain, lot, now) {
            return Acquired::Granted(self.grant(ask, domain, lot, None, now));
        }
        let delay = self.estimate(&ask, domain, lot, now);
        if delay.until > ask.deadline {
            return Acquired::Delay(delay);
        }
        if self.waiters.len() >= self.config.max_waiters {
            return Acquired::Delay(Delay { until: delay.until.max(now + self.config.window), reason: Reason::Full });
        }
        self.next += 1;
        let ticket = Ticket(self.next);
        self.alarms.push(Reverse((ask.deadline, Alarm::Deadline(ticket))));
        self.enqueue(ticket, Waiter { ask, domain, since: now, lot, side: None }, now);
        self.settle(now);
        // It may have been let in by the settling itself.
        match self.effects.back() {
            Some(Effect::Grant { ticket: granted, permit, .. }) if *granted == ticket => {
                let permit = *permit;
                self.effects.pop_back();
                Acquired::Granted(permit)
            }
            _ => Acquired::Waiting(ticket),
        }
    }

    /// Asks for a call to go at once or not at all.
    pub fn try_acquire(&mut self, mut ask: Ask, now: Timestamp) -> Result<PermitId, Delay> {
        ask.deadline = now.before(Duration::from_micros(1));
        match self.acquire(ask, now) {
            Acquired::Granted(permit) => Ok(permit),
            Acquired::Delay(delay) => Err(delay),
            Acquired::Waiting(ticket) => {
                self.cancel(ticket, now);
                Err(Delay { until: now, reason: Reason::Global })
            }
        }
    }

    /// Somebody who waits no longer wants to.
    pub fn cancel(&mut self, ticket: Ticket, now: Timestamp) {
        if let Some(waiter) = self.remove(ticket, now) {
            self.release_side(waiter.side, now);
            self.settle(now);
        }
    }

    /// A call that was granted never left: all it took comes back.
    pub fn give_back(&mut self, permit: PermitId, now: Timestamp) {
        let Some(permit) = self.permits.remove(&permit) else { return };
        if let Some(global) = &mut self.domains[permit.domain].global {
            global.given_back();
        }
        if let Some((lot, number)) = permit.slot {
            if let Gatekeeper::Bucket(bucket) = &mut self.yard.lot(lot).keeper {
                bucket.give_back(number);
            }
            self.review(lot, now);
        }
        self.end_probe(permit.probe, now);
        self.release_side(permit.side, now);
        self.review_kin(&permit.ask, now);
        self.settle(now);
    }

    /// A call that was granted will have no answer: it counts as if it arrived at the last moment it can.
    pub fn lose(&mut self, permit: PermitId, now: Timestamp) {
        let Some(permit) = self.permits.remove(&permit) else { return };
        let gone = permit.dispatched + self.config.request_timeout;
        if let Some(global) = &mut self.domains[permit.domain].global {
            global.lost(permit.dispatched, now);
        }
        if let Some((lot, number)) = permit.slot {
            if let Gatekeeper::Bucket(bucket) = &mut self.yard.lot(lot).keeper {
                bucket.lose(number, gone.max(now));
            }
            self.review(lot, now);
        } else if permit.probe.is_some() && self.ghosts.len() < self.config.max_routes {
            self.ghosts.push(Ghost {
                credential: permit.ask.credential,
                template: permit.ask.route.key.template().to_owned(),
                major: permit.ask.route.major,
                gone: gone.max(now),
            });
        }
        self.end_probe(permit.probe, now);
        self.end_side(permit.side, gone.max(now), now);
        self.review_kin(&permit.ask, now);
        self.settle(now);
    }

    /// A call was answered.
    pub fn answered(&mut self, permit: PermitId, answer: &Answer, now: Timestamp) {
        let Some(permit) = self.permits.remove(&permit) else { return };
        if let Some(global) = &mut self.domains[permit.domain].global {
            global.answered(permit.dispatched, now);
        }
        let learned = match &answer.rate {
            Some(rate) => self.learn(&permit, rate, now),
            None => {
                if let Some((lot, number)) = permit.slot {
                    if let Gatekeeper::Bucket(bucket) = &mut self.yard.lot(lot).keeper {
                        bucket.answered_without_headers(number, now);
                    }
                    self.review(lot, now);
                }
                let is_telling =
                    matches!(answer.class, Class::Success | Class::NotFound | Class::Rejected | Class::Forbidden);
                if is_telling && permit.slot.is_none() {
                    let free = Knowledge::Free(now + self.config.free_for);
                    self.book.learn(permit.ask.credential, &permit.ask.route.key, free);
                }
                permit.slot.map(|(lot, _)| lot)
            }
        };
        // Whoever is let through the side door must not take the place of the bucket that is to be closed.
        learned.into_iter().for_each(|lot| self.yard.hold(lot));
        self.end_side(permit.side, now, now);
        if let Class::RateLimited { scope, retry_after } = answer.class {
            self.refused(&permit, scope, now + retry_after, answer.rate.as_ref(), learned, now);
        }
        learned.into_iter().for_each(|lot| self.yard.release(lot));
        self.end_probe(permit.probe, now);
        self.review_kin(&permit.ask, now);
        self.settle(now);
    }

    /// Time has passed: lets go whoever may, and sends away whoever can wait no longer.
    pub fn on_time(&mut self, now: Timestamp) {
        self.settle(now);
    }

    /// What happened to those who wait, in order.
    pub fn take_effects(&mut self) -> impl Iterator<Item = Effect> + '_ {
        self.effects.drain(..)
    }

    /// When [`Limiter::on_time`] should be called at the latest.
    #[must_use]
    pub fn next_wake(&self) -> Option<Timestamp> {
        let alarm = self.alarms.peek().map(|Reverse((then, _))| *then);
        self.domains.iter().filter_map(|domain| domain.wake).chain(alarm).min()
    }

    /// Free tokens of the global limits, of all credentials together.
    pub fn available(&mut self, now: Timestamp) -> u32 {
        self.domains.iter_mut().filter_map(|domain| domain.global.as_mut()).map(|global| global.free(now)).sum()
    }

    /// How many wait.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.waiters.len()
    }

    /// How many are under way.
    #[must_use]
    pub fn under_way(&self) -> usize {
        self.permits.len()
    }

    // ---- finding the way ----

    fn domain_of(&mut self, ask: &Ask) -> DomainId {
        let exempt = ask.route.interaction && self.config.interactions_exempt;
        let is_its = |domain: &Domain| domain.credential == ask.credential && domain.is_exempt() == exempt;
        self.domains.iter().position(is_its).unwrap_or_else(|| {
            // Counted from the limiter's start: a credential that is first seen later has had its quiet window.
            let global = (!exempt).then(|| Global::new(&self.config, self.started));
            self.domains.push(Domain::new(ask.credential, global));
            self.domains.len() - 1
        })
    }

    /// Where a call waits first: behind a side door if there is one, else in its ordinary lot.
    fn lot_of(&mut self, ask: &Ask, now: Timestamp) -> Option<LotId> {
        let Route { key, major, sub, .. } = &ask.route;
        if sub.is_some() {
            return self.side_lot(ask, now);
        }
        if self.sides > 0 {
            let whose = self.book.whose(ask.credential)?;
            let side = SideKey { whose, route: key.clone(), major: *major, sub: None };
            if let Some(id) = self.yard.find(&LotKey::Side(Box::new(side)))
                && !self.yard.lot(id).is_idle(now)
            {
                return Some(id);
            }
        }
        self.ordinary_lot(ask, now)
    }

    fn side_lot(&mut self, ask: &Ask, now: Timestamp) -> Option<LotId> {
        let Route { key, major, sub, .. } = &ask.route;
        let whose = self.book.whose(ask.credential)?;
        let side = SideKey { whose, route: key.clone(), major: *major, sub: *sub };
        let id = self.yard.find_or_make(&LotKey::Side(Box::new(side)), now, || Gatekeeper::Side(Side::new(*sub)))?;
        self.sides = self.sides.max(1);
        Some(id)
    }

    fn ordinary_lot(&mut self, ask: &Ask, now: Timestamp) -> Option<LotId> {
        let key = &ask.route.key;
        match self.book.of(ask.credential, key, now) {
            Knowledge::Hash(hash) => self.bucket_lot(ask, hash, now),
            Knowledge::Free(_) => {
                let free = LotKey::Free(self.book.whose(ask.credential)?, key.clone());
                self.yard.find_or_make(&free, now, || Gatekeeper::Open)
            }
            Knowledge::Unknown => {
                let unknown = LotKey::Unknown(self.book.whose(ask.credential)?, key.template().into(), key.is_read());
                self.yard.find_or_make(&unknown, now, || Gatekeeper::Probe { in_flight: false })
            }
        }
    }

    /// When a lot's next call may go, as far as the lot is concerned. `next` is that call.
    fn turn(&mut self, lot: LotId, next: &Ask, now: Timestamp) -> Turn {
        match &mut self.yard.lot(lot).keeper {
            Gatekeeper::Bucket(bucket) => bucket.turn(now),
            Gatekeeper::Open => Turn::Now,
            Gatekeeper::Side(side) => side.turn(now),
            Gatekeeper::Probe { in_flight: true } => Turn::OnAnswer,
            Gatekeeper::Probe { in_flight: false } => match self.kin(next, now) {
                // The last one's answer was lost, so it may still be under way.
                None => self.ghost_of(next, now).map_or(Turn::Now, Turn::At),
                Some(kin) => match &mut self.yard.lot(kin).keeper {
                    Gatekeeper::Bucket(bucket) => match bucket.turn(now) {
                        // A kin that is closed for hours is no reason to wait: it need not be the same bucket.
                        Turn::At(then) if then.since(now) > self.config.kin_patience => Turn::Now,
                        turn => turn,
                    },
                    _ => Turn::Now,
                },
            },
        }
    }

    /// When the last lost call that went ahead to this object can no longer arrive.
    fn ghost_of(&self, ask: &Ask, now: Timestamp) -> Option<Timestamp> {
        let ghosts = self.ghosts.iter().filter(|ghost| ghost.haunts(ask));
        ghosts.map(|ghost| ghost.gone).filter(|gone| *gone > now).max()
    }

    /// A call of a route has ended: an unknown route that waits for its bucket looks again.
    fn review_kin(&mut self, ask: &Ask, now: Timestamp) {
        let key = &ask.route.key;
        if self.waiters.is_empty() || key.is_read() {
            return;
        }
        let Some(whose) = self.book.whose(ask.credential) else { return };
        let unknown = LotKey::Unknown(whose, key.template().into(), false);
        if let Some(lot) = self.yard.find(&unknown) {
            self.review(lot, now);
        }
    }

    /// A bucket of the same object that an unknown route may turn out to share.
    fn kin(&mut self, ask: &Ask, now: Timestamp) -> Option<LotId> {
        let hash = self.book.kin(ask.credential, &ask.route.key).next()?;
        self.bucket_lot(ask, hash, now)
    }

    /// The bucket of a hash for a call's object. A new one starts from the hash's limit, less the calls that went to it
    /// when its hash was not known and whose answers were lost.
    fn bucket_lot(&mut self, ask: &Ask, hash: HashId, now: Timestamp) -> Option<LotId> {
        let bucket = LotKey::Bucket(self.book.whose(ask.credential)?, hash, ask.route.major);
        if let Some(lot) = self.yard.find(&bucket) {
            return Some(lot);
        }
        let mut fresh = Bucket::sibling(self.book.traits(hash));
        self.ghosts.retain(|ghost| ghost.gone > now);
        for ghost in self.ghosts.iter().filter(|ghost| ghost.haunts(ask)) {
            let number = fresh.take();
            fresh.lose(number, ghost.gone);
        }
        self.yard.find_or_make(&bucket, now, || Gatekeeper::Bucket(fresh))
    }

    fn may_go_at_once(&mut self, ask: &Ask, domain: DomainId, lot: LotId, now: Timestamp) -> bool {
        if self.yard.lot(lot).queues.is_some() || matches!(self.yard.lot(lot).keeper, Gatekeeper::Side(_)) {
            return false;
        }
        let there = &mut self.domains[domain];
        let is_free =
            there.is_quiet() && there.global.as_mut().is_none_or(|global| global.turn_of(ask.lane, now) == Turn::Now);
        is_free && self.turn(lot, ask, now) == Turn::Now
    }

    fn estimate(&mut self, ask: &Ask, domain: DomainId, lot: LotId, now: Timestamp) -> Delay {
        let there = &self.domains[domain];
        let global = there.global.as_ref().map_or(now, |global| global.estimate(there.ahead(ask.lane), now));
        let lot = self.yard.lot(lot);
        let ahead = lot.ahead(ask.lane);
        let route = match &lot.keeper {
            Gatekeeper::Bucket(bucket) => bucket.estimate(ahead, now),
            Gatekeeper::Side(side) => side.estimate(ahead, now),
            Gatekeeper::Open | Gatekeeper::Probe { .. } => now,
        };
        if route > global {
            Delay { until: route, reason: Reason::Route }
        } else {
            Delay { until: global, reason: Reason::Global }
        }
    }

    // ---- waiting ----

    fn enqueue(&mut self, ticket: Ticket, waiter: Waiter, now: Timestamp) {
        let (lot, lane) = (waiter.lot, waiter.ask.lane);
        let queue = &mut self.yard.lot(lot).queues.get_or_insert_default().lanes[lane.index()];
        // Mostly the newest ticket; one that moves here from elsewhere keeps its place in the order of tickets.
        let place = queue.partition_point(|other| *other < ticket);
        queue.insert(place, ticket);
        self.waiters.insert(ticket, waiter);
        self.review(lot, now);
    }

    /// Takes somebody out of where it waits.
    fn remove(&mut self, ticket: Ticket, now: Timestamp) -> Option<Waiter> {
        let waiter = self.waiters.remove(&ticket)?;
        let lane = waiter.ask.lane.index();
        if let Some(queues) = &mut self.yard.lot(waiter.lot).queues {
            queues.lanes[lane].retain(|other| *other != ticket);
        }
        self.review(waiter.lot, now);
        Some(waiter)
    }

    /// Looks at a lot anew: announces the heads that may go, or sets a timer.
    fn review(&mut self, lot: LotId, now: Timestamp) {
        self.unannounce(lot);
        let Some(queues) = &self.yard.lot(lot).queues else { return };
        let Some(first) = queues.first() else {
            self.yard.lot(lot).queues = None;
            return;
        };
        let first = self.waiters[&first].ask.clone();
        match self.turn(lot, &first, now) {
            Turn::Now if matches!(self.yard.lot(lot).keeper, Gatekeeper::Side(_)) => self.pass_side(lot, now),
            Turn::Now => self.announce(lot),
            Turn::At(then) => {
                let there = self.yard.lot(lot);
                if there.timer.is_none_or(|timer| timer > then) {
                    there.timer = Some(then);
                    self.alarms.push(Reverse((then, Alarm::Lot(lot))));
                }
            }
            Turn::OnAnswer => {}
        }
    }

    fn announce(&mut self, lot: LotId) {
        let is_probe = matches!(self.yard.lot(lot).keeper, Gatekeeper::Probe { .. });
        let Some(queues) = &mut self.yard.lot(lot).queues else { return };
        for lane in Lane::ALL {
            if let Some(head) = queues.lanes[lane.index()].front() {
                let domain = self.waiters[head].domain;
                queues.announced[lane.index()] = Some((*head, domain));
                self.domains[domain].announce(lane, *head, lot);
                if is_probe {
                    // Only the most urgent one can be the call ahead.
                    break;
                }
            }
        }
    }

    fn unannounce(&mut self, lot: LotId) {
        let Some(queues) = &mut self.yard.lot(lot).queues else { return };
        let announced = std::mem::take(&mut queues.announced);
        for (lane, head) in Lane::ALL.into_iter().zip(announced) {
            if let Some((head, domain)) = head {
                self.domains[domain].withdraw(lane, head, lot);
            }
        }
    }

    /// Lets those through a side door who may, into their ordinary lots.
    fn pass_side(&mut self, side: LotId, now: Timestamp) {
        while let Some(first) = self.yard.lot(side).queues.as_ref().and_then(|queues| queues.first()) {
            let Gatekeeper::Side(door) = &mut self.yard.lot(side).keeper else { return };
            if door.turn(now) != Turn::Now {
                self.review(side, now);
                return;
            }
            door.take();
            let Some(mut waiter) = self.waiters.remove(&first) else { return };
            if let Some(queues) = &mut self.yard.lot(side).queues {
                queues.lanes[waiter.ask.lane.index()].pop_front();
                if queues.is_empty() {
                    self.yard.lot(side).queues = None;
                }
            }
            waiter.side = Some(side);
            match self.ordinary_lot(&waiter.ask, now) {
                Some(lot) => {
                    waiter.lot = lot;
                    self.enqueue(first, waiter, now);
                }
                None => {
                    self.release_side(waiter.side, now);
                    let delay = Delay { until: now + Duration::from_secs(1), reason: Reason::Full };
                    self.effects.push_back(Effect::Expire { ticket: first, delay });
                }
            }
        }
    }

    // ---- going ----

    fn settle(&mut self, now: Timestamp) {
        while let Some(Reverse((then, alarm))) = self.alarms.peek().copied() {
            if then > now {
                break;
            }
            self.alarms.pop();
            match alarm {
                Alarm::Lot(lot) => {
                    if let Some(there) = self.yard.get(lot) {
                        there.timer = None;
                        self.review(lot, now);
                    }
                }
                Alarm::Deadline(ticket) => self.expire(ticket, now),
            }
        }
        for domain in 0..self.domains.len() {
            while let Some((_, ticket, lot)) = self.domains[domain].next(now) {
                self.let_go(ticket, lot, now);
            }
        }
        self.tidy_alarms();
    }

    /// Forgets alarms for what has happened since: those next in line, so that nobody is woken for nothing; and all of
    /// them once they are most of what there is, since callers may be patient for hours and wait for moments.
    fn tidy_alarms(&mut self) {
        while self.alarms.peek().is_some_and(|Reverse(alarm)| !is_live(alarm, &self.waiters, &mut self.yard)) {
            self.alarms.pop();
        }
        if self.alarms.len() > self.tidy_above {
            let mut alarms = std::mem::take(&mut self.alarms).into_vec();
            alarms.retain(|Reverse(alarm)| is_live(alarm, &self.waiters, &mut self.yard));
            alarms.sort_unstable();
            alarms.dedup();
            self.tidy_above = MIN_ALARMS.max(alarms.len() * 2);
            self.alarms = alarms.into();
        }
    }

    fn let_go(&mut self, ticket: Ticket, lot: LotId, now: Timestamp) {
        self.unannounce(lot);
        // A call ahead waits for a bucket that is not its lot's own, which others may have emptied since it was announced.
        let is_late = self.waiters.get(&ticket).map(|waiter| waiter.ask.clone());
        if is_late.is_some_and(|ask| self.turn(lot, &ask, now) != Turn::Now) {
            self.review(lot, now);
            return;
        }
        let Some(Waiter { ask, domain, since, side, .. }) = self.waiters.remove(&ticket) else { return };
        if let Some(queues) = &mut self.yard.lot(lot).queues {
            queues.lanes[ask.lane.index()].pop_front();
            if queues.is_empty() {
                self.yard.lot(lot).queues = None;
            }
        }
        let permit = self.grant(ask, domain, lot, side, now);
        self.effects.push_back(Effect::Grant { ticket, permit, waited: now.since(since) });
        self.review(lot, now);
    }

    fn grant(&mut self, ask: Ask, domain: DomainId, lot: LotId, side: Option<LotId>, now: Timestamp) -> PermitId {
        let (mut slot, mut probe) = (None, None);
        match &mut self.yard.lot(lot).keeper {
            Gatekeeper::Bucket(bucket) => slot = Some((lot, bucket.take())),
            Gatekeeper::Open | Gatekeeper::Side(_) => {}
            Gatekeeper::Probe { in_flight } => {
                *in_flight = true;
                probe = Some(lot);
                // It takes a slot of the bucket that it may share: if it does share it, the count is right.
                if let Some(kin) = self.kin(&ask, now)
                    && let Gatekeeper::Bucket(bucket) = &mut self.yard.lot(kin).keeper
                {
                    slot = Some((kin, bucket.take()));
                }
            }
        }
        self.domains[domain].take(ask.lane, now);
        self.next += 1;
        let id = PermitId(self.next);
        self.permits.insert(id, Permit { ask, domain, dispatched: now, slot, probe, side });
        id
    }

    fn expire(&mut self, ticket: Ticket, now: Timestamp) {
        let Some(waiter) = self.remove(ticket, now) else { return };
        let delay = self.estimate(&waiter.ask, waiter.domain, waiter.lot, now);
        self.release_side(waiter.side, now);
        self.effects.push_back(Effect::Expire { ticket, delay });
    }

    // ---- learning ----

    /// Takes in what an answer says of its bucket; returns the bucket's lot.
    fn learn(&mut self, permit: &Permit, rate: &RateHeaders, now: Timestamp) -> Option<LotId> {
        let Ask { credential, route, .. } = &permit.ask;
        let fresh = Bucket::learned(rate, now);
        let hash = self.book.hash(&rate.bucket, fresh.traits())?;
        let key = LotKey::Bucket(self.book.whose(*credential)?, hash, route.major);
        let mut is_new = false;
        let lot = self.yard.find_or_make(&key, now, || {
            is_new = true;
            Gatekeeper::Bucket(fresh)
        })?;
        let number = permit.slot.filter(|(taken, _)| *taken == lot).map(|(_, number)| number);
        if let (Some((taken, number)), true) = (permit.slot, number.is_none()) {
            // It took a slot of a bucket that it does not belong to after all.
            if let Gatekeeper::Bucket(bucket) = &mut self.yard.lot(taken).keeper {
                match permit.probe {
                    Some(_) => bucket.give_back(number),
                    None => bucket.answered_without_headers(number, now),
                }
            }
            self.review(taken, now);
        }
        if let Gatekeeper::Bucket(bucket) = &mut self.yard.lot(lot).keeper {
            if !is_new {
                bucket.answered(number, rate, self.config.agreement, now);
            }
            self.book.set_traits(hash, bucket.traits());
        }
        if self.book.of(*credential, &route.key, now) != Knowledge::Hash(hash) {
            self.book.learn(*credential, &route.key, Knowledge::Hash(hash));
        }
        self.review(lot, now);
        Some(lot)
    }

    fn refused(
        &mut self,
        permit: &Permit,
        scope: Scope,
        until: Timestamp,
        rate: Option<&RateHeaders>,
        bucket: Option<LotId>,
        now: Timestamp,
    ) {
        match (scope, bucket) {
            (Scope::Global, _) => {
                if let Some(global) = &mut self.domains[permit.domain].global {
                    global.close(until);
                }
            }
            // With slots left, it is not the bucket that refused, but a limit within it.
            (Scope::User, Some(lot)) if rate.is_none_or(|rate| rate.remaining == 0) => {
                if let Gatekeeper::Bucket(bucket) = &mut self.yard.lot(lot).keeper {
                    bucket.close(until);
                }
                self.review(lot, now);
            }
            (Scope::User | Scope::Shared, _) => self.close_side(&permit.ask, until, now),
        }
    }

    /// Closes the side door of one resource; those who wait for it move behind the door, the others go on.
    fn close_side(&mut self, ask: &Ask, until: Timestamp, now: Timestamp) {
        let Some(side) = self.side_lot(ask, now) else { return };
        if let Gatekeeper::Side(door) = &mut self.yard.lot(side).keeper {
            door.close(until);
        }
        let behind: Vec<Ticket> = self
            .waiters
            .iter()
            .filter(|(_, waiter)| {
                let other = &waiter.ask;
                other.credential == ask.credential && other.route == ask.route && waiter.lot != side
            })
            .map(|(ticket, _)| *ticket)
            .collect();
        self.yard.hold(side);
        self.move_to(behind, |_, _, _| Some(side), now);
        self.review(side, now);
        self.yard.release(side);
    }

    /// A probe has ended: those of its route who waited for it go where they belong now, in their order.
    fn end_probe(&mut self, probe: Option<LotId>, now: Timestamp) {
        let Some(lot) = probe else { return };
        if let Gatekeeper::Probe { in_flight } = &mut self.yard.lot(lot).keeper {
            *in_flight = false;
        }
        let waiting: Vec<Ticket> =
            self.yard.lot(lot).queues.iter().flat_map(|queues| queues.lanes.iter().flatten().copied()).collect();
        let wiser: Vec<Ticket> = waiting
            .into_iter()
            .filter(|ticket| {
                let ask = &self.waiters[ticket].ask;
                self.book.of(ask.credential, &ask.route.key, now) != Knowledge::Unknown
            })
            .collect();
        // Those who move on must not take the place of the lot that they leave.
        self.yard.hold(lot);
        self.move_to(wiser, Self::ordinary_lot, now);
        self.review(lot, now);
        self.yard.release(lot);
    }

    fn move_to(
        &mut self,
        mut tickets: Vec<Ticket>,
        to: impl Fn(&mut Self, &Ask, Timestamp) -> Option<LotId>,
        now: Timestamp,
    ) {
        tickets.sort_unstable();
        for ticket in tickets {
            let Some(mut waiter) = self.remove(ticket, now) else { continue };
            match to(self, &waiter.ask, now) {
                Some(lot) => {
                    waiter.lot = lot;
                    self.enqueue(ticket, waiter, now);
                }
                None => {
                    self.release_side(waiter.side, now);
                    let delay = Delay { until: now + Duration::from_secs(1), reason: Reason::Full };
                    self.effects.push_back(Effect::Expire { ticket, delay });
                }
            }
        }
    }

    fn release_side(&mut self, side: Option<LotId>, now: Timestamp) {
        let Some(side) = side else { return };
        if let Gatekeeper::Side(door) = &mut self.yard.lot(side).keeper {
            door.give_back();
        }
        self.review(side, now);
    }

    fn end_side(&mut self, side: Option<LotId>, then: Timestamp, now: Timestamp) {
        let Some(side) = side else { return };
        if let Gatekeeper::Side(door) = &mut self.yard.lot(side).keeper {
            door.done(then);
        }
        self.review(side, now);
    }
}

#[cfg(test)]
#[path = "limiter_tests.rs"]
mod tests;
