//! Dead letters: listed, delivered again, deleted.

use std::collections::BTreeSet;

use futures_util::StreamExt as _;
use lapin::{
    options::{BasicConsumeOptions, BasicRejectOptions},
    types::FieldTable,
};
use serde_json::Value;

use crate::{
    consumer::{Consumer, read},
    fixture::{BrokerFixture, shared_server, wait_until, wait_until_ready},
};

async fn list(fixture: &BrokerFixture) -> Vec<Value> {
    let (code, output) = fixture.run(&["broker", "dlq", "list", "--output", "json"], &[]).await;
    assert_eq!(code, Some(0), "{output}");
    serde_json::from_str::<Value>(&output).unwrap()["dead_letters"].as_array().unwrap().clone()
}

fn ids_of(letters: &[Value]) -> BTreeSet<String> {
    letters.iter().map(|letter| letter["id"].as_str().unwrap().to_owned()).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rejected_events_are_listed_redriven_once_and_discarded() {
    let server = shared_server().await;
    let fixture = BrokerFixture::new(&server, "dead", 1).await;
    let daemon = fixture.start_daemon(&[]);
    wait_until_ready(&daemon).await;
    fixture.join(3, 1_000).await;
    let channel = fixture.connect().await.create_channel().await.unwrap();
    let queue = fixture.queue("events.p00");
    let (options, arguments) = (BasicConsumeOptions::default(), FieldTable::default());
    let mut rejecting =
        channel.basic_consume(queue.as_str().into(), "rejecting".into(), options, arguments).await.unwrap();
    let mut ids = Vec::new();
    while ids.len() < 3 {
        let delivery = rejecting.next().await.unwrap().unwrap();
        ids.push(read(&delivery).id);
        delivery.reject(BasicRejectOptions { requeue: false }).await.unwrap();
    }
    channel.close(200, "done".into()).await.unwrap();
    let mut letters = list(&fixture).await;
    // The server moves them by itself.
    while letters.len() < 3 {
        letters = list(&fixture).await;
    }
    assert_eq!(ids_of(&letters), ids.iter().cloned().collect());
    let first = &letters[0];
    assert_eq!((&first["event"], &first["reason"]), (&"member.join".into(), &"rejected".into()));
    assert_eq!((&first["queue"], &first["redriven"]), (&queue.as_str().into(), &0.into()));
    assert!(first["at"].is_string() && first["guild"].is_string());
    // Nothing changes without a confirmation, nor in a dry run.
    let (code, output) = fixture.run(&["broker", "dlq", "redrive", &ids[1]], &[]).await;
    assert!(code == Some(1) && output.contains("--yes"), "{output}");
    let (code, output) = fixture.run(&["broker", "dlq", "discard", "--all", "--dry-run"], &[]).await;
    assert!(code == Some(0) && output.contains("3 dead letters would be discarded"), "{output}");
    assert_eq!(list(&fixture).await.len(), 3);

    let consumer = Consumer::start(fixture.url.clone(), vec![queue]);
    let (code, output) = fixture.run(&["broker", "dlq", "redrive", &ids[1], "--yes"], &[]).await;
    assert!(code == Some(0) && output.contains("1 dead letter redriven"), "{output}");
    wait_until("the event arrives again", || !consumer.received().is_empty()).await;
    assert_eq!(ids_of(&list(&fixture).await), BTreeSet::from([ids[0].clone(), ids[2].clone()]));
    let (code, output) = fixture.run(&["broker", "dlq", "discard", "--all", "--yes"], &[]).await;
    assert!(code == Some(0) && output.contains("2 dead letters discarded"), "{output}");
    assert!(list(&fixture).await.is_empty());
    let (code, output) = fixture.run(&["broker", "dlq", "redrive", "unknown", "--yes"], &[]).await;
    assert!(code == Some(1) && output.contains("do not exist"), "{output}");
    let arrived: Vec<String> = consumer.received().into_iter().map(|event| event.id).collect();
    assert_eq!(arrived, [ids[1].clone()], "delivered once");
}
