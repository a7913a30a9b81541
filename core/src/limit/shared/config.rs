//! Settings of the shared limit.

use std::time::Duration;

use serde::Serialize;

/// What a process does while it cannot reach Redis.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum LimitFallback {
    /// It uses its share of the limit.
    #[default]
    Share,
    /// It sends nothing.
    Closed,
    /// It uses the whole limit, as if it were alone. With others beside it, the limit is passed.
    Open,
}

impl LimitFallback {
    /// Its name, as settings and logs have it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Share => "share",
            Self::Closed => "closed",
            Self::Open => "open",
        }
    }
}

/// How processes share a limit. All members of one limit should agree on everything here.
#[derive(Clone, Debug)]
pub struct SharedLimitConfig {
    /// Calls in any window, of all processes together.
    pub limit: u32,
    /// The window, with whatever is added for clocks that do not run quite alike.
    pub window: Duration,
    /// What was added to it.
    pub margin: Duration,
    /// What a process does without Redis.
    pub on_loss: LimitFallback,
    /// How long a call to Redis may take; after that it counts as lost.
    pub timeout: Duration,
    /// A member says something at least this often.
    pub heartbeat: Duration,
    /// A member that is silent for longer is detached: its share leaves the limit.
    pub silence: Duration,
    /// So long after it was detached, a member's share comes back.
    pub forget: Duration,
    /// So long after it last heard of Redis, a process stops to use its share.
    pub share_for: Duration,
    /// How long an emptied Redis waits for members that knew each other before newcomers may have everything.
    pub newcomer: Duration,
    /// Slots are booked no further ahead.
    pub horizon: Duration,
    /// A slot that is not used within this time is given back.
    pub grace: Duration,
    /// How long a call of a process that is gone or cut off may still be on its way to Discord.
    pub guard: Duration,
    /// How long a call that was not answered may still be on its way.
    pub request_timeout: Duration,
    /// Slots that a process may have booked at once.
    pub ahead: u32,
    /// Slots that may be booked for the same moment before they are spaced, by all processes together.
    pub burst: u32,
    /// What has to be told is told within this time, even if nothing is asked for.
    pub flush: Duration,
    /// How long a process without Redis waits before it looks again.
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
    /// How long a token is away whose use nobody has told the end of, without the window after it.
    #[must_use]
    pub fn hold(&self) -> Duration {
        self.grace + self.request_timeout
    }

    /// How long after its last word a process may count on being detached, and on what the others had booked by then having
    /// arrived and left the window.
    #[must_use]
    pub fn apart(&self) -> Duration {
        self.silence + self.horizon + self.window + self.guard
    }

    /// Within this time after it was emptied, every member that can reach Redis has spoken.
    #[must_use]
    pub fn gather(&self) -> Duration {
        self.heartbeat + self.timeout
    }
}
