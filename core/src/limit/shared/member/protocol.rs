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
        self.pass_time(now);
        if self.under_way.is_some() || self.call_at(now)? > now {
            return None;
        }
        self.calls += 1;
        let (doing, under_way) = match self.state {
            State::Apart => (ScriptCommand::Look, PendingCall::new(now)),
            State::Joining => self.join(now),
            State::Joined => self.sync(now),
            State::Left => return None,
        };
        let is_word = !under_way.is_look;
        self.under_way = Some(under_way);
        let not_after = self.not_after(now);
        if is_word {
            let way = self.watch.last().map_or(Duration::ZERO, ClockSample::took);
            self.last_word = now + self.config.timeout + way;
            self.heartbeat_at = now + self.config.heartbeat;
        }
        let not_after = if is_word { not_after } else { 0 };
        Some(ScriptCall { member: self.id.clone(), life: self.life, not_after, doing })
    }

    /// Upper bound of Redis's clock when the timeout of a call that is sent now has passed.
    fn not_after(&self, now: Timestamp) -> u64 {
        self.watch.last().map_or(0, |seen| seen.latest(now) + micros(self.config.timeout))
    }

    /// When the next call is due; `None` while a call is pending.
    fn call_at(&self, now: Timestamp) -> Option<Timestamp> {
        match self.state {
            _ if self.under_way.is_some() => None,
            State::Left => None,
            State::Apart => Some(self.look_at),
            State::Joining => Some(now),
            State::Joined => {
                let told = self.to_tell.iter().map(|end| end.since + self.config.flush).min();
                let at_once = (self.untold_block.is_some() || !self.dead.is_empty()).then_some(now);
                let wanted = (self.wanted(now) > 0).then_some(self.again_at);
                [Some(self.heartbeat_at), told, at_once, wanted].into_iter().flatten().min()
            }
        }
    }

    /// The latest time at which [`Member::next_call`] should be called.
    #[must_use]
    pub fn next_wake(&self, now: Timestamp) -> Option<Timestamp> {
        let late = self.bookings.iter().map(|slot| slot.until + Duration::from_micros(1));
        let gone = self.flights.values().filter_map(|flight| flight.gone);
        self.call_at(now).into_iter().chain(late).chain(gone).min()
    }

    /// Number of slots to request now.
    fn wanted(&self, now: Timestamp) -> u32 {
        let booked = u32::try_from(self.bookings.len()).unwrap_or(u32::MAX);
        self.want.saturating_sub(booked).max(u32::from(self.is_in_a_hurry(now)))
    }

    /// Whether an urgent call waits, and no booked slot is as early as possible.
    fn is_in_a_hurry(&self, now: Timestamp) -> bool {
        let has_early = self.bookings.iter().any(|slot| slot.is_urgent || slot.from <= now);
        self.is_urgent && !has_early
    }

    fn join(&mut self, now: Timestamp) -> (ScriptCommand, PendingCall) {
        // Unused bookings are given up; used ones that were not reported are included in the counts.
        self.bookings.clear();
        self.to_tell.clear();
        if self.last_heard + self.config.share_for <= now {
            self.share = 0;
        }
        let untold = self.cooling.iter().filter(|cooled| !cooled.is_told).count();
        let count = |number: usize| u32::try_from(number).unwrap_or(u32::MAX);
        let join = JoinRequest {
            epoch: self.epoch.clone(),
            renew: self.renew.clone(),
            held: self.share,
            wants_share: self.config.on_loss == LimitFallback::Share,
            flying: count(self.flights.len()),
            cooling: count(self.cooling.len()),
            untold: count(untold),
            ready_in: (self.last_word + self.config.apart()).since(now),
            block: self.closed_until.since(now),
            global_block: self.global_block.since(now),
        };
        let share = Some(self.share);
        let goes_on = self.seen_epoch.is_empty() || self.seen_epoch == self.epoch;
        if !goes_on {
            // If the reply is lost, it is unknown what the other members do with the share.
            self.share = 0;
        }
        let flying = self.flights.keys().copied().collect();
        let under_way = PendingCall { share, flying, blocked: self.untold_block.take(), ..PendingCall::word(now) };
        (ScriptCommand::Join(join), under_way)
    }

    fn sync(&mut self, now: Timestamp) -> (ScriptCommand, PendingCall) {
        let want = if self.again_at <= now { self.wanted(now) } else { 0 };
        let is_urgent = want > 0 && self.is_in_a_hurry(now);
        let told = std::mem::take(&mut self.to_tell);
        let blocked = self.untold_block.take();
        let dead = std::mem::take(&mut self.dead);
        let sync = SyncRequest {
            epoch: self.epoch.clone(),
            held: self.share,
            wants_share: self.config.on_loss == LimitFallback::Share,
            want,
            urgent: is_urgent,
            ended: told.iter().map(|end| end.ended(now)).collect(),
            block: blocked.map_or(Duration::ZERO, |until| until.since(now)),
            dead: dead.clone(),
        };
        (
            ScriptCommand::Sync(sync),
            PendingCall { told, blocked, dead, is_urgent, wants: want > 0, ..PendingCall::word(now) },
        )
    }

    /// Leaves the membership, so that no limit has to wait for this process. It grants nothing from now on.
    pub fn leave(&mut self, now: Timestamp) -> Option<ScriptCall> {
        let is_member = self.state == State::Joined;
        if let Some(call) = self.under_way.take() {
            // The result does not matter: duplicate reports count once.
            self.restore(call);
        }
        for slot in std::mem::take(&mut self.bookings) {
            self.unused(slot, now);
        }
        let flying = u32::try_from(self.flights.len()).unwrap_or(u32::MAX);
        let (doing, _) = self.sync(now);
        self.state = State::Left;
        let ScriptCommand::Sync(sync) = doing else { return None };
        let not_after = self.not_after(now);
        is_member.then(|| ScriptCall {
            member: self.id.clone(),
            life: self.life,
            not_after,
            doing: ScriptCommand::Leave(SyncRequest { want: flying, ..sync }),
        })
    }

    /// Redis replied to the pending call.
    pub fn on_reply(&mut self, reply: ScriptReply, now: Timestamp) {
        let Some(call) = self.under_way.take() else { return };
        let redis = match &reply {
            ScriptReply::Stale { now } | ScriptReply::Seen { now, .. } | ScriptReply::Rejoin { now, .. } => *now,
            ScriptReply::Done(standing) => standing.now,
        };
        let seen = ClockSample { redis, sent: call.sent, heard: now };
        let jumped = !self.watch.agrees_with(&seen);
        if jumped {
            self.watch.begin_with(seen);
        } else if !matches!(reply, ScriptReply::Stale { .. }) {
            // A round trip this long could hide a jump: the next reply is compared with earlier samples.
            self.watch.note(seen);
        }
        match reply {
            ScriptReply::Seen { epoch, .. } => {
                self.seen_epoch = epoch;
                self.state = State::Joining;
                if jumped {
                    self.start_over();
                }
            }
            ScriptReply::Stale { .. } => {
                self.share = call.share.unwrap_or(self.share);
                self.restore(call);
                if self.state == State::Joined {
                    self.seen_epoch.clone_from(&self.epoch);
                }
                if jumped {
                    self.start_over();
                } else {
                    // Both clocks show that the call was late. It was not executed, so it is repeated.
                    self.heartbeat_at = now;
                }
            }
            ScriptReply::Rejoin { replaced, .. } => {
                self.restore(call);
                if replaced {
                    // Another process uses this member id: continue with a new id and without a share.
                    self.id = format!("{}-{:x}", self.id, self.life);
                    (self.share, self.members) = (0, 0);
                }
                self.seen_epoch = String::new();
                self.state = State::Joining;
            }
            ScriptReply::Done(standing) => {
                let joined = self.state == State::Joining;
                self.last_word = now;
                self.last_heard = call.sent;
                for (_, lodging) in call.told.iter().filter_map(|end| end.answered) {
                    self.told(lodging);
                }
                self.stand(&standing, &call, now);
                if joined {
                    self.lodge(&standing.slots, &call.flying, now);
                } else {
                    self.note(&standing.slots, &call, &seen);
                }
                if jumped {
                    self.seen_epoch.clone_from(&self.epoch);
                    self.start_over();
                }
            }
        }
    }

    /// Redis's clock has jumped, so its counts are invalid: all members have to join a new epoch.
    fn start_over(&mut self) {
        self.bookings.clear();
        self.renew.clone_from(&self.seen_epoch);
        self.state = State::Joining;
    }

    /// The pending call got no reply, and it is unknown whether it was executed.
    pub fn on_lost(&mut self, now: Timestamp) {
        let Some(call) = self.under_way.take() else { return };
        self.lost += 1;
        self.restore(call);
        if matches!(self.state, State::Joining | State::Joined) {
            self.apart_since = now;
            self.state = State::Apart;
        }
        self.look_at = now + self.config.retry;
    }

    /// Restores the unreported state of a call that was not executed.
    fn restore(&mut self, call: PendingCall) {
        if self.state == State::Joined {
            self.to_tell.extend(call.told);
        }
        if self.untold_block.is_none() {
            self.untold_block = call.blocked;
        }
        self.bury(call.dead);
    }

    fn stand(&mut self, standing: &MembershipState, call: &PendingCall, now: Timestamp) {
        self.state = State::Joined;
        self.epoch.clone_from(&standing.epoch);
        self.renew.clear();
        (self.share, self.members) = (standing.share, standing.members);
        (self.live, self.pool) = (standing.live, standing.pool);
        if call.wants {
            self.again_at = now + standing.again.unwrap_or_default();
        }
        self.heard_closed(now + standing.global_block);
        self.closed_until = self.closed_until.max(now + standing.blocked);
    }

    /// Assigns the tokens that Redis found for calls without a response. Some of these may have a response by now.
    fn lodge(&mut self, slots: &[Slot], flying: &[MemberPermitId], now: Timestamp) {
        for cooled in &mut self.cooling {
            cooled.is_told = true;
        }
        for flight in self.flights.values_mut() {
            flight.slot = None;
        }
        for (slot, lodging) in slots.iter().zip(flying) {
            if let Some(flight) = self.flights.get_mut(lodging) {
                flight.slot = Some((slot.token, slot.booking, flight.dispatched));
                continue;
            }
            let cooled = self.cooling.iter_mut().find(|cooled| cooled.lodging == *lodging);
            let answered = cooled.map(|cooled| {
                cooled.is_told = false;
                (cooled.at, *lodging)
            });
            // Neither in flight nor answered within the last window: the call no longer counts.
            self.to_tell.push(PendingReport { token: slot.token, booking: slot.booking, answered, since: now });
        }
    }

    fn note(&mut self, slots: &[Slot], call: &PendingCall, seen: &ClockSample) {
        for (place, slot) in slots.iter().enumerate() {
            let slot = Booking {
                token: slot.token,
                booking: slot.booking,
                // Redis's clock showed its `now` between sending and receiving: the start is never too early, the end
                // never too late.
                from: self.watch.usable_from(seen, slot.wait, self.config.margin),
                until: call.sent + slot.wait + self.config.grace,
                is_urgent: call.is_urgent && place == 0,
            };
            if slot.from <= slot.until {
                self.bookings.push(slot);
            } else {
                // Too few samples of Redis's clock are known yet.
                self.again_at = self.again_at.max(slot.from);
                self.unused(slot, seen.heard);
            }
        }
        self.bookings.sort_by_key(|slot| slot.from);
    }

    fn told(&mut self, lodging: MemberPermitId) {
        if let Some(cooled) = self.cooling.iter_mut().find(|cooled| cooled.lodging == lodging) {
            cooled.is_told = true;
        }
    }
}

