//! One connection, and its channels. A channel has at most one unconfirmed message.
//!
//! With several, a confirm of the server can cover some of them, and a returned message cannot be told apart from those that
//! were accepted. So the number of channels is the number of unconfirmed messages.

use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::{path::Path, time::Duration};

use guildhall_core::time::millis;
use lapin::{
    Channel, Confirmation, Connection, ConnectionProperties, DefaultConnectionBuilder,
    options::{BasicPublishOptions, ConfirmSelectOptions},
    tcp::OwnedTLSConfig,
    types::{LongString, ShortString},
    uri::{AMQPAuthority, AMQPQueryString, AMQPScheme, AMQPUri, AMQPUserInfo},
};
use rustls::pki_types::{CertificateDer, pem::PemObject as _};
use tokio::sync::Notify;
use tokio::time::timeout;

use super::{
    BrokerConfigError,
    error::{BrokerFailure, BrokerFailureKind},
    message::EventMessage,
};
use crate::settings::{BrokerSettings, BrokerUrl, SecretValue};

/// Makes connections.
pub(crate) struct BrokerConnector {
    url: BrokerUrl,
    /// Certificate authorities to trust instead of the public ones, as PEM.
    ca: Option<String>,
    heartbeat: u16,
    timeout: Duration,
}

/// A message that the server has processed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Processed {
    Confirmed,
    /// No queue is bound for it.
    Returned,
    /// A queue rejected it, as it is full.
    Nacked,
}

/// A connection that is ready for messages.
pub(super) struct Link {
    pub(super) connection: Connection,
    idle: Mutex<Vec<Channel>>,
    /// Messages that the server has processed.
    processed: AtomicU64,
    failed: Notify,
    is_blocked: AtomicBool,
}

impl BrokerConnector {
    pub(crate) fn new(settings: &BrokerSettings, url: BrokerUrl) -> Result<Self, BrokerConfigError> {
        let ca = settings.ca_file.as_deref().map(read_ca).transpose()?;
        Ok(Self { url, ca, heartbeat: settings.heartbeat, timeout: settings.connect_timeout })
    }

    pub(crate) const fn url(&self) -> &BrokerUrl {
        &self.url
    }

    /// Connects and logs in.
    pub(crate) async fn connect(&self) -> Result<Connection, BrokerFailure> {
        self.connect_patiently(1, |_| {}).await
    }

    /// Connects and logs in. After each timeout but the last, the same attempt continues, and `on_late` is called: the client
    /// library keeps a thread for an attempt until the server responds, even if nothing waits for it any more.
    pub(super) async fn connect_patiently(
        &self,
        timeouts: u32,
        on_late: impl Fn(&BrokerFailure),
    ) -> Result<Connection, BrokerFailure> {
        let mut attempt = pin!(self.try_connect());
        for number in 1.. {
            let failure = match timeout(self.timeout, &mut attempt).await {
                Ok(result) => return result.map_err(|error| self.redact(BrokerFailure::of(&error))),
                Err(_) => self.redact(BrokerFailure::timeout("the connection attempt", self.timeout)),
            };
            if number >= timeouts {
                return Err(failure);
            }
            on_late(&failure);
        }
        unreachable!("invariant: the loop ends by a return")
    }

    async fn try_connect(&self) -> lapin::Result<Connection> {
        let url = &self.url;
        let uri = AMQPUri {
            scheme: if url.tls { AMQPScheme::AMQPS } else { AMQPScheme::AMQP },
            authority: AMQPAuthority {
                userinfo: AMQPUserInfo { username: url.username.clone(), password: url.password.expose().to_owned() },
                host: url.host.clone(),
                port: url.port,
            },
            vhost: url.vhost.clone(),
            query: AMQPQueryString { heartbeat: Some(self.heartbeat), ..AMQPQueryString::default() },
        };
        let name = format!("guildhall {}", env!("CARGO_PKG_VERSION"));
        let properties = ConnectionProperties::default().with_connection_name(LongString::from(name));
        let tls = OwnedTLSConfig { identity: None, cert_chain: self.ca.clone() };
        DefaultConnectionBuilder::new()?.with_uri(uri).with_properties(properties).with_tls_config(tls).connect().await
    }

    /// Removes the password from the message.
    fn redact(&self, mut failure: BrokerFailure) -> BrokerFailure {
        let password = SecretValue::expose(&self.url.password);
        if password.len() > 3 {
            failure.message = failure.message.replace(password, "(redacted)");
        }
        failure.message = format!("{}: {}", self.url, failure.message);
        failure
    }
}

