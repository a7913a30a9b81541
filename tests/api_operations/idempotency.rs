//! Idempotency keys that are cached in a real Redis.

use std::{sync::Arc, time::Duration};

use guildhall::redis::{REMEMBERED_FOR, RedisClient, RedisConfig, RedisIdempotency, RedisKeys};
use guildhall::settings::RedisUrl;
use guildhall_core::operation::OperationState;
use redis::Commands as _;
use serde_json::json;

use super::{
    Api, GUILD, Setup,
    redis_server::{RedisServer, Relay},
    role, run,
    store::Fault,
};

const APPLICATION: u64 = 42;

fn cache(url: RedisUrl) -> Arc<RedisIdempotency> {
    let redis = RedisClient::new(RedisConfig { url, ca_file: None, timeout: Duration::from_millis(250) }).unwrap();
    Arc::new(RedisIdempotency::start(redis, RedisKeys::new(APPLICATION)))
}

fn with_cache(url: RedisUrl) -> Api {
    Setup { cache: Some(cache(url)), ..Setup::default() }.start()
}

async fn submit(api: &Api, key: &str, name: &str) -> super::Answer {
    api.post_with(&format!("/v1/guilds/{GUILD}/operations"), &[("Idempotency-Key", key)], role(name)).await
}

/// Waits until Redis has `count` keys, and returns them.
async fn names(server: &RedisServer, count: usize) -> Vec<String> {
    let mut client = server.client();
    loop {
        let names: Vec<String> = client.keys("*").unwrap();
        if names.len() >= count {
            return names;
        }
        tokio::task::yield_now().await;
    }
}

#[test]
fn a_repeat_is_answered_without_a_write_and_with_what_became_of_the_operation() {
    run(async {
        let server = RedisServer::start();
        let api = with_cache(server.url());
        let first = submit(&api, "once", "Pilots").await;
        assert_eq!(first.status, 202);
        let names = names(&server, 1).await;
        assert!(names[0].starts_with("guildhall:{42}:idempotency:") && !names[0].contains("once"), "{names:?}");
        let left: i64 = server.client().pttl(&names[0]).unwrap();
        let whole = i64::try_from(REMEMBERED_FOR.as_millis()).unwrap();
        assert!((1..=whole).contains(&left), "{left}");

        let writes = api.store.submits();
        let again = submit(&api, "once", "Pilots").await;
        assert_eq!((again.status, again.text("id"), again.text("state")), (200, first.text("id"), "queued".to_owned()));
        assert_eq!(again.header("idempotency-replayed").as_deref(), Some("true"));
        api.store.become_state(&first.text("id"), OperationState::Succeeded);
        let done = submit(&api, "once", "Pilots").await;
        assert_eq!((done.text("state"), &done.json()["result"]), ("succeeded".to_owned(), &json!({"role_id": "77"})));
        assert_eq!(api.store.submits(), writes, "the store was not written to");
    });
}

#[test]
fn the_store_has_the_last_word_on_everything_else() {
    run(async {
        let server = RedisServer::start();
        let api = with_cache(server.url());
        let first = submit(&api, "once", "Pilots").await.text("id");
        names(&server, 1).await;
        // Another payload: the store knows whether the key is still valid.
        let other = submit(&api, "once", "Gunners").await;
        assert_eq!(other.is_problem(422, "idempotency-key-reused").text("operation_id"), first);
        // The operation was deleted: the store knows its outcome.
        api.store.forget(&first);
        let writes = api.store.submits();
        let again = submit(&api, "once", "Pilots").await;
        assert_eq!((again.status, again.text("id"), again.text("state")), (200, first, "succeeded".to_owned()));
        assert_eq!(api.store.submits(), writes + 1);
        // The store is unavailable: the cache alone is not enough.
        api.store.fail(Some(Fault::Unavailable));
        submit(&api, "once", "Pilots").await.is_problem(503, "store-unavailable");
        // A key of a store that was lost: the new store accepts it again.
        let fresh = with_cache(server.url());
        assert_eq!(submit(&fresh, "once", "Pilots").await.status, 202);
    });
}

#[test]
fn what_one_process_has_accepted_another_one_knows() {
    run(async {
        let server = RedisServer::start();
        let one = with_cache(server.url());
        let first = submit(&one, "once", "Pilots").await.text("id");
        names(&server, 1).await;
        let other: Arc<dyn guildhall_actors::ports::IdempotencyCache> = cache(server.url());
        let key = |scope: &str| guildhall_actors::ports::IdempotencyKey { scope: scope.into(), key: "once".to_owned() };
        let known = other.get(&key("admin")).await.unwrap();
        assert_eq!(known.id.to_string(), first);
        assert_eq!(known.payload_hash, one.store.kept(&first).payload_hash);
        assert_eq!(other.get(&key("another caller")).await, None);
    });
}

#[test]
fn nothing_breaks_while_redis_is_away_slow_or_full_of_other_things() {
    run(async {
        let mut server = RedisServer::start();
        let line = Relay::to(&server);
        let api = with_cache(line.url());
        let first = submit(&api, "once", "Pilots").await.text("id");
        let name = names(&server, 1).await.remove(0);

        // Foreign data under its key: of the wrong length, or of the wrong type.
        let () = server.client().set(&name, "nonsense").unwrap();
        assert_eq!(submit(&api, "once", "Pilots").await.text("id"), first);
        // In one transaction: the previous response may still be about to be cached.
        redis::pipe().atomic().del(&name).rpush(&name, "a list").exec(&mut server.client()).unwrap();
        assert_eq!(submit(&api, "once", "Pilots").await.text("id"), first);

        line.delay(Duration::from_secs(600));
        assert_eq!(submit(&api, "once", "Pilots").await.text("id"), first);
        assert_eq!(submit(&api, "slow", "Pilots").await.status, 202);
        line.cut();
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
        let api = with_cache(server.url());
        let callers = (0..50).map(|_| submit(&api, "once", "Pilots"));
        let answers = futures_util::future::join_all(callers).await;
        let ids: std::collections::BTreeSet<_> = answers.iter().map(|answer| answer.text("id")).collect();
        assert_eq!((ids.len(), api.store.count()), (1, 1));
        assert_eq!(answers.iter().filter(|answer| answer.status == 202).count(), 1);
    });
}
