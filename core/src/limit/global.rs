//! The global limit of one credential, and how its lanes share it.

use super::config::LimitConfig;
use super::local_window::LocalWindow;
use super::readiness::Readiness;
use super::shared::{Member, MemberPermitId};
use crate::lane::Lane;
use crate::time::Timestamp;

/// The global limit of one credential.
#[derive(Debug)]
pub(super) struct GlobalLimit {
    source: TokenSource,
    floor: u32,
    /// Grants of other lanes while this lane was waiting, by lane.
    passed_over: [u32; 3],
}

/// Where tokens come from.
#[derive(Debug)]
enum TokenSource {
    /// The process uses the limit alone.
    Local(LocalWindow),
    /// The process shares the limit with others.
    Shared(Box<Member>),
}

impl GlobalLimit {
    /// Creates the limit of a process that does not share it.
    pub(super) fn new(config: &LimitConfig, now: Timestamp) -> Self {
        Self { source: TokenSource::Local(LocalWindow::new(config, now)), floor: config.floor, passed_over: [0; 3] }
    }

    /// Creates a limit that is shared with other processes.
    pub(super) fn shared(config: &LimitConfig, member: Member) -> Self {
        Self { source: TokenSource::Shared(Box::new(member)), floor: config.floor, passed_over: [0; 3] }
    }

    /// The membership in the shared limit, if it is shared.
    pub(super) fn member(&self) -> Option<&Member> {
        match &self.source {
            TokenSource::Local(_) => None,
            TokenSource::Shared(member) => Some(member),
        }
    }

    pub(super) fn member_mut(&mut self) -> Option<&mut Member> {
        match &mut self.source {
            TokenSource::Local(_) => None,
            TokenSource::Shared(member) => Some(member),
        }
    }

    /// When a token is available.
    pub(super) fn readiness(&mut self, now: Timestamp) -> Readiness {
        match &mut self.source {
            TokenSource::Local(window) => window.readiness(now),
            TokenSource::Shared(member) => member.readiness(now),
        }
    }

    /// Number of calls that could be sent now.
    pub(super) fn available(&mut self, now: Timestamp) -> u32 {
        if now < self.closed_until() {
            return 0;
        }
        match &mut self.source {
            TokenSource::Local(window) => window.free(now),
            TokenSource::Shared(member) => member.free(now),
        }
    }

    /// When even spacing permits a grant. Slots of a shared limit are spaced when they are booked.
    fn pacing(&self, now: Timestamp) -> Readiness {
        match &self.source {
            TokenSource::Local(window) => window.pacer.readiness(now),
            TokenSource::Shared(_) => Readiness::Now,
        }
    }

    /// Chooses the next of the waiting lanes, if a token is available.
    pub(super) fn choose_lane(&self, waiting: [bool; 3], now: Timestamp) -> Result<Lane, Readiness> {
        let paced = self.pacing(now);
        let is_waiting = |lane: Lane| waiting[lane.index()];
        let may_go = |lane: Lane| lane == Lane::Interactive || paced == Readiness::Now;
        let starved = |lane: &Lane| {
            let lane = *lane;
            is_waiting(lane) && may_go(lane) && self.passed_over[lane.index()] + 1 >= self.floor
        };
        // The least urgent lane first: it has waited longest for its share.
        if let Some(lane) = Lane::ALL.into_iter().rev().find(starved) {
            return Ok(lane);
        }
        Lane::ALL.into_iter().find(|lane| is_waiting(*lane) && may_go(*lane)).ok_or(paced)
    }

    /// When a call of this lane could be granted if no other call waited.
    pub(super) fn lane_readiness(&mut self, lane: Lane, now: Timestamp) -> Readiness {
        match (self.readiness(now), lane) {
            (Readiness::Now, Lane::Operation | Lane::Background) => self.pacing(now),
            (turn, _) => turn,
        }
    }

    /// Takes a token for a call. Returns the permit of the shared limit, if the limit is shared.
    pub(super) fn take(&mut self, lane: Lane, waiting: [bool; 3], now: Timestamp) -> Option<MemberPermitId> {
        for other in Lane::ALL {
            let count = &mut self.passed_over[other.index()];
            *count = if other == lane || !waiting[other.index()] { 0 } else { *count + 1 };
        }
        match &mut self.source {
            TokenSource::Local(window) => {
                window.take();
                if lane != Lane::Interactive {
                    window.pacer.take(now);
                }
                None
            }
            TokenSource::Shared(member) => Some(member.take(now)),
        }
    }

