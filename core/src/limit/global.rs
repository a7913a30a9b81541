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

    /// Says whether anybody waits for a turn of those lanes that are spaced.
    pub(super) fn waits(&mut self, waiting: [bool; 3], now: Timestamp) {
        if waiting[Lane::Operation.index()] || waiting[Lane::Background.index()] {
            self.pace.starve();
        } else {
            self.pace.rest(now);
        }
    }

    /// An answer came: the token cools for one window from now.
    pub(super) fn answered(&mut self, dispatched: Timestamp, now: Timestamp) {
        self.in_flight -= 1;
        self.pace.observe(now.since(dispatched));
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

/// Spaces grants after a small burst, so that no convoy forms that an urgent call would have to wait behind.
///
/// The spacing is what the tokens can keep up with: each is away for its call's answer and one window. Spaced by the window
/// alone, they would all be gone too early, and everybody would wait for as long as an answer takes.
///
/// A burst is earned by being idle, never by waiting for tokens. Tokens come back as they were taken: those of a burst come
/// back together, and if they could be taken together again, the silence behind them would last for ever.
#[derive(Debug)]
struct Pace {
    window: Duration,
    limit: u32,
    /// How long answers take, on the average of late.
    latency: Duration,
    /// When the next grant is due by even spacing.
    due: Timestamp,
    /// Grants that may come before they are due.
    credit: u32,
    most_credit: u32,
    /// Whether anybody of these lanes waits for a token or a turn.
    is_starved: bool,
}

/// How many answers the average latency is taken over, roughly.
const ANSWERS: u32 = 16;

impl Pace {
    fn new(config: &LimitConfig) -> Self {
        let credit = config.burst.saturating_sub(1);
        Self {
            window: config.window,
            limit: config.global.max(1),
            latency: Duration::ZERO,
            due: Timestamp::ZERO,
            credit,
            most_credit: credit,
            is_starved: false,
        }
    }

    fn interval(&self) -> Duration {
        (self.window + self.latency) / self.limit
    }

    fn observe(&mut self, latency: Duration) {
        let before = if self.latency.is_zero() { latency } else { self.latency };
        self.latency = (before * (ANSWERS - 1) + latency) / ANSWERS;
    }

    fn turn(&self, now: Timestamp) -> Turn {
        if self.credit > 0 { Turn::Now } else { Turn::not_before(self.due, now) }
    }

    fn take(&mut self, now: Timestamp) {
        if now < self.due {
            self.credit = self.credit.saturating_sub(1);
            return;
        }
        let (interval, late) = (self.interval(), now.since(self.due));
        if !self.is_starved {
            let idle = late.as_micros().checked_div(interval.as_micros()).unwrap_or(u128::MAX);
            self.credit = self.credit.saturating_add(u32::try_from(idle).unwrap_or(u32::MAX)).min(self.most_credit);
        }
        // A little late is made up for, so that timers that wake late cost no grants.
        self.due = if late < interval { self.due } else { now } + interval;
    }

    fn starve(&mut self) {
        self.is_starved = true;
    }

    /// Nobody waits: from now on it is idle.
    fn rest(&mut self, now: Timestamp) {
        if self.is_starved {
            self.is_starved = false;
            self.due = self.due.max(now);
        }
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
        global.answered(at(0), at(900));
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
    fn tokens_are_spread_over_the_whole_time_that_they_are_away_whatever_burst_took_them() {
        let config = LimitConfig { margin: Duration::ZERO, settling: Duration::ZERO, ..LimitConfig::default() };
        let mut global = Global::new(&config, at(0));
        let waiting = [false, true, false];
        let mut granted: Vec<u64> = Vec::new();
        for ms in 1_000..10_000 {
            let answers = granted.iter().filter(|then| **then + 300 == ms);
            answers.for_each(|then| global.answered(at(*then), at(ms)));
            while global.turn(at(ms)) == Turn::Now && global.choose(waiting, at(ms)).is_ok() {
                global.take(Lane::Operation, waiting, at(ms));
                granted.push(ms);
            }
            global.waits(waiting, at(ms));
        }
        let longest = |granted: &[u64]| granted.windows(2).map(|pair| pair[1] - pair[0]).max();
        let late = granted.partition_point(|ms| *ms < 4_000);
        assert!(longest(&granted[late..]) <= Some(40), "{:?}", &granted[late..]);
        // Fifty tokens, each of which is away for 1.3 s, in six seconds.
        assert!(granted.len() - late >= 225, "{}", granted.len() - late);
    }

    #[test]
    fn a_burst_is_earned_again_by_being_idle() {
        let config = LimitConfig { margin: Duration::ZERO, ..LimitConfig::default() };
        let mut global = Global::new(&config, at(0));
        let mut burst = |ms: u64| {
            let mut count = 0;
            while global.choose([false, true, false], at(ms)).is_ok() {
                global.take(Lane::Operation, [false; 3], at(ms));
                count += 1;
            }
            global.waits([false; 3], at(ms));
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
