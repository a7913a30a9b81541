//! Changes to the world from outside: guilds are created, users join, leave and send messages.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::json;
use thiserror::Error;

use super::channel::{self, Channel, Home};
use super::guild::Guild;
use super::member::{Member, MemberEvent};
use super::message::Message;
use super::role::{Role, Roles};
use super::user::User;
use super::{World, audit, intents, permissions};
use crate::dispatch::Dispatch;
use crate::id::Snowflake;
use crate::time::At;

/// Why a change from outside failed.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub(crate) enum DriveError {
    #[error("unknown guild {0}")]
    NoSuchGuild(Snowflake),
    #[error("unknown channel {0}")]
    NoSuchChannel(Snowflake),
    #[error("unknown user {0}")]
    NoSuchUser(Snowflake),
    #[error("unknown message {0}; set `message_id`")]
    NoSuchMessage(Snowflake),
    #[error("no bot has the application id {0}")]
    NoSuchBot(Snowflake),
    #[error("user {0} is already a member")]
    AlreadyMember(Snowflake),
    #[error("user {0} is not a member")]
    NotMember(Snowflake),
    #[error("user {0} is a bot and cannot leave; remove the guild instead")]
    IsBot(Snowflake),
    #[error("user {0} owns the guild and cannot leave; remove the guild instead")]
    IsOwner(Snowflake),
    #[error("channel {0} does not accept messages")]
    NotTextBased(Snowflake),
    #[error("the guild has no text channel; set `channel_id`")]
    NoChannel,
    #[error("{0:?} is not an emoji; use a Unicode emoji, or `name:id` for a custom one")]
    InvalidEmoji(String),
    #[error("message {0} has the maximum number of different reactions")]
    TooManyReactions(Snowflake),
}

/// A guild to create.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct GuildSpec {
    pub(crate) name: String,
    /// Members, in addition to owner and bots.
    pub(crate) members: u32,
    /// Text channels.
    pub(crate) channels: u32,
    /// Permission bits of the managed role of each bot.
    #[serde(with = "super::wire::bits")]
    pub(crate) bot_permissions: u64,
    /// Id of the owner; a new user is created if it is unknown or not given.
    pub(crate) owner: Option<Snowflake>,
}

impl Default for GuildSpec {
    fn default() -> Self {
        Self { name: "guild".into(), members: 0, channels: 1, bot_permissions: permissions::ADMINISTRATOR, owner: None }
    }
}

/// A user who joins.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct MemberSpec {
    /// An existing user, or the id of a new one; generated if not given.
    pub(crate) user_id: Option<Snowflake>,
    /// The name of a new user.
    pub(crate) name: Option<String>,
}

impl World {
    /// Creates a guild with every bot in it, and queues its event.
    pub(crate) fn add_guild(&mut self, spec: &GuildSpec, now: At) -> Snowflake {
        let id = self.create_guild(spec, now);
        let guild = &self.guilds[&id];
        self.dispatches.push(Dispatch::guild("GUILD_CREATE", id, intents::GUILDS, &guild.create_event()));
        id
    }

    /// Creates a guild without an event.
    pub(super) fn create_guild(&mut self, spec: &GuildSpec, now: At) -> Snowflake {
        let id = self.guild_ids.next();
        let mut roles = Roles::default();
        roles.insert(Role::new(id, "@everyone".into(), permissions::EVERYONE, 0));
        let owner = match spec.owner.and_then(|owner| self.users.get(&owner)) {
            Some(owner) => Arc::clone(owner),
            None => self.new_user(spec.owner, None, now),
        };
        let owner_id = owner.id;
        let mut guild = Guild {
            id,
            name: spec.name.clone(),
            owner: owner_id,
            joined_at: now,
            roles,
            channels: Default::default(),
            members: Default::default(),
            commands: Vec::new(),
            audit: audit::AuditLog::default(),
        };
        guild.members.insert(owner_id, Member::new(owner, now));
        for (position, bot) in (1..).zip(&self.bots) {
            let role = self.mint.generate(now);
            guild.roles.insert(Role::of_bot(role, bot.user_id, bot.name.clone(), spec.bot_permissions, position));
            let mut member = Member::new(Arc::clone(&self.users[&bot.user_id]), now);
            member.data.roles.push(role);
            guild.members.insert(bot.user_id, member);
        }
        for _ in 0..spec.members {
            let user = self.new_user(None, None, now);
            guild.members.insert(user.id, Member::new(user, now));
        }
        for position in 0..spec.channels {
            let name = if position == 0 { "general".into() } else { format!("channel-{}", position + 1) };
            let channel = Channel::new(self.mint.generate(now), channel::TEXT, id, name, position);
            self.homes.insert(channel.id, Home::Guild(id));
            guild.channels.insert(channel.id, channel);
        }
        self.guilds.insert(id, guild);
        id
    }

