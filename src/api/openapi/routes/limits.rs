//! Discord's rate limits, breakers, and named budgets.

use serde_json::{Value, json};

use crate::api::{
    openapi::{
        common::{A_GUILD, A_TIME, LATER, next, snowflake, time},
        route_doc::{RouteDoc, Tag},
        schema::{
            Describe as _, SchemaRef, closed, count, integer, list, may, must, named, number, object, one_of_names,
            or_null, text, text_of, truth,
        },
    },
    problem::ProblemType,
};

pub(crate) fn about(method: &str, path: &str) -> Option<RouteDoc> {
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
    let mut schemas = of_limits();
    schemas.extend(of_breakers());
    schemas.extend(of_budgets());
    schemas
}

fn of_limits() -> Vec<(&'static str, SchemaRef)> {
    let global = object([
        must("limit", count().says("Maximum number of calls of this process in a window.")),
        must("total", count().says("Maximum number of calls of all processes in a window.")),
        must("sharing", one_of_names(["alone", "store", "redis"]).says("How the processes share the total.")),
        must("members", or_null(count().says("Number of processes that share it."))),
        must("window_ms", count()),
        must("available", count().says("Calls that are possible now.")),
        must("in_flight", count().says("Calls in flight.")),
        must("waiting", count().says("Calls that wait.")),
        must("blocked_until", or_null(time().says("No calls before this time, after a global 429 or a start."))),
        must("shared", truth().says("Whether other processes share it.")),
        must("mode", or_null(text().says("How this process shares it with the others, if they share it over Redis."))),
    ]);
    let lane = object([must("lane", named("Lane")), must("waiting", count())]);
    let who = object([
        must("guild_id", or_null(snowflake())),
        must("route", text()),
        must("count", count()),
        must("over", count().says("Maximum overestimate of the count.")),
    ]);
    let stops = one_of_names(["background", "all_but_interactive", "everything"]).says("What is held back now.");
    let holder = object([
        must("by", one_of_names(["key", "tenant", "guild"])),
        may("key", text().says("The id of the API key.")),
        may("tenant", text()),
        may("guild_id", snowflake()),
        must("used", count().says("Its invalid requests in the window, in all processes as far as this one knows.")),
        must("in_flight", count().says("Its calls in flight in this process.")),
        must("ratio", number().says("Used fraction of its share.")),
        must("capped", truth().says("Whether its calls wait.")),
        must("room_at", or_null(time().says("When its calls can continue."))),
    ]);
    let share = object([
        must("percent", count().says("The share that one key, tenant or guild may use, in percent.")),
        must("most", count().says("The share as a number of invalid requests.")),
        must("capped", count().says("Number of holders that have used up their share.")),
        must("held", count().says("Calls held back by a share since this process started.")),
        must("holders", list(holder).says("The largest holders, the largest first.")),
    ]);
    let invalid = object([
        must("used", count().says("Responses that count towards Discord's ban.")),
        must("most", count().says("The maximum that Discord permits.")),
        must("window_ms", count().says("Length of the window.")),
        must("ratio", number()),
        must("stops", or_null(stops)),
        must("shared", truth().says("Whether other processes are counted together with this one.")),
        must("spenders", list(who).says("The guilds and routes with the most of them.")),
        must("share", share.says("What one key, tenant or guild may use of it, and the largest holders.")),
    ]);
    let states = object(BREAKER_STATES.map(|state| must(state, count())));
    let limits = object([
        must("global", global),
        must("lanes", list(lane)),
        must("buckets", count().says("Number of known buckets of routes.")),
        must("invalid_requests", invalid),
        must("breakers", states.says("Number of breakers in each state.")),
    ]);
    let bucket = object([
        must("route", or_null(text().says("Method and path of the calls."))),
        must("routes", list(text()).says("All routes that share the bucket.")),
        must("bucket", or_null(text().says("Discord's name of the bucket."))),
        must("id", or_null(text().says("The guild, channel or webhook of the bucket."))),
        must("limit", or_null(count())),
        must("left", or_null(count())),
        must("resets_at", or_null(time())),
        must("waiting", count().says("Calls that wait for the bucket.")),
    ]);
    let spender = object([
        may("guild_id", snowflake()),
        may("caller", text().says("The caller, if it is not a guild.")),
        must("count", count()),
        must("over", count().says("Maximum overestimate of the count.")),
    ]);
    vec![
        ("Limits", limits.says("The current limits.").into()),
        ("Bucket", bucket.says("A bucket of a route.").into()),
        ("BucketPage", object([must("buckets", list(named("Bucket"))), must("next", next())]).into()),
        ("Top", object([must("by", one_of_names(TOP_BY)), must("since", time()), must("top", list(spender))]).into()),
    ]
}

