//! `guildhall dlq`, `guilds`, `instances` on a real daemon.

use serde_json::json;

use super::stage::Stage;

#[test]
fn dead_letters_are_listed_done_again_and_thrown_away() {
    let stage = Stage::start();
    let guild = stage.guild(0);
    assert!(stage.run(&["dlq", "list"]).err.contains("No matching dead letters."));
    let (one, two) = (stage.dead(&guild), stage.dead(&guild));
    let listed = stage.run(&["dlq", "list", "--guild", &guild]).fine();
    assert!(listed.contains(&one) && listed.contains(&two) && listed.contains("assign_role"), "{listed}");
    let class = stage.run(&["dlq", "list", "-o", "json"]).json()["dead_letters"][0]["error"]["class"]
        .as_str()
        .unwrap()
        .to_owned();
    let other = if class == "forbidden" { "not_found" } else { "forbidden" };
    assert_eq!(stage.run(&["dlq", "list", "--class", other, "-o", "json"]).json()["dead_letters"], json!([]));
    let shown = stage.run(&["dlq", "show", &one]).fine();
    assert!(shown.contains("redriven as") && shown.contains(&format!("({class})")), "{shown}");

    let again = stage.run(&["dlq", "redrive", &one]).fine();
    assert!(
        again.starts_with(&format!("{one} is redriven as ")) && again.contains("1 redriven, 0 skipped."),
        "{again}"
    );
    assert!(stage.run(&["dlq", "redrive", &one]).failed().contains("(409)"));
    let all = stage.run(&["dlq", "redrive", "--class", &class, "--limit", "1", "-o", "json"]).json();
    assert_eq!((&all["redriven"], &all["stopped"]), (&json!(1), &json!(null)), "{all}");
    let waited = stage.run(&["dlq", "redrive", "--all", "--wait"]);
    assert!(waited.code == 1 && waited.err.contains("redriven as"), "they die again: {waited:?}");

    assert_eq!(stage.run(&["dlq", "discard", &one, &two]).fine(), "2 discarded.\n");
    assert!(stage.run(&["dlq", "show", &one]).failed().contains(&one));
    assert!(stage.run(&["dlq", "discard"]).misused().contains("--all"), "discarding everything must be explicit");
    assert!(stage.run(&["dlq", "redrive", &one, "--kind", "assign_role"]).misused().contains("cannot be used with"));
}

#[test]
fn guilds_are_held_back_and_let_go_and_processes_listed() {
    let stage = Stage::start();
    let (one, two) = (stage.guild(0), stage.guild(1));
    assert_eq!(
        stage.run(&["guilds", "pause", &one, &two]).fine(),
        format!("guild {one} is paused\nguild {two} is paused\n")
    );
    let submit = ["ops", "submit", "--guild", &one, "--kind", "create_role", "--payload", r#"{"name": "a"}"#];
    stage.run(&submit).fine();
    let shown = stage.run(&["guilds", "show", &one]).fine();
    assert_eq!(shown, format!("guild     {one}\npaused    yes\npending   1\nby state  1 queued\n"));
    assert_eq!(stage.run(&["guilds", "resume", &one]).fine(), format!("guild {one} is resumed\n"));
    assert_eq!(stage.run(&["guilds", "pause", "--all"]).fine(), "everything is paused\n");
    assert_eq!(stage.run(&["guilds", "show", &two, "-o", "json"]).json()["all_paused"], true);
    assert_eq!(stage.run(&["guilds", "resume", "--all", "-o", "json"]).json(), json!({"all_paused": false}));
    assert!(stage.run(&["guilds", "pause"]).misused().contains("--all"));

    let instances = stage.run(&["instances"]).fine();
    assert!(
        instances.lines().count() == 2 && instances.contains("(self)") && instances.contains("active"),
        "{instances}"
    );
    assert_eq!(stage.run(&["instances", "-o", "json"]).json()["instances"][0]["is_self"], true);
}
