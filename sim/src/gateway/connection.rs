//! State machine of one connection: reacts to its frames, and checks its heartbeats.

use std::time::Duration;

use super::close::Close;
use super::inbound::{self, Identify, Inbound, RequestMembers, Resume};
use super::session::SessionKey;
use crate::config::GatewayConfig;
use crate::time::At;

/// The window of `sends_per_minute`.
const MINUTE: Duration = Duration::from_secs(60);

/// Pings that a connection may send per minute. Each gets a pong, and a client that does not read them would otherwise
/// fill the memory with them.
const PINGS_PER_MINUTE: u32 = 120;

/// State of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    /// It has no session.
    AwaitingIdentify,
    Live(SessionKey),
    /// A close frame is being sent; frames of the client are ignored.
    Closing,
}

/// Result of a frame or of the passage of time.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Action {
    AcknowledgeHeartbeat,
    Identify(Identify),
    Resume(Resume),
    RequestMembers(SessionKey, RequestMembers),
    Close(Close),
}

/// State machine of one connection.
#[derive(Debug)]
pub(crate) struct Connection {
    state: State,
    last_heartbeat: At,
    /// Maximum time without a heartbeat.
    heartbeat_timeout: Duration,
    sends: Minute,
    /// WebSocket pings, which Discord does not count as sends.
    pings: Minute,
}

/// Counts in windows of a minute; a window starts with the first event after the end of the one before.
#[derive(Debug)]
struct Minute {
    started: At,
    count: u32,
    max: u32,
}

impl Minute {
    fn new(max: u32, now: At) -> Self {
        Self { started: now, count: 0, max }
    }

    /// Counts one more; returns whether it is allowed.
    fn try_take(&mut self, now: At) -> bool {
        if now.since(self.started) >= MINUTE || self.count == 0 {
            self.started = now;
            self.count = 0;
        }
        self.count = self.count.saturating_add(1);
        self.count <= self.max
    }
}

impl Connection {
    pub(crate) fn new(config: &GatewayConfig, now: At) -> Self {
        Self {
            state: State::AwaitingIdentify,
            last_heartbeat: now,
            heartbeat_timeout: config.heartbeat_interval.saturating_mul(config.missed_heartbeats.max(1)),
            sends: Minute::new(config.sends_per_minute, now),
            pings: Minute::new(PINGS_PER_MINUTE, now),
        }
    }

    /// The session of this connection.
    pub(crate) fn session(&self) -> Option<SessionKey> {
        match self.state {
            State::Live(session) => Some(session),
            State::AwaitingIdentify | State::Closing => None,
        }
    }

    /// HELLO was sent: the client's time to heartbeat starts.
    pub(crate) fn on_hello_sent(&mut self, now: At) {
        self.last_heartbeat = now;
    }

    /// IDENTIFY or RESUME was accepted.
    pub(crate) fn attach_session(&mut self, session: SessionKey) {
        self.state = match self.state {
            State::AwaitingIdentify | State::Live(_) => State::Live(session),
            State::Closing => State::Closing,
        };
    }

    /// Removes the session from this connection; the client may identify or resume on it again.
    pub(crate) fn detach_session(&mut self) {
        self.state = match self.state {
            State::AwaitingIdentify | State::Live(_) => State::AwaitingIdentify,
            State::Closing => State::Closing,
        };
    }

    pub(crate) fn close(&mut self) {
        self.state = State::Closing;
    }

    /// When the connection times out without a further heartbeat.
    pub(crate) fn deadline(&self) -> At {
        self.last_heartbeat.after(self.heartbeat_timeout)
    }

    /// Checks whether the connection has timed out.
    pub(crate) fn check_timeout(&self, now: At) -> Option<Action> {
        let is_open = self.state != State::Closing;
        (is_open && now >= self.deadline()).then_some(Action::Close(Close::TIMED_OUT))
    }

    /// Handles a frame. Whether it is a text or a binary frame makes no difference: Discord reads JSON in both.
    pub(crate) fn on_frame(&mut self, frame: &[u8], now: At) -> Option<Action> {
        if self.state == State::Closing {
            return None;
        }
        if !self.sends.try_take(now) {
            return Some(Action::Close(Close::RATE_LIMITED));
        }
        let inbound = match inbound::read(frame) {
            Ok(inbound) => inbound,
            Err(close) => return Some(Action::Close(close)),
        };
        match (self.state, inbound) {
            // Clients may heartbeat before they identify, and some do.
            (_, Inbound::Heartbeat) => {
                self.last_heartbeat = now;
                Some(Action::AcknowledgeHeartbeat)
            }
            (State::AwaitingIdentify, Inbound::Identify(identify)) => Some(Action::Identify(identify)),
            (State::AwaitingIdentify, Inbound::Resume(resume)) => Some(Action::Resume(resume)),
            (State::AwaitingIdentify, Inbound::RequestMembers(_) | Inbound::Ignored) => {
                Some(Action::Close(Close::NOT_AUTHENTICATED))
            }
            (State::Live(_), Inbound::Identify(_) | Inbound::Resume(_)) => {
                Some(Action::Close(Close::ALREADY_AUTHENTICATED))
            }
            (State::Live(session), Inbound::RequestMembers(request)) => Some(Action::RequestMembers(session, request)),
            (State::Live(_), Inbound::Ignored) | (State::Closing, _) => None,
        }
    }

