//! `/guilds/{guild.id}/audit-logs`: who did what.

use serde_json::json;

use super::access;
use super::call::{Call, Reply};
use super::error::ApiError;
use super::form::Query;
use crate::world::World;
use crate::world::audit::AuditQuery;
use crate::world::permissions::VIEW_AUDIT_LOG;

pub(crate) fn list(world: &mut World, call: &Call<'_>) -> Result<Reply, ApiError> {
    let standing = access::in_guild(world, call)?;
    standing.need(VIEW_AUDIT_LOG)?;
    let mut query = Query::of(call);
    let asked = AuditQuery {
        user: query.snowflake("user_id"),
        action: query.integer("action_type", 0..=i64::from(u16::MAX)).and_then(|action| u16::try_from(action).ok()),
        before: query.snowflake("before"),
        after: query.snowflake("after"),
        limit: query.limit(1..=100, 50),
    };
    query.finish()?;
    let guild = access::guild(world, standing.guild)?;
    let entries = guild.audit.find(&asked, call.now);
    let mut ids: Vec<_> = entries.iter().flat_map(|entry| [Some(entry.user_id), entry.target_id]).flatten().collect();
    ids.sort_unstable();
    ids.dedup();
    let users: Vec<_> = ids.iter().filter_map(|id| world.users.get(id)).collect();
    Ok(Reply::ok(&json!({
        "audit_log_entries": entries,
        "users": users,
        "integrations": [],
        "webhooks": [],
        "guild_scheduled_events": [],
        "threads": [],
        "application_commands": [],
        "auto_moderation_rules": [],
    })))
}
