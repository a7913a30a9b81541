//! The connection to Redis, against real servers.

#![expect(clippy::unwrap_used, reason = "tests")]

#[path = "support/redis.rs"]
mod support;

use std::time::Duration;

use guildhall::redis::{Keys, Redis, RedisConfig, RedisUrl, Script};
use redis::Value;
use support::RedisServer;

fn connect(url: RedisUrl) -> Redis {
    Redis::new(RedisConfig { url, ca_file: None, timeout: Duration::from_secs(30) }).unwrap()
}

#[tokio::test]
async fn a_script_runs_with_the_run_id_of_its_server() {
    let server = RedisServer::start();
    let redis = connect(server.url());
    let script = Script::new("test", "redis.call('SET', KEYS[1], ARGV[2], 'EX', 60) return ARGV[1]");
    let key = Keys::new(1).of("a");
    let answer = redis.run(&script, &[key], |run_id| vec![run_id.into(), b"x".to_vec()]).await.unwrap();
    let Value::BulkString(run_id) = answer else { panic!("{answer:?}") };
    assert_eq!(run_id.len(), 40);
}
