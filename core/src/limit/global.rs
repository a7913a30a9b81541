//! The global limit of one credential, and how its lanes share it.
//!
//! Discord counts arrivals; the gate knows only when a call was dispatched and when its answer came. So a token comes back
//! one window after its *answer*: whatever the latency, two calls that used the same token arrived at least a window
//! apart, and there are only as many tokens as the limit allows.

use std::collections::VecDeque;
use std::time::Duration;

use super::config::LimitConfig;
use super::turn::Turn;
use crate::lane::Lane;
use crate::time::Timestamp;

/// The tokens of one credential.
#[derive(Debug)]
pub(super) struct Global {
    limit: u32,
    window: Duration,
    request_timeout: Duration,
    /// Calls that are not answered yet.
    in_flight: u32,
    /// When each token that was used comes back, the first first.
    cooling: VecDeque<Timestamp>,
    /// Nothing goes before: the first window of a fresh gate, or a global 429.
    closed_until: Timestamp,
    pace: Pace,
    floor: u32,
    /// For each lane: grants that others got while it was waiting.
    passed_over: [u32; 3],
}

impl Global {
    /// A gate that grants nothing for its first window, and until what was sent before it has arrived: whoever ran before
    /// it may just have used all there is, to the last moment.
    pub(super) fn new(config: &LimitConfig, now: Timestamp) -> Self {
        let window = config.window + config.margin;
        Self {
            limit: config.global,
            window,
            request_timeout: config.request_timeout,
            in_flight: 0,
            cooling: VecDeque::new(),
            closed_until: now + window + config.settling,
            pace: Pace::new(config),
            floor: config.floor,
            passed_over: [0; 3],
        }
    }

    /// When there is a token.
    pub(super) fn turn(&mut self, now: Timestamp) -> Turn {
        if now < self.closed_until {
            return Turn::At(self.closed_until);
        }
        if self.free(now) > 0 {
            return Turn::Now;
        }
        self.cooling.front().map_or(Turn::OnAnswer, |back| Turn::At(*back))
    }

    /// Tokens that are free.
    pub(super) fn free(&mut self, now: Timestamp) -> u32 {
        while self.cooling.front().is_some_and(|back| *back <= now) {
            self.cooling.pop_front();
        }
        let used = self.in_flight as usize + self.cooling.len();
        self.limit.saturating_sub(u32::try_from(used).unwrap_or(u32::MAX))
    }

    /// Whose turn it is, of the lanes that wait, given that there is a token.
    pub(super) fn choose(&self, waiting: [bool; 3], now: Timestamp) -> Result<Lane, Turn> {
        let paced = self.pace.turn(now);
        let is_waiting = |lane: Lane| waiting[lane.index()];
        let may_go = |lane: Lane| lane == Lane::Interactive || paced == Turn::Now;
        let starved = |lane: &Lane| {
            let lane = *lane;
            is_waiting(lane) && may_go(lane) && self.passed_over[lane.index()] + 1 >= self.floor
        };
        // The least urgent first: it has waited longest for its share.
        if let Some(lane) = Lane::ALL.into_iter().rev().find(starved) {
            return Ok(lane);
        }
        Lane::ALL.into_iter().find(|lane| is_waiting(*lane) && may_go(*lane)).ok_or(paced)
    }

    /// Whether a call of this lane could go at once if nobody else waited.
    pub(super) fn turn_of(&mut self, lane: Lane, now: Timestamp) -> Turn {
        match (self.turn(now), lane) {
            (Turn::Now, Lane::Operation | Lane::Background) => self.pace.turn(now),
            (turn, _) => turn,
        }
    }

    pub(super) fn take(&mut self, lane: Lane, waiting: [bool; 3], now: Timestamp) {
        self.in_flight += 1;
        if lane != Lane::Interactive {
            self.pace.take(now);
        }
        for other in Lane::ALL {
            let count = &mut self.passed_over[other.index()];
            *count = if other == lane || !waiting[other.index()] { 0 } else { *count + 1 };
        }
    }

    /// An answer came: the token cools for one window from now.
    pub(super) fn answered(&mut self, now: Timestamp) {
        self.in_flight -= 1;
        self.cool(now + self.window);
    }

