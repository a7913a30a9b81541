//! Discord's limits as they are known here, breakers, and named budgets.

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

pub(super) fn about(method: &str, path: &str) -> Option<RouteDoc> {
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

/// What the lists of spenders are sorted by.
const TOP_BY: [&str; 3] = ["spend", "429", "invalid"];
/// What breakers may be.
const BREAKER_STATES: [&str; 4] = ["closed", "open", "half_open", "forced_open"];

/// Every schema of this file, by its name.
pub(super) fn schemas() -> Vec<(&'static str, SchemaRef)> {
    let mut schemas = of_limits();
    schemas.extend(of_breakers());
    schemas.extend(of_budgets());
    schemas
}

fn of_limits() -> Vec<(&'static str, SchemaRef)> {
    let global = object([
        must("limit", count().says("Calls in any window that this process may make.")),
        must("total", count().says("Calls in any window, over all processes.")),
        must("sharing", one_of_names(["alone", "store", "redis"]).says("How processes share the total.")),
        must("members", or_null(count().says("Processes that share it."))),
        must("window_ms", count()),
        must("available", count().says("Calls that could be made now.")),
        must("in_flight", count().says("Calls that are under way.")),
        must("waiting", count().says("Calls that wait for it.")),
        must("blocked_until", or_null(time().says("Nothing before this: Discord said so."))),
        must("shared", truth().says("Whether other processes share it.")),
        must("mode", or_null(text().says("How this process stands to the others, if they share it."))),
    ]);
    let lane = object([must("lane", named("Lane")), must("waiting", count())]);
    let who = object([
        must("guild_id", or_null(snowflake())),
        must("route", text()),
        must("count", count()),
        must("over", count().says("How much too high the count may be.")),
    ]);
    let stops = one_of_names(["background", "all_but_interactive", "everything"]).says("What is held back by now.");
    let holder = object([
        must("by", one_of_names(["key", "tenant", "guild"])),
        may("key", text().says("The id of the API key.")),
        may("tenant", text()),
        may("guild_id", snowflake()),
        must("used", count().says("Its invalid requests in the window, in all processes as far as this one knows.")),
        must("in_flight", count().says("Its calls in flight in this process.")),
        must("ratio", number().says("How much of its share it has used.")),
        must("capped", truth().says("Whether its calls wait.")),
        must("room_at", or_null(time().says("When its calls can go on."))),
    ]);
    let share = object([
        must("percent", count().says("The share that one key, tenant or guild may hold, in percent.")),
        must("most", count().says("How many invalid requests that is.")),
        must("capped", count().says("How many have used up their share.")),
        must("held", count().says("Calls held back by a share since this process started.")),
        must("holders", list(holder).says("The largest holders, the largest first.")),
    ]);
    let invalid = object([
        must("used", count().says("Answers that count towards Discord's ban.")),
        must("most", count().says("How many there may be.")),
        must("window_ms", count().says("Within how long.")),
        must("ratio", number()),
        must("stops", or_null(stops)),
        must("shared", truth().says("Whether other processes count with this one.")),
        must("spenders", list(who).says("Who had the most of them.")),
        must("share", share.says("What one key, tenant or guild may hold of it, and who holds the most.")),
    ]);
    let states = object(BREAKER_STATES.map(|state| must(state, count())));
    let limits = object([
        must("global", global),
        must("lanes", list(lane)),
        must("buckets", count().says("Buckets of routes that are known.")),
        must("invalid_requests", invalid),
        must("breakers", states.says("How many are in which state.")),
    ]);
    let bucket = object([
        must("route", or_null(text().says("Method and path of the calls."))),
        must("routes", list(text()).says("All that share it.")),
        must("bucket", or_null(text().says("Discord's name for it."))),
        must("id", or_null(text().says("The guild, channel or webhook that it is for."))),
        must("limit", or_null(count())),
        must("left", or_null(count())),
        must("resets_at", or_null(time())),
        must("waiting", count().says("Calls that wait for it.")),
    ]);
    let spender = object([
        may("guild_id", snowflake()),
        may("caller", text().says("Who it was, if it was for no guild.")),
        must("count", count()),
        must("over", count().says("How much too high the count may be.")),
    ]);
    vec![
        ("Limits", limits.says("Limits as they stand.").into()),
        ("Bucket", bucket.says("A bucket of a route.").into()),
        ("BucketPage", object([must("buckets", list(named("Bucket"))), must("next", next())]).into()),
        ("Top", object([must("by", one_of_names(TOP_BY)), must("since", time()), must("top", list(spender))]).into()),
    ]
}

fn of_breakers() -> Vec<(&'static str, SchemaRef)> {
    let breaker = object([
        must("key", text().says("What it is for.")),
        must("kind", text().says("What kind of thing that is.")),
        must("state", one_of_names(BREAKER_STATES)),
        may("why", text().says("What brought it into that state.")),
        may("since", time()),
        must("until", or_null(time().says("When it is tried again; `null` if not by itself."))),
        may("calls", count().says("Calls that were counted lately.")),
        may("failures", count().says("Those that failed.")),
        may("slow", count().says("Those that took too long.")),
    ]);
    let key = || must("key", text_of(1, 256).says("As it is listed."));
    let lasting = integer(1, 7 * 24 * 60 * 60 * 1_000).says("For how long; until it is reset if this is left out.");
    let all = object([
        must("breakers", list(named("Breaker"))),
        must("watched", count().says("How many there are, those that are not listed among them.")),
    ]);
    vec![
        ("Breaker", breaker.says("Whether calls to something are let out.").into()),
        ("Breakers", all.into()),
        ("ForceBreaker", closed([key(), may("for_ms", or_null(lasting))]).into()),
        ("ResetBreaker", closed([key()]).into()),
    ]
}

fn of_budgets() -> Vec<(&'static str, SchemaRef)> {
    let budget = || {
        vec![
            must("name", text()),
            must("maximum", number().says("The most that it ever holds.")),
            must("restore_per_second", number()),
            must("observed", truth().says("Whether its upstream has said so, or only the settings.")),
            must("available", number().says("What could be taken now.")),
            must("booked", number().says("What was taken by those who go later.")),
            must("blocked_until", or_null(time().says("Nothing before this: the upstream said so."))),
            must("kept", one_of_names(["alone", "together", "meanwhile"]).says("Whether processes share it.")),
        ]
    };
    let hour = object([must("hour", time()), must("points", number()), must("calls", count())]);
    let spend = must("spend", list(hour).says("What was spent in each of the last hours, the newest first."));
    let wait = |says: &str| or_null(integer(0, DAY_MS).says(says));
    let points = |says: &str| or_null(number().says(says));
    let acquire = closed([
        may("cost", points("How much; 1 unless it is said.")),
        may("max_wait_ms", wait("How long the caller would wait; 5000 unless it is said.")),
    ]);
    let delay = "How long to wait before the call, which is paid already. If it was not allowed: when to ask again, or `null` \
                 if that alone does not help.";
    let acquired =
        object([must("allowed", truth()), must("delay_ms", or_null(count().says(delay))), must("remaining", number())]);
    let observe = closed([
        may("available", points("What is left.")),
        may("maximum", points("The most that there ever is.")),
        may("restore_per_second", points("How fast it comes back.")),
        may("retry_after_ms", wait("Nothing before this is over.")),
        may("age_ms", or_null(integer(0, 60_000).says("How long ago the call was sent that was answered so."))),
    ]);
    vec![
        ("Budget", object(budget()).says("What another upstream allows, as far as it is known.").into()),
        ("BudgetInFull", object(budget().into_iter().chain([spend])).into()),
        ("Budgets", object([must("budgets", list(named("Budget"))), must("next", next())]).into()),
        ("AcquireBudget", acquire.into()),
        ("AcquiredBudget", acquired.into()),
        ("ObserveBudget", observe.says("What the upstream said of itself: at least one thing.").into()),
    ]
}

/// A day.
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
    RouteDoc::new(Tag::Limits, "show_limits", "Show how the limits stand").answers(
        200,
        "As they stand.",
        named("Limits"),
        [("limits", now)],
    )
}

