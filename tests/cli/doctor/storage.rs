//! The store, Redis and the running daemon.

use guildhall::store::{Store, migrate};
use guildhall_sim::SimConfig;
use guildhall_testkit::{
    postgres,
    program::{Guildhall, RunningGuildhall},
    redis::RedisServer,
};
use serde_json::json;

use super::{DoctorReport, doctor, sim};

fn serve(sim: &guildhall_sim::SimHandle, store: &str) -> RunningGuildhall {
    let running = Guildhall::serve(&sim.gateway_url())
        .env("GUILDHALL__DISCORD__TOKEN", "sim-bot-token")
        .env("GUILDHALL__DISCORD__API_URL", &sim.api_url())
        .env("GUILDHALL__STORE__URL", store)
        .env("GUILDHALL__API__ADMIN_KEY", "gh_test_0123456789")
        .spawn();
    running.wait_for_log_line("\"part is ready\",\"part\":\"gateway\"");
    running
}

#[tokio::test(flavor = "multi_thread")]
async fn store_check_does_not_disturb_a_running_daemon() {
    let sim = sim(SimConfig::default()).await;
    let folder = tempfile::tempdir().unwrap();
    let store = format!("sqlite:{}/guildhall.db", folder.path().display());
    let run_doctor = |args: &[&str]| doctor(&sim, args).env("GUILDHALL__STORE__URL", &store);
    DoctorReport::run(run_doctor(&[])).assert_check("store", "ok", "does not exist yet");
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0, "it creates nothing");

    let running = tokio::task::block_in_place(|| serve(&sim, &store));
    let report = DoctorReport::run(run_doctor(&[]));
    report.assert_check("store", "ok", "its schema is up to date");
    report.assert_check("store", "ok", "SQLite 3.");
    assert_eq!(report.code, 0, "{}", report.raw);
    running.signal("TERM");
    assert_eq!(running.wait_for_exit().code, Some(0), "it was not disturbed");
    // The state that its gate stored at the end.
    let report = DoctorReport::run(run_doctor(&[]));
    report.assert_check("ban budget", "ok", "0 of 10000 invalid requests");
    report.assert_check("ban budget", "ok", "from the state stored");
}

#[tokio::test(flavor = "multi_thread")]
async fn running_daemon_is_queried() {
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
    tokio::task::block_in_place(|| running.wait_for_log_line("\"part is ready\",\"part\":\"gateway\""));
    let run_doctor = |key: &str| {
        let program = doctor(&sim, &["--guilds", "0"]).env("GUILDHALL__STORE__URL", &store);
        let program = program.env("GUILDHALL__API__ADMIN_KEY", key);
        DoctorReport::run(program.env("GUILDHALL__API__BIND", &address.to_string()))
    };
    let report = run_doctor("gh_test_0123456789");
    report.assert_check("daemon", "ok", &format!("ready at http://{address}"));
    report.assert_check("guild restarts", "ok", "0 for operations, 0 for events");
    report.assert_check("ban budget", "ok", "of 10000 invalid requests");
    report.assert_check("ban budget", "ok", "counted by the daemon");
    // The key of another daemon: the doctor reads the stored state instead, or reports why not.
    let report = run_doctor("gh_test_another-key");
    report.assert_check("daemon", "ok", "ready");
    assert!(matches!(report.check("ban budget").0, "ok" | "skip"), "{}", report.raw);
    running.signal("TERM");
    running.wait_for_exit();
}

#[tokio::test(flavor = "multi_thread")]
async fn unusable_store_fails_with_a_reason() {
    let sim = sim(SimConfig::default()).await;
    let report = DoctorReport::run(doctor(&sim, &[]).env("GUILDHALL__STORE__URL", "sqlite:/proc/nowhere/guildhall.db"));
    report.assert_check("store", "fail", "cannot create files in");
    assert!(report.check("store").2.contains("store.url") && report.code == 1);

    let broken = doctor(&sim, &[]).file("data/guildhall.db", "this is not a database, whatever its name says");
    DoctorReport::run(broken).assert_check("store", "fail", "not a database");

    let unreachable = doctor(&sim, &[]).env("GUILDHALL__STORE__URL", "postgres://me:hunter2@127.0.0.1:1/guildhall");
    let report = DoctorReport::run(unreachable);
    report.assert_check("store", "fail", "postgres://(redacted)@127.0.0.1:1/guildhall");
    assert!(!report.raw.contains("hunter2"), "{}", report.raw);
}

#[tokio::test(flavor = "multi_thread")]
async fn outdated_schema_is_reported_with_a_fix() {
    let sim = sim(SimConfig::default()).await;
    let url = postgres::shared().create_database().await;
    let run_doctor =
        |migrate: &str| doctor(&sim, &[]).env("GUILDHALL__STORE__URL", &url).env("GUILDHALL__STORE__MIGRATE", migrate);
    DoctorReport::run(run_doctor("true")).assert_check("store", "ok", "migrations are pending");
    let report = DoctorReport::run(run_doctor("false"));
    report.assert_check("store", "fail", "store.migrate is false");
    assert!(report.check("store").2.contains("guildhall migrate up"));

    let loaded = guildhall::settings::load(guildhall::settings::SettingsSources {
        environment: vec![("GUILDHALL__STORE__URL".into(), url.clone().into())],
        ..Default::default()
    });
    let settings = loaded.ok().unwrap().settings.store;
    migrate::up(&settings).await.unwrap();
    let store = Store::open(&settings).await.unwrap();
    let report = DoctorReport::run(run_doctor("false"));
    report.assert_check("store", "ok", "PostgreSQL ");
    report.assert_check("store", "ok", "its schema is up to date");
    store.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn redis_is_checked() {
    let sim = sim(SimConfig::default()).await;
    let run_doctor =
        |redis: &str| DoctorReport::run(doctor(&sim, &["--guilds", "0"]).env("GUILDHALL__REDIS__URL", redis));
    let server = RedisServer::start();
    let url = format!("redis://127.0.0.1:{}", server.port());
    let report = run_doctor(&url);
    report.assert_check("redis", "ok", &format!("127.0.0.1:{}, Redis ", server.port()));
    report.assert_check("redis eviction", "ok", "noeviction");
    report.assert_check("redis persistence", "ok", "appendonly is off");

    let evicting = RedisServer::start_with(&[
        "--maxmemory",
        "50mb",
        "--maxmemory-policy",
        "allkeys-lru",
        "--requirepass",
        "hunter2",
    ]);
    let report = run_doctor(&format!("redis://:hunter2@127.0.0.1:{}", evicting.port()));
    let (status, seen, advice) = report.check("redis eviction");
    assert!(status == "warn" && seen.contains("allkeys-lru") && advice.contains("noeviction"), "{seen} {advice}");
    let report = run_doctor(&format!("redis://:wrong-word@127.0.0.1:{}", evicting.port()));
    report.assert_check("redis", "fail", "password");
    assert!(!report.raw.contains("wrong-word") && report.code == 1, "{}", report.raw);
    let report = run_doctor("redis://127.0.0.1:1");
    report.assert_check("redis", "fail", "redis://127.0.0.1:1");
    assert!(report.check("redis").2.contains("redis.url"));
    assert!(report.report["checks"].as_array().unwrap().iter().all(|one| one["check"] != json!("redis eviction")));
}
