//! `guildhall keys` and `guildhall audit` on a real daemon, and the limits of a key with fewer scopes.

use std::process::Stdio;

use serde_json::json;

use super::{
    fake::Fake,
    stage::{Cli, Stage},
};

#[test]
fn a_key_is_shown_once_alone_and_is_good_for_what_it_says() {
    let stage = Stage::start();
    let (one, two) = (stage.guild(0), stage.guild(1));
    let args = [
        "keys",
        "create",
        "--name",
        "the shop",
        "--scope",
        "operations:write,guilds:read",
        "--guild",
        &one,
        "--expires",
        "30d",
    ];
    let made = stage.run(&args);
    assert!(made.err.contains("the shop") && made.err.contains(&format!("guild:{one}")), "{made:?}");
    let key = made.out.trim_end().to_owned();
    assert!(key.starts_with("gh_") && made.out.lines().count() == 1 && !made.err.contains(&key), "{made:?}");
    let id = made.err.lines().find_map(|line| line.strip_prefix("id ")).unwrap().trim().to_owned();

    let shop = Cli::new().env("GUILDHALL_API", &format!("http://{}", stage.address)).env("GUILDHALL_KEY", &key);
    assert_eq!(shop.run(&["guilds", "show", &one, "-o", "json"]).json()["guild_id"], one.as_str());
    let lacks = shop.run(&["guilds", "pause", &one]).failed();
    assert!(
        lacks.contains("GUILDHALL_KEY lacks the scope guilds:write") && lacks.contains("--scope guilds:write"),
        "{lacks}"
    );
    assert!(shop.run(&["guilds", "show", &two]).failed().contains("(404)"));
    assert!(shop.run(&["keys", "list"]).failed().contains("lacks the scope admin"));

    let listed = stage.run(&["keys", "list"]).fine();
    assert!(listed.contains(&id) && listed.contains("the shop") && listed.contains("active"), "{listed}");
    assert!(!listed.contains(&key), "{listed}");
    let expires = stage.run(&["keys", "show", &id, "-o", "json"]).json()["expires_at"].clone();
    assert!(expires.is_string());

    let rotated = stage.run(&["keys", "rotate", &id, "--overlap", "10m"]);
    assert!(rotated.err.contains("remains valid for 10m"), "{rotated:?}");
    let newer = rotated.out.trim_end().to_owned();
    assert!(newer.starts_with("gh_") && newer != key);
    let shop = shop.env("GUILDHALL_KEY", &newer);
    shop.run(&["ops", "list"]).fine();

    assert_eq!(stage.run(&["keys", "revoke", &id]).fine(), format!("{id} is revoked\n"));
    assert_eq!(stage.run(&["keys", "show", &id, "-o", "json"]).json()["active"], false);

    let wrong = stage.run(&["keys", "create", "--name", "x", "--scope", "everything"]).failed();
    assert!(wrong.contains("(400)") && wrong.contains("\n  scopes: "), "{wrong}");
    assert!(
        stage
            .run(&["keys", "create", "--name", "x", "--scope", "audit", "--expires", "soon"])
            .misused()
            .contains("30d")
    );

    let audit = stage.run(&["audit", "--action", "keys.create"]).fine();
    assert!(audit.contains("admin") && audit.contains("operations:write"), "{audit}");
    let refused = stage.run(&["audit", "--by", &id, "-o", "json"]).json();
    assert_eq!(refused["audit"][0]["key"], json!(id), "{refused}");
    let all = stage.run(&["audit", "--all", "-o", "json"]).json();
    assert_eq!(all["next"], json!(null));
}

#[test]
fn erase_says_what_was_removed_and_what_stays() {
    let stage = Stage::start();
    let erased = stage.run(&["erase", "--user", "80351110224678912"]).fine();
    assert!(erased.starts_with("removed: nothing found\n"), "{erased}");
    assert!(erased.contains("idempotency_keys") && erased.contains("audit"), "{erased}");
    let erased = stage.run(&["erase", "--guild", &stage.guild(0), "-o", "json"]).json();
    assert_eq!((&erased["done"], &erased["removed"]["operations"]), (&json!(true), &json!(null)), "{erased}");
    let usage = stage.run(&["erase"]).misused();
    assert!(usage.contains("--user") && usage.contains("--guild"), "{usage}");
    assert!(stage.run(&["erase", "--user", "me"]).failed().contains("user_id"));
}

#[test]
fn a_key_as_json_is_whole() {
    let stage = Stage::start();
    let made =
        stage.run(&["keys", "create", "--name", "a", "--scope", "audit", "--tenant", "default", "-o", "json"]).json();
    assert!(made["key"].as_str().unwrap().starts_with("gh_") && made["id"].is_string(), "{made}");
}

#[test]
fn a_key_that_nobody_takes_is_told_so_that_it_can_be_taken_back() {
    let made = json!({"id": "k1", "key": "gh_k1_secret", "name": "a", "tenant": "default", "scopes": ["audit"], "active": true});
    let fake = Fake::says(201, made);
    let cli = Cli::at(&fake.url());
    let mut command = cli.command(&["keys", "create", "--name", "a", "--scope", "audit"]);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    let says = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{says}");
    assert!(says.contains("guildhall keys revoke k1") && !says.contains("secret"), "{says}");
}
