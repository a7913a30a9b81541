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
    Disconnected,
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
    permit: MemberPermitId,
    is_reported: bool,
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
    is_probe: bool,
    is_urgent: bool,
    /// The calls without a response that it includes.
    in_flight: Vec<MemberPermitId>,
    reports: Vec<PendingReport>,
    blocked: Option<Timestamp>,
    dead: Vec<String>,
    /// The share that it gives up if the call was executed.
    share: Option<u32>,
    /// Whether it requests slots.
    requests_slots: bool,
}

/// The client side of the shared limit. It has no clock and does no I/O: [`Member::next_call`] returns the next call to
/// Redis, and its result is passed to [`Member::on_reply`] or [`Member::on_lost`], one call at a time.
#[derive(Debug)]
pub struct Member {
    config: SharedLimitConfig,
    id: String,
    incarnation: u64,
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
    /// Free tokens of the window at the last reply, without those that this process has booked.
    free: u32,
    clock: ClockMonitor,
    pending_call: Option<PendingCall>,
    bookings: Vec<Booking>,
    in_flight: BTreeMap<MemberPermitId, InFlightCall>,
    cooling: VecDeque<CoolingCall>,
    pending_reports: Vec<PendingReport>,
    last_permit: u64,
    desired_slots: u32,
    is_urgent: bool,
    request_at: Timestamp,
    probe_at: Timestamp,
    heartbeat_at: Timestamp,
    /// The latest time at which Redis can have received a call.
    last_contact: Timestamp,
    /// The earliest time of the last call that Redis has certainly received.
    last_confirmed: Timestamp,
    /// Start of the disconnected state.
    disconnected_since: Timestamp,
    closed_until: Timestamp,
    /// When the last known global 429 ends.
    global_block: Timestamp,
    unreported_block: Option<Timestamp>,
    dead: Vec<String>,
    calls: u64,
    lost: u64,
}

impl Member {
    /// Creates a member that has not reached Redis yet, and therefore sends nothing. `id` is its member id;
    /// `incarnation` should be random.
    #[must_use]
    pub fn new(config: SharedLimitConfig, id: String, incarnation: u64, now: Timestamp) -> Self {
        Self {
            clock: ClockMonitor::new(config.window),
            config,
            id,
            incarnation,
            state: State::Disconnected,
            epoch: String::new(),
            renew: String::new(),
            seen_epoch: String::new(),
            share: 0,
            members: 0,
            live: 0,
            pool: 0,
            free: 0,
            pending_call: None,
            bookings: Vec::new(),
            in_flight: BTreeMap::new(),
            cooling: VecDeque::new(),
            pending_reports: Vec::new(),
            last_permit: 0,
            desired_slots: 0,
            is_urgent: false,
            request_at: now,
            probe_at: now,
            heartbeat_at: now,
            last_contact: now,
            last_confirmed: now,
            disconnected_since: now,
            closed_until: Timestamp::ZERO,
            global_block: Timestamp::ZERO,
            unreported_block: None,
            dead: Vec::new(),
            calls: 0,
            lost: 0,
        }
    }

    /// When a call may be sent.
    pub(crate) fn readiness(&mut self, now: Timestamp) -> Readiness {
        if now < self.closed_until {
            return Readiness::At(self.closed_until);
        }
        self.advance(now);
        if let Some(first) = self.bookings.first() {
            return Readiness::not_before(first.from, now);
        }
        if self.state != State::Disconnected {
            return Readiness::OnResponse;
        }
        let Some((limit, from, until)) = self.fallback_limit() else { return Readiness::OnResponse };
        if now >= until {
            return Readiness::OnResponse;
        }
        if now < from {
            return Readiness::At(from);
        }
        if self.used_tokens() < limit as usize {
            return Readiness::Now;
        }
        self.cooling.front().map_or(Readiness::OnResponse, |first| Readiness::At(first.at + self.config.window))
    }

    /// The limit that it may use while disconnected: number of calls, start, and end.
    fn fallback_limit(&self) -> Option<(u32, Timestamp, Timestamp)> {
        match self.config.on_loss {
            LimitFallback::Closed => None,
            LimitFallback::Share if self.share == 0 => None,
            LimitFallback::Share => Some((
                self.share,
                self.last_contact + self.config.isolation_time(),
                self.last_confirmed + self.config.share_for,
            )),
            LimitFallback::Open => {
                let from = self.disconnected_since + self.config.window + self.config.guard;
                Some((self.config.limit, from, Timestamp::from_micros(u64::MAX)))
            }
        }
    }

    /// Calls that count against its share: those in flight, and those answered less than a window ago.
    fn used_tokens(&self) -> usize {
        self.in_flight.len() + self.cooling.len()
    }

    /// Takes a permit for a call that is sent now. Only valid when a call may be sent.
    pub(crate) fn take(&mut self, now: Timestamp) -> MemberPermitId {
        self.last_permit += 1;
        let permit = MemberPermitId(self.last_permit);
        let is_due = self.bookings.first().is_some_and(|first| first.from <= now);
        let slot = is_due.then(|| self.bookings.remove(0)).map(|slot| (slot.token, slot.booking, slot.until));
        self.in_flight.insert(permit, InFlightCall { slot, dispatched: now, gone: None });
        permit
    }

    /// A call got a response.
    pub(crate) fn on_response(&mut self, permit: MemberPermitId, now: Timestamp) {
        let Some(call) = self.in_flight.remove(&permit) else { return };
        self.start_cooling(permit, call, now);
    }

