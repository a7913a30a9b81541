//! The Redis connection, tested with real servers.

#![expect(clippy::unwrap_used, reason = "tests")]

mod calls;
mod channels;
#[path = "../support/log.rs"]
mod log;
mod login;
mod losses;
mod places;
#[path = "../support/redis.rs"]
mod support;
mod telemetry;

use std::{future::Future, time::Duration};

use guildhall::redis::{RedisCallError, RedisClient, RedisConfig, RedisErrorReason, Script};
use guildhall::settings::RedisUrl;
use redis::{Value, aio::MultiplexedConnection};
use support::RedisServer;
use tokio::{task::yield_now, time::timeout};

/// A timeout that only a defect reaches; no test waits for it.
const STUCK: Duration = Duration::from_secs(60);

/// Timeout of calls that are expected to time out.
const SHORT: Duration = Duration::from_millis(200);

fn connect(url: RedisUrl) -> RedisClient {
    connect_within(STUCK, url)
}

fn connect_within(timeout: Duration, url: RedisUrl) -> RedisClient {
    RedisClient::new(RedisConfig { url, ca_file: None, timeout }).unwrap()
}

/// Waits for something that must happen.
async fn soon<T>(what: impl Future<Output = T>) -> T {
    timeout(STUCK, what).await.expect("timed out")
}

/// A script that returns its arguments: the run id of its server, and a text.
fn echo() -> Script {
    Script::new("echo", "return {ARGV[1], ARGV[2]}")
}

/// Runs the echo script, and returns the run id of its server.
async fn say(redis: &RedisClient, word: &str) -> Result<String, RedisCallError> {
    let answer = redis.run(&echo(), &[], |run_id| vec![run_id.into(), word.into()]).await?;
    let (run_id, said): (String, String) = redis::from_redis_value(answer).unwrap();
    assert_eq!(said, word, "the reply belongs to another call");
    Ok(run_id)
}

/// Retries the echo script until a call succeeds, whenever there is a connection.
async fn say_at_last(redis: &RedisClient) -> String {
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

async fn lost(redis: &RedisClient) -> RedisErrorReason {
    soon(say(redis, "lost")).await.expect_err("the call should fail").why
}

/// Runs the echo script until a call fails for this reason.
async fn lost_at_last(redis: &RedisClient, why: RedisErrorReason) {
    soon(async {
        while say(redis, "lost at last").await != Err(RedisCallError { why }) {
            yield_now().await;
        }
    })
    .await;
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

/// Id of the only connection from Guildhall.
async fn id_of_guildhall(server: &RedisServer) -> String {
    let clients: String = redis::from_redis_value(command(server, &["CLIENT", "LIST"]).await).unwrap();
    let ours: Vec<_> = clients.lines().filter(|line| line.contains(" name=guildhall ")).collect();
    assert_eq!(ours.len(), 1, "{clients}");
    ours[0].split(' ').next().unwrap().to_owned()
}