fn of_breakers() -> Vec<(&'static str, SchemaRef)> {
    let breaker = object([
        must("key", text().says("What the breaker protects.")),
        must("kind", text().says("The kind of the breaker.")),
        must("state", one_of_names(BREAKER_STATES)),
        may("why", text().says("Why it is in this state.")),
        may("since", time()),
        must("until", or_null(time().says("When it is probed again; `null` if it does not close by itself."))),
        may("calls", count().says("Calls in the window.")),
        may("failures", count().says("Failed calls in the window.")),
        may("slow", count().says("Slow calls in the window.")),
    ]);
    let key = || must("key", text_of(1, 256).says("A key as listed."));
    let lasting = integer(1, 7 * 24 * 60 * 60 * 1_000).says("How long it stays open; without it, until it is reset.");
    let all = object([
        must("breakers", list(named("Breaker"))),
        must("watched", count().says("Number of tracked breakers, including those that are not listed.")),
    ]);
    vec![
        ("Breaker", breaker.says("A circuit breaker.").into()),
        ("Breakers", all.into()),
        ("ForceBreaker", closed([key(), may("for_ms", or_null(lasting))]).into()),
        ("ResetBreaker", closed([key()]).into()),
    ]
}

fn of_budgets() -> Vec<(&'static str, SchemaRef)> {
    let budget = || {
        vec![
            must("name", text()),
            must("maximum", number().says("The maximum of the budget.")),
            must("restore_per_second", number()),
            must(
                "observed",
                truth().says("Whether the values come from the upstream, and not only from the settings."),
            ),
            must("available", number().says("What can be taken now.")),
            must("booked", number().says("What was taken by calls that are still delayed.")),
            must(
                "blocked_until",
                or_null(time().says(
                    "Nothing can be taken before this time, as the upstream \
                requested.",
                )),
            ),
            must("kept", one_of_names(["alone", "together", "meanwhile"]).says("Whether processes share the budget.")),
        ]
    };
    let hour = object([must("hour", time()), must("points", number()), must("calls", count())]);
    let spend = must("spend", list(hour).says("What was spent in each of the last hours, the newest first."));
    let wait = |says: &str| or_null(integer(0, DAY_MS).says(says));
    let points = |says: &str| or_null(number().says(says));
    let acquire = closed([
        may("cost", points("The cost; default 1.")),
        may("max_wait_ms", wait("Maximum delay that the caller accepts; default 5000.")),
    ]);
    let delay = "How long to wait before the call, whose cost is taken already. If it is not allowed: when to retry, \
        or `null` if waiting does not help.";
    let acquired =
        object([must("allowed", truth()), must("delay_ms", or_null(count().says(delay))), must("remaining", number())]);
    let observe = closed([
        may("available", points("What remains.")),
        may("maximum", points("The maximum.")),
        may("restore_per_second", points("How much is restored in a second.")),
        may("retry_after_ms", wait("Nothing is permitted before this time has passed.")),
        may(
            "age_ms",
            or_null(integer(0, 60_000).says(
                "How long ago the call was sent to which the upstream responded \
            so.",
            )),
        ),
    ]);
    vec![
        ("Budget", object(budget()).says("The budget of another upstream, as far as it is known.").into()),
        ("BudgetInFull", object(budget().into_iter().chain([spend])).into()),
        ("Budgets", object([must("budgets", list(named("Budget"))), must("next", next())]).into()),
        ("AcquireBudget", acquire.into()),
        ("AcquiredBudget", acquired.into()),
        ("ObserveBudget", observe.says("What the upstream reported: at least one field.").into()),
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
    RouteDoc::new(Tag::Limits, "show_limits", "Show the limits").answers(
        200,
        "The current limits.",
        named("Limits"),
        [("limits", now)],
    )
}

fn buckets() -> RouteDoc {
    let page = json!({"buckets": [{
        "route": "POST /guilds/{id}/roles", "routes": ["POST /guilds/{id}/roles"], "bucket": "b2fbc6c2", "id": A_GUILD, "limit": 250, "left": 249,
        "resets_at": A_TIME, "waiting": 0,
    }], "next": null});
    RouteDoc::new(Tag::Limits, "list_buckets", "List the known buckets of routes").paged().answers(
        200,
        "A page of buckets.",
        named("BucketPage"),
        [("page", page)],
    )
}

fn top() -> RouteDoc {
    let most = json!({"by": "spend", "since": A_TIME, "top": [{"guild_id": A_GUILD, "count": 1_204, "over": 0}]});
    RouteDoc::new(Tag::Limits, "list_top", "List the heaviest users of the limits")
        .query(
            "by",
            one_of_names(TOP_BY),
            "Calls, 429s, or responses that count towards Discord's ban; default `spend`.",
        )
        .query("limit", integer(1, 100).default(Some(10.into())), "Maximum number of entries.")
        .answers(200, "The heaviest users, the heaviest first.", named("Top"), [("top", most)])
}

fn a_breaker(state: &str, why: &str, until: Option<&str>) -> Value {
    json!({
        "key": "target:crm", "kind": "target", "state": state, "why": why, "since": A_TIME, "until": until, "calls": 0,
        "failures": 0, "slow": 0,
    })
}

fn breakers() -> RouteDoc {
    let all = json!({"breakers": [a_breaker("open", "failures", Some(LATER))], "watched": 1});
    RouteDoc::new(Tag::Limits, "list_breakers", "List circuit breakers")
        .says("Those that are not closed first. Closed breakers without failures are not tracked.")
        .answers(200, "All breakers.", named("Breakers"), [("breakers", all)])
        .refuses(ProblemType::BadRequest)
}

fn force() -> RouteDoc {
    RouteDoc::new(Tag::Limits, "force_breaker", "Open a circuit breaker")
        .says("Opens it until it is reset, or for a time. Meanwhile operations are `delayed` and use no attempt.")
        .takes(named("ForceBreaker"), [("for a minute", json!({"key": "target:crm", "for_ms": 60_000}))])
        .answers(200, "The breaker is open.", named("Breaker"), [("open", a_breaker("open", "forced", Some(LATER)))])
        .refuses(ProblemType::Conflict)
}

fn reset() -> RouteDoc {
    RouteDoc::new(Tag::Limits, "reset_breaker", "Close a circuit breaker")
        .says("Closes it, whatever opened it.")
        .takes(named("ResetBreaker"), [("by key", json!({"key": "target:crm"}))])
        .answers(200, "The breaker is closed.", named("Breaker"), [("closed", a_breaker("closed", "reset", None))])
}

fn name(about: RouteDoc) -> RouteDoc {
    about.path("name", text_of(1, 128), "The budget.")
}

fn a_budget() -> Value {
    json!({
        "name": "shop", "maximum": 2_000.0, "restore_per_second": 100.0, "observed": true, "available": 988.0, "booked": 0.0,
        "blocked_until": null, "kept": "alone",
    })
}

fn budgets() -> RouteDoc {
    RouteDoc::new(Tag::Budgets, "list_budgets", "List budgets")
        .answers(200, "All budgets.", named("Budgets"), [("budgets", json!({"budgets": [a_budget()], "next": null}))])
        .refuses(ProblemType::BadRequest)
        .refuses(ProblemType::BudgetUnavailable)
}

fn budget() -> RouteDoc {
    let mut shown = a_budget();
    shown["spend"] = json!([{"hour": A_TIME, "points": 12.0, "calls": 1}]);
    name(RouteDoc::new(Tag::Budgets, "show_budget", "Show a budget"))
        .query("hours", integer(1, 366 * 24).default(Some(24.into())), "Number of hours of spend in the response.")
        .answers(200, "The budget.", named("BudgetInFull"), [("budget", shown)])
        .refuses(ProblemType::BudgetUnavailable)
}

fn acquire() -> RouteDoc {
    name(RouteDoc::new(Tag::Budgets, "acquire_budget", "Acquire points of a budget"))
        .says("The response comes at once; the caller must wait for the delay.")
        .may_take(named("AcquireBudget"), [("ten points, within a second", json!({"cost": 10, "max_wait_ms": 1_000}))])
        .answers(
            200,
            "Whether the call is allowed, and when.",
            named("AcquiredBudget"),
            [("at once", json!({"allowed": true, "delay_ms": 0, "remaining": 930.0}))],
        )
        .refuses(ProblemType::Conflict)
        .refuses(ProblemType::BudgetUnavailable)
}

fn observe() -> RouteDoc {
    name(RouteDoc::new(Tag::Budgets, "observe_budget", "Report the budget of an upstream"))
        .takes(
            named("ObserveBudget"),
            [(
                "as reported by a GraphQL API",
                json!({"available": 988, "maximum": 2_000, "restore_per_second": 100, "age_ms": 80}),
            )],
        )
        .answers(200, "The report is recorded.", named("Budget"), [("budget", a_budget())])
        .refuses(ProblemType::Conflict)
        .refuses(ProblemType::BudgetUnavailable)
}