    /// Sets which lanes have ready calls, and the total number of waiting calls.
    pub(super) fn set_demand(&mut self, ready: [bool; 3], waiting: usize, now: Timestamp) {
        match &mut self.source {
            TokenSource::Local(window) => {
                if ready[Lane::Operation.index()] || ready[Lane::Background.index()] {
                    window.pacer.set_starved();
                } else {
                    window.pacer.set_idle(now);
                }
            }
            TokenSource::Shared(member) => {
                let waiting = if ready.contains(&true) { waiting } else { 0 };
                member.demand(waiting, ready[Lane::Interactive.index()], now);
            }
        }
    }

    /// A call got a response.
    pub(super) fn on_response(&mut self, permit: Option<MemberPermitId>, dispatched: Timestamp, now: Timestamp) {
        match (&mut self.source, permit) {
            (TokenSource::Local(window), _) => window.on_response(dispatched, now),
            (TokenSource::Shared(member), Some(permit)) => member.on_response(permit, now),
            (TokenSource::Shared(_), None) => {}
        }
    }

    /// A call gets no response.
    pub(super) fn mark_lost(&mut self, permit: Option<MemberPermitId>, dispatched: Timestamp, now: Timestamp) {
        match (&mut self.source, permit) {
            (TokenSource::Local(window), _) => window.mark_lost(dispatched, now),
            (TokenSource::Shared(member), Some(permit)) => member.lost(permit, now),
            (TokenSource::Shared(_), None) => {}
        }
    }

    /// A call was never sent.
    pub(super) fn refund(&mut self, permit: Option<MemberPermitId>, now: Timestamp) {
        match (&mut self.source, permit) {
            (TokenSource::Local(window), _) => window.refund(),
            (TokenSource::Shared(member), Some(permit)) => member.refund(permit, now),
            (TokenSource::Shared(_), None) => {}
        }
    }

    /// A global 429: no call is granted before `until`.
    pub(super) fn close(&mut self, until: Timestamp) {
        match &mut self.source {
            TokenSource::Local(window) => window.close(until),
            TokenSource::Shared(member) => member.close(until),
        }
    }

    /// A global 429 that another process received.
    pub(super) fn on_remote_block(&mut self, until: Timestamp) {
        match &mut self.source {
            TokenSource::Local(window) => window.close(until),
            TokenSource::Shared(member) => member.on_remote_block(until),
        }
    }

    /// The earliest time at which a call with `ahead` calls before it could be granted; a lower bound.
    pub(super) fn estimate(&self, ahead: usize, now: Timestamp) -> Timestamp {
        match &self.source {
            TokenSource::Local(window) => window.estimate(ahead, now),
            TokenSource::Shared(member) => member.estimate(ahead, now),
        }
    }

    /// Changes the number of local tokens; a limit that is shared through Redis has none.
    pub(super) fn set_local_limit(&mut self, limit: u32) {
        match &mut self.source {
            TokenSource::Local(window) => window.set_limit(limit),
            TokenSource::Shared(_) => {}
        }
    }

    /// Number of local tokens in use.
    pub(super) fn local_in_use(&mut self, now: Timestamp) -> u32 {
        match &mut self.source {
            TokenSource::Local(window) => window.in_use(now),
            TokenSource::Shared(_) => 0,
        }
    }

    /// When the next local token returns, if more tokens are in use than the limit allows.
    pub(super) fn next_local_excess(&self) -> Option<Timestamp> {
        match &self.source {
            TokenSource::Local(window) => window.next_excess(),
            TokenSource::Shared(_) => None,
        }
    }

    pub(super) fn in_flight(&self) -> u32 {
        match &self.source {
            TokenSource::Local(window) => window.in_flight(),
            TokenSource::Shared(member) => member.in_flight(),
        }
    }

    pub(super) fn limit(&self) -> u32 {
        match &self.source {
            TokenSource::Local(window) => window.limit(),
            TokenSource::Shared(member) => member.limit(),
        }
    }

    pub(super) fn closed_until(&self) -> Timestamp {
        match &self.source {
            TokenSource::Local(window) => window.closed_until(),
            TokenSource::Shared(member) => member.closed_until(),
        }
    }

