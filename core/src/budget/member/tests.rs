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

fn partner(on_loss: BudgetFallback) -> BudgetMember {
    let mut partner =
        BudgetMember::new(BudgetMemberConfig { most: 2, longest_wait: seconds(60), on_loss, retry_after: RETRY });
    partner.configure(&name(), LIMITS).unwrap();
    partner
}

fn standing(members: u32) -> BudgetState {
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
fn acquainted(on_loss: BudgetFallback, standing: &BudgetState) -> BudgetMember {
    let mut partner = partner(on_loss);
    let tidings = partner.tidings(&name(), NOW).unwrap();
    assert_eq!(partner.heard(&name(), &tidings, standing, NOW), Reachability::Still);
    partner
}

fn take(partner: &mut BudgetMember, cost: u64, max_wait: u64, now: Timestamp) -> Result<BudgetDecision, BudgetError> {
    let ask = partner.ask(Points::whole(cost), seconds(max_wait));
    partner.acquire(&name(), ask, now)
}

fn out_of_reach(why: BudgetUnreachable) -> Result<BudgetDecision, BudgetError> {
    Err(BudgetError::OutOfReach { why, retry_after: RETRY })
}

fn refused(retry_ms: u64) -> Result<BudgetDecision, BudgetError> {
    Ok(BudgetDecision::Refused { retry_after: Some(Duration::from_millis(retry_ms)), remaining: Points::ZERO })
}

#[test]
fn a_share_starts_empty_when_the_budget_is_lost_and_comes_back_at_a_share_of_the_rate() {
    let mut partner = acquainted(BudgetFallback::Share, &standing(3));
    assert!(partner.lost(NOW));
    assert!(!partner.lost(NOW + seconds(1)), "it is lost once");
    assert_eq!(take(&mut partner, 2, 0, NOW), refused(2_000));
    let later = NOW + seconds(2);
    assert!(matches!(take(&mut partner, 2, 0, later), Ok(BudgetDecision::Allowed { delay: Duration::ZERO, .. })));
    // Four is a third of the maximum of the whole budget.
    let much_later = NOW + seconds(100);
    let above = BudgetUnreachable::AboveShare { cost: Points::whole(5), share: Points::whole(4) };
    assert_eq!(take(&mut partner, 5, 60, much_later), out_of_reach(above));
    assert_eq!(partner.snapshot(&name(), much_later).unwrap().available, Points::whole(4));
    let never = BudgetError::CostAboveMaximum { cost: Points::whole(13), maximum: LIMITS.maximum };
    assert_eq!(take(&mut partner, 13, 60, much_later), Err(never));
}

#[test]
fn a_share_begins_after_all_that_is_booked_and_after_the_upstreams_pause() {
    let mut partner = acquainted(BudgetFallback::Share, &BudgetState { booked_for: seconds(5), ..standing(3) });
    partner.lost(NOW);
    assert_eq!(take(&mut partner, 1, 0, NOW), refused(6_000));
    let mut partner = acquainted(BudgetFallback::Share, &BudgetState { blocked_for: seconds(7), ..standing(3) });
    partner.lost(NOW);
    assert_eq!(take(&mut partner, 1, 0, NOW), refused(8_000));
}

#[test]
fn the_share_is_that_of_the_largest_number_lately_heard_of() {
    let mut partner = acquainted(BudgetFallback::Share, &standing(6));
    let hear = |partner: &mut BudgetMember, members, now| {
        let tidings = partner.tidings(&name(), now).unwrap();
        let _ = partner.heard(&name(), &tidings, &standing(members), now);
    };
    let tidings = partner.tidings(&name(), NOW).unwrap();
    let _ = partner.heard(&name(), &tidings, &BudgetState { members: None, ..standing(6) }, NOW);
    hear(&mut partner, 2, NOW + seconds(1));
    let mut soon = partner.clone();
    soon.lost(NOW + seconds(1));
    assert_eq!(soon.snapshot(&name(), NOW + seconds(1)).unwrap().limits, LIMITS.share(6));
    hear(&mut partner, 2, NOW + seconds(61));
    partner.lost(NOW + seconds(61));
    assert_eq!(partner.snapshot(&name(), NOW + seconds(61)).unwrap().limits, LIMITS.share(2));
}

#[test]
fn nothing_is_spent_of_a_budget_that_was_never_reached_unless_the_promise_is_given_up() {
    for on_loss in [BudgetFallback::Share, BudgetFallback::Closed] {
        let mut partner = partner(on_loss);
        partner.lost(NOW);
        assert_eq!(take(&mut partner, 1, 60, NOW + seconds(60)), out_of_reach(BudgetUnreachable::Never));
    }
    let mut partner = partner(BudgetFallback::Open);
    partner.lost(NOW);
    let whole = BudgetDecision::Allowed { delay: Duration::ZERO, remaining: Points::ZERO };
    assert_eq!(take(&mut partner, 12, 0, NOW), Ok(whole));
}

#[test]
fn a_closed_budget_refuses_and_says_why_and_when_to_come_back() {
    let mut partner = acquainted(BudgetFallback::Closed, &standing(2));
    partner.lost(NOW);
    let error = take(&mut partner, 1, 60, NOW + seconds(60)).unwrap_err();
    assert_eq!(error.retry_after(), Some(RETRY));
    let says = "the shared budget is unreachable, and nothing may be spent from it meanwhile; try again in 1s";
    assert_eq!(error.to_string(), says);
    assert_eq!(partner.snapshot(&name(), NOW).unwrap().kept, BudgetSource::Meanwhile);
}

#[test]
fn what_was_spent_out_of_reach_is_told_under_one_number_until_it_was_heard() {
    let mut partner = acquainted(BudgetFallback::Share, &standing(1));
    partner.lost(NOW);
    let later = NOW + seconds(4);
    let _ = take(&mut partner, 5, 0, later).unwrap();
    let first = partner.tidings(&name(), later).unwrap();
    assert_eq!(first.spent, Some(OfflineSpend { number: 1, points: Points::whole(5) }));
    // The report was lost; more is spent, and the pending report does not change.
    let _ = take(&mut partner, 6, 0, later).unwrap();
    let again = partner.tidings(&name(), later).unwrap();
    assert_eq!(again.spent, first.spent);
    assert_eq!(partner.heard(&name(), &again, &standing(1), later), Reachability::Again(seconds(4)));
    let rest = partner.tidings(&name(), later).unwrap();
    assert_eq!(rest.spent, Some(OfflineSpend { number: 2, points: Points::whole(6) }));
    assert_eq!(partner.errands(later), [(name(), BudgetTask::Tell)]);
    assert_eq!(partner.heard(&name(), &rest, &standing(1), later), Reachability::Still);
    assert_eq!(partner.tidings(&name(), later).unwrap().spent, None);
}

#[test]
fn defaults_are_told_until_they_were_heard_and_what_was_heard_is_told_after() {
    let mut partner = partner(BudgetFallback::Share);
    let first = partner.tidings(&name(), NOW).unwrap();
    assert_eq!((first.configure, &first.epoch, first.limits), (Some(LIMITS), &None, LIMITS));
    let other = BudgetLimits { maximum: Points::whole(20), ..LIMITS };
    partner.configure(&name(), other).unwrap();
    let upstreams = BudgetLimits { maximum: Points::whole(50), ..LIMITS };
    let observed = ObservedLimits { maximum: true, restore: false };
    let seen = BudgetState { limits: upstreams, observed, booked_for: seconds(9), ..standing(1) };
    let _ = partner.heard(&name(), &first, &seen, NOW);
    let second = partner.tidings(&name(), NOW + seconds(4)).unwrap();
    assert_eq!(second.configure, Some(other), "the reply was for the earlier defaults");
    assert_eq!((second.limits, second.observed, second.booked_for), (upstreams, observed, seconds(5)));
    assert_eq!(second.epoch, Some(BudgetEpoch::new("first")));
    let _ = partner.heard(&name(), &second, &seen, NOW);
    assert_eq!(partner.tidings(&name(), NOW).unwrap().configure, None);
}

#[test]
fn an_upstreams_word_counts_for_the_share_and_is_passed_on_as_old_as_it_is() {
    let mut partner = acquainted(BudgetFallback::Share, &standing(3));
    partner.lost(NOW);
    let available = Some(Points::whole(9));
    let word = Observation { available, retry_after: Some(seconds(20)), age: seconds(1), ..Observation::default() };
    partner.observe(&name(), &word, NOW).unwrap();
    assert_eq!(take(&mut partner, 3, 0, NOW), refused(20_000));
    assert_eq!(partner.errands(NOW), [(name(), BudgetTask::Tell)], "while unreachable, the only task is a probe");
    let back = |partner: &mut BudgetMember, now| {
        let tidings = partner.tidings(&name(), now).unwrap();
        assert!(matches!(partner.heard(&name(), &tidings, &standing(3), now), Reachability::Again(_)));
        partner.errands(now)
    };
    let told = Observation { retry_after: Some(seconds(15)), age: seconds(6), ..word };
    let soon = back(&mut partner.clone(), NOW + seconds(5));
    assert_eq!(soon, [(name(), BudgetTask::Observe(told))]);
    // The pause has ended, and it was the reason to assume that nothing is left.
    let pause = Observation { available: None, ..word };
    partner.observe(&name(), &pause, NOW).unwrap();
    let told = Observation { available: Some(Points::ZERO), retry_after: None, age: seconds(31), ..word };
    assert_eq!(back(&mut partner.clone(), NOW + seconds(30)), [(name(), BudgetTask::Observe(told))]);
    // It is unknown what was spent after it.
    let told = Observation { available: None, retry_after: None, age: Duration::ZERO, ..word };
    assert_eq!(back(&mut partner, NOW + seconds(90)), [(name(), BudgetTask::Observe(told))]);
    assert_eq!(partner.errands(NOW + seconds(90)), [(name(), BudgetTask::Tell)], "sent once");
}

#[test]
fn a_sign_of_life_goes_round_all_budgets() {
    let mut partner = acquainted(BudgetFallback::Share, &standing(1));
    let other = BudgetName::new("rpc").unwrap();
    partner.configure(&other, LIMITS).unwrap();
    assert_eq!(partner.errands(NOW), [(other.clone(), BudgetTask::Tell)], "it has something to report");
    let tidings = partner.tidings(&other, NOW).unwrap();
    let _ = partner.heard(&other, &tidings, &standing(1), NOW);
    let round: Vec<_> = (0..3).flat_map(|_| partner.errands(NOW)).map(|(name, _)| name).collect();
    assert_eq!(round, [other.clone(), name(), other]);
}

#[test]
fn what_cannot_be_counted_exactly_is_refused() {
    let mut partner = partner(BudgetFallback::Share);
    let beyond = BudgetMember::MOST.plus(Points::whole(1));
    let refusal = Err(BudgetError::BeyondShared(beyond));
    assert_eq!(partner.configure(&name(), BudgetLimits { maximum: beyond, ..LIMITS }), refusal);
    assert_eq!(partner.configure(&name(), BudgetLimits { restore_per_second: beyond, ..LIMITS }), refusal);
    let word = Observation { maximum: Some(beyond), ..Observation::default() };
    assert_eq!(partner.check(&name(), &word), Err(BudgetError::BeyondShared(beyond)));
    let word = Observation { available: Some(beyond), ..Observation::default() };
    let at_most = Observation { available: Some(BudgetMember::MOST), ..Observation::default() };
    assert_eq!(partner.check(&name(), &word), Ok(at_most));
}

/// Three processes, and the budget that they share.
struct Scene {
    shared: Budget,
    partners: Vec<BudgetMember>,
    start: Timestamp,
    /// Time and amount.
    spent: Vec<(Timestamp, i128)>,
    unreported: Vec<Points>,
}

impl Scene {
    fn new() -> Self {
        let partners = vec![acquainted(BudgetFallback::Share, &standing(3)); 3];
        let shared = Budget::new(LIMITS, NOW).unwrap();
        Self { shared, partners, start: NOW, spent: Vec::new(), unreported: vec![Points::ZERO; 3] }
    }

    /// One member requests to spend. Returns whether the shared budget granted it.
    fn step(&mut self, who: usize, ask: SpendRequest, within_reach: bool, now: Timestamp) -> bool {
        let partner = &mut self.partners[who];
        let asked = if within_reach {
            let tidings = partner.tidings(&name(), now).unwrap();
            if let Some(spent) = tidings.spent {
                self.shared.charge(spent.points, now);
                self.unreported[who] = self.unreported[who].minus(spent.points);
            }
            let asked = self.shared.acquire(ask.cost, ask.max_wait, now);
            let standing = BudgetState { booked_for: self.shared.booked_for(now), ..standing(3) };
            let _ = partner.heard(&name(), &tidings, &standing, now);
            asked
        } else {
            partner.lost(now);
            partner.acquire(&name(), ask, now)
        };
        let Ok(BudgetDecision::Allowed { delay, .. }) = asked else { return false };
        self.spent.push((now + delay, ask.cost.signed()));
        if !within_reach {
            self.unreported[who] = self.unreported[who].plus(ask.cost);
        }
        within_reach
    }

    fn everything_spent_has_come_back(&self) -> bool {
        let sum: i128 = self.spent.iter().map(|(_, cost)| cost).sum();
        let last = self.spent.iter().map(|(at, _)| *at).max().unwrap_or(self.start);
        let passed = i128::from(last.micros() - self.start.micros());
        sum * 1_000_000 <= LIMITS.maximum.signed() * 1_000_000 + LIMITS.restore_per_second.signed() * passed
    }
}

fn asks() -> impl Strategy<Value = SpendRequest> {
    (0..5_000_000u64, 0..6_000u64).prop_map(|(cost, wait)| SpendRequest {
        cost: Points::from_micros(cost).unwrap(),
        max_wait: Duration::from_millis(wait),
    })
}

proptest! {
    #[test]
    fn once_all_have_told_what_they_spent_nobody_goes_before_it_has_come_back(
        steps in proptest::collection::vec((0..1_500_000u64, 0..3usize, asks(), any::<bool>()), 1..80),
    ) {
        let (mut scene, mut now) = (Scene::new(), NOW);
        for (later, who, ask, within_reach) in steps {
            now = now + Duration::from_micros(later);
            let is_shared = scene.step(who, ask, within_reach, now);
            if is_shared && scene.unreported.iter().all(|points| *points == Points::ZERO) {
                prop_assert!(scene.everything_spent_has_come_back());
            }
        }
    }

    #[test]
    fn a_budget_that_all_lose_at_once_is_not_overdrawn_by_their_shares(
        before in proptest::collection::vec((0..500_000u64, 0..3usize, asks()), 0..40),
        after in proptest::collection::vec((0..1_500_000u64, 0..3usize, asks()), 1..80),
    ) {
        let (mut scene, mut now) = (Scene::new(), NOW);
        for (later, who, ask) in before {
            now = now + Duration::from_micros(later);
            scene.step(who, ask, true, now);
        }
        // Each member knows how far ahead the others have booked.
        for who in 0..3 {
            let nothing = SpendRequest { cost: Points::ZERO, max_wait: seconds(60) };
            scene.step(who, nothing, true, now);
        }
        for (later, who, ask) in after {
            now = now + Duration::from_micros(later);
            scene.step(who, ask, false, now);
            prop_assert!(scene.everything_spent_has_come_back());
        }
    }
}
