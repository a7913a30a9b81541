//! A flood of invalid keys from one address right after a start, and the valid keys of that address.

use std::time::{Duration, Instant};

use guildhall::api::{ControlConfig, PoliciesConfig};
use guildhall_core::policy::Rate;
use serde_json::{Value, json};
use tempfile::TempDir;

use super::{Answer, call, run, sqlite::OnSqlite};

/// The default limit on failed authentication.
fn limited() -> ControlConfig {
    let policies = PoliciesConfig { failed: Rate::new(10, 200), ..PoliciesConfig::default() };
    ControlConfig { policies, ..ControlConfig::default() }
}

async fn with(api: &OnSqlite, key: &str) -> Answer {
    call(api.address(), "GET", "/v1/operations", &[("Authorization", &format!("Bearer {key}"))], "").await
}

/// A key that was created before a restart of the daemon.
async fn restarted(folder: &TempDir) -> (OnSqlite, String, String) {
    let api = OnSqlite::open_with(folder, 5, limited()).await;
    let made = api.ask("POST", "/v1/keys", json!({"name": "a test", "scopes": ["operations:read"]})).await;
    let (key, id) = (made.text("key"), made.text("id"));
    api.close().await;
    (OnSqlite::open_with(folder, 5, limited()).await, key, id)
}

/// Sends invalid keys until well past the limit. Returns how many were answered 401 and 429.
async fn flood(api: &OnSqlite, wrong: impl Fn(usize) -> String) -> [usize; 2] {
    let mut said = [0; 2];
    for n in 0..650 {
        let answer = with(api, &wrong(n)).await;
        match answer.status {
            401 => said[0] += 1,
            429 => said[1] += 1,
            _ => panic!("{answer:?}"),
        }
    }
    said
}

#[test]
fn valid_key_works_after_a_flood_of_made_up_keys() {
    run(async {
        let folder = tempfile::tempdir().unwrap();
        let (api, key, id) = restarted(&folder).await;
        let secret = key.rsplit_once(&id).unwrap().1.to_owned();
        let said = flood(&api, |n| format!("gh_{n:012}{secret}")).await;
        assert!(said[0] >= 200 && said[1] >= 200, "{said:?}");
        assert_eq!(with(&api, &key).await.status, 200);
        // A key that is created during the flood works, too.
        let made = api.ask("POST", "/v1/keys", json!({"name": "another", "scopes": ["operations:read"]})).await;
        flood(&api, |n| format!("gh_{n:012}{secret}")).await;
        assert_eq!(with(&api, &made.text("key")).await.status, 200);
        api.close().await;
    });
}

#[test]
fn valid_key_works_after_a_flood_with_its_own_id() {
    run(async {
        let folder = tempfile::tempdir().unwrap();
        let (api, key, id) = restarted(&folder).await;
        let said = flood(&api, |n| format!("gh_{id}_{n:043}")).await;
        assert!(said[0] >= 200 && said[1] >= 200, "{said:?}");
        assert_eq!(with(&api, &key).await.status, 200);
        api.close().await;
    });
}

#[test]
fn valid_key_works_while_a_flood_goes_on() {
    run(async {
        let folder = tempfile::tempdir().unwrap();
        let (api, key, id) = restarted(&folder).await;
        let secret = key.rsplit_once(&id).unwrap().1.to_owned();
        let floods = (0..16_usize).map(|lane| {
            let (address, secret) = (api.address(), secret.clone());
            tokio::spawn(async move {
                for n in 0..60_usize {
                    let shown = format!("Bearer gh_{:012}{secret}", lane * 1_000 + n);
                    let answer = call(address, "GET", "/v1/operations", &[("Authorization", &shown)], "").await;
                    assert!(matches!(answer.status, 401 | 429 | 503), "{answer:?}");
                }
            })
        });
        let floods: Vec<_> = floods.collect();
        let mut asked = 0;
        while floods.iter().any(|flood| !flood.is_finished()) || asked == 0 {
            assert_eq!(with(&api, &key).await.status, 200);
            asked += 1;
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
        let (api, key, id) = restarted(&folder).await;
        assert_eq!(with(&api, &key).await.status, 200);
        assert_eq!(api.ask("DELETE", &format!("/v1/keys/{id}"), Value::Null).await.status, 204);
        let until = Instant::now() + Duration::from_secs(5);
        loop {
            let answer = with(&api, &key).await;
            if matches!(answer.status, 401 | 429) {
                break;
            }
            assert!(answer.status == 200 && Instant::now() < until, "revoked keys end within 5 s: {answer:?}");
        }
        flood(&api, |n| format!("gh_{id}_{n:043}")).await;
        with(&api, &key).await.is_problem(429, "too-many-requests");
        api.close().await;
    });
}
