//! The client side of the shared limit, in one process.
//!
//! ```text
//!                probe, reply                join
//!  disconnected ──────────────▶ joining ──────────▶ joined
//!     ▲                            │                  │
//!     └──────── no reply in time ──┴──────────────────┘
//! ```
//!
//! While joined, it uses slots that it has booked. While disconnected, it first waits until Redis has certainly
//! detached it, and until all slots that other members had booked by then have ended. Then it uses its share like a
//! local window: a token returns one window after its response. While disconnected it only *probes* Redis, which
//! changes nothing there: a call whose reply is lost must not attach it again.

mod protocol;
mod view;

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use super::clock_monitor::ClockMonitor;
use super::config::{LimitFallback, SharedLimitConfig};
use super::script::SlotOutcome;
use crate::limit::readiness::Readiness;
use crate::time::Timestamp;

pub use view::{MemberView, SharingMode};

/// Id of a permit to make one call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MemberPermitId(u64);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Apart,
    Joining,
    Joined,
    Left,
}

/// A slot that is booked and not used yet.
#[derive(Clone, Copy, Debug)]
struct Booking {
    token: u64,
    booking: u64,
    from: Timestamp,
    until: Timestamp,
    is_urgent: bool,
}

/// A call without a response.
#[derive(Clone, Copy, Debug)]
struct InFlightCall {
    slot: Option<(u64, u64, Timestamp)>,
    dispatched: Timestamp,
    /// When it can no longer arrive, if it gets no response.
    gone: Option<Timestamp>,
}

/// A call that was answered less than one window ago.
#[derive(Clone, Copy, Debug)]
struct CoolingCall {
    at: Timestamp,
    lodging: MemberPermitId,
    is_told: bool,
}

/// The outcome of a slot that is to be reported.
#[derive(Clone, Copy, Debug)]
struct PendingReport {
    token: u64,
    booking: u64,
    /// When the call was answered; `None` if the slot was not used.
    answered: Option<(Timestamp, MemberPermitId)>,
    since: Timestamp,
}

/// A call to Redis without a reply.
#[derive(Clone, Debug)]
struct PendingCall {
    sent: Timestamp,
    is_look: bool,
    is_urgent: bool,
    /// The calls without a response that it includes.
    flying: Vec<MemberPermitId>,
    told: Vec<PendingReport>,
    blocked: Option<Timestamp>,
    dead: Vec<String>,
    /// The share that it gives up if the call was executed.
    share: Option<u32>,
    /// Whether it requests slots.
    wants: bool,
}

/// The client side of the shared limit. It has no clock and does no I/O: [`Member::next_call`] returns the next call to
/// Redis, and its result is passed to [`Member::on_reply`] or [`Member::on_lost`], one call at a time.
#[derive(Debug)]
pub struct Member {
    config: SharedLimitConfig,
    id: String,
    life: u64,
    state: State,
    epoch: String,
    /// The epoch whose clock has jumped.
    renew: String,
    /// The epoch at the last probe.
    seen_epoch: String,
    share: u32,
    members: u32,
    live: u32,
    pool: u32,
    watch: ClockMonitor,
    under_way: Option<PendingCall>,
    bookings: Vec<Booking>,
    flights: BTreeMap<MemberPermitId, InFlightCall>,
    cooling: VecDeque<CoolingCall>,
    to_tell: Vec<PendingReport>,
    last_lodging: u64,
    want: u32,
    is_urgent: bool,
    again_at: Timestamp,
    look_at: Timestamp,
    heartbeat_at: Timestamp,
    /// The latest time at which Redis can have received a call.
    last_word: Timestamp,
    /// The earliest time of the last call that Redis has certainly received.
    last_heard: Timestamp,
    /// Start of the disconnected state.
    apart_since: Timestamp,
    closed_until: Timestamp,
    /// When the last known global 429 ends.
    global_block: Timestamp,
    untold_block: Option<Timestamp>,
    dead: Vec<String>,
    calls: u64,
    lost: u64,
}