fn read_ca(path: &Path) -> Result<String, BrokerConfigError> {
    let pem =
        std::fs::read_to_string(path).map_err(|error| BrokerConfigError::CaFile { path: path.to_owned(), error })?;
    match CertificateDer::pem_slice_iter(pem.as_bytes()).collect::<Result<Vec<_>, _>>() {
        Ok(certificates) if !certificates.is_empty() => Ok(pem),
        Ok(_) | Err(_) => Err(BrokerConfigError::NoCertificate { path: path.to_owned() }),
    }
}

impl Link {
    pub(super) fn new(connection: Connection) -> Self {
        Self {
            connection,
            idle: Mutex::default(),
            processed: AtomicU64::new(0),
            failed: Notify::new(),
            is_blocked: AtomicBool::new(false),
        }
    }

    /// Publishes a message, and waits until the server has processed it. When the future is dropped, the message may have
    /// been published all the same.
    pub(super) async fn publish(&self, exchange: &str, message: &EventMessage) -> Result<Processed, BrokerFailure> {
        self.try_publish(exchange.into(), message).await.map_err(|error| {
            if !self.is_connected() {
                self.failed.notify_one();
            }
            BrokerFailure::of(&error)
        })
    }

    pub(super) fn is_connected(&self) -> bool {
        self.connection.status().connected()
    }

    async fn try_publish(&self, exchange: ShortString, message: &EventMessage) -> lapin::Result<Processed> {
        let idle = self.idle().pop();
        let channel = match idle {
            Some(channel) => channel,
            None => {
                let channel = self.connection.create_channel().await?;
                channel.confirm_select(ConfirmSelectOptions::default()).await?;
                channel
            }
        };
        let processed = publish_on(&channel, exchange, message).await?;
        self.processed.fetch_add(1, Ordering::Relaxed);
        // A channel with an error is not used again.
        self.idle().push(channel);
        Ok(processed)
    }

    /// How many messages the server has processed.
    pub(super) fn processed(&self) -> u64 {
        self.processed.load(Ordering::Relaxed)
    }

    /// A message was not confirmed in time. If none was since, the connection is given up: what it holds would otherwise
    /// grow.
    pub(super) fn on_timeout(&self, processed_before: u64) {
        if self.processed() == processed_before && !self.is_blocked() {
            self.failed.notify_one();
        }
    }

    /// Waits until the connection is given up.
    pub(super) async fn failed(&self, limit: Duration) -> BrokerFailure {
        self.failed.notified().await;
        if !self.is_connected() {
            return BrokerFailure::new(BrokerFailureKind::Connection, "the connection was closed");
        }
        let message = format!("no event was confirmed within broker.publish_timeout_ms = {}", millis(limit));
        BrokerFailure::new(BrokerFailureKind::Timeout, message)
    }

    pub(super) fn set_blocked(&self, is_blocked: bool) {
        self.is_blocked.store(is_blocked, Ordering::Relaxed);
    }

    pub(super) fn is_blocked(&self) -> bool {
        self.is_blocked.load(Ordering::Relaxed)
    }

    fn idle(&self) -> std::sync::MutexGuard<'_, Vec<Channel>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Publishes a message on a channel with confirms and no other unconfirmed message.
async fn publish_on(channel: &Channel, exchange: ShortString, message: &EventMessage) -> lapin::Result<Processed> {
    let options = BasicPublishOptions { mandatory: true, ..BasicPublishOptions::default() };
    let (key, properties) = (message.routing_key.clone(), message.properties.clone());
    let confirm = channel.basic_publish(exchange, key, options, message.body.as_bytes(), properties).await?;
    Ok(match confirm.await? {
        Confirmation::Ack(None) => Processed::Confirmed,
        Confirmation::Ack(Some(_)) | Confirmation::Nack(Some(_)) => Processed::Returned,
        Confirmation::Nack(None) | Confirmation::NotRequested => Processed::Nacked,
    })
}

/// Publishes a message on a channel of its own use, which must have confirms.
pub(super) async fn publish_confirmed(
    channel: &Channel,
    exchange: &str,
    message: &EventMessage,
) -> Result<Processed, BrokerFailure> {
    publish_on(channel, exchange.into(), message).await.map_err(|error| BrokerFailure::of(&error))
}
