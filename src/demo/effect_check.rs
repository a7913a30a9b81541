//! Compares the expected effects with those that the simulator recorded.

use std::collections::{BTreeMap, HashMap};

use guildhall_sim::{EffectScore, Score, Snowflake};

use super::operation::{DemoOperation, ExpectedEffect};

/// Result of the comparison.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct EffectReport {
    /// Effects that took place.
    pub(crate) found: u64,
    /// Effects that did not take place, as text.
    pub(crate) lost: Vec<String>,
    /// Effects beyond the first of one kind, name and guild.
    pub(crate) duplicates: u64,
    /// Effects that took place before one of the same guild that was accepted earlier.
    pub(crate) out_of_order: u64,
}

/// Compares the operations with the simulator's score. Within a guild the operations are in the order in which they
/// were accepted.
pub(crate) fn check_effects(expected: &BTreeMap<Snowflake, Vec<DemoOperation>>, score: &Score) -> EffectReport {
    let mut report = EffectReport { duplicates: score.duplicates, ..EffectReport::default() };
    for (guild, operations) in expected {
        let effects = score.effects.get(&guild.to_string()).map_or(&[][..], Vec::as_slice);
        let mut positions = HashMap::new();
        for (position, operation) in operations.iter().enumerate() {
            match label(&operation.effect, effects) {
                Some(label) if effects.iter().any(|effect| matches_label(effect, &label)) => {
                    report.found += 1;
                    if is_ordered(&operation.effect) {
                        positions.insert(label, position);
                    }
                }
                Some(_) | None => report.lost.push(format!("{:?} in guild {guild}", operation.effect)),
            }
        }
        let mut latest = 0;
        for effect in effects {
            let label = EffectLabel { verb: &effect.verb, kind: &effect.kind, name: effect.name.clone() };
            let Some(position) = positions.remove(&label) else { continue };
            report.out_of_order += u64::from(position < latest);
            latest = latest.max(position);
        }
    }
    report
}

/// Whether the effect is ordered within its guild; responses to interactions are not.
fn is_ordered(effect: &ExpectedEffect) -> bool {
    match effect {
        ExpectedEffect::Role(_)
        | ExpectedEffect::Channel(_)
        | ExpectedEffect::Message(_)
        | ExpectedEffect::RoleAssigned { .. }
        | ExpectedEffect::PermissionsSet { .. } => true,
        ExpectedEffect::Deferred | ExpectedEffect::Edited(_) => false,
    }
}

/// An effect as the score identifies it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct EffectLabel<'a> {
    verb: &'a str,
    kind: &'a str,
    name: String,
}

fn matches_label(effect: &EffectScore, label: &EffectLabel<'_>) -> bool {
    effect.verb == label.verb && effect.kind == label.kind && effect.name == label.name
}

/// The label of an effect in the score; `None` if it refers to an object that does not exist.
fn label(effect: &ExpectedEffect, effects: &[EffectScore]) -> Option<EffectLabel<'static>> {
    let id = |kind: &str, name: &str| {
        let created_effect =
            effects.iter().find(|effect| effect.verb == "create" && effect.kind == kind && effect.name == name);
        created_effect.map(|effect| effect.object)
    };
    let created = |kind, name| EffectLabel { verb: "create", kind, name };
    Some(match effect {
        ExpectedEffect::Role(name) => created("role", name.clone()),
        ExpectedEffect::Channel(name) => created("channel", name.clone()),
        ExpectedEffect::Message(content) => created("message", content.clone()),
        ExpectedEffect::RoleAssigned { user, role } => created("member_role", format!("{user}:{}", id("role", role)?)),
        ExpectedEffect::PermissionsSet { channel, role } => {
            created("overwrite", format!("{}:{}", id("channel", channel)?, id("role", role)?))
        }
        ExpectedEffect::Deferred => created("interaction", String::new()),
        ExpectedEffect::Edited(content) => EffectLabel { verb: "update", kind: "message", name: content.clone() },
    })
}

#[cfg(test)]
mod tests {
    use guildhall_sim::At;
    use serde_json::Value;

    use super::*;

    const GUILD: Snowflake = Snowflake::new(1);

    fn task(effect: ExpectedEffect) -> DemoOperation {
        DemoOperation { kind: "read", payload: Value::Null, key: String::new(), effect }
    }

    fn effect(kind: &str, object: u64, name: &str) -> EffectScore {
        EffectScore {
            arrived: At::from_micros(0),
            at: At::from_micros(0),
            answered: None,
            verb: "create".to_owned(),
            kind: kind.to_owned(),
            object: Snowflake::new(object),
            name: name.to_owned(),
            overlapped: false,
        }
    }

    fn check(effects: Vec<EffectScore>) -> EffectReport {
        let expected_effects = [
            ExpectedEffect::Role("a".to_owned()),
            ExpectedEffect::RoleAssigned { user: Snowflake::new(7), role: "a".to_owned() },
            ExpectedEffect::Channel("b".to_owned()),
            ExpectedEffect::PermissionsSet { channel: "b".to_owned(), role: "a".to_owned() },
        ];
        let expected = BTreeMap::from([(GUILD, expected_effects.map(task).to_vec())]);
        let score = Score { effects: BTreeMap::from([(GUILD.to_string(), effects)]), ..Score::default() };
        check_effects(&expected, &score)
    }

    fn all_effects() -> Vec<EffectScore> {
        vec![
            effect("role", 10, "a"),
            effect("member_role", 10, "7:10"),
            effect("channel", 11, "b"),
            effect("overwrite", 10, "11:10"),
        ]
    }

    #[test]
    fn all_effects_are_found_in_order() {
        assert_eq!(check(all_effects()), EffectReport { found: 4, ..EffectReport::default() });
    }

    #[test]
    fn missing_effect_is_reported_as_lost() {
        let mut effects = all_effects();
        effects.remove(1);
        let report = check(effects);
        assert_eq!((report.found, report.lost.len()), (3, 1));
        assert!(report.lost[0].contains("RoleAssigned"), "{:?}", report.lost);
        assert_eq!(check(Vec::new()).lost.len(), 4, "effects that depend on a lost one are lost, too");
    }

    #[test]
    fn swapped_effects_are_out_of_order() {
        let mut effects = all_effects();
        effects.swap(1, 2);
        assert_eq!(check(effects).out_of_order, 1);
    }
}
