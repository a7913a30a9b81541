//! Scripts and their replies.

use guildhall::redis::{RedisCallError, RedisErrorReason, RedisKeys, Script};
use guildhall_testkit::redis::RedisServer;
use redis::{AsyncTypedCommands as _, Value};

use super::{
    TEST_TIMEOUT, command, connect, connect_raw, guildhall_client_id, run_echo, run_id, wait_for_failure, with_timeout,
};

#[tokio::test]
async fn script_gets_its_keys_and_the_run_id_of_its_server() {
    let server = RedisServer::start();
    let redis = connect(format!("redis://127.0.0.1:{}/2", server.port()).parse().unwrap());
    let script = Script::new("set", "return redis.call('SET', KEYS[1], ARGV[1], 'EX', 60)");
    let key = RedisKeys::new(1).of("who");
    let reply = redis.run(&script, std::slice::from_ref(&key), |run_id| vec![run_id.into()]).await.unwrap();
    assert_eq!(reply, Value::Okay);
    let mut connection = connect_raw(&server).await;
    redis::cmd("SELECT").arg(2).exec_async(&mut connection).await.unwrap();
    assert_eq!(connection.get(&key).await.unwrap(), Some(run_id(&server).await));
    assert_eq!(run_echo(&redis, "hello").await, Ok(run_id(&server).await));
}

#[tokio::test]
async fn concurrent_calls_get_their_own_replies() {
    let server = RedisServer::start();
    let redis = connect(server.url());
    let calls: Vec<_> = (0..500)
        .map(|number| {
            let redis = redis.clone();
            tokio::spawn(async move { run_echo(&redis, &number.to_string()).await })
        })
        .collect();
    for call in calls {
        assert!(call.await.unwrap().is_ok());
    }
}

#[tokio::test]
async fn scripts_are_loaded_again_after_a_script_flush() {
    let server = RedisServer::start();
    let redis = connect(server.url());
    for _ in 0..3 {
        command(&server, &["SCRIPT", "FLUSH"]).await;
        assert!(run_echo(&redis, "hello").await.is_ok());
        let loads = command(&server, &["INFO", "commandstats"]).await;
        assert!(run_echo(&redis, "again").await.is_ok());
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
async fn script_error_fails_the_call_and_keeps_the_connection() {
    let server = RedisServer::start();
    let redis = connect(server.url());
    let failing = Script::new("wrong", "return nonsense()");
    let to_text = |value| redis::from_redis_value::<String>(value).unwrap();
    let clients = to_text(command(&server, &["CLIENT", "LIST"]).await);
    assert!(!clients.contains("name=guildhall"), "{clients}");
    assert!(run_echo(&redis, "before").await.is_ok());
    let before = guildhall_client_id(&server).await;
    assert_eq!(redis.run(&failing, &[], |_| Vec::new()).await, Err(RedisCallError { reason: RedisErrorReason::Error }));
    assert!(run_echo(&redis, "after").await.is_ok());
    assert_eq!(guildhall_client_id(&server).await, before);
}

#[tokio::test]
async fn full_or_busy_server_fails_calls_and_keeps_the_connection() {
    let server = RedisServer::start_with(&["--busy-reply-threshold", "1"]);
    let redis = connect(server.url());
    assert!(run_echo(&redis, "before").await.is_ok());
    let client_id = guildhall_client_id(&server).await;

    command(&server, &["CONFIG", "SET", "maxmemory", "1"]).await;
    let write = Script::new("write", "return redis.call('SET', KEYS[1], 'x', 'EX', 60)");
    let key = RedisKeys::new(1).of("a");
    let reply = redis.run(&write, std::slice::from_ref(&key), |_| Vec::new()).await;
    assert_eq!(reply, Err(RedisCallError { reason: RedisErrorReason::Full }));
    command(&server, &["CONFIG", "SET", "maxmemory", "0"]).await;
    assert_eq!(redis.run(&write, &[key], |_| Vec::new()).await, Ok(Value::Okay));

    let mut other = connect_raw(&server).await;
    other.set_response_timeout(TEST_TIMEOUT);
    let endless =
        tokio::spawn(async move { redis::cmd("EVAL").arg("while true do end").arg(0).exec_async(&mut other).await });
    wait_for_failure(&redis, RedisErrorReason::Busy).await;
    with_timeout(async {
        while redis::cmd("SCRIPT").arg("KILL").exec_async(&mut connect_raw(&server).await).await.is_err() {}
    })
    .await;
    endless.await.unwrap().unwrap_err();
    assert!(run_echo(&redis, "after").await.is_ok());
    assert_eq!(guildhall_client_id(&server).await, client_id);
}
