//! The processes and their shards; pausing and resuming everything.

use serde_json::json;

use crate::api::openapi::{
    common::{A_TIME, AN_OPERATION, next, time},
    route_doc::{RouteDoc, Tag},
    schema::{
        Describe as _, SchemaRef, any_value, boolean, closed, count, formatted_as, integer, list, number, object,
        one_of_names, or_null, required, schema_ref, text,
    },
};
use crate::api::problem::ProblemType;

pub(crate) fn doc_for(method: &str, path: &str) -> Option<RouteDoc> {
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
        required("id", formatted_as("uuid")),
        required("name", text().describe("`store.instance` of the settings.")),
        required("is_self", boolean().describe("Whether it is the process that responds.")),
        required("started_at", time()),
        required("lag_ms", count().describe("Time since its last heartbeat.")),
        required(
            "lease_left_ms",
            or_null(count().describe(
                "Time until its lease expires without renewal; `null` for the only process of an \
                SQLite file.",
            )),
        ),
        required("arriving", boolean().describe("Whether it has just started, and takes no queues until it can send.")),
        required("leaving", boolean().describe("Whether it is shutting down.")),
        required("queues", count().describe("Number of queues that it owns.")),
        required("highest_fence", or_null(count().describe("The highest fence of those queues."))),
        required("shards", list(count()).describe("The shards that it owns.")),
    ]);
    let shard = object([
        required("id", count()),
        required("state", one_of_names(SHARD_STATES).describe("The state of its connection.")),
        required("session", or_null(text().describe("The session that it would resume."))),
        required("sequence", or_null(count().describe("Sequence number of the last received event."))),
        required("confirmed", or_null(count().describe("Sequence number up to which all events are handled."))),
        required("lag", or_null(count().describe("The difference between the two."))),
        required("latency_ms", or_null(count().describe("Time until a heartbeat is acknowledged."))),
        required("instance", or_null(text().describe("The process that owns it."))),
        required("resumes", or_null(count())),
        required("identifies", or_null(count())),
    ]);
    let shards = object([
        required("shards", list(schema_ref("Shard"))),
        required("total", count().describe("Number of shards in all processes.")),
        required("next", next()),
    ]);
    let scope = object([
        required("by", one_of_names(["key", "tenant", "operator"]).describe("The owner of this share of the store.")),
        required(
            "name",
            text().describe("The id of the key, the tenant, `admin`, or `handler:` and the name of a handler."),
        ),
        required("operations", count().describe("Number of unfinished operations.")),
        required("max_operations", or_null(count().describe("The maximum; `null`: no limit."))),
        required(
            "bytes",
            count().describe("Stored bytes: operations until they are swept, dead letters, idempotency keys."),
        ),
        required("max_bytes", or_null(count().describe("The maximum; `null`: no limit."))),
        required("ratio", number().describe("The larger of the two used fractions; 1 is at the bound.")),
    ]);
    let file = object([
        required("bytes", count().describe("Bytes in use.")),
        required("accepts_until_bytes", count().describe("Above this, new operations are rejected.")),
        required("max_bytes", count().describe("Maximum size of the file.")),
    ]);
    let usage = object([
        required("usage", list(schema_ref("ScopeUsage"))),
        required("file", or_null(schema_ref("FileUsage").describe("The SQLite file, for the operator."))),
    ]);
    let item = object([
        required("what", text().describe("A setting, `certificate`, or `handler` and its name.")),
        required("old", any_value().describe("The old value; secrets are redacted.")),
        required(
            "new",
            any_value().describe("The value that is in force now, or after a restart; secrets are redacted."),
        ),
    ]);
    let reloaded = object([
        required("changed", list(schema_ref("ReloadedItem")).describe("What has changed and is in force.")),
        required("unchanged", list(text()).describe("What a reload can apply and has not changed.")),
        required(
            "needs_restart",
            list(schema_ref("ReloadedItem")).describe(
                "What has changed and is in force after a restart \
            only.",
            ),
        ),
    ]);
    vec![
        ("ReloadedItem", item.describe("A change.").into()),
        ("ReloadReport", reloaded.describe("The result of a reload.").into()),
        ("ScopeUsage", scope.describe("What a caller uses of the store.").into()),
        ("FileUsage", file.describe("What is used of the SQLite file.").into()),
        ("StoreUsage", usage.into()),
        ("Instance", instance.describe("A process that shares the store.").into()),
        ("Instances", object([required("instances", list(schema_ref("Instance")))]).into()),
        ("AllPaused", object([required("all_paused", boolean())]).into()),
        ("Shard", shard.describe("A shard of the gateway.").into()),
        ("Shards", shards.into()),
        ("ShardRestarting", object([required("id", count()), required("restarting", boolean())]).into()),
    ]
}

