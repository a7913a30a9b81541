//! The protocol with Redis: when to send which call, and how to handle the replies.

use std::time::Duration;

use super::{Booking, Member, MemberPermitId, PendingCall, PendingReport, State};
use crate::limit::shared::clock_sample::{ClockSample, micros};
use crate::limit::shared::config::LimitFallback;
use crate::limit::shared::script::{
    JoinRequest, MembershipState, ScriptCall, ScriptCommand, ScriptReply, Slot, SlotReport, SyncRequest,
};
use crate::time::Timestamp;

impl Member {
    /// The next call to Redis, if one is due. Pass the reply to [`Member::on_reply`], or call [`Member::on_lost`] if
    /// there is none within the timeout; until then there is no other call.
    pub fn next_call(&mut self, now: Timestamp) -> Option<ScriptCall> {
        self.advance(now);
        if self.pending_call.is_some() || self.call_at(now)? > now {
            return None;
        }
        self.calls += 1;
        let (command, pending_call) = match self.state {
            State::Disconnected => (ScriptCommand::Probe, PendingCall::probe(now)),
            State::Joining => self.join(now),
            State::Joined => self.sync(now),
            State::Left => return None,
        };
        let is_update = !pending_call.is_probe;
        self.pending_call = Some(pending_call);
        let not_after = self.not_after(now);
        if is_update {
            let round_trip = self.clock.last().map_or(Duration::ZERO, ClockSample::round_trip);
            self.last_contact = now + self.config.timeout + round_trip;
            self.heartbeat_at = now + self.config.heartbeat;
        }
        let not_after = if is_update { not_after } else { 0 };
        Some(ScriptCall { member: self.id.clone(), incarnation: self.incarnation, not_after, command })
    }

    /// Upper bound of Redis's clock when the timeout of a call that is sent now has passed.
    fn not_after(&self, now: Timestamp) -> u64 {
        self.clock.last().map_or(0, |sample| sample.latest(now) + micros(self.config.timeout))
    }

    /// When the next call is due; `None` while a call is pending.
    fn call_at(&self, now: Timestamp) -> Option<Timestamp> {
        match self.state {
            _ if self.pending_call.is_some() => None,
            State::Left => None,
            State::Disconnected => Some(self.probe_at),
            State::Joining => Some(now),
            State::Joined => {
                let report_at = self.pending_reports.iter().map(|end| end.since + self.config.flush).min();
                let immediate = (self.unreported_block.is_some() || !self.dead.is_empty()).then_some(now);
                let request_at = (self.slots_to_request(now) > 0).then_some(self.request_at);
                [Some(self.heartbeat_at), report_at, immediate, request_at].into_iter().flatten().min()
            }
        }
    }

    /// The latest time at which [`Member::next_call`] should be called.
    #[must_use]
    pub fn next_wake(&self, now: Timestamp) -> Option<Timestamp> {
        let late = self.bookings.iter().map(|slot| slot.until + Duration::from_micros(1));
        let gone = self.in_flight.values().filter_map(|flight| flight.gone);
        self.call_at(now).into_iter().chain(late).chain(gone).min()
    }

    /// Number of slots to request now.
    fn slots_to_request(&self, now: Timestamp) -> u32 {
        let booked = u32::try_from(self.bookings.len()).unwrap_or(u32::MAX);
        self.desired_slots.saturating_sub(booked).max(u32::from(self.needs_urgent_slot(now)))
    }

    /// Whether an urgent call waits, and no booked slot is as early as possible.
    fn needs_urgent_slot(&self, now: Timestamp) -> bool {
        let has_early = self.bookings.iter().any(|slot| slot.is_urgent || slot.from <= now);
        self.is_urgent && !has_early
    }

    fn join(&mut self, now: Timestamp) -> (ScriptCommand, PendingCall) {
        // Unused bookings are given up; used ones that were not reported are included in the counts.
        self.bookings.clear();
        self.pending_reports.clear();
        if self.last_confirmed + self.config.share_for <= now {
            self.share = 0;
        }
        let unreported = self.cooling.iter().filter(|cooled| !cooled.is_reported).count();
        let count = |number: usize| u32::try_from(number).unwrap_or(u32::MAX);
        let join = JoinRequest {
            epoch: self.epoch.clone(),
            renew: self.renew.clone(),
            held: self.share,
            uses_share: self.config.on_loss == LimitFallback::Share,
            in_flight: count(self.in_flight.len()),
            cooling: count(self.cooling.len()),
            unreported: count(unreported),
            ready_in: (self.last_contact + self.config.isolation_time()).since(now),
            block: self.closed_until.since(now),
            global_block: self.global_block.since(now),
        };
        let share = Some(self.share);
        let is_same_epoch = self.seen_epoch.is_empty() || self.seen_epoch == self.epoch;
        if !is_same_epoch {
            // If the reply is lost, it is unknown what the other members do with the share.
            self.share = 0;
        }
        let in_flight = self.in_flight.keys().copied().collect();
        let pending_call =
            PendingCall { share, in_flight, blocked: self.unreported_block.take(), ..PendingCall::update(now) };
        (ScriptCommand::Join(join), pending_call)
    }

