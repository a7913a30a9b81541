//! What the demo asks for, and what should come of it in Discord.

use guildhall_sim::Snowflake;
use serde_json::{Value, json};

/// The role of those who join, by its key and its name.
pub(super) const GREETER: &str = "greeter";
/// What the command is answered with.
pub(super) const ANSWER: &str = "Hello from the guildhall.";

/// A guild of the simulator, with what is in it.
#[derive(Clone, Debug)]
pub(super) struct DemoGuild {
    pub(super) guild: Snowflake,
    /// Channels that were there from the start; at least one.
    pub(super) channels: Vec<String>,
    /// Those who joined during the demo; at least one.
    pub(super) joined: Vec<Snowflake>,
}

/// What Discord should hold once an operation is done. Roles and channels are told by their names, which the demo gives
/// only once in a guild.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ExpectedEffect {
    /// A role.
    Role(String),
    /// A channel.
    Channel(String),
    /// A message with this content.
    Message(String),
    /// A member's role.
    Given { user: Snowflake, role: String },
    /// A role's permissions in a channel.
    Allowed { channel: String, role: String },
    /// The first answer to an interaction.
    Deferred,
    /// What a first answer says in the end.
    Edited(String),
}

/// An operation that the demo asks for.
#[derive(Clone, Debug)]
pub(super) struct DemoOperation {
    pub(super) kind: &'static str,
    pub(super) payload: Value,
    /// Its idempotency key.
    pub(super) key: String,
    pub(super) effect: ExpectedEffect,
}

impl DemoOperation {
    /// As the API takes it, with its key in it.
    pub(super) fn in_batch(&self) -> Value {
        json!({"kind": self.kind, "payload": self.payload, "key": self.key})
    }
}

/// What a rule does for those who join: a role, and one who holds it for each of them.
pub(super) fn welcome(place: &DemoGuild) -> Vec<DemoOperation> {
    let role = by_handler("ensure_role", ExpectedEffect::Role(GREETER.to_owned()));
    let given = |user: &Snowflake| ExpectedEffect::Given { user: *user, role: GREETER.to_owned() };
    std::iter::once(role).chain(place.joined.iter().map(|user| by_handler("assign_role", given(user)))).collect()
}

/// What is done with a command: at once that the answer is on its way, then what the brain says.
pub(super) fn answer() -> Vec<DemoOperation> {
    vec![
        by_handler("defer_reply", ExpectedEffect::Deferred),
        by_handler("edit_original", ExpectedEffect::Edited(ANSWER.to_owned())),
    ]
}

/// What nobody asks for over the API, and is done all the same.
fn by_handler(kind: &'static str, effect: ExpectedEffect) -> DemoOperation {
    DemoOperation { kind, payload: Value::Null, key: String::new(), effect }
}

/// Rounds of a burst that make a channel, too. Discord lets a guild make ten in fifteen seconds.
const ROUNDS_WITH_CHANNEL: usize = 4;
/// Rounds of a burst.
const ROUNDS: usize = 6;
/// VIEW_CHANNEL.
const VIEW_CHANNEL: &str = "1024";

/// A burst of thirty operations of one guild, many of which need what one before them makes.
pub(super) fn burst(place: &DemoGuild) -> Vec<DemoOperation> {
    let mut tasks = Vec::new();
    let mut ask = |kind, payload, effect| {
        let key = format!("{}:burst:{}", place.guild, tasks.len());
        tasks.push(DemoOperation { kind, payload, key, effect });
    };
    for round in 0..ROUNDS {
        let (role, plain, channel) = (format!("member {round}"), format!("guest {round}"), format!("room-{round}"));
        ask("create_role", json!({"key": role_key(round), "name": role}), ExpectedEffect::Role(role.clone()));
        ask("create_role", json!({"name": plain}), ExpectedEffect::Role(plain));
        let (home, content) = (&place.channels[round % place.channels.len()], format!("round {round}"));
        ask("send_message", json!({"channel_id": home, "content": content}), ExpectedEffect::Message(content));
        if round >= ROUNDS_WITH_CHANNEL {
            continue;
        }
        let key = format!("room-{round}");
        ask("create_channel", json!({"key": key, "name": channel}), ExpectedEffect::Channel(channel.clone()));
        let overwrite = json!({"role_id": {"key": role_key(round)}, "allow": VIEW_CHANNEL});
        ask(
            "update_permissions",
            json!({"channel_id": {"key": key}, "overwrites": [overwrite]}),
            ExpectedEffect::Allowed { channel, role: role.clone() },
        );
        let user = place.joined[round % place.joined.len()];
        let payload = json!({"user_id": user, "role_id": {"key": role_key(round)}});
        ask("assign_role", payload, ExpectedEffect::Given { user, role });
    }
    tasks
}

fn role_key(round: usize) -> String {
    format!("member-{round}")
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn a_burst_is_thirty_operations_each_with_a_key_and_an_effect_of_its_own() {
        let place = DemoGuild {
            guild: Snowflake::new(1),
            channels: vec!["2".to_owned(), "3".to_owned()],
            joined: vec![Snowflake::new(4), Snowflake::new(5)],
        };
        let tasks = burst(&place);
        assert_eq!(tasks.len(), 30);
        let keys: BTreeSet<&str> = tasks.iter().map(|task| task.key.as_str()).collect();
        let all = welcome(&place).into_iter().chain(answer()).chain(tasks.clone());
        let effects: BTreeSet<String> = all.map(|task| format!("{:?}", task.effect)).collect();
        assert_eq!((keys.len(), effects.len()), (30, 35), "otherwise a lost one could hide behind another");
    }
}
