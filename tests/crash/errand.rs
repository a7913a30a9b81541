//! Test operations, each with a unique effect by which the simulator's score shows that it was executed.

use serde_json::{Value, json};

use crate::stage::Place;

/// The effect of an operation in the score: `create role elder-7`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Sign {
    pub(crate) verb: &'static str,
    pub(crate) what: &'static str,
    /// Name of the object. `user:{name}` means the role with that name.
    pub(crate) name: String,
}

/// What may become of an operation with an unknown outcome.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Doubt {
    /// The outcome is found out: the operation is executed exactly once.
    Cleared,
    /// It may need review; it is executed at most once.
    Left,
}

/// An operation to submit.
#[derive(Clone, Debug)]
pub(crate) struct Errand {
    /// Its idempotency key.
    pub(crate) key: String,
    /// The guild that it is submitted to.
    pub(crate) guild: Option<u64>,
    /// Name of the queue whose order it follows.
    pub(crate) line: String,
    pub(crate) kind: &'static str,
    pub(crate) payload: Value,
    pub(crate) sign: Sign,
    pub(crate) doubt: Doubt,
}

/// The kinds, by the effect of sending them twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sort {
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

impl Sort {
    pub(crate) const ALL: [Self; 15] = [
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
pub(crate) struct Props {
    /// A member, and a role that this member does not have.
    pub(crate) member: u64,
    pub(crate) role: u64,
    /// A channel or a role to delete, with its name.
    pub(crate) doomed: (u64, String),
    /// An interaction that was responded to, and its token.
    pub(crate) interaction: (u64, String),
    /// Key and name of a role that was created before.
    pub(crate) made: (String, String),
}

impl Errand {
    /// The operation with this number in a guild.
    pub(crate) fn new(sort: Sort, place: &Place, number: usize, props: &Props) -> Self {
        let guild = place.guild;
        let name = format!("thing-{number}-{guild}");
        let key = format!("key-{number}-{guild}");
        let says = format!("says {number} in {guild}");
        let Props { member, role, doomed, interaction, made } = props;
        let (member, role, channel) = (member.to_string(), role.to_string(), place.channel.to_string());
        let sign = |verb, what, name: &str| Sign { verb, what, name: name.to_owned() };
        let (kind, payload, sign) = match sort {
            Sort::AssignRole => {
                let payload = json!({ "user_id": member, "role_id": role });
                ("assign_role", payload, sign("create", "member_role", &format!("{member}:{role}")))
            }
            Sort::AssignByKey => {
                let payload = json!({ "user_id": member, "role_id": { "key": made.0 } });
                ("assign_role", payload, sign("create", "member_role", &format!("{member}:{{{}}}", made.1)))
            }
            Sort::UpdatePermissions => {
                let overwrites = json!([{ "role_id": role, "allow": "1024", "deny": "2048" }]);
                let payload = json!({ "channel_id": channel, "overwrites": overwrites });
                ("update_permissions", payload, sign("create", "overwrite", &format!("{channel}:{role}")))
            }
            Sort::CreateRole => ("create_role", json!({ "key": key, "name": name }), sign("create", "role", &name)),
            Sort::EnsureRole => ("ensure_role", json!({ "key": key, "name": name }), sign("create", "role", &name)),
            Sort::CreateChannel => {
                ("create_channel", json!({ "key": key, "name": name }), sign("create", "channel", &name))
            }
            Sort::EnsureChannel => {
                ("ensure_channel", json!({ "key": key, "name": name }), sign("create", "channel", &name))
            }
            Sort::SendMessage => {
                let payload = json!({ "channel_id": channel, "content": says });
                ("send_message", payload, sign("create", "message", &says))
            }
            Sort::EnsureMessage => {
                let payload = json!({ "key": key, "channel_id": channel, "content": says });
                ("ensure_message", payload, sign("create", "message", &says))
            }
            Sort::PinMessage => {
                let payload = json!({ "key": key, "channel_id": channel, "content": says, "pin": true });
                ("ensure_message", payload, sign("create", "message", &says))
            }
            Sort::SendDm => {
                let payload = json!({ "user_id": place.confidant.to_string(), "content": says });
                ("send_dm", payload, sign("create", "message", &says))
            }
            Sort::Followup => {
                let (id, token) = (interaction.0.to_string(), &interaction.1);
                let payload = json!({ "interaction_id": id, "interaction_token": token, "content": says });
                ("send_followup", payload, sign("create", "message", &says))
            }
            Sort::Post => {
                let path = format!("/guilds/{guild}/roles");
                let payload = json!({ "method": "POST", "path": path, "body": { "name": name } });
                ("request", payload, sign("create", "role", &name))
            }
            Sort::DeleteRole => {
                ("delete_role", json!({ "role_id": doomed.0.to_string() }), sign("delete", "role", &doomed.1))
            }
            Sort::DeleteChannel => {
                ("delete_channel", json!({ "channel_id": doomed.0.to_string() }), sign("delete", "channel", &doomed.1))
            }
        };
        let (guild, line) = match sort {
            Sort::SendDm => (None, format!("user {}", place.confidant)),
            Sort::Followup => (None, format!("interaction {}", interaction.0)),
            Sort::AssignRole
            | Sort::AssignByKey
            | Sort::UpdatePermissions
            | Sort::CreateRole
            | Sort::EnsureRole
            | Sort::CreateChannel
            | Sort::EnsureChannel
            | Sort::SendMessage
            | Sort::EnsureMessage
            | Sort::PinMessage
            | Sort::Post
            | Sort::DeleteRole
            | Sort::DeleteChannel => (Some(guild), format!("guild {guild}")),
        };
        let doubt = if matches!(sort, Sort::Followup | Sort::Post) { Doubt::Left } else { Doubt::Cleared };
        Self { key, guild, line, kind, payload, sign, doubt }
    }

    /// Removes the role that this operation assigns.
    pub(crate) fn undone(&self) -> Self {
        let sign = Sign { verb: "delete", ..self.sign.clone() };
        Self { key: format!("{}-undone", self.key), kind: "remove_role", sign, ..self.clone() }
    }

    /// Makes the content longer, so that it needs more space.
    pub(crate) fn at_length(mut self) -> Self {
        let more = "x".repeat(1_900);
        self.payload["content"] = format!("{} {more}", self.sign.name).into();
        self.sign.name = self.payload["content"].as_str().unwrap().to_owned();
        self
    }

    /// Creates a channel that only administrators see. Only the audit log can show that it was created.
    pub(crate) fn hidden(mut self, place: &Place) -> Self {
        assert_eq!(self.sign.what, "channel");
        self.payload["overwrites"] = json!([{ "role_id": place.guild.to_string(), "deny": "1024" }]);
        self.doubt = Doubt::Left;
        self
    }

    /// Key and name of the role that it creates, if it creates one with a key.
    pub(crate) fn makes_role(&self) -> Option<(String, String)> {
        let keyed = self.sign.what == "role" && self.sign.verb == "create" && self.payload["key"].is_string();
        keyed.then(|| (self.payload["key"].as_str().unwrap().to_owned(), self.sign.name.clone()))
    }
}