    #[cfg(test)]
    fn open(mut self) -> Self {
        if let TokenSource::Local(window) = &mut self.source {
            window.open();
        }
        self
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn at(ms: u64) -> Timestamp {
        Timestamp::from_millis(ms)
    }

    fn open(limit: u32) -> GlobalLimit {
        let config = LimitConfig { global: limit, margin: Duration::ZERO, burst: 100, ..LimitConfig::default() };
        GlobalLimit::new(&config, at(0)).open()
    }

    #[test]
    fn new_gate_grants_nothing_until_earlier_calls_left_the_window() {
        let config = LimitConfig { settling: Duration::from_millis(300), ..LimitConfig::default() };
        let mut global = GlobalLimit::new(&config, at(5_000));
        assert_eq!(global.readiness(at(6_309)), Readiness::At(at(6_310)));
        assert_eq!(global.readiness(at(6_310)), Readiness::Now);
    }

    #[test]
    fn token_returns_one_window_after_its_response() {
        let mut global = open(1);
        global.take(Lane::Interactive, [false; 3], at(0));
        assert_eq!(global.readiness(at(900)), Readiness::OnResponse);
        global.on_response(None, at(0), at(900));
        assert_eq!(global.readiness(at(1_000)), Readiness::At(at(1_900)));
        assert_eq!(global.readiness(at(1_900)), Readiness::Now);
    }

    #[test]
    fn call_without_a_response_counts_until_it_can_no_longer_arrive() {
        let mut global = open(1);
        global.take(Lane::Interactive, [false; 3], at(0));
        global.mark_lost(None, at(0), at(100));
        assert_eq!(global.readiness(at(100)), Readiness::At(at(16_000)));
    }

    #[test]
    fn operations_are_spaced_after_their_burst_and_interactive_calls_are_not() {
        let config = LimitConfig { margin: Duration::ZERO, settling: Duration::ZERO, ..LimitConfig::default() };
        let mut global = GlobalLimit::new(&config, at(0));
        let mut granted = Vec::new();
        for ms in 1_000..1_200 {
            while global.choose_lane([false, true, false], at(ms)).is_ok() {
                global.take(Lane::Operation, [false, true, false], at(ms));
                granted.push(ms);
            }
        }
        assert_eq!(granted[..7], [1_000, 1_000, 1_000, 1_000, 1_000, 1_020, 1_040]);
        assert_eq!(global.choose_lane([true, true, false], at(1_199)), Ok(Lane::Interactive));
    }

    #[test]
    fn tokens_are_spread_evenly_after_any_burst() {
        let config = LimitConfig { margin: Duration::ZERO, settling: Duration::ZERO, ..LimitConfig::default() };
        let mut global = GlobalLimit::new(&config, at(0));
        let waiting = [false, true, false];
        let mut granted: Vec<u64> = Vec::new();
        for ms in 1_000..10_000 {
            let answers = granted.iter().filter(|then| **then + 300 == ms);
            answers.for_each(|then| global.on_response(None, at(*then), at(ms)));
            while global.readiness(at(ms)) == Readiness::Now && global.choose_lane(waiting, at(ms)).is_ok() {
                global.take(Lane::Operation, waiting, at(ms));
                granted.push(ms);
            }
            global.set_demand(waiting, 1, at(ms));
        }
        let longest = |granted: &[u64]| granted.windows(2).map(|pair| pair[1] - pair[0]).max();
        let late = granted.partition_point(|ms| *ms < 4_000);
        assert!(longest(&granted[late..]) <= Some(40), "{:?}", &granted[late..]);
        // Fifty tokens, each in use for 1.3 s, in six seconds.
        assert!(granted.len() - late >= 225, "{}", granted.len() - late);
    }

    #[test]
    fn a_burst_is_earned_again_by_being_idle() {
        let config = LimitConfig { margin: Duration::ZERO, ..LimitConfig::default() };
        let mut global = GlobalLimit::new(&config, at(0));
        let mut burst = |ms: u64| {
            let mut count = 0;
            while global.choose_lane([false, true, false], at(ms)).is_ok() {
                global.take(Lane::Operation, [false; 3], at(ms));
                count += 1;
            }
            global.set_demand([false; 3], 0, at(ms));
            count
        };
        assert_eq!([burst(2_000), burst(2_040), burst(3_000)], [5, 2, 5]);
    }

    #[test]
    fn no_lane_that_waits_gets_less_than_its_floor() {
        let mut global = open(10_000);
        let waiting = [true; 3];
        let mut grants = [0; 3];
        for _ in 0..1_000 {
            let lane = global.choose_lane(waiting, at(0)).unwrap_or(Lane::Interactive);
            global.take(lane, waiting, at(0));
            grants[lane.index()] += 1;
        }
        assert!(grants[Lane::Background.index()] >= 45 && grants[Lane::Operation.index()] >= 45, "{grants:?}");
        assert!(grants[Lane::Interactive.index()] >= 850, "{grants:?}");
    }
}