    /// Handles a WebSocket ping; the pong is sent elsewhere.
    pub(crate) fn on_ping(&mut self, now: At) -> Option<Action> {
        let is_open = self.state != State::Closing;
        (is_open && !self.pings.try_take(now)).then_some(Action::Close(Close::RATE_LIMITED))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: At = At::from_micros(1_700_000_000_000_000);
    const IDENTIFY: &[u8] = br#"{"op":2,"d":{"token":"t","intents":1}}"#;
    const HEARTBEAT: &[u8] = br#"{"op":1,"d":null}"#;

    fn connection() -> Connection {
        Connection::new(&GatewayConfig::default(), START)
    }

    fn live() -> Connection {
        let mut connection = connection();
        connection.attach_session(SessionKey(7));
        connection
    }

    #[test]
    fn heartbeat_is_acknowledged_before_and_after_identify() {
        assert_eq!(connection().on_frame(HEARTBEAT, START), Some(Action::AcknowledgeHeartbeat));
        assert_eq!(live().on_frame(HEARTBEAT, START), Some(Action::AcknowledgeHeartbeat));
    }

    #[test]
    fn second_identify_closes_with_already_authenticated() {
        assert!(matches!(connection().on_frame(IDENTIFY, START), Some(Action::Identify(_))));
        assert_eq!(live().on_frame(IDENTIFY, START), Some(Action::Close(Close::ALREADY_AUTHENTICATED)));
    }

    #[test]
    fn other_requests_need_identify_first() {
        let presence = br#"{"op":3,"d":{}}"#;
        assert_eq!(connection().on_frame(presence, START), Some(Action::Close(Close::NOT_AUTHENTICATED)));
        assert_eq!(live().on_frame(presence, START), None);
    }

    #[test]
    fn connection_without_session_may_identify_again() {
        let mut connection = live();
        connection.detach_session();
        assert!(matches!(connection.on_frame(IDENTIFY, START), Some(Action::Identify(_))));
    }

    #[test]
    fn frames_after_the_close_are_ignored() {
        let mut connection = live();
        connection.close();
        connection.attach_session(SessionKey(8));
        assert_eq!(connection.on_frame(IDENTIFY, START), None);
        assert_eq!(connection.check_timeout(START.after(Duration::from_secs(3_600))), None);
    }

    #[test]
    fn sends_beyond_the_limit_per_minute_close() {
        let mut connection = connection();
        for _ in 0..120 {
            assert_eq!(connection.on_frame(HEARTBEAT, START), Some(Action::AcknowledgeHeartbeat));
        }
        let next = START.after(MINUTE);
        assert_eq!(connection.on_frame(HEARTBEAT, next), Some(Action::AcknowledgeHeartbeat));
        for _ in 1..120 {
            connection.on_frame(HEARTBEAT, next);
        }
        assert_eq!(connection.on_frame(HEARTBEAT, next), Some(Action::Close(Close::RATE_LIMITED)));
    }

    #[test]
    fn pings_have_a_limit_of_their_own() {
        let mut connection = connection();
        for _ in 0..PINGS_PER_MINUTE {
            assert_eq!(connection.on_ping(START), None);
        }
        assert_eq!(connection.on_frame(HEARTBEAT, START), Some(Action::AcknowledgeHeartbeat));
        assert_eq!(connection.on_ping(START), Some(Action::Close(Close::RATE_LIMITED)));
        assert_eq!(connection.on_ping(START.after(MINUTE)), None);
    }

    #[test]
    fn missed_heartbeats_end_the_connection() {
        let mut connection = connection();
        let interval = GatewayConfig::default().heartbeat_interval;
        let first = START.after(interval);
        assert_eq!(connection.check_timeout(first), None);
        connection.on_frame(HEARTBEAT, first);
        assert_eq!(connection.check_timeout(first.after(interval)), None);
        assert_eq!(connection.check_timeout(first.after(interval * 2)), Some(Action::Close(Close::TIMED_OUT)));
    }
}
