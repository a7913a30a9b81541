//! Tests of the share of a holder: a hard cap, whatever the responses and their order are.

use std::collections::HashMap;
use std::time::Duration;

use proptest::prelude::*;

use super::*;
use crate::snapshot::SnapshotAge;
use crate::time::UnixMs;

fn at(seconds: u64) -> Timestamp {
    Timestamp::from_millis(seconds * 1_000)
}

fn route() -> RouteKey {
    RouteKey::new("POST /webhooks/{id}/{token}")
}

fn owner(key: &str, tenant: &str, guild: u64) -> CallOwner {
    Submitter::of(&key.into(), &tenant.into()).in_guild(Some(guild))
}

fn operator(guild: u64) -> CallOwner {
    owner("admin", "default", guild)
}

/// Sends calls of this owner that all come back invalid, until one is rejected.
fn flood(ledger: &mut InvalidLedger, owner: &CallOwner, now: Timestamp) -> (u32, InvalidBudgetExceeded) {
    let mut sent = 0;
    loop {
        match ledger.admit(Lane::Interactive, owner.clone(), &route(), now) {
            Ok(reservation) => ledger.complete(reservation, true, now),
            Err(spent) => return (sent, spent),
        }
        sent += 1;
    }
}

fn is_admitted(ledger: &mut InvalidLedger, owner: &CallOwner, now: Timestamp) -> bool {
    let admitted = ledger.admit(Lane::Background, owner.clone(), &route(), now);
    admitted.map(|reservation| ledger.complete(reservation, false, now)).is_ok()
}

#[test]
fn key_is_held_at_its_share_and_others_are_not() {
    let mut ledger = InvalidLedger::new(InvalidConfig::default());
    let mut sent = 0;
    for guild in 1..=3 {
        sent += flood(&mut ledger, &owner("greedy", "acme", guild), at(0)).0;
    }
    assert_eq!(sent, 2_500);
    let (_, spent) = flood(&mut ledger, &owner("greedy", "acme", 4), at(1));
    let exceeded = spent.share.unwrap();
    assert_eq!((exceeded.holder, exceeded.used, exceeded.cap), (Holder::Key("greedy".into()), 2_500, 2_500));
    assert_eq!(spent.reason, "invalid_requests_key_share");
    assert!(spent.until >= at(600) && spent.until < at(610), "{:?}", spent.until);
    // The guild of the first calls has used up its share for all callers; everything else continues.
    assert!(!is_admitted(&mut ledger, &operator(1), at(1)));
    assert!(is_admitted(&mut ledger, &operator(4), at(1)));
    assert!(is_admitted(&mut ledger, &owner("other", "rival", 4), at(1)));
    // Another key of the same tenant has not used up its share, but the tenant has.
    let (_, spent) = flood(&mut ledger, &owner("second", "acme", 4), at(1));
    assert_eq!(spent.reason, "invalid_requests_tenant_share");
    assert_eq!(ledger.stopped_lane(at(1)), None);
    assert!(is_admitted(&mut ledger, &owner("greedy", "acme", 4), at(610)));
}

#[test]
fn operator_is_held_by_guild_only() {
    let mut ledger = InvalidLedger::new(InvalidConfig::default());
    let mut sent = 0;
    for guild in 1..=3 {
        let (count, spent) = flood(&mut ledger, &operator(guild), at(0));
        assert_eq!(spent.reason, "invalid_requests_guild_share");
        sent += count;
    }
    assert_eq!(sent, 7_500);
    // Calls without an owner count towards no share.
    let (count, spent) = flood(&mut ledger, &CallOwner::default(), at(0));
    assert_eq!((count, spent.reason), (2_000, "invalid_requests"));
}

#[test]
fn calls_in_flight_count_towards_the_share() {
    let mut ledger = InvalidLedger::new(InvalidConfig { limit: 100, ..InvalidConfig::default() });
    let greedy = owner("greedy", "acme", 1);
    let calls: Vec<Reservation> =
        std::iter::from_fn(|| ledger.admit(Lane::Operation, greedy.clone(), &route(), at(0)).ok()).collect();
    assert_eq!(calls.len(), 25);
    let spent = ledger.admit(Lane::Operation, greedy.clone(), &route(), at(0)).unwrap_err();
    assert_eq!(spent.until.since(at(0)).as_secs(), 1, "only calls in flight block it");
    for call in calls {
        ledger.complete(call, true, at(2));
    }
    assert_eq!(ledger.used(at(2)), 25);
    assert!(!is_admitted(&mut ledger, &greedy, at(2)));
}

