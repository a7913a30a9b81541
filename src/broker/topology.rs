//! Exchanges and queues: what they are named, and how they are declared.
//!
//! ```text
//!  guildhall.events (topic) ──interaction.#──▶ guildhall.interactions (classic, priority, short TTL) ─┐
//!                           └─#.p00 … #.p31──▶ guildhall.events.p00 … p31 (quorum, bounded) ──────────┤ dead letters
//!                                              guildhall.dlx (fanout) ─▶ guildhall.dlq (7 days) ◀─────┘
//! ```

use std::time::Duration;

use guildhall_core::time::millis;
use lapin::{
    Channel, Connection, ExchangeKind,
    options::{ExchangeDeclareOptions, QueueBindOptions, QueueDeclareOptions},
    types::{AMQPValue, FieldTable, LongString},
};
use tokio::time::timeout;

use super::{error::BrokerFailure, route::partition_word};
use crate::settings::BrokerSettings;

/// Highest priority in the queue of interactions.
const MAX_PRIORITY: i32 = 10;

/// How often dead letters may be read by `guildhall broker dlq list`, which returns them to their queue.
const DEAD_LETTER_DELIVERY_LIMIT: i64 = 1_000_000;

/// The exchanges and queues.
#[derive(Clone, Debug)]
pub(crate) struct Topology {
    pub(crate) exchange: String,
    pub(crate) dead_letter_exchange: String,
    /// All queues: partitions, interactions and dead letters.
    pub(crate) queues: Vec<QueueSpec>,
    pub(crate) dead_letter_queue: String,
    pub(crate) partitions: u16,
    declare: bool,
    /// Timeout of a request.
    timeout: Duration,
}

/// A queue.
#[derive(Clone, Debug)]
pub(crate) struct QueueSpec {
    pub(crate) name: String,
    exchange: String,
    binding: String,
    arguments: FieldTable,
}

/// A queue that exists.
#[derive(Clone, Debug)]
pub(crate) struct QueueState {
    pub(crate) name: String,
    pub(crate) messages: u32,
    pub(crate) consumers: u32,
}

fn text(value: &str) -> AMQPValue {
    AMQPValue::LongString(LongString::from(value))
}

fn number(value: u64) -> AMQPValue {
    AMQPValue::LongLongInt(i64::try_from(value).unwrap_or(i64::MAX))
}

fn table<const N: usize>(arguments: [(&str, AMQPValue); N]) -> FieldTable {
    let mut table = FieldTable::default();
    for (name, value) in arguments {
        table.insert(name.into(), value);
    }
    table
}

impl Topology {
    pub(crate) fn new(settings: &BrokerSettings) -> Self {
        let name =
            |set: &Option<String>, suffix: &str| set.clone().unwrap_or_else(|| format!("{}.{suffix}", settings.prefix));
        let exchange = name(&settings.exchange, "events");
        let dead_letter_exchange = name(&settings.dead_letter_exchange, "dlx");
        let dead_letter_queue = name(&settings.dead_letter_queue, "dlq");
        let partition_queue = name(&settings.partition_queue, "events");
        let (messages, bytes) = (u64::from(settings.queue_max_messages), settings.queue_max_bytes);
        // First the queue of dead letters: a message that no queue accepts must have a place.
        let mut queues = vec![QueueSpec {
            name: dead_letter_queue.clone(),
            exchange: dead_letter_exchange.clone(),
            binding: String::new(),
            arguments: table([
                ("x-queue-type", text("quorum")),
                ("x-message-ttl", number(millis(settings.dead_letter_ttl))),
                ("x-max-length", number(messages)),
                ("x-max-length-bytes", number(bytes)),
                ("x-overflow", text("reject-publish")),
                ("x-delivery-limit", AMQPValue::LongLongInt(DEAD_LETTER_DELIVERY_LIMIT)),
            ]),
        }];
        queues.push(QueueSpec {
            name: name(&settings.interactions_queue, "interactions"),
            exchange: exchange.clone(),
            binding: "interaction.#".to_owned(),
            arguments: table([
                ("x-max-priority", AMQPValue::LongInt(MAX_PRIORITY)),
                ("x-message-ttl", number(millis(settings.interaction_ttl))),
                ("x-max-length", number(messages)),
                ("x-max-length-bytes", number(bytes)),
                ("x-overflow", text("reject-publish")),
                ("x-dead-letter-exchange", text(&dead_letter_exchange)),
            ]),
        });
        queues.extend((0..settings.partitions).map(|number_of| {
            let word = partition_word(number_of);
            QueueSpec {
                name: format!("{partition_queue}.{word}"),
                exchange: exchange.clone(),
                binding: format!("#.{word}"),
                arguments: table([
                    ("x-queue-type", text("quorum")),
                    ("x-max-length", number(messages)),
                    ("x-max-length-bytes", number(bytes)),
                    ("x-overflow", text("reject-publish")),
                    ("x-delivery-limit", number(u64::from(settings.delivery_limit))),
                    ("x-dead-letter-exchange", text(&dead_letter_exchange)),
                    ("x-dead-letter-strategy", text("at-least-once")),
                ]),
            }
        }));
        Self {
            exchange,
            dead_letter_exchange,
            queues,
            dead_letter_queue,
            partitions: settings.partitions,
            declare: settings.declare,
            timeout: settings.connect_timeout,
        }
    }

