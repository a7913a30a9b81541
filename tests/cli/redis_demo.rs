//! The demo with a real Redis.

use guildhall_testkit::program::{Guildhall, text};
use guildhall_testkit::redis::RedisServer;

#[test]
fn demo_runs_with_redis_and_leaves_the_shared_state() {
    let server = RedisServer::start();
    let url = format!("redis://127.0.0.1:{}", server.port());
    let output = Guildhall::new(&["demo", "--exit", "--redis", &url]).output();
    let (stdout, stderr) = (text(&output.stdout), text(&output.stderr));
    assert_eq!(output.status.code(), Some(0), "{stdout}{stderr}");
    assert!(stdout.contains("within the rate limit shared over Redis (processes: 1)"), "{stdout}");
    assert_eq!(stderr, "", "no log output by default");
    let mut redis = ::redis::Client::open(url).unwrap().get_connection().unwrap();
    let live: u64 = ::redis::cmd("EXISTS").arg("guildhall:{1100000000000000000}:bot:live").query(&mut redis).unwrap();
    assert_eq!(live, 0, "the process left the shared state");
}

#[test]
fn invalid_redis_url_is_reported_without_its_password() {
    let output = Guildhall::new(&["demo", "--exit", "--redis", "http://user:sesame@127.0.0.1/"]).output();
    let stderr = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{stderr}");
    assert!(stderr.contains("redis.url") && stderr.contains("redis://"), "{stderr}");
    assert!(!stderr.contains("sesame"), "{stderr}");
}