impl Member {
    /// Creates a member that has not reached Redis yet, and therefore sends nothing. `id` is its member id;
    /// `incarnation` should be random.
    #[must_use]
    pub fn new(config: SharedLimitConfig, id: String, life: u64, now: Timestamp) -> Self {
        Self {
            watch: ClockMonitor::new(config.window),
            config,
            id,
            life,
            state: State::Apart,
            epoch: String::new(),
            renew: String::new(),
            seen_epoch: String::new(),
            share: 0,
            members: 0,
            live: 0,
            pool: 0,
            under_way: None,
            bookings: Vec::new(),
            flights: BTreeMap::new(),
            cooling: VecDeque::new(),
            to_tell: Vec::new(),
            last_lodging: 0,
            want: 0,
            is_urgent: false,
            again_at: now,
            look_at: now,
            heartbeat_at: now,
            last_word: now,
            last_heard: now,
            apart_since: now,
            closed_until: Timestamp::ZERO,
            global_block: Timestamp::ZERO,
            untold_block: None,
            dead: Vec::new(),
            calls: 0,
            lost: 0,
        }
    }

    /// When a call may be sent.
    pub(crate) fn turn(&mut self, now: Timestamp) -> Readiness {
        if now < self.closed_until {
            return Readiness::At(self.closed_until);
        }
        self.pass_time(now);
        if let Some(first) = self.bookings.first() {
            return Readiness::not_before(first.from, now);
        }
        if self.state != State::Apart {
            return Readiness::OnAnswer;
        }
        let Some((limit, from, until)) = self.alone() else { return Readiness::OnAnswer };
        if now >= until {
            return Readiness::OnAnswer;
        }
        if now < from {
            return Readiness::At(from);
        }
        if self.used() < limit as usize {
            return Readiness::Now;
        }
        self.cooling.front().map_or(Readiness::OnAnswer, |first| Readiness::At(first.at + self.config.window))
    }

    /// The limit that it may use while disconnected: number of calls, start, and end.
    fn alone(&self) -> Option<(u32, Timestamp, Timestamp)> {
        match self.config.on_loss {
            LimitFallback::Closed => None,
            LimitFallback::Share if self.share == 0 => None,
            LimitFallback::Share => {
                Some((self.share, self.last_word + self.config.apart(), self.last_heard + self.config.share_for))
            }
            LimitFallback::Open => {
                let from = self.apart_since + self.config.window + self.config.guard;
                Some((self.config.limit, from, Timestamp::from_micros(u64::MAX)))
            }
        }
    }

    /// Calls that count against its share: those in flight, and those answered less than a window ago.
    fn used(&self) -> usize {
        self.flights.len() + self.cooling.len()
    }

    /// Takes a permit for a call that is sent now. Only valid when a call may be sent.
    pub(crate) fn take(&mut self, now: Timestamp) -> MemberPermitId {
        self.last_lodging += 1;
        let lodging = MemberPermitId(self.last_lodging);
        let is_due = self.bookings.first().is_some_and(|first| first.from <= now);
        let slot = is_due.then(|| self.bookings.remove(0)).map(|slot| (slot.token, slot.booking, slot.until));
        self.flights.insert(lodging, InFlightCall { slot, dispatched: now, gone: None });
        lodging
    }

    /// A call got a response.
    pub(crate) fn answered(&mut self, lodging: MemberPermitId, now: Timestamp) {
        let Some(flight) = self.flights.remove(&lodging) else { return };
        self.cool(lodging, flight, now);
    }

    fn cool(&mut self, lodging: MemberPermitId, flight: InFlightCall, at: Timestamp) {
        let place = self.cooling.partition_point(|other| other.at <= at);
        self.cooling.insert(place, CoolingCall { at, lodging, is_told: false });
        if let Some((token, booking, _)) = flight.slot {
            self.to_tell.push(PendingReport { token, booking, answered: Some((at, lodging)), since: at });
        }
    }

    /// A call gets no response.
    pub(crate) fn lost(&mut self, lodging: MemberPermitId, now: Timestamp) {
        let timeout = self.config.request_timeout;
        if let Some(flight) = self.flights.get_mut(&lodging) {
            flight.gone = Some((flight.dispatched + timeout).max(now));
        }
    }

    /// A call was never sent.
    pub(crate) fn given_back(&mut self, lodging: MemberPermitId, now: Timestamp) {
        let Some(flight) = self.flights.remove(&lodging) else { return };
        if let Some((token, booking, until)) = flight.slot {
            let slot = Booking { token, booking, from: now, until, is_urgent: false };
            self.bookings.insert(0, slot);
            self.pass_time(now);
        }
    }

