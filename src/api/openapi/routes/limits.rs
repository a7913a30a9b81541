//! Discord's rate limits, breakers, and named budgets.

use serde_json::{Value, json};

use crate::api::{
    openapi::{
        common::{A_GUILD, A_TIME, LATER, next, snowflake, time},
        route_doc::{RouteDoc, Tag},
        schema::{
            Describe as _, SchemaRef, boolean, closed, count, integer, list, number, object, one_of_names, optional,
            or_null, required, schema_ref, text, text_of,
        },
    },
    problem::ProblemType,
};

pub(crate) fn doc_for(method: &str, path: &str) -> Option<RouteDoc> {
    Some(match (method, path) {
        ("GET", "/limits") => limits(),
        ("GET", "/limits/buckets") => buckets(),
        ("GET", "/limits/top") => top(),
        ("GET", "/breakers") => breakers(),
        ("POST", "/breakers/force") => force(),
        ("POST", "/breakers/reset") => reset(),
        ("GET", "/budgets") => budgets(),
        ("GET", "/budgets/{name}") => budget(),
        ("POST", "/budgets/{name}/acquire") => acquire(),
        ("POST", "/budgets/{name}/observe") => observe(),
        _ => return None,
    })
}

/// What the heaviest users are sorted by.
const TOP_BY: [&str; 3] = ["spend", "429", "invalid"];
/// States of a breaker.
const BREAKER_STATES: [&str; 4] = ["closed", "open", "half_open", "forced_open"];

/// All schemas of this file, by name.
pub(crate) fn schemas() -> Vec<(&'static str, SchemaRef)> {
    let mut schemas = limit_schemas();
    schemas.extend(breaker_schemas());
    schemas.extend(budget_schemas());
    schemas
}

fn limit_schemas() -> Vec<(&'static str, SchemaRef)> {
    let global = object([
        required("limit", count().describe("Maximum number of calls of this process in a window.")),
        required("total", count().describe("Maximum number of calls of all processes in a window.")),
        required("sharing", one_of_names(["alone", "store", "redis"]).describe("How the processes share the total.")),
        required("members", or_null(count().describe("Number of processes that share it."))),
        required("window_ms", count()),
        required("available", count().describe("Calls that are possible now.")),
        required("in_flight", count().describe("Calls in flight.")),
        required("waiting", count().describe("Calls that wait.")),
        required(
            "blocked_until",
            or_null(time().describe("No calls before this time, after a global 429 or a start.")),
        ),
        required("shared", boolean().describe("Whether other processes share it.")),
        required(
            "mode",
            or_null(text().describe("How this process shares it with the others, if they share it over Redis.")),
        ),
    ]);
    let lane = object([required("lane", schema_ref("Lane")), required("waiting", count())]);
    let route_spender = object([
        required("guild_id", or_null(snowflake())),
        required("route", text()),
        required("count", count()),
        required("over", count().describe("Maximum overestimate of the count.")),
    ]);
    let stops = one_of_names(["background", "all_but_interactive", "everything"]).describe("What is held back now.");
    let holder = object([
        required("by", one_of_names(["key", "tenant", "guild"])),
        optional("key", text().describe("The id of the API key.")),
        optional("tenant", text()),
        optional("guild_id", snowflake()),
        required(
            "used",
            count().describe("Its invalid requests in the window, in all processes as far as this one knows."),
        ),
        required("in_flight", count().describe("Its calls in flight in this process.")),
        required("ratio", number().describe("Used fraction of its share.")),
        required("capped", boolean().describe("Whether its calls wait.")),
        required("room_at", or_null(time().describe("When its calls can continue."))),
    ]);
    let share = object([
        required("percent", count().describe("The share that one key, tenant or guild may use, in percent.")),
        required("most", count().describe("The share as a number of invalid requests.")),
        required("capped", count().describe("Number of holders that have used up their share.")),
        required("held", count().describe("Calls held back by a share since this process started.")),
        required("holders", list(holder).describe("The largest holders, the largest first.")),
    ]);
    let invalid = object([
        required("used", count().describe("Responses that count towards Discord's ban.")),
        required("most", count().describe("The maximum that Discord permits.")),
        required("window_ms", count().describe("Length of the window.")),
        required("ratio", number()),
        required("stops", or_null(stops)),
        required("shared", boolean().describe("Whether other processes are counted together with this one.")),
        required("spenders", list(route_spender).describe("The guilds and routes with the most of them.")),
        required("share", share.describe("What one key, tenant or guild may use of it, and the largest holders.")),
    ]);
    let states = object(BREAKER_STATES.map(|state| required(state, count())));
    let limits = object([
        required("global", global),
        required("lanes", list(lane)),
        required("buckets", count().describe("Number of known buckets of routes.")),
        required("invalid_requests", invalid),
        required("breakers", states.describe("Number of breakers in each state.")),
    ]);
    let bucket = object([
        required("route", or_null(text().describe("Method and path of the calls."))),
        required("routes", list(text()).describe("All routes that share the bucket.")),
        required("bucket", or_null(text().describe("Discord's name of the bucket."))),
        required("id", or_null(text().describe("The guild, channel or webhook of the bucket."))),
        required("limit", or_null(count())),
        required("left", or_null(count())),
        required("resets_at", or_null(time())),
        required("waiting", count().describe("Calls that wait for the bucket.")),
    ]);
    let spender = object([
        optional("guild_id", snowflake()),
        optional("caller", text().describe("The caller, if it is not a guild.")),
        required("count", count()),
        required("over", count().describe("Maximum overestimate of the count.")),
    ]);
    vec![
        ("Limits", limits.describe("The current limits.").into()),
        ("Bucket", bucket.describe("A bucket of a route.").into()),
        ("BucketPage", object([required("buckets", list(schema_ref("Bucket"))), required("next", next())]).into()),
        (
            "Top",
            object([required("by", one_of_names(TOP_BY)), required("since", time()), required("top", list(spender))])
                .into(),
        ),
    ]
}

