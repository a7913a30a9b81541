//! The admin key of a daemon that runs as a process.

use std::{fs, os::unix::fs::PermissionsExt as _};

use super::{
    call, run,
    support::{
        Guildhall,
        gateway::{Gateway, Manner},
        text,
    },
};

#[test]
fn a_daemon_without_a_key_makes_one_that_stays_and_never_shows() {
    run(async {
        let gateway = Gateway::start(Manner::Kind).await;
        let folder = tempfile::tempdir().unwrap();
        let (url, file) = (format!("sqlite:{}/guildhall.db", folder.path().display()), folder.path().join("admin.key"));
        let mut keys = Vec::new();
        for made in [true, false] {
            let daemon = Guildhall::serve(&gateway.url)
                .env("GUILDHALL__STORE__URL", &url)
                .env("GUILDHALL__LOG__FILTER", "trace")
                .spawn();
            let address = daemon.address();
            let line = daemon.line_with("api.admin_key is not set");
            assert!(line.contains(file.to_str().unwrap()) && line.contains("a key was generated") == made, "{line}");
            let key = fs::read_to_string(&file).unwrap().trim().to_owned();
            assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
            let without = call(address, "GET", "/v1/operations", &[("Authorization", "Bearer wrong")], "").await;
            without.is_problem(401, "unauthorized");
            let shown = format!("Bearer {key}");
            let with = call(address, "GET", "/v1/operations", &[("Authorization", &shown)], "").await;
            assert!(matches!(with.status, 200 | 503), "{with:?}");
            daemon.signal("TERM");
            let ended = daemon.end();
            assert_eq!(ended.code, Some(0), "{}", ended.stderr);
            assert!(!ended.stderr.contains(&key) && !ended.stdout.contains(&key), "the key is in the log");
            keys.push(key);
        }
        assert_eq!(keys[0], keys[1]);
    });
}

#[test]
fn a_daemon_that_others_can_reach_does_not_start_without_a_key() {
    let output = Guildhall::serve("ws://127.0.0.1:1").env("GUILDHALL__API__BIND", "0.0.0.0:0").output();
    let says = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{says}");
    assert!(says.contains("GUILDHALL__API__ADMIN_KEY") && says.contains("0.0.0.0:0"), "{says}");
}
