//! The admin key of a daemon that runs as a process.

use std::{fs, os::unix::fs::PermissionsExt as _};

use guildhall_testkit::{
    gateway::{FakeGateway, GatewayBehavior},
    program::{Guildhall, text},
};

use super::{call, run};

#[test]
fn admin_key_is_generated_once_and_never_logged() {
    run(async {
        let gateway = FakeGateway::start(GatewayBehavior::Normal).await;
        let folder = tempfile::tempdir().unwrap();
        let (url, file) = (format!("sqlite:{}/guildhall.db", folder.path().display()), folder.path().join("admin.key"));
        let mut keys = Vec::new();
        for is_generated in [true, false] {
            let daemon = Guildhall::serve(&gateway.url)
                .env("GUILDHALL__STORE__URL", &url)
                .env("GUILDHALL__LOG__FILTER", "trace")
                .spawn();
            let address = daemon.address();
            let line = daemon.wait_for_log_line("api.admin_key is not set");
            assert!(
                line.contains(file.to_str().unwrap()) && line.contains("a key was generated") == is_generated,
                "{line}"
            );
            let key = fs::read_to_string(&file).unwrap().trim().to_owned();
            assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
            let rejected = call(address, "GET", "/v1/operations", &[("Authorization", "Bearer wrong")], "").await;
            rejected.assert_problem(401, "key-invalid");
            let authorization = format!("Bearer {key}");
            let accepted = call(address, "GET", "/v1/operations", &[("Authorization", &authorization)], "").await;
            assert!(matches!(accepted.status, 200 | 503), "{accepted:?}");
            daemon.signal("TERM");
            let exit = daemon.wait_for_exit();
            assert_eq!(exit.code, Some(0), "{}", exit.stderr);
            assert!(!exit.stderr.contains(&key) && !exit.stdout.contains(&key), "the key is in the log");
            keys.push(key);
        }
        assert_eq!(keys[0], keys[1]);
    });
}

#[test]
fn public_bind_address_requires_an_admin_key() {
    let output = Guildhall::serve("ws://127.0.0.1:1").env("GUILDHALL__API__BIND", "0.0.0.0:0").output();
    let message = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{message}");
    assert!(message.contains("GUILDHALL__API__ADMIN_KEY") && message.contains("0.0.0.0:0"), "{message}");
}
