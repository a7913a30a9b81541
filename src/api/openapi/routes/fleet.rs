//! The processes and their shards; pausing and resuming everything.

use serde_json::json;

use crate::api::openapi::{
    common::{A_TIME, AN_OPERATION, next, time},
    route_doc::{RouteDoc, Tag},
    schema::{
        Describe as _, SchemaRef, anything, closed, count, formatted_as, integer, list, must, named, number, object,
        one_of_names, or_null, text, truth,
    },
};
use crate::api::problem::ProblemType;

pub(crate) fn about(method: &str, path: &str) -> Option<RouteDoc> {
    Some(match (method, path) {
        ("GET", "/instances") => instances(),
        ("GET", "/usage") => usage(),
        ("POST", "/reload") => reload(),
        ("POST", "/pause") => pause(),
        ("POST", "/resume") => resume(),
        ("GET", "/shards") => shards(),
        ("POST", "/shards/{id}/restart") => restart(),
        _ => return None,
    })
}

/// States of a shard.
const SHARD_STATES: [&str; 7] =
    ["connected", "connecting", "identifying", "resuming", "waiting", "elsewhere", "unclaimed"];

/// All schemas of this file, by name.
pub(crate) fn schemas() -> Vec<(&'static str, SchemaRef)> {
    let instance = object([
        must("id", formatted_as("uuid")),
        must("name", text().says("`store.instance` of the settings.")),
        must("is_self", truth().says("Whether it is the process that responds.")),
        must("started_at", time()),
        must("lag_ms", count().says("Time since its last heartbeat.")),
        must(
            "lease_left_ms",
            or_null(count().says(
                "Time until its lease expires without renewal; `null` for the only process of an \
                SQLite file.",
            )),
        ),
        must("arriving", truth().says("Whether it has just started, and takes no queues until it can send.")),
        must("leaving", truth().says("Whether it is shutting down.")),
        must("queues", count().says("Number of queues that it owns.")),
        must("highest_fence", or_null(count().says("The highest fence of those queues."))),
        must("shards", list(count()).says("The shards that it owns.")),
    ]);
    let shard = object([
        must("id", count()),
        must("state", one_of_names(SHARD_STATES).says("The state of its connection.")),
        must("session", or_null(text().says("The session that it would resume."))),
        must("sequence", or_null(count().says("Sequence number of the last received event."))),
        must("confirmed", or_null(count().says("Sequence number up to which all events are handled."))),
        must("lag", or_null(count().says("The difference between the two."))),
        must("latency_ms", or_null(count().says("Time until a heartbeat is acknowledged."))),
        must("instance", or_null(text().says("The process that owns it."))),
        must("resumes", or_null(count())),
        must("identifies", or_null(count())),
    ]);
    let shards = object([
        must("shards", list(named("Shard"))),
        must("total", count().says("Number of shards in all processes.")),
        must("next", next()),
    ]);
    let scope = object([
        must("by", one_of_names(["key", "tenant", "operator"]).says("The owner of this share of the store.")),
        must("name", text().says("The id of the key, the tenant, `admin`, or `handler:` and the name of a handler.")),
        must("operations", count().says("Number of unfinished operations.")),
        must("max_operations", or_null(count().says("The maximum; `null`: no limit."))),
        must("bytes", count().says("Stored bytes: operations until they are swept, dead letters, idempotency keys.")),
        must("max_bytes", or_null(count().says("The maximum; `null`: no limit."))),
        must("ratio", number().says("The larger of the two used fractions; 1 is at the bound.")),
    ]);
    let file = object([
        must("bytes", count().says("Bytes in use.")),
        must("accepts_until_bytes", count().says("Above this, new operations are rejected.")),
        must("max_bytes", count().says("Maximum size of the file.")),
    ]);
    let usage = object([
        must("usage", list(named("ScopeUsage"))),
        must("file", or_null(named("FileUsage").says("The SQLite file, for the operator."))),
    ]);
    let item = object([
        must("what", text().says("A setting, `certificate`, or `handler` and its name.")),
        must("old", anything().says("The old value; secrets are redacted.")),
        must("new", anything().says("The value that is in force now, or after a restart; secrets are redacted.")),
    ]);
    let reloaded = object([
        must("changed", list(named("ReloadedItem")).says("What has changed and is in force.")),
        must("unchanged", list(text()).says("What a reload can apply and has not changed.")),
        must(
            "needs_restart",
            list(named("ReloadedItem")).says(
                "What has changed and is in force after a restart \
            only.",
            ),
        ),
    ]);
    vec![
        ("ReloadedItem", item.says("A change.").into()),
        ("ReloadReport", reloaded.says("The result of a reload.").into()),
        ("ScopeUsage", scope.says("What a caller uses of the store.").into()),
        ("FileUsage", file.says("What is used of the SQLite file.").into()),
        ("StoreUsage", usage.into()),
        ("Instance", instance.says("A process that shares the store.").into()),
        ("Instances", object([must("instances", list(named("Instance")))]).into()),
        ("AllPaused", object([must("all_paused", truth())]).into()),
        ("Shard", shard.says("A shard of the gateway.").into()),
        ("Shards", shards.into()),
        ("ShardRestarting", object([must("id", count()), must("restarting", truth())]).into()),
    ]
}