impl PendingCall {
    fn new(now: Timestamp) -> Self {
        Self {
            sent: now,
            is_look: true,
            is_urgent: false,
            flying: Vec::new(),
            told: Vec::new(),
            blocked: None,
            dead: Vec::new(),
            share: None,
            wants: false,
        }
    }

    fn word(now: Timestamp) -> Self {
        Self { is_look: false, ..Self::new(now) }
    }
}

impl PendingReport {
    fn ended(&self, now: Timestamp) -> SlotReport {
        SlotReport { token: self.token, booking: self.booking, how: self.how(now) }
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
            pair.talk([0, 1]);
            pair
        }

        fn redis(&mut self, call: &ScriptCall, ms: u64) -> ScriptReply {
            self.window.call(call, &SharedLimitConfig::default(), "server", 1_000_000_000 + ms * 1_000)
        }

        fn talk<const N: usize>(&mut self, times: [u64; N]) {
            for ms in times {
                let call = self.member.next_call(at(ms)).unwrap();
                let reply = self.redis(&call, ms);
                self.member.on_reply(reply, at(ms));
            }
        }
    }

    #[test]
    fn a_call_that_is_late_by_both_clocks_is_made_again_and_nothing_begins_anew() {
        let mut pair = Pair::joined();
        let late = pair.member.next_call(at(1_100)).unwrap();
        let reply = pair.redis(&late, 1_351);
        assert!(matches!(reply, ScriptReply::Stale { .. }), "{reply:?}");
        pair.member.on_reply(reply, at(1_352));
        let again = pair.member.next_call(at(1_352)).unwrap();
        assert_eq!(again.doing, late.doing);
        assert!(matches!(pair.redis(&again, 1_353), ScriptReply::Done(_)));
    }

    #[test]
    fn a_jump_that_a_late_answer_hides_shows_in_the_next() {
        let mut pair = Pair::joined();
        let late = pair.member.next_call(at(1_100)).unwrap();
        let reply = pair.redis(&late, 1_351);
        pair.member.on_reply(reply, at(1_352));
        let again = pair.member.next_call(at(1_352)).unwrap();
        let reply = pair.redis(&again, 1_552);
        pair.member.on_reply(reply, at(1_353));
        let call = pair.member.next_call(at(1_353)).unwrap();
        let ScriptCommand::Join(join) = call.doing else { panic!("{call:?}") };
        assert!(!join.renew.is_empty());
    }

    #[test]
    fn a_call_that_is_late_by_the_clock_of_redis_alone_shows_that_it_has_jumped() {
        let mut pair = Pair::joined();
        let call = pair.member.next_call(at(1_100)).unwrap();
        let reply = pair.redis(&call, 1_351);
        pair.member.on_reply(reply, at(1_110));
        let call = pair.member.next_call(at(1_110)).unwrap();
        let ScriptCommand::Join(join) = call.doing else { panic!("{call:?}") };
        assert!(!join.renew.is_empty());
    }

    #[test]
    fn an_answer_that_comes_while_its_caller_joins_is_told() {
        let mut pair = Pair::joined();
        // After some time it is the only member and has the whole limit.
        pair.talk([2_000, 4_000, 6_000]);
        assert_eq!(pair.member.counted(), (1, 50));
        // The call is lost, and the member disconnected.
        pair.member.next_call(at(7_000)).unwrap();
        pair.member.on_lost(at(7_250));
        let lodgings: Vec<MemberPermitId> = (0..3).map(|_| pair.member.take(at(20_000))).collect();
        // The probe succeeds. While the member joins, one of its calls is answered, and one is refunded.
        let call = pair.member.next_call(at(20_000)).unwrap();
        let reply = pair.redis(&call, 20_000);
        pair.member.on_reply(reply, at(20_000));
        let call = pair.member.next_call(at(20_000)).unwrap();
        let reply = pair.redis(&call, 20_001);
        pair.member.answered(lodgings[0], at(20_001));
        pair.member.given_back(lodgings[1], at(20_001));
        let ScriptReply::Done(standing) = &reply else { panic!("{reply:?}") };
        let slots = standing.slots.clone();
        assert_eq!(slots.len(), 3);
        pair.member.on_reply(reply, at(20_002));
        let call = pair.member.next_call(at(20_400)).unwrap();
        let ScriptCommand::Sync(sync) = call.doing else { panic!("{call:?}") };
        let ended: Vec<_> = sync.ended.iter().map(|end| (end.token, end.how)).collect();
        let answered = SlotOutcome::Answered(Duration::from_millis(399));
        assert_eq!(ended, [(slots[0].token, answered), (slots[1].token, SlotOutcome::Unused)]);
    }

    #[test]
    fn a_newcomer_gives_back_what_it_cannot_use_before_it_has_watched_the_clock_for_a_window() {
        let mut pair = Pair::joined();
        pair.talk([2_000, 4_000, 6_000]);
        let mut newcomer = Member::new(SharedLimitConfig::default(), "q".into(), 1, at(7_000));
        let ask = |newcomer: &mut Member, pair: &mut Pair, ms: u64| {
            let call = newcomer.next_call(at(ms)).unwrap();
            let reply = pair.redis(&call, ms);
            newcomer.on_reply(reply.clone(), at(ms));
            (call, reply)
        };
        ask(&mut newcomer, &mut pair, 7_000);
        ask(&mut newcomer, &mut pair, 7_000);
        pair.talk([7_001]);
        newcomer.demand(1, false, at(7_002));
        let (_, reply) = ask(&mut newcomer, &mut pair, 7_002);
        let ScriptReply::Done(MembershipState { slots, .. }) = reply else { panic!("{reply:?}") };
        assert_eq!((slots.len(), newcomer.turn(at(7_002))), (1, Readiness::OnAnswer));
        let (call, _) = ask(&mut newcomer, &mut pair, 7_302);
        let ScriptCommand::Sync(sync) = call.doing else { panic!("{call:?}") };
        assert_eq!((sync.want, sync.ended[0].how), (0, SlotOutcome::Unused));
        assert_eq!(newcomer.next_call(at(8_009)), None);
        ask(&mut newcomer, &mut pair, 8_010);
        assert_eq!(newcomer.turn(at(8_010)), Readiness::Now);
    }

    #[test]
    fn what_was_booked_for_somebody_who_leaves_before_it_hears_of_it_is_free_at_once() {
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
        let ScriptReply::Done(standing) = redis(&call, 7_000) else { panic!("{call:?}") };
        assert_eq!(standing.slots.len(), 2);
        let leave = first.leave(at(7_001)).unwrap();
        redis(&leave, 7_001);
        second.demand(2, false, at(7_600));
        let call = second.next_call(at(7_600)).unwrap();
        let ScriptReply::Done(standing) = redis(&call, 7_600) else { panic!("{call:?}") };
        assert_eq!(standing.slots.len(), 2);
    }
}
