//! The Redis connection, tested with real servers.

mod calls;
mod channels;
mod login;
mod losses;
mod telemetry;
mod topology;

use std::{future::Future, time::Duration};

use guildhall::redis::{RedisCallError, RedisClient, RedisConfig, RedisErrorReason, Script};
use guildhall::settings::RedisUrl;
use guildhall_testkit::redis::RedisServer;
use redis::{Value, aio::MultiplexedConnection};
use tokio::{task::yield_now, time::timeout};

/// A timeout that only a defect reaches; no test waits for it.
const TEST_TIMEOUT: Duration = Duration::from_secs(60);

/// Timeout of calls that are expected to time out.
const SHORT_TIMEOUT: Duration = Duration::from_millis(200);

fn connect(url: RedisUrl) -> RedisClient {
    connect_with_timeout(TEST_TIMEOUT, url)
}

fn connect_with_timeout(timeout: Duration, url: RedisUrl) -> RedisClient {
    RedisClient::new(RedisConfig { url, ca_file: None, timeout }).unwrap()
}

/// Waits for something that must happen.
async fn with_timeout<T>(future: impl Future<Output = T>) -> T {
    timeout(TEST_TIMEOUT, future).await.expect("timed out")
}

/// A script that returns its arguments: the run id of its server, and a text.
fn echo() -> Script {
    Script::new("echo", "return {ARGV[1], ARGV[2]}")
}

/// Runs the echo script, and returns the run id of its server.
async fn run_echo(redis: &RedisClient, text: &str) -> Result<String, RedisCallError> {
    let reply = redis.run(&echo(), &[], |run_id| vec![run_id.into(), text.into()]).await?;
    let (run_id, echoed): (String, String) = redis::from_redis_value(reply).unwrap();
    assert_eq!(echoed, text, "the reply belongs to another call");
    Ok(run_id)
}

/// Retries the echo script until a call succeeds, whenever there is a connection.
async fn echo_until_ok(redis: &RedisClient) -> String {
    let attempts = async {
        loop {
            redis.wait_until_up().await;
            if let Ok(run_id) = run_echo(redis, "at last").await {
                return run_id;
            }
        }
    };
    with_timeout(attempts).await
}

async fn failure_reason(redis: &RedisClient) -> RedisErrorReason {
    with_timeout(run_echo(redis, "lost")).await.expect_err("the call should fail").reason
}

/// Runs the echo script until a call fails for this reason.
async fn wait_for_failure(redis: &RedisClient, reason: RedisErrorReason) {
    with_timeout(async {
        while run_echo(redis, "lost at last").await != Err(RedisCallError { reason }) {
            yield_now().await;
        }
    })
    .await;
}

async fn connect_raw(server: &RedisServer) -> MultiplexedConnection {
    server.client().get_multiplexed_async_connection().await.unwrap()
}

async fn command(server: &RedisServer, args: &[&str]) -> Value {
    redis::cmd(args[0]).arg(&args[1..]).query_async(&mut connect_raw(server).await).await.unwrap()
}

async fn run_id(server: &RedisServer) -> String {
    let info: String = redis::from_redis_value(command(server, &["INFO", "server"]).await).unwrap();
    info.lines().find_map(|line| line.strip_prefix("run_id:")).unwrap().to_owned()
}

/// Id of the only connection from Guildhall.
async fn guildhall_client_id(server: &RedisServer) -> String {
    let clients: String = redis::from_redis_value(command(server, &["CLIENT", "LIST"]).await).unwrap();
    let own_clients: Vec<_> = clients.lines().filter(|line| line.contains(" name=guildhall ")).collect();
    assert_eq!(own_clients.len(), 1, "{clients}");
    own_clients[0].split(' ').next().unwrap().to_owned()
}
