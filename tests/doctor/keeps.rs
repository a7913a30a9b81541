//! The store, Redis and the running daemon.

use guildhall::store::{Store, migrate};
use guildhall_sim::SimConfig;
use serde_json::json;

use super::{
    Found, doctor, postgres,
    redis_server::RedisServer,
    sim,
    support::{Guildhall, Running},
};

fn serve(sim: &guildhall_sim::SimHandle, store: &str) -> Running {
    let running = Guildhall::serve(&sim.gateway_url())
        .env("GUILDHALL__DISCORD__TOKEN", "sim-bot-token")
        .env("GUILDHALL__DISCORD__API_URL", &sim.api_url())
        .env("GUILDHALL__STORE__URL", store)
        .env("GUILDHALL__API__ADMIN_KEY", "gh_test_0123456789")
        .spawn();
    running.line_with("\"part is ready\",\"part\":\"gateway\"");
    running
}

#[tokio::test(flavor = "multi_thread")]
async fn a_store_is_looked_at_without_taking_it_from_a_running_daemon() {
    let sim = sim(SimConfig::default()).await;
    let folder = tempfile::tempdir().unwrap();
    let store = format!("sqlite:{}/guildhall.db", folder.path().display());
    let look = |more: &[&str]| doctor(&sim, more).env("GUILDHALL__STORE__URL", &store);
    Found::run(look(&[])).is("store", "ok", "does not exist yet");
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0, "it creates nothing");

    let running = tokio::task::block_in_place(|| serve(&sim, &store));
    let found = Found::run(look(&[]));
    found.is("store", "ok", "its schema is up to date");
    found.is("store", "ok", "SQLite 3.");
    assert_eq!(found.code, 0, "{}", found.raw);
    running.signal("TERM");
    assert_eq!(running.end().code, Some(0), "it was not disturbed");
    // The state that its gate stored at the end.
    let found = Found::run(look(&[]));
    found.is("ban budget", "ok", "0 of 10000 invalid requests");
    found.is("ban budget", "ok", "from the state stored");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_running_daemon_is_asked_for_what_only_it_knows() {
    let sim = sim(SimConfig::default()).await;
    let folder = tempfile::tempdir().unwrap();
    let store = format!("sqlite:{}/guildhall.db", folder.path().display());
    let running = Guildhall::serve(&sim.gateway_url())
        .env("GUILDHALL__DISCORD__TOKEN", "sim-bot-token")
        .env("GUILDHALL__DISCORD__API_URL", &sim.api_url())
        .env("GUILDHALL__STORE__URL", &store)
        .env("GUILDHALL__API__ADMIN_KEY", "gh_test_0123456789")
        .spawn();
    let address = tokio::task::block_in_place(|| running.address());
    tokio::task::block_in_place(|| running.line_with("\"part is ready\",\"part\":\"gateway\""));
    let look = |key: &str| {
        let program = doctor(&sim, &["--guilds", "0"]).env("GUILDHALL__STORE__URL", &store);
        let program = program.env("GUILDHALL__API__ADMIN_KEY", key);
        Found::run(program.env("GUILDHALL__API__BIND", &address.to_string()))
    };
    let found = look("gh_test_0123456789");
    found.is("daemon", "ok", &format!("ready at http://{address}"));
    found.is("guild restarts", "ok", "0 for operations, 0 for events");
    found.is("ban budget", "ok", "of 10000 invalid requests");
    found.is("ban budget", "ok", "counted by the daemon");
    // The key of another daemon: the doctor reads the stored state instead, or reports why not.
    let found = look("gh_test_of-somebody-else");
    found.is("daemon", "ok", "ready");
    assert!(matches!(found.check("ban budget").0, "ok" | "skip"), "{}", found.raw);
    running.signal("TERM");
    running.end();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_store_that_cannot_be_used_says_why() {
    let sim = sim(SimConfig::default()).await;
    let found = Found::run(doctor(&sim, &[]).env("GUILDHALL__STORE__URL", "sqlite:/proc/nowhere/guildhall.db"));
    found.is("store", "fail", "cannot create files in");
    assert!(found.check("store").2.contains("store.url") && found.code == 1);

    let broken = doctor(&sim, &[]).file("data/guildhall.db", "this is not a database, whatever its name says");
    Found::run(broken).is("store", "fail", "not a database");

    let gone = doctor(&sim, &[]).env("GUILDHALL__STORE__URL", "postgres://me:hunter2@127.0.0.1:1/guildhall");
    let found = Found::run(gone);
    found.is("store", "fail", "postgres://(redacted)@127.0.0.1:1/guildhall");
    assert!(!found.raw.contains("hunter2"), "{}", found.raw);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_schema_that_does_not_fit_is_told_with_what_to_do() {
    let sim = sim(SimConfig::default()).await;
    let url = postgres::shared().database().await;
    let look =
        |migrate: &str| doctor(&sim, &[]).env("GUILDHALL__STORE__URL", &url).env("GUILDHALL__STORE__MIGRATE", migrate);
    Found::run(look("true")).is("store", "ok", "migrations are pending");
    let found = Found::run(look("false"));
    found.is("store", "fail", "store.migrate is false");
    assert!(found.check("store").2.contains("guildhall migrate up"));

    let loaded = guildhall::settings::load(guildhall::settings::SettingsSources {
        environment: vec![("GUILDHALL__STORE__URL".into(), url.clone().into())],
        ..Default::default()
    });
    let settings = loaded.ok().unwrap().settings.store;
    migrate::up(&settings).await.unwrap();
    let store = Store::open(&settings).await.unwrap();
    let found = Found::run(look("false"));
    found.is("store", "ok", "PostgreSQL ");
    found.is("store", "ok", "its schema is up to date");
    store.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_redis_is_asked_how_it_is() {
    let sim = sim(SimConfig::default()).await;
    let look = |redis: &str| Found::run(doctor(&sim, &["--guilds", "0"]).env("GUILDHALL__REDIS__URL", redis));
    let server = RedisServer::start();
    let url = format!("redis://127.0.0.1:{}", server.port());
    let found = look(&url);
    found.is("redis", "ok", &format!("127.0.0.1:{}, Redis ", server.port()));
    found.is("redis eviction", "ok", "noeviction");
    found.is("redis persistence", "ok", "appendonly is off");

    let forgetful = RedisServer::start_with(&[
        "--maxmemory",
        "50mb",
        "--maxmemory-policy",
        "allkeys-lru",
        "--requirepass",
        "hunter2",
    ]);
    let found = look(&format!("redis://:hunter2@127.0.0.1:{}", forgetful.port()));
    let (verdict, seen, advice) = found.check("redis eviction");
    assert!(verdict == "warn" && seen.contains("allkeys-lru") && advice.contains("noeviction"), "{seen} {advice}");
    let found = look(&format!("redis://:wrong-word@127.0.0.1:{}", forgetful.port()));
    found.is("redis", "fail", "password");
    assert!(!found.raw.contains("wrong-word") && found.code == 1, "{}", found.raw);
    let found = look("redis://127.0.0.1:1");
    found.is("redis", "fail", "redis://127.0.0.1:1");
    assert!(found.check("redis").2.contains("redis.url"));
    assert!(found.report["checks"].as_array().unwrap().iter().all(|one| one["check"] != json!("redis eviction")));
}
