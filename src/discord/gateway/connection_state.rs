//! A shard's line to the gateway: whether it is greeted, and why it ends.

use std::time::Duration;

use tokio::time::Instant;

/// Why a line ended, and another one is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DisconnectReason {
    /// Discord asked for it (op 7).
    Asked,
    /// Discord does not know the session any more (op 9).
    InvalidSession,
    /// Discord wants the session to be resumed (op 9).
    InvalidSessionResumable,
    /// Nothing came any more, not even answers to heartbeats.
    Silent,
    /// It was cut.
    Cut,
    /// Discord closed it.
    Closed(u16),
    /// No connection could be made.
    Unreachable,
    /// What came over it could not be unpacked.
    Unreadable,
    /// We closed it: there was no room for what came.
    Paused,
    /// We closed it: somebody asked for another one.
    Restarted,
}

impl DisconnectReason {
    /// Its name as metrics have it: one of a fixed set.
    pub(super) const fn name(self) -> &'static str {
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
    pub(super) const fn code(self) -> Option<u16> {
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
    /// Nobody has greeted us yet.
    Dialling,
    /// HELLO came.
    Open,
    /// We know that it ends, and have said why.
    Ending,
}

/// A line to the gateway. It says each end once.
#[derive(Debug)]
pub(super) struct ConnectionState {
    phase: ConnectionPhase,
    /// How often there are heartbeats.
    every: Duration,
    /// Since when it has a session, and how long it has to last to have been of use.
    session: Option<(Instant, Duration)>,
    /// Dispatches that came with it.
    carried: usize,
}

/// A line that carried so much was of use, however short it was.
const MUCH: usize = 256;
/// A line need not last for longer than this to have been of use.
const LONG: Duration = Duration::from_secs(60);

/// The code that stands for a connection that ended without a close.
const ABNORMAL: u16 = 1006;

impl ConnectionState {
    pub(super) const fn new() -> Self {
        Self { phase: ConnectionPhase::Dialling, every: Duration::MAX, session: None, carried: 0 }
    }

    /// Whether it waits to be greeted.
    pub(super) fn is_dialling(&self) -> bool {
        self.phase == ConnectionPhase::Dialling
    }

    /// HELLO came. If the line before ended without a word, that is told now.
    pub(super) fn greeted(&mut self, every: Duration) -> Option<DisconnectReason> {
        let before = std::mem::replace(&mut self.phase, ConnectionPhase::Open);
        (self.every, self.session, self.carried) = (every, None, 0);
        (before == ConnectionPhase::Open).then_some(DisconnectReason::Cut)
    }

    /// It has a session that receives events.
    pub(super) fn has_session(&mut self, now: Instant) {
        self.session.get_or_insert((now, self.every.min(LONG)));
    }

    /// Whether it was greeted, and waits for its session.
    pub(super) fn awaits_session(&self) -> bool {
        self.phase == ConnectionPhase::Open && self.session.is_none()
    }

    /// A dispatch came with it.
    pub(super) fn carries(&mut self) {
        self.carried = self.carried.saturating_add(1);
    }

    /// How often there are heartbeats; nothing before that is known.
    pub(super) fn heartbeats(&self) -> Option<Duration> {
        (self.every != Duration::MAX).then_some(self.every)
    }

    /// It will end, for this reason.
    pub(super) fn ends(&mut self, why: DisconnectReason) -> Option<DisconnectReason> {
        let before = std::mem::replace(&mut self.phase, ConnectionPhase::Ending);
        (before != ConnectionPhase::Ending).then_some(why)
    }

    /// It was closed, or is gone; nothing came over it for so long.
    pub(super) fn closed(&mut self, code: Option<u16>, quiet: Duration) -> Option<DisconnectReason> {
        // Heartbeats are answered at once; timers may be late.
        let why = match code {
            Some(ABNORMAL) if quiet >= self.every.mul_f64(0.9) => DisconnectReason::Silent,
            Some(ABNORMAL) | None => DisconnectReason::Cut,
            Some(code) => DisconnectReason::Closed(code),
        };
        self.gone(why)
    }

    /// It is gone, and another one is made.
    pub(super) fn gone(&mut self, why: DisconnectReason) -> Option<DisconnectReason> {
        let told = self.ends(why);
        self.phase = ConnectionPhase::Dialling;
        self.every = Duration::MAX;
        told
    }

    /// Whether the line that has just gone was of no use: it had no session, or ended as soon as it had one. To be asked once.
    pub(super) fn was_useless(&mut self, now: Instant) -> bool {
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
            "it was never greeted"
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
