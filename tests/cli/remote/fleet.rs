//! `guildhall limits`, `breakers`, `shards` and `budgets` on a real daemon.

use super::fixture::DaemonFixture;

#[test]
fn limits_show_remaining_requests_and_their_users() {
    let fixture = DaemonFixture::start();
    let guild = fixture.guild(0);
    let submit =
        ["ops", "submit", "--guild", &guild, "--kind", "create_role", "--payload", r#"{"name": "a"}"#, "--wait"];
    fixture.run(&submit).expect_success();
    let output = fixture.run(&["limits"]).expect_success();
    assert!(
        output.contains(" of 50 per 1s available") && output.contains("ban budget  0 of 10000 invalid requests\n"),
        "{output}"
    );
    let buckets = fixture.run(&["limits", "buckets", "--all"]).expect_success();
    assert!(buckets.contains("POST /guilds/{id}/roles") && buckets.contains(&guild), "{buckets}");
    let top = fixture.run(&["limits", "top"]).expect_success();
    assert!(top.starts_with("by spend, since ") && top.contains(&format!("guild {guild}  1\n")), "{top}");
}

#[test]
fn forced_breaker_delays_operations_until_its_reset() {
    let fixture = DaemonFixture::start();
    let guild = fixture.guild(0);
    fixture.run(&["breakers", "force", "discord", "--for", "1h"]).expect_success();
    let listed = fixture.run(&["breakers", "list"]).expect_success();
    let row = listed.lines().find(|line| line.starts_with("discord ")).unwrap();
    assert!(row.contains(" open ") && row.contains("forced"), "{listed}");
    let submit =
        ["ops", "submit", "--guild", &guild, "--kind", "create_role", "--payload", r#"{"name": "a"}"#, "-o", "json"];
    let id = fixture.run(&submit).json()["id"].as_str().unwrap().to_owned();
    let late = fixture.run(&["ops", "watch", &id, "--within", "2s"]);
    assert!(late.code == 1 && late.out.contains("delayed"), "{late:?}");
    let reason = || fixture.run(&["ops", "show", &id, "-o", "json"]).json()["waits_for"]["reason"].clone();
    assert_eq!(reason(), "limit");
    fixture.run(&["guilds", "pause", &guild]).expect_success();
    assert_eq!(reason(), "guild_paused", "the end of its delay would not be enough");
    fixture.run(&["guilds", "resume", &guild]).expect_success();
    assert_eq!(fixture.run(&["breakers", "reset", "discord"]).expect_success(), "discord is closed\n");
    // The reset makes it due; no manual retry is needed.
    assert!(fixture.run(&["ops", "watch", &id, "--within", "60s"]).expect_success().contains("succeeded"));
    let message = fixture.run(&["breakers", "force", "nonsense"]).expect_failure();
    assert!(message.contains("\n  key: names no breaker"), "{message}");
}

#[test]
fn shards_are_listed_and_restarted() {
    let fixture = DaemonFixture::start();
    let listed = fixture.run(&["shards", "list"]).expect_success();
    assert!(listed.lines().count() == 2 && listed.starts_with("SHARD  STATE"), "{listed}");
    // Only a shard with a session can be restarted.
    fixture.wait_until(|| fixture.run(&["shards", "list", "-o", "json"]).json()["shards"][0]["state"] == "connected");
    assert_eq!(fixture.run(&["shards", "restart", "0"]).expect_success(), "shard 0 reconnects\n");
    fixture.wait_until(|| fixture.run(&["shards", "list", "-o", "json"]).json()["shards"][0]["resumes"] == 1);
    assert!(fixture.run(&["shards", "restart", "7"]).expect_failure().contains("no shard 7"));
}

#[test]
fn budgets_are_listed_and_an_unknown_one_fails() {
    let fixture = DaemonFixture::start();
    let result = fixture.run(&["budgets"]);
    assert!(result.code == 0 && result.err.contains("No budgets yet."), "{result:?}");
    assert!(fixture.run(&["budgets", "show", "shop"]).expect_failure().contains("(404)"));
}