    fn new_user(&mut self, id: Option<Snowflake>, name: Option<String>, now: At) -> Arc<User> {
        let id = id.unwrap_or_else(|| self.mint.generate(now));
        let username = name.unwrap_or_else(|| format!("user{}", self.users.len()));
        let user = Arc::new(User { id, username, bot: false });
        self.users.insert(id, Arc::clone(&user));
        user
    }

    /// Removes a guild with its contents, and queues its event.
    pub(crate) fn remove_guild(&mut self, id: Snowflake) -> Result<(), DriveError> {
        let guild = self.guilds.remove(&id).ok_or(DriveError::NoSuchGuild(id))?;
        for channel in guild.channels.keys() {
            self.homes.remove(channel);
            self.remove_feed(*channel);
        }
        // `unavailable` is absent: that distinguishes a removal from an outage.
        self.dispatches.push(Dispatch::guild("GUILD_DELETE", id, intents::GUILDS, &json!({ "id": id })));
        Ok(())
    }

    /// Sets the permissions of every bot's managed role in the guild.
    pub(crate) fn set_bot_permissions(&mut self, id: Snowflake, bits: u64) -> Result<(), DriveError> {
        self.guild_mut(id)?;
        for role in self.bot_roles(id) {
            if let Some(role) = self.guild_mut(id)?.roles.get_mut(role) {
                role.permissions = bits;
            }
            self.notify_role_update(id, role);
        }
        Ok(())
    }

    /// Moves the managed roles of all bots in the guild, one above the other, starting at `position`.
    pub(crate) fn set_bot_role_position(&mut self, id: Snowflake, position: u32) -> Result<(), DriveError> {
        for (above, role) in (0..).zip(self.bot_roles(id)) {
            let roles = &mut self.guild_mut(id)?.roles;
            let positions = roles.positions_after(&[(role, position.max(1).saturating_add(above))]);
            for changed in roles.set_positions(&positions) {
                self.notify_role_update(id, changed);
            }
        }
        self.guild_mut(id).map(|_| ())
    }

    fn guild_mut(&mut self, id: Snowflake) -> Result<&mut Guild, DriveError> {
        self.guilds.get_mut(&id).ok_or(DriveError::NoSuchGuild(id))
    }

    fn bot_roles(&self, guild: Snowflake) -> Vec<Snowflake> {
        let Some(guild) = self.guilds.get(&guild) else { return Vec::new() };
        guild.roles.iter().filter(|role| role.tags.is_some()).map(|role| role.id).collect()
    }

    /// Queues an event for a changed role.
    pub(crate) fn notify_role_update(&mut self, guild: Snowflake, role: Snowflake) {
        if let Some(role) = self.guilds.get(&guild).and_then(|guild| guild.roles.get(role)) {
            let event = json!({ "guild_id": guild, "role": role });
            self.dispatches.push(Dispatch::guild("GUILD_ROLE_UPDATE", guild, intents::GUILDS, &event));
        }
    }

    /// A user joins a guild.
    pub(crate) fn join(&mut self, id: Snowflake, spec: MemberSpec, now: At) -> Result<Snowflake, DriveError> {
        if !self.guilds.contains_key(&id) {
            return Err(DriveError::NoSuchGuild(id));
        }
        let existing = spec.user_id.and_then(|user| self.users.get(&user)).map(Arc::clone);
        let user = existing.unwrap_or_else(|| self.new_user(spec.user_id, spec.name, now));
        let guild = self.guild_mut(id)?;
        if guild.members.contains_key(&user.id) {
            return Err(DriveError::AlreadyMember(user.id));
        }
        let member = Member::new(Arc::clone(&user), now);
        let event = MemberEvent { guild_id: id, member: &member };
        let dispatch = Dispatch::guild("GUILD_MEMBER_ADD", id, intents::GUILD_MEMBERS, &event);
        guild.members.insert(user.id, member);
        self.dispatches.push(dispatch);
        Ok(user.id)
    }

