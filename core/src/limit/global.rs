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
    Own(LocalWindow),
    /// The process shares the limit with others.
    Shared(Box<Member>),
}

impl GlobalLimit {
    /// Creates the limit of a process that does not share it.
    pub(super) fn new(config: &LimitConfig, now: Timestamp) -> Self {
        Self { source: TokenSource::Own(LocalWindow::new(config, now)), floor: config.floor, passed_over: [0; 3] }
    }

    /// Creates a limit that is shared with other processes.
    pub(super) fn shared(config: &LimitConfig, member: Member) -> Self {
        Self { source: TokenSource::Shared(Box::new(member)), floor: config.floor, passed_over: [0; 3] }
    }

    /// The membership in the shared limit, if it is shared.
    pub(super) fn member(&self) -> Option<&Member> {
        match &self.source {
            TokenSource::Own(_) => None,
            TokenSource::Shared(member) => Some(member),
        }
    }

    pub(super) fn member_mut(&mut self) -> Option<&mut Member> {
        match &mut self.source {
            TokenSource::Own(_) => None,
            TokenSource::Shared(member) => Some(member),
        }
    }

    /// When a token is available.
    pub(super) fn turn(&mut self, now: Timestamp) -> Readiness {
        match &mut self.source {
            TokenSource::Own(own) => own.turn(now),
            TokenSource::Shared(member) => member.turn(now),
        }
    }

    /// Number of free tokens.
    pub(super) fn free(&mut self, now: Timestamp) -> u32 {
        match &mut self.source {
            TokenSource::Own(own) => own.free(now),
            TokenSource::Shared(member) => member.free(now),
        }
    }

    /// When even spacing permits a grant. Slots of a shared limit are spaced when they are booked.
    fn paced(&self, now: Timestamp) -> Readiness {
        match &self.source {
            TokenSource::Own(own) => own.pace.turn(now),
            TokenSource::Shared(_) => Readiness::Now,
        }
    }

