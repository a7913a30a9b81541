//! Compares accepted operations with what happened. The only report of the daemon that it trusts is that an operation
//! is finished, and in which state.

use std::collections::{BTreeMap, HashMap};

use guildhall_sim::{EffectScore, Score};

use super::{
    client::{AcceptedOperation, Cancellation, NotFinished, OperationOutcome},
    test_operation::{ExpectedEffect, UnknownOutcomePolicy},
};

/// Effects that accompany an operation without being its own effect.
const AUXILIARY_EFFECTS: [&str; 3] = ["direct_channel", "pin", "interaction"];

/// Result of the check.
#[derive(Clone, Debug, Default)]
pub struct CheckReport {
    pub operations: usize,
    /// Accepted but not finished, or reported as done but not done.
    pub lost: usize,
    /// Effects beyond the requested ones.
    pub duplicates: usize,
    pub out_of_order: usize,
    /// Operations that need review.
    pub needs_review: usize,
    /// Cancelled, and never executed.
    pub cancelled: usize,
    /// Descriptions of all violations.
    pub violations: Vec<String>,
}

impl CheckReport {
    /// Panics if there are violations.
    pub fn assert_ok(&self, label: &str) {
        assert!(self.violations.is_empty(), "{label}: {self:#?}");
    }

    pub fn add(&mut self, other: Self) {
        self.operations += other.operations;
        self.lost += other.lost;
        self.duplicates += other.duplicates;
        self.out_of_order += other.out_of_order;
        self.needs_review += other.needs_review;
        self.cancelled += other.cancelled;
        self.violations.extend(other.violations);
    }
}

/// Compares accepted operations, in the order of acceptance within each queue, with what happened.
pub fn check_outcomes(
    score: &Score,
    accepted: &[AcceptedOperation],
    outcomes: &[Result<OperationOutcome, NotFinished>],
) -> CheckReport {
    let effects: Vec<&EffectScore> = score.effects.values().flatten().collect();
    let roles = effects.iter().filter(|effect| effect.kind == "role" && effect.verb == "create");
    let roles: HashMap<&str, String> = roles.map(|effect| (effect.name.as_str(), effect.object.to_string())).collect();
    let effects_expected: Vec<ExpectedEffect> =
        accepted.iter().map(|accepted| with_role_id(&accepted.operation.effect, &roles)).collect();
    let mut report = CheckReport { operations: accepted.len(), ..CheckReport::default() };
    let happened = match_effects(&effects, accepted, &effects_expected, &mut report);
    for (index, (accepted, outcomes)) in accepted.iter().zip(outcomes).enumerate() {
        let happened = happened.get(&index).copied().unwrap_or(0);
        let description =
            format!("{} {} ({:?})", accepted.operation.kind, accepted.operation.key, effects_expected[index]);
        check_operation(&description, accepted, happened, outcomes, &mut report);
    }
    check_pins(&effects, accepted, &effects_expected, outcomes, &mut report);
    let limited = score.rate_limited.user + score.rate_limited.shared + score.rate_limited.global;
    if limited > 0 {
        report.violations.push(format!("{limited} calls got a 429"));
    }
    if score.overlaps > 0 {
        report.out_of_order += usize::try_from(score.overlaps).unwrap();
        let overlaps = describe_overlaps(score).join("; ");
        report
            .violations
            .push(format!("{} calls arrived while another of their guild was in flight: {overlaps}", score.overlaps));
    }
    if score.effects_not_kept > 0 {
        report.violations.push("the score does not contain everything".to_owned());
    }
    report
}

