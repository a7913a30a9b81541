//! States in which the server takes no events, and how they end.

use lapin::options::QueueDeleteOptions;

use crate::{
    consumer::Consumer,
    fixture::{
        BrokerFixture, broker_state, exclusive_server, metric, shared_server, wait_for_reason, wait_until,
        wait_until_ready,
    },
};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn full_queue_makes_events_wait_in_order() {
    let server = shared_server().await;
    let fixture = BrokerFixture::new(&server, "full", 1).await;
    let daemon = fixture.start_daemon(&[("BROKER__QUEUE_MAX_MESSAGES", "10")]);
    let address = wait_until_ready(&daemon).await;
    fixture.join(200, 1_000).await;
    wait_until("events are rejected", || metric(address, "guildhall_broker_publishes_total{result=\"nacked\"}") > 0.0)
        .await;
    let line = &daemon.log_lines_with("did not confirm an event")[0];
    assert!(line["why"].as_str().unwrap().contains("is full"), "{line}");
    // Other queues may have room.
    assert_eq!(broker_state(address)["state"], "ready");
    let consumer = Consumer::of_partitions(&fixture);
    let report = consumer.wait_for_events(200, &daemon).await;
    assert_eq!(report.duplicates, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn deleted_queue_is_declared_again() {
    let server = shared_server().await;
    let fixture = BrokerFixture::new(&server, "deleted", 1).await;
    let daemon = fixture.start_daemon(&[]);
    let address = wait_until_ready(&daemon).await;
    let channel = fixture.connect().await.create_channel().await.unwrap();
    let queue = fixture.queue("events.p00");
    channel.queue_delete(queue.as_str().into(), QueueDeleteOptions::default()).await.unwrap();
    fixture.join(40, 1_000).await;
    let consumer = Consumer::of_partitions(&fixture);
    consumer.wait_for_events(40, &daemon).await;
    assert!(metric(address, "guildhall_broker_publishes_total{result=\"returned\"}") > 0.0);
    let line = &daemon.log_lines_with("queues were deleted by others")[0];
    assert_eq!(line["queues"], queue.as_str());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn blocked_connection_is_reported_and_continues() {
    let server = exclusive_server().await;
    let fixture = BrokerFixture::new(&server, "blocked", 1).await;
    let daemon = fixture.start_daemon(&[]);
    let address = wait_until_ready(&daemon).await;
    let consumer = Consumer::of_partitions(&fixture);
    fixture.join(40, 1_000).await;
    consumer.wait_for_events(40, &daemon).await;
    let set_limit = |limit: &str| tokio::task::block_in_place(|| drop(server.ctl(&["set_disk_free_limit", limit])));
    set_limit("900000GB");
    fixture.join(200, 1_000).await;
    wait_for_reason(address, "RabbitMQ blocks publishing").await;
    assert_eq!(metric(address, "guildhall_broker_blocked"), 1.0);
    set_limit("1MB");
    consumer.wait_for_events(240, &daemon).await;
    wait_until("it is ready again", || broker_state(address)["state"] == "ready").await;
    assert_eq!(daemon.log_lines_with("\"connection to RabbitMQ lost\"").len(), 0, "{}", daemon.log_tail());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn server_that_does_not_respond_is_given_up_and_used_again() {
    let server = exclusive_server().await;
    let fixture = BrokerFixture::new(&server, "frozen", 1).await;
    let daemon = fixture.start_daemon(&[("BROKER__PUBLISH_TIMEOUT_MS", "500"), ("BROKER__CONNECT_TIMEOUT_MS", "1000")]);
    let address = wait_until_ready(&daemon).await;
    server.stop();
    fixture.join(100, 1_000).await;
    wait_for_reason(address, "within 1000 ms").await;
    server.resume();
    let consumer = Consumer::of_partitions(&fixture);
    consumer.wait_for_events(100, &daemon).await;
    wait_until("it is ready again", || broker_state(address)["state"] == "ready").await;
}
