//! Logs and metrics.

use guildhall::redis::RedisErrorReason;
use metrics_exporter_prometheus::PrometheusBuilder;
use tracing::Level;

use crate::{connect, log::Log, lost_at_last, say, say_at_last, support::RedisServer};

#[tokio::test]
async fn each_change_is_one_line_and_each_call_is_counted() {
    let recorder = PrometheusBuilder::new().build_recorder();
    let metrics = recorder.handle();
    let _recording = metrics::set_default_local_recorder(&recorder);
    let (log, _guard) = Log::capture(Level::TRACE);

    let mut server = RedisServer::start();
    let redis = connect(server.url());
    say(&redis, "one").await.unwrap();
    say(&redis, "two").await.unwrap();
    let shown = metrics.render();
    assert!(shown.contains("guildhall_redis_up 1"), "{shown}");
    assert!(shown.contains("guildhall_redis_calls_total{script=\"echo\",result=\"ok\"} 2"), "{shown}");
    assert!(shown.contains("guildhall_redis_call_seconds_count 2"), "{shown}");

    server.kill();
    lost_at_last(&redis, RedisErrorReason::Unreachable).await;
    let shown = metrics.render();
    assert!(shown.contains("guildhall_redis_up 0"), "{shown}");
    assert!(shown.contains("guildhall_redis_calls_total{script=\"echo\",result=\"unreachable\"}"), "{shown}");

    server.restart_empty();
    say_at_last(&redis).await;
    assert!(metrics.render().contains("guildhall_redis_up 1"), "{}", metrics.render());
    let lines = |text: &str| log.text().lines().filter(|line| line.contains(text)).count();
    assert_eq!(lines("connected to Redis"), 2, "{}", log.text());
    assert_eq!(lines("connection to Redis lost why=\"disconnected\""), 1, "{}", log.text());
    assert_eq!(lines("cannot connect to Redis why=\"unreachable\""), 1, "{}", log.text());
}