fn instances() -> RouteDoc {
    let all = json!({"instances": [{
        "id": AN_OPERATION, "name": "guildhall-1", "is_self": true, "started_at": A_TIME, "lag_ms": 900,
        "lease_left_ms": null, "arriving": false, "leaving": false, "queues": 12, "highest_fence": 3, "shards": [0, 1],
    }]});
    RouteDoc::new(Tag::Fleet, "list_instances", "List processes")
        .says("All processes that share the store, the oldest first.")
        .answers(200, "All processes.", named("Instances"), [("instances", all)])
}

fn usage() -> RouteDoc {
    let own = json!({"usage": [
        {"by": "key", "name": "0198c0de0198c0de", "operations": 120, "max_operations": 50_000, "bytes": 163_840,
            "max_bytes": 1_073_741_824, "ratio": 0.0024},
        {"by": "tenant", "name": "acme", "operations": 400, "max_operations": 200_000, "bytes": 540_000,
            "max_bytes": 4_294_967_296_u64, "ratio": 0.002},
    ], "file": null});
    RouteDoc::new(Tag::Fleet, "show_usage", "Show the usage of the store")
        .says("For the calling key and its tenant; for the operator's key, for all keys and tenants.")
        .answers(200, "What is used, and the bounds.", named("StoreUsage"), [("usage", own)])
}

fn reload() -> RouteDoc {
    let report = json!({
        "changed": [{"what": "log.filter", "old": "info", "new": "debug"},
            {"what": "handler welcome", "old": null, "new": "added"}],
        "unchanged": ["discord.token", "certificate"],
        "needs_restart": [{"what": "gateway.shards", "old": 1, "new": 2}],
    });
    RouteDoc::new(Tag::Fleet, "reload", "Reload the settings of this process")
        .says(
            "Reads the settings file, the environment of the process and the files that they name again, as SIGHUP \
             does. Everything is checked first: with one error nothing is applied, and `errors` lists all of them.",
        )
        .may_take(closed([]), [("nothing", json!({}))])
        .answers(200, "What was applied, and what needs a restart.", named("ReloadReport"), [("report", report)])
        .refuses(ProblemType::InvalidSettings)
}

fn pause() -> RouteDoc {
    RouteDoc::new(Tag::Fleet, "pause_all", "Pause everything")
        .says("Like pausing a guild, for all guilds and all processes. Responses to interactions are not paused.")
        .answers(200, "Everything is paused.", named("AllPaused"), [("paused", json!({"all_paused": true}))])
}

fn resume() -> RouteDoc {
    RouteDoc::new(Tag::Fleet, "resume_all", "Resume everything")
        .says("Guilds that are paused individually stay paused.")
        .answers(200, "Everything is resumed.", named("AllPaused"), [("resumed", json!({"all_paused": false}))])
}

fn shards() -> RouteDoc {
    let all = json!({"shards": [{
        "id": 0, "state": "connected", "session": "8f14e45f", "sequence": 1042, "confirmed": 1042, "lag": 0, "latency_ms": 41,
        "instance": "guildhall-1", "resumes": 2, "identifies": 1,
    }], "total": 1, "next": null});
    let limit = integer(1, 500).default(Some(500.into()));
    RouteDoc::new(Tag::Fleet, "list_shards", "List shards")
        .says("Shards of other processes are shown as far as the store knows them.")
        .query("limit", limit, "Maximum number of entries.")
        .query("cursor", text(), "`next` of the previous response.")
        .answers(200, "A page of shards.", named("Shards"), [("shards", all)])
}

fn restart() -> RouteDoc {
    RouteDoc::new(Tag::Fleet, "restart_shard", "Restart a shard")
        .says("Closes its connection so that it resumes its session: no event is lost.")
        .path("id", integer(0, u64::from(u32::MAX)), "The shard.")
        .may_take(closed([]), [("nothing", json!({}))])
        .answers(
            202,
            "The shard will reconnect.",
            named("ShardRestarting"),
            [("restarting", json!({"id": 0, "restarting": true}))],
        )
        .refuses(ProblemType::Conflict)
}