    /// Declares what does not exist. If declaring is off, checks that it exists.
    pub(crate) async fn declare(&self, connection: &Connection) -> Result<(), BrokerFailure> {
        if !self.declare {
            return self.check(connection).await.map(drop);
        }
        let channel = self.channel(connection).await?;
        self.declare_exchanges(&channel, false).await?;
        for queue in &self.queues {
            self.declare_queue(&channel, queue).await?;
        }
        close(&channel).await;
        Ok(())
    }

    async fn declare_exchanges(&self, channel: &Channel, passive: bool) -> Result<(), BrokerFailure> {
        let options = ExchangeDeclareOptions { passive, durable: true, ..ExchangeDeclareOptions::default() };
        for (name, kind) in [(&self.exchange, ExchangeKind::Topic), (&self.dead_letter_exchange, ExchangeKind::Fanout)]
        {
            let declared = channel.exchange_declare(name.as_str().into(), kind, options, FieldTable::default());
            self.within(declared).await?;
        }
        Ok(())
    }

    async fn declare_queue(&self, channel: &Channel, queue: &QueueSpec) -> Result<(), BrokerFailure> {
        let options = QueueDeclareOptions { durable: true, ..QueueDeclareOptions::default() };
        let name = queue.name.as_str();
        self.within(channel.queue_declare(name.into(), options, queue.arguments.clone())).await?;
        let (exchange, key) = (queue.exchange.as_str().into(), queue.binding.as_str().into());
        let bound = channel.queue_bind(name.into(), exchange, key, QueueBindOptions::default(), FieldTable::default());
        self.within(bound).await
    }

    /// The queues, as they are; the first error otherwise.
    pub(crate) async fn check(&self, connection: &Connection) -> Result<Vec<QueueState>, BrokerFailure> {
        let channel = self.channel(connection).await?;
        self.declare_exchanges(&channel, true).await?;
        let mut states = Vec::with_capacity(self.queues.len());
        for queue in &self.queues {
            states.push(self.queue_state(&channel, &queue.name).await?);
        }
        close(&channel).await;
        Ok(states)
    }

    /// The queues, as they are. Queues that do not exist are declared; their names are returned.
    pub(crate) async fn restore(
        &self,
        connection: &Connection,
    ) -> Result<(Vec<QueueState>, Vec<String>), BrokerFailure> {
        let mut channel = self.channel(connection).await?;
        let (mut states, mut missing) = (Vec::with_capacity(self.queues.len()), Vec::new());
        for queue in &self.queues {
            match self.queue_state(&channel, &queue.name).await {
                Ok(state) => states.push(state),
                // The error has closed the channel.
                Err(failure) if failure.is_not_found() && self.declare => {
                    channel = self.channel(connection).await?;
                    self.declare_exchanges(&channel, false).await?;
                    self.declare_queue(&channel, queue).await?;
                    states.push(QueueState { name: queue.name.clone(), messages: 0, consumers: 0 });
                    missing.push(queue.name.clone());
                }
                Err(failure) => return Err(failure),
            }
        }
        close(&channel).await;
        Ok((states, missing))
    }

    async fn queue_state(&self, channel: &Channel, name: &str) -> Result<QueueState, BrokerFailure> {
        let options = QueueDeclareOptions { passive: true, ..QueueDeclareOptions::default() };
        let queue = self.within(channel.queue_declare(name.into(), options, FieldTable::default())).await?;
        Ok(QueueState { name: name.to_owned(), messages: queue.message_count(), consumers: queue.consumer_count() })
    }

    async fn channel(&self, connection: &Connection) -> Result<Channel, BrokerFailure> {
        self.within(connection.create_channel()).await
    }

    async fn within<T>(&self, call: impl Future<Output = lapin::Result<T>>) -> Result<T, BrokerFailure> {
        match timeout(self.timeout, call).await {
            Ok(result) => result.map_err(|error| BrokerFailure::of(&error)),
            Err(_) => Err(BrokerFailure::timeout("a request", self.timeout)),
        }
    }
}

/// Closes a channel that is no longer needed. A failure means that it is closed already.
pub(super) async fn close(channel: &Channel) {
    drop(channel.close(200, "done".into()).await);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::{SettingsSources, load};

    fn topology(set: &[(&str, &str)]) -> Topology {
        let environment = set.iter().map(|(name, value)| (name.into(), value.into())).collect();
        let sources = SettingsSources { environment, ..SettingsSources::default() };
        Topology::new(&load(sources).unwrap().settings.broker)
    }

    #[test]
    fn names_come_from_the_prefix_unless_they_are_set() {
        let defaults = topology(&[]);
        let names: Vec<_> = defaults.queues.iter().map(|queue| queue.name.as_str()).collect();
        assert_eq!(names[..3], ["guildhall.dlq", "guildhall.interactions", "guildhall.events.p00"]);
        assert_eq!((names.len(), names[33]), (34, "guildhall.events.p31"));
        assert_eq!(defaults.queues[2].binding, "#.p00");
        let set = topology(&[
            ("GUILDHALL__BROKER__PREFIX", "bot"),
            ("GUILDHALL__BROKER__EXCHANGE", "gateway"),
            ("GUILDHALL__BROKER__PARTITION_QUEUE", "work"),
            ("GUILDHALL__BROKER__PARTITIONS", "1"),
        ]);
        let names: Vec<_> = set.queues.iter().map(|queue| queue.name.as_str()).collect();
        assert_eq!((set.exchange.as_str(), &names[..]), ("gateway", &["bot.dlq", "bot.interactions", "work.p00"][..]));
    }
}
