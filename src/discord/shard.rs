//! One shard: a connection that is polled until it is told to stop, and what it has to tell.

use std::{sync::Arc, time::Duration};

use futures_util::StreamExt as _;
use tokio::sync::watch;
use twilight_gateway::{CloseFrame, EventType, Message, Shard, ShardState};
use twilight_model::gateway::event::GatewayEventDeserializer;

use super::{FatalClose, gateway::ShardEnd};
use crate::events::{
    DispatchReceived, ShardClosed, ShardConnected, ShardDisconnected, ShardRefused, ShardStarted, ShardTroubled, emit,
};

/// What a shard tells whoever watches it.
#[derive(Clone, Copy, Debug)]
pub enum ShardEvent<'a> {
    /// It has a session that receives events.
    Connected {
        /// Its number.
        shard: u32,
        /// Whether the session is a new one.
        session: Session,
    },
    /// It has lost that session's connection. It connects again by itself, unless it was closed on purpose.
    Disconnected {
        /// Its number.
        shard: u32,
    },
    /// A dispatch arrived.
    Dispatch {
        /// Its number.
        shard: u32,
        /// The dispatch's type as Discord spells it; `other` for one nobody knows.
        kind: &'static str,
        /// The dispatch's number within the session.
        sequence: u64,
        /// The whole frame.
        frame: &'a str,
    },
}

/// How a shard came to have a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Session {
    /// With IDENTIFY and READY.
    New,
    /// With RESUME and RESUMED.
    Resumed,
}

pub(super) type Observer = Arc<dyn Fn(ShardEvent<'_>) + Send + Sync>;

/// How long to wait before connecting again when connections end before they are of any use. Twilight waits only
/// when it cannot connect at all, and would otherwise knock as fast as the network allows.
#[derive(Default)]
struct Patience {
    useless: u32,
}

impl Patience {
    const LONGEST: Duration = Duration::from_secs(30);

    fn connected(&mut self) {
        self.useless = 0;
    }

    fn wait_after_useless(&mut self) -> Duration {
        let wait = Duration::from_secs(1).saturating_mul(2u32.saturating_pow(self.useless));
        self.useless = self.useless.saturating_add(1);
        wait.min(Self::LONGEST)
    }
}

pub(super) struct Runner {
    shard: Shard,
    observer: Observer,
    connected: bool,
    patience: Patience,
}

impl Runner {
    pub(super) fn new(shard: Shard, observer: Observer) -> Self {
        Self { shard, observer, connected: false, patience: Patience::default() }
    }

    fn number(&self) -> u32 {
        self.shard.id().number()
    }

    /// Polls the shard, which heartbeats, identifies and reconnects as it is polled, until told to stop or refused.
    pub(super) async fn run(mut self, mut stop: watch::Receiver<bool>) -> ShardEnd {
        emit(ShardStarted { shard: self.number() });
        loop {
            let item = tokio::select! {
                biased;
                () = told(&mut stop) => return self.close().await,
                item = self.shard.next() => item,
            };
            let useless = !self.connected;
            match item {
                Some(Ok(Message::Text(frame))) => {
                    self.dispatch(&frame);
                    self.check_lost(None);
                }
                Some(Ok(Message::Close(frame))) => {
                    let code = frame.map(|frame| frame.code);
                    if self.shard.state() == ShardState::FatallyClosed {
                        return self.refused(code.unwrap_or_default());
                    }
                    self.check_lost(code);
                    if useless {
                        emit(ShardDisconnected { shard: self.number(), code });
                        let wait = self.patience.wait_after_useless();
                        tokio::select! {
                            biased;
                            () = told(&mut stop) => return self.close().await,
                            () = tokio::time::sleep(wait) => {}
                        }
                    }
                }
                Some(Err(error)) => {
                    emit(ShardTroubled { shard: self.number(), error: &error });
                    self.check_lost(None);
                }
                // Only after a fatal close, which was answered above; without a code there is no better advice.
                None => return self.refused(0),
            }
        }
    }

    fn dispatch(&mut self, frame: &str) {
        if let Some(event) = GatewayEventDeserializer::from_json(frame)
            && let (_, Some(sequence), Some(name)) = event.into_parts()
        {
            let shard = self.number();
            // A fixed set, since it labels a metric.
            let kind = EventType::try_from(name.as_ref()).ok().and_then(EventType::name).unwrap_or("other");
            match kind {
                "READY" => self.connected(Session::New),
                "RESUMED" => self.connected(Session::Resumed),
                _ => {}
            }
            emit(DispatchReceived { shard, kind, sequence });
            (self.observer)(ShardEvent::Dispatch { shard, kind, sequence, frame });
        }
    }

    fn connected(&mut self, session: Session) {
        let shard = self.number();
        self.connected = true;
        self.patience.connected();
        let how = match session {
            Session::New => "ready",
            Session::Resumed => "resumed",
        };
        emit(ShardConnected { shard, how });
        (self.observer)(ShardEvent::Connected { shard, session });
    }

    /// A session also ends without a close from the other side: when it is told to reconnect, or its token is stale.
    fn check_lost(&mut self, code: Option<u16>) {
        if self.connected && self.shard.state() != ShardState::Active {
            self.connected = false;
            emit(ShardDisconnected { shard: self.number(), code });
            (self.observer)(ShardEvent::Disconnected { shard: self.number() });
        }
    }

    fn refused(&mut self, code: u16) -> ShardEnd {
        let fatal = FatalClose { shard: self.number(), code };
        emit(ShardRefused { shard: fatal.shard, code, advice: fatal.advice() });
        if self.connected {
            self.connected = false;
            (self.observer)(ShardEvent::Disconnected { shard: fatal.shard });
        }
        ShardEnd::Refused(fatal)
    }

    /// Closes with 4000, so that the session lives on, and waits for the answer. What still arrives until then is
    /// handed on.
    async fn close(mut self) -> ShardEnd {
        let shard = self.number();
        // Not connected: there is nobody to say goodbye to.
        if !matches!(self.shard.state(), ShardState::Disconnected { .. }) {
            self.shard.close(CloseFrame::RESUME);
            while let Some(Ok(Message::Text(frame))) = self.shard.next().await {
                // Any other state: the other side vanished instead of answering, and twilight has connected anew.
                if !matches!(self.shard.state(), ShardState::Disconnected { .. }) {
                    break;
                }
                self.dispatch(&frame);
            }
        }
        if self.connected {
            (self.observer)(ShardEvent::Disconnected { shard });
        }
        emit(ShardClosed { shard, resumable: self.shard.session().is_some() });
        ShardEnd::Closed
    }
}

/// Waits until the shards are told to stop. Whoever could tell being gone means the same.
async fn told(stop: &mut watch::Receiver<bool>) {
    drop(stop.wait_for(|stop| *stop).await);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patience_grows_to_a_bound_and_starts_anew_after_success() {
        let mut patience = Patience::default();
        let waits: Vec<_> = (0..7).map(|_| patience.wait_after_useless().as_secs()).collect();
        assert_eq!(waits, [1, 2, 4, 8, 16, 30, 30]);
        patience.connected();
        assert_eq!(patience.wait_after_useless().as_secs(), 1);
    }
}
