//! Idempotency keys that are cached in a real Redis.

use std::{sync::Arc, time::Duration};

use guildhall::redis::{IDEMPOTENCY_RETENTION, RedisClient, RedisConfig, RedisIdempotency, RedisKeys};
use guildhall::settings::RedisUrl;
use guildhall_core::operation::OperationState;
use guildhall_testkit::redis::{RedisServer, Relay};
use redis::Commands as _;
use serde_json::json;

use super::{ApiSetup, GUILD, TestApi, memory_store::Fault, role, run};

const APPLICATION: u64 = 42;

fn cache(url: RedisUrl) -> Arc<RedisIdempotency> {
    let redis = RedisClient::new(RedisConfig { url, ca_file: None, timeout: Duration::from_millis(250) }).unwrap();
    Arc::new(RedisIdempotency::start(redis, RedisKeys::new(APPLICATION)))
}

fn api_with_cache(url: RedisUrl) -> TestApi {
    ApiSetup { cache: Some(cache(url)), ..ApiSetup::default() }.start()
}

async fn submit(api: &TestApi, key: &str, name: &str) -> super::Response {
    api.post_with(&format!("/v1/guilds/{GUILD}/operations"), &[("Idempotency-Key", key)], role(name)).await
}

/// Waits until Redis has `count` keys, and returns them.
async fn wait_for_keys(server: &RedisServer, count: usize) -> Vec<String> {
    let mut client = server.client();
    loop {
        let keys: Vec<String> = client.keys("*").unwrap();
        if keys.len() >= count {
            return keys;
        }
        tokio::task::yield_now().await;
    }
}

#[test]
fn repeat_is_answered_from_the_cache_without_a_write() {
    run(async {
        let server = RedisServer::start();
        let api = api_with_cache(server.url());
        let first = submit(&api, "once", "Pilots").await;
        assert_eq!(first.status, 202);
        let keys = wait_for_keys(&server, 1).await;
        assert!(keys[0].starts_with("guildhall:{42}:idempotency:") && !keys[0].contains("once"), "{keys:?}");
        let ttl: i64 = server.client().pttl(&keys[0]).unwrap();
        let max_ttl = i64::try_from(IDEMPOTENCY_RETENTION.as_millis()).unwrap();
        assert!((1..=max_ttl).contains(&ttl), "{ttl}");

        let writes = api.store.submits();
        let repeated = submit(&api, "once", "Pilots").await;
        assert_eq!(
            (repeated.status, repeated.text("id"), repeated.text("state")),
            (200, first.text("id"), "queued".to_owned())
        );
        assert_eq!(repeated.header("idempotency-replayed").as_deref(), Some("true"));
        api.store.set_state(&first.text("id"), OperationState::Succeeded);
        let done = submit(&api, "once", "Pilots").await;
        assert_eq!((done.text("state"), &done.json()["result"]), ("succeeded".to_owned(), &json!({"role_id": "77"})));
        assert_eq!(api.store.submits(), writes, "the store was not written to");
    });
}

#[test]
fn store_decides_when_the_cache_cannot() {
    run(async {
        let server = RedisServer::start();
        let api = api_with_cache(server.url());
        let first = submit(&api, "once", "Pilots").await.text("id");
        wait_for_keys(&server, 1).await;
        // Another payload: the store knows whether the key is still valid.
        let other = submit(&api, "once", "Gunners").await;
        assert_eq!(other.assert_problem(422, "idempotency-key-reused").text("operation_id"), first);
        // The operation was deleted: the store knows its outcome.
        api.store.delete_row(&first);
        let writes = api.store.submits();
        let repeated = submit(&api, "once", "Pilots").await;
        assert_eq!(
            (repeated.status, repeated.text("id"), repeated.text("state")),
            (200, first, "succeeded".to_owned())
        );
        assert_eq!(api.store.submits(), writes + 1);
        // The store is unavailable: the cache alone is not enough.
        api.store.fail(Some(Fault::Unavailable));
        submit(&api, "once", "Pilots").await.assert_problem(503, "store-unavailable");
        // A key of a store that was lost: the new store accepts it again.
        let fresh = api_with_cache(server.url());
        assert_eq!(submit(&fresh, "once", "Pilots").await.status, 202);
    });
}

#[test]
fn cache_is_shared_between_processes() {
    run(async {
        let server = RedisServer::start();
        let one = api_with_cache(server.url());
        let first = submit(&one, "once", "Pilots").await.text("id");
        wait_for_keys(&server, 1).await;
        let other: Arc<dyn guildhall_actors::ports::IdempotencyCache> = cache(server.url());
        let key = |scope: &str| guildhall_actors::ports::IdempotencyKey { scope: scope.into(), key: "once".to_owned() };
        let cached = other.get(&key("admin")).await.unwrap();
        assert_eq!(cached.id.to_string(), first);
        assert_eq!(cached.payload_hash, one.store.stored(&first).payload_hash);
        assert_eq!(other.get(&key("another caller")).await, None);
    });
}

#[test]
fn redis_failures_do_not_affect_submissions() {
    run(async {
        let mut server = RedisServer::start();
        let relay = Relay::to(&server);
        let api = api_with_cache(relay.url());
        let first = submit(&api, "once", "Pilots").await.text("id");
        let name = wait_for_keys(&server, 1).await.remove(0);

        // Foreign data under its key: of the wrong length, or of the wrong type.
        let () = server.client().set(&name, "nonsense").unwrap();
        assert_eq!(submit(&api, "once", "Pilots").await.text("id"), first);
        // In one transaction: the previous response may still be about to be cached.
        redis::pipe().atomic().del(&name).rpush(&name, "a list").exec(&mut server.client()).unwrap();
        assert_eq!(submit(&api, "once", "Pilots").await.text("id"), first);

        relay.delay(Duration::from_secs(600));
        assert_eq!(submit(&api, "once", "Pilots").await.text("id"), first);
        assert_eq!(submit(&api, "slow", "Pilots").await.status, 202);
        relay.cut();
        assert_eq!(submit(&api, "once", "Pilots").await.text("id"), first);
        server.kill();
        assert_eq!(submit(&api, "once", "Pilots").await.text("id"), first);
        assert_eq!(submit(&api, "gone", "Pilots").await.status, 202);
        assert_eq!(submit(&api, "gone", "Pilots").await.status, 200);
        assert_eq!(api.store.count(), 3);
    });
}

#[test]
fn fifty_callers_with_one_key_get_one_operation() {
    run(async {
        let server = RedisServer::start();
        let api = api_with_cache(server.url());
        let callers = (0..50).map(|_| submit(&api, "once", "Pilots"));
        let responses = futures_util::future::join_all(callers).await;
        let ids: std::collections::BTreeSet<_> = responses.iter().map(|response| response.text("id")).collect();
        assert_eq!((ids.len(), api.store.count()), (1, 1));
        assert_eq!(responses.iter().filter(|response| response.status == 202).count(), 1);
    });
}