fn breaker_schemas() -> Vec<(&'static str, SchemaRef)> {
    let breaker = object([
        required("key", text().describe("What the breaker protects.")),
        required("kind", text().describe("The kind of the breaker.")),
        required("state", one_of_names(BREAKER_STATES)),
        optional("why", text().describe("Why it is in this state.")),
        optional("since", time()),
        required("until", or_null(time().describe("When it is probed again; `null` if it does not close by itself."))),
        optional("calls", count().describe("Calls in the window.")),
        optional("failures", count().describe("Failed calls in the window.")),
        optional("slow", count().describe("Slow calls in the window.")),
    ]);
    let key = || required("key", text_of(1, 256).describe("A key as listed."));
    let duration =
        integer(1, 7 * 24 * 60 * 60 * 1_000).describe("How long it stays open; without it, until it is reset.");
    let all = object([
        required("breakers", list(schema_ref("Breaker"))),
        required("watched", count().describe("Number of tracked breakers, including those that are not listed.")),
    ]);
    vec![
        ("Breaker", breaker.describe("A circuit breaker.").into()),
        ("Breakers", all.into()),
        ("ForceBreaker", closed([key(), optional("for_ms", or_null(duration))]).into()),
        ("ResetBreaker", closed([key()]).into()),
    ]
}

