//! The ledger of invalid requests: what keeps this address from being banned.
//!
//! Discord counts answers of 401, 403 and 429 (unless shared) by address, and bans it for an hour after 10,000 in ten
//! minutes. Work that may wait stops long before that, and in the end all work does.
//!
//! Calls under way may all come back invalid. So a call reserves its place before it goes, and `used + in flight` stays
//! below the threshold of its lane: whatever comes back, the limit holds.

mod slots;
mod spenders;

pub use spenders::Spender;

use std::time::Duration;

use serde::Serialize;

use crate::lane::Lane;
use crate::route::RouteKey;
use crate::time::Timestamp;

use slots::Slots;
use spenders::Spenders;

/// When to come again if all that is missing is the end of calls under way.
const SOON: Duration = Duration::from_secs(1);

/// Settings of the ledger.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InvalidConfig {
    /// How many invalid requests Discord allows.
    pub limit: u32,
    /// In how long.
    pub window: Duration,
    /// Background work stops at this share of the limit, in percent.
    pub background_percent: u32,
    /// Operations stop at this share of the limit, in percent.
    pub operation_percent: u32,
    /// Everything stops at this share of the limit, in percent.
    pub interactive_percent: u32,
}

impl Default for InvalidConfig {
    fn default() -> Self {
        Self {
            limit: 10_000,
            window: Duration::from_secs(600),
            background_percent: 50,
            operation_percent: 80,
            interactive_percent: 95,
        }
    }
}

impl InvalidConfig {
    /// How many invalid requests there may be before a lane stops.
    #[must_use]
    pub const fn threshold(&self, lane: Lane) -> u32 {
        let percent = match lane {
            Lane::Interactive => self.interactive_percent,
            Lane::Operation => self.operation_percent,
            Lane::Background => self.background_percent,
        };
        (self.limit as u64 * percent as u64 / 100) as u32
    }
}

/// A place in the ledger for a call under way. Goes back to [`Ledger::settle`], always.
#[derive(Debug, PartialEq, Eq)]
#[must_use = "a reservation that is not settled takes its place forever"]
pub struct Reservation {
    guild: Option<u64>,
    route: RouteKey,
}

/// Too much of the budget is spent for this lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the budget of invalid requests is spent for now")]
pub struct Spent {
    /// When there is room again, as far as can be told.
    pub until: Timestamp,
}

/// The ledger of one address.
#[derive(Debug)]
pub struct Ledger {
    config: InvalidConfig,
    slots: Slots,
    in_flight: u32,
    spenders: Spenders,
}

impl Ledger {
    /// An empty ledger.
    #[must_use]
    pub fn new(config: InvalidConfig) -> Self {
        Self { config, slots: Slots::new(config.window), in_flight: 0, spenders: Spenders::new(config.window) }
    }

    /// Reserves a place for a call, made for this guild on this route.
    ///
    /// # Errors
    ///
    /// Refused if, with this call and all those under way, the threshold of its lane could be passed.
    pub fn admit(
        &mut self,
        lane: Lane,
        guild: Option<u64>,
        route: &RouteKey,
        now: Timestamp,
    ) -> Result<Reservation, Spent> {
        let threshold = self.config.threshold(lane);
        let used = self.slots.total(now);
        if used.saturating_add(self.in_flight) >= threshold {
            let until = if used < threshold { now + SOON } else { self.slots.below(threshold, now) };
            return Err(Spent { until });
        }
        self.in_flight += 1;
        Ok(Reservation { guild, route: route.clone() })
    }

    /// Takes back the reservation of a call that has ended, and counts it if its answer was invalid.
    pub fn settle(&mut self, reservation: Reservation, was_invalid: bool, now: Timestamp) {
        let Reservation { guild, route } = reservation;
        self.in_flight -= 1;
        if was_invalid {
            self.slots.add(now);
            self.spenders.add(guild, route, now);
        }
    }

    /// How many are counted at `now`.
    pub fn used(&mut self, now: Timestamp) -> u32 {
        self.slots.total(now)
    }

    /// The share of the limit that is used.
    pub fn used_ratio(&mut self, now: Timestamp) -> f64 {
        f64::from(self.used(now)) / f64::from(self.config.limit.max(1))
    }