#[test]
fn refused_calls_come_back_one_after_another() {
    let mut ledger = InvalidLedger::new(InvalidConfig::default());
    let greedy = owner("greedy", "acme", 1);
    let (_, first) = flood(&mut ledger, &greedy, at(0));
    let mut last = first.until;
    for _ in 0..10_000 {
        let (_, spent) = flood(&mut ledger, &greedy, at(0));
        assert!(spent.until >= last);
        last = spent.until;
    }
    assert_eq!(last.since(first.until), Duration::from_secs(60));
}

#[test]
fn holders_are_forgotten_with_their_last_count() {
    let mut ledger = InvalidLedger::new(InvalidConfig::default());
    for guild in 0..1_000 {
        let call = ledger.admit(Lane::Operation, owner("k", "t", guild), &route(), at(guild / 10)).unwrap();
        ledger.complete(call, guild % 2 == 0, at(guild / 10));
    }
    assert_eq!(ledger.holders.all().count(), 502);
    ledger.used(at(800));
    assert_eq!(ledger.holders.all().count(), 0);
    assert_eq!(ledger.largest_share_ratio(), 0.0);
}

#[test]
fn snapshot_lists_the_largest_and_the_capped_holders() {
    let mut ledger = InvalidLedger::new(InvalidConfig { limit: 100, ..InvalidConfig::default() });
    flood(&mut ledger, &owner("greedy", "acme", 7), at(0));
    flood(&mut ledger, &operator(8), at(0));
    let call = ledger.admit(Lane::Operation, owner("calm", "rival", 9), &route(), at(0)).unwrap();
    let share = ledger.snapshot(at(0)).share;
    assert_eq!((share.percent, share.cap, share.held, share.capped), (25, 25, 2, 4));
    let first = &share.holders[0];
    assert_eq!((first.used, first.ratio, first.capped), (25, 1.0, true));
    assert!(first.room_in_ms.is_some_and(|room| room >= 600_000));
    let calm = share.holders.iter().find(|holder| holder.id == "calm").unwrap();
    assert_eq!((calm.by.name(), calm.used, calm.in_flight, calm.capped), ("key", 0, 1, false));
    assert_eq!(ledger.largest_share_ratio(), 1.0);
    ledger.complete(call, false, at(0));
}

#[test]
fn restart_does_not_reset_the_share() {
    let config = InvalidConfig::default();
    let mut before = InvalidLedger::new(config);
    let greedy = owner("greedy", "acme", 1);
    flood(&mut before, &greedy, at(10));
    for guild in 100..1_000 {
        let call = before.admit(Lane::Operation, operator(guild), &route(), at(20)).unwrap();
        before.complete(call, true, at(20));
    }
    let text = serde_json::to_string(&before.save_holders(at(30))).unwrap();
    let saved: SavedHolders = serde_json::from_str(&text).unwrap();
    let age = SnapshotAge::of(UnixMs::new(0), UnixMs::new(60_000));
    let mut after = InvalidLedger::new(config);
    after.restore_holders(&saved, 0, age, at(0));
    assert!(!is_admitted(&mut after, &greedy, at(0)));
    assert!(is_admitted(&mut after, &operator(2), at(0)));
    assert_eq!(after.largest_share_ratio(), 1.0);
    // The same as without the restart: 20 s and 60 s have passed.
    assert!(!is_admitted(&mut after, &greedy, at(519)));
    assert!(is_admitted(&mut after, &greedy, at(526)));
    after.used(at(560));
    assert_eq!(after.largest_share_ratio(), 0.0);

    // A run that ended suddenly may have made requests that it did not save.
    let mut after = InvalidLedger::new(config);
    after.restore_holders(&saved, 100, age, at(0));
    let (sent, _) = flood(&mut after, &operator(2), at(0));
    assert_eq!(sent, 2_399);
}

