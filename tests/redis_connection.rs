//! The connection to Redis, against real servers.

#![expect(clippy::unwrap_used, reason = "tests")]

#[path = "support/redis.rs"]
mod support;

use std::{future::Future, time::Duration};

use guildhall::redis::{ACL_RULES, Event, Keys, Lost, Reason, Redis, RedisConfig, RedisConfigError, RedisUrl, Script};
use redis::{AsyncTypedCommands as _, Value, aio::MultiplexedConnection};
use support::{RedisServer, Relay};
use tokio::time::timeout;

/// Long enough that only something broken takes longer; never what a test waits for.
const STUCK: Duration = Duration::from_secs(60);

/// For calls that are to be lost by it.
const SHORT: Duration = Duration::from_millis(200);

fn connect(url: RedisUrl) -> Redis {
    connect_within(STUCK, url)
}

fn connect_within(timeout: Duration, url: RedisUrl) -> Redis {
    Redis::new(RedisConfig { url, ca_file: None, timeout }).unwrap()
}

/// Waits for what is certain to come.
async fn soon<T>(what: impl Future<Output = T>) -> T {
    timeout(STUCK, what).await.expect("it never happened")
}

/// A script that says what it was given: the server it was meant for, and a word.
fn echo() -> Script {
    Script::new("echo", "return {ARGV[1], ARGV[2]}")
}

/// Runs the echo; gives the server that it went to.
async fn say(redis: &Redis, word: &str) -> Result<String, Lost> {
    let answer = redis.run(&echo(), &[], |run_id| vec![run_id.into(), word.into()]).await?;
    let (run_id, said): (String, String) = redis::from_redis_value(answer).unwrap();
    assert_eq!(said, word, "the answer is another call's");
    Ok(run_id)
}

/// Runs the echo as soon as there is a connection, until one call is answered.
async fn say_at_last(redis: &Redis) -> String {
    let trying = async {
        loop {
            redis.up().await;
            if let Ok(run_id) = say(redis, "at last").await {
                return run_id;
            }
        }
    };
    soon(trying).await
}

async fn lost(redis: &Redis) -> Reason {
    soon(say(redis, "lost")).await.expect_err("the call should be lost").why
}

/// Runs the echo until a call is lost for this reason.
async fn lost_at_last(redis: &Redis, why: Reason) {
    soon(async { while say(redis, "lost at last").await != Err(Lost { why }) {} }).await;
}

async fn wire(server: &RedisServer) -> MultiplexedConnection {
    server.client().get_multiplexed_async_connection().await.unwrap()
}

async fn command(server: &RedisServer, words: &[&str]) -> Value {
    redis::cmd(words[0]).arg(&words[1..]).query_async(&mut wire(server).await).await.unwrap()
}

async fn run_id(server: &RedisServer) -> String {
    let info: String = redis::from_redis_value(command(server, &["INFO", "server"]).await).unwrap();
    info.lines().find_map(|line| line.strip_prefix("run_id:")).unwrap().to_owned()
}

#[tokio::test]
async fn a_script_gets_its_keys_and_the_run_id_of_its_very_server() {
    let server = RedisServer::start();
    let redis = connect(format!("redis://127.0.0.1:{}/2", server.port()).parse().unwrap());
    let script = Script::new("set", "return redis.call('SET', KEYS[1], ARGV[1], 'EX', 60)");
    let key = Keys::new(1).of("who");
    let answer = redis.run(&script, std::slice::from_ref(&key), |run_id| vec![run_id.into()]).await.unwrap();
    assert_eq!(answer, Value::Okay);
    let mut wire = wire(&server).await;
    redis::cmd("SELECT").arg(2).exec_async(&mut wire).await.unwrap();
    assert_eq!(wire.get(&key).await.unwrap(), Some(run_id(&server).await));
    assert_eq!(say(&redis, "hello").await, Ok(run_id(&server).await));
}

#[tokio::test]
async fn calls_that_overlap_get_their_own_answers() {
    let server = RedisServer::start();
    let redis = connect(server.url());
    let calls: Vec<_> = (0..500)
        .map(|number| {
            let redis = redis.clone();
            tokio::spawn(async move { say(&redis, &number.to_string()).await })
        })
        .collect();
    for call in calls {
        assert!(call.await.unwrap().is_ok());
    }
}

#[tokio::test]
async fn a_server_that_has_forgotten_the_scripts_is_given_them_again() {
    let server = RedisServer::start();
    let redis = connect(server.url());
    for _ in 0..3 {
        command(&server, &["SCRIPT", "FLUSH"]).await;
        assert!(say(&redis, "hello").await.is_ok());
        let loads = command(&server, &["INFO", "commandstats"]).await;
        assert!(say(&redis, "again").await.is_ok());
        let count = |info: Value| {
            let info: String = redis::from_redis_value(info).unwrap();
            info.lines()
                .find(|line| line.starts_with("cmdstat_script|load"))
                .map(|line| line.split(',').next().unwrap().to_owned())
        };
        assert_eq!(
            count(loads),
            count(command(&server, &["INFO", "commandstats"]).await),
            "loaded though it was known"
        );
    }
}

