//! The commands as a person meets them: what they print, and how they exit.

mod support;

use std::net::TcpListener;

use support::{Guildhall, text};

#[test]
fn config_check_shows_each_setting_with_its_origin() {
    let output = Guildhall::new(&["config", "check", "--log-filter", "debug"])
        .file("config/guildhall.toml", "[gateway]\nshards = 3\n")
        .env("GUILDHALL__API__BIND", "127.0.0.1:9")
        .output();
    assert_eq!(output.status.code(), Some(0));
    let shown = text(&output.stdout);
    let origin = |key: &str| shown.lines().find(|line| line.starts_with(key)).unwrap().to_owned();
    let words: Vec<_> = origin("gateway.shards").split_whitespace().map(str::to_owned).collect();
    assert_eq!(words[..2], ["gateway.shards", "3"], "{shown}");
    assert!(origin("gateway.shards").ends_with("config/guildhall.toml:2"), "{shown}");
    assert!(origin("api.bind").ends_with("environment GUILDHALL__API__BIND"), "{shown}");
    assert!(origin("log.filter").ends_with("flag --log-filter"), "{shown}");
    assert!(origin("discord.token").contains("(not set)"), "{shown}");
    assert!(origin("log.format").ends_with("default"), "{shown}");
}

#[test]
fn config_check_speaks_json_in_both_cases() {
    let fine = Guildhall::new(&["config", "check", "--json"]).output();
    let shown: serde_json::Value = serde_json::from_slice(&fine.stdout).unwrap();
    assert_eq!((fine.status.code(), &shown["ok"]), (Some(0), &true.into()));
    let shards = shown["settings"].as_array().unwrap().iter().find(|one| one["key"] == "gateway.shards").unwrap();
    assert_eq!((&shards["value"], &shards["origin"]), (&0.into(), &"default".into()));

    let wrong = Guildhall::new(&["config", "check", "--json"])
        .env("GUILDHALL__GATEWAY__SHARDS", "many")
        .env("GUILDHALL__API__BNID", "127.0.0.1:9")
        .output();
    let shown: serde_json::Value = serde_json::from_slice(&wrong.stdout).unwrap();
    assert_eq!((wrong.status.code(), &shown["ok"]), (Some(1), &false.into()));
    assert_eq!(shown["errors"].as_array().unwrap().len(), 2);
    let says = text(&wrong.stderr);
    assert!(says.contains("gateway.shards cannot be \"many\"") && says.contains("GUILDHALL__API__BIND"), "{says}");
}

#[test]
fn a_named_settings_file_must_exist_and_is_used_instead_of_the_usual_one() {
    let missing = Guildhall::new(&["config", "check", "--config", "other.toml"]).output();
    assert_eq!(missing.status.code(), Some(1));
    assert!(text(&missing.stderr).contains("other.toml cannot be read"));

    let named = Guildhall::new(&["--config", "other.toml", "config", "check"])
        .file("config/guildhall.toml", "this is not even TOML")
        .file("other.toml", "[gateway]\nshards = 7\n")
        .output();
    assert_eq!(named.status.code(), Some(0), "{}", text(&named.stderr));
    assert!(text(&named.stdout).contains("other.toml:2"));
}

#[test]
fn the_printed_template_is_a_settings_file_that_changes_nothing() {
    let template = Guildhall::new(&["config", "template"]).output();
    let check = |file: &str| {
        let output = Guildhall::new(&["config", "check"]).file("config/guildhall.toml", file).output();
        assert!(output.status.success(), "{}", text(&output.stderr));
        text(&output.stdout)
    };
    assert_eq!(check(&text(&template.stdout)), check(""));
}

#[test]
fn serve_without_a_token_says_what_to_set_and_where_to_look_without_one() {
    let output = Guildhall::new(&["serve"]).output();
    assert_eq!(output.status.code(), Some(1));
    let says = text(&output.stderr);
    for hint in ["GUILDHALL__DISCORD__TOKEN", "GUILDHALL__DISCORD__TOKEN_FILE", "token_file", "guildhall demo"] {
        assert!(says.contains(hint), "no {hint} in {says}");
    }
}

#[test]
fn wrong_usage_exits_with_two() {
    for args in [&["serve", "--no-such-flag"][..], &["no-such-command"], &["completions", "no-such-shell"], &[]] {
        assert_eq!(Guildhall::new(args).output().status.code(), Some(2), "{args:?}");
    }
    assert_eq!(Guildhall::new(&["--version"]).output().status.code(), Some(0));
}

#[test]
fn there_are_completions_for_the_usual_shells() {
    for shell in ["bash", "zsh", "fish"] {
        let output = Guildhall::new(&["completions", shell]).output();
        assert!(output.status.success() && text(&output.stdout).contains("healthcheck"), "{shell}");
    }
}

#[test]
fn a_health_check_fails_in_one_line_when_nobody_answers() {
    // A port that was free a moment ago, and one where somebody listens but never answers.
    let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    let refused = Guildhall::new(&["healthcheck"]).env("GUILDHALL__API__BIND", &free).output();
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", silent.local_addr().unwrap());
    let unanswered = Guildhall::new(&["healthcheck", "--url", &url, "--timeout-ms", "50"]).output();
    for (output, why) in [(refused, free.as_str()), (unanswered, "no answer in 50 ms")] {
        let says = text(&output.stderr);
        assert_eq!(output.status.code(), Some(1));
        assert!(says.contains(why) && says.lines().count() == 1, "{says}");
    }
}