    /// No answer will come; the call may arrive until its time-out has passed.
    pub(super) fn lost(&mut self, dispatched: Timestamp, now: Timestamp) {
        self.in_flight -= 1;
        self.cool((dispatched + self.request_timeout).max(now) + self.window);
    }

    fn cool(&mut self, back: Timestamp) {
        // Nearly always the last: only tokens of lost calls come back later than those of answers after them.
        let place = match self.cooling.back() {
            Some(last) if *last > back => self.cooling.partition_point(|other| *other <= back),
            _ => self.cooling.len(),
        };
        self.cooling.insert(place, back);
    }

    /// The call never left.
    pub(super) fn given_back(&mut self) {
        self.in_flight -= 1;
    }

    /// A global 429: nothing goes before `until`.
    pub(super) fn close(&mut self, until: Timestamp) {
        self.closed_until = self.closed_until.max(until);
    }

    /// The earliest that a call could go which has `ahead` others before it; never too late.
    pub(super) fn estimate(&self, ahead: usize, now: Timestamp) -> Timestamp {
        let rounds = u32::try_from(ahead).unwrap_or(u32::MAX) / self.limit.max(1);
        let is_used_up = self.in_flight as usize + self.cooling.len() >= self.limit as usize;
        let first = match self.cooling.front() {
            Some(back) if is_used_up => *back,
            _ => now,
        };
        first.max(self.closed_until).max(now) + self.window * rounds
    }

    pub(super) fn in_flight(&self) -> u32 {
        self.in_flight
    }

    pub(super) fn limit(&self) -> u32 {
        self.limit
    }

    pub(super) fn closed_until(&self) -> Timestamp {
        self.closed_until
    }
}

/// Spaces grants by `window / limit` after a small burst, so that no convoy forms that an urgent call would have to wait
/// behind.
#[derive(Debug)]
struct Pace {
    interval: Duration,
    /// How far ahead of the even spacing a burst may run.
    slack: Duration,
    /// When the next grant is due by even spacing.
    due: Timestamp,
}

impl Pace {
    fn new(config: &LimitConfig) -> Self {
        let interval = config.window / config.global.max(1);
        Self { interval, slack: interval * config.burst.saturating_sub(1), due: Timestamp::ZERO }
    }

    fn turn(&self, now: Timestamp) -> Turn {
        Turn::not_before(self.due.before(self.slack), now)
    }

    fn take(&mut self, now: Timestamp) {
        self.due = self.due.max(now) + self.interval;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> Timestamp {
        Timestamp::from_millis(ms)
    }

    fn open(limit: u32) -> Global {
        let config = LimitConfig { global: limit, margin: Duration::ZERO, burst: 100, ..LimitConfig::default() };
        let mut global = Global::new(&config, at(0));
        global.closed_until = Timestamp::ZERO;
        global
    }

    #[test]
    fn a_fresh_gate_grants_nothing_until_a_window_after_the_last_call_before_it_can_have_arrived() {
        let config = LimitConfig { settling: Duration::from_millis(300), ..LimitConfig::default() };
        let mut global = Global::new(&config, at(5_000));
        assert_eq!(global.turn(at(6_309)), Turn::At(at(6_310)));
        assert_eq!(global.turn(at(6_310)), Turn::Now);
    }

    #[test]
    fn a_token_comes_back_one_window_after_its_answer() {
        let mut global = open(1);
        global.take(Lane::Interactive, [false; 3], at(0));
        assert_eq!(global.turn(at(900)), Turn::OnAnswer);
        global.answered(at(900));
        assert_eq!(global.turn(at(1_000)), Turn::At(at(1_900)));
        assert_eq!(global.turn(at(1_900)), Turn::Now);
    }

    #[test]
    fn a_call_without_an_answer_counts_until_it_can_no_longer_arrive() {
        let mut global = open(1);
        global.take(Lane::Interactive, [false; 3], at(0));
        global.lost(at(0), at(100));
        assert_eq!(global.turn(at(100)), Turn::At(at(16_000)));
    }

    #[test]
    fn operations_are_spaced_after_their_burst_and_interactive_calls_are_not() {
        let config = LimitConfig { margin: Duration::ZERO, settling: Duration::ZERO, ..LimitConfig::default() };
        let mut global = Global::new(&config, at(0));
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
