use proptest::prelude::*;

use super::super::{Budget, BudgetEpoch, BudgetUnreachable, ObservedLimits, OfflineSpend};
use super::*;

const LIMITS: BudgetLimits = BudgetLimits { maximum: Points::whole(12), restore_per_second: Points::whole(3) };
const NOW: Timestamp = Timestamp::from_millis(100_000);
const RETRY: Duration = Duration::from_secs(1);

fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn name() -> BudgetName {
    BudgetName::new("shop").unwrap()
}

fn new_member(on_loss: BudgetFallback) -> BudgetMember {
    let mut member =
        BudgetMember::new(BudgetMemberConfig { max_budgets: 2, max_wait: seconds(60), on_loss, retry_after: RETRY });
    member.configure(&name(), LIMITS).unwrap();
    member
}

fn state(members: u32) -> BudgetState {
    BudgetState {
        epoch: BudgetEpoch::new("first"),
        limits: LIMITS,
        observed: ObservedLimits::default(),
        available: Points::ZERO,
        booked_for: Duration::ZERO,
        blocked_for: Duration::ZERO,
        members: Some(members),
    }
}

/// A member that has received a reply.
fn connected_member(on_loss: BudgetFallback, state: &BudgetState) -> BudgetMember {
    let mut member = new_member(on_loss);
    let report = member.create_report(&name(), NOW).unwrap();
    assert_eq!(member.on_reply(&name(), &report, state, NOW), Reachability::Unchanged);
    member
}

fn take(member: &mut BudgetMember, cost: u64, max_wait: u64, now: Timestamp) -> Result<BudgetDecision, BudgetError> {
    let request = member.request(Points::whole(cost), seconds(max_wait));
    member.acquire(&name(), request, now)
}

fn unreachable(reason: BudgetUnreachable) -> Result<BudgetDecision, BudgetError> {
    Err(BudgetError::Unreachable { reason, retry_after: RETRY })
}

fn refused(retry_ms: u64) -> Result<BudgetDecision, BudgetError> {
    Ok(BudgetDecision::Refused { retry_after: Some(Duration::from_millis(retry_ms)), remaining: Points::ZERO })
}

#[test]
fn share_starts_empty_and_is_restored_at_a_share_of_the_rate() {
    let mut member = connected_member(BudgetFallback::Share, &state(3));
    assert!(member.on_lost(NOW));
    assert!(!member.on_lost(NOW + seconds(1)), "it is lost once");
    assert_eq!(take(&mut member, 2, 0, NOW), refused(2_000));
    let later = NOW + seconds(2);
    assert!(matches!(take(&mut member, 2, 0, later), Ok(BudgetDecision::Allowed { delay: Duration::ZERO, .. })));
    // Four is a third of the maximum of the whole budget.
    let much_later = NOW + seconds(100);
    let above = BudgetUnreachable::AboveShare { cost: Points::whole(5), share: Points::whole(4) };
    assert_eq!(take(&mut member, 5, 60, much_later), unreachable(above));
    assert_eq!(member.snapshot(&name(), much_later).unwrap().available, Points::whole(4));
    let never = BudgetError::CostAboveMaximum { cost: Points::whole(13), maximum: LIMITS.maximum };
    assert_eq!(take(&mut member, 13, 60, much_later), Err(never));
}

#[test]
fn share_starts_after_all_bookings_and_the_upstreams_pause() {
    let mut member = connected_member(BudgetFallback::Share, &BudgetState { booked_for: seconds(5), ..state(3) });
    member.on_lost(NOW);
    assert_eq!(take(&mut member, 1, 0, NOW), refused(6_000));
    let mut member = connected_member(BudgetFallback::Share, &BudgetState { blocked_for: seconds(7), ..state(3) });
    member.on_lost(NOW);
    assert_eq!(take(&mut member, 1, 0, NOW), refused(8_000));
}

