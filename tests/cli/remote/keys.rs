//! `guildhall keys` and `guildhall audit` on a real daemon, and the limits of a key with fewer scopes.

use std::process::Stdio;

use serde_json::json;

use super::{
    fake_server::FakeServer,
    fixture::{Cli, DaemonFixture},
};

#[test]
fn key_is_printed_once_and_limited_to_its_scopes() {
    let fixture = DaemonFixture::start();
    let (one, two) = (fixture.guild(0), fixture.guild(1));
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
    let created = fixture.run(&args);
    assert!(created.err.contains("the shop") && created.err.contains(&format!("guild:{one}")), "{created:?}");
    let key = created.out.trim_end().to_owned();
    assert!(key.starts_with("gh_") && created.out.lines().count() == 1 && !created.err.contains(&key), "{created:?}");
    let id = created.err.lines().find_map(|line| line.strip_prefix("id ")).unwrap().trim().to_owned();

    let shop = Cli::new().env("GUILDHALL_API", &format!("http://{}", fixture.address)).env("GUILDHALL_KEY", &key);
    assert_eq!(shop.run(&["guilds", "show", &one, "-o", "json"]).json()["guild_id"], one.as_str());
    let error_message = shop.run(&["guilds", "pause", &one]).expect_failure();
    assert!(
        error_message.contains("GUILDHALL_KEY lacks the scope guilds:write")
            && error_message.contains("--scope guilds:write"),
        "{error_message}"
    );
    assert!(shop.run(&["guilds", "show", &two]).expect_failure().contains("(404)"));
    assert!(shop.run(&["keys", "list"]).expect_failure().contains("lacks the scope admin"));

    let listed = fixture.run(&["keys", "list"]).expect_success();
    assert!(listed.contains(&id) && listed.contains("the shop") && listed.contains("active"), "{listed}");
    assert!(!listed.contains(&key), "{listed}");
    let expires = fixture.run(&["keys", "show", &id, "-o", "json"]).json()["expires_at"].clone();
    assert!(expires.is_string());

    let rotated = fixture.run(&["keys", "rotate", &id, "--overlap", "10m"]);
    assert!(rotated.err.contains("remains valid for 10m"), "{rotated:?}");
    let new_key = rotated.out.trim_end().to_owned();
    assert!(new_key.starts_with("gh_") && new_key != key);
    let shop = shop.env("GUILDHALL_KEY", &new_key);
    shop.run(&["ops", "list"]).expect_success();

    assert_eq!(fixture.run(&["keys", "revoke", &id]).expect_success(), format!("{id} is revoked\n"));
    assert_eq!(fixture.run(&["keys", "show", &id, "-o", "json"]).json()["active"], false);

    let error = fixture.run(&["keys", "create", "--name", "x", "--scope", "everything"]).expect_failure();
    assert!(error.contains("(400)") && error.contains("\n  scopes: "), "{error}");
    assert!(
        fixture
            .run(&["keys", "create", "--name", "x", "--scope", "audit", "--expires", "soon"])
            .expect_usage_error()
            .contains("30d")
    );

    let audit = fixture.run(&["audit", "--action", "keys.create"]).expect_success();
    assert!(audit.contains("admin") && audit.contains("operations:write"), "{audit}");
    let refused = fixture.run(&["audit", "--by", &id, "-o", "json"]).json();
    assert_eq!(refused["audit"][0]["key"], json!(id), "{refused}");
    let all = fixture.run(&["audit", "--all", "-o", "json"]).json();
    assert_eq!(all["next"], json!(null));
}

#[test]
fn erase_reports_what_was_removed_and_what_stays() {
    let fixture = DaemonFixture::start();
    let erased = fixture.run(&["erase", "--user", "80351110224678912"]).expect_success();
    assert!(erased.starts_with("removed: nothing found\n"), "{erased}");
    assert!(erased.contains("idempotency_keys") && erased.contains("audit"), "{erased}");
    let erased = fixture.run(&["erase", "--guild", &fixture.guild(0), "-o", "json"]).json();
    assert_eq!((&erased["done"], &erased["removed"]["operations"]), (&json!(true), &json!(null)), "{erased}");
    let usage = fixture.run(&["erase"]).expect_usage_error();
    assert!(usage.contains("--user") && usage.contains("--guild"), "{usage}");
    assert!(fixture.run(&["erase", "--user", "me"]).expect_failure().contains("user_id"));
}

#[test]
fn key_as_json_is_complete() {
    let fixture = DaemonFixture::start();
    let created =
        fixture.run(&["keys", "create", "--name", "a", "--scope", "audit", "--tenant", "default", "-o", "json"]).json();
    assert!(created["key"].as_str().unwrap().starts_with("gh_") && created["id"].is_string(), "{created}");
}

#[test]
fn unprinted_key_can_be_revoked_by_its_id() {
    let created = json!({"id": "k1", "key": "gh_k1_secret", "name": "a", "tenant": "default", "scopes": ["audit"], "active": true});
    let server = FakeServer::always(201, created);
    let cli = Cli::at(&server.url());
    let mut command = cli.command(&["keys", "create", "--name", "a", "--scope", "audit"]);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    let message = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{message}");
    assert!(message.contains("guildhall keys revoke k1") && !message.contains("secret"), "{message}");
}
