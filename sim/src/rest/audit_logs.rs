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
    let mut entries = guild.audit.find(&asked, call.now);
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

    use crate::rest::testing::Stage;
    use crate::world::permissions;

    fn targets(stage: &mut Stage, query: &str) -> Vec<Value> {
        let log = stage.get(&stage.guild_path(&format!("/audit-logs{query}"))).json;
        log["audit_log_entries"].as_array().unwrap().iter().map(|entry| entry["target_id"].clone()).collect()
    }

    #[test]
    fn entries_are_found_by_user_action_and_page() {
        let mut stage = Stage::new();
        let roles = stage.guild_path("/roles");
        let ids: Vec<Value> = (0..3).map(|_| stage.post(&roles, json!({})).json["id"].clone()).collect();
        let channel = stage.post(&stage.guild_path("/channels"), json!({ "name": "x" })).json["id"].clone();
        assert_eq!(targets(&mut stage, ""), [&channel, &ids[2], &ids[1], &ids[0]].map(Clone::clone));
        assert_eq!(targets(&mut stage, "?action_type=10"), [channel]);
        assert_eq!(targets(&mut stage, "?action_type=30&limit=2"), [&ids[2], &ids[1]].map(Clone::clone));
        assert_eq!(targets(&mut stage, "?user_id=5"), [Value::Null; 0]);
        let log = stage.get(&stage.guild_path("/audit-logs?action_type=30")).json;
        let middle = log["audit_log_entries"][1]["id"].as_str().unwrap();
        assert_eq!(targets(&mut stage, &format!("?before={middle}")), [ids[0].clone()]);
        assert_eq!(targets(&mut stage, &format!("?after={middle}&action_type=30")), [ids[2].clone()]);
        assert_eq!(log["users"][0]["bot"], true);
        let by_bot = format!("?limit=1&user_id={}", stage.application);
        assert_eq!(targets(&mut stage, &by_bot).len(), 1);
    }

    #[test]
    fn entries_are_gone_after_45_days_and_reasons_have_a_length() {
        let mut stage = Stage::new();
        let roles = stage.guild_path("/roles");
        assert_eq!(stage.reason(&"r".repeat(513)).post(&roles, json!({})).code(), 50035);
        assert_eq!(stage.reason(&"r".repeat(512)).post(&roles, json!({})).status, 200);
        assert_eq!(targets(&mut stage, "").len(), 1);
        stage.pass(Duration::from_secs(46 * 24 * 60 * 60));
        assert_eq!(targets(&mut stage, "").len(), 0);
    }

    #[test]
    fn the_log_is_for_those_who_may_read_it() {
        let mut stage = Stage::new();
        let path = stage.guild_path("/audit-logs");
        assert_eq!(stage.get(&format!("{path}?limit=101")).code(), 50035);
        stage.world.set_bot_permissions(stage.guild, 0).unwrap();
        assert_eq!(stage.get(&path).code(), 50013);
        stage.world.set_bot_permissions(stage.guild, permissions::VIEW_AUDIT_LOG).unwrap();
        assert_eq!(stage.get(&path).status, 200);
    }
}
