//! What operators see of a running daemon, and the effect of their actions, checked on a simulated Discord.

use std::time::{Duration, Instant};

use guildhall_sim::{BotConfig, Fault, FaultAction, GatewayConfig, Scope, Sim, SimConfig, SimHandle};
use guildhall_testkit::{
    program::{CANARY, TEST_TIMEOUT, get},
    redis::RedisServer,
};
use serde_json::{Value, json};
use tempfile::TempDir;

use super::daemon::Daemon;

/// The breaker key of the bot. The id is in its token.
const BOT_BREAKER: &str = "discord:198622483471925248";
const ROLES_ROUTE: &str = "POST /guilds/{guild.id}/roles";

async fn sim(shards: u32) -> SimHandle {
    let gateway = GatewayConfig { shards, max_concurrency: shards, ..GatewayConfig::default() };
    let bots = vec![BotConfig { token: CANARY.to_owned(), ..BotConfig::default() }];
    Sim::start(SimConfig { guilds: 2, bots, gateway, ..SimConfig::default() }).await.unwrap()
}

fn fault_once(action: FaultAction) -> Fault {
    Fault { route: ROLES_ROUTE.to_owned(), action, probability: 1.0, count: Some(1), skip: 0 }
}

fn role(name: &str) -> Value {
    json!([{"kind": "create_role", "payload": {"name": name}}])
}

impl Daemon {
    fn get(&self, path: &str) -> Value {
        let response = self.request("GET", path, &Value::Null);
        assert_eq!(response.status, 200, "{path}: {}", response.body);
        response.json()
    }

    fn audit_count(&self, action: &str) -> usize {
        self.get(&format!("/v1/audit?action={action}"))["audit"].as_array().unwrap().len()
    }