fn instances() -> RouteDoc {
    let all = json!({"instances": [{
        "id": AN_OPERATION, "name": "guildhall-1", "is_self": true, "started_at": A_TIME, "lag_ms": 900,
        "lease_left_ms": null, "arriving": false, "leaving": false, "queues": 12, "highest_fence": 3, "shards": [0, 1],
    }]});
    RouteDoc::new(Tag::Fleet, "list_instances", "List processes")
        .description("All processes that share the store, the oldest first.")
        .responses(200, "All processes.", schema_ref("Instances"), [("instances", all)])
}

fn usage() -> RouteDoc {
    let own = json!({"usage": [
        {"by": "key", "name": "0198c0de0198c0de", "operations": 120, "max_operations": 50_000, "bytes": 163_840,
            "max_bytes": 1_073_741_824, "ratio": 0.0024},
        {"by": "tenant", "name": "acme", "operations": 400, "max_operations": 200_000, "bytes": 540_000,
            "max_bytes": 4_294_967_296_u64, "ratio": 0.002},
    ], "file": null});
    RouteDoc::new(Tag::Fleet, "show_usage", "Show the usage of the store")
        .description("For the calling key and its tenant; for the operator's key, for all keys and tenants.")
        .responses(200, "What is used, and the bounds.", schema_ref("StoreUsage"), [("usage", own)])
}

fn reload() -> RouteDoc {
    let report = json!({
        "changed": [{"what": "log.filter", "old": "info", "new": "debug"},
            {"what": "handler welcome", "old": null, "new": "added"}],
        "unchanged": ["discord.token", "certificate"],
        "needs_restart": [{"what": "gateway.shards", "old": 1, "new": 2}],
    });
    RouteDoc::new(Tag::Fleet, "reload", "Reload the settings of this process")
        .description(
            "Reads the settings file, the environment of the process and the files that they name again, as SIGHUP \
             does. Everything is checked first: with one error nothing is applied, and `errors` lists all of them.",
        )
        .optional_body(closed([]), [("nothing", json!({}))])
        .responses(200, "What was applied, and what needs a restart.", schema_ref("ReloadReport"), [("report", report)])
        .problem(ProblemType::InvalidSettings)
}

fn pause() -> RouteDoc {
    RouteDoc::new(Tag::Fleet, "pause_all", "Pause everything")
        .description(
            "Like pausing a guild, for all guilds and all processes. Responses to interactions are not paused.",
        )
        .responses(200, "Everything is paused.", schema_ref("AllPaused"), [("paused", json!({"all_paused": true}))])
}

fn resume() -> RouteDoc {
    RouteDoc::new(Tag::Fleet, "resume_all", "Resume everything")
        .description("Guilds that are paused individually stay paused.")
        .responses(200, "Everything is resumed.", schema_ref("AllPaused"), [("resumed", json!({"all_paused": false}))])
}

fn shards() -> RouteDoc {
    let all = json!({"shards": [{
        "id": 0, "state": "connected", "session": "8f14e45f", "sequence": 1042, "confirmed": 1042, "lag": 0, "latency_ms": 41,
        "instance": "guildhall-1", "resumes": 2, "identifies": 1,
    }], "total": 1, "next": null});
    let limit = integer(1, 500).default(Some(500.into()));
    RouteDoc::new(Tag::Fleet, "list_shards", "List shards")
        .description("Shards of other processes are shown as far as the store knows them.")
        .query("limit", limit, "Maximum number of entries.")
        .query("cursor", text(), "`next` of the previous response.")
        .responses(200, "A page of shards.", schema_ref("Shards"), [("shards", all)])
}

fn restart() -> RouteDoc {
    RouteDoc::new(Tag::Fleet, "restart_shard", "Restart a shard")
        .description("Closes its connection so that it resumes its session: no event is lost.")
        .path("id", integer(0, u64::from(u32::MAX)), "The shard.")
        .optional_body(closed([]), [("nothing", json!({}))])
        .responses(
            202,
            "The shard will reconnect.",
            schema_ref("ShardRestarting"),
            [("restarting", json!({"id": 0, "restarting": true}))],
        )
        .problem(ProblemType::Conflict)
}