#[test]
fn share_uses_the_highest_recent_member_count() {
    let mut member = connected_member(BudgetFallback::Share, &state(6));
    let receive = |member: &mut BudgetMember, members, now| {
        let report = member.create_report(&name(), now).unwrap();
        let _ = member.on_reply(&name(), &report, &state(members), now);
    };
    let report = member.create_report(&name(), NOW).unwrap();
    let _ = member.on_reply(&name(), &report, &BudgetState { members: None, ..state(6) }, NOW);
    receive(&mut member, 2, NOW + seconds(1));
    let mut soon = member.clone();
    soon.on_lost(NOW + seconds(1));
    assert_eq!(soon.snapshot(&name(), NOW + seconds(1)).unwrap().limits, LIMITS.share(6));
    receive(&mut member, 2, NOW + seconds(61));
    member.on_lost(NOW + seconds(61));
    assert_eq!(member.snapshot(&name(), NOW + seconds(61)).unwrap().limits, LIMITS.share(2));
}

#[test]
fn unreached_budget_is_spent_only_with_the_open_fallback() {
    for on_loss in [BudgetFallback::Share, BudgetFallback::Closed] {
        let mut member = new_member(on_loss);
        member.on_lost(NOW);
        assert_eq!(take(&mut member, 1, 60, NOW + seconds(60)), unreachable(BudgetUnreachable::Never));
    }
    let mut member = new_member(BudgetFallback::Open);
    member.on_lost(NOW);
    let whole = BudgetDecision::Allowed { delay: Duration::ZERO, remaining: Points::ZERO };
    assert_eq!(take(&mut member, 12, 0, NOW), Ok(whole));
}

#[test]
fn closed_budget_refuses_with_reason_and_retry_time() {
    let mut member = connected_member(BudgetFallback::Closed, &state(2));
    member.on_lost(NOW);
    let error = take(&mut member, 1, 60, NOW + seconds(60)).unwrap_err();
    assert_eq!(error.retry_after(), Some(RETRY));
    let message = "the shared budget is unreachable, and nothing may be spent from it meanwhile; try again in 1s";
    assert_eq!(error.to_string(), message);
    assert_eq!(member.snapshot(&name(), NOW).unwrap().source, BudgetSource::Meanwhile);
}

#[test]
fn offline_spend_is_reported_under_one_number_until_confirmed() {
    let mut member = connected_member(BudgetFallback::Share, &state(1));
    member.on_lost(NOW);
    let later = NOW + seconds(4);
    let _ = take(&mut member, 5, 0, later).unwrap();
    let first = member.create_report(&name(), later).unwrap();
    assert_eq!(first.spent, Some(OfflineSpend { number: 1, points: Points::whole(5) }));
    // The report was lost; more is spent, and the pending report does not change.
    let _ = take(&mut member, 6, 0, later).unwrap();
    let again = member.create_report(&name(), later).unwrap();
    assert_eq!(again.spent, first.spent);
    assert_eq!(member.on_reply(&name(), &again, &state(1), later), Reachability::Restored(seconds(4)));
    let rest = member.create_report(&name(), later).unwrap();
    assert_eq!(rest.spent, Some(OfflineSpend { number: 2, points: Points::whole(6) }));
    assert_eq!(member.tasks(later), [(name(), BudgetTask::Report)]);
    assert_eq!(member.on_reply(&name(), &rest, &state(1), later), Reachability::Unchanged);
    assert_eq!(member.create_report(&name(), later).unwrap().spent, None);
}

#[test]
fn defaults_are_sent_until_confirmed_then_the_received_limits() {
    let mut member = new_member(BudgetFallback::Share);
    let first = member.create_report(&name(), NOW).unwrap();
    assert_eq!((first.configure, &first.epoch, first.limits), (Some(LIMITS), &None, LIMITS));
    let other = BudgetLimits { maximum: Points::whole(20), ..LIMITS };
    member.configure(&name(), other).unwrap();
    let upstreams = BudgetLimits { maximum: Points::whole(50), ..LIMITS };
    let observed = ObservedLimits { maximum: true, restore: false };
    let seen = BudgetState { limits: upstreams, observed, booked_for: seconds(9), ..state(1) };
    let _ = member.on_reply(&name(), &first, &seen, NOW);
    let second = member.create_report(&name(), NOW + seconds(4)).unwrap();
    assert_eq!(second.configure, Some(other), "the reply was for the earlier defaults");
    assert_eq!((second.limits, second.observed, second.booked_for), (upstreams, observed, seconds(5)));
    assert_eq!(second.epoch, Some(BudgetEpoch::new("first")));
    let _ = member.on_reply(&name(), &second, &seen, NOW);
    assert_eq!(member.create_report(&name(), NOW).unwrap().configure, None);
}