#[tokio::test]
async fn an_error_of_a_script_loses_the_call_and_not_the_connection() {
    let server = RedisServer::start();
    let redis = connect(server.url());
    let wrong = Script::new("wrong", "return nonsense()");
    let name = |value| redis::from_redis_value::<String>(value).unwrap();
    let clients = name(command(&server, &["CLIENT", "LIST"]).await);
    assert!(!clients.contains("name=guildhall"), "{clients}");
    assert!(say(&redis, "before").await.is_ok());
    let before = id_of_guildhall(&server).await;
    assert_eq!(redis.run(&wrong, &[], |_| Vec::new()).await, Err(Lost { why: Reason::Error }));
    assert!(say(&redis, "after").await.is_ok());
    assert_eq!(id_of_guildhall(&server).await, before);
}

/// The number of the one connection that is ours.
async fn id_of_guildhall(server: &RedisServer) -> String {
    let clients: String = redis::from_redis_value(command(server, &["CLIENT", "LIST"]).await).unwrap();
    let ours: Vec<_> = clients.lines().filter(|line| line.contains(" name=guildhall ")).collect();
    assert_eq!(ours.len(), 1, "{clients}");
    ours[0].split(' ').next().unwrap().to_owned()
}

#[tokio::test]
async fn a_server_that_was_killed_is_found_again_with_another_run_id() {
    let mut server = RedisServer::start();
    let redis = connect(server.url());
    let before = say(&redis, "before").await.unwrap();
    server.kill();
    lost_at_last(&redis, Reason::Unreachable).await;
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
    lost_at_last(&redis, Reason::Unreachable).await;
    server.restart_empty();
    assert_eq!(say_at_last(&redis).await, run_id(&server).await);
}

#[tokio::test]
async fn a_server_that_stands_still_loses_calls_and_serves_again_when_it_goes_on() {
    let server = RedisServer::start();
    let redis = connect_within(SHORT, server.url());
    let before = say_at_last(&redis).await;
    server.stop();
    lost_at_last(&redis, Reason::Timeout).await;
    assert_eq!(lost(&redis).await, Reason::Timeout, "a new connection must not be answered either");
    server.resume();
    // `say` itself checks that no late answer is taken for its own.
    assert_eq!(say_at_last(&redis).await, before);
}

#[tokio::test]
async fn a_line_that_is_cut_or_slow_loses_calls_until_it_is_well() {
    let server = RedisServer::start();
    let relay = Relay::to(&server);
    let redis = connect_within(SHORT, relay.url());
    say_at_last(&redis).await;
    relay.cut();
    lost_at_last(&redis, Reason::Unreachable).await;
    relay.restore();
    say_at_last(&redis).await;
    relay.delay(SHORT * 2);
    lost_at_last(&redis, Reason::Timeout).await;
    relay.delay(Duration::ZERO);
    say_at_last(&redis).await;
}

#[tokio::test]
async fn a_full_or_busy_server_loses_calls_and_keeps_the_connection() {
    let server = RedisServer::start_with(&["--busy-reply-threshold", "1"]);
    let redis = connect(server.url());
    assert!(say(&redis, "before").await.is_ok());
    let ours = id_of_guildhall(&server).await;

    command(&server, &["CONFIG", "SET", "maxmemory", "1"]).await;
    let write = Script::new("write", "return redis.call('SET', KEYS[1], 'x', 'EX', 60)");
    let key = Keys::new(1).of("a");
    let answer = redis.run(&write, std::slice::from_ref(&key), |_| Vec::new()).await;
    assert_eq!(answer, Err(Lost { why: Reason::Full }));
    command(&server, &["CONFIG", "SET", "maxmemory", "0"]).await;
    assert_eq!(redis.run(&write, &[key], |_| Vec::new()).await, Ok(Value::Okay));

    let mut other = wire(&server).await;
    other.set_response_timeout(STUCK);
    let endless =
        tokio::spawn(async move { redis::cmd("EVAL").arg("while true do end").arg(0).exec_async(&mut other).await });
    lost_at_last(&redis, Reason::Busy).await;
    soon(async { while redis::cmd("SCRIPT").arg("KILL").exec_async(&mut wire(&server).await).await.is_err() {} }).await;
    endless.await.unwrap().unwrap_err();
    assert!(say(&redis, "after").await.is_ok());
    assert_eq!(id_of_guildhall(&server).await, ours);
}

#[tokio::test]
async fn a_replica_is_refused_until_it_is_a_primary() {
    let primary = RedisServer::start();
    let replica = RedisServer::start_with(&["--replicaof", &format!("127.0.0.1 {}", primary.port())]);
    let redis = connect(replica.url());
    lost_at_last(&redis, Reason::Replica).await;
    command(&replica, &["REPLICAOF", "NO", "ONE"]).await;
    assert_eq!(say_at_last(&redis).await, run_id(&replica).await);
}

#[tokio::test]
async fn a_primary_that_becomes_a_replica_is_left() {
    let server = RedisServer::start();
    let other = RedisServer::start();
    let redis = connect(server.url());
    let write = Script::new("write", "return redis.call('SET', KEYS[1], 'x', 'EX', 60)");
    let key = [Keys::new(1).of("a")];
    assert_eq!(redis.run(&write, &key, |_| Vec::new()).await, Ok(Value::Okay));
    command(&server, &["REPLICAOF", "127.0.0.1", &other.port().to_string()]).await;
    let refused =
        async { while redis.run(&write, &key, |_| Vec::new()).await != Err(Lost { why: Reason::Replica }) {} };
    soon(refused).await;
    command(&server, &["REPLICAOF", "NO", "ONE"]).await;
    say_at_last(&redis).await;
}
