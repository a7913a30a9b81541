//! Interactions started by a user: commands, buttons, modals, and autocompletion.

use std::sync::Arc;

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::channel::{self, Home};
use super::drive::DriveError;
use super::guild::Guild;
use super::interaction::{self, Interaction, ResponseState};
use super::member::Member;
use super::user::User;
use super::{World, permissions, wire};
use crate::dispatch::{Audience, Dispatch};
use crate::id::Snowflake;
use crate::time::At;

/// What a user does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum InteractionKind {
    /// Runs a command.
    #[default]
    Command,
    /// Types a command whose option requests choices from the bot.
    Autocomplete,
    /// Presses a button.
    Button,
    /// Submits a modal.
    Modal,
}

impl InteractionKind {
    fn type_code(self) -> u8 {
        match self {
            Self::Command => interaction::COMMAND,
            Self::Autocomplete => interaction::AUTOCOMPLETE,
            Self::Button => interaction::COMPONENT,
            Self::Modal => interaction::MODAL,
        }
    }
}

/// An interaction to fire. All fields are optional: by default `/ping` in the first guild, for the first bot.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct InteractionSpec {
    #[serde(rename = "type")]
    pub(crate) kind: InteractionKind,
    pub(crate) application_id: Option<Snowflake>,
    pub(crate) guild_id: Option<Snowflake>,
    pub(crate) channel_id: Option<Snowflake>,
    /// In the direct messages of user and bot.
    pub(crate) direct: bool,
    pub(crate) user_id: Option<Snowflake>,
    /// Name of the command. An unregistered one gets an id of its own.
    pub(crate) name: Option<String>,
    /// Options of the command, as Discord sends them: `{name, type, value}`.
    pub(crate) options: Vec<Value>,
    /// Custom id of the button or modal.
    pub(crate) custom_id: Option<String>,
    /// The message of the button; by default the bot's newest in the channel.
    pub(crate) message_id: Option<Snowflake>,
    /// Submitted values of the modal.
    pub(crate) components: Vec<Value>,
}

/// An interaction to deliver to its bot.
#[derive(Clone, Debug)]
pub(crate) struct FiredInteraction {
    pub(crate) id: Snowflake,
    pub(crate) token: String,
    pub(crate) application_id: Snowflake,
    /// The interaction, as JSON.
    pub(crate) data: Bytes,
    pub(crate) guild: Option<Snowflake>,
}

/// A member with its permissions in the channel.
#[derive(Serialize)]
struct Invoker<'a> {
    #[serde(flatten)]
    member: &'a Member,
    #[serde(with = "wire::bits")]
    permissions: u64,
}

/// Bot, channel and user of an interaction.
struct InteractionContext {
    application: Snowflake,
    bot: Snowflake,
    home: Home,
    channel: Snowflake,
    user: Arc<User>,
}

impl World {
    /// Creates an interaction and starts its deadline. The caller delivers it, over the gateway or over HTTP.
    pub(crate) fn create_interaction(
        &mut self,
        spec: &InteractionSpec,
        now: At,
    ) -> Result<FiredInteraction, DriveError> {
        self.interactions.prune(self.rules.interaction_token_life, now);
        let context = self.resolve_context(spec, now)?;
        let source = match spec.kind {
            InteractionKind::Button => Some(self.button_message(spec, &context)?),
            InteractionKind::Command | InteractionKind::Autocomplete | InteractionKind::Modal => None,
        };
        let data = self.interaction_data(spec, &context, now);
        // A modal is shown in response to a command; here to one that was never delivered.
        let trigger = (spec.kind == InteractionKind::Modal).then(|| self.mint.generate(now));
        let id = self.mint.generate(now);
        let token = interaction::token_of(self.rules.seed, id);
        let mut payload = self.context_payload(&context)?;
        payload.extend([
            ("id".to_owned(), json!(id)),
            ("application_id".to_owned(), json!(context.application)),
            ("type".to_owned(), json!(spec.kind.type_code())),
            ("token".to_owned(), json!(token)),
            ("version".to_owned(), json!(1)),
            ("data".to_owned(), data),
            ("locale".to_owned(), json!("en-US")),
            ("entitlements".to_owned(), json!([])),
            ("attachment_size_limit".to_owned(), json!(10 * 1024 * 1024)),
        ]);
        if let Some(message) = source {
            payload.insert("message".to_owned(), json!(self.feeds[&context.channel].messages[&message]));
        }
        self.interactions.insert(Interaction {
            id,
            application: context.application,
            kind: spec.kind.type_code(),
            token: token.clone(),
            fired: now,
            guild: context.home.guild(),
            channel: context.channel,
            user: context.user.id,
            source,
            trigger,
            state: ResponseState::NotYet,
        });
        let data = super::encode(&payload);
        Ok(FiredInteraction { id, token, application_id: context.application, data, guild: context.home.guild() })
    }

