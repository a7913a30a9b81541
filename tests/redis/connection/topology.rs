//! Finding the primary: behind sentinels, or on another node of a cluster.

use std::time::Duration;

use guildhall::redis::{RedisCallError, RedisClient, RedisErrorReason, RedisKeys, Script};
use guildhall::settings::RedisUrl;
use guildhall_testkit::{log::Log, redis::RedisServer};
use redis::Value;
use tokio::time::interval;

use super::{command, connect, echo_until_ok, failure_reason, run_id, wait_for_failure, with_timeout};

async fn monitor(sentinel: &RedisServer, server: &RedisServer) {
    command(sentinel, &["SENTINEL", "MONITOR", "bots", "127.0.0.1", &server.port().to_string(), "1"]).await;
}

#[tokio::test]
async fn sentinels_are_queried_each_time_and_dead_ones_are_skipped() {
    let mut dead = RedisServer::start_sentinel();
    let sentinel = RedisServer::start_sentinel();
    let mut first = RedisServer::start();
    let second = RedisServer::start();
    dead.kill();
    monitor(&sentinel, &first).await;
    let hosts = format!("127.0.0.1:{},127.0.0.1:{}", dead.port(), sentinel.port());
    let redis = connect(format!("redis+sentinel://{hosts}/bots").parse().unwrap());
    assert_eq!(echo_until_ok(&redis).await, run_id(&first).await);

    command(&sentinel, &["SENTINEL", "REMOVE", "bots"]).await;
    first.kill();
    wait_for_failure(&redis, RedisErrorReason::Unreachable).await;
    monitor(&sentinel, &second).await;
    assert_eq!(echo_until_ok(&redis).await, run_id(&second).await);
}

#[tokio::test]
async fn server_and_sentinel_are_not_interchangeable() {
    let (server, sentinel) = (RedisServer::start(), RedisServer::start_sentinel());
    let url: RedisUrl = format!("redis+sentinel://127.0.0.1:{}/bots", server.port()).parse().unwrap();
    assert_eq!(failure_reason(&connect(url)).await, RedisErrorReason::Error);
    let (log, _guard) = Log::capture(tracing::Level::TRACE);
    assert_eq!(failure_reason(&connect(sentinel.url())).await, RedisErrorReason::Error);
    assert!(log.text().contains("for sentinels, use redis+sentinel://"), "{}", log.text());
}

/// Retries the write until it succeeds or fails for another reason than a busy server. A new cluster is down for a
/// while and does not announce when it is up.
async fn write_until_done(redis: &RedisClient, key: &str) -> Result<String, RedisCallError> {
    let script = Script::new("write", "redis.call('SET', KEYS[1], 'x', 'EX', 60) return ARGV[1]");
    let attempts = async {
        let mut tries = interval(Duration::from_millis(10));
        loop {
            tries.tick().await;
            match redis.run(&script, &[key.to_owned()], |run_id| vec![run_id.into()]).await {
                Ok(run_id) => return Ok(redis::from_redis_value(run_id).unwrap()),
                Err(RedisCallError { reason: RedisErrorReason::Busy }) => {}
                Err(lost) => return Err(lost),
            }
        }
    };
    with_timeout(attempts).await
}

/// A cluster node that serves these slots.
async fn node(slots: Option<(u16, u16)>) -> RedisServer {
    let server = RedisServer::start_with(&["--cluster-enabled", "yes"]);
    if let Some((first, last)) = slots {
        command(&server, &["CLUSTER", "ADDSLOTSRANGE", &first.to_string(), &last.to_string()]).await;
    }
    server
}

/// Introduces a node to another, and waits until that one knows its slots.
async fn introduce(to: &RedisServer, other: &RedisServer, serves: &str) {
    command(to, &["CLUSTER", "MEET", "127.0.0.1", &other.port().to_string()]).await;
    let id: String = redis::from_redis_value(command(other, &["CLUSTER", "MYID"]).await).unwrap();
    let is_known = async {
        let mut polls = interval(Duration::from_millis(10));
        loop {
            polls.tick().await;
            let nodes: String = redis::from_redis_value(command(to, &["CLUSTER", "NODES"]).await).unwrap();
            if nodes.lines().any(|line| line.starts_with(&id) && line.contains(" connected") && line.ends_with(serves))
            {
                return;
            }
        }
    };
    with_timeout(is_known).await;
}

#[tokio::test]
async fn cluster_node_with_the_keys_is_followed_and_remembered() {
    let (named, owner) = (node(Some((0, 8191))).await, node(Some((8192, 16383))).await);
    introduce(&named, &owner, "8192-16383").await;
    introduce(&owner, &named, "0-8191").await;
    let mut application = 0;
    let key = loop {
        application += 1;
        let key = RedisKeys::new(application).of("a");
        if let Value::Int(8192..) = command(&named, &["CLUSTER", "KEYSLOT", &key]).await {
            break key;
        }
    };
    let redis = connect(named.url());
    assert_eq!(write_until_done(&redis, &key).await, Err(RedisCallError { reason: RedisErrorReason::Moved }));
    let owner_id = run_id(&owner).await;
    assert_eq!(write_until_done(&redis, &key).await, Ok(owner_id.clone()));
    // A reconnect goes to the owner, not to the node in the URL.
    command(&owner, &["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]).await;
    let retried = async {
        loop {
            match write_until_done(&redis, &key).await {
                Err(RedisCallError { reason: RedisErrorReason::Disconnected }) => {}
                other => return other,
            }
        }
    };
    assert_eq!(retried.await, Ok(owner_id));
}

#[tokio::test]
async fn cluster_replica_redirects_to_its_primary() {
    let (primary, replica) = (node(Some((0, 16383))).await, node(None).await);
    introduce(&replica, &primary, "0-16383").await;
    let id: String = redis::from_redis_value(command(&primary, &["CLUSTER", "MYID"]).await).unwrap();
    command(&replica, &["CLUSTER", "REPLICATE", &id]).await;
    let redis = connect(replica.url());
    assert_eq!(write_until_done(&redis, &RedisKeys::new(1).of("a")).await, Ok(run_id(&primary).await));
}
