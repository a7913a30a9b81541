//! Reads, redrives and discards dead letters.
//!
//! Messages are taken from the queue one by one and stay unacknowledged until the end; those that are not selected go back
//! when the channel closes.

use std::time::Duration;

use guildhall_core::time::UnixMs;
use lapin::{
    Channel, Connection,
    message::BasicGetMessage,
    options::{BasicAckOptions, BasicGetOptions, ConfirmSelectOptions},
    types::{AMQPValue, FieldTable},
};
use serde::Serialize;
use tokio::time::timeout;

use super::{
    connection::{BrokerConnector, Processed, publish_confirmed},
    error::{BrokerFailure, BrokerFailureKind},
    message::{EventMessage, header, short},
    probe::BrokerProbeError,
    topology::{Topology, close},
};
use crate::settings::{BrokerSettings, BrokerUrl};

/// A dead letter.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct DeadMessage {
    /// Id of the event.
    pub(crate) id: String,
    /// Name of the event.
    pub(crate) event: String,
    /// The guild, if it is in one.
    pub(crate) guild: Option<String>,
    /// The queue in which it died.
    pub(crate) queue: Option<String>,
    /// Why it died: rejected, expired, delivery_limit or maxlen; or what a consumer says.
    pub(crate) reason: Option<String>,
    /// When it died.
    pub(crate) at: Option<String>,
    /// How often it was redriven.
    pub(crate) redriven: u64,
    /// Size of the event in bytes.
    pub(crate) bytes: usize,
}

/// Which dead letters are changed.
#[derive(Clone, Debug)]
pub(crate) enum DeadLetterSelection {
    /// All, up to a number.
    All { limit: usize },
    /// Those with these ids.
    Ids(Vec<String>),
}

/// What happens to them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DeadLetterAction {
    /// They are delivered again to the queue in which they died.
    Redrive,
    /// They are deleted.
    Discard,
}

impl DeadLetterSelection {
    fn takes(&self, id: &str, taken: usize) -> bool {
        match self {
            Self::All { limit } => taken < *limit,
            Self::Ids(ids) => ids.iter().any(|one| one == id),
        }
    }

    /// Whether all of them were found.
    fn is_complete(&self, taken: usize) -> bool {
        match self {
            Self::All { limit } => taken >= *limit,
            Self::Ids(ids) => taken >= ids.len(),
        }
    }
}

/// Reads at most so many dead letters, and how many there are. Changes nothing.
pub(crate) async fn list(
    settings: &BrokerSettings,
    url: &BrokerUrl,
    limit: usize,
) -> Result<(Vec<DeadMessage>, u32), BrokerProbeError> {
    let queue = Queue::open(settings, url).await?;
    let (mut letters, mut total) = (Vec::new(), 0);
    while letters.len() < limit {
        let Some(message) = queue.next().await? else { break };
        if letters.is_empty() {
            total = message.message_count.saturating_add(1);
        }
        letters.push(describe(&message));
    }
    queue.close().await;
    Ok((letters, total))
}

/// Redrives or discards dead letters. Returns those that were changed.
///
/// A dead letter is deleted after RabbitMQ has confirmed it in its queue, so it can be delivered twice if this is
/// interrupted, and is never lost.
pub(crate) async fn change(
    settings: &BrokerSettings,
    url: &BrokerUrl,
    action: DeadLetterAction,
    selection: &DeadLetterSelection,
) -> Result<Vec<DeadMessage>, BrokerProbeError> {
    let queue = Queue::open(settings, url).await?;
    let (mut changed, mut left) = (Vec::new(), None);
    while !selection.is_complete(changed.len()) && left != Some(0) {
        let Some(message) = queue.next().await? else { break };
        // What arrives meanwhile is left for the next time; what was redriven may die again.
        left = Some(left.unwrap_or(message.message_count + 1) - 1);
        let letter = describe(&message);
        if !selection.takes(&letter.id, changed.len()) {
            continue;
        }
        if action == DeadLetterAction::Redrive {
            queue.redrive(&message, &letter).await?;
        }
        queue.within(message.ack(BasicAckOptions::default())).await?;
        changed.push(letter);
    }
    queue.close().await;
    Ok(changed)
}

/// The queue of dead letters.
struct Queue {
    connection: Connection,
    channel: Channel,
    name: String,
    timeout: Duration,
}

impl Queue {
    async fn open(settings: &BrokerSettings, url: &BrokerUrl) -> Result<Self, BrokerProbeError> {
        let connection = BrokerConnector::new(settings, url.clone())?.connect().await?;
        let limit = settings.connect_timeout;
        let opened = timeout(limit, async {
            let channel = connection.create_channel().await?;
            channel.confirm_select(ConfirmSelectOptions::default()).await?;
            Ok(channel)
        });
        let channel = match opened.await {
            Ok(channel) => channel.map_err(|error: lapin::Error| BrokerFailure::of(&error))?,
            Err(_) => return Err(BrokerFailure::timeout("opening a channel", limit).into()),
        };
        Ok(Self { connection, channel, name: Topology::new(settings).dead_letter_queue, timeout: limit })
    }

