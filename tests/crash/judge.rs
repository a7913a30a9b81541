//! Compares accepted operations with what happened. The only report of the daemon that it trusts is that an operation
//! is finished, and in which state.

use std::collections::{BTreeMap, HashMap};

use guildhall_sim::{EffectScore, Score};

use crate::{
    caller::{Accepted, Became, Nowhere, TakenBack},
    errand::{Doubt, Sign},
};

/// Effects that accompany an operation without being its own effect.
const BY_THE_WAY: [&str; 3] = ["direct_channel", "pin", "interaction"];

/// Result of the check.
#[derive(Clone, Debug, Default)]
pub(crate) struct Finding {
    pub(crate) operations: usize,
    /// Accepted but not finished, or reported as done but not done.
    pub(crate) lost: usize,
    /// Effects beyond the requested ones.
    pub(crate) duplicates: usize,
    pub(crate) out_of_order: usize,
    /// Operations that need review.
    pub(crate) reviewed: usize,
    /// Cancelled, and never executed.
    pub(crate) cancelled: usize,
    /// Descriptions of all violations.
    pub(crate) wrong: Vec<String>,
}

impl Finding {
    /// Panics if there are violations.
    pub(crate) fn holds(&self, of: &str) {
        assert!(self.wrong.is_empty(), "{of}: {self:#?}");
    }

    pub(crate) fn add(&mut self, other: Self) {
        self.operations += other.operations;
        self.lost += other.lost;
        self.duplicates += other.duplicates;
        self.out_of_order += other.out_of_order;
        self.reviewed += other.reviewed;
        self.cancelled += other.cancelled;
        self.wrong.extend(other.wrong);
    }
}

/// Compares accepted operations, in the order of acceptance within each queue, with what happened.
pub(crate) fn judge(score: &Score, accepted: &[Accepted], became: &[Result<Became, Nowhere>]) -> Finding {
    let effects: Vec<&EffectScore> = score.effects.values().flatten().collect();
    let roles = effects.iter().filter(|effect| effect.kind == "role" && effect.verb == "create");
    let roles: HashMap<&str, String> = roles.map(|effect| (effect.name.as_str(), effect.object.to_string())).collect();
    let signs: Vec<Sign> = accepted.iter().map(|accepted| resolved(&accepted.errand.sign, &roles)).collect();
    let mut finding = Finding { operations: accepted.len(), ..Finding::default() };
    let happened = in_order(&effects, accepted, &signs, &mut finding);
    for (index, (accepted, became)) in accepted.iter().zip(became).enumerate() {
        let happened = happened.get(&index).copied().unwrap_or(0);
        let what = format!("{} {} ({:?})", accepted.errand.kind, accepted.errand.key, signs[index]);
        one(&what, accepted, happened, became, &mut finding);
    }
    unpinned(&effects, accepted, &signs, became, &mut finding);
    let limited = score.rate_limited.user + score.rate_limited.shared + score.rate_limited.global;
    if limited > 0 {
        finding.wrong.push(format!("{limited} calls got a 429"));
    }
    if score.overlaps > 0 {
        finding.out_of_order += usize::try_from(score.overlaps).unwrap();
        let met = meetings(score).join("; ");
        finding
            .wrong
            .push(format!("{} calls arrived while another of their guild was in flight: {met}", score.overlaps));
    }
    if score.effects_not_kept > 0 {
        finding.wrong.push("the score does not contain everything".to_owned());
    }
    finding
}

/// Describes which calls overlapped, if they had effects, and how long they were in flight. A call that outlived its
/// caller's timeout points to a slow machine rather than to the daemon.
fn meetings(score: &Score) -> Vec<String> {
    let named = |effect: &EffectScore| format!("{} {} {}", effect.verb, effect.kind, effect.name);
    let mut told = Vec::new();
    for (guild, effects) in &score.effects {
        for late in effects.iter().filter(|effect| effect.overlapped) {
            let under_way = |other: &&EffectScore| {
                other.arrived <= late.arrived && other.answered.is_none_or(|answered| answered > late.arrived)
            };
            for other in effects.iter().filter(under_way).filter(|other| *other != late) {
                let before = late.arrived.since(other.arrived);
                let took = other.answered.map(|answered| answered.since(other.arrived));
                told.push(format!(
                    "in {guild} at {} {} arrived {before:?} after {}, which took {took:?}",
                    late.arrived.millis(),
                    named(late),
                    named(other)
                ));
            }
        }
    }
    told
}

/// Replaces the name of a role by its id.
fn resolved(sign: &Sign, roles: &HashMap<&str, String>) -> Sign {
    let role = sign.name.split_once(":{").and_then(|(user, rest)| {
        let id = roles.get(rest.strip_suffix('}')?)?;
        Some(format!("{user}:{id}"))
    });
    Sign { name: role.unwrap_or_else(|| sign.name.clone()), ..sign.clone() }
}