    /// The most urgent lane that is stopped by what is counted, and with it all lanes below.
    pub fn stopped(&mut self, now: Timestamp) -> Option<Lane> {
        let used = self.used(now);
        Lane::ALL.into_iter().find(|lane| used >= self.config.threshold(*lane))
    }

    /// When time alone will lower the count.
    #[must_use]
    pub fn next_wake(&self) -> Option<Timestamp> {
        self.slots.next_end()
    }

    /// What is to be seen.
    pub fn snapshot(&mut self, now: Timestamp) -> LedgerSnapshot {
        LedgerSnapshot {
            used: self.used(now),
            in_flight: self.in_flight,
            limit: self.config.limit,
            window_seconds: self.config.window.as_secs(),
            ratio: self.used_ratio(now),
            thresholds: Thresholds {
                interactive: self.config.threshold(Lane::Interactive),
                operation: self.config.threshold(Lane::Operation),
                background: self.config.threshold(Lane::Background),
            },
            top_spenders: self.spenders.top(now),
        }
    }
}

/// What is to be seen of the ledger.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LedgerSnapshot {
    /// Invalid requests in the window.
    pub used: u32,
    /// Calls under way, each of which may become one.
    pub in_flight: u32,
    /// How many Discord allows.
    pub limit: u32,
    /// In how long.
    pub window_seconds: u64,
    /// `used / limit`.
    pub ratio: f64,
    /// Where each lane stops.
    pub thresholds: Thresholds,
    /// Who spent it, the largest first.
    pub top_spenders: Vec<Spender>,
}

