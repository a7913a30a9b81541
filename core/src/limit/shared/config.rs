//! Settings of the shared limit.

use std::time::Duration;

use serde::Serialize;

/// What a process does while it cannot reach Redis.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum LimitFallback {
    /// Uses its share of the limit.
    #[default]
    Share,
    /// Sends nothing.
    Closed,
    /// Uses the whole limit, as if no other process used it. If there are other processes, they exceed the limit
    /// together.
    Open,
}

impl LimitFallback {
    /// Name in settings and logs.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Share => "share",
            Self::Closed => "closed",
            Self::Open => "open",
        }
    }
}

/// How processes share a limit. All members of one limit should use the same values.
#[derive(Clone, Debug)]
pub struct SharedLimitConfig {
    /// Calls per window, of all processes together.
    pub limit: u32,
    /// Length of the window, including the margin.
    pub window: Duration,
    /// The margin that was added to the window, because clocks do not run at exactly the same speed.
    pub margin: Duration,
    /// What a process does without Redis.
    pub on_loss: LimitFallback,
    /// Timeout of a call to Redis; after that the call counts as lost.
    pub timeout: Duration,
    /// Maximum time between two calls of a member.
    pub heartbeat: Duration,
    /// A member that makes no call for longer than this is detached: its share is removed from the limit.
    pub silence: Duration,
    /// Time after the detachment of a member when its share is returned to the limit.
    pub forget: Duration,
    /// Time after the last confirmed contact with Redis when a process stops using its share.
    pub share_for: Duration,
    /// How long an empty Redis waits for members of the previous epoch before new members may use the whole limit.
    pub newcomer: Duration,
    /// How far in advance slots may be booked.
    pub horizon: Duration,
    /// A slot that is not used within this time is returned.
    pub grace: Duration,
    /// How long a call of a dead or disconnected process may still be in transit to Discord.
    pub guard: Duration,
    /// How long a call without a response may still be in transit.
    pub request_timeout: Duration,
    /// Maximum number of slots that a process may have booked.
    pub ahead: u32,
    /// Slots of all processes that may be booked for the same moment before they are spaced.
    pub burst: u32,
    /// Maximum delay of a report, even if no slot is requested.
    pub flush: Duration,
    /// How long a process without Redis waits before it probes Redis again.
    pub retry: Duration,
}

impl Default for SharedLimitConfig {
    fn default() -> Self {
        Self {
            limit: 50,
            window: Duration::from_millis(1_010),
            margin: Duration::from_millis(10),
            on_loss: LimitFallback::Share,
            timeout: Duration::from_millis(250),
            heartbeat: Duration::from_secs(1),
            silence: Duration::from_secs(3),
            forget: Duration::from_secs(600),
            share_for: Duration::from_secs(540),
            newcomer: Duration::from_secs(3),
            horizon: Duration::from_millis(400),
            grace: Duration::from_millis(500),
            guard: Duration::from_secs(1),
            request_timeout: Duration::from_secs(15),
            ahead: 2,
            burst: 5,
            flush: Duration::from_millis(300),
            retry: Duration::from_millis(200),
        }
    }
}

impl SharedLimitConfig {
    /// How long a token stays taken if its use is never reported, without the window after it.
    #[must_use]
    pub fn hold(&self) -> Duration {
        self.grace + self.request_timeout
    }

    /// How long after its last contact a process can be certain that it is detached, and that the calls of slots that
    /// others had booked by then have arrived and left the window.
    #[must_use]
    pub fn isolation_time(&self) -> Duration {
        self.silence + self.horizon + self.window + self.guard
    }

    /// Within this time after Redis became empty, every member that can reach Redis has called it.
    #[must_use]
    pub fn gather_time(&self) -> Duration {
        self.heartbeat + self.timeout
    }
}
