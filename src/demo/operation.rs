//! The operations that the demo submits, and their expected effects in Discord.

use guildhall_sim::Snowflake;
use serde_json::{Value, json};

/// Key and name of the role of new members.
pub(crate) const NEWCOMER_ROLE: &str = "greeter";
/// The response to the command.
pub(crate) const COMMAND_RESPONSE: &str = "Hello from the guildhall.";

/// A guild of the simulator, with its objects.
#[derive(Clone, Debug)]
pub(crate) struct DemoGuild {
    pub(crate) guild: Snowflake,
    /// Channels that exist from the start; at least one.
    pub(crate) channels: Vec<String>,
    /// Members who joined during the demo; at least one.
    pub(crate) joined: Vec<Snowflake>,
}

/// The effect of an operation in Discord. Roles and channels are identified by their names, which the demo uses only
/// once in a guild.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ExpectedEffect {
    /// A role.
    Role(String),
    /// A channel.
    Channel(String),
    /// A message with this content.
    Message(String),
    /// A member's role.
    RoleAssigned { user: Snowflake, role: String },
    /// A role's permissions in a channel.
    PermissionsSet { channel: String, role: String },
    /// The first response to an interaction.
    Deferred,
    /// The final content of a first response.
    Edited(String),
}

/// An operation that the demo submits.
#[derive(Clone, Debug)]
pub(crate) struct DemoOperation {
    pub(crate) kind: &'static str,
    pub(crate) payload: Value,
    /// Its idempotency key.
    pub(crate) key: String,
    pub(crate) effect: ExpectedEffect,
}

impl DemoOperation {
    /// The operation as an item of a batch, with its key.
    pub(crate) fn in_batch(&self) -> Value {
        json!({"kind": self.kind, "payload": self.payload, "key": self.key})
    }
}

/// The operations of the rule for new members: a role, and its assignment to each of them.
pub(crate) fn welcome_operations(demo_guild: &DemoGuild) -> Vec<DemoOperation> {
    let role = by_handler("ensure_role", ExpectedEffect::Role(NEWCOMER_ROLE.to_owned()));
    let given = |user: &Snowflake| ExpectedEffect::RoleAssigned { user: *user, role: NEWCOMER_ROLE.to_owned() };
    std::iter::once(role).chain(demo_guild.joined.iter().map(|user| by_handler("assign_role", given(user)))).collect()
}

/// The operations for a command: the deferral, then the brain's response.
pub(crate) fn command_operations() -> Vec<DemoOperation> {
    vec![
        by_handler("defer_reply", ExpectedEffect::Deferred),
        by_handler("edit_original", ExpectedEffect::Edited(COMMAND_RESPONSE.to_owned())),
    ]
}

/// An operation that a handler submits instead of the API.
fn by_handler(kind: &'static str, effect: ExpectedEffect) -> DemoOperation {
    DemoOperation { kind, payload: Value::Null, key: String::new(), effect }
}

/// Rounds of a burst that also create a channel. Discord allows ten in fifteen seconds in a guild.
const ROUNDS_WITH_CHANNEL: usize = 4;
/// Rounds of a burst.
const ROUNDS: usize = 6;
/// The permission VIEW_CHANNEL.
const VIEW_CHANNEL: &str = "1024";

/// A burst of thirty operations of one guild, many of which depend on an earlier one.
pub(crate) fn burst_operations(demo_guild: &DemoGuild) -> Vec<DemoOperation> {
    let mut operations = Vec::new();
    let mut push = |kind, payload, effect| {
        let key = format!("{}:burst:{}", demo_guild.guild, operations.len());
        operations.push(DemoOperation { kind, payload, key, effect });
    };
    for round in 0..ROUNDS {
        let (role, guest_role, channel) =
            (format!("member {round}"), format!("guest {round}"), format!("room-{round}"));
        push("create_role", json!({"key": role_key(round), "name": role}), ExpectedEffect::Role(role.clone()));
        push("create_role", json!({"name": guest_role}), ExpectedEffect::Role(guest_role));
        let (channel_id, content) = (&demo_guild.channels[round % demo_guild.channels.len()], format!("round {round}"));
        push("send_message", json!({"channel_id": channel_id, "content": content}), ExpectedEffect::Message(content));
        if round >= ROUNDS_WITH_CHANNEL {
            continue;
        }
        let key = format!("room-{round}");
        push("create_channel", json!({"key": key, "name": channel}), ExpectedEffect::Channel(channel.clone()));
        let overwrite = json!({"role_id": {"key": role_key(round)}, "allow": VIEW_CHANNEL});
        push(
            "update_permissions",
            json!({"channel_id": {"key": key}, "overwrites": [overwrite]}),
            ExpectedEffect::PermissionsSet { channel, role: role.clone() },
        );
        let user = demo_guild.joined[round % demo_guild.joined.len()];
        let payload = json!({"user_id": user, "role_id": {"key": role_key(round)}});
        push("assign_role", payload, ExpectedEffect::RoleAssigned { user, role });
    }
    operations
}

fn role_key(round: usize) -> String {
    format!("member-{round}")
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn burst_has_thirty_operations_with_distinct_effects() {
        let demo_guild = DemoGuild {
            guild: Snowflake::new(1),
            channels: vec!["2".to_owned(), "3".to_owned()],
            joined: vec![Snowflake::new(4), Snowflake::new(5)],
        };
        let operations = burst_operations(&demo_guild);
        assert_eq!(operations.len(), 30);
        let keys: BTreeSet<&str> = operations.iter().map(|operation| operation.key.as_str()).collect();
        let all = welcome_operations(&demo_guild).into_iter().chain(command_operations()).chain(operations.clone());
        let effects: BTreeSet<String> = all.map(|operation| format!("{:?}", operation.effect)).collect();
        assert_eq!((keys.len(), effects.len()), (30, 35), "otherwise a lost effect could be mistaken for another");
    }
}