fn budget_schemas() -> Vec<(&'static str, SchemaRef)> {
    let budget = || {
        vec![
            required("name", text()),
            required("maximum", number().describe("The maximum of the budget.")),
            required("restore_per_second", number()),
            required(
                "observed",
                boolean().describe("Whether the values come from the upstream, and not only from the settings."),
            ),
            required("available", number().describe("What can be taken now.")),
            required("booked", number().describe("What was taken by calls that are still delayed.")),
            required(
                "blocked_until",
                or_null(time().describe(
                    "Nothing can be taken before this time, as the upstream \
                requested.",
                )),
            ),
            required(
                "kept",
                one_of_names(["alone", "together", "meanwhile"]).describe("Whether processes share the budget."),
            ),
        ]
    };
    let hour = object([required("hour", time()), required("points", number()), required("calls", count())]);
    let spend = required("spend", list(hour).describe("What was spent in each of the last hours, the newest first."));
    let wait = |description: &str| or_null(integer(0, DAY_MS).describe(description));
    let points = |description: &str| or_null(number().describe(description));
    let acquire = closed([
        optional("cost", points("The cost; default 1.")),
        optional("max_wait_ms", wait("Maximum delay that the caller accepts; default 5000.")),
    ]);
    let delay = "How long to wait before the call, whose cost is taken already. If it is not allowed: when to retry, \
        or `null` if waiting does not help.";
    let acquired = object([
        required("allowed", boolean()),
        required("delay_ms", or_null(count().describe(delay))),
        required("remaining", number()),
    ]);
    let observe = closed([
        optional("available", points("What remains.")),
        optional("maximum", points("The maximum.")),
        optional("restore_per_second", points("How much is restored in a second.")),
        optional("retry_after_ms", wait("Nothing is permitted before this time has passed.")),
        optional(
            "age_ms",
            or_null(integer(0, 60_000).describe(
                "How long ago the call was sent to which the upstream responded \
            so.",
            )),
        ),
    ]);
    vec![
        ("Budget", object(budget()).describe("The budget of another upstream, as far as it is known.").into()),
        ("BudgetInFull", object(budget().into_iter().chain([spend])).into()),
        ("Budgets", object([required("budgets", list(schema_ref("Budget"))), required("next", next())]).into()),
        ("AcquireBudget", acquire.into()),
        ("AcquiredBudget", acquired.into()),
        ("ObserveBudget", observe.describe("What the upstream reported: at least one field.").into()),
    ]
}

const DAY_MS: u64 = 24 * 60 * 60 * 1_000;

fn limits() -> RouteDoc {
    let now = json!({
        "global": {"limit": 50, "window_ms": 1_000, "available": 42, "in_flight": 3, "waiting": 0, "blocked_until": null, "shared": false, "total": 50, "sharing": "alone", "members": null, "mode": null},
        "lanes": [{"lane": "interactive", "waiting": 0}, {"lane": "operation", "waiting": 3}, {"lane": "background", "waiting": 0}],
        "buckets": 17,
        "invalid_requests": {
            "used": 12, "most": 10_000, "window_ms": 600_000, "ratio": 0.0012, "stops": null, "shared": false,
            "spenders": [{"guild_id": A_GUILD, "route": "POST /channels/{id}/messages", "count": 12, "over": 0}],
            "share": {"percent": 25, "most": 2_500, "capped": 0, "held": 0, "holders": [
                {"by": "guild", "guild_id": A_GUILD, "used": 12, "in_flight": 0, "ratio": 0.0048, "capped": false, "room_at": null},
            ]},
        },
        "breakers": {"closed": 4, "open": 0, "half_open": 0, "forced_open": 0},
    });
    RouteDoc::new(Tag::Limits, "show_limits", "Show the limits").responses(
        200,
        "The current limits.",
        schema_ref("Limits"),
        [("limits", now)],
    )
}

fn buckets() -> RouteDoc {
    let page = json!({"buckets": [{
        "route": "POST /guilds/{id}/roles", "routes": ["POST /guilds/{id}/roles"], "bucket": "b2fbc6c2", "id": A_GUILD, "limit": 250, "left": 249,
        "resets_at": A_TIME, "waiting": 0,
    }], "next": null});
    RouteDoc::new(Tag::Limits, "list_buckets", "List the known buckets of routes").with_paging().responses(
        200,
        "A page of buckets.",
        schema_ref("BucketPage"),
        [("page", page)],
    )
}

fn top() -> RouteDoc {
    let example = json!({"by": "spend", "since": A_TIME, "top": [{"guild_id": A_GUILD, "count": 1_204, "over": 0}]});
    RouteDoc::new(Tag::Limits, "list_top", "List the heaviest users of the limits")
        .query(
            "by",
            one_of_names(TOP_BY),
            "Calls, 429s, or responses that count towards Discord's ban; default `spend`.",
        )
        .query("limit", integer(1, 100).default(Some(10.into())), "Maximum number of entries.")
        .responses(200, "The heaviest users, the heaviest first.", schema_ref("Top"), [("top", example)])
}

fn a_breaker(state: &str, reason: &str, until: Option<&str>) -> Value {
    json!({
        "key": "target:crm", "kind": "target", "state": state, "why": reason, "since": A_TIME, "until": until, "calls": 0,
        "failures": 0, "slow": 0,
    })
}