#[test]
fn observation_applies_to_the_share_and_is_sent_with_its_age() {
    let mut member = connected_member(BudgetFallback::Share, &state(3));
    member.on_lost(NOW);
    let available = Some(Points::whole(9));
    let observation =
        Observation { available, retry_after: Some(seconds(20)), age: seconds(1), ..Observation::default() };
    member.observe(&name(), &observation, NOW).unwrap();
    assert_eq!(take(&mut member, 3, 0, NOW), refused(20_000));
    assert_eq!(member.tasks(NOW), [(name(), BudgetTask::Report)], "while unreachable, the only task is a probe");
    let back = |member: &mut BudgetMember, now| {
        let report = member.create_report(&name(), now).unwrap();
        assert!(matches!(member.on_reply(&name(), &report, &state(3), now), Reachability::Restored(_)));
        member.tasks(now)
    };
    let sent = Observation { retry_after: Some(seconds(15)), age: seconds(6), ..observation };
    let soon = back(&mut member.clone(), NOW + seconds(5));
    assert_eq!(soon, [(name(), BudgetTask::Observe(sent))]);
    // The pause has ended, and it was the reason to assume that nothing is left.
    let pause = Observation { available: None, ..observation };
    member.observe(&name(), &pause, NOW).unwrap();
    let sent = Observation { available: Some(Points::ZERO), retry_after: None, age: seconds(31), ..observation };
    assert_eq!(back(&mut member.clone(), NOW + seconds(30)), [(name(), BudgetTask::Observe(sent))]);
    // It is unknown what was spent after it.
    let sent = Observation { available: None, retry_after: None, age: Duration::ZERO, ..observation };
    assert_eq!(back(&mut member, NOW + seconds(90)), [(name(), BudgetTask::Observe(sent))]);
    assert_eq!(member.tasks(NOW + seconds(90)), [(name(), BudgetTask::Report)], "sent once");
}

#[test]
fn heartbeat_rotates_through_all_budgets() {
    let mut member = connected_member(BudgetFallback::Share, &state(1));
    let other = BudgetName::new("rpc").unwrap();
    member.configure(&other, LIMITS).unwrap();
    assert_eq!(member.tasks(NOW), [(other.clone(), BudgetTask::Report)], "it has something to report");
    let report = member.create_report(&other, NOW).unwrap();
    let _ = member.on_reply(&other, &report, &state(1), NOW);
    let round: Vec<_> = (0..3).flat_map(|_| member.tasks(NOW)).map(|(name, _)| name).collect();
    assert_eq!(round, [other.clone(), name(), other]);
}

#[test]
fn what_cannot_be_counted_exactly_is_refused() {
    let mut member = new_member(BudgetFallback::Share);
    let beyond = BudgetMember::MAX.plus(Points::whole(1));
    let refusal = Err(BudgetError::BeyondShared(beyond));
    assert_eq!(member.configure(&name(), BudgetLimits { maximum: beyond, ..LIMITS }), refusal);
    assert_eq!(member.configure(&name(), BudgetLimits { restore_per_second: beyond, ..LIMITS }), refusal);
    let observation = Observation { maximum: Some(beyond), ..Observation::default() };
    assert_eq!(member.check(&name(), &observation), Err(BudgetError::BeyondShared(beyond)));
    let observation = Observation { available: Some(beyond), ..Observation::default() };
    let at_most = Observation { available: Some(BudgetMember::MAX), ..Observation::default() };
    assert_eq!(member.check(&name(), &observation), Ok(at_most));
}

