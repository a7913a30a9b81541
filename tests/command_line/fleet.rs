//! `guildhall limits`, `breakers`, `shards` and `budgets` on a real daemon.

use super::stage::Stage;

#[test]
fn limits_tell_what_is_left_and_who_uses_it() {
    let stage = Stage::start();
    let guild = stage.guild(0);
    let submit =
        ["ops", "submit", "--guild", &guild, "--kind", "create_role", "--payload", r#"{"name": "a"}"#, "--wait"];
    stage.run(&submit).fine();
    let told = stage.run(&["limits"]).fine();
    assert!(
        told.contains(" of 50 per 1s available") && told.contains("ban budget  0 of 10000 invalid requests\n"),
        "{told}"
    );
    let buckets = stage.run(&["limits", "buckets", "--all"]).fine();
    assert!(buckets.contains("POST /guilds/{id}/roles") && buckets.contains(&guild), "{buckets}");
    let top = stage.run(&["limits", "top"]).fine();
    assert!(top.starts_with("by spend, since ") && top.contains(&format!("guild {guild}  1\n")), "{top}");
}

#[test]
fn a_breaker_that_was_opened_holds_operations_back_until_it_is_closed() {
    let stage = Stage::start();
    let guild = stage.guild(0);
    stage.run(&["breakers", "force", "discord", "--for", "1h"]).fine();
    let listed = stage.run(&["breakers", "list"]).fine();
    let row = listed.lines().find(|line| line.starts_with("discord ")).unwrap();
    assert!(row.contains(" open ") && row.contains("forced"), "{listed}");
    let submit =
        ["ops", "submit", "--guild", &guild, "--kind", "create_role", "--payload", r#"{"name": "a"}"#, "-o", "json"];
    let id = stage.run(&submit).json()["id"].as_str().unwrap().to_owned();
    let late = stage.run(&["ops", "watch", &id, "--within", "2s"]);
    assert!(late.code == 1 && late.out.contains("delayed"), "{late:?}");
    assert_eq!(stage.run(&["breakers", "reset", "discord"]).fine(), "discord is closed\n");
    // The reset makes it due; no manual retry is needed.
    assert!(stage.run(&["ops", "watch", &id, "--within", "60s"]).fine().contains("succeeded"));
    let says = stage.run(&["breakers", "force", "nonsense"]).failed();
    assert!(says.contains("\n  key: names no breaker"), "{says}");
}

#[test]
fn shards_are_listed_and_connect_anew() {
    let stage = Stage::start();
    let listed = stage.run(&["shards", "list"]).fine();
    assert!(listed.lines().count() == 2 && listed.starts_with("SHARD  STATE"), "{listed}");
    // Only a shard with a session can be restarted.
    stage.until(|| stage.run(&["shards", "list", "-o", "json"]).json()["shards"][0]["state"] == "connected");
    assert_eq!(stage.run(&["shards", "restart", "0"]).fine(), "shard 0 reconnects\n");
    stage.until(|| stage.run(&["shards", "list", "-o", "json"]).json()["shards"][0]["resumes"] == 1);
    assert!(stage.run(&["shards", "restart", "7"]).failed().contains("no shard 7"));
}

#[test]
fn budgets_are_listed_and_one_that_is_not_there_is_told() {
    let stage = Stage::start();
    let told = stage.run(&["budgets"]);
    assert!(told.code == 0 && told.err.contains("No budgets yet."), "{told:?}");
    assert!(stage.run(&["budgets", "show", "shop"]).failed().contains("(404)"));
}
