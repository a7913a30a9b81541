//! Assembles event handling: the handlers, the services that they call, and the threads that they run on.

use std::{sync::Arc, time::Duration};

use actix_rt::Arbiter;
use guildhall_actors::crash::CrashStore;
use guildhall_actors::gate::Gate;
use guildhall_actors::ports::{EventBroker, EventStore, StoredSession, WebhookClient};
use guildhall_actors::shard::FlowLimit;
use guildhall_actors::submission::OperationService;
use guildhall_actors::supervision;
use guildhall_actors::supervision::Part;
use guildhall_actors::supervisor::{EventPorts, EventsConfig, EventsHandle, FallbackConfig, PreparedEvents};
use guildhall_actors::wall_clock::WallClock;
use guildhall_core::{
    backoff::Backoff,
    event::handler::{EventHandler, EventHandlers, HandlerAction},
};
use url::Url;

use super::RestComponent;
use crate::{
    api::ComponentHandle,
    broker::Broker,
    discord::RestInteractionResponder,
    settings::{FallbackSettings, Settings},
    webhook::{Secret, WebhookConfig, WebhookTarget, WebhookTargetError, Webhooks},
};

/// Wait before the store is queried again.
const RETRY_DELAY: Duration = Duration::from_millis(250);

/// Why a webhook cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum WebhookError {
    /// Its URL or its secrets are invalid.
    #[error(transparent)]
    Target(#[from] WebhookTargetError),
    /// A handler needs a broker.
    #[error(
        "handler `{handler}` publishes to the broker, but there is none; set GUILDHALL__BROKER__URL to the URL of a \
         RabbitMQ (docs/broker.md)"
    )]
    NoBroker {
        /// The handler.
        handler: Arc<str>,
    },
    /// Its URL cannot be parsed.
    #[error(
        "the webhook URL of handler `{handler}` is invalid: {error}; use a URL such as https://brain.example/events"
    )]
    Url {
        /// The handler.
        handler: Arc<str>,
        /// What is wrong with the URL.
        error: url::ParseError,
    },
    /// A secret is invalid.
    #[error("a webhook secret of handler `{handler}` is invalid: {reason}")]
    Secret {
        /// The handler.
        handler: Arc<str>,
        /// What is wrong with the secret.
        reason: String,
    },
}

/// Event handling of this process.
#[derive(Debug)]
pub struct EventsComponent {
    events: EventsHandle,
    /// Separate threads: a busy router would delay the guilds.
    router: Arbiter,
    guilds: Arbiter,
}

impl EventsComponent {
    /// Prepares event handling of a bot with `shards` shards.
    #[expect(clippy::too_many_arguments, reason = "each is a separate dependency")]
    pub(crate) fn prepare(
        settings: &Settings,
        handlers: EventHandlers,
        store: Arc<dyn EventStore>,
        crashes: Arc<dyn CrashStore>,
        rest: &RestComponent,
        broker: Option<Arc<Broker>>,
        operations: Arc<OperationService>,
        shards: u32,
        clock: &WallClock,
    ) -> Result<PreparedEvents, WebhookError> {
        check_broker(&handlers, settings)?;
        let brain = webhooks(&handlers, &rest.gate, clock)?;
        let broker = broker.map(|broker| broker as Arc<dyn EventBroker>);
        let responder = RestInteractionResponder::new(rest.gate.clone(), settings.interactions.timeout);
        let ports = EventPorts {
            handlers,
            store,
            crashes,
            brain,
            broker,
            responder: Arc::new(responder),
            operations,
            observer: None,
        };
        let flow_limit = FlowLimit { events: settings.gateway.buffer_events, bytes: settings.gateway.buffer_bytes };
        Ok(EventsHandle::prepare(ports, clock.clone(), config(settings, shards), flow_limit))
    }

    /// Starts to route events. Must be called within an actix system.
    #[must_use]
    pub fn start(prepared: PreparedEvents) -> Self {
        let (router, guilds) = (supervision::arbiter(Part::RouterThread), supervision::arbiter(Part::EventThread));
        let events = EventsHandle::start_on(prepared, &router.handle(), &guilds.handle());
        Self { events, router, guilds }
    }

