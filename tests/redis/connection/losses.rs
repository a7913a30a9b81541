//! Servers that stop, hang, or do not accept writes.

use std::time::Duration;

use guildhall::redis::{RedisCallError, RedisErrorReason, RedisKeys, Script};
use guildhall_testkit::redis::{RedisServer, Relay};
use redis::Value;

use super::{
    SHORT_TIMEOUT, command, connect, connect_with_timeout, echo_until_ok, failure_reason, run_echo, run_id,
    wait_for_failure, with_timeout,
};

#[tokio::test]
async fn restarted_server_is_found_with_a_new_run_id() {
    let mut server = RedisServer::start();
    let redis = connect(server.url());
    let before = run_echo(&redis, "before").await.unwrap();
    server.kill();
    wait_for_failure(&redis, RedisErrorReason::Unreachable).await;
    server.restart_empty();
    let after = echo_until_ok(&redis).await;
    assert_eq!(after, run_id(&server).await);
    assert_ne!(after, before);
}

#[tokio::test]
async fn server_that_starts_late_is_awaited() {
    let mut server = RedisServer::start();
    server.kill();
    let redis = connect(server.url());
    wait_for_failure(&redis, RedisErrorReason::Unreachable).await;
    server.restart_empty();
    assert_eq!(echo_until_ok(&redis).await, run_id(&server).await);
}

#[tokio::test]
async fn suspended_server_times_out_and_serves_again_when_resumed() {
    let server = RedisServer::start();
    let redis = connect_with_timeout(SHORT_TIMEOUT, server.url());
    let before = echo_until_ok(&redis).await;
    server.stop();
    wait_for_failure(&redis, RedisErrorReason::Timeout).await;
    assert_eq!(
        failure_reason(&redis).await,
        RedisErrorReason::Timeout,
        "a new connection must not get a response either"
    );
    server.resume();
    // The echo call itself checks that it does not get a late reply to another call.
    assert_eq!(echo_until_ok(&redis).await, before);
}

#[tokio::test]
async fn cut_or_slow_connection_fails_calls_until_restored() {
    let server = RedisServer::start();
    let relay = Relay::to(&server);
    let redis = connect_with_timeout(SHORT_TIMEOUT, relay.url());
    echo_until_ok(&redis).await;
    relay.cut();
    wait_for_failure(&redis, RedisErrorReason::Unreachable).await;
    relay.restore();
    echo_until_ok(&redis).await;
    relay.delay(SHORT_TIMEOUT * 2);
    wait_for_failure(&redis, RedisErrorReason::Timeout).await;
    relay.delay(Duration::ZERO);
    echo_until_ok(&redis).await;
}

#[tokio::test]
async fn replica_is_refused_until_promoted() {
    let primary = RedisServer::start();
    let replica = RedisServer::start_with(&["--replicaof", &format!("127.0.0.1 {}", primary.port())]);
    let redis = connect(replica.url());
    wait_for_failure(&redis, RedisErrorReason::Replica).await;
    command(&replica, &["REPLICAOF", "NO", "ONE"]).await;
    assert_eq!(echo_until_ok(&redis).await, run_id(&replica).await);
}

#[tokio::test]
async fn primary_that_becomes_a_replica_is_abandoned() {
    let server = RedisServer::start();
    let other = RedisServer::start();
    let redis = connect(server.url());
    let write = Script::new("write", "return redis.call('SET', KEYS[1], 'x', 'EX', 60)");
    let key = [RedisKeys::new(1).of("a")];
    assert_eq!(redis.run(&write, &key, |_| Vec::new()).await, Ok(Value::Okay));
    command(&server, &["REPLICAOF", "127.0.0.1", &other.port().to_string()]).await;
    let refused = async {
        while redis.run(&write, &key, |_| Vec::new()).await != Err(RedisCallError { reason: RedisErrorReason::Replica })
        {
        }
    };
    with_timeout(refused).await;
    command(&server, &["REPLICAOF", "NO", "ONE"]).await;
    echo_until_ok(&redis).await;
}