    /// A member leaves a guild voluntarily.
    pub(crate) fn leave(&mut self, id: Snowflake, user: Snowflake) -> Result<(), DriveError> {
        let guild = self.guild_mut(id)?;
        let member = guild.members.get(&user).ok_or(DriveError::NotMember(user))?;
        if member.user.bot {
            return Err(DriveError::IsBot(user));
        }
        if guild.owner == user {
            return Err(DriveError::IsOwner(user));
        }
        self.remove_member(id, user);
        Ok(())
    }

    /// Removes a member from a guild and queues the event.
    pub(crate) fn remove_member(&mut self, id: Snowflake, user: Snowflake) {
        let Some(member) = self.guilds.get_mut(&id).and_then(|guild| guild.members.remove(&user)) else { return };
        let event = json!({ "guild_id": id, "user": member.user });
        self.dispatches.push(Dispatch::guild("GUILD_MEMBER_REMOVE", id, intents::GUILD_MEMBERS, &event));
    }

    /// The user who acts in a channel for messages: by default the guild's owner, or the recipient of direct messages.
    pub(super) fn user_in(&self, channel: Snowflake, user: Option<Snowflake>) -> Result<Arc<User>, DriveError> {
        let default = match *self.homes.get(&channel).ok_or(DriveError::NoSuchChannel(channel))? {
            Home::Guild(guild) => {
                let guild = self.guilds.get(&guild).ok_or(DriveError::NoSuchGuild(guild))?;
                if !guild.channels.get(&channel).is_some_and(|found| channel::accepts_messages(found.kind)) {
                    return Err(DriveError::NotTextBased(channel));
                }
                guild.owner
            }
            Home::Direct(_) => self.directs.get(&channel).ok_or(DriveError::NoSuchChannel(channel))?.recipient.id,
        };
        let user = user.unwrap_or(default);
        self.users.get(&user).map(Arc::clone).ok_or(DriveError::NoSuchUser(user))
    }

    /// Posts a message of `author`; by default of the guild's owner, or of the recipient of a direct channel.
    pub(crate) fn user_message(
        &mut self,
        channel: Snowflake,
        author: Option<Snowflake>,
        content: String,
        now: At,
    ) -> Result<Snowflake, DriveError> {
        let user = self.user_in(channel, author)?;
        let message = Message::new(self.mint.generate(now), channel, user, content, now);
        let id = message.id;
        self.post(message, None);
        Ok(id)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::config::SimConfig;
    use crate::world::MemberQuery;

    const NOW: At = At::from_micros(1_700_000_000_000_000);

    fn world() -> World {
        World::new(&SimConfig::default(), NOW)
    }

    fn names(world: &mut World) -> Vec<&'static str> {
        world.dispatches.drain(..).map(|dispatch| dispatch.name).collect()
    }

    #[test]
    fn guild_has_every_bot_with_a_managed_role_on_top() {
        let mut world = world();
        let guild = world.add_guild(&GuildSpec { members: 4, channels: 2, ..GuildSpec::default() }, NOW);
        assert_eq!(names(&mut world), ["GUILD_CREATE"]);
        let created: serde_json::Value = serde_json::from_slice(&world.guild_create(guild).unwrap()).unwrap();
        assert_eq!(created["member_count"], 6);
        assert_eq!(created["members"].as_array().unwrap().len(), 6);
        assert_eq!(created["channels"].as_array().unwrap().len(), 2);
        assert_eq!(created["unavailable"], false);
        let bot = &world.bots[0];
        let top = created["roles"].as_array().unwrap().iter().max_by_key(|role| role["position"].as_u64()).unwrap();
        assert_eq!(top["tags"]["bot_id"], json!(bot.user_id));
        assert_eq!(top["managed"], true);
        assert!(world.has_bot(guild, bot.application_id));
        assert_eq!(world.guilds_of(bot.application_id).count(), 2);
    }

    #[test]
    fn guilds_created_in_one_instant_have_different_shards() {
        let world = World::new(&SimConfig { guilds: 40, ..SimConfig::default() }, NOW);
        for shard in 0..4 {
            assert_eq!(world.guilds.keys().filter(|id| id.shard(4) == shard).count(), 10);
        }
    }

    #[test]
    fn removing_a_guild_removes_its_channels_and_sends_an_event() {
        let mut world = world();
        let (guild, application) = (*world.guilds.keys().next().unwrap(), world.bots[0].application_id);
        let channel = *world.guilds[&guild].channels.keys().next().unwrap();
        world.remove_guild(guild).unwrap();
        assert_eq!(names(&mut world), ["GUILD_DELETE"]);
        assert!(!world.has_bot(guild, application));
        assert_eq!(world.guilds_of(application).count(), 0);
        assert_eq!(world.guild_create(guild), None);
        assert!(!world.homes.contains_key(&channel));
        assert_eq!(world.remove_guild(guild), Err(DriveError::NoSuchGuild(guild)));
    }

