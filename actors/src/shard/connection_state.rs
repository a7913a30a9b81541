//! State of a shard's connection to the gateway: whether HELLO arrived, and why the connection ends.

use std::time::Duration;

use tokio::time::Instant;

/// Why a connection ended and is made again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DisconnectReason {
    /// Discord requested it (op 7).
    ReconnectRequested,
    /// Discord no longer knows the session (op 9).
    InvalidSession,
    /// Discord requests a resume of the session (op 9).
    InvalidSessionResumable,
    /// Nothing arrived any more, not even heartbeat acknowledgements.
    Silent,
    /// The connection was cut.
    Cut,
    /// Discord closed the connection.
    Closed(u16),
    /// No connection could be made.
    Unreachable,
    /// Data that arrived could not be decompressed.
    Unreadable,
    /// This process closed it: there was no room for more events.
    Paused,
    /// This process closed it: a restart was requested.
    Restarted,
}

/// What the end of a connection means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DisconnectClass {
    /// Routine in Discord's operation, or expected because the shard was paused or restarted.
    Routine,
    /// The connection was lost.
    Lost,
    /// It could not be made or read. The error is reported separately.
    Failed,
}

impl DisconnectReason {
    /// Metric label: one of a fixed set.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::ReconnectRequested => "asked",
            Self::InvalidSession => "invalid_session",
            Self::InvalidSessionResumable => "invalid_session_resumable",
            Self::Silent => "silent",
            Self::Cut => "cut",
            Self::Closed(code) => match code {
                4000 => "closed_4000",
                4001 => "closed_4001",
                4002 => "closed_4002",
                4003 => "closed_4003",
                4005 => "closed_4005",
                4007 => "closed_4007",
                4008 => "closed_4008",
                4009 => "closed_4009",
                1000 => "closed_1000",
                1001 => "closed_1001",
                _ => "closed",
            },
            Self::Unreachable => "unreachable",
            Self::Unreadable => "unreadable",
            Self::Paused => "paused",
            Self::Restarted => "restarted",
        }
    }

    /// Whether it is a failure, and of what.
    pub(crate) const fn class(self) -> DisconnectClass {
        match self {
            Self::ReconnectRequested | Self::InvalidSessionResumable | Self::Paused | Self::Restarted => {
                DisconnectClass::Routine
            }
            Self::InvalidSession | Self::Silent | Self::Cut | Self::Closed(_) => DisconnectClass::Lost,
            Self::Unreachable | Self::Unreadable => DisconnectClass::Failed,
        }
    }

    /// The close code, if there was one.
    pub(crate) const fn code(self) -> Option<u16> {
        match self {
            Self::Closed(code) => Some(code),
            Self::ReconnectRequested
            | Self::InvalidSession
            | Self::InvalidSessionResumable
            | Self::Silent
            | Self::Cut
            | Self::Unreachable
            | Self::Unreadable
            | Self::Paused
            | Self::Restarted => None,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ConnectionPhase {
    /// HELLO has not arrived yet.
    Dialling,
    /// HELLO arrived.
    Open,
    /// The end is known, and its reason was reported.
    Ending,
}

/// A connection to the gateway. It reports each end once.
#[derive(Debug)]
pub(crate) struct ConnectionState {
    phase: ConnectionPhase,
    /// Heartbeat interval.
    heartbeat_interval: Duration,
    /// When the session started, and how long it must last to count as useful.
    session: Option<(Instant, Duration)>,
    /// Number of dispatches received.
    dispatches: usize,
}

/// A connection with this many dispatches counts as useful, however short it was.
const USEFUL_DISPATCHES: usize = 256;
/// A connection that lasts this long always counts as useful.
const USEFUL_DURATION: Duration = Duration::from_secs(60);

/// Close code of a connection that ended without a close frame.
const ABNORMAL_CLOSE: u16 = 1006;

impl ConnectionState {
    pub(crate) const fn new() -> Self {
        Self { phase: ConnectionPhase::Dialling, heartbeat_interval: Duration::MAX, session: None, dispatches: 0 }
    }

    /// Whether the connection waits for HELLO.
    pub(crate) fn is_dialling(&self) -> bool {
        self.phase == ConnectionPhase::Dialling
    }

    /// Records HELLO. If the previous connection ended without notice, returns its reason now.
    pub(crate) fn on_hello(&mut self, heartbeat_interval: Duration) -> Option<DisconnectReason> {
        let before = std::mem::replace(&mut self.phase, ConnectionPhase::Open);
        (self.heartbeat_interval, self.session, self.dispatches) = (heartbeat_interval, None, 0);
        (before == ConnectionPhase::Open).then_some(DisconnectReason::Cut)
    }

    /// Records that the connection has a session that receives events.
    pub(crate) fn on_session(&mut self, now: Instant) {
        self.session.get_or_insert((now, self.heartbeat_interval.min(USEFUL_DURATION)));
    }

    /// Whether HELLO arrived and the session is awaited.
    pub(crate) fn awaits_session(&self) -> bool {
        self.phase == ConnectionPhase::Open && self.session.is_none()
    }

    /// Records a dispatch.
    pub(crate) fn on_dispatch(&mut self) {
        self.dispatches = self.dispatches.saturating_add(1);
    }

    /// Heartbeat interval; `None` before it is known.
    pub(crate) fn known_heartbeat_interval(&self) -> Option<Duration> {
        (self.heartbeat_interval != Duration::MAX).then_some(self.heartbeat_interval)
    }

    /// Records that the connection will end, and why. Returns the reason if it was not reported before.
    pub(crate) fn on_ending(&mut self, reason: DisconnectReason) -> Option<DisconnectReason> {
        let before = std::mem::replace(&mut self.phase, ConnectionPhase::Ending);
        (before != ConnectionPhase::Ending).then_some(reason)
    }

    /// Records that the connection was closed or lost. `quiet` is the time since the last frame.
    pub(crate) fn on_closed(&mut self, code: Option<u16>, quiet: Duration) -> Option<DisconnectReason> {
        // Heartbeats are acknowledged at once; timers may be late.
        let reason = match code {
            Some(ABNORMAL_CLOSE) if quiet >= self.heartbeat_interval.mul_f64(0.9) => DisconnectReason::Silent,
            Some(ABNORMAL_CLOSE) | None => DisconnectReason::Cut,
            Some(code) => DisconnectReason::Closed(code),
        };
        self.on_gone(reason)
    }

    /// Records that the connection is gone and another one is made.
    pub(crate) fn on_gone(&mut self, reason: DisconnectReason) -> Option<DisconnectReason> {
        let reported = self.on_ending(reason);
        self.phase = ConnectionPhase::Dialling;
        self.heartbeat_interval = Duration::MAX;
        reported
    }

    /// Whether the last connection was useless: it had no session, or ended soon after it had one. Clears what it
    /// returns, so call it once.
    pub(crate) fn take_useless(&mut self, now: Instant) -> bool {
        let dispatches = std::mem::take(&mut self.dispatches);
        self.session.take().is_none_or(|(since, min_duration)| {
            now.duration_since(since) < min_duration && dispatches < USEFUL_DISPATCHES
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEARTBEAT_INTERVAL: Duration = Duration::from_secs(10);
    const QUIET: Duration = Duration::from_secs(20);

    fn open() -> ConnectionState {
        let mut connection = ConnectionState::new();
        assert_eq!(connection.on_hello(HEARTBEAT_INTERVAL), None);
        connection
    }

    #[test]
    fn announced_end_is_reported_once() {
        let mut connection = open();
        assert_eq!(
            connection.on_ending(DisconnectReason::ReconnectRequested),
            Some(DisconnectReason::ReconnectRequested)
        );
        assert_eq!(connection.on_closed(Some(4000), QUIET), None);
        assert!(connection.is_dialling());
        assert_eq!(connection.on_hello(HEARTBEAT_INTERVAL), None);
        assert_eq!(connection.on_closed(Some(4009), QUIET), Some(DisconnectReason::Closed(4009)));
    }

    #[test]
    fn unannounced_end_is_reported_at_the_next_hello() {
        let mut connection = open();
        assert_eq!(connection.on_hello(HEARTBEAT_INTERVAL), Some(DisconnectReason::Cut));
    }

    #[test]
    fn connection_quiet_for_a_heartbeat_is_silent_else_cut() {
        assert_eq!(open().on_closed(Some(ABNORMAL_CLOSE), HEARTBEAT_INTERVAL), Some(DisconnectReason::Silent));
        assert_eq!(open().on_closed(Some(ABNORMAL_CLOSE), HEARTBEAT_INTERVAL / 2), Some(DisconnectReason::Cut));
        assert_eq!(open().on_closed(None, QUIET), Some(DisconnectReason::Cut));
        assert_eq!(
            ConnectionState::new().on_closed(Some(ABNORMAL_CLOSE), QUIET),
            Some(DisconnectReason::Cut),
            "HELLO never arrived"
        );
    }

    #[test]
    fn useful_connection_has_a_long_session_or_many_dispatches() {
        let now = Instant::now();
        for (duration, dispatches, useless) in [
            (HEARTBEAT_INTERVAL, 0, false),
            (HEARTBEAT_INTERVAL / 2, 0, true),
            (HEARTBEAT_INTERVAL / 2, USEFUL_DISPATCHES, false),
        ] {
            let mut connection = open();
            connection.on_session(now);
            (0..dispatches).for_each(|_| connection.on_dispatch());
            connection.on_closed(Some(4000), QUIET);
            assert_eq!(connection.take_useless(now + duration), useless, "{duration:?}, {dispatches}");
            connection.on_gone(DisconnectReason::Unreachable);
            assert!(connection.take_useless(now + QUIET));
        }
        let mut connection = open();
        assert!(connection.awaits_session() && connection.known_heartbeat_interval() == Some(HEARTBEAT_INTERVAL));
        connection.on_closed(Some(4000), QUIET);
        assert!(connection.take_useless(now + QUIET) && !connection.awaits_session());
    }
}
