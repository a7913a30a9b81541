//! Events put together: the handlers, whoever they talk to, and the threads that they run on.

use std::{sync::Arc, time::Duration};

use actix_rt::Arbiter;
use guildhall_actors::crash::CrashStore;
use guildhall_actors::gate::Gate;
use guildhall_actors::ports::{EventStore, StoredSession, WebhookClient};
use guildhall_actors::shard::FlowLimit;
use guildhall_actors::submission::OperationService;
use guildhall_actors::supervision;
use guildhall_actors::supervision::Part;
use guildhall_actors::supervisor::{EventPorts, EventsConfig, EventsHandle, PreparedEvents};
use guildhall_actors::wall_clock::WallClock;
use guildhall_core::{
    event::handler::{EventHandlers, HandlerAction},
    operation::Backoff,
};
use url::Url;

use super::RestComponent;
use crate::{
    api::ComponentHandle,
    discord::RestInteractionResponder,
    settings::Settings,
    webhook::{Secret, Target, TargetError, WebhookConfig, Webhooks},
};

/// How long to wait before the store is asked again.
const ASK_AGAIN: Duration = Duration::from_millis(250);

/// Why a webhook cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum WebhookError {
    /// Its address or its secrets are wrong.
    #[error(transparent)]
    Target(#[from] TargetError),
    /// It has no address.
    #[error(
        "the webhook of handler `{handler}` has no address: {why}; write a URL such as https://brain.example/events"
    )]
    Url {
        /// Which handler.
        handler: Arc<str>,
        /// What is wrong with it.
        why: url::ParseError,
    },
    /// A secret is none.
    #[error("a secret of handler `{handler}` cannot be used: {why}")]
    Secret {
        /// Which handler.
        handler: Arc<str>,
        /// What is wrong with it.
        why: String,
    },
}

/// The event side of this process.
#[derive(Debug)]
pub struct EventsComponent {
    events: EventsHandle,
    /// Neither waits for the other: a busy router would keep guilds from their turn.
    router: Arbiter,
    guilds: Arbiter,
}

impl EventsComponent {
    /// Puts together what handles the events of a bot with so many shards.
    #[expect(clippy::too_many_arguments, reason = "each is a part of its own")]
    pub(super) fn prepare(
        settings: &Settings,
        handlers: EventHandlers,
        store: Arc<dyn EventStore>,
        crashes: Arc<dyn CrashStore>,
        rest: &RestComponent,
        desk: Arc<OperationService>,
        shards: u32,
        clock: &WallClock,
    ) -> Result<PreparedEvents, WebhookError> {
        let brain = webhooks(&handlers, &rest.gate, clock)?;
        let answers = RestInteractionResponder::new(rest.gate.clone(), settings.interactions.within);
        let outside = EventPorts { handlers, store, crashes, brain, answers: Arc::new(answers), desk, watch: None };
        let allowance = FlowLimit { events: settings.gateway.buffer_events, bytes: settings.gateway.buffer_bytes };
        Ok(EventsHandle::prepare(outside, clock.clone(), config(settings, shards), allowance))
    }

    /// Begins to route. Must be called within an actix system.
    #[must_use]
    pub fn start(prepared: PreparedEvents) -> Self {
        let (router, guilds) = (supervision::arbiter(Part::RouterThread), supervision::arbiter(Part::EventThread));
        let events = EventsHandle::start_on(prepared, &router.handle(), &guilds.handle());
        Self { events, router, guilds }
    }

    /// The way to it.
    pub fn events(&self) -> &EventsHandle {
        &self.events
    }

    /// Waits until all events that came are done. `false` if that took longer than it may; they come again.
    pub async fn drain(&self, within: Duration) -> bool {
        self.events.drain(within).await
    }

    /// Ends its threads.
    pub fn stop(self) {
        self.router.stop();
        self.guilds.stop();
    }
}

/// The sessions that are known, asked for until the store answers; what is waited for is what `part` says.
pub(super) async fn sessions(store: &dyn EventStore, part: &ComponentHandle) -> Vec<StoredSession> {
    loop {
        match store.sessions().await {
            Ok(sessions) => return sessions,
            Err(error) => part.not_ready(&format!("it is not known which sessions to resume: {error}")),
        }
        tokio::time::sleep(ASK_AGAIN).await;
    }
}

/// What the webhooks of handlers are reached by.
pub(super) fn webhooks(
    handlers: &EventHandlers,
    gate: &Gate,
    clock: &WallClock,
) -> Result<Arc<dyn WebhookClient>, WebhookError> {
    let config = WebhookConfig { clock: clock.clone(), ..WebhookConfig::default() };
    let webhooks = Webhooks::new(targets(handlers)?, &config, gate.breaker().clone())?;
    Ok(Arc::new(webhooks))
}

fn targets(handlers: &EventHandlers) -> Result<Vec<Target>, WebhookError> {
    let mut targets = Vec::new();
    for handler in handlers {
        let HandlerAction::Webhook(webhook) = &handler.does else { continue };
        let name = || Arc::clone(&handler.name);
        let url = Url::parse(&webhook.url).map_err(|why| WebhookError::Url { handler: name(), why })?;
        let secrets = webhook.secrets.iter().map(|secret| secret.expose().parse::<Secret>()).collect::<Result<_, _>>();
        let secrets = secrets.map_err(|why| WebhookError::Secret { handler: name(), why: why.to_string() })?;
        let (allow_private, answers) = (webhook.allow_private, webhook.answers);
        targets.push(Target { handler: name(), url, secrets, allow_private, answers });
    }
    Ok(targets)
}

fn config(settings: &Settings, shards: u32) -> EventsConfig {
    let (set, defaults) = (&settings.handlers, EventsConfig::default());
    EventsConfig {
        shards,
        slow: set.slow,
        within: set.timeout,
        answer_within: settings.interactions.within,
        defer: settings.interactions.defer,
        ephemeral: settings.interactions.ephemeral,
        attempts: set.attempts,
        backoff: Backoff { base: set.backoff_base, cap: set.backoff_cap, ..defaults.backoff },
        inbox_most: usize::try_from(set.inbox_most).unwrap_or(usize::MAX),
        ..defaults
    }
}