    /// The handle of event handling.
    pub fn events(&self) -> &EventsHandle {
        &self.events
    }

    /// Waits until all received events are handled. `false` if that takes longer than `timeout`; those events are
    /// delivered again.
    pub async fn drain(&self, timeout: Duration) -> bool {
        self.events.drain(timeout).await
    }

    /// Stops its threads.
    pub fn stop(self) {
        self.router.stop();
        self.guilds.stop();
    }
}

/// Loads the stored sessions; retries until the store responds. `part` reports what it is waiting for.
pub(crate) async fn load_sessions(store: &dyn EventStore, part: &ComponentHandle) -> Vec<StoredSession> {
    loop {
        match store.sessions().await {
            Ok(sessions) => return sessions,
            Err(error) => part.not_ready(&format!("cannot load the sessions to resume yet: {error}")),
        }
        tokio::time::sleep(RETRY_DELAY).await;
    }
}

/// Checks that there is a broker if a handler publishes to it.
pub(crate) fn check_broker(handlers: &EventHandlers, settings: &Settings) -> Result<(), WebhookError> {
    let publishes = |handler: &&EventHandler| matches!(handler.action, HandlerAction::Broker);
    match handlers.iter().find(publishes) {
        Some(handler) if settings.broker.url.is_none() => {
            Err(WebhookError::NoBroker { handler: Arc::clone(&handler.name) })
        }
        Some(_) | None => Ok(()),
    }
}

/// The client of the handlers' webhooks.
pub(crate) fn webhooks(
    handlers: &EventHandlers,
    gate: &Gate,
    clock: &WallClock,
) -> Result<Arc<dyn WebhookClient>, WebhookError> {
    let config = WebhookConfig { clock: clock.clone(), ..WebhookConfig::default() };
    let webhooks = Webhooks::new(targets(handlers)?, &config, gate.breaker().clone())?;
    Ok(Arc::new(webhooks))
}

/// The webhooks of the handlers.
pub(crate) fn targets(handlers: &EventHandlers) -> Result<Vec<WebhookTarget>, WebhookError> {
    let mut targets = Vec::new();
    for handler in handlers {
        let HandlerAction::Webhook(webhook) = &handler.action else { continue };
        let name = || Arc::clone(&handler.name);
        let url = Url::parse(&webhook.url).map_err(|error| WebhookError::Url { handler: name(), error })?;
        let secrets = webhook.secrets.iter().map(|secret| secret.expose().parse::<Secret>()).collect::<Result<_, _>>();
        let secrets = secrets.map_err(|error| WebhookError::Secret { handler: name(), reason: error.to_string() })?;
        let (allow_private, answers) = (webhook.allow_private, webhook.answers);
        targets.push(WebhookTarget { handler: name(), url, secrets, allow_private, response_policy: answers });
    }
    Ok(targets)
}

fn config(settings: &Settings, shards: u32) -> EventsConfig {
    let (handler_settings, defaults) = (&settings.handlers, EventsConfig::default());
    EventsConfig {
        shards,
        slow_after: handler_settings.slow,
        webhook_timeout: handler_settings.timeout,
        response_timeout: settings.interactions.timeout,
        defer: settings.interactions.defer,
        ephemeral: settings.interactions.ephemeral,
        fallback: fallback_config(&settings.interactions.fallback),
        max_attempts: handler_settings.attempts,
        backoff: Backoff { base: handler_settings.backoff_base, cap: handler_settings.backoff_cap, ..defaults.backoff },
        max_inbox: usize::try_from(handler_settings.max_inbox_events).unwrap_or(usize::MAX),
        ..defaults
    }
}

fn fallback_config(settings: &FallbackSettings) -> FallbackConfig {
    let FallbackSettings { cooldown, failed, unavailable, unavailable_after, unanswered, unanswered_after } =
        settings.clone();
    FallbackConfig { cooldown, failed, unavailable, unavailable_after, unanswered, unanswered_after }
}