    async fn next(&self) -> Result<Option<BasicGetMessage>, BrokerFailure> {
        self.within(self.channel.basic_get(self.name.as_str().into(), BasicGetOptions::default())).await
    }

    /// Publishes a dead letter to the queue in which it died, and to no other that got it before.
    async fn redrive(&self, message: &BasicGetMessage, letter: &DeadMessage) -> Result<(), BrokerFailure> {
        let Some(queue) = &letter.queue else {
            let message = format!("dead letter {} does not name the queue in which it died; discard it", letter.id);
            return Err(BrokerFailure::new(BrokerFailureKind::Other, message));
        };
        let mut headers = FieldTable::default();
        for (name, value) in message.properties.headers().iter().flat_map(FieldTable::inner) {
            // They would count as an earlier death.
            if !name.as_str().starts_with("x-") {
                headers.insert(name.clone(), value.clone());
            }
        }
        let redriven = i64::try_from(letter.redriven + 1).unwrap_or(i64::MAX);
        headers.insert(header::REDRIVEN.into(), AMQPValue::LongLongInt(redriven));
        let copy = EventMessage {
            routing_key: short(queue),
            properties: message.properties.clone().with_headers(headers),
            body: String::from_utf8_lossy(&message.data).into(),
        };
        // The default exchange delivers to the queue with the name of the routing key.
        match timeout(self.timeout, publish_confirmed(&self.channel, "", &copy)).await {
            Ok(Ok(Processed::Confirmed)) => Ok(()),
            Ok(Ok(Processed::Returned)) => Err(BrokerFailure::new(
                BrokerFailureKind::NotFound,
                format!(
                    "queue {queue} of dead letter {} no longer exists; declare it, or discard the letter",
                    letter.id
                ),
            )),
            Ok(Ok(Processed::Nacked)) => Err(BrokerFailure::new(
                BrokerFailureKind::Other,
                format!("queue {queue} is full; redrive the rest when its consumers have caught up"),
            )),
            Ok(Err(failure)) => Err(failure),
            Err(_) => Err(BrokerFailure::timeout("redriving", self.timeout)),
        }
    }

    async fn within<T>(&self, call: impl Future<Output = lapin::Result<T>>) -> Result<T, BrokerFailure> {
        match timeout(self.timeout, call).await {
            Ok(result) => result.map_err(|error| BrokerFailure::of(&error)),
            Err(_) => Err(BrokerFailure::timeout("a request", self.timeout)),
        }
    }

    async fn close(self) {
        // Messages that are not acknowledged go back to the queue.
        drop(timeout(self.timeout, close(&self.channel)).await);
        drop(timeout(self.timeout, self.connection.close(200, "done".into())).await);
    }
}

fn describe(message: &BasicGetMessage) -> DeadMessage {
    let properties = &message.properties;
    let headers = properties.headers().as_ref();
    let find = |name: &str| headers.and_then(|table| table.inner().get(name));
    let string = |name: &str| find(name).and_then(as_text);
    let death = find("x-death").and_then(|deaths| match deaths {
        AMQPValue::FieldArray(deaths) => deaths.as_slice().first(),
        _ => None,
    });
    let of_death = |name: &str| match death {
        Some(AMQPValue::FieldTable(table)) => table.inner().get(name),
        _ => None,
    };
    let at = match of_death("time") {
        Some(AMQPValue::Timestamp(seconds)) => Some(UnixMs::new(seconds.saturating_mul(1_000)).to_string()),
        _ => None,
    };
    let own = |value: &Option<lapin::types::ShortString>| {
        value.as_ref().map(|text| text.as_str().to_owned()).unwrap_or_default()
    };
    DeadMessage {
        id: own(properties.message_id()),
        event: own(properties.kind()),
        guild: string(header::GUILD),
        queue: of_death("queue").and_then(as_text).or_else(|| string("x-first-death-queue")),
        reason: of_death("reason").and_then(as_text).or_else(|| string("x-first-death-reason")),
        at,
        redriven: find(header::REDRIVEN).and_then(as_number).unwrap_or(0),
        bytes: message.data.len(),
    }
}

fn as_text(value: &AMQPValue) -> Option<String> {
    match value {
        AMQPValue::LongString(text) => Some(String::from_utf8_lossy(text.as_bytes()).into_owned()),
        AMQPValue::ShortString(text) => Some(text.as_str().to_owned()),
        _ => None,
    }
}

fn as_number(value: &AMQPValue) -> Option<u64> {
    let number = match value {
        AMQPValue::LongLongInt(number) => *number,
        AMQPValue::LongInt(number) => i64::from(*number),
        AMQPValue::ShortInt(number) => i64::from(*number),
        AMQPValue::ShortShortInt(number) => i64::from(*number),
        _ => return None,
    };
    u64::try_from(number).ok()
}
