//! Scripts and their replies.

use guildhall::redis::{RedisCallError, RedisErrorReason, RedisKeys, Script};
use redis::{AsyncTypedCommands as _, Value};

use crate::{STUCK, command, connect, id_of_guildhall, lost_at_last, run_id, say, soon, support::RedisServer, wire};

#[tokio::test]
async fn a_script_gets_its_keys_and_the_run_id_of_its_very_server() {
    let server = RedisServer::start();
    let redis = connect(format!("redis://127.0.0.1:{}/2", server.port()).parse().unwrap());
    let script = Script::new("set", "return redis.call('SET', KEYS[1], ARGV[1], 'EX', 60)");
    let key = RedisKeys::new(1).of("who");
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
            "the script was loaded although the server had it"
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
    assert_eq!(redis.run(&wrong, &[], |_| Vec::new()).await, Err(RedisCallError { why: RedisErrorReason::Error }));
    assert!(say(&redis, "after").await.is_ok());
    assert_eq!(id_of_guildhall(&server).await, before);
}

#[tokio::test]
async fn a_full_or_busy_server_loses_calls_and_keeps_the_connection() {
    let server = RedisServer::start_with(&["--busy-reply-threshold", "1"]);
    let redis = connect(server.url());
    assert!(say(&redis, "before").await.is_ok());
    let ours = id_of_guildhall(&server).await;

    command(&server, &["CONFIG", "SET", "maxmemory", "1"]).await;
    let write = Script::new("write", "return redis.call('SET', KEYS[1], 'x', 'EX', 60)");
    let key = RedisKeys::new(1).of("a");
    let answer = redis.run(&write, std::slice::from_ref(&key), |_| Vec::new()).await;
    assert_eq!(answer, Err(RedisCallError { why: RedisErrorReason::Full }));
    command(&server, &["CONFIG", "SET", "maxmemory", "0"]).await;
    assert_eq!(redis.run(&write, &[key], |_| Vec::new()).await, Ok(Value::Okay));

    let mut other = wire(&server).await;
    other.set_response_timeout(STUCK);
    let endless =
        tokio::spawn(async move { redis::cmd("EVAL").arg("while true do end").arg(0).exec_async(&mut other).await });
    lost_at_last(&redis, RedisErrorReason::Busy).await;
    soon(async { while redis::cmd("SCRIPT").arg("KILL").exec_async(&mut wire(&server).await).await.is_err() {} }).await;
    endless.await.unwrap().unwrap_err();
    assert!(say(&redis, "after").await.is_ok());
    assert_eq!(id_of_guildhall(&server).await, ours);
}
