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
pub(crate) fn judge(asked: &BTreeMap<Snowflake, Vec<DemoOperation>>, score: &Score) -> EffectReport {
    let mut verdict = EffectReport { duplicates: score.duplicates, ..EffectReport::default() };
    for (guild, tasks) in asked {
        let effects = score.effects.get(&guild.to_string()).map_or(&[][..], Vec::as_slice);
        let mut places = HashMap::new();
        for (place, task) in tasks.iter().enumerate() {
            match label(&task.effect, effects) {
                Some(label) if effects.iter().any(|effect| is(effect, &label)) => {
                    verdict.found += 1;
                    if in_line(&task.effect) {
                        places.insert(label, place);
                    }
                }
                Some(_) | None => verdict.lost.push(format!("{:?} in guild {guild}", task.effect)),
            }
        }
        let mut latest = 0;
        for effect in effects {
            let label = EffectLabel { verb: &effect.verb, kind: &effect.kind, name: effect.name.clone() };
            let Some(place) = places.remove(&label) else { continue };
            verdict.out_of_order += u64::from(place < latest);
            latest = latest.max(place);
        }
    }
    verdict
}

/// Whether the effect is ordered within its guild; responses to interactions are not.
fn in_line(effect: &ExpectedEffect) -> bool {
    match effect {
        ExpectedEffect::Role(_)
        | ExpectedEffect::Channel(_)
        | ExpectedEffect::Message(_)
        | ExpectedEffect::Given { .. }
        | ExpectedEffect::Allowed { .. } => true,
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

fn is(effect: &EffectScore, label: &EffectLabel<'_>) -> bool {
    effect.verb == label.verb && effect.kind == label.kind && effect.name == label.name
}

/// The label of an effect in the score; `None` if it refers to an object that does not exist.
fn label(effect: &ExpectedEffect, effects: &[EffectScore]) -> Option<EffectLabel<'static>> {
    let id = |kind: &str, name: &str| {
        let made = effects.iter().find(|effect| effect.verb == "create" && effect.kind == kind && effect.name == name);
        made.map(|effect| effect.object)
    };
    let created = |kind, name| EffectLabel { verb: "create", kind, name };
    Some(match effect {
        ExpectedEffect::Role(name) => created("role", name.clone()),
        ExpectedEffect::Channel(name) => created("channel", name.clone()),
        ExpectedEffect::Message(content) => created("message", content.clone()),
        ExpectedEffect::Given { user, role } => created("member_role", format!("{user}:{}", id("role", role)?)),
        ExpectedEffect::Allowed { channel, role } => {
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

    fn took(kind: &str, object: u64, name: &str) -> EffectScore {
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

    fn judged(effects: Vec<EffectScore>) -> EffectReport {
        let tasks = [
            ExpectedEffect::Role("a".to_owned()),
            ExpectedEffect::Given { user: Snowflake::new(7), role: "a".to_owned() },
            ExpectedEffect::Channel("b".to_owned()),
            ExpectedEffect::Allowed { channel: "b".to_owned(), role: "a".to_owned() },
        ];
        let asked = BTreeMap::from([(GUILD, tasks.map(task).to_vec())]);
        let score = Score { effects: BTreeMap::from([(GUILD.to_string(), effects)]), ..Score::default() };
        judge(&asked, &score)
    }

    fn all() -> Vec<EffectScore> {
        vec![
            took("role", 10, "a"),
            took("member_role", 10, "7:10"),
            took("channel", 11, "b"),
            took("overwrite", 10, "11:10"),
        ]
    }

    #[test]
    fn everything_that_took_effect_is_found_in_its_order() {
        assert_eq!(judged(all()), EffectReport { found: 4, ..EffectReport::default() });
    }

    #[test]
    fn what_did_not_take_effect_is_lost_and_named() {
        let mut effects = all();
        effects.remove(1);
        let verdict = judged(effects);
        assert_eq!((verdict.found, verdict.lost.len()), (3, 1));
        assert!(verdict.lost[0].contains("Given"), "{:?}", verdict.lost);
        assert_eq!(judged(Vec::new()).lost.len(), 4, "effects that depend on a lost one are lost, too");
    }

    #[test]
    fn what_came_before_an_earlier_one_is_out_of_order() {
        let mut effects = all();
        effects.swap(1, 2);
        assert_eq!(judged(effects).out_of_order, 1);
    }
}
