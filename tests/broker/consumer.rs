//! A consumer that records what it gets, and checks order and completeness by the headers alone.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
    time::Duration,
};

use futures_util::{StreamExt as _, stream::select_all};
use guildhall_testkit::crash::daemon_process::DaemonProcess;
use lapin::{
    Connection, ConnectionProperties,
    message::Delivery,
    options::{BasicAckOptions, BasicConsumeOptions, BasicQosOptions},
    types::{AMQPValue, FieldTable},
};
use tokio::{
    task::JoinHandle,
    time::{Instant, sleep},
};

use crate::fixture::{BrokerFixture, TEST_TIMEOUT};

/// What a consumer sees of a message.
#[derive(Clone, Debug)]
pub(crate) struct ReceivedEvent {
    pub(crate) id: String,
    pub(crate) event: String,
    pub(crate) routing_key: String,
    pub(crate) stream: Option<String>,
    pub(crate) epoch: u64,
    pub(crate) counter: u64,
    pub(crate) seq: u64,
    pub(crate) priority: Option<u8>,
    pub(crate) content_type: String,
    pub(crate) traceparent: String,
    pub(crate) body: serde_json::Value,
}

/// Consumes queues until it is dropped, over lost connections.
pub(crate) struct Consumer {
    received: Arc<Mutex<Vec<ReceivedEvent>>>,
    task: JoinHandle<()>,
}

/// What a consumer finds.
#[derive(Debug, Default)]
pub(crate) struct StreamReport {
    /// Events without duplicates.
    pub(crate) events: usize,
    pub(crate) duplicates: usize,
    /// Gaps, reordering, and positions with two events.
    pub(crate) violations: Vec<String>,
}

impl Consumer {
    /// Consumes the queues of all partitions.
    pub(crate) fn of_partitions(fixture: &BrokerFixture) -> Self {
        let queues = (0..fixture.partitions).map(|number| fixture.queue(&format!("events.p{number:02}"))).collect();
        Self::start(fixture.url.clone(), queues)
    }

    pub(crate) fn start(url: String, queues: Vec<String>) -> Self {
        let received = Arc::new(Mutex::new(Vec::new()));
        let record = Arc::clone(&received);
        let task = tokio::spawn(async move {
            loop {
                // The server may be down, or the queues may not exist yet.
                let _ = consume(&url, &queues, &record).await;
                sleep(Duration::from_millis(100)).await;
            }
        });
        Self { received, task }
    }

    pub(crate) fn received(&self) -> Vec<ReceivedEvent> {
        self.received.lock().unwrap().clone()
    }

    /// Checks everything that was received so far.
    pub(crate) fn report(&self) -> StreamReport {
        let mut report = StreamReport::default();
        // The last position and sequence number of each stream, and the event at each position.
        let mut streams: HashMap<String, (u64, u64, Vec<String>)> = HashMap::new();
        for event in self.received() {
            let Some(stream) = event.stream.clone() else { continue };
            let (epoch, last_seq, ids) = streams.entry(stream.clone()).or_insert_with(|| (event.epoch, 0, Vec::new()));
            let position = usize::try_from(event.counter).unwrap();
            if event.epoch != *epoch {
                report.violations.push(format!("{stream}: another epoch at {position}"));
            } else if position <= ids.len() {
                report.duplicates += 1;
                if ids[position - 1] != event.id {
                    report.violations.push(format!("{stream}: {position} is {} and {}", ids[position - 1], event.id));
                }
            } else if position == ids.len() + 1 && event.seq > *last_seq {
                report.events += 1;
                *last_seq = event.seq;
                ids.push(event.id);
            } else {
                report.violations.push(format!("{stream}: {position} (seq {}) after {}", event.seq, ids.len()));
            }
        }
        report
    }

    /// Waits until so many different events were received, and checks them.
    pub(crate) async fn wait_for_events(&self, expected: usize, daemon: &DaemonProcess) -> StreamReport {
        let deadline = Instant::now() + TEST_TIMEOUT;
        loop {
            let report = self.report();
            let is_done = report.events >= expected;
            if !report.violations.is_empty() || is_done || Instant::now() > deadline {
                let found = (report.events, &report.violations[..]);
                assert_eq!(found, (expected, &[][..]), "{report:?}\n{}", daemon.log_tail());
                return report;
            }
            sleep(Duration::from_millis(20)).await;
        }
    }
}

impl Drop for Consumer {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn consume(url: &str, queues: &[String], record: &Mutex<Vec<ReceivedEvent>>) -> lapin::Result<()> {
    let connection = Connection::connect(url, ConnectionProperties::default()).await?;
    let channel = connection.create_channel().await?;
    channel.basic_qos(50, BasicQosOptions::default()).await?;
    let mut consumers = Vec::new();
    for queue in queues {
        let (options, arguments) = (BasicConsumeOptions::default(), FieldTable::default());
        consumers.push(channel.basic_consume(queue.as_str().into(), "".into(), options, arguments).await?);
    }
    let mut deliveries = select_all(consumers);
    while let Some(delivery) = deliveries.next().await {
        let delivery = delivery?;
        record.lock().unwrap().push(read(&delivery));
        delivery.ack(BasicAckOptions::default()).await?;
    }
    Ok(())
}

/// Reads a message.
pub(crate) fn read(delivery: &Delivery) -> ReceivedEvent {
    let properties = &delivery.properties;
    let headers = properties.headers().clone().unwrap_or_default();
    let text = |name: &str| match headers.inner().get(name) {
        Some(AMQPValue::LongString(text)) => Some(text.to_string()),
        _ => None,
    };
    let number = |name: &str| match headers.inner().get(name) {
        Some(AMQPValue::LongLongInt(number)) => u64::try_from(*number).unwrap(),
        _ => 0,
    };
    ReceivedEvent {
        id: properties.message_id().as_ref().unwrap().to_string(),
        event: properties.kind().as_ref().unwrap().to_string(),
        routing_key: delivery.routing_key.to_string(),
        stream: text("guildhall-stream"),
        epoch: number("guildhall-epoch"),
        counter: number("guildhall-counter"),
        seq: number("guildhall-seq"),
        priority: *properties.priority(),
        content_type: properties.content_type().as_ref().unwrap().to_string(),
        traceparent: text("traceparent").unwrap_or_default(),
        body: serde_json::from_slice(&delivery.data).unwrap(),
    }
}
