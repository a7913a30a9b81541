//! Access checks: the calling bot, and its permissions in a guild or channel.

use std::sync::Arc;

use super::call::Call;
use super::error::ApiError;
use crate::id::Snowflake;
use crate::world::channel::{self, Home};
use crate::world::guild::Guild;
use crate::world::user::User;
use crate::world::{Bot, World, permissions};

/// Maximum length of `X-Audit-Log-Reason`, in characters.
const MAX_REASON: usize = 512;

/// The bot whose token was sent with the call.
pub(crate) fn bot<'w>(world: &'w World, call: &Call<'_>) -> Result<&'w Bot, ApiError> {
    call.caller.and_then(|application| world.bot(application)).ok_or(ApiError::UNAUTHORIZED)
}

/// The calling bot as a user.
pub(crate) fn user<'w>(world: &'w World, call: &Call<'_>) -> Result<&'w Arc<User>, ApiError> {
    world.users.get(&bot(world, call)?.user_id).ok_or(ApiError::UNAUTHORIZED)
}

/// The audit log reason of the call.
pub(crate) fn reason(call: &Call<'_>) -> Result<Option<String>, ApiError> {
    match &call.reason {
        Some(reason) if reason.chars().count() > MAX_REASON => {
            Err(ApiError::form("reason", "BASE_TYPE_MAX_LENGTH", "Must be 512 or fewer in length."))
        }
        Some(reason) if reason.is_empty() => Ok(None),
        reason => Ok(reason.clone()),
    }
}

/// Permissions and rank of the calling bot in a guild.
#[derive(Clone, Copy, Debug)]
pub(crate) struct GuildAccess {
    pub(crate) guild: Snowflake,
    pub(crate) user: Snowflake,
    pub(crate) permissions: u64,
    /// The position of its highest role.
    rank: u32,
}

impl GuildAccess {
    pub(crate) fn require(&self, bits: u64) -> Result<(), ApiError> {
        if self.permissions & bits == bits { Ok(()) } else { Err(ApiError::MISSING_PERMISSIONS) }
    }

    /// Requires that a role at this position is below the bot's highest role.
    pub(crate) fn require_above(&self, position: u32) -> Result<(), ApiError> {
        if self.rank > position { Ok(()) } else { Err(ApiError::MISSING_PERMISSIONS) }
    }

    /// Requires that the bot has all permissions that it grants.
    pub(crate) fn require_grantable(&self, bits: u64) -> Result<(), ApiError> {
        if bits & permissions::ALL & !self.permissions == 0 { Ok(()) } else { Err(ApiError::MISSING_PERMISSIONS) }
    }
}

/// The bot's access to the guild in the path.
pub(crate) fn in_guild(world: &World, call: &Call<'_>) -> Result<GuildAccess, ApiError> {
    find_guild_access(world, call, call.params.id("guild.id")?)
}

fn find_guild_access(world: &World, call: &Call<'_>, id: Snowflake) -> Result<GuildAccess, ApiError> {
    let user = bot(world, call)?.user_id;
    let guild = world.guilds.get(&id).ok_or(ApiError::UNKNOWN_GUILD)?;
    if !guild.members.contains_key(&user) {
        return Err(ApiError::MISSING_ACCESS);
    }
    Ok(GuildAccess { guild: id, user, permissions: guild.permissions_of(user), rank: guild.rank_of(user) })
}

/// Permissions of the calling bot in a channel that it can view.
#[derive(Clone, Debug)]
pub(crate) struct ChannelAccess {
    pub(crate) channel: Snowflake,
    pub(crate) kind: u8,
    pub(crate) guild: Option<Snowflake>,
    pub(crate) author: Arc<User>,
    pub(crate) permissions: u64,
}

impl ChannelAccess {
    pub(crate) fn allows(&self, bits: u64) -> bool {
        self.permissions & bits == bits
    }

    pub(crate) fn require(&self, bits: u64) -> Result<(), ApiError> {
        if self.allows(bits) { Ok(()) } else { Err(ApiError::MISSING_PERMISSIONS) }
    }
}

/// The bot's access to the channel in the path.
pub(crate) fn in_channel(world: &World, call: &Call<'_>) -> Result<ChannelAccess, ApiError> {
    let id = call.params.id("channel.id")?;
    let author = Arc::clone(user(world, call)?);
    match *world.homes.get(&id).ok_or(ApiError::UNKNOWN_CHANNEL)? {
        Home::Guild(guild_id) => {
            let guild = world.guilds.get(&guild_id).ok_or(ApiError::UNKNOWN_CHANNEL)?;
            let channel = guild.channels.get(&id).ok_or(ApiError::UNKNOWN_CHANNEL)?;
            let permissions = guild.permissions_in(author.id, channel);
            if permissions & permissions::VIEW_CHANNEL == 0 {
                return Err(ApiError::MISSING_ACCESS);
            }
            Ok(ChannelAccess { channel: id, kind: channel.kind, guild: Some(guild_id), author, permissions })
        }
        Home::Direct(application) => {
            if call.caller != Some(application) {
                return Err(ApiError::MISSING_ACCESS);
            }
            Ok(ChannelAccess {
                channel: id,
                kind: channel::DIRECT,
                guild: None,
                author,
                permissions: permissions::DIRECT,
            })
        }
    }
}

/// The bot's access to the channel in the path and to its guild; an error for direct channels.
pub(crate) fn in_guild_channel(world: &World, call: &Call<'_>) -> Result<(ChannelAccess, GuildAccess), ApiError> {
    let channel_access = in_channel(world, call)?;
    let guild = channel_access.guild.ok_or(ApiError::WRONG_CHANNEL_TYPE)?;
    let guild_access =
        GuildAccess { permissions: channel_access.permissions, ..find_guild_access(world, call, guild)? };
    Ok((channel_access, guild_access))
}

/// A guild to which access was checked.
pub(crate) fn guild(world: &World, id: Snowflake) -> Result<&Guild, ApiError> {
    world.guilds.get(&id).ok_or(ApiError::UNKNOWN_GUILD)
}

/// The same, mutable.
pub(crate) fn guild_mut(world: &mut World, id: Snowflake) -> Result<&mut Guild, ApiError> {
    world.guilds.get_mut(&id).ok_or(ApiError::UNKNOWN_GUILD)
}