/// Describes which calls overlapped, if they had effects, and how long they were in flight. A call that outlived its
/// caller's timeout points to a slow machine rather than to the daemon.
fn describe_overlaps(score: &Score) -> Vec<String> {
    let describe = |effect: &EffectScore| format!("{} {} {}", effect.verb, effect.kind, effect.name);
    let mut descriptions = Vec::new();
    for (guild, effects) in &score.effects {
        for later in effects.iter().filter(|effect| effect.overlapped) {
            let under_way = |other: &&EffectScore| {
                other.arrived <= later.arrived && other.answered.is_none_or(|answered_at| answered_at > later.arrived)
            };
            for other in effects.iter().filter(under_way).filter(|other| *other != later) {
                let delay = later.arrived.since(other.arrived);
                let elapsed = other.answered.map(|answered_at| answered_at.since(other.arrived));
                descriptions.push(format!(
                    "in {guild} at {} {} arrived {delay:?} after {}, which took {elapsed:?}",
                    later.arrived.millis(),
                    describe(later),
                    describe(other)
                ));
            }
        }
    }
    descriptions
}

/// Replaces the name of a role by its id.
fn with_role_id(effect: &ExpectedEffect, roles: &HashMap<&str, String>) -> ExpectedEffect {
    let role = effect.name.split_once(":{").and_then(|(user, rest)| {
        let id = roles.get(rest.strip_suffix('}')?)?;
        Some(format!("{user}:{id}"))
    });
    ExpectedEffect { name: role.unwrap_or_else(|| effect.name.clone()), ..effect.clone() }
}

/// Finds the operation of each effect. Returns how often each operation happened.
fn match_effects(
    effects: &[&EffectScore],
    accepted: &[AcceptedOperation],
    expected: &[ExpectedEffect],
    report: &mut CheckReport,
) -> BTreeMap<usize, usize> {
    let mut owners: HashMap<(&str, &str, &str), usize> = HashMap::new();
    for (index, effect_expected) in expected.iter().enumerate() {
        let previous = owners.insert((effect_expected.verb, effect_expected.object_kind, &effect_expected.name), index);
        assert!(previous.is_none(), "two operations have the same effect: {effect_expected:?}");
    }
    let mut happened: BTreeMap<usize, usize> = BTreeMap::new();
    let mut reached: HashMap<&str, usize> = HashMap::new();
    for effect in effects.iter().filter(|effect| !AUXILIARY_EFFECTS.contains(&effect.kind.as_str())) {
        let Some(&owner) = owners.get(&(effect.verb.as_str(), effect.kind.as_str(), effect.name.as_str())) else {
            report.violations.push(format!("unexpected effect: {} {} {}", effect.verb, effect.kind, effect.name));
            continue;
        };
        *happened.entry(owner).or_default() += 1;
        let queue = accepted[owner].operation.queue.as_str();
        let last = reached.entry(queue).or_insert(owner);
        if owner < *last {
            report.out_of_order += 1;
            report.violations.push(format!("{:?} came after {:?} in {queue}", expected[owner], expected[*last]));
        }
        *last = owner.max(*last);
    }
    happened
}

/// Compares the outcome of an operation with how often it happened.
fn check_operation(
    description: &str,
    accepted: &AcceptedOperation,
    happened: usize,
    outcome: &Result<OperationOutcome, NotFinished>,
    report: &mut CheckReport,
) {
    if happened > 1 {
        report.duplicates += happened - 1;
        report.violations.push(format!("{description} happened {happened} times, and its outcome is {outcome:?}"));
    }
    let outcome = match outcome {
        Ok(outcome) => outcome,
        Err(NotFinished(last)) => {
            report.lost += 1;
            report.violations.push(format!("{description} was accepted as {} and did not finish: {last}", accepted.id));
            return;
        }
    };
    let cancellation = accepted.cancellation;
    if cancellation == Cancellation::Confirmed && outcome.state != "cancelled" {
        report.violations.push(format!("{description} was cancelled, but its state is {}", outcome.state));
    }
    match outcome.state.as_str() {
        "cancelled" if cancellation != Cancellation::NotRequested && happened == 0 => report.cancelled += 1,
        "succeeded" if happened == 0 => {
            report.lost += 1;
            report.violations.push(format!("{description} was reported as done, but did not happen"));
        }
        "succeeded" => {}
        "needs_review" => {
            report.needs_review += 1;
            if accepted.operation.unknown_outcome == UnknownOutcomePolicy::Resolved {
                report.violations.push(format!("{description} needs review: {}", outcome.error));
            }
        }
        other => {
            report
                .violations
                .push(format!("{description} is {other} and happened {happened} times: {}", outcome.error));
        }
    }
}

