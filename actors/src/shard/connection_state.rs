//! State of a shard's connection to the gateway: whether HELLO arrived, and why the connection ends.

use std::time::Duration;

use tokio::time::Instant;

/// Why a connection ended and is made again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DisconnectReason {
    /// Discord requested it (op 7).
    Asked,
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

impl DisconnectReason {
    /// Metric label: one of a fixed set.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Asked => "asked",
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

    /// The close code, if there was one.
    pub(crate) const fn code(self) -> Option<u16> {
        match self {
            Self::Closed(code) => Some(code),
            Self::Asked
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
    every: Duration,
    /// When the session started, and how long it must last to count as useful.
    session: Option<(Instant, Duration)>,
    /// Number of dispatches received.
    carried: usize,
}

/// A connection with this many dispatches counts as useful, however short it was.
const MUCH: usize = 256;
/// A connection that lasts this long always counts as useful.
const LONG: Duration = Duration::from_secs(60);

/// Close code of a connection that ended without a close frame.
const ABNORMAL: u16 = 1006;

impl ConnectionState {
    pub(crate) const fn new() -> Self {
        Self { phase: ConnectionPhase::Dialling, every: Duration::MAX, session: None, carried: 0 }
    }

    /// Whether the connection waits for HELLO.
    pub(crate) fn is_dialling(&self) -> bool {
        self.phase == ConnectionPhase::Dialling
    }

    /// Records HELLO. If the previous connection ended without notice, returns its reason now.
    pub(crate) fn greeted(&mut self, every: Duration) -> Option<DisconnectReason> {
        let before = std::mem::replace(&mut self.phase, ConnectionPhase::Open);
        (self.every, self.session, self.carried) = (every, None, 0);
        (before == ConnectionPhase::Open).then_some(DisconnectReason::Cut)
    }

    /// Records that the connection has a session that receives events.
    pub(crate) fn has_session(&mut self, now: Instant) {
        self.session.get_or_insert((now, self.every.min(LONG)));
    }

    /// Whether HELLO arrived and the session is awaited.
    pub(crate) fn awaits_session(&self) -> bool {
        self.phase == ConnectionPhase::Open && self.session.is_none()
    }

    /// Records a dispatch.
    pub(crate) fn carries(&mut self) {
        self.carried = self.carried.saturating_add(1);
    }

    /// Heartbeat interval; `None` before it is known.
    pub(crate) fn heartbeats(&self) -> Option<Duration> {
        (self.every != Duration::MAX).then_some(self.every)
    }

    /// Records that the connection will end, and why. Returns the reason if it was not reported before.
    pub(crate) fn ends(&mut self, why: DisconnectReason) -> Option<DisconnectReason> {
        let before = std::mem::replace(&mut self.phase, ConnectionPhase::Ending);
        (before != ConnectionPhase::Ending).then_some(why)
    }

    /// Records that the connection was closed or lost. `quiet` is the time since the last frame.
    pub(crate) fn closed(&mut self, code: Option<u16>, quiet: Duration) -> Option<DisconnectReason> {
        // Heartbeats are acknowledged at once; timers may be late.
        let why = match code {
            Some(ABNORMAL) if quiet >= self.every.mul_f64(0.9) => DisconnectReason::Silent,
            Some(ABNORMAL) | None => DisconnectReason::Cut,
            Some(code) => DisconnectReason::Closed(code),
        };
        self.gone(why)
    }

    /// Records that the connection is gone and another one is made.
    pub(crate) fn gone(&mut self, why: DisconnectReason) -> Option<DisconnectReason> {
        let told = self.ends(why);
        self.phase = ConnectionPhase::Dialling;
        self.every = Duration::MAX;
        told
    }

    /// Whether the last connection was useless: it had no session, or ended soon after it had one. Clears what it
    /// returns, so call it once.
    pub(crate) fn was_useless(&mut self, now: Instant) -> bool {
        let carried = std::mem::take(&mut self.carried);
        self.session.take().is_none_or(|(since, lasts)| now.duration_since(since) < lasts && carried < MUCH)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EVERY: Duration = Duration::from_secs(10);
    const QUIET: Duration = Duration::from_secs(20);

    fn open() -> ConnectionState {
        let mut line = ConnectionState::new();
        assert_eq!(line.greeted(EVERY), None);
        line
    }

    #[test]
    fn an_end_that_was_announced_is_told_once() {
        let mut line = open();
        assert_eq!(line.ends(DisconnectReason::Asked), Some(DisconnectReason::Asked));
        assert_eq!(line.closed(Some(4000), QUIET), None);
        assert!(line.is_dialling());
        assert_eq!(line.greeted(EVERY), None);
        assert_eq!(line.closed(Some(4009), QUIET), Some(DisconnectReason::Closed(4009)));
    }

    #[test]
    fn an_end_without_a_word_is_told_with_the_next_greeting() {
        let mut line = open();
        assert_eq!(line.greeted(EVERY), Some(DisconnectReason::Cut));
    }

    #[test]
    fn a_line_that_was_quiet_for_a_heartbeat_was_silent_and_any_other_was_cut() {
        assert_eq!(open().closed(Some(ABNORMAL), EVERY), Some(DisconnectReason::Silent));
        assert_eq!(open().closed(Some(ABNORMAL), EVERY / 2), Some(DisconnectReason::Cut));
        assert_eq!(open().closed(None, QUIET), Some(DisconnectReason::Cut));
        assert_eq!(
            ConnectionState::new().closed(Some(ABNORMAL), QUIET),
            Some(DisconnectReason::Cut),
            "HELLO never arrived"
        );
    }

    #[test]
    fn only_a_line_with_a_session_that_lasts_or_carries_much_is_of_use_and_that_is_forgotten_with_it() {
        let now = Instant::now();
        for (lasts, carries, useless) in [(EVERY, 0, false), (EVERY / 2, 0, true), (EVERY / 2, MUCH, false)] {
            let mut line = open();
            line.has_session(now);
            (0..carries).for_each(|_| line.carries());
            line.closed(Some(4000), QUIET);
            assert_eq!(line.was_useless(now + lasts), useless, "{lasts:?}, {carries}");
            line.gone(DisconnectReason::Unreachable);
            assert!(line.was_useless(now + QUIET));
        }
        let mut line = open();
        assert!(line.awaits_session() && line.heartbeats() == Some(EVERY));
        line.closed(Some(4000), QUIET);
        assert!(line.was_useless(now + QUIET) && !line.awaits_session());
    }
}