    fn sync(&mut self, now: Timestamp) -> (ScriptCommand, PendingCall) {
        let requested = if self.request_at <= now { self.slots_to_request(now) } else { 0 };
        let is_urgent = requested > 0 && self.needs_urgent_slot(now);
        let reports = std::mem::take(&mut self.pending_reports);
        let blocked = self.unreported_block.take();
        let dead = std::mem::take(&mut self.dead);
        let sync = SyncRequest {
            epoch: self.epoch.clone(),
            held: self.share,
            uses_share: self.config.on_loss == LimitFallback::Share,
            requested_slots: requested,
            urgent: is_urgent,
            reports: reports.iter().map(|end| end.slot_report(now)).collect(),
            block: blocked.map_or(Duration::ZERO, |until| until.since(now)),
            dead: dead.clone(),
        };
        (
            ScriptCommand::Sync(sync),
            PendingCall {
                reports,
                blocked,
                dead,
                is_urgent,
                requests_slots: requested > 0,
                ..PendingCall::update(now)
            },
        )
    }

    /// Leaves the membership, so that no limit has to wait for this process. It grants nothing from now on.
    pub fn leave(&mut self, now: Timestamp) -> Option<ScriptCall> {
        let is_member = self.state == State::Joined;
        if let Some(call) = self.pending_call.take() {
            // The result does not matter: duplicate reports count once.
            self.restore_unreported(call);
        }
        for slot in std::mem::take(&mut self.bookings) {
            self.report_unused(slot, now);
        }
        let in_flight = u32::try_from(self.in_flight.len()).unwrap_or(u32::MAX);
        let (command, _) = self.sync(now);
        self.state = State::Left;
        let ScriptCommand::Sync(sync) = command else { return None };
        let not_after = self.not_after(now);
        is_member.then(|| ScriptCall {
            member: self.id.clone(),
            incarnation: self.incarnation,
            not_after,
            command: ScriptCommand::Leave(SyncRequest { requested_slots: in_flight, ..sync }),
        })
    }

    /// Redis replied to the pending call.
    pub fn on_reply(&mut self, reply: ScriptReply, now: Timestamp) {
        let Some(call) = self.pending_call.take() else { return };
        let redis = match &reply {
            ScriptReply::Stale { now } | ScriptReply::Status { now, .. } | ScriptReply::Rejoin { now, .. } => *now,
            ScriptReply::Done(state) => state.now,
        };
        let sample = ClockSample { redis, sent: call.sent, received: now };
        let jumped = !self.clock.agrees_with(&sample);
        if jumped {
            self.clock.reset_to(sample);
        } else if !matches!(reply, ScriptReply::Stale { .. }) {
            // A round trip this long could hide a jump: the next reply is compared with earlier samples.
            self.clock.record(sample);
        }
        match reply {
            ScriptReply::Status { epoch, .. } => {
                self.seen_epoch = epoch;
                self.state = State::Joining;
                if jumped {
                    self.rejoin();
                }
            }
            ScriptReply::Stale { .. } => {
                self.share = call.share.unwrap_or(self.share);
                self.restore_unreported(call);
                if self.state == State::Joined {
                    self.seen_epoch.clone_from(&self.epoch);
                }
                if jumped {
                    self.rejoin();
                } else {
                    // Both clocks show that the call was late. It was not executed, so it is repeated.
                    self.heartbeat_at = now;
                }
            }
            ScriptReply::Rejoin { replaced, .. } => {
                self.restore_unreported(call);
                if replaced {
                    // Another process uses this member id: continue with a new id and without a share.
                    self.id = format!("{}-{:x}", self.id, self.incarnation);
                    (self.share, self.members) = (0, 0);
                }
                self.seen_epoch = String::new();
                self.state = State::Joining;
            }
            ScriptReply::Done(state) => {
                let joined = self.state == State::Joining;
                self.last_contact = now;
                self.last_confirmed = call.sent;
                for (_, permit) in call.reports.iter().filter_map(|end| end.answered) {
                    self.mark_reported(permit);
                }
                self.apply_state(&state, &call, now);
                if joined {
                    self.assign_slots(&state.slots, &call.in_flight, now);
                } else {
                    self.add_bookings(&state.slots, &call, &sample);
                }
                if jumped {
                    self.seen_epoch.clone_from(&self.epoch);
                    self.rejoin();
                }
            }
        }
    }

