//! `/guilds/{guild.id}/audit-logs`: the audit log.

use serde_json::json;

use super::access;
use super::call::{Call, Reply};
use super::error::ApiError;
use super::form::Query;
use crate::world::World;
use crate::world::audit::AuditQuery;
use crate::world::permissions::VIEW_AUDIT_LOG;

pub(crate) fn list(world: &mut World, call: &Call<'_>) -> Result<Reply, ApiError> {
    let guild_access = access::in_guild(world, call)?;
    guild_access.require(VIEW_AUDIT_LOG)?;
    let mut query = Query::of(call);
    let filter = AuditQuery {
        user: query.snowflake("user_id"),
        action: query.integer("action_type", 0..=i64::from(u16::MAX)).and_then(|action| u16::try_from(action).ok()),
        before: query.snowflake("before"),
        after: query.snowflake("after"),
        limit: query.limit(1..=100, 50),
    };
    query.finish()?;
    let guild = access::guild(world, guild_access.guild)?;
    let mut entries = guild.audit.find(&filter, call.now);
    entries.retain(|entry| entry.target_id.is_none_or(|target| !call.hidden.contains(&target)));
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

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use serde_json::{Value, json};

    use crate::rest::testing::RestFixture;
    use crate::world::permissions;

    fn targets(fixture: &mut RestFixture, query: &str) -> Vec<Value> {
        let log = fixture.get(&fixture.guild_path(&format!("/audit-logs{query}"))).json;
        log["audit_log_entries"].as_array().unwrap().iter().map(|entry| entry["target_id"].clone()).collect()
    }

    #[test]
    fn entries_are_found_by_user_action_and_page() {
        let mut fixture = RestFixture::new();
        let roles = fixture.guild_path("/roles");
        let ids: Vec<Value> = (0..3).map(|_| fixture.post(&roles, json!({})).json["id"].clone()).collect();
        let channel = fixture.post(&fixture.guild_path("/channels"), json!({ "name": "x" })).json["id"].clone();
        assert_eq!(targets(&mut fixture, ""), [&channel, &ids[2], &ids[1], &ids[0]].map(Clone::clone));
        assert_eq!(targets(&mut fixture, "?action_type=10"), [channel]);
        assert_eq!(targets(&mut fixture, "?action_type=30&limit=2"), [&ids[2], &ids[1]].map(Clone::clone));
        assert_eq!(targets(&mut fixture, "?user_id=5"), [Value::Null; 0]);
        let log = fixture.get(&fixture.guild_path("/audit-logs?action_type=30")).json;
        let middle = log["audit_log_entries"][1]["id"].as_str().unwrap();
        assert_eq!(targets(&mut fixture, &format!("?before={middle}")), [ids[0].clone()]);
        assert_eq!(targets(&mut fixture, &format!("?after={middle}&action_type=30")), [ids[2].clone()]);
        assert_eq!(log["users"][0]["bot"], true);
        let by_bot = format!("?limit=1&user_id={}", fixture.application);
        assert_eq!(targets(&mut fixture, &by_bot).len(), 1);
    }

    #[test]
    fn entries_expire_after_45_days_and_reasons_have_a_max_length() {
        let mut fixture = RestFixture::new();
        let roles = fixture.guild_path("/roles");
        assert_eq!(fixture.reason(&"r".repeat(513)).post(&roles, json!({})).code(), 50035);
        assert_eq!(fixture.reason(&"r".repeat(512)).post(&roles, json!({})).status, 200);
        assert_eq!(targets(&mut fixture, "").len(), 1);
        fixture.advance(Duration::from_secs(46 * 24 * 60 * 60));
        assert_eq!(targets(&mut fixture, "").len(), 0);
    }

    #[test]
    fn audit_log_needs_its_permission() {
        let mut fixture = RestFixture::new();
        let path = fixture.guild_path("/audit-logs");
        assert_eq!(fixture.get(&format!("{path}?limit=101")).code(), 50035);
        fixture.world.set_bot_permissions(fixture.guild, 0).unwrap();
        assert_eq!(fixture.get(&path).code(), 50013);
        fixture.world.set_bot_permissions(fixture.guild, permissions::VIEW_AUDIT_LOG).unwrap();
        assert_eq!(fixture.get(&path).status, 200);
    }
}