/// Finds the operation of each effect. Returns how often each operation happened.
fn in_order(
    effects: &[&EffectScore],
    accepted: &[Accepted],
    signs: &[Sign],
    finding: &mut Finding,
) -> BTreeMap<usize, usize> {
    let mut owners: HashMap<(&str, &str, &str), usize> = HashMap::new();
    for (index, sign) in signs.iter().enumerate() {
        let before = owners.insert((sign.verb, sign.what, &sign.name), index);
        assert!(before.is_none(), "two operations have the same effect: {sign:?}");
    }
    let mut happened: BTreeMap<usize, usize> = BTreeMap::new();
    let mut reached: HashMap<&str, usize> = HashMap::new();
    for effect in effects.iter().filter(|effect| !BY_THE_WAY.contains(&effect.kind.as_str())) {
        let Some(&owner) = owners.get(&(effect.verb.as_str(), effect.kind.as_str(), effect.name.as_str())) else {
            finding.wrong.push(format!("unexpected effect: {} {} {}", effect.verb, effect.kind, effect.name));
            continue;
        };
        *happened.entry(owner).or_default() += 1;
        let line = accepted[owner].errand.line.as_str();
        let last = reached.entry(line).or_insert(owner);
        if owner < *last {
            finding.out_of_order += 1;
            finding.wrong.push(format!("{:?} came after {:?} in {line}", signs[owner], signs[*last]));
        }
        *last = owner.max(*last);
    }
    happened
}

/// Compares the outcome of an operation with how often it happened.
fn one(what: &str, accepted: &Accepted, happened: usize, became: &Result<Became, Nowhere>, finding: &mut Finding) {
    if happened > 1 {
        finding.duplicates += happened - 1;
        finding.wrong.push(format!("{what} happened {happened} times, and its outcome is {became:?}"));
    }
    let became = match became {
        Ok(became) => became,
        Err(Nowhere(last)) => {
            finding.lost += 1;
            finding.wrong.push(format!("{what} was accepted as {} and did not finish: {last}", accepted.id));
            return;
        }
    };
    let taken_back = accepted.taken_back;
    if taken_back == TakenBack::Yes && became.state != "cancelled" {
        finding.wrong.push(format!("{what} was cancelled, but its state is {}", became.state));
    }
    match became.state.as_str() {
        "cancelled" if taken_back != TakenBack::No && happened == 0 => finding.cancelled += 1,
        "succeeded" if happened == 0 => {
            finding.lost += 1;
            finding.wrong.push(format!("{what} was reported as done, but did not happen"));
        }
        "succeeded" => {}
        "needs_review" => {
            finding.reviewed += 1;
            if accepted.errand.doubt == Doubt::Cleared {
                finding.wrong.push(format!("{what} needs review: {}", became.error));
            }
        }
        other => finding.wrong.push(format!("{what} is {other} and happened {happened} times: {}", became.error)),
    }
}

/// Checks that every message that was to be pinned and is reported as done is pinned.
fn unpinned(
    effects: &[&EffectScore],
    accepted: &[Accepted],
    signs: &[Sign],
    became: &[Result<Became, Nowhere>],
    finding: &mut Finding,
) {
    for ((accepted, sign), became) in accepted.iter().zip(signs).zip(became) {
        let done = became.as_ref().is_ok_and(|became| became.state == "succeeded");
        if !done || accepted.errand.payload["pin"] != true {
            continue;
        }
        let sent = effects.iter().find(|effect| effect.kind == "message" && effect.name == sign.name);
        let pins = |message: &&&EffectScore| {
            effects.iter().any(|effect| effect.kind == "pin" && effect.object == message.object)
        };
        if sent.filter(pins).is_none() {
            finding.lost += 1;
            finding.wrong.push(format!("{sign:?} was reported as pinned, but is not"));
        }
    }
}

#[cfg(test)]
mod tests {
    use guildhall_sim::{At, Snowflake};
    use serde_json::json;

    use super::*;
    use crate::errand::Errand;

    fn role(name: &str) -> Accepted {
        let sign = Sign { verb: "create", what: "role", name: name.to_owned() };
        let (kind, payload, line) = ("create_role", json!({}), "guild 1".to_owned());
        let errand = Errand { key: name.to_owned(), guild: Some(1), line, kind, payload, sign, doubt: Doubt::Cleared };
        Accepted::new(errand, &json!({ "id": name }))
    }

    fn became(state: &str) -> Result<Became, Nowhere> {
        Ok(Became { state: state.to_owned(), error: String::new() })
    }

    /// The report if these two roles are requested in order, both are reported in this state, and these were created.
    fn found(state: &str, made: &[&str]) -> Finding {
        let effects = made.iter().map(|name| EffectScore {
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
        judge(&score, &[role("a"), role("b")], &[became(state), became(state)])
    }

    #[test]
    fn the_judge_sees_what_is_lost_doubled_out_of_order_unasked_and_given_up() {
        found("succeeded", &["a", "b"]).holds("no violations");
        let counts = |finding: Finding| (finding.lost, finding.duplicates, finding.out_of_order, finding.wrong.len());
        assert_eq!(counts(found("succeeded", &["a"])), (1, 0, 0, 1));
        assert_eq!(counts(found("succeeded", &["a", "a", "b"])), (0, 1, 0, 1));
        assert_eq!(counts(found("succeeded", &["b", "a"])), (0, 0, 1, 1));
        assert_eq!(counts(found("succeeded", &["a", "b", "c"])), (0, 0, 0, 1));
        assert_eq!(counts(found("dead", &[])), (0, 0, 0, 2));
        assert_eq!(counts(found("cancelled", &[])), (0, 0, 0, 2), "they were not cancelled by a caller");
        assert_eq!(counts(found("needs_review", &["a"])), (0, 0, 0, 2));
        let nowhere = judge(&Score::default(), &[role("a")], &[Err(Nowhere("queued".to_owned()))]);
        assert_eq!(counts(nowhere), (1, 0, 0, 1));
    }
}