fn buckets() -> RouteDoc {
    let page = json!({"buckets": [{
        "route": "POST /guilds/{id}/roles", "routes": ["POST /guilds/{id}/roles"], "bucket": "b2fbc6c2", "id": A_GUILD, "limit": 250, "left": 249,
        "resets_at": A_TIME, "waiting": 0,
    }], "next": null});
    RouteDoc::new(Tag::Limits, "list_buckets", "List the buckets of routes that are known").paged().answers(
        200,
        "A page of them.",
        named("BucketPage"),
        [("page", page)],
    )
}

fn top() -> RouteDoc {
    let most = json!({"by": "spend", "since": A_TIME, "top": [{"guild_id": A_GUILD, "count": 1_204, "over": 0}]});
    RouteDoc::new(Tag::Limits, "list_top", "List who spends the limits")
        .query(
            "by",
            one_of_names(TOP_BY),
            "Calls, 429s, or answers that count towards Discord's ban; `spend` unless it is said.",
        )
        .query("limit", integer(1, 100).default(Some(10.into())), "How many at most.")
        .answers(200, "Those with the most first.", named("Top"), [("top", most)])
}

fn a_breaker(state: &str, why: &str, until: Option<&str>) -> Value {
    json!({
        "key": "target:crm", "kind": "target", "state": state, "why": why, "since": A_TIME, "until": until, "calls": 0,
        "failures": 0, "slow": 0,
    })
}

