//! Order, completeness, and what a message contains.

use guildhall_sim::FireSpec;
use lapin::{
    options::{BasicGetOptions, QueueBindOptions, QueueDeclareOptions},
    types::FieldTable,
};

use crate::{
    consumer::{Consumer, read},
    fixture::{BrokerFixture, exclusive_server, metric, shared_server, wait_until, wait_until_ready},
};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn events_of_each_guild_arrive_complete_and_in_order() {
    let server = shared_server().await;
    let fixture = BrokerFixture::new(&server, "order", 4).await;
    let daemon = fixture.start_daemon(&[]);
    let address = wait_until_ready(&daemon).await;
    // Anybody may bind a queue of their own.
    let connection = fixture.connect().await;
    let channel = connection.create_channel().await.unwrap();
    let options = QueueDeclareOptions { exclusive: true, ..QueueDeclareOptions::default() };
    channel.queue_declare("order.mine".into(), options, FieldTable::default()).await.unwrap();
    let (exchange, bind) = (fixture.queue("events"), QueueBindOptions::default());
    channel
        .queue_bind("order.mine".into(), exchange.as_str().into(), "member.#".into(), bind, FieldTable::default())
        .await
        .unwrap();
    let consumer = Consumer::of_partitions(&fixture);
    fixture.join(1_000, 1_000).await;
    let report = consumer.wait_for_events(1_000, &daemon).await;
    assert_eq!(report.duplicates, 0);
    let first = channel.basic_get("order.mine".into(), BasicGetOptions { no_ack: true }).await.unwrap().unwrap();
    assert_eq!(first.message_count, 999);
    let event = read(&first);
    assert_eq!((event.event.as_str(), event.priority), ("member.join", Some(5)));
    assert_eq!((event.content_type.as_str(), event.counter), ("application/json", 1));
    assert!(event.routing_key.starts_with("member.join.p0"), "{}", event.routing_key);
    assert_eq!(event.body["event_id"], event.id.as_str());
    assert_eq!(event.body["event_type"], "member.join");
    assert_eq!((event.body["seq"].as_u64(), event.traceparent.len()), (Some(event.seq), 55));
    assert_eq!(event.stream.unwrap(), format!("bus:{}", event.body["guild_id"].as_str().unwrap()));
    assert_eq!(metric(address, "guildhall_broker_publishes_total{result=\"confirmed\"}"), 1_000.0);
    assert_eq!(metric(address, "guildhall_broker_up"), 1.0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn interaction_has_its_own_queue_and_priority() {
    let server = shared_server().await;
    let fixture = BrokerFixture::new(&server, "interact", 1).await;
    let daemon = fixture.start_daemon(&[]);
    wait_until_ready(&daemon).await;
    let consumer = Consumer::start(fixture.url.clone(), vec![fixture.queue("interactions")]);
    let guild = fixture.sim.guilds()[0];
    fixture.sim.fire(FireSpec::command(guild, "hello")).await.unwrap();
    wait_until("the interaction arrives", || !consumer.received().is_empty()).await;
    let event = consumer.received().remove(0);
    assert_eq!((event.routing_key.as_str(), event.priority), ("interaction.command.hello", Some(10)));
    assert!(event.body["interaction_token"].is_string() && event.stream.is_none());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_daemon_loses_nothing_and_repeats_with_the_same_position() {
    let server = shared_server().await;
    let fixture = BrokerFixture::new(&server, "killed", 4).await;
    let consumer = Consumer::of_partitions(&fixture);
    let mut daemon = fixture.start_daemon(&[]);
    wait_until_ready(&daemon).await;
    let kills = async {
        for after in [100, 300] {
            wait_until("events arrive", || consumer.report().events >= after).await;
            daemon.kill();
            daemon = fixture.start_daemon(&[]);
        }
    };
    tokio::join!(fixture.join(800, 200), kills);
    consumer.wait_for_events(fixture.joins(), &daemon).await;
    assert_eq!(fixture.joins(), 800);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn restarted_server_under_load_loses_nothing() {
    let mut server = exclusive_server().await;
    let fixture = BrokerFixture::new(&server, "restart", 4).await;
    let consumer = Consumer::of_partitions(&fixture);
    let daemon = fixture.start_daemon(&[]);
    let address = wait_until_ready(&daemon).await;
    let restart = async {
        wait_until("events arrive", || consumer.report().events >= 200).await;
        tokio::task::block_in_place(|| server.restart());
    };
    tokio::join!(fixture.join(2_000, 200), restart);
    consumer.wait_for_events(fixture.joins(), &daemon).await;
    assert_eq!(fixture.joins(), 2_000);
    assert!(metric(address, "guildhall_broker_connections_total") >= 2.0);
    assert_eq!(daemon.log_lines_with("\"connection to RabbitMQ lost\"").len(), 1, "{}", daemon.log_tail());
}
