//! Discord's limits as they are known here, breakers, and named budgets.

use serde_json::{Value, json};

use crate::api::{
    openapi::{
        about::{About, Tag},
        common::{A_GUILD, A_TIME, next, snowflake, time},
        schema::{
            Says as _, Shape, closed, count, integer, list, may, must, named, number, object, one_of_names, or_null,
            text, text_of, truth,
        },
    },
    problem::Problem,
};

pub(super) fn about(method: &str, path: &str) -> Option<About> {
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
pub(super) fn schemas() -> Vec<(&'static str, Shape)> {
    let mut schemas = of_limits();
    schemas.extend(of_breakers());
    schemas.extend(of_budgets());
    schemas
}

fn of_limits() -> Vec<(&'static str, Shape)> {
    let global = object([
        must("limit", count().says("Calls in any window.")),
        must("window_ms", count()),
        must("available", count().says("Calls that could be made now.")),
        must("waiting", count().says("Calls that wait for it.")),
        must("blocked_until", or_null(time().says("Nothing before this: Discord said so."))),
        must("shared", truth().says("Whether other processes share it.")),
    ]);
    let lane = object([must("lane", named("Lane")), must("waiting", count())]);
    let invalid = object([
        must("used", count().says("Answers that count towards Discord's ban, in ten minutes.")),
        must("most", count().says("How many there may be.")),
        must("ratio", number()),
        must(
            "stops",
            or_null(
                one_of_names(["background", "all_but_interactive", "everything"]).says("What is held back by now."),
            ),
        ),
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
        must("route", text().says("Method and path of the calls.")),
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
    ]);
    vec![
        ("Limits", limits.says("Limits as they stand.").into()),
        ("Bucket", bucket.says("A bucket of a route.").into()),
        ("BucketPage", object([must("buckets", list(named("Bucket"))), must("next", next())]).into()),
        ("Top", object([must("by", one_of_names(TOP_BY)), must("since", time()), must("top", list(spender))]).into()),
    ]
}

fn of_breakers() -> Vec<(&'static str, Shape)> {
    let breaker = object([
        must("key", text().says("What it is for.")),
        must("state", one_of_names(BREAKER_STATES)),
        must("since", or_null(time())),
        must("until", or_null(time().says("When it is tried again; `null` if not by itself."))),
        must("failures", count()),
        must("why", or_null(text())),
    ]);
    let key = || must("key", text_of(1, 512).says("As it is listed."));
    vec![
        ("Breaker", breaker.says("Whether calls to something are let out.").into()),
        ("Breakers", object([must("breakers", list(named("Breaker")))]).into()),
        (
            "ForceBreaker",
            closed([
                key(),
                may("for_ms", or_null(count().says("For how long; until it is reset if this is left out."))),
            ])
            .into(),
        ),
        ("ResetBreaker", closed([key()]).into()),
    ]
}

fn of_budgets() -> Vec<(&'static str, Shape)> {
    let budget = object([must("name", text()), must("available", or_null(number().says("What could be taken now.")))]);
    let acquire = closed([
        must("cost", number().says("How much.")),
        may("max_wait_ms", or_null(count().says("How long the caller would wait."))),
    ]);
    let acquired = object([
        must("allowed", truth()),
        must(
            "delay_ms",
            or_null(count().says(
                "How long to wait before the call: it is paid already. If it was not allowed, when to ask again.",
            )),
        ),
        must("remaining", or_null(number())),
    ]);
    let observe = closed([
        may("available", or_null(number())),
        may("maximum", or_null(number())),
        may("restore_per_second", or_null(number())),
        may("retry_after_ms", or_null(count())),
    ]);
    vec![
        ("Budget", budget.says("What another upstream allows, as far as it is known.").into()),
        ("Budgets", object([must("budgets", list(named("Budget")))]).into()),
        ("AcquireBudget", acquire.into()),
        ("AcquiredBudget", acquired.into()),
        ("ObserveBudget", observe.says("What the upstream said of itself.").into()),
    ]
}

fn limits() -> About {
    let now = json!({
        "global": {"limit": 50, "window_ms": 1_000, "available": 42, "waiting": 0, "blocked_until": null, "shared": false},
        "lanes": [{"lane": "interactive", "waiting": 0}, {"lane": "operation", "waiting": 3}, {"lane": "background", "waiting": 0}],
        "buckets": 17,
        "invalid_requests": {"used": 12, "most": 10_000, "ratio": 0.0012, "stops": null},
        "breakers": {"closed": 4, "open": 0, "half_open": 0, "forced_open": 0},
    });
    About::new(Tag::Limits, "show_limits", "Show how the limits stand").answers(
        200,
        "As they stand.",
        named("Limits"),
        [("limits", now)],
    )
}

fn buckets() -> About {
    let page = json!({"buckets": [{
        "route": "POST /guilds/{guild_id}/roles", "bucket": "b2fbc6c2", "id": A_GUILD, "limit": 250, "left": 249,
        "resets_at": A_TIME, "waiting": 0,
    }], "next": null});
    About::new(Tag::Limits, "list_buckets", "List the buckets of routes that are known").paged().answers(
        200,
        "A page of them.",
        named("BucketPage"),
        [("page", page)],
    )
}

fn top() -> About {
    let most = json!({"by": "spend", "since": A_TIME, "top": [{"guild_id": A_GUILD, "count": 1_204}]});
    About::new(Tag::Limits, "list_top", "List who spends the limits")
        .query("by", one_of_names(TOP_BY), "Calls, 429s, or answers that count towards Discord's ban.")
        .query("limit", integer(1, 500), "How many at most.")
        .answers(200, "Those with the most first.", named("Top"), [("top", most)])
}

fn breakers() -> About {
    let all = json!({"breakers": [{"key": "discord", "state": "closed", "since": A_TIME, "until": null, "failures": 0, "why": null}]});
    About::new(Tag::Limits, "list_breakers", "List the breakers").answers(
        200,
        "All of them.",
        named("Breakers"),
        [("breakers", all)],
    )
}

fn force() -> About {
    About::new(Tag::Limits, "force_breaker", "Let nothing out to something")
        .takes(named("ForceBreaker"), [("for a minute", json!({"key": "discord", "for_ms": 60_000}))])
        .answers(200, "Nothing goes out.", object([]), [] as [(&str, Value); 0])
        .refuses(Problem::NotFound)
}

fn reset() -> About {
    About::new(Tag::Limits, "reset_breaker", "Let calls out again")
        .takes(named("ResetBreaker"), [("by its key", json!({"key": "discord"}))])
        .answers(200, "It is closed.", object([]), [] as [(&str, Value); 0])
        .refuses(Problem::NotFound)
}

fn name(about: About) -> About {
    about.path("name", text_of(1, 128), "The budget.")
}

fn budgets() -> About {
    let all = json!({"budgets": [{"name": "graphql", "available": 940.0}]});
    About::new(Tag::Budgets, "list_budgets", "List the budgets").answers(
        200,
        "All of them.",
        named("Budgets"),
        [("budgets", all)],
    )
}

fn budget() -> About {
    name(About::new(Tag::Budgets, "show_budget", "Show a budget")).answers(
        200,
        "How it stands.",
        named("Budget"),
        [("budget", json!({"name": "graphql", "available": 940.0}))],
    )
}

fn acquire() -> About {
    name(About::new(Tag::Budgets, "acquire_budget", "Take a cost from a budget"))
        .takes(named("AcquireBudget"), [("ten points, within a second", json!({"cost": 10, "max_wait_ms": 1_000}))])
        .answers(
            200,
            "Whether, and when.",
            named("AcquiredBudget"),
            [("at once", json!({"allowed": true, "delay_ms": 0, "remaining": 930.0}))],
        )
}

fn observe() -> About {
    name(About::new(Tag::Budgets, "observe_budget", "Tell what the upstream said of itself"))
        .takes(
            named("ObserveBudget"),
            [("as a GraphQL API says it", json!({"available": 930, "maximum": 1_000, "restore_per_second": 50}))],
        )
        .answers_nothing(204, "It is known.")
}
