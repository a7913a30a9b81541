//! Tests of the ledger of a single process.

use std::time::Duration;

use proptest::prelude::*;

use super::*;

fn at(seconds: u64) -> Timestamp {
    Timestamp::from_millis(seconds * 1_000)
}

fn route() -> RouteKey {
    RouteKey::new("GET /guilds/{id}/roles")
}

fn spend(ledger: &mut InvalidLedger, count: u32, now: Timestamp) {
    spend_for(ledger, None, count, now);
}

fn spend_for(ledger: &mut InvalidLedger, guild: Option<u64>, count: u32, now: Timestamp) {
    for _ in 0..count {
        let reservation = ledger.admit(Lane::Interactive, guild, &route(), now).unwrap();
        ledger.complete(reservation, true, now);
    }
}

fn stopped(ledger: &mut InvalidLedger, now: Timestamp) -> Vec<Lane> {
    let refused = |lane: &Lane| match ledger.admit(*lane, None, &route(), now) {
        Ok(reservation) => {
            ledger.complete(reservation, false, now);
            false
        }
        Err(InvalidBudgetExceeded { .. }) => true,
    };
    Lane::ALL.into_iter().filter(refused).collect()
}

#[test]
fn lanes_stop_one_after_another_as_the_budget_is_spent() {
    let mut ledger = InvalidLedger::new(InvalidConfig::default());
    spend(&mut ledger, 4_999, at(0));
    assert_eq!(stopped(&mut ledger, at(0)), []);
    spend(&mut ledger, 1, at(0));
    assert_eq!(stopped(&mut ledger, at(0)), [Lane::Background]);
    spend(&mut ledger, 3_000, at(0));
    assert_eq!(stopped(&mut ledger, at(0)), [Lane::Operation, Lane::Background]);
    assert_eq!(ledger.stopped_lane(at(0)), Some(Lane::Operation));
    spend(&mut ledger, 1_500, at(0));
    assert_eq!(stopped(&mut ledger, at(0)), Lane::ALL);
}

#[test]
fn calls_in_flight_count_as_invalid() {
    let mut ledger = InvalidLedger::new(InvalidConfig { limit: 10, ..InvalidConfig::default() });
    let reservations: Vec<Reservation> =
        std::iter::from_fn(|| ledger.admit(Lane::Interactive, None, &route(), at(0)).ok()).collect();
    assert_eq!(reservations.len(), 9);
    for reservation in reservations {
        ledger.complete(reservation, true, at(1));
    }
    assert_eq!(ledger.used(at(1)), 9);
    assert_eq!(stopped(&mut ledger, at(1)), Lane::ALL);
}

#[test]
fn rejection_says_when_there_is_room() {
    let mut ledger = InvalidLedger::new(InvalidConfig { limit: 100, ..InvalidConfig::default() });
    spend(&mut ledger, 30, at(0));
    spend(&mut ledger, 40, at(100));
    let Err(InvalidBudgetExceeded { until, .. }) = ledger.admit(Lane::Background, None, &route(), at(200)) else {
        panic!("70 of 100 are spent");
    };
    assert!(until >= at(600) && until < at(610), "{until:?}");
    assert_eq!(stopped(&mut ledger, Timestamp::from_micros(until.micros() - 1)), [Lane::Background]);
    assert_eq!(stopped(&mut ledger, until), []);
}

#[test]
fn count_expires_and_then_needs_no_wake() {
    let mut ledger = InvalidLedger::new(InvalidConfig::default());
    assert_eq!(ledger.next_wake(), None);
    spend(&mut ledger, 3, at(7));
    let wake = ledger.next_wake().unwrap();
    assert_eq!(ledger.used(Timestamp::from_micros(wake.micros() - 1)), 3);
    assert_eq!(ledger.used(wake), 0);
    assert_eq!(ledger.next_wake(), None);
}

#[test]
fn snapshot_lists_top_spenders() {
    let mut ledger = InvalidLedger::new(InvalidConfig::default());
    spend_for(&mut ledger, Some(1), 5, at(0));
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

#[test]
fn separate_counts_stay_below_the_limit_together() {
    let config = InvalidConfig { limit: 100, ..InvalidConfig::default() };
    let mut ledgers = [InvalidLedger::new(config), InvalidLedger::new(config)];
    let spend = |ledgers: &mut [InvalidLedger], now: Timestamp| {
        let mut spent = 0;
        for ledger in ledgers {
            while let Ok(reservation) = ledger.admit(Lane::Interactive, None, &route(), now) {
                ledger.complete(reservation, true, now);
                spent += 1;
            }
        }
        spent
    };
    let at = Timestamp::from_millis;
    ledgers.iter_mut().for_each(|ledger| ledger.set_processes(2, at(0)));
    assert_eq!(spend(&mut ledgers, at(1_000)), 96);
    // The other process has ended, and what it spent still counts for a window.
    ledgers[0].set_processes(1, at(2_000));
    assert_eq!(spend(&mut ledgers[..1], at(3_000)), 0);
    assert_eq!(spend(&mut ledgers[..1], at(700_000)), 95);
}

proptest! {
    /// Counts as Discord does: every invalid response for a full window after it was seen.
    #[test]
    fn no_window_exceeds_the_last_threshold(actions in actions()) {
        let config = InvalidConfig { limit: 40, ..InvalidConfig::default() };
        let mut ledger = InvalidLedger::new(config);
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
                        // Even if all of them come back invalid, the lane's threshold holds.
                        let worst = in_window(now, &invalid) + open.len();
                        prop_assert!(worst <= config.threshold(lane) as usize);
                    }
                    Err(InvalidBudgetExceeded { until, .. }) => prop_assert!(until > now),
                },
                Action::Settle { which, was_invalid } => {
                    if !open.is_empty() {
                        let (_, reservation) = open.swap_remove(which % open.len());
                        ledger.complete(reservation, was_invalid, now);
                        if was_invalid {
                            invalid.push(now);
                        }
                    }
                }
                Action::Wait { millis } => now = now + Duration::from_millis(millis),
            }
            let real = in_window(now, &invalid);
            prop_assert!(ledger.used(now) as usize >= real, "the count is too low");
            prop_assert!(real <= config.threshold(Lane::Interactive) as usize);
        }
    }
}
