//! Webhooks of handlers, files with secrets, dead letters and row-level security.

use std::{fs, io::Read as _, net::TcpListener, os::unix::fs::PermissionsExt as _, path::Path, thread};

use guildhall_sim::SimConfig;
use guildhall_testkit::{
    postgres,
    program::{Guildhall, RunningGuildhall},
};
use serde_json::Value;

use super::{DoctorReport, doctor, sim};

const SECRET: &str = "whsec_ZXhhbXBsZS1vbmx5LW1ha2UteW91ci1vd24tc2VjcmV0";

fn webhook(name: &str, url: &str, options: &str) -> String {
    format!(
        "[[handlers]]\nname = \"{name}\"\non = \"guild.create\"\n\
         [handlers.webhook]\nurl = \"{url}\"\nsecrets = [\"{SECRET}\"]\n{options}\n\n"
    )
}

/// All findings of a check: their verdicts, what was seen, and the advice.
fn findings(report: &DoctorReport, check: &str) -> Vec<(String, String, String)> {
    let text = |one: &Value, field: &str| one[field].as_str().unwrap_or_default().to_owned();
    let checks = report.report["checks"].as_array().unwrap().iter().filter(|one| one["check"] == check);
    checks.map(|one| (text(one, "verdict"), text(one, "seen"), text(one, "advice"))).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn webhooks_are_connected_to_without_a_request() {
    let sim = sim(SimConfig::default()).await;
    let (open, closed) = (TcpListener::bind("127.0.0.1:0").unwrap(), TcpListener::bind("127.0.0.1:0").unwrap());
    let (port, closed_port) = (open.local_addr().unwrap().port(), closed.local_addr().unwrap().port());
    drop(closed);
    let received = thread::spawn(move || {
        let mut bytes = Vec::new();
        open.accept().unwrap().0.read_to_end(&mut bytes).unwrap();
        bytes
    });
    let handlers = webhook("ready", &format!("http://127.0.0.1:{port}/canary?key=canary"), "allow_private = true")
        + &webhook("down", &format!("https://127.0.0.1:{closed_port}/"), "allow_private = true")
        + &webhook("unknown", "https://nowhere.invalid/", "")
        + &webhook("private", &format!("http://127.0.0.1:{port}/"), "");
    let run = doctor(&sim, &["--guilds", "0"])
        .file("handlers.toml", &handlers)
        .env("GUILDHALL__HANDLERS__FILE", "handlers.toml");
    let report = DoctorReport::run(run);
    let found = findings(&report, "webhooks");
    let verdicts: Vec<&str> = found.iter().map(|(verdict, ..)| verdict.as_str()).collect();
    assert_eq!(verdicts, ["ok", "fail", "fail", "fail"], "{found:?}");
    assert!(found[0].1.starts_with(&format!("ready: connected to http://127.0.0.1:{port} in ")), "{found:?}");
    assert!(found[1].1.contains("down: cannot connect to") && found[1].2.contains("start the brain"), "{found:?}");
    assert!(found[2].1.contains("cannot look up the name nowhere.invalid"), "{found:?}");
    assert!(found[3].1.contains("not permitted; set allow_private"), "{found:?}");
    assert_eq!(received.join().unwrap(), b"", "no byte is sent");
    assert!(!report.raw.contains("canary") && !report.raw.contains(SECRET), "{}", report.raw);
}

#[tokio::test(flavor = "multi_thread")]
async fn invalid_handlers_file_fails_and_none_is_skipped() {
    let sim = sim(SimConfig::default()).await;
    DoctorReport::run(doctor(&sim, &["--guilds", "0"])).assert_check("webhooks", "skip", "handlers.file is not set");
    let broken = doctor(&sim, &["--guilds", "0"])
        .file("handlers.toml", "[[handlers]]\nname = \"a\"\n")
        .env("GUILDHALL__HANDLERS__FILE", "handlers.toml");
    let report = DoctorReport::run(broken);
    report.assert_check("webhooks", "fail", "handlers.toml");
    assert!(report.check("webhooks").2.contains("guildhall handlers check"));
}

fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn readable_files_with_secrets_are_reported() {
    let sim = sim(SimConfig::default()).await;
    let run = |mode: u32| {
        let program = doctor(&sim, &["--guilds", "0"])
            .file("token", "sim-bot-token\n")
            .file("webhook-secret", &format!("{SECRET}\n"))
            .file(
                "handlers.toml",
                &webhook("a", "http://127.0.0.1:1/", "")
                    .replace(&format!("secrets = [\"{SECRET}\"]"), "secrets_file = \"webhook-secret\""),
            )
            .file("config/guildhall.toml", "[api]\nadmin_key = \"gh_test_0123456789\"\n")
            .env_remove("GUILDHALL__DISCORD__TOKEN")
            .env("GUILDHALL__DISCORD__TOKEN_FILE", "token")
            .env("GUILDHALL__HANDLERS__FILE", "handlers.toml");
        for file in ["token", "webhook-secret", "handlers.toml", "config/guildhall.toml"] {
            set_mode(&program.path(file), mode);
        }
        findings(&DoctorReport::run(program), "files")
    };
    let shared = run(0o640);
    assert_eq!(shared.len(), 1, "its group may read them: {shared:?}");
    assert_eq!(shared[0].0, "ok");
    let open = run(0o644);
    let named: Vec<&str> = open.iter().map(|(_, seen, _)| seen.split(':').next().unwrap()).collect();
    assert_eq!(named, ["config/guildhall.toml", "token", "webhook-secret"], "not handlers.toml, which has no secret");
    for (verdict, _, advice) in &open {
        assert!(verdict == "warn" && advice.starts_with("run: chmod 640 "), "{advice}");
    }
}

fn start(sim: &guildhall_sim::SimHandle, store: &str) -> RunningGuildhall {
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
async fn dead_letters_and_row_security_are_reported() {
    let sim = sim(SimConfig::default()).await;
    let url = postgres::shared().create_database().await;
    let run = |mode: &str| {
        let program = doctor(&sim, &["--guilds", "0"]).env("GUILDHALL__STORE__URL", &url);
        DoctorReport::run(program.env("GUILDHALL__STORE__ROW_SECURITY", mode))
    };
    let report = run("auto");
    report.assert_check("dead letters", "skip", "no table");
    report.assert_check("row security", "skip", "current schema");
    tokio::task::block_in_place(|| {
        let running = start(&sim, &url);
        running.signal("TERM");
        assert_eq!(running.wait_for_exit().code, Some(0));
    });
    let report = run("auto");
    report.assert_check("dead letters", "ok", "0 dead letters, 0 dead events");
    let (verdict, seen, _) = report.check("row security");
    assert!(matches!((verdict, seen.split(',').next().unwrap()), ("ok", "on") | ("warn", _)), "{verdict}: {seen}");
    run("off").assert_check("row security", "ok", "off by store.row_security");
}