    /// Sends an interaction over the gateway, to its bot's shard of the guild.
    pub(crate) fn dispatch_interaction(&mut self, fired: &FiredInteraction) {
        let audience = match fired.guild {
            Some(guild) => Audience::Member { application: fired.application_id, guild },
            None => Audience::Application(fired.application_id),
        };
        self.dispatches.push(Dispatch { name: "INTERACTION_CREATE", audience, intents: 0, data: fired.data.clone() });
    }

    fn resolve_context(&mut self, spec: &InteractionSpec, now: At) -> Result<InteractionContext, DriveError> {
        let bot = match spec.application_id {
            Some(application) => self.bot(application).ok_or(DriveError::NoSuchBot(application))?,
            None => self.bots.first().ok_or(DriveError::NoSuchBot(Snowflake::default()))?,
        };
        let (application, bot) = (bot.application_id, bot.user_id);
        let find_user = |id: Snowflake| self.users.get(&id).map(Arc::clone).ok_or(DriveError::NoSuchUser(id));
        if spec.direct {
            let user = spec.user_id.map_or_else(|| Ok(Arc::clone(&self.developer)), find_user)?;
            let channel = match self.find_direct(application, user.id) {
                Some(channel) => channel,
                None => self.create_direct(application, Arc::clone(&user), now),
            };
            return Ok(InteractionContext { application, bot, home: Home::Direct(application), channel, user });
        }
        let requested = match spec.channel_id {
            Some(channel) => Some((channel, *self.homes.get(&channel).ok_or(DriveError::NoSuchChannel(channel))?)),
            None => None,
        };
        if let Some((channel, home @ Home::Direct(_))) = requested {
            let user = Arc::clone(&self.directs.get(&channel).ok_or(DriveError::NoSuchChannel(channel))?.recipient);
            return Ok(InteractionContext { application, bot, home, channel, user });
        }
        let guild = requested.and_then(|(_, home)| home.guild()).or(spec.guild_id);
        let guild = match guild {
            Some(id) => self.guilds.get(&id).ok_or(DriveError::NoSuchGuild(id))?,
            None => self.guilds.values().next().ok_or(DriveError::NoChannel)?,
        };
        let text = || guild.channels.values().find(|channel| channel.kind == channel::TEXT).map(|channel| channel.id);
        let channel = spec.channel_id.or_else(text).ok_or(DriveError::NoChannel)?;
        let user = spec.user_id.map_or_else(|| Ok(default_user(guild)), find_user)?;
        if !guild.members.contains_key(&user.id) {
            return Err(DriveError::NotMember(user.id));
        }
        Ok(InteractionContext { application, bot, home: Home::Guild(guild.id), channel, user })
    }

    /// The part of the payload about the channel, the guild and the user.
    fn context_payload(&self, context: &InteractionContext) -> Result<Map<String, Value>, DriveError> {
        let mut payload = Map::new();
        let mut put = |name: &str, value: Value| payload.insert(name.to_owned(), value);
        put("channel_id", json!(context.channel));
        match context.home {
            Home::Guild(id) => {
                let guild = self.guilds.get(&id).ok_or(DriveError::NoSuchGuild(id))?;
                let channel = guild.channels.get(&context.channel).ok_or(DriveError::NoSuchChannel(context.channel))?;
                let member = guild.members.get(&context.user.id).ok_or(DriveError::NotMember(context.user.id))?;
                let permissions = guild.permissions_in(context.user.id, channel);
                let mut channel_json = json!(channel);
                channel_json["permissions"] = json!(permissions.to_string());
                put("channel", channel_json);
                put("guild_id", json!(id));
                put("guild", json!({ "id": id, "locale": "en-US", "features": [] }));
                put("guild_locale", json!("en-US"));
                put("member", json!(Invoker { member, permissions }));
                put("app_permissions", json!(guild.permissions_in(context.bot, channel).to_string()));
                put("authorizing_integration_owners", json!({ "0": id }));
                put("context", json!(0));
            }
            Home::Direct(_) => {
                let direct = self.directs.get(&context.channel).ok_or(DriveError::NoSuchChannel(context.channel))?;
                put("channel", json!(direct.view()));
                put("user", json!(context.user));
                put("app_permissions", json!(permissions::DIRECT.to_string()));
                put("authorizing_integration_owners", json!({ "0": "0" }));
                put("context", json!(1));
            }
        }
        Ok(payload)
    }

    fn interaction_data(&mut self, spec: &InteractionSpec, context: &InteractionContext, now: At) -> Value {
        match spec.kind {
            InteractionKind::Command | InteractionKind::Autocomplete => {
                let name = spec.name.as_deref().unwrap_or("ping");
                let guild_commands = context.home.guild().and_then(|guild| self.guilds.get(&guild));
                let guild_commands = guild_commands.into_iter().flat_map(|guild| &guild.commands);
                let found = guild_commands
                    .chain(&self.commands)
                    .find(|registered| registered.is_same(context.application, 1, name));
                let mut data = match found {
                    Some(command) => json!({ "id": command.id, "name": name, "type": 1, "guild_id": command.guild_id }),
                    None => json!({ "id": self.mint.generate(now), "name": name, "type": 1, "guild_id": null }),
                };
                // Absent, not null: clients would read null as a guild.
                if let Some(fields) = data.as_object_mut() {
                    fields.retain(|_, value| !value.is_null());
                }
                if !spec.options.is_empty() {
                    data["options"] = json!(spec.options);
                }
                data
            }
            InteractionKind::Button => json!({ "custom_id": spec.custom_id, "component_type": 2, "id": 2 }),
            InteractionKind::Modal => json!({ "custom_id": spec.custom_id, "components": spec.components }),
        }
    }