    /// Repeats a request until the response satisfies the condition.
    fn poll_until(&self, path: &str, is_satisfied: impl Fn(&Value) -> bool) -> Value {
        let deadline = Instant::now() + TEST_TIMEOUT;
        loop {
            let response = self.request("GET", path, &Value::Null);
            if response.status == 200 && is_satisfied(&response.json()) {
                return response.json();
            }
            assert!(Instant::now() < deadline, "timed out: {path}: {}", response.body);
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    fn breaker(&self, key: &str) -> Value {
        let listed = self.get("/v1/breakers");
        let breakers = listed["breakers"].as_array().unwrap();
        breakers.iter().find(|breaker| breaker["key"] == key).cloned().unwrap_or_default()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn limit_usage_is_reported_by_guild() {
    let (sim, folder) = (sim(1).await, tempfile::tempdir().unwrap());
    let (busy, other) = (sim.guilds()[0], sim.guilds()[1]);
    let daemon = Daemon::start(&sim, &folder);
    let limited = FaultAction::RateLimit { scope: Scope::User, retry_after_ms: 50 };
    sim.add_fault(fault_once(limited)).unwrap();
    for (guild, name) in [(busy, "a"), (busy, "b"), (other, "c")] {
        let id = daemon.submit(guild, &role(name)).remove(0);
        daemon.until(&id, "succeeded");
    }
    let limits = daemon.get("/v1/limits");
    assert_eq!((&limits["global"]["limit"], &limits["global"]["shared"]), (&json!(50), &json!(false)));
    assert_eq!(limits["invalid_requests"]["used"], sim.score().invalid_requests, "{limits}");
    let counts = |by: &str| {
        let top = daemon.get(&format!("/v1/limits/top?by={by}"))["top"].clone();
        let of = |guild: &str| top.as_array().unwrap().iter().find(|one| one["guild_id"] == guild).cloned();
        [busy, other].map(|guild| of(&guild.to_string()).map_or(0, |one| one["count"].as_u64().unwrap()))
    };
    assert_eq!((counts("spend"), counts("429"), counts("invalid")), ([3, 1], [1, 0], [1, 0]));
    let buckets = daemon.get("/v1/limits/buckets?limit=500");
    let of_roles = |bucket: &&Value| bucket["route"] == "POST /guilds/{id}/roles" && bucket["id"] == busy.to_string();
    let bucket = buckets["buckets"].as_array().unwrap().iter().find(of_roles).unwrap_or_else(|| panic!("{buckets}"));
    assert!(bucket["left"].as_u64().unwrap() <= bucket["limit"].as_u64().unwrap(), "{bucket}");
    daemon.stop();
}

#[tokio::test(flavor = "multi_thread")]
async fn forced_breaker_survives_a_restart() {
    let (sim, folder) = (sim(1).await, tempfile::tempdir().unwrap());
    let guild = sim.guilds()[0];
    let daemon = Daemon::start(&sim, &folder);
    let forced = daemon.request("POST", "/v1/breakers/force", &json!({ "key": BOT_BREAKER }));
    assert_eq!((forced.status, &forced.json()["state"]), (200, &json!("forced_open")), "{}", forced.body);
    let line = daemon.line_with("manual intervention");
    assert!(line.contains("breakers.force") && line.contains(BOT_BREAKER) && line.contains("request_id"), "{line}");
    let id = daemon.submit(guild, &role("Pilots")).remove(0);
    let delayed = daemon.until(&id, "delayed");
    assert_eq!(delayed["attempts"], 0, "{delayed}");
    assert_eq!(daemon.audit_count("breakers.force"), 1);
    assert!(daemon.metrics().contains("guildhall_api_interventions_total{action=\"breakers.force\"} 1"));
    daemon.stop();

    let daemon = Daemon::start(&sim, &folder);
    assert_eq!(
        daemon.poll_until("/v1/limits", |seen| seen["breakers"]["forced_open"] == 1)["breakers"]["forced_open"],
        1
    );
    assert_eq!(sim.score().routes.get(ROLES_ROUTE).map_or(0, |route| route.requests), 0, "nothing was sent");
    let reset = daemon.request("POST", "/v1/breakers/reset", &json!({ "key": BOT_BREAKER }));
    assert_eq!((reset.status, &reset.json()["state"]), (200, &json!("closed")), "{}", reset.body);
    daemon.until(&id, "succeeded");
    assert_eq!((daemon.audit_count("breakers.force"), daemon.audit_count("breakers.reset")), (1, 1));
    daemon.stop();
}

#[tokio::test(flavor = "multi_thread")]
async fn refused_token_forces_the_breaker_open_until_a_reset() {
    let (sim, folder) = (sim(1).await, tempfile::tempdir().unwrap());
    let guild = sim.guilds()[0];
    let daemon = Daemon::start(&sim, &folder);
    sim.add_fault(fault_once(FaultAction::Status { status: 401, code: 0 })).unwrap();
    let id = daemon.submit(guild, &role("Pilots")).remove(0);
    daemon.until(&id, "delayed");
    let breaker = daemon.breaker(BOT_BREAKER);
    assert_eq!((&breaker["state"], &breaker["why"]), (&json!("forced_open"), &json!("unauthorized")), "{breaker}");
    let timed = daemon.request("POST", "/v1/breakers/force", &json!({"key": BOT_BREAKER, "for_ms": 1}));
    assert_eq!(timed.status, 409, "it would be open for a moment only: {}", timed.body);
    assert_eq!(daemon.request("POST", "/v1/breakers/reset", &json!({ "key": BOT_BREAKER })).status, 200);
    daemon.until(&id, "succeeded");
    daemon.stop();
}

#[tokio::test(flavor = "multi_thread")]
async fn reset_breaker_releases_delayed_operations_after_a_crash() {
    const HOUR_MS: u64 = 3_600_000;
    // Keeps the wait for calls that were in flight at the kill short.
    const QUICK: [(&str, &str); 2] =
        [("GUILDHALL__REST__REQUEST_TIMEOUT_MS", "2000"), ("GUILDHALL__OPERATIONS__SETTLE_MS", "2000")];
    let (sim, folder) = (sim(1).await, tempfile::tempdir().unwrap());
    let guilds = [sim.guilds()[0], sim.guilds()[1]];
    let daemon = Daemon::start_with(&sim, &folder, &QUICK);
    let created = || sim.score().routes.get(ROLES_ROUTE).map_or(0, |route| route.requests);
    let submit_delayed = |daemon: &Daemon| {
        let forced = daemon.request("POST", "/v1/breakers/force", &json!({ "key": BOT_BREAKER, "for_ms": HOUR_MS }));
        assert_eq!(forced.json()["state"], "open", "{}", forced.body);
        guilds.map(|guild| {
            let batch = json!([
                {"kind": "create_role", "payload": {"name": "first"}},
                {"kind": "create_role", "payload": {"name": "second"}},
            ]);
            let ids = daemon.submit(guild, &batch);
            daemon.until(&ids[0], "delayed");
            ids
        })
    };
    let ids = submit_delayed(&daemon);
    assert_eq!(created(), 0);
    assert_eq!(daemon.request("POST", "/v1/breakers/reset", &json!({ "key": BOT_BREAKER })).status, 200);
    for guild_ids in &ids {
        for id in guild_ids {
            assert_eq!(daemon.until(id, "succeeded")["attempts"], 1);
        }
    }
    assert!(daemon.metrics().contains("guildhall_operations_released_total 2"));
    daemon.line_with("delayed operations released");
    let ids = submit_delayed(&daemon);
    assert_eq!(
        (created(), daemon.request("POST", "/v1/breakers/reset", &json!({ "key": BOT_BREAKER })).status),
        (4, 200)
    );
    daemon.kill();
    let daemon = Daemon::start_with(&sim, &folder, &QUICK);
    for id in ids.iter().flatten() {
        daemon.until(id, "succeeded");
    }
    assert_eq!(created(), 8);
    daemon.stop();
}

#[tokio::test(flavor = "multi_thread")]
async fn restarted_shard_closes_with_4000_and_resumes() {
    let (sim, folder) = (sim(1).await, tempfile::tempdir().unwrap());
    let daemon = Daemon::start(&sim, &folder);
    let connected = |seen: &Value| seen["shards"][0]["state"] == "connected" && seen["shards"][0]["lag"] == 0;
    let before = daemon.poll_until("/v1/shards", connected);
    let shard = &before["shards"][0];
    assert_eq!(
        (&before["total"], &shard["resumes"], &shard["identifies"]),
        (&json!(1), &json!(0), &json!(1)),
        "{before}"
    );
    let instances = daemon.get("/v1/instances");
    assert_eq!(shard["instance"], instances["instances"][0]["id"]);
    let session = shard["session"].clone();

    let restarted = daemon.request("POST", "/v1/shards/0/restart", &Value::Null);
    assert_eq!((restarted.status, restarted.json()), (202, json!({"id": 0, "restarting": true})), "{}", restarted.body);
    let resumed = |seen: &Value| connected(seen) && seen["shards"][0]["resumes"] == 1;
    let after = daemon.poll_until("/v1/shards", resumed);
    assert_eq!((&after["shards"][0]["session"], &after["shards"][0]["identifies"]), (&session, &json!(1)), "{after}");
    let score = sim.gateway_score();
    assert_eq!((score.identifies, score.resumes, score.sessions_ended, score.duplicate_shards), (1, 1, 0, 0));
    assert_eq!(score.closes_received.get(&4000), Some(&1), "{:?}", score.closes_received);
    assert!(daemon.metrics().contains("guildhall_gateway_reconnects_total{why=\"restarted\"} 1"));
    daemon.line_with("shard restarting as requested");
    assert_eq!(daemon.request("POST", "/v1/shards/1/restart", &Value::Null).status, 404);
    assert_eq!(daemon.audit_count("shards.restart"), 1);
    daemon.stop();
}

#[tokio::test(flavor = "multi_thread")]
async fn budget_spend_survives_a_restart() {
    let (sim, folder) = (sim(1).await, tempfile::tempdir().unwrap());
    let settings = [("GUILDHALL__BUDGETS__NAMED", "shop=10/0,rpc=5/1"), ("GUILDHALL__BUDGETS__OTHERS", "2/0")];
    let daemon = Daemon::start_with(&sim, &folder, &settings);
    let taken = daemon.request("POST", "/v1/budgets/shop/acquire", &json!({"cost": 4.5})).json();
    assert_eq!((&taken["allowed"], &taken["remaining"]), (&json!(true), &json!(5.5)));
    assert_eq!(daemon.request("POST", "/v1/budgets/other/acquire", &Value::Null).json()["remaining"], 1.0);
    assert!(daemon.metrics().contains("guildhall_token_bucket_acquired_total{bucket=\"shop\"} 1"));
    daemon.stop();
    let daemon = Daemon::start_with(&sim, &folder, &settings);
    let shop = daemon.get("/v1/budgets/shop");
    assert_eq!((&shop["spend"][0]["points"], &shop["spend"][0]["calls"]), (&json!(4.5), &json!(1)), "{shop}");
    let names: Vec<_> =
        daemon.get("/v1/budgets")["budgets"].as_array().unwrap().iter().map(|one| one["name"].clone()).collect();
    assert_eq!(names, ["rpc", "shop"]);
    daemon.stop();
}

/// A daemon that has one of two shards, and shares a Redis.
fn start_sharing(sim: &SimHandle, redis: &RedisServer, folder: &TempDir, range: &str) -> Daemon {
    let (url, lock_dir) = (redis.url().to_string(), redis.folder().join("seats").display().to_string());
    let settings = [
        ("GUILDHALL__GATEWAY__SHARDS", "2"),
        ("GUILDHALL__GATEWAY__MAX_CONCURRENCY", "2"),
        ("GUILDHALL__GATEWAY__SHARD_RANGE", range),
        ("GUILDHALL__REDIS__URL", &url),
        ("GUILDHALL__REDIS__SEAT_DIR", &lock_dir),
        ("GUILDHALL__REDIS__HEARTBEAT_MS", "300"),
        ("GUILDHALL__REDIS__SILENCE_MS", "3000"),
        ("GUILDHALL__REDIS__NEWCOMER_MS", "1500"),
        ("GUILDHALL__BUDGETS__NAMED", "shop=10/0"),
    ];
    Daemon::start_with(sim, folder, &settings)
}

#[tokio::test(flavor = "multi_thread")]
async fn free_tokens_of_a_limit_shared_over_redis_are_shown() {
    let (sim, redis, folder) = (sim(2).await, RedisServer::start(), tempfile::tempdir().unwrap());
    let daemon = start_sharing(&sim, &redis, &folder, "0-1");
    let all = daemon.poll_until("/v1/limits", |seen| seen["global"]["available"] == seen["global"]["limit"]);
    assert_eq!((&all["global"]["sharing"], &all["global"]["available"]), (&json!("redis"), &json!(50)));
    let deadline = Instant::now() + TEST_TIMEOUT;
    while !daemon.metrics().contains("guildhall_token_bucket_available 50") {
        assert!(Instant::now() < deadline, "{}", daemon.metrics());
        std::thread::sleep(Duration::from_millis(20));
    }
    daemon.stop();
}

#[tokio::test(flavor = "multi_thread")]
async fn breakers_and_budgets_are_shared_between_processes() {
    let (sim, redis) = (sim(2).await, RedisServer::start());
    let folders = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let first = start_sharing(&sim, &redis, &folders[0], "0-0");
    let second = start_sharing(&sim, &redis, &folders[1], "1-1");
    assert_eq!(second.get("/v1/limits")["global"]["shared"], true);
    assert_eq!(first.request("POST", "/v1/breakers/force", &json!({ "key": BOT_BREAKER })).status, 200);
    second.poll_until("/v1/limits", |seen| seen["breakers"]["forced_open"] == 1);
    assert_eq!(second.request("POST", "/v1/breakers/reset", &json!({ "key": BOT_BREAKER })).status, 200);
    first.poll_until("/v1/limits", |seen| seen["breakers"]["forced_open"] == 0);
    let hour = json!({"key": BOT_BREAKER, "for_ms": 3_600_000});
    assert_eq!(first.request("POST", "/v1/breakers/force", &hour).json()["state"], "open");
    let delayed = first.submit(sim.guilds()[0], &role("Pilots")).remove(0);
    first.until(&delayed, "delayed");
    second.poll_until("/v1/limits", |seen| seen["breakers"]["open"] == 1);
    assert_eq!(second.request("POST", "/v1/breakers/reset", &json!({ "key": BOT_BREAKER })).status, 200);
    first.until(&delayed, "succeeded");
    let minute = json!({"key": "target:crm", "for_ms": 60_000});
    assert_eq!(first.request("POST", "/v1/breakers/force", &minute).json()["state"], "open");
    second.poll_until("/v1/limits", |seen| seen["breakers"]["open"] == 1);
    assert_eq!(
        (first.audit_count("breakers.force"), second.audit_count("breakers.reset")),
        (3, 2),
        "each where it was done"
    );

    assert_eq!(first.request("POST", "/v1/budgets/shop/acquire", &json!({"cost": 7})).json()["remaining"], 3.0);
    let shop = second.get("/v1/budgets/shop");
    assert_eq!((&shop["available"], &shop["kept"]), (&json!(3.0), &json!("together")), "{shop}");
    let seen = json!({"available": 9, "maximum": 20});
    assert_eq!(second.request("POST", "/v1/budgets/shop/observe", &seen).status, 200);
    assert_eq!(first.get("/v1/budgets/shop")["maximum"], 20.0);
    let shards: Vec<_> =
        second.get("/v1/shards")["shards"].as_array().unwrap().iter().map(|one| one["state"].clone()).collect();
    assert_eq!(shards[0], "unclaimed", "each has its own store");
    assert_eq!(get(second.address(), "/livez").status, 200);
    first.stop();
    second.stop();
}