/// Checks that every message that was to be pinned and is reported as done is pinned.
fn check_pins(
    effects: &[&EffectScore],
    accepted: &[AcceptedOperation],
    expected: &[ExpectedEffect],
    outcomes: &[Result<OperationOutcome, NotFinished>],
    report: &mut CheckReport,
) {
    for ((accepted, effect_expected), outcomes) in accepted.iter().zip(expected).zip(outcomes) {
        let done = outcomes.as_ref().is_ok_and(|outcomes| outcomes.state == "succeeded");
        if !done || accepted.operation.payload["pin"] != true {
            continue;
        }
        let sent = effects.iter().find(|effect| effect.kind == "message" && effect.name == effect_expected.name);
        let is_pinned = |message: &&&EffectScore| {
            effects.iter().any(|effect| effect.kind == "pin" && effect.object == message.object)
        };
        if sent.filter(is_pinned).is_none() {
            report.lost += 1;
            report.violations.push(format!("{effect_expected:?} was reported as pinned, but is not"));
        }
    }
}

#[cfg(test)]
mod tests {
    use guildhall_sim::{At, Snowflake};
    use serde_json::json;

    use super::*;
    use crate::crash::test_operation::TestOperation;

    fn role(name: &str) -> AcceptedOperation {
        let effect = ExpectedEffect { verb: "create", object_kind: "role", name: name.to_owned() };
        let (kind, payload, queue) = ("create_role", json!({}), "guild 1".to_owned());
        let operation = TestOperation {
            key: name.to_owned(),
            guild: Some(1),
            queue,
            kind,
            payload,
            effect,
            unknown_outcome: UnknownOutcomePolicy::Resolved,
        };
        AcceptedOperation::new(operation, &json!({ "id": name }))
    }

    fn outcome(state: &str) -> Result<OperationOutcome, NotFinished> {
        Ok(OperationOutcome { state: state.to_owned(), error: String::new() })
    }

    /// The report if these two roles are requested in order, both are reported in this state, and these were created.
    fn check_roles(state: &str, created: &[&str]) -> CheckReport {
        let effects = created.iter().map(|name| EffectScore {
            arrived: At::from_micros(0),
            at: At::from_micros(0),
            answered: None,
            verb: "create".to_owned(),
            kind: "role".to_owned(),
            object: Snowflake::new(7),
            name: (*name).to_owned(),
            overlapped: false,
        });
        let effects = BTreeMap::from([("1".to_owned(), effects.collect())]);
        let score = Score { effects, ..Score::default() };
        check_outcomes(&score, &[role("a"), role("b")], &[outcome(state), outcome(state)])
    }

    #[test]
    fn checker_reports_every_kind_of_violation() {
        check_roles("succeeded", &["a", "b"]).assert_ok("no violations");
        let counts =
            |report: CheckReport| (report.lost, report.duplicates, report.out_of_order, report.violations.len());
        assert_eq!(counts(check_roles("succeeded", &["a"])), (1, 0, 0, 1));
        assert_eq!(counts(check_roles("succeeded", &["a", "a", "b"])), (0, 1, 0, 1));
        assert_eq!(counts(check_roles("succeeded", &["b", "a"])), (0, 0, 1, 1));
        assert_eq!(counts(check_roles("succeeded", &["a", "b", "c"])), (0, 0, 0, 1));
        assert_eq!(counts(check_roles("dead", &[])), (0, 0, 0, 2));
        assert_eq!(counts(check_roles("cancelled", &[])), (0, 0, 0, 2), "they were not cancelled by a caller");
        assert_eq!(counts(check_roles("needs_review", &["a"])), (0, 0, 0, 2));
        let nowhere = check_outcomes(&Score::default(), &[role("a")], &[Err(NotFinished("queued".to_owned()))]);
        assert_eq!(counts(nowhere), (1, 0, 0, 1));
    }
}