fn breakers() -> RouteDoc {
    let all = json!({"breakers": [a_breaker("open", "failures", Some(LATER))], "watched": 1});
    RouteDoc::new(Tag::Limits, "list_breakers", "List circuit breakers")
        .description("Those that are not closed first. Closed breakers without failures are not tracked.")
        .responses(200, "All breakers.", schema_ref("Breakers"), [("breakers", all)])
        .problem(ProblemType::BadRequest)
}

fn force() -> RouteDoc {
    RouteDoc::new(Tag::Limits, "force_breaker", "Open a circuit breaker")
        .description(
            "Opens it until it is reset, or for a time. Meanwhile operations are `delayed` and use no attempt.",
        )
        .required_body(schema_ref("ForceBreaker"), [("for a minute", json!({"key": "target:crm", "for_ms": 60_000}))])
        .responses(
            200,
            "The breaker is open.",
            schema_ref("Breaker"),
            [("open", a_breaker("open", "forced", Some(LATER)))],
        )
        .problem(ProblemType::Conflict)
}

fn reset() -> RouteDoc {
    RouteDoc::new(Tag::Limits, "reset_breaker", "Close a circuit breaker")
        .description("Closes it, whatever opened it.")
        .required_body(schema_ref("ResetBreaker"), [("by key", json!({"key": "target:crm"}))])
        .responses(
            200,
            "The breaker is closed.",
            schema_ref("Breaker"),
            [("closed", a_breaker("closed", "reset", None))],
        )
}

fn with_name(doc: RouteDoc) -> RouteDoc {
    doc.path("name", text_of(1, 128), "The budget.")
}

fn a_budget() -> Value {
    json!({
        "name": "shop", "maximum": 2_000.0, "restore_per_second": 100.0, "observed": true, "available": 988.0, "booked": 0.0,
        "blocked_until": null, "kept": "alone",
    })
}

fn budgets() -> RouteDoc {
    RouteDoc::new(Tag::Budgets, "list_budgets", "List budgets")
        .responses(
            200,
            "All budgets.",
            schema_ref("Budgets"),
            [("budgets", json!({"budgets": [a_budget()], "next": null}))],
        )
        .problem(ProblemType::BadRequest)
        .problem(ProblemType::BudgetUnavailable)
}

fn budget() -> RouteDoc {
    let mut example = a_budget();
    example["spend"] = json!([{"hour": A_TIME, "points": 12.0, "calls": 1}]);
    with_name(RouteDoc::new(Tag::Budgets, "show_budget", "Show a budget"))
        .query("hours", integer(1, 366 * 24).default(Some(24.into())), "Number of hours of spend in the response.")
        .responses(200, "The budget.", schema_ref("BudgetInFull"), [("budget", example)])
        .problem(ProblemType::BudgetUnavailable)
}

fn acquire() -> RouteDoc {
    with_name(RouteDoc::new(Tag::Budgets, "acquire_budget", "Acquire points of a budget"))
        .description("The response comes at once; the caller must wait for the delay.")
        .optional_body(
            schema_ref("AcquireBudget"),
            [("ten points, within a second", json!({"cost": 10, "max_wait_ms": 1_000}))],
        )
        .responses(
            200,
            "Whether the call is allowed, and when.",
            schema_ref("AcquiredBudget"),
            [("at once", json!({"allowed": true, "delay_ms": 0, "remaining": 930.0}))],
        )
        .problem(ProblemType::Conflict)
        .problem(ProblemType::BudgetUnavailable)
}

fn observe() -> RouteDoc {
    with_name(RouteDoc::new(Tag::Budgets, "observe_budget", "Report the budget of an upstream"))
        .required_body(
            schema_ref("ObserveBudget"),
            [(
                "as reported by a GraphQL API",
                json!({"available": 988, "maximum": 2_000, "restore_per_second": 100, "age_ms": 80}),
            )],
        )
        .responses(200, "The report is recorded.", schema_ref("Budget"), [("budget", a_budget())])
        .problem(ProblemType::Conflict)
        .problem(ProblemType::BudgetUnavailable)
}