    fn button_message(&self, spec: &InteractionSpec, context: &InteractionContext) -> Result<Snowflake, DriveError> {
        let missing = DriveError::NoSuchMessage(spec.message_id.unwrap_or_default());
        let feed = self.feeds.get(&context.channel).ok_or_else(|| missing.clone())?;
        match spec.message_id {
            Some(id) => feed.messages.contains_key(&id).then_some(id).ok_or(missing),
            None => {
                let newest = feed.messages.values().rev().find(|message| message.author.id == context.bot);
                newest.map(|message| message.id).ok_or(missing)
            }
        }
    }
}

/// The default user of an interaction: the first member who is neither owner nor bot, or else the owner.
fn default_user(guild: &Guild) -> Arc<User> {
    let plain = |member: &&Member| !member.user.bot && member.user.id != guild.owner;
    let member = guild.members.values().find(plain).or_else(|| guild.members.get(&guild.owner));
    Arc::clone(&member.expect("invariant: the owner is a member of its guild and can neither leave nor be kicked").user)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::SimConfig;
    use crate::world::drive::MemberSpec;

    const NOW: At = At::from_micros(1_700_000_000_000_000);

    fn fire(world: &mut World, spec: Value) -> Result<Value, DriveError> {
        let spec: InteractionSpec = serde_json::from_value(spec).unwrap();
        world.create_interaction(&spec, NOW).map(|fired| serde_json::from_slice(&fired.data).unwrap())
    }

    #[test]
    fn guild_command_has_all_fields_that_clients_read() {
        let mut world = World::new(&SimConfig::default(), NOW);
        let options = json!([{ "name": "size", "type": 4, "value": 3 }]);
        let fired = fire(&mut world, json!({ "name": "setup", "options": options })).unwrap();
        let guild = *world.guilds.keys().next().unwrap();
        assert_eq!((&fired["type"], &fired["version"], &fired["context"]), (&json!(2), &json!(1), &json!(0)));
        assert_eq!(fired["guild_id"], json!(guild));
        assert_eq!(fired["channel"]["id"], fired["channel_id"]);
        assert_eq!(fired["data"]["options"], options);
        assert!(fired["data"].get("guild_id").is_none());
        assert!(fired["member"]["permissions"].is_string() && fired["member"]["user"]["id"].is_string());
        assert_eq!(fired["authorizing_integration_owners"]["0"], json!(guild));
        for name in ["app_permissions", "entitlements", "attachment_size_limit", "locale", "guild_locale", "token"] {
            assert!(fired.get(name).is_some(), "{name}");
        }
    }

    #[test]
    fn direct_command_has_a_user_and_no_member() {
        let mut world = World::new(&SimConfig::default(), NOW);
        let fired = fire(&mut world, json!({ "direct": true })).unwrap();
        assert!(fired.get("member").is_none() && fired.get("guild_id").is_none());
        assert_eq!((&fired["context"], &fired["channel"]["type"]), (&json!(1), &json!(1)));
        assert_eq!(fire(&mut world, json!({ "direct": true })).unwrap()["channel_id"], fired["channel_id"]);
    }

    #[test]
    fn button_needs_a_message_of_the_bot() {
        let mut world = World::new(&SimConfig::default(), NOW);
        let spec = json!({ "type": "button", "custom_id": "go" });
        assert!(matches!(fire(&mut world, spec.clone()), Err(DriveError::NoSuchMessage(_))));
        let guild = world.guilds.values().next().unwrap();
        let channel = *guild.channels.keys().next().unwrap();
        let message = world.user_message(channel, Some(world.bots[0].user_id), "press".into(), NOW).unwrap();
        let fired = fire(&mut world, spec).unwrap();
        assert_eq!((&fired["type"], &fired["message"]["id"]), (&json!(3), &json!(message)));
        assert_eq!(fired["data"]["custom_id"], "go");
    }

    #[test]
    fn only_members_can_interact_in_a_guild() {
        let config = SimConfig { guilds: 2, ..SimConfig::default() };
        let mut world = World::new(&config, NOW);
        let (first, second) = (*world.guilds.keys().next().unwrap(), *world.guilds.keys().last().unwrap());
        let user = world.join(second, MemberSpec::default(), NOW).unwrap();
        assert_eq!(fire(&mut world, json!({ "guild_id": first, "user_id": user })), Err(DriveError::NotMember(user)));
        assert_eq!(
            fire(&mut world, json!({ "guild_id": second, "user_id": user })).unwrap()["guild_id"],
            json!(second)
        );
    }
}