/// Three processes, and the budget that they share.
struct Scene {
    shared: Budget,
    members: Vec<BudgetMember>,
    start: Timestamp,
    /// Time and amount.
    spent: Vec<(Timestamp, i128)>,
    unreported: Vec<Points>,
}

impl Scene {
    fn new() -> Self {
        let partners = vec![connected_member(BudgetFallback::Share, &state(3)); 3];
        let shared = Budget::new(LIMITS, NOW).unwrap();
        Self { shared, members: partners, start: NOW, spent: Vec::new(), unreported: vec![Points::ZERO; 3] }
    }

    /// One member requests to spend. Returns whether the shared budget granted it.
    fn step(&mut self, index: usize, request: SpendRequest, is_reachable: bool, now: Timestamp) -> bool {
        let member = &mut self.members[index];
        let result = if is_reachable {
            let report = member.create_report(&name(), now).unwrap();
            if let Some(spent) = report.spent {
                self.shared.charge(spent.points, now);
                self.unreported[index] = self.unreported[index].minus(spent.points);
            }
            let result = self.shared.acquire(request.cost, request.max_wait, now);
            let state = BudgetState { booked_for: self.shared.booked_for(now), ..state(3) };
            let _ = member.on_reply(&name(), &report, &state, now);
            result
        } else {
            member.on_lost(now);
            member.acquire(&name(), request, now)
        };
        let Ok(BudgetDecision::Allowed { delay, .. }) = result else { return false };
        self.spent.push((now + delay, request.cost.signed()));
        if !is_reachable {
            self.unreported[index] = self.unreported[index].plus(request.cost);
        }
        is_reachable
    }

    fn everything_spent_has_come_back(&self) -> bool {
        let sum: i128 = self.spent.iter().map(|(_, cost)| cost).sum();
        let last = self.spent.iter().map(|(at, _)| *at).max().unwrap_or(self.start);
        let passed = i128::from(last.micros() - self.start.micros());
        sum * 1_000_000 <= LIMITS.maximum.signed() * 1_000_000 + LIMITS.restore_per_second.signed() * passed
    }
}

fn requests() -> impl Strategy<Value = SpendRequest> {
    (0..5_000_000u64, 0..6_000u64).prop_map(|(cost, wait)| SpendRequest {
        cost: Points::from_micros(cost).unwrap(),
        max_wait: Duration::from_millis(wait),
    })
}

proptest! {
    #[test]
    fn reported_spend_must_be_restored_before_the_next_grant(
        steps in proptest::collection::vec((0..1_500_000u64, 0..3usize, requests(), any::<bool>()), 1..80),
    ) {
        let (mut scene, mut now) = (Scene::new(), NOW);
        for (later, who, demand, within_reach) in steps {
            now = now + Duration::from_micros(later);
            let is_shared = scene.step(who, demand, within_reach, now);
            if is_shared && scene.unreported.iter().all(|points| *points == Points::ZERO) {
                prop_assert!(scene.everything_spent_has_come_back());
            }
        }
    }

    #[test]
    fn shares_do_not_overdraw_a_budget_that_all_lose_at_once(
        before in proptest::collection::vec((0..500_000u64, 0..3usize, requests()), 0..40),
        after in proptest::collection::vec((0..1_500_000u64, 0..3usize, requests()), 1..80),
    ) {
        let (mut scene, mut now) = (Scene::new(), NOW);
        for (later, who, demand) in before {
            now = now + Duration::from_micros(later);
            scene.step(who, demand, true, now);
        }
        // Each member knows how far ahead the others have booked.
        for who in 0..3 {
            let nothing = SpendRequest { cost: Points::ZERO, max_wait: seconds(60) };
            scene.step(who, nothing, true, now);
        }
        for (later, who, demand) in after {
            now = now + Duration::from_micros(later);
            scene.step(who, demand, false, now);
            prop_assert!(scene.everything_spent_has_come_back());
        }
    }
}
