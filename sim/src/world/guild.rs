//! Guilds, and their JSON.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::audit::AuditLog;
use super::channel::{Channel, MAX_IN_CATEGORY};
use super::command::Command;
use super::member::Member;
use super::permissions;
use super::role::{Role, Roles};
use crate::id::Snowflake;
use crate::time::At;

/// Above this number of members, GUILD_CREATE does not list all of them.
const LARGE: usize = 250;

/// A guild and everything that belongs to it except its messages.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Guild {
    pub(crate) id: Snowflake,
    pub(crate) name: String,
    pub(crate) owner: Snowflake,
    pub(crate) joined_at: At,
    pub(crate) roles: Roles,
    pub(crate) channels: BTreeMap<Snowflake, Channel>,
    pub(crate) members: BTreeMap<Snowflake, Member>,
    /// Commands that bots registered for this guild only.
    pub(crate) commands: Vec<Command>,
    pub(crate) audit: AuditLog,
}

impl Guild {
    /// Permissions of a member, without overwrites; none for other users.
    pub(crate) fn permissions_of(&self, user: Snowflake) -> u64 {
        if user == self.owner {
            return permissions::ALL;
        }
        let Some(member) = self.members.get(&user) else { return 0 };
        let role_permissions = |id: &Snowflake| self.roles.get(*id).map(|role| role.permissions);
        permissions::base(
            role_permissions(&self.id).unwrap_or(0),
            member.data.roles.iter().filter_map(role_permissions),
        )
    }

    /// Permissions of a member in a channel.
    pub(crate) fn permissions_in(&self, user: Snowflake, channel: &Channel) -> u64 {
        let base = self.permissions_of(user);
        let roles = self.members.get(&user).map_or(&[][..], |member| &member.data.roles);
        permissions::in_channel(base, self.id, user, roles, &channel.permission_overwrites)
    }

    /// The position of a member's highest role; the owner is above all.
    pub(crate) fn rank_of(&self, user: Snowflake) -> u32 {
        if user == self.owner {
            return u32::MAX;
        }
        let roles = self.members.get(&user).map_or(&[][..], |member| &member.data.roles);
        roles.iter().filter_map(|id| self.roles.get(*id)).map(|role| role.position).max().unwrap_or(0)
    }

    /// Whether a category is full, without counting `apart_from`.
    pub(crate) fn is_full(&self, category: Snowflake, apart_from: Option<Snowflake>) -> bool {
        let children = self
            .channels
            .values()
            .filter(|channel| channel.parent_id == Some(category) && Some(channel.id) != apart_from);
        children.count() >= MAX_IN_CATEGORY
    }

    pub(crate) fn view(&self) -> GuildView<'_> {
        GuildView {
            id: self.id,
            name: &self.name,
            icon: (),
            description: (),
            home_header: (),
            splash: (),
            discovery_splash: (),
            banner: (),
            features: [],
            owner_id: self.owner,
            application_id: (),
            region: "us-east",
            afk_channel_id: (),
            afk_timeout: 300,
            system_channel_id: (),
            system_channel_flags: 0,
            widget_enabled: false,
            widget_channel_id: (),
            verification_level: 0,
            roles: self.roles.iter().collect(),
            default_message_notifications: 0,
            mfa_level: 0,
            explicit_content_filter: 0,
            max_presences: (),
            max_members: 500_000,
            max_stage_video_channel_users: 50,
            max_video_channel_users: 25,
            vanity_url_code: (),
            premium_tier: 0,
            premium_subscription_count: 0,
            preferred_locale: "en-US",
            rules_channel_id: (),
            safety_alerts_channel_id: (),
            public_updates_channel_id: (),
            premium_progress_bar_enabled: false,
            nsfw: false,
            nsfw_level: 0,
            emojis: [],
            stickers: [],
            incidents_data: (),
            approximate_member_count: None,
            approximate_presence_count: None,
        }
    }

    /// The guild with `?with_counts=true`. Only bots are ever online.
    pub(crate) fn view_with_counts(&self) -> GuildView<'_> {
        let online = self.members.values().filter(|member| member.user.bot).count();
        GuildView {
            approximate_member_count: Some(self.members.len()),
            approximate_presence_count: Some(online),
            ..self.view()
        }
    }

    /// The `d` of GUILD_CREATE. A large guild lists its owner, its bots, and other members up to the maximum.
    pub(crate) fn create_event(&self) -> GuildCreate<'_> {
        let large = self.members.len() > LARGE;
        let first = |member: &Member| member.user.bot || member.user.id == self.owner;
        let members = if large {
            let chosen = self.members.values().filter(|member| first(member));
            chosen.chain(self.members.values().filter(|member| !first(member))).take(LARGE).collect()
        } else {
            self.members.values().collect()
        };
        GuildCreate {
            guild: self.view(),
            joined_at: self.joined_at.iso8601(),
            large,
            unavailable: false,
            member_count: self.members.len(),
            members,
            channels: self.channels.values().collect(),
            threads: [],
            presences: [],
            voice_states: [],
            stage_instances: [],
            guild_scheduled_events: [],
            soundboard_sounds: [],
        }
    }
}

/// A list that is always empty.
type EmptyList = [(); 0];

/// Discord's guild object. Fields that the simulator does not vary have the values of a plain new guild.
#[derive(Debug, Serialize)]
pub(crate) struct GuildView<'a> {
    id: Snowflake,
    name: &'a str,
    icon: (),
    description: (),
    home_header: (),
    splash: (),
    discovery_splash: (),
    banner: (),
    features: EmptyList,
    owner_id: Snowflake,
    application_id: (),
    region: &'static str,
    afk_channel_id: (),
    afk_timeout: u32,
    system_channel_id: (),
    system_channel_flags: u32,
    widget_enabled: bool,
    widget_channel_id: (),
    verification_level: u8,
    roles: Vec<&'a Role>,
    default_message_notifications: u8,
    mfa_level: u8,
    explicit_content_filter: u8,
    max_presences: (),
    max_members: u32,
    max_stage_video_channel_users: u32,
    max_video_channel_users: u32,
    vanity_url_code: (),
    premium_tier: u8,
    premium_subscription_count: u32,
    preferred_locale: &'static str,
    rules_channel_id: (),
    safety_alerts_channel_id: (),
    public_updates_channel_id: (),
    premium_progress_bar_enabled: bool,
    nsfw: bool,
    nsfw_level: u8,
    emojis: EmptyList,
    stickers: EmptyList,
    incidents_data: (),
    #[serde(skip_serializing_if = "Option::is_none")]
    approximate_member_count: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    approximate_presence_count: Option<usize>,
}

/// The guild object with the fields that GUILD_CREATE adds.
#[derive(Debug, Serialize)]
pub(crate) struct GuildCreate<'a> {
    #[serde(flatten)]
    guild: GuildView<'a>,
    joined_at: String,
    large: bool,
    unavailable: bool,
    member_count: usize,
    members: Vec<&'a Member>,
    channels: Vec<&'a Channel>,
    threads: EmptyList,
    presences: EmptyList,
    voice_states: EmptyList,
    stage_instances: EmptyList,
    guild_scheduled_events: EmptyList,
    soundboard_sounds: EmptyList,
}