    /// Redis's clock has jumped, so its counts are invalid: all members have to join a new epoch.
    fn rejoin(&mut self) {
        self.bookings.clear();
        self.renew.clone_from(&self.seen_epoch);
        self.state = State::Joining;
    }

    /// The pending call got no reply, and it is unknown whether it was executed.
    pub fn on_lost(&mut self, now: Timestamp) {
        let Some(call) = self.pending_call.take() else { return };
        self.lost += 1;
        self.restore_unreported(call);
        if matches!(self.state, State::Joining | State::Joined) {
            self.disconnected_since = now;
            self.state = State::Disconnected;
        }
        self.probe_at = now + self.config.retry;
    }

    /// Restores the unreported state of a call that was not executed.
    fn restore_unreported(&mut self, call: PendingCall) {
        if self.state == State::Joined {
            self.pending_reports.extend(call.reports);
        }
        if self.unreported_block.is_none() {
            self.unreported_block = call.blocked;
        }
        self.mark_dead(call.dead);
    }

    fn apply_state(&mut self, state: &MembershipState, call: &PendingCall, now: Timestamp) {
        self.state = State::Joined;
        self.epoch.clone_from(&state.epoch);
        self.renew.clear();
        (self.share, self.members) = (state.share, state.members);
        (self.live, self.pool, self.free) = (state.live, state.pool, state.free);
        if call.requests_slots {
            self.request_at = now + state.retry_after.unwrap_or_default();
        }
        self.on_remote_block(now + state.global_block);
        self.closed_until = self.closed_until.max(now + state.blocked);
    }

    /// Assigns the tokens that Redis found for calls without a response. Some of these may have a response by now.
    fn assign_slots(&mut self, slots: &[Slot], in_flight: &[MemberPermitId], now: Timestamp) {
        for cooled in &mut self.cooling {
            cooled.is_reported = true;
        }
        for flight in self.in_flight.values_mut() {
            flight.slot = None;
        }
        for (slot, permit) in slots.iter().zip(in_flight) {
            if let Some(flight) = self.in_flight.get_mut(permit) {
                flight.slot = Some((slot.token, slot.booking, flight.dispatched));
                continue;
            }
            let cooled = self.cooling.iter_mut().find(|cooled| cooled.permit == *permit);
            let answered = cooled.map(|cooled| {
                cooled.is_reported = false;
                (cooled.at, *permit)
            });
            // Neither in flight nor answered within the last window: the call no longer counts.
            self.pending_reports.push(PendingReport { token: slot.token, booking: slot.booking, answered, since: now });
        }
    }

    fn add_bookings(&mut self, slots: &[Slot], call: &PendingCall, sample: &ClockSample) {
        for (index, slot) in slots.iter().enumerate() {
            let slot = Booking {
                token: slot.token,
                booking: slot.booking,
                // Redis's clock showed its `now` between sending and receiving: the start is never too early, the end
                // never too late.
                from: self.clock.usable_from(sample, slot.wait, self.config.margin),
                until: call.sent + slot.wait + self.config.grace,
                is_urgent: call.is_urgent && index == 0,
            };
            if slot.from <= slot.until {
                self.bookings.push(slot);
            } else {
                // Too few samples of Redis's clock are known yet.
                self.request_at = self.request_at.max(slot.from);
                self.report_unused(slot, sample.received);
            }
        }
        self.bookings.sort_by_key(|slot| slot.from);
    }

    fn mark_reported(&mut self, permit: MemberPermitId) {
        if let Some(cooled) = self.cooling.iter_mut().find(|cooled| cooled.permit == permit) {
            cooled.is_reported = true;
        }
    }
}

impl PendingCall {
    fn probe(now: Timestamp) -> Self {
        Self {
            sent: now,
            is_probe: true,
            is_urgent: false,
            in_flight: Vec::new(),
            reports: Vec::new(),
            blocked: None,
            dead: Vec::new(),
            share: None,
            requests_slots: false,
        }
    }