    #[test]
    fn users_join_once_and_leave_once() {
        let mut world = world();
        let guild = *world.guilds.keys().next().unwrap();
        let user = world.join(guild, MemberSpec { name: Some("ada".into()), ..MemberSpec::default() }, NOW).unwrap();
        let again = MemberSpec { user_id: Some(user), ..MemberSpec::default() };
        assert_eq!(world.join(guild, again.clone(), NOW), Err(DriveError::AlreadyMember(user)));
        let query = MemberQuery { query: "AD".into(), limit: 5, ..MemberQuery::default() };
        let chunk: serde_json::Value = serde_json::from_slice(&world.member_chunks(guild, &query)[0]).unwrap();
        assert_eq!(chunk["members"][0]["user"]["username"], "ada");
        world.leave(guild, user).unwrap();
        assert_eq!(world.leave(guild, user), Err(DriveError::NotMember(user)));
        assert_eq!(names(&mut world), ["GUILD_MEMBER_ADD", "GUILD_MEMBER_REMOVE"]);
        assert_eq!(world.join(guild, again, NOW), Ok(user));
    }

    #[test]
    fn members_come_in_chunks_of_a_thousand() {
        let mut world = world();
        let guild = world.add_guild(&GuildSpec { members: 2_400, ..GuildSpec::default() }, NOW);
        let query = MemberQuery { nonce: Some("n".into()), ..MemberQuery::default() };
        let chunks = world.member_chunks(guild, &query);
        let sizes: Vec<_> = chunks
            .iter()
            .map(|chunk| {
                let chunk: serde_json::Value = serde_json::from_slice(chunk).unwrap();
                assert_eq!((&chunk["chunk_count"], &chunk["nonce"]), (&json!(3), &json!("n")));
                chunk["members"].as_array().unwrap().len()
            })
            .collect();
        assert_eq!(sizes, [1_000, 1_000, 402]);
        let created: serde_json::Value = serde_json::from_slice(&world.guild_create(guild).unwrap()).unwrap();
        assert_eq!(created["large"], true);
        assert_eq!(created["members"].as_array().unwrap().len(), 250);
    }

    #[test]
    fn unknown_users_are_returned_as_not_found() {
        let world = world();
        let guild = *world.guilds.keys().next().unwrap();
        let query = MemberQuery { user_ids: vec![Snowflake::new(5)], ..MemberQuery::default() };
        let chunk: serde_json::Value = serde_json::from_slice(&world.member_chunks(guild, &query)[0]).unwrap();
        assert_eq!(chunk["not_found"], json!(["5"]));
    }

    #[test]
    fn snapshot_restores_the_world() {
        let mut world = world();
        let guild = *world.guilds.keys().next().unwrap();
        let channel = *world.guilds[&guild].channels.keys().next().unwrap();
        let message = world.user_message(channel, None, "hello".into(), NOW).unwrap();
        let text = serde_json::to_string(&world).unwrap();
        let mut restored: World = serde_json::from_str(&text).unwrap();
        assert_eq!(restored.feeds[&channel].messages[&message], world.feeds[&channel].messages[&message]);
        assert_eq!(restored.guild_create(guild), world.guild_create(guild));
        let later = NOW.after(Duration::from_secs(1));
        assert_eq!(restored.add_guild(&GuildSpec::default(), later), world.add_guild(&GuildSpec::default(), later));
    }

    #[test]
    fn bot_role_can_lose_permissions_and_move() {
        let mut world = world();
        let guild = *world.guilds.keys().next().unwrap();
        let role = world.mint.generate(NOW);
        world.guilds.get_mut(&guild).unwrap().roles.insert_lowest(Role::new(role, "high".into(), 0, 0));
        world.set_bot_permissions(guild, 0).unwrap();
        world.set_bot_role_position(guild, 1).unwrap();
        let bot = world.bots[0].user_id;
        let guild_state = &world.guilds[&guild];
        assert_eq!(guild_state.permissions_of(bot), permissions::EVERYONE);
        assert_eq!((guild_state.rank_of(bot), guild_state.roles.get(role).unwrap().position), (1, 2));
        assert_eq!(names(&mut world), ["GUILD_ROLE_UPDATE"; 3]);
    }
}
