//! Servers that stop, hang, or do not accept writes.

use std::time::Duration;

use guildhall::redis::{RedisCallError, RedisErrorReason, RedisKeys, Script};
use redis::Value;

use crate::{
    SHORT, command, connect, connect_within, lost, lost_at_last, run_id, say, say_at_last, soon,
    support::{RedisServer, Relay},
};

#[tokio::test]
async fn a_server_that_was_killed_is_found_again_with_another_run_id() {
    let mut server = RedisServer::start();
    let redis = connect(server.url());
    let before = say(&redis, "before").await.unwrap();
    server.kill();
    lost_at_last(&redis, RedisErrorReason::Unreachable).await;
    server.restart_empty();
    let after = say_at_last(&redis).await;
    assert_eq!(after, run_id(&server).await);
    assert_ne!(after, before);
}

#[tokio::test]
async fn a_server_that_comes_late_is_waited_for() {
    let mut server = RedisServer::start();
    server.kill();
    let redis = connect(server.url());
    lost_at_last(&redis, RedisErrorReason::Unreachable).await;
    server.restart_empty();
    assert_eq!(say_at_last(&redis).await, run_id(&server).await);
}

#[tokio::test]
async fn a_server_that_stands_still_loses_calls_and_serves_again_when_it_goes_on() {
    let server = RedisServer::start();
    let redis = connect_within(SHORT, server.url());
    let before = say_at_last(&redis).await;
    server.stop();
    lost_at_last(&redis, RedisErrorReason::Timeout).await;
    assert_eq!(lost(&redis).await, RedisErrorReason::Timeout, "a new connection must not get a response either");
    server.resume();
    // The echo call itself checks that it does not get a late reply to another call.
    assert_eq!(say_at_last(&redis).await, before);
}

#[tokio::test]
async fn a_line_that_is_cut_or_slow_loses_calls_until_it_is_well() {
    let server = RedisServer::start();
    let relay = Relay::to(&server);
    let redis = connect_within(SHORT, relay.url());
    say_at_last(&redis).await;
    relay.cut();
    lost_at_last(&redis, RedisErrorReason::Unreachable).await;
    relay.restore();
    say_at_last(&redis).await;
    relay.delay(SHORT * 2);
    lost_at_last(&redis, RedisErrorReason::Timeout).await;
    relay.delay(Duration::ZERO);
    say_at_last(&redis).await;
}

#[tokio::test]
async fn a_replica_is_refused_until_it_is_a_primary() {
    let primary = RedisServer::start();
    let replica = RedisServer::start_with(&["--replicaof", &format!("127.0.0.1 {}", primary.port())]);
    let redis = connect(replica.url());
    lost_at_last(&redis, RedisErrorReason::Replica).await;
    command(&replica, &["REPLICAOF", "NO", "ONE"]).await;
    assert_eq!(say_at_last(&redis).await, run_id(&replica).await);
}

#[tokio::test]
async fn a_primary_that_becomes_a_replica_is_left() {
    let server = RedisServer::start();
    let other = RedisServer::start();
    let redis = connect(server.url());
    let write = Script::new("write", "return redis.call('SET', KEYS[1], 'x', 'EX', 60)");
    let key = [RedisKeys::new(1).of("a")];
    assert_eq!(redis.run(&write, &key, |_| Vec::new()).await, Ok(Value::Okay));
    command(&server, &["REPLICAOF", "127.0.0.1", &other.port().to_string()]).await;
    let refused = async {
        while redis.run(&write, &key, |_| Vec::new()).await != Err(RedisCallError { why: RedisErrorReason::Replica }) {}
    };
    soon(refused).await;
    command(&server, &["REPLICAOF", "NO", "ONE"]).await;
    say_at_last(&redis).await;
}