    fn update(now: Timestamp) -> Self {
        Self { is_probe: false, ..Self::probe(now) }
    }
}

impl PendingReport {
    fn slot_report(&self, now: Timestamp) -> SlotReport {
        SlotReport { token: self.token, booking: self.booking, outcome: self.outcome(now) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limit::readiness::Readiness;
    use crate::limit::shared::{ReferenceWindow, SharedLimitConfig, SlotOutcome};

    fn at(ms: u64) -> Timestamp {
        Timestamp::from_millis(ms)
    }

    /// A member and its reference window.
    struct Pair {
        member: Member,
        window: ReferenceWindow,
    }

    impl Pair {
        fn joined() -> Self {
            let member = Member::new(SharedLimitConfig::default(), "p".into(), 1, at(0));
            let mut pair = Self { member, window: ReferenceWindow::empty() };
            pair.exchange([0, 1]);
            pair
        }

        fn redis(&mut self, call: &ScriptCall, ms: u64) -> ScriptReply {
            self.window.call(call, &SharedLimitConfig::default(), "server", 1_000_000_000 + ms * 1_000)
        }

        fn exchange<const N: usize>(&mut self, times: [u64; N]) {
            for ms in times {
                let call = self.member.next_call(at(ms)).unwrap();
                let reply = self.redis(&call, ms);
                self.member.on_reply(reply, at(ms));
            }
        }
    }

    #[test]
    fn call_late_by_both_clocks_is_repeated_in_the_same_epoch() {
        let mut pair = Pair::joined();
        let late = pair.member.next_call(at(1_100)).unwrap();
        let reply = pair.redis(&late, 1_351);
        assert!(matches!(reply, ScriptReply::Stale { .. }), "{reply:?}");
        pair.member.on_reply(reply, at(1_352));
        let again = pair.member.next_call(at(1_352)).unwrap();
        assert_eq!(again.command, late.command);
        assert!(matches!(pair.redis(&again, 1_353), ScriptReply::Done(_)));
    }

    #[test]
    fn jump_hidden_by_a_late_reply_is_detected_at_the_next_reply() {
        let mut pair = Pair::joined();
        let late = pair.member.next_call(at(1_100)).unwrap();
        let reply = pair.redis(&late, 1_351);
        pair.member.on_reply(reply, at(1_352));
        let again = pair.member.next_call(at(1_352)).unwrap();
        let reply = pair.redis(&again, 1_552);
        pair.member.on_reply(reply, at(1_353));
        let call = pair.member.next_call(at(1_353)).unwrap();
        let ScriptCommand::Join(join) = call.command else { panic!("{call:?}") };
        assert!(!join.renew.is_empty());
    }

    #[test]
    fn call_late_only_by_the_redis_clock_reveals_a_jump() {
        let mut pair = Pair::joined();
        let call = pair.member.next_call(at(1_100)).unwrap();
        let reply = pair.redis(&call, 1_351);
        pair.member.on_reply(reply, at(1_110));
        let call = pair.member.next_call(at(1_110)).unwrap();
        let ScriptCommand::Join(join) = call.command else { panic!("{call:?}") };
        assert!(!join.renew.is_empty());
    }

    #[test]
    fn free_calls_of_a_member_are_those_of_the_whole_window() {
        let mut pair = Pair::joined();
        pair.exchange([2_000, 4_000, 6_000]);
        assert_eq!(pair.member.free(at(6_001)), 50);
        pair.member.demand(2, false, at(7_000));
        pair.exchange([7_000]);
        // Two are booked, and can be used by this member only.
        assert_eq!((pair.member.free, pair.member.free(at(7_100))), (48, 50));
        let permit = pair.member.take(at(7_100));
        assert_eq!(pair.member.free(at(7_100)), 49);
        pair.member.on_response(permit, at(7_200));
        pair.member.demand(0, false, at(7_200));
        pair.exchange([7_500]);
        assert_eq!(pair.member.free(at(7_500)), 49, "one was used less than a window ago");
        pair.exchange([8_500]);
        assert_eq!(pair.member.free(at(8_500)), 50);
        pair.member.next_call(at(9_500)).unwrap();
        pair.member.on_lost(at(9_750));
        assert_eq!(pair.member.free(at(9_750)), 0, "it waits before it uses its share");
    }

    #[test]
    fn response_during_a_join_is_reported() {
        let mut pair = Pair::joined();
        // After some time it is the only member and has the whole limit.
        pair.exchange([2_000, 4_000, 6_000]);
        assert_eq!(pair.member.members_and_share(), (1, 50));
        // The call is lost, and the member disconnected.
        pair.member.next_call(at(7_000)).unwrap();
        pair.member.on_lost(at(7_250));
        let permits: Vec<MemberPermitId> = (0..3).map(|_| pair.member.take(at(20_000))).collect();
        // The probe succeeds. While the member joins, one of its calls is answered, and one is refunded.
        let call = pair.member.next_call(at(20_000)).unwrap();
        let reply = pair.redis(&call, 20_000);
        pair.member.on_reply(reply, at(20_000));
        let call = pair.member.next_call(at(20_000)).unwrap();
        let reply = pair.redis(&call, 20_001);
        pair.member.on_response(permits[0], at(20_001));
        pair.member.refund(permits[1], at(20_001));
        let ScriptReply::Done(state) = &reply else { panic!("{reply:?}") };
        let slots = state.slots.clone();
        assert_eq!(slots.len(), 3);
        pair.member.on_reply(reply, at(20_002));
        let call = pair.member.next_call(at(20_400)).unwrap();
        let ScriptCommand::Sync(sync) = call.command else { panic!("{call:?}") };
        let ended: Vec<_> = sync.reports.iter().map(|end| (end.token, end.outcome)).collect();
        let answered = SlotOutcome::Answered(Duration::from_millis(399));
        assert_eq!(ended, [(slots[0].token, answered), (slots[1].token, SlotOutcome::Unused)]);
    }

    #[test]
    fn new_member_returns_slots_until_it_has_clock_samples_of_a_window() {
        let mut pair = Pair::joined();
        pair.exchange([2_000, 4_000, 6_000]);
        let mut newcomer = Member::new(SharedLimitConfig::default(), "q".into(), 1, at(7_000));
        let exchange = |newcomer: &mut Member, pair: &mut Pair, ms: u64| {
            let call = newcomer.next_call(at(ms)).unwrap();
            let reply = pair.redis(&call, ms);
            newcomer.on_reply(reply.clone(), at(ms));
            (call, reply)
        };
        exchange(&mut newcomer, &mut pair, 7_000);
        exchange(&mut newcomer, &mut pair, 7_000);
        pair.exchange([7_001]);
        newcomer.demand(1, false, at(7_002));
        let (_, reply) = exchange(&mut newcomer, &mut pair, 7_002);
        let ScriptReply::Done(MembershipState { slots, .. }) = reply else { panic!("{reply:?}") };
        assert_eq!((slots.len(), newcomer.readiness(at(7_002))), (1, Readiness::OnResponse));
        let (call, _) = exchange(&mut newcomer, &mut pair, 7_302);
        let ScriptCommand::Sync(sync) = call.command else { panic!("{call:?}") };
        assert_eq!((sync.requested_slots, sync.reports[0].outcome), (0, SlotOutcome::Unused));
        assert_eq!(newcomer.next_call(at(8_009)), None);
        exchange(&mut newcomer, &mut pair, 8_010);
        assert_eq!(newcomer.readiness(at(8_010)), Readiness::Now);
    }

    #[test]
    fn unreceived_slots_of_a_leaving_member_are_free_at_once() {
        let config = SharedLimitConfig { limit: 2, ..SharedLimitConfig::default() };
        let mut window = ReferenceWindow::empty();
        let mut redis = |call: &ScriptCall, ms: u64| window.call(call, &config, "server", 1_000_000_000 + ms * 1_000);
        let mut first = Member::new(config.clone(), "p".into(), 1, at(0));
        let mut second = Member::new(config.clone(), "q".into(), 2, at(0));
        for ms in [0, 1, 2_000, 4_000, 6_000] {
            for member in [&mut first, &mut second] {
                let call = member.next_call(at(ms)).unwrap();
                member.on_reply(redis(&call, ms), at(ms));
            }
        }
        first.demand(2, false, at(7_000));
        let call = first.next_call(at(7_000)).unwrap();
        let ScriptReply::Done(state) = redis(&call, 7_000) else { panic!("{call:?}") };
        assert_eq!(state.slots.len(), 2);
        let leave = first.leave(at(7_001)).unwrap();
        redis(&leave, 7_001);
        second.demand(2, false, at(7_600));
        let call = second.next_call(at(7_600)).unwrap();
        let ScriptReply::Done(state) = redis(&call, 7_600) else { panic!("{call:?}") };
        assert_eq!(state.slots.len(), 2);
    }
}
