//! Interactions started by a user: commands, buttons, modals, and autocompletion.

use std::sync::Arc;

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::channel::{self, Home};
use super::drive::DriveError;
use super::guild::Guild;
use super::interaction::{self, Answered, Interaction};
use super::member::Member;
use super::user::User;
use super::{World, permissions, wire};
use crate::dispatch::{Audience, Dispatch};
use crate::id::Snowflake;
use crate::time::At;

/// What a user does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Deed {
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

impl Deed {
    fn kind(self) -> u8 {
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
    pub(crate) deed: Deed,
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
pub(crate) struct Fired {
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
struct Scene {
    application: Snowflake,
    bot: Snowflake,
    home: Home,
    channel: Snowflake,
    user: Arc<User>,
}

impl World {
    /// Creates an interaction and starts its deadline. The caller delivers it, over the gateway or over HTTP.
    pub(crate) fn interaction(&mut self, spec: &InteractionSpec, now: At) -> Result<Fired, DriveError> {
        self.interactions.prune(self.rules.interaction_token_life, now);
        let scene = self.scene(spec, now)?;
        let source = match spec.deed {
            Deed::Button => Some(self.button_message(spec, &scene)?),
            Deed::Command | Deed::Autocomplete | Deed::Modal => None,
        };
        let data = self.interaction_data(spec, &scene, now);
        // A modal is shown in response to a command; here to one that was never delivered.
        let trigger = (spec.deed == Deed::Modal).then(|| self.mint.mint(now));
        let id = self.mint.mint(now);
        let token = interaction::token_of(self.rules.seed, id);
        let mut payload = self.setting(&scene)?;
        payload.extend([
            ("id".to_owned(), json!(id)),
            ("application_id".to_owned(), json!(scene.application)),
            ("type".to_owned(), json!(spec.deed.kind())),
            ("token".to_owned(), json!(token)),
            ("version".to_owned(), json!(1)),
            ("data".to_owned(), data),
            ("locale".to_owned(), json!("en-US")),
            ("entitlements".to_owned(), json!([])),
            ("attachment_size_limit".to_owned(), json!(10 * 1024 * 1024)),
        ]);
        if let Some(message) = source {
            payload.insert("message".to_owned(), json!(self.feeds[&scene.channel].messages[&message]));
        }
        self.interactions.insert(Interaction {
            id,
            application: scene.application,
            kind: spec.deed.kind(),
            token: token.clone(),
            fired: now,
            guild: scene.home.guild(),
            channel: scene.channel,
            user: scene.user.id,
            source,
            trigger,
            state: Answered::NotYet,
        });
        let data = super::encode(&payload);
        Ok(Fired { id, token, application_id: scene.application, data, guild: scene.home.guild() })
    }

    /// Sends an interaction over the gateway, to its bot's shard of the guild.
    pub(crate) fn dispatch_interaction(&mut self, fired: &Fired) {
        let audience = match fired.guild {
            Some(guild) => Audience::Member { application: fired.application_id, guild },
            None => Audience::Application(fired.application_id),
        };
        self.outbox.push(Dispatch { name: "INTERACTION_CREATE", audience, intents: 0, data: fired.data.clone() });
    }

    fn scene(&mut self, spec: &InteractionSpec, now: At) -> Result<Scene, DriveError> {
        let bot = match spec.application_id {
            Some(application) => self.bot(application).ok_or(DriveError::NoSuchBot(application))?,
            None => self.bots.first().ok_or(DriveError::NoSuchBot(Snowflake::default()))?,
        };
        let (application, bot) = (bot.application_id, bot.user_id);
        let known = |id: Snowflake| self.users.get(&id).map(Arc::clone).ok_or(DriveError::NoSuchUser(id));
        if spec.direct {
            let user = spec.user_id.map_or_else(|| Ok(Arc::clone(&self.developer)), known)?;
            let channel = match self.direct_with(application, user.id) {
                Some(channel) => channel,
                None => self.make_direct(application, Arc::clone(&user), now),
            };
            return Ok(Scene { application, bot, home: Home::Direct(application), channel, user });
        }
        let named = match spec.channel_id {
            Some(channel) => Some((channel, *self.homes.get(&channel).ok_or(DriveError::NoSuchChannel(channel))?)),
            None => None,
        };
        if let Some((channel, home @ Home::Direct(_))) = named {
            let user = Arc::clone(&self.directs.get(&channel).ok_or(DriveError::NoSuchChannel(channel))?.recipient);
            return Ok(Scene { application, bot, home, channel, user });
        }
        let guild = named.and_then(|(_, home)| home.guild()).or(spec.guild_id);
        let guild = match guild {
            Some(id) => self.guilds.get(&id).ok_or(DriveError::NoSuchGuild(id))?,
            None => self.guilds.values().next().ok_or(DriveError::NoChannel)?,
        };
        let text = || guild.channels.values().find(|channel| channel.kind == channel::TEXT).map(|channel| channel.id);
        let channel = spec.channel_id.or_else(text).ok_or(DriveError::NoChannel)?;
        let user = spec.user_id.map_or_else(|| Ok(somebody(guild)), known)?;
        if !guild.members.contains_key(&user.id) {
            return Err(DriveError::NotMember(user.id));
        }
        Ok(Scene { application, bot, home: Home::Guild(guild.id), channel, user })
    }

    /// The part of the payload about the channel, the guild and the user.
    fn setting(&self, scene: &Scene) -> Result<Map<String, Value>, DriveError> {
        let mut setting = Map::new();
        let mut put = |name: &str, value: Value| setting.insert(name.to_owned(), value);
        put("channel_id", json!(scene.channel));
        match scene.home {
            Home::Guild(id) => {
                let guild = self.guilds.get(&id).ok_or(DriveError::NoSuchGuild(id))?;
                let channel = guild.channels.get(&scene.channel).ok_or(DriveError::NoSuchChannel(scene.channel))?;
                let member = guild.members.get(&scene.user.id).ok_or(DriveError::NotMember(scene.user.id))?;
                let may = guild.permissions_in(scene.user.id, channel);
                let mut shown = json!(channel);
                shown["permissions"] = json!(may.to_string());
                put("channel", shown);
                put("guild_id", json!(id));
                put("guild", json!({ "id": id, "locale": "en-US", "features": [] }));
                put("guild_locale", json!("en-US"));
                put("member", json!(Invoker { member, permissions: may }));
                put("app_permissions", json!(guild.permissions_in(scene.bot, channel).to_string()));
                put("authorizing_integration_owners", json!({ "0": id }));
                put("context", json!(0));
            }
            Home::Direct(_) => {
                let direct = self.directs.get(&scene.channel).ok_or(DriveError::NoSuchChannel(scene.channel))?;
                put("channel", json!(direct.view()));
                put("user", json!(scene.user));
                put("app_permissions", json!(permissions::DIRECT.to_string()));
                put("authorizing_integration_owners", json!({ "0": "0" }));
                put("context", json!(1));
            }
        }
        Ok(setting)
    }

    fn interaction_data(&mut self, spec: &InteractionSpec, scene: &Scene, now: At) -> Value {
        match spec.deed {
            Deed::Command | Deed::Autocomplete => {
                let name = spec.name.as_deref().unwrap_or("ping");
                let own = scene.home.guild().and_then(|guild| self.guilds.get(&guild));
                let own = own.into_iter().flat_map(|guild| &guild.commands);
                let found = own.chain(&self.commands).find(|known| known.is_same(scene.application, 1, name));
                let mut data = match found {
                    Some(command) => json!({ "id": command.id, "name": name, "type": 1, "guild_id": command.guild_id }),
                    None => json!({ "id": self.mint.mint(now), "name": name, "type": 1, "guild_id": null }),
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
            Deed::Button => json!({ "custom_id": spec.custom_id, "component_type": 2, "id": 2 }),
            Deed::Modal => json!({ "custom_id": spec.custom_id, "components": spec.components }),
        }
    }

    fn button_message(&self, spec: &InteractionSpec, scene: &Scene) -> Result<Snowflake, DriveError> {
        let missing = DriveError::NoSuchMessage(spec.message_id.unwrap_or_default());
        let feed = self.feeds.get(&scene.channel).ok_or_else(|| missing.clone())?;
        match spec.message_id {
            Some(id) => feed.messages.contains_key(&id).then_some(id).ok_or(missing),
            None => {
                let newest = feed.messages.values().rev().find(|message| message.author.id == scene.bot);
                newest.map(|message| message.id).ok_or(missing)
            }
        }
    }
}

/// The default user of an interaction: the first member who is neither owner nor bot, or else the owner.
fn somebody(guild: &Guild) -> Arc<User> {
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
        world.interaction(&spec, NOW).map(|fired| serde_json::from_slice(&fired.data).unwrap())
    }

    #[test]
    fn a_command_in_a_guild_comes_with_all_that_clients_read() {
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
    fn a_direct_command_has_a_user_and_no_member() {
        let mut world = World::new(&SimConfig::default(), NOW);
        let fired = fire(&mut world, json!({ "direct": true })).unwrap();
        assert!(fired.get("member").is_none() && fired.get("guild_id").is_none());
        assert_eq!((&fired["context"], &fired["channel"]["type"]), (&json!(1), &json!(1)));
        assert_eq!(fire(&mut world, json!({ "direct": true })).unwrap()["channel_id"], fired["channel_id"]);
    }

    #[test]
    fn a_button_needs_a_message_of_the_bot() {
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
    fn only_members_can_act_in_a_guild() {
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