#[test]
fn broken_memory_of_holders_is_ignored() {
    let saved: SavedHolders =
        serde_json::from_str(r#"{"holders":[["x:1",[[600000,5000]]],["g:1",[[99999999999,4294967295],[5,7]]]]}"#)
            .unwrap();
    let mut ledger = InvalidLedger::new(InvalidConfig::default());
    ledger.restore_holders(&saved, 0, SnapshotAge::of(UnixMs::new(0), UnixMs::new(0)), at(0));
    assert!(is_admitted(&mut ledger, &operator(2), at(0)));
    assert!(!is_admitted(&mut ledger, &operator(1), at(0)));
    assert!(is_admitted(&mut ledger, &operator(1), at(611)));
}

#[derive(Clone, Debug)]
enum Action {
    Admit { owner: usize, times: usize },
    Settle { which: usize, was_invalid: bool },
    Wait { millis: u64 },
    Restart,
}

fn actions() -> impl Strategy<Value = Vec<Action>> {
    let action = prop_oneof![
        8 => (0..6_usize, 1..6_usize).prop_map(|(owner, times)| Action::Admit { owner, times }),
        12 => (any::<usize>(), prop::bool::weighted(0.9))
            .prop_map(|(which, was_invalid)| Action::Settle { which, was_invalid }),
        2 => (0..90_000_u64).prop_map(|millis| Action::Wait { millis }),
        1 => Just(Action::Restart),
    ];
    prop::collection::vec(action, 1..500)
}

fn owners() -> Vec<CallOwner> {
    vec![
        owner("a", "acme", 1),
        owner("a", "acme", 2),
        owner("b", "acme", 2),
        owner("c", "rival", 3),
        operator(1),
        operator(3),
    ]
}

proptest! {
    /// Whatever is admitted and comes back, no holder has more than its cap in any window; and a holder far below its
    /// cap is never limited because of another one.
    #[test]
    fn no_holder_ever_passes_its_share(actions in actions(), limit in 8..200_u32, share in 1..=100_u32) {
        let config = InvalidConfig { limit, interactive_percent: 1_000, share_percent: share, ..InvalidConfig::default() };
        let cap = config.share_cap() as usize;
        let owners = owners();
        let mut ledger = InvalidLedger::new(config);
        let mut now = Timestamp::from_millis(1);
        let mut open: Vec<(usize, Reservation)> = Vec::new();
        let mut invalid: Vec<(Timestamp, usize)> = Vec::new();
        for action in actions {
            let held = |now: Timestamp, invalid: &[(Timestamp, usize)], open: &[(usize, Reservation)]| {
                let mut held: HashMap<Holder, usize> = HashMap::new();
                let in_window = invalid.iter().filter(|(seen, _)| now.since(*seen) < config.window).map(|(_, who)| *who);
                for who in in_window.chain(open.iter().map(|(who, _)| *who)) {
                    owners[who].holders().for_each(|holder| *held.entry(holder).or_default() += 1);
                }
                held
            };
            match action {
                Action::Admit { owner: who, times } => for _ in 0..times {
                    match ledger.admit(Lane::Interactive, owners[who].clone(), &route(), now) {
                        Ok(reservation) => open.push((who, reservation)),
                        Err(spent) => {
                            let exceeded = spent.share.unwrap();
                            prop_assert!(owners[who].holders().any(|holder| holder == exceeded.holder));
                            prop_assert!(spent.until > now);
                            // Counts expire up to a slot late, and only for their own holder.
                            let slot = config.window / 100;
                            let recent: Vec<_> =
                                invalid.iter().filter(|(seen, _)| now.since(*seen) < config.window + slot).copied().collect();
                            let most = held(Timestamp::ZERO, &recent, &open).get(&exceeded.holder).copied().unwrap_or(0);
                            prop_assert!(most >= cap, "{exceeded:?} has {most} at most");
                        }
                    }
                },
                Action::Settle { which, was_invalid } => if !open.is_empty() {
                    let (who, reservation) = open.swap_remove(which % open.len());
                    ledger.complete(reservation, was_invalid, now);
                    invalid.extend(was_invalid.then_some((now, who)));
                },
                Action::Wait { millis } => now = now + Duration::from_millis(millis),
                Action::Restart => {
                    for (who, reservation) in open.drain(..) {
                        ledger.complete(reservation, true, now);
                        invalid.push((now, who));
                    }
                    let saved = ledger.save_holders(now);
                    ledger = InvalidLedger::new(config);
                    ledger.restore_holders(&saved, 0, SnapshotAge::of(UnixMs::new(0), UnixMs::new(0)), now);
                }
            }
            for (holder, count) in held(now, &invalid, &open) {
                prop_assert!(count <= cap, "{holder} has {count} of {cap}");
            }
        }
    }
}

#[test]
fn process_that_takes_the_place_of_a_killed_one_can_send_at_once() {
    let config = InvalidConfig::default();
    let mut lender = Lender::new(config.limit, config.window);
    let owner = operator(7);
    for life in 0..20 {
        let now = at(life * 10);
        let mut ledger = InvalidLedger::new(config);
        ledger.share(LedgerFallback::Stop, now);
        // It does not leave: the lender reserves what it was granted.
        for (number, second) in [(1, 0), (2, 4)] {
            let now = now + Duration::from_secs(second);
            let request = ledger.request(now).unwrap();
            let synced = lender.sync(&format!("life {life}"), number, &request, "server", now).unwrap();
            ledger.on_reply(&synced, now);
        }
        let now = now + Duration::from_secs(4);
        let admitted = ledger.admit(Lane::Operation, owner.clone(), &route(), now);
        assert!(admitted.is_ok(), "life {life}: {admitted:?}");
    }
}
