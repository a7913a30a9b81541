//! Test operations, each with a unique effect by which the simulator's score shows that it was executed.

use serde_json::{Value, json};

use super::fixture::GuildFixture;

/// The effect of an operation in the score: `create role elder-7`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ExpectedEffect {
    pub verb: &'static str,
    pub object_kind: &'static str,
    /// Name of the object. `user:{name}` means the role with that name.
    pub name: String,
}

/// What may become of an operation with an unknown outcome.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UnknownOutcomePolicy {
    /// The outcome is found out: the operation is executed exactly once.
    Resolved,
    /// It may need review; it is executed at most once.
    NeedsReview,
}

/// An operation to submit.
#[derive(Clone, Debug)]
pub struct TestOperation {
    /// Its idempotency key.
    pub key: String,
    /// The guild that it is submitted to.
    pub guild: Option<u64>,
    /// Name of the queue whose order it follows.
    pub queue: String,
    pub kind: &'static str,
    pub payload: Value,
    pub effect: ExpectedEffect,
    pub unknown_outcome: UnknownOutcomePolicy,
}

/// The kinds, by the effect of sending them twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TestKind {
    AssignRole,
    UpdatePermissions,
    CreateRole,
    CreateChannel,
    EnsureRole,
    EnsureChannel,
    /// Assigns the last created role by its key.
    AssignByKey,
    SendMessage,
    EnsureMessage,
    /// A pinned message, which takes two calls.
    PinMessage,
    SendDm,
    Followup,
    Post,
    DeleteRole,
    DeleteChannel,
}

impl TestKind {
    pub const ALL: [Self; 15] = [
        Self::AssignRole,
        Self::UpdatePermissions,
        Self::CreateRole,
        Self::CreateChannel,
        Self::EnsureRole,
        Self::EnsureChannel,
        Self::AssignByKey,
        Self::SendMessage,
        Self::EnsureMessage,
        Self::PinMessage,
        Self::SendDm,
        Self::Followup,
        Self::Post,
        Self::DeleteRole,
        Self::DeleteChannel,
    ];
}

/// Existing objects that an operation needs.
#[derive(Clone, Debug, Default)]
pub struct Prerequisites {
    /// A member, and a role that this member does not have.
    pub member: u64,
    pub role: u64,
    /// A channel or a role to delete, with its name.
    pub to_delete: (u64, String),
    /// An interaction that was responded to, and its token.
    pub interaction: (u64, String),
    /// Key and name of a role that was created before.
    pub existing_role: (String, String),
}

