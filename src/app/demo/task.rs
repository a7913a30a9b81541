//! What the demo asks for, and what should come of it in Discord.

use guildhall_sim::Snowflake;
use serde_json::{Value, json};

/// The role of those who join, by its key and its name.
pub(super) const GREETER: &str = "greeter";
/// What the command is answered with.
pub(super) const ANSWER: &str = "Hello from the guildhall.";

/// A guild of the simulator, with what is in it.
#[derive(Clone, Debug)]
pub(super) struct Place {
    pub(super) guild: Snowflake,
    /// Channels that were there from the start; at least one.
    pub(super) channels: Vec<String>,
    /// Those who joined during the demo; at least one.
    pub(super) joined: Vec<Snowflake>,
}

/// What Discord should hold once an operation is done. Roles and channels are told by their names, which the demo gives
/// only once in a guild.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Effect {
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
pub(super) struct Task {
    pub(super) kind: &'static str,
    pub(super) payload: Value,
    /// Its idempotency key.
    pub(super) key: String,
    pub(super) effect: Effect,
}

impl Task {
    /// As the API takes it, with its key in it.
    pub(super) fn in_batch(&self) -> Value {
        json!({"kind": self.kind, "payload": self.payload, "key": self.key})
    }

    /// As the API takes it, its key beside it.
    pub(super) fn alone(&self) -> Value {
        json!({"kind": self.kind, "payload": self.payload})
    }
}

/// A role for those who join, and one operation for each of them.
pub(super) fn welcome(place: &Place) -> Vec<Task> {
    let guild = place.guild;
    let mut tasks = vec![Task {
        kind: "create_role",
        payload: json!({"key": GREETER, "name": GREETER}),
        key: format!("{guild}:{GREETER}"),
        effect: Effect::Role(GREETER.to_owned()),
    }];
    tasks.extend(place.joined.iter().map(|user| Task {
        kind: "assign_role",
        payload: json!({"user_id": user, "role_id": {"key": GREETER}}),
        key: format!("{guild}:{GREETER}:{user}"),
        effect: Effect::Given { user: *user, role: GREETER.to_owned() },
    }));
    tasks
}

/// The answer to a command: at once that it is on its way, then what it says.
pub(super) fn answer(interaction: Snowflake, token: &str) -> Vec<Task> {
    let payload = |content: Option<&str>| {
        let mut payload = json!({"interaction_id": interaction, "interaction_token": token});
        if let Some(content) = content {
            payload["content"] = content.into();
        }
        payload
    };
    vec![
        Task {
            kind: "defer_reply",
            payload: payload(None),
            key: format!("interaction:{interaction}:defer"),
            effect: Effect::Deferred,
        },
        Task {
            kind: "edit_original",
            payload: payload(Some(ANSWER)),
            key: format!("interaction:{interaction}:answer"),
            effect: Effect::Edited(ANSWER.to_owned()),
        },
    ]
}

/// Rounds of a burst that make a channel, too. Discord lets a guild make ten in fifteen seconds.
const ROUNDS_WITH_CHANNEL: usize = 4;
/// Rounds of a burst.
const ROUNDS: usize = 6;
/// VIEW_CHANNEL.
const VIEW_CHANNEL: &str = "1024";

/// A burst of thirty operations of one guild, many of which need what one before them makes.
pub(super) fn burst(place: &Place) -> Vec<Task> {
    let mut tasks = Vec::new();
    let mut ask = |kind, payload, effect| {
        let key = format!("{}:burst:{}", place.guild, tasks.len());
        tasks.push(Task { kind, payload, key, effect });
    };
    for round in 0..ROUNDS {
        let (role, plain, channel) = (format!("member {round}"), format!("guest {round}"), format!("room-{round}"));
        ask("create_role", json!({"key": role_key(round), "name": role}), Effect::Role(role.clone()));
        ask("create_role", json!({"name": plain}), Effect::Role(plain));
        let (home, content) = (&place.channels[round % place.channels.len()], format!("round {round}"));
        ask("send_message", json!({"channel_id": home, "content": content}), Effect::Message(content));
        if round >= ROUNDS_WITH_CHANNEL {
            continue;
        }
        let key = format!("room-{round}");
        ask("create_channel", json!({"key": key, "name": channel}), Effect::Channel(channel.clone()));
        let overwrite = json!({"role_id": {"key": role_key(round)}, "allow": VIEW_CHANNEL});
        ask(
            "update_permissions",
            json!({"channel_id": {"key": key}, "overwrites": [overwrite]}),
            Effect::Allowed { channel, role: role.clone() },
        );
        let user = place.joined[round % place.joined.len()];
        let payload = json!({"user_id": user, "role_id": {"key": role_key(round)}});
        ask("assign_role", payload, Effect::Given { user, role });
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
        let place = Place {
            guild: Snowflake::new(1),
            channels: vec!["2".to_owned(), "3".to_owned()],
            joined: vec![Snowflake::new(4), Snowflake::new(5)],
        };
        let tasks: Vec<Task> = welcome(&place).into_iter().chain(burst(&place)).collect();
        assert_eq!(tasks.len(), 3 + 30);
        let keys: BTreeSet<&str> = tasks.iter().map(|task| task.key.as_str()).collect();
        let effects: BTreeSet<String> = tasks.iter().map(|task| format!("{:?}", task.effect)).collect();
        assert_eq!((keys.len(), effects.len()), (33, 33), "otherwise a lost one could hide behind another");
    }
}
