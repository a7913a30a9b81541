//! Members of a guild.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::user::User;
use super::wire;
use crate::id::Snowflake;
use crate::time::At;

/// A member; its JSON is Discord's guild member object.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Member {
    pub(crate) user: Arc<User>,
    #[serde(flatten)]
    pub(crate) data: MemberData,
}

/// A member without its user, as MESSAGE_CREATE contains it beside the author.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct MemberData {
    pub(crate) nick: Option<String>,
    pub(crate) avatar: Option<String>,
    pub(crate) banner: Option<String>,
    pub(crate) roles: Vec<Snowflake>,
    #[serde(with = "wire::iso")]
    pub(crate) joined_at: At,
    #[serde(with = "wire::iso_or_null")]
    pub(crate) premium_since: Option<At>,
    pub(crate) deaf: bool,
    pub(crate) mute: bool,
    pub(crate) flags: u32,
    pub(crate) pending: bool,
    #[serde(with = "wire::iso_or_null")]
    pub(crate) communication_disabled_until: Option<At>,
}

impl Member {
    pub(crate) fn new(user: Arc<User>, joined_at: At) -> Self {
        let data = MemberData {
            nick: None,
            avatar: None,
            banner: None,
            roles: Vec::new(),
            joined_at,
            premium_since: None,
            deaf: false,
            mute: false,
            flags: 0,
            pending: false,
            communication_disabled_until: None,
        };
        Self { user, data }
    }

    /// Whether the nickname or the user name starts with `prefix`, ignoring case.
    pub(crate) fn matches_name(&self, prefix: &str) -> bool {
        let starts = |name: &str| name.to_lowercase().starts_with(&prefix.to_lowercase());
        starts(&self.user.username) || self.data.nick.as_deref().is_some_and(starts)
    }
}

/// A member in GUILD_MEMBER_ADD and GUILD_MEMBER_UPDATE.
#[derive(Debug, Serialize)]
pub(crate) struct MemberEvent<'a> {
    pub(crate) guild_id: Snowflake,
    #[serde(flatten)]
    pub(crate) member: &'a Member,
}