    /// Chooses the next of the waiting lanes, if a token is available.
    pub(super) fn choose(&self, waiting: [bool; 3], now: Timestamp) -> Result<Lane, Readiness> {
        let paced = self.paced(now);
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
    pub(super) fn turn_of(&mut self, lane: Lane, now: Timestamp) -> Readiness {
        match (self.turn(now), lane) {
            (Readiness::Now, Lane::Operation | Lane::Background) => self.paced(now),
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
            TokenSource::Own(own) => {
                own.take();
                if lane != Lane::Interactive {
                    own.pace.take(now);
                }
                None
            }
            TokenSource::Shared(member) => Some(member.take(now)),
        }
    }

    /// Sets which lanes have ready calls, and the total number of waiting calls.
    pub(super) fn waits(&mut self, ready: [bool; 3], waiting: usize, now: Timestamp) {
        match &mut self.source {
            TokenSource::Own(own) => {
                if ready[Lane::Operation.index()] || ready[Lane::Background.index()] {
                    own.pace.starve();
                } else {
                    own.pace.rest(now);
                }
            }
            TokenSource::Shared(member) => {
                let waiting = if ready.contains(&true) { waiting } else { 0 };
                member.demand(waiting, ready[Lane::Interactive.index()], now);
            }
        }
    }

    /// A call got a response.
    pub(super) fn answered(&mut self, lodging: Option<MemberPermitId>, dispatched: Timestamp, now: Timestamp) {
        match (&mut self.source, lodging) {
            (TokenSource::Own(own), _) => own.answered(dispatched, now),
            (TokenSource::Shared(member), Some(lodging)) => member.answered(lodging, now),
            (TokenSource::Shared(_), None) => {}
        }
    }

    /// A call gets no response.
    pub(super) fn lost(&mut self, lodging: Option<MemberPermitId>, dispatched: Timestamp, now: Timestamp) {
        match (&mut self.source, lodging) {
            (TokenSource::Own(own), _) => own.lost(dispatched, now),
            (TokenSource::Shared(member), Some(lodging)) => member.lost(lodging, now),
            (TokenSource::Shared(_), None) => {}
        }
    }

    /// A call was never sent.
    pub(super) fn given_back(&mut self, lodging: Option<MemberPermitId>, now: Timestamp) {
        match (&mut self.source, lodging) {
            (TokenSource::Own(own), _) => own.given_back(),
            (TokenSource::Shared(member), Some(lodging)) => member.given_back(lodging, now),
            (TokenSource::Shared(_), None) => {}
        }
    }

    /// A global 429: no call is granted before `until`.
    pub(super) fn close(&mut self, until: Timestamp) {
        match &mut self.source {
            TokenSource::Own(own) => own.close(until),
            TokenSource::Shared(member) => member.close(until),
        }
    }

    /// A global 429 that another process received.
    pub(super) fn heard_closed(&mut self, until: Timestamp) {
        match &mut self.source {
            TokenSource::Own(own) => own.close(until),
            TokenSource::Shared(member) => member.heard_closed(until),
        }
    }

    /// The earliest time at which a call with `ahead` calls before it could be granted; a lower bound.
    pub(super) fn estimate(&self, ahead: usize, now: Timestamp) -> Timestamp {
        match &self.source {
            TokenSource::Own(own) => own.estimate(ahead, now),
            TokenSource::Shared(member) => member.estimate(ahead, now),
        }
    }

    /// Changes the number of local tokens; a limit that is shared through Redis has none.
    pub(super) fn set_own_limit(&mut self, limit: u32) {
        match &mut self.source {
            TokenSource::Own(own) => own.set_limit(limit),
            TokenSource::Shared(_) => {}
        }
    }

    /// Number of local tokens in use.
    pub(super) fn own_in_use(&mut self, now: Timestamp) -> u32 {
        match &mut self.source {
            TokenSource::Own(own) => own.in_use(now),
            TokenSource::Shared(_) => 0,
        }
    }

    /// When the next local token returns, if more tokens are in use than the limit allows.
    pub(super) fn next_own_excess(&self) -> Option<Timestamp> {
        match &self.source {
            TokenSource::Own(own) => own.next_excess(),
            TokenSource::Shared(_) => None,
        }
    }

    pub(super) fn in_flight(&self) -> u32 {
        match &self.source {
            TokenSource::Own(own) => own.in_flight(),
            TokenSource::Shared(member) => member.in_flight(),
        }
    }

    pub(super) fn limit(&self) -> u32 {
        match &self.source {
            TokenSource::Own(own) => own.limit(),
            TokenSource::Shared(member) => member.limit(),
        }
    }

    pub(super) fn closed_until(&self) -> Timestamp {
        match &self.source {
            TokenSource::Own(own) => own.closed_until(),
            TokenSource::Shared(member) => member.closed_until(),
        }
    }

    #[cfg(test)]
    fn open(mut self) -> Self {
        if let TokenSource::Own(own) = &mut self.source {
            own.open();
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
    fn a_fresh_gate_grants_nothing_until_a_window_after_the_last_call_before_it_can_have_arrived() {
        let config = LimitConfig { settling: Duration::from_millis(300), ..LimitConfig::default() };
        let mut global = GlobalLimit::new(&config, at(5_000));
        assert_eq!(global.turn(at(6_309)), Readiness::At(at(6_310)));
        assert_eq!(global.turn(at(6_310)), Readiness::Now);
    }

    #[test]
    fn a_token_comes_back_one_window_after_its_answer() {
        let mut global = open(1);
        global.take(Lane::Interactive, [false; 3], at(0));
        assert_eq!(global.turn(at(900)), Readiness::OnAnswer);
        global.answered(None, at(0), at(900));
        assert_eq!(global.turn(at(1_000)), Readiness::At(at(1_900)));
        assert_eq!(global.turn(at(1_900)), Readiness::Now);
    }

    #[test]
    fn a_call_without_an_answer_counts_until_it_can_no_longer_arrive() {
        let mut global = open(1);
        global.take(Lane::Interactive, [false; 3], at(0));
        global.lost(None, at(0), at(100));
        assert_eq!(global.turn(at(100)), Readiness::At(at(16_000)));
    }

    #[test]
    fn operations_are_spaced_after_their_burst_and_interactive_calls_are_not() {
        let config = LimitConfig { margin: Duration::ZERO, settling: Duration::ZERO, ..LimitConfig::default() };
        let mut global = GlobalLimit::new(&config, at(0));
        let mut granted = Vec::new();
        for ms in 1_000..1_200 {
            while global.choose([false, true, false], at(ms)).is_ok() {
                global.take(Lane::Operation, [false, true, false], at(ms));
                granted.push(ms);
            }
        }
        assert_eq!(granted[..7], [1_000, 1_000, 1_000, 1_000, 1_000, 1_020, 1_040]);
        assert_eq!(global.choose([true, true, false], at(1_199)), Ok(Lane::Interactive));
    }

    #[test]
    fn tokens_are_spread_over_the_whole_time_that_they_are_away_whatever_burst_took_them() {
        let config = LimitConfig { margin: Duration::ZERO, settling: Duration::ZERO, ..LimitConfig::default() };
        let mut global = GlobalLimit::new(&config, at(0));
        let waiting = [false, true, false];
        let mut granted: Vec<u64> = Vec::new();
        for ms in 1_000..10_000 {
            let answers = granted.iter().filter(|then| **then + 300 == ms);
            answers.for_each(|then| global.answered(None, at(*then), at(ms)));
            while global.turn(at(ms)) == Readiness::Now && global.choose(waiting, at(ms)).is_ok() {
                global.take(Lane::Operation, waiting, at(ms));
                granted.push(ms);
            }
            global.waits(waiting, 1, at(ms));
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
            while global.choose([false, true, false], at(ms)).is_ok() {
                global.take(Lane::Operation, [false; 3], at(ms));
                count += 1;
            }
            global.waits([false; 3], 0, at(ms));
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
            let lane = global.choose(waiting, at(0)).unwrap_or(Lane::Interactive);
            global.take(lane, waiting, at(0));
            grants[lane.index()] += 1;
        }
        assert!(grants[Lane::Background.index()] >= 45 && grants[Lane::Operation.index()] >= 45, "{grants:?}");
        assert!(grants[Lane::Interactive.index()] >= 850, "{grants:?}");
    }
}
