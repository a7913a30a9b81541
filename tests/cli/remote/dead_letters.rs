//! `guildhall dlq`, `guilds`, `instances` on a real daemon.

use serde_json::json;

use super::fixture::DaemonFixture;

#[test]
fn dead_letters_are_listed_redriven_and_discarded() {
    let fixture = DaemonFixture::start();
    let guild = fixture.guild(0);
    assert!(fixture.run(&["dlq", "list"]).err.contains("No matching dead letters."));
    let (one, two) = (fixture.submit_dead(&guild), fixture.submit_dead(&guild));
    let listed = fixture.run(&["dlq", "list", "--guild", &guild]).expect_success();
    assert!(listed.contains(&one) && listed.contains(&two) && listed.contains("assign_role"), "{listed}");
    let class = fixture.run(&["dlq", "list", "-o", "json"]).json()["dead_letters"][0]["error"]["class"]
        .as_str()
        .unwrap()
        .to_owned();
    let other = if class == "forbidden" { "not_found" } else { "forbidden" };
    assert_eq!(fixture.run(&["dlq", "list", "--class", other, "-o", "json"]).json()["dead_letters"], json!([]));
    let output = fixture.run(&["dlq", "show", &one]).expect_success();
    assert!(output.contains("redriven as") && output.contains(&format!("({class})")), "{output}");

    let redriven = fixture.run(&["dlq", "redrive", &one]).expect_success();
    assert!(
        redriven.starts_with(&format!("{one} is redriven as ")) && redriven.contains("1 redriven, 0 skipped."),
        "{redriven}"
    );
    assert!(fixture.run(&["dlq", "redrive", &one]).expect_failure().contains("(409)"));
    let all = fixture.run(&["dlq", "redrive", "--class", &class, "--limit", "1", "--yes", "-o", "json"]).json();
    assert_eq!((&all["redriven"], &all["stopped"]), (&json!(1), &json!(null)), "{all}");
    let waited = fixture.run(&["dlq", "redrive", "--all", "--yes", "--wait"]);
    assert!(waited.code == 1 && waited.err.contains("redriven as"), "they die again: {waited:?}");

    assert_eq!(fixture.run(&["dlq", "discard", &one, &two, "--yes"]).expect_success(), "2 discarded.\n");
    assert!(fixture.run(&["dlq", "show", &one]).expect_failure().contains(&one));
    assert!(
        fixture.run(&["dlq", "discard"]).expect_usage_error().contains("--all"),
        "discarding everything must be explicit"
    );
    assert!(
        fixture
            .run(&["dlq", "redrive", &one, "--kind", "assign_role"])
            .expect_usage_error()
            .contains("cannot be used with")
    );
}

#[test]
fn guilds_are_paused_and_resumed_and_instances_listed() {
    let fixture = DaemonFixture::start();
    let (one, two) = (fixture.guild(0), fixture.guild(1));
    let name = fixture.wait_for_guild_names()[0].clone();
    assert_eq!(
        fixture.run(&["guilds", "pause", &one, &two]).expect_success(),
        format!("guild {one} is paused\nguild {two} is paused\n")
    );
    let submit = ["ops", "submit", "--guild", &one, "--kind", "create_role", "--payload", r#"{"name": "a"}"#];
    fixture.run(&submit).expect_success();
    let output = fixture.run(&["guilds", "show", &one]).expect_success();
    assert_eq!(output, format!("guild     {one}\nname      {name}\npaused    yes\npending   1\nby state  1 queued\n"));
    assert_eq!(fixture.run(&["guilds", "resume", &one]).expect_success(), format!("guild {one} is resumed\n"));
    assert_eq!(fixture.run(&["guilds", "pause", "--all"]).expect_success(), "everything is paused\n");
    assert_eq!(fixture.run(&["guilds", "show", &two, "-o", "json"]).json()["all_paused"], true);
    assert_eq!(fixture.run(&["guilds", "resume", "--all", "-o", "json"]).json(), json!({"all_paused": false}));
    assert!(fixture.run(&["guilds", "pause"]).expect_usage_error().contains("--all"));

    let instances = fixture.run(&["instances"]).expect_success();
    assert!(
        instances.lines().count() == 2 && instances.contains("(self)") && instances.contains("active"),
        "{instances}"
    );
    assert_eq!(fixture.run(&["instances", "-o", "json"]).json()["instances"][0]["is_self"], true);
}