fn breakers() -> RouteDoc {
    let all = json!({"breakers": [a_breaker("open", "failures", Some(LATER))], "watched": 1});
    RouteDoc::new(Tag::Limits, "list_breakers", "List the breakers")
        .says("Those that are not closed first. What is closed and has had no trouble is not watched.")
        .answers(200, "All of them.", named("Breakers"), [("breakers", all)])
        .refuses(ProblemType::BadRequest)
}

fn force() -> RouteDoc {
    RouteDoc::new(Tag::Limits, "force_breaker", "Let nothing out to something")
        .says("Until it is reset, or for a time. Meanwhile operations are `delayed` and use no attempt.")
        .takes(named("ForceBreaker"), [("for a minute", json!({"key": "target:crm", "for_ms": 60_000}))])
        .answers(200, "Nothing goes out.", named("Breaker"), [("open", a_breaker("open", "forced", Some(LATER)))])
        .refuses(ProblemType::Conflict)
}

fn reset() -> RouteDoc {
    RouteDoc::new(Tag::Limits, "reset_breaker", "Let calls out again")
        .says("Whatever opened it.")
        .takes(named("ResetBreaker"), [("by its key", json!({"key": "target:crm"}))])
        .answers(200, "It is closed.", named("Breaker"), [("closed", a_breaker("closed", "reset", None))])
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
    RouteDoc::new(Tag::Budgets, "list_budgets", "List the budgets")
        .answers(200, "All of them.", named("Budgets"), [("budgets", json!({"budgets": [a_budget()], "next": null}))])
        .refuses(ProblemType::BadRequest)
        .refuses(ProblemType::BudgetUnavailable)
}

fn budget() -> RouteDoc {
    let mut shown = a_budget();
    shown["spend"] = json!([{"hour": A_TIME, "points": 12.0, "calls": 1}]);
    name(RouteDoc::new(Tag::Budgets, "show_budget", "Show a budget"))
        .query("hours", integer(1, 366 * 24).default(Some(24.into())), "Of how many hours the spend is shown.")
        .answers(200, "How it stands.", named("BudgetInFull"), [("budget", shown)])
        .refuses(ProblemType::BudgetUnavailable)
}

fn acquire() -> RouteDoc {
    name(RouteDoc::new(Tag::Budgets, "acquire_budget", "Take a cost from a budget"))
        .says("The answer comes at once; whoever asks does the waiting.")
        .may_take(named("AcquireBudget"), [("ten points, within a second", json!({"cost": 10, "max_wait_ms": 1_000}))])
        .answers(
            200,
            "Whether, and when.",
            named("AcquiredBudget"),
            [("at once", json!({"allowed": true, "delay_ms": 0, "remaining": 930.0}))],
        )
        .refuses(ProblemType::Conflict)
        .refuses(ProblemType::BudgetUnavailable)
}

fn observe() -> RouteDoc {
    name(RouteDoc::new(Tag::Budgets, "observe_budget", "Tell what the upstream said of itself"))
        .takes(
            named("ObserveBudget"),
            [(
                "as a GraphQL API says it",
                json!({"available": 988, "maximum": 2_000, "restore_per_second": 100, "age_ms": 80}),
            )],
        )
        .answers(200, "It is known.", named("Budget"), [("budget", a_budget())])
        .refuses(ProblemType::Conflict)
        .refuses(ProblemType::BudgetUnavailable)
}
