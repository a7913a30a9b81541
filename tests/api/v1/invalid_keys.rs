//! A flood of invalid keys from one address right after a start, and the valid keys of that address.

use std::time::{Duration, Instant};

use guildhall::api::{ControlConfig, PoliciesConfig};
use guildhall_core::policy::Rate;
use serde_json::{Value, json};
use tempfile::TempDir;

use super::{Response, call, run, sqlite_fixture::SqliteApi};

/// The default limit on failed authentication.
fn default_failure_limit() -> ControlConfig {
    let policies = PoliciesConfig { failed: Rate::new(10, 200), ..PoliciesConfig::default() };
    ControlConfig { policies, ..ControlConfig::default() }
}

async fn get_with(api: &SqliteApi, key: &str) -> Response {
    call(api.address(), "GET", "/v1/operations", &[("Authorization", &format!("Bearer {key}"))], "").await
}

/// A key that was created before a restart of the daemon.
async fn open_restarted(folder: &TempDir) -> (SqliteApi, String, String) {
    let api = SqliteApi::open_with(folder, 5, default_failure_limit()).await;
    let created = api.request("POST", "/v1/keys", json!({"name": "a test", "scopes": ["operations:read"]})).await;
    let (key, id) = (created.text("key"), created.text("id"));
    api.close().await;
    (SqliteApi::open_with(folder, 5, default_failure_limit()).await, key, id)
}

/// Sends invalid keys until well past the limit. Returns how many were answered 401 and 429.
async fn flood(api: &SqliteApi, invalid_key: impl Fn(usize) -> String) -> [usize; 2] {
    let mut counts = [0; 2];
    for n in 0..650 {
        let response = get_with(api, &invalid_key(n)).await;
        match response.status {
            401 => counts[0] += 1,
            429 => counts[1] += 1,
            _ => panic!("{response:?}"),
        }
    }
    counts
}

#[test]
fn valid_key_works_after_a_flood_of_made_up_keys() {
    run(async {
        let folder = tempfile::tempdir().unwrap();
        let (api, key, id) = open_restarted(&folder).await;
        let secret = key.rsplit_once(&id).unwrap().1.to_owned();
        let counts = flood(&api, |n| format!("gh_{n:012}{secret}")).await;
        assert!(counts[0] >= 200 && counts[1] >= 200, "{counts:?}");
        assert_eq!(get_with(&api, &key).await.status, 200);
        // A key that is created during the flood works, too.
        let created = api.request("POST", "/v1/keys", json!({"name": "another", "scopes": ["operations:read"]})).await;
        flood(&api, |n| format!("gh_{n:012}{secret}")).await;
        assert_eq!(get_with(&api, &created.text("key")).await.status, 200);
        api.close().await;
    });
}

#[test]
fn valid_key_works_after_a_flood_with_its_own_id() {
    run(async {
        let folder = tempfile::tempdir().unwrap();
        let (api, key, id) = open_restarted(&folder).await;
        let counts = flood(&api, |n| format!("gh_{id}_{n:043}")).await;
        assert!(counts[0] >= 200 && counts[1] >= 200, "{counts:?}");
        assert_eq!(get_with(&api, &key).await.status, 200);
        api.close().await;
    });
}

#[test]
fn valid_key_works_during_a_flood() {
    run(async {
        let folder = tempfile::tempdir().unwrap();
        let (api, key, id) = open_restarted(&folder).await;
        let secret = key.rsplit_once(&id).unwrap().1.to_owned();
        let floods = (0..16_usize).map(|lane| {
            let (address, secret) = (api.address(), secret.clone());
            tokio::spawn(async move {
                for n in 0..60_usize {
                    let authorization = format!("Bearer gh_{:012}{secret}", lane * 1_000 + n);
                    let response =
                        call(address, "GET", "/v1/operations", &[("Authorization", &authorization)], "").await;
                    assert!(matches!(response.status, 401 | 429 | 503), "{response:?}");
                }
            })
        });
        let floods: Vec<_> = floods.collect();
        let mut requests = 0;
        while floods.iter().any(|flood| !flood.is_finished()) || requests == 0 {
            assert_eq!(get_with(&api, &key).await.status, 200);
            requests += 1;
        }
        for flood in floods {
            flood.await.unwrap();
        }
        api.close().await;
    });
}

#[test]
fn revoked_key_is_refused_during_a_flood() {
    run(async {
        let folder = tempfile::tempdir().unwrap();
        let (api, key, id) = open_restarted(&folder).await;
        assert_eq!(get_with(&api, &key).await.status, 200);
        assert_eq!(api.request("DELETE", &format!("/v1/keys/{id}"), Value::Null).await.status, 204);
        let deadline = Instant::now() + Duration::from_secs(5);
        loop {
            let response = get_with(&api, &key).await;
            if matches!(response.status, 401 | 429) {
                break;
            }
            assert!(response.status == 200 && Instant::now() < deadline, "revoked keys end within 5 s: {response:?}");
        }
        flood(&api, |n| format!("gh_{id}_{n:043}")).await;
        // The bucket of failed requests refills slowly, so a few more may be checked before the limit applies again.
        let deadline = Instant::now() + Duration::from_secs(30);
        let refused = loop {
            let response = get_with(&api, &key).await;
            if response.status != 401 {
                break response;
            }
            assert!(Instant::now() < deadline, "the limit never applied: {response:?}");
        };
        refused.assert_problem(429, "too-many-requests");
        api.close().await;
    });
}
