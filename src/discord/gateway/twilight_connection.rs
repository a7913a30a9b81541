//! A gateway connection over twilight.

use std::{
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use futures_util::StreamExt as _;
use guildhall_actors::ports::{GatewayConnection, GatewayItem, GatewayState, SessionPosition, StoredSession};
use tokio::time::Instant;
use twilight_gateway::{
    CloseFrame, ConfigBuilder, Message, Session, Shard, ShardId, ShardState, error::ReceiveMessageErrorType,
    queue::Queue,
};

use super::{config_template::ConfigTemplate, timed_queue::TimedQueue};
use crate::discord::FatalClose;

/// The connection of one shard.
pub(super) struct TwilightConnection<Q> {
    shard: Shard<TimedQueue<Q>>,
    template: Arc<ConfigTemplate<Q>>,
    /// Generation of the template whose token the shard has.
    token_generation: u64,
}

impl<Q: Queue + Clone + Unpin> TwilightConnection<Q> {
    /// Creates the connection of a shard, which resumes a session if there is one. Connects when it is polled.
    pub(super) fn new(id: ShardId, template: Arc<ConfigTemplate<Q>>, queue: Q, resume: Option<StoredSession>) -> Self {
        // Before the template is read: a token that is set in between is used from the next connection on.
        let token_generation = template.generation();
        let mut config = ConfigBuilder::from(template.config()).queue(TimedQueue::new(queue));
        if let Some(stored) = resume {
            config = config.session(Session::new(stored.confirmed, stored.session.as_ref().to_owned()));
            if let Some(url) = stored.resume_url {
                config = config.resume_url(url);
            }
        }
        Self { shard: Shard::with_config(id, config.build()), template, token_generation }
    }
}

impl<Q: Queue + Clone + Unpin + Send + Sync + 'static> GatewayConnection for TwilightConnection<Q> {
    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<GatewayItem> {
        self.shard.poll_next_unpin(cx).map(|item| match item {
            Some(Ok(Message::Text(text))) => GatewayItem::Text(text),
            Some(Ok(Message::Close(frame))) => GatewayItem::Closed { code: frame.map(|frame| frame.code) },
            Some(Err(error)) => match error.kind() {
                ReceiveMessageErrorType::Reconnect => GatewayItem::Unreachable(Box::new(error)),
                ReceiveMessageErrorType::Deserializing { .. } => GatewayItem::Malformed(Box::new(error)),
                _ => GatewayItem::Undecodable(Box::new(error)),
            },
            None => GatewayItem::Ended,
        })
    }

    fn state(&self) -> GatewayState {
        match self.shard.state() {
            ShardState::Active => GatewayState::Active,
            ShardState::Disconnected { .. } => GatewayState::Disconnected,
            ShardState::FatallyClosed => GatewayState::FatallyClosed,
            ShardState::Identifying => GatewayState::Identifying,
            ShardState::Resuming => GatewayState::Resuming,
        }
    }

    fn session(&self) -> Option<SessionPosition<'_>> {
        self.shard.session().map(|session| SessionPosition { id: session.id(), sequence: session.sequence() })
    }

    fn resume_url(&self) -> Option<&str> {
        self.shard.resume_url()
    }

    fn latency(&self) -> Option<Duration> {
        self.shard.latency().recent().first().copied()
    }

    fn identify_granted_at(&self) -> Option<Instant> {
        self.shard.config().queue().granted_at()
    }

    fn close(&mut self) {
        self.shard.close(CloseFrame::RESUME);
    }

    fn reset(&mut self, last: u64) {
        let queue = self.shard.config().queue().clone();
        let mut config = ConfigBuilder::from(self.template.config()).queue(queue);
        if let Some(session) = self.shard.session() {
            config = config.session(Session::new(last, session.id().to_owned()));
            if let Some(url) = self.shard.resume_url() {
                config = config.resume_url(url.to_owned());
            }
        }
        self.shard = Shard::with_config(self.shard.id(), config.build());
    }

    fn renew_token(&mut self, last: u64) {
        let generation = self.template.generation();
        if generation != self.token_generation && self.state() == GatewayState::Disconnected {
            self.reset(last);
            self.token_generation = generation;
        }
    }

    fn advice(&self, code: u16) -> String {
        let intents = self.shard.config().intents();
        FatalClose { shard: self.shard.id().number(), code, intents }.advice().into_owned()
    }
}