/// Where each lane stops, in invalid requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Thresholds {
    /// Everything stops.
    pub interactive: u32,
    /// All but interactive work stops.
    pub operation: u32,
    /// Background work stops.
    pub background: u32,
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn at(seconds: u64) -> Timestamp {
        Timestamp::from_millis(seconds * 1_000)
    }

    fn route() -> RouteKey {
        RouteKey::new("GET /guilds/{id}/roles")
    }

    fn spend(ledger: &mut Ledger, count: u32, now: Timestamp) {
        for _ in 0..count {
            let reservation = ledger.admit(Lane::Interactive, Some(1), &route(), now).unwrap();
            ledger.settle(reservation, true, now);
        }
    }

    fn stopped(ledger: &mut Ledger, now: Timestamp) -> Vec<Lane> {
        let refused = |lane: &Lane| match ledger.admit(*lane, None, &route(), now) {
            Ok(reservation) => {
                ledger.settle(reservation, false, now);
                false
            }
            Err(Spent { .. }) => true,
        };
        Lane::ALL.into_iter().filter(refused).collect()
    }

    #[test]
    fn lanes_stop_one_after_another_as_the_budget_is_spent() {
        let mut ledger = Ledger::new(InvalidConfig::default());
        spend(&mut ledger, 4_999, at(0));
        assert_eq!(stopped(&mut ledger, at(0)), []);
        spend(&mut ledger, 1, at(0));
        assert_eq!(stopped(&mut ledger, at(0)), [Lane::Background]);
        spend(&mut ledger, 3_000, at(0));
        assert_eq!(stopped(&mut ledger, at(0)), [Lane::Operation, Lane::Background]);
        assert_eq!(ledger.stopped(at(0)), Some(Lane::Operation));
        spend(&mut ledger, 1_500, at(0));
        assert_eq!(stopped(&mut ledger, at(0)), Lane::ALL);
    }

    #[test]
    fn calls_under_way_count_as_if_they_were_invalid() {
        let mut ledger = Ledger::new(InvalidConfig { limit: 10, ..InvalidConfig::default() });
        let reservations: Vec<Reservation> =
            std::iter::from_fn(|| ledger.admit(Lane::Interactive, None, &route(), at(0)).ok()).collect();
        assert_eq!(reservations.len(), 9);
        for reservation in reservations {
            ledger.settle(reservation, true, at(1));
        }
        assert_eq!(ledger.used(at(1)), 9);
        assert_eq!(stopped(&mut ledger, at(1)), Lane::ALL);
    }

    #[test]
    fn a_refusal_says_when_there_is_room_and_then_there_is() {
        let mut ledger = Ledger::new(InvalidConfig { limit: 100, ..InvalidConfig::default() });
        spend(&mut ledger, 30, at(0));
        spend(&mut ledger, 40, at(100));
        let Err(Spent { until }) = ledger.admit(Lane::Background, None, &route(), at(200)) else {
            panic!("70 of 100 are spent");
        };
        assert!(until >= at(600) && until < at(610), "{until:?}");
        assert_eq!(stopped(&mut ledger, Timestamp::from_micros(until.micros() - 1)), [Lane::Background]);
        assert_eq!(stopped(&mut ledger, until), []);
    }

    #[test]
    fn the_count_falls_by_time_alone_and_then_there_is_nothing_to_wake_for() {
        let mut ledger = Ledger::new(InvalidConfig::default());
        assert_eq!(ledger.next_wake(), None);
        spend(&mut ledger, 3, at(7));
        let wake = ledger.next_wake().unwrap();
        assert_eq!(ledger.used(Timestamp::from_micros(wake.micros() - 1)), 3);
        assert_eq!(ledger.used(wake), 0);
        assert_eq!(ledger.next_wake(), None);
    }

    #[test]
    fn the_snapshot_names_who_spent_it() {
        let mut ledger = Ledger::new(InvalidConfig::default());
        spend(&mut ledger, 5, at(0));
        let snapshot = ledger.snapshot(at(0));
        assert_eq!((snapshot.used, snapshot.in_flight), (5, 0));
        assert_eq!((snapshot.top_spenders[0].guild, snapshot.top_spenders[0].count), (Some(1), 5));
    }

    #[derive(Clone, Debug)]
    enum Action {
        Admit(Lane),
        Settle { which: usize, was_invalid: bool },
        Wait { millis: u64 },
    }

    fn actions() -> impl Strategy<Value = Vec<Action>> {
        let lane = prop_oneof![Just(Lane::Interactive), Just(Lane::Operation), Just(Lane::Background)];
        let action = prop_oneof![
            5 => lane.prop_map(Action::Admit),
            4 => (any::<usize>(), prop::bool::weighted(0.8))
                .prop_map(|(which, was_invalid)| Action::Settle { which, was_invalid }),
            1 => (0..120_000_u64).prop_map(|millis| Action::Wait { millis }),
        ];
        prop::collection::vec(action, 1..400)
    }

    proptest! {
        /// Counts exactly what Discord would: every invalid answer for a full window after it was seen.
        #[test]
        fn no_window_ever_holds_more_than_the_last_threshold(actions in actions()) {
            let config = InvalidConfig { limit: 40, ..InvalidConfig::default() };
            let mut ledger = Ledger::new(config);
            let mut now = Timestamp::ZERO;
            let mut open: Vec<(Lane, Reservation)> = Vec::new();
            let mut invalid: Vec<Timestamp> = Vec::new();
            for action in actions {
                let in_window = |now: Timestamp, invalid: &[Timestamp]| {
                    invalid.iter().filter(|seen| now.since(**seen) < config.window).count()
                };
                match action {
                    Action::Admit(lane) => match ledger.admit(lane, None, &route(), now) {
                        Ok(reservation) => {
                            open.push((lane, reservation));
                            // Were all of them to come back invalid, the lane's threshold would still hold.
                            let worst = in_window(now, &invalid) + open.len();
                            prop_assert!(worst <= config.threshold(lane) as usize);
                        }
                        Err(Spent { until }) => prop_assert!(until > now),
                    },
                    Action::Settle { which, was_invalid } => {
                        if !open.is_empty() {
                            let (_, reservation) = open.swap_remove(which % open.len());
                            ledger.settle(reservation, was_invalid, now);
                            if was_invalid {
                                invalid.push(now);
                            }
                        }
                    }
                    Action::Wait { millis } => now = now + Duration::from_millis(millis),
                }
                let real = in_window(now, &invalid);
                prop_assert!(ledger.used(now) as usize >= real, "it forgot some");
                prop_assert!(real <= config.threshold(Lane::Interactive) as usize);
            }
        }
    }
}