    /// Sets how many calls wait, and whether any of them should not wait for even spacing.
    pub(crate) fn demand(&mut self, waiting: usize, is_urgent: bool, now: Timestamp) {
        self.want = self.config.ahead.min(u32::try_from(waiting).unwrap_or(u32::MAX));
        self.is_urgent = is_urgent;
        if waiting == 0 {
            for slot in std::mem::take(&mut self.bookings) {
                self.unused(slot, now);
            }
        }
    }

    /// A global 429 that this process received.
    pub(crate) fn close(&mut self, until: Timestamp) {
        self.heard_closed(until);
        self.untold_block = Some(self.global_block);
    }

    /// A global 429 that another process received.
    pub(crate) fn heard_closed(&mut self, until: Timestamp) {
        self.closed_until = self.closed_until.max(until);
        self.global_block = self.global_block.max(until);
    }

    /// Marks members as certainly dead: no limit has to wait for them.
    pub(crate) fn bury(&mut self, dead: impl IntoIterator<Item = String>) {
        for id in dead {
            if id != self.id && !self.dead.contains(&id) && self.dead.len() < MOST_DEAD {
                self.dead.push(id);
            }
        }
    }

    fn unused(&mut self, slot: Booking, now: Timestamp) {
        // While disconnected it cannot report the slot, and joining returns it.
        if self.state == State::Joined {
            self.to_tell.push(PendingReport { token: slot.token, booking: slot.booking, answered: None, since: now });
        }
    }

    /// Applies the changes that are due at `now`.
    fn pass_time(&mut self, now: Timestamp) {
        while self.cooling.front().is_some_and(|first| first.at + self.config.window <= now) {
            self.cooling.pop_front();
        }
        let gone: Vec<(MemberPermitId, Timestamp)> = self
            .flights
            .iter()
            .filter_map(|(lodging, flight)| flight.gone.filter(|gone| *gone <= now).map(|gone| (*lodging, gone)))
            .collect();
        for (lodging, gone) in gone {
            if let Some(flight) = self.flights.remove(&lodging) {
                self.cool(lodging, flight, gone);
            }
        }
        let (late, usable) = std::mem::take(&mut self.bookings).into_iter().partition(|slot| slot.until < now);
        self.bookings = usable;
        let late: Vec<Booking> = late;
        late.into_iter().for_each(|slot| self.unused(slot, now));
    }

    /// The earliest time at which a call with `ahead` calls before it could be sent; a lower bound.
    pub(crate) fn estimate(&self, ahead: usize, now: Timestamp) -> Timestamp {
        let (limit, first) = match (self.state, self.alone()) {
            _ if !self.bookings.is_empty() => (self.config.limit, now),
            (State::Apart, Some((limit, from, _))) => (limit, from),
            (State::Apart | State::Left, _) => (self.config.limit, now + self.config.retry),
            (State::Joining | State::Joined, _) => (self.config.limit, self.again_at.max(now + ROUND_TRIP)),
        };
        let rounds = u32::try_from(ahead).unwrap_or(u32::MAX) / limit.max(1);
        first.max(self.closed_until).max(now) + self.config.window * rounds
    }

    /// Number of calls that could be sent now.
    pub(crate) fn free(&mut self, now: Timestamp) -> u32 {
        self.pass_time(now);
        let booked = self.bookings.iter().filter(|slot| slot.from <= now).count();
        let alone = match (self.state, self.alone()) {
            (State::Apart, Some((limit, from, until))) if from <= now && now < until => {
                (limit as usize).saturating_sub(self.used())
            }
            _ => 0,
        };
        u32::try_from(booked + alone).unwrap_or(u32::MAX)
    }

    /// Calls per window, of all processes together.
    pub(crate) fn limit(&self) -> u32 {
        self.config.limit
    }

    pub(crate) fn in_flight(&self) -> u32 {
        u32::try_from(self.flights.len()).unwrap_or(u32::MAX)
    }

    pub(crate) fn closed_until(&self) -> Timestamp {
        self.closed_until
    }

    /// When the last known global 429 ends.
    pub(crate) const fn global_block(&self) -> Timestamp {
        self.global_block
    }
}

/// Minimum duration of a call to Redis: a caller that cannot wait this long need not wait at all.
const ROUND_TRIP: Duration = Duration::from_micros(100);

/// Maximum number of dead members that are stored until they are reported.
const MOST_DEAD: usize = 64;

impl PendingReport {
    fn how(&self, now: Timestamp) -> SlotOutcome {
        self.answered.map_or(SlotOutcome::Unused, |(at, _)| SlotOutcome::Answered(now.since(at)))
    }
}