    fn start_cooling(&mut self, permit: MemberPermitId, call: InFlightCall, at: Timestamp) {
        let index = self.cooling.partition_point(|other| other.at <= at);
        self.cooling.insert(index, CoolingCall { at, permit, is_reported: false });
        if let Some((token, booking, _)) = call.slot {
            self.pending_reports.push(PendingReport { token, booking, answered: Some((at, permit)), since: at });
        }
    }

    /// A call gets no response.
    pub(crate) fn lost(&mut self, permit: MemberPermitId, now: Timestamp) {
        let timeout = self.config.request_timeout;
        if let Some(call) = self.in_flight.get_mut(&permit) {
            call.gone = Some((call.dispatched + timeout).max(now));
        }
    }

    /// A call was never sent.
    pub(crate) fn refund(&mut self, permit: MemberPermitId, now: Timestamp) {
        let Some(call) = self.in_flight.remove(&permit) else { return };
        if let Some((token, booking, until)) = call.slot {
            let slot = Booking { token, booking, from: now, until, is_urgent: false };
            self.bookings.insert(0, slot);
            self.advance(now);
        }
    }

    /// Sets how many calls wait, and whether any of them should not wait for even spacing.
    pub(crate) fn demand(&mut self, waiting: usize, is_urgent: bool, now: Timestamp) {
        self.desired_slots = self.config.ahead.min(u32::try_from(waiting).unwrap_or(u32::MAX));
        self.is_urgent = is_urgent;
        if waiting == 0 {
            for slot in std::mem::take(&mut self.bookings) {
                self.report_unused(slot, now);
            }
        }
    }

    /// A global 429 that this process received.
    pub(crate) fn close(&mut self, until: Timestamp) {
        self.on_remote_block(until);
        self.unreported_block = Some(self.global_block);
    }

    /// A global 429 that another process received.
    pub(crate) fn on_remote_block(&mut self, until: Timestamp) {
        self.closed_until = self.closed_until.max(until);
        self.global_block = self.global_block.max(until);
    }

    /// Marks members as certainly dead: no limit has to wait for them.
    pub(crate) fn mark_dead(&mut self, dead: impl IntoIterator<Item = String>) {
        for id in dead {
            if id != self.id && !self.dead.contains(&id) && self.dead.len() < MAX_DEAD {
                self.dead.push(id);
            }
        }
    }

    fn report_unused(&mut self, slot: Booking, now: Timestamp) {
        // While disconnected it cannot report the slot, and joining returns it.
        if self.state == State::Joined {
            self.pending_reports.push(PendingReport {
                token: slot.token,
                booking: slot.booking,
                answered: None,
                since: now,
            });
        }
    }

    /// Applies the changes that are due at `now`.
    fn advance(&mut self, now: Timestamp) {
        while self.cooling.front().is_some_and(|first| first.at + self.config.window <= now) {
            self.cooling.pop_front();
        }
        let gone: Vec<(MemberPermitId, Timestamp)> = self
            .in_flight
            .iter()
            .filter_map(|(permit, call)| call.gone.filter(|gone| *gone <= now).map(|gone| (*permit, gone)))
            .collect();
        for (permit, gone) in gone {
            if let Some(call) = self.in_flight.remove(&permit) {
                self.start_cooling(permit, call, gone);
            }
        }
        let (late, usable) = std::mem::take(&mut self.bookings).into_iter().partition(|slot| slot.until < now);
        self.bookings = usable;
        let late: Vec<Booking> = late;
        late.into_iter().for_each(|slot| self.report_unused(slot, now));
    }

    /// The earliest time at which a call with `ahead` calls before it could be sent; a lower bound.
    pub(crate) fn estimate(&self, ahead: usize, now: Timestamp) -> Timestamp {
        let (limit, first) = match (self.state, self.fallback_limit()) {
            _ if !self.bookings.is_empty() => (self.config.limit, now),
            (State::Disconnected, Some((limit, from, _))) => (limit, from),
            (State::Disconnected | State::Left, _) => (self.config.limit, now + self.config.retry),
            (State::Joining | State::Joined, _) => (self.config.limit, self.request_at.max(now + ROUND_TRIP)),
        };
        let rounds = u32::try_from(ahead).unwrap_or(u32::MAX) / limit.max(1);
        first.max(self.closed_until).max(now) + self.config.window * rounds
    }

    /// Number of calls that could be sent now. While joined, as of the last reply of Redis, which is at most a heartbeat
    /// ago: the free tokens of the window that all members share, and those that this process has booked.
    pub(crate) fn free(&mut self, now: Timestamp) -> u32 {
        self.advance(now);
        let booked = self.bookings.iter().filter(|slot| slot.from <= now).count();
        let others = match (self.state, self.fallback_limit()) {
            (State::Joined, _) => self.free as usize,
            (State::Disconnected, Some((limit, from, until))) if from <= now && now < until => {
                (limit as usize).saturating_sub(self.used_tokens())
            }
            (State::Disconnected | State::Joining | State::Left, _) => 0,
        };
        u32::try_from(booked + others).unwrap_or(u32::MAX)
    }

    /// Calls per window, of all processes together.
    pub(crate) fn limit(&self) -> u32 {
        self.config.limit
    }

    pub(crate) fn in_flight(&self) -> u32 {
        u32::try_from(self.in_flight.len()).unwrap_or(u32::MAX)
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
const MAX_DEAD: usize = 64;

impl PendingReport {
    fn outcome(&self, now: Timestamp) -> SlotOutcome {
        self.answered.map_or(SlotOutcome::Unused, |(at, _)| SlotOutcome::Answered(now.since(at)))
    }
}
