//! Logs and metrics.

use guildhall::redis::RedisErrorReason;
use guildhall_testkit::{log::Log, redis::RedisServer};
use metrics_exporter_prometheus::PrometheusBuilder;
use tracing::Level;

use super::{connect, echo_until_ok, run_echo, wait_for_failure};

#[tokio::test]
async fn each_change_is_logged_once_and_each_call_is_counted() {
    let recorder = PrometheusBuilder::new().build_recorder();
    let metrics = recorder.handle();
    let _recording = metrics::set_default_local_recorder(&recorder);
    let (log, _guard) = Log::capture(Level::TRACE);

    let mut server = RedisServer::start();
    let redis = connect(server.url());
    run_echo(&redis, "one").await.unwrap();
    run_echo(&redis, "two").await.unwrap();
    let rendered = metrics.render();
    assert!(rendered.contains("guildhall_redis_up 1"), "{rendered}");
    assert!(rendered.contains("guildhall_redis_calls_total{script=\"echo\",result=\"ok\"} 2"), "{rendered}");
    assert!(rendered.contains("guildhall_redis_call_seconds_count 2"), "{rendered}");

    server.kill();
    wait_for_failure(&redis, RedisErrorReason::Unreachable).await;
    let rendered = metrics.render();
    assert!(rendered.contains("guildhall_redis_up 0"), "{rendered}");
    assert!(rendered.contains("guildhall_redis_calls_total{script=\"echo\",result=\"unreachable\"}"), "{rendered}");

    server.restart_empty();
    echo_until_ok(&redis).await;
    assert!(metrics.render().contains("guildhall_redis_up 1"), "{}", metrics.render());
    let lines = |text: &str| log.text().lines().filter(|line| line.contains(text)).count();
    assert_eq!(lines("connected to Redis"), 2, "{}", log.text());
    assert_eq!(lines("connection to Redis lost why=\"disconnected\""), 1, "{}", log.text());
    assert_eq!(lines("cannot connect to Redis why=\"unreachable\""), 1, "{}", log.text());
}