impl TestOperation {
    /// The operation with this number in a guild.
    pub fn new(
        test_kind: TestKind,
        guild_fixture: &GuildFixture,
        number: usize,
        prerequisites: &Prerequisites,
    ) -> Self {
        let guild = guild_fixture.guild;
        let name = format!("thing-{number}-{guild}");
        let key = format!("key-{number}-{guild}");
        let content = format!("says {number} in {guild}");
        let Prerequisites { member, role, to_delete, interaction, existing_role } = prerequisites;
        let (member, role, channel) = (member.to_string(), role.to_string(), guild_fixture.channel.to_string());
        let effect = |verb, object_kind, name: &str| ExpectedEffect { verb, object_kind, name: name.to_owned() };
        let (kind, payload, effect) = match test_kind {
            TestKind::AssignRole => {
                let payload = json!({ "user_id": member, "role_id": role });
                ("assign_role", payload, effect("create", "member_role", &format!("{member}:{role}")))
            }
            TestKind::AssignByKey => {
                let payload = json!({ "user_id": member, "role_id": { "key": existing_role.0 } });
                ("assign_role", payload, effect("create", "member_role", &format!("{member}:{{{}}}", existing_role.1)))
            }
            TestKind::UpdatePermissions => {
                let overwrites = json!([{ "role_id": role, "allow": "1024", "deny": "2048" }]);
                let payload = json!({ "channel_id": channel, "overwrites": overwrites });
                ("update_permissions", payload, effect("create", "overwrite", &format!("{channel}:{role}")))
            }
            TestKind::CreateRole => {
                ("create_role", json!({ "key": key, "name": name }), effect("create", "role", &name))
            }
            TestKind::EnsureRole => {
                ("ensure_role", json!({ "key": key, "name": name }), effect("create", "role", &name))
            }
            TestKind::CreateChannel => {
                ("create_channel", json!({ "key": key, "name": name }), effect("create", "channel", &name))
            }
            TestKind::EnsureChannel => {
                ("ensure_channel", json!({ "key": key, "name": name }), effect("create", "channel", &name))
            }
            TestKind::SendMessage => {
                let payload = json!({ "channel_id": channel, "content": content });
                ("send_message", payload, effect("create", "message", &content))
            }
            TestKind::EnsureMessage => {
                let payload = json!({ "key": key, "channel_id": channel, "content": content });
                ("ensure_message", payload, effect("create", "message", &content))
            }
            TestKind::PinMessage => {
                let payload = json!({ "key": key, "channel_id": channel, "content": content, "pin": true });
                ("ensure_message", payload, effect("create", "message", &content))
            }
            TestKind::SendDm => {
                let payload = json!({ "user_id": guild_fixture.dm_user.to_string(), "content": content });
                ("send_dm", payload, effect("create", "message", &content))
            }
            TestKind::Followup => {
                let (id, token) = (interaction.0.to_string(), &interaction.1);
                let payload = json!({ "interaction_id": id, "interaction_token": token, "content": content });
                ("send_followup", payload, effect("create", "message", &content))
            }
            TestKind::Post => {
                let path = format!("/guilds/{guild}/roles");
                let payload = json!({ "method": "POST", "path": path, "body": { "name": name } });
                ("request", payload, effect("create", "role", &name))
            }
            TestKind::DeleteRole => {
                ("delete_role", json!({ "role_id": to_delete.0.to_string() }), effect("delete", "role", &to_delete.1))
            }
            TestKind::DeleteChannel => (
                "delete_channel",
                json!({ "channel_id": to_delete.0.to_string() }),
                effect("delete", "channel", &to_delete.1),
            ),
        };
        let (guild, queue) = match test_kind {
            TestKind::SendDm => (None, format!("user {}", guild_fixture.dm_user)),
            TestKind::Followup => (None, format!("interaction {}", interaction.0)),
            TestKind::AssignRole
            | TestKind::AssignByKey
            | TestKind::UpdatePermissions
            | TestKind::CreateRole
            | TestKind::EnsureRole
            | TestKind::CreateChannel
            | TestKind::EnsureChannel
            | TestKind::SendMessage
            | TestKind::EnsureMessage
            | TestKind::PinMessage
            | TestKind::Post
            | TestKind::DeleteRole
            | TestKind::DeleteChannel => (Some(guild), format!("guild {guild}")),
        };
        let unknown_outcome = if matches!(test_kind, TestKind::Followup | TestKind::Post) {
            UnknownOutcomePolicy::NeedsReview
        } else {
            UnknownOutcomePolicy::Resolved
        };
        Self { key, guild, queue, kind, payload, effect, unknown_outcome }
    }

    /// Removes the role that this operation assigns.
    pub fn inverse(&self) -> Self {
        let effect = ExpectedEffect { verb: "delete", ..self.effect.clone() };
        Self { key: format!("{}-undone", self.key), kind: "remove_role", effect, ..self.clone() }
    }

    /// Makes the content longer, so that it needs more space.
    pub fn padded(mut self) -> Self {
        let more = "x".repeat(1_900);
        self.payload["content"] = format!("{} {more}", self.effect.name).into();
        self.effect.name = self.payload["content"].as_str().unwrap().to_owned();
        self
    }

    /// Creates a channel that only administrators see. Only the audit log can show that it was created.
    pub fn hidden(mut self, guild_fixture: &GuildFixture) -> Self {
        assert_eq!(self.effect.object_kind, "channel");
        self.payload["overwrites"] = json!([{ "role_id": guild_fixture.guild.to_string(), "deny": "1024" }]);
        self.unknown_outcome = UnknownOutcomePolicy::NeedsReview;
        self
    }

    /// Key and name of the role that it creates, if it creates one with a key.
    pub fn created_role(&self) -> Option<(String, String)> {
        let keyed =
            self.effect.object_kind == "role" && self.effect.verb == "create" && self.payload["key"].is_string();
        keyed.then(|| (self.payload["key"].as_str().unwrap().to_owned(), self.effect.name.clone()))
    }
}
