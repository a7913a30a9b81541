//! What is to be seen of a member.

use serde::Serialize;

use super::{Member, State};
use crate::limit::shared::config::LimitFallback;
use crate::time::Timestamp;

/// How a process stands to the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum SharingMode {
    /// It has not reached Redis since it started, and sends nothing.
    Unreached,
    /// It is in touch with Redis and becomes a member.
    Joining,
    /// It shares the limit with all others.
    Shared,
    /// It cannot reach Redis, and waits until its share is surely its own.
    Waiting,
    /// It cannot reach Redis, and uses its share.
    Share,
    /// It cannot reach Redis, and sends nothing.
    Closed,
    /// It cannot reach Redis, and uses the whole limit.
    Open,
}

impl SharingMode {
    /// All there are.
    pub const ALL: [Self; 7] =
        [Self::Unreached, Self::Joining, Self::Shared, Self::Waiting, Self::Share, Self::Closed, Self::Open];

    /// Its name, as metrics and logs have it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Unreached => "unreached",
            Self::Joining => "joining",
            Self::Shared => "shared",
            Self::Waiting => "waiting",
            Self::Share => "share",
            Self::Closed => "closed",
            Self::Open => "open",
        }
    }
}

/// A member at one moment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct MemberView {
    /// The name of its seat.
    pub member: String,
    /// How it stands to the others.
    pub mode: SharingMode,
    /// What it does without Redis.
    pub on_loss: LimitFallback,
    /// Calls in a window that it may make while it cannot reach Redis.
    pub share: u32,
    /// Members, as last heard, those that were detached included.
    pub members: u32,
    /// Members in touch with Redis, as last heard.
    pub live: u32,
    /// What these may use together, as last heard.
    pub pool: u32,
    /// Slots that are booked.
    pub booked: usize,
    /// Calls without an answer.
    pub in_flight: usize,
    /// The epoch; empty before the first.
    pub epoch: String,
    /// Calls of Redis so far.
    pub redis_calls: u64,
    /// Those of them that were lost.
    pub redis_lost: u64,
}

impl Member {
    /// How it stands to the others.
    #[must_use]
    pub fn mode(&self, now: Timestamp) -> SharingMode {
        match self.state {
            State::Left => SharingMode::Closed,
            State::Joined => SharingMode::Shared,
            State::Joining => SharingMode::Joining,
            State::Apart => match (self.config.on_loss, self.alone()) {
                (LimitFallback::Open, _) => SharingMode::Open,
                _ if self.epoch.is_empty() => SharingMode::Unreached,
                (LimitFallback::Share, Some((_, from, until))) if now < until => {
                    if now < from {
                        SharingMode::Waiting
                    } else {
                        SharingMode::Share
                    }
                }
                (LimitFallback::Share | LimitFallback::Closed, _) => SharingMode::Closed,
            },
        }
    }

    /// How many members there are, as last heard, and what share this one has.
    #[must_use]
    pub const fn counted(&self) -> (u32, u32) {
        (self.members, self.share)
    }

    /// The member at this moment.
    #[must_use]
    pub fn view(&self, now: Timestamp) -> MemberView {
        MemberView {
            member: self.id.clone(),
            mode: self.mode(now),
            on_loss: self.config.on_loss,
            share: self.share,
            members: self.members,
            live: self.live,
            pool: self.pool,
            booked: self.bookings.len(),
            in_flight: self.flights.len(),
            epoch: self.epoch.clone(),
            redis_calls: self.calls,
            redis_lost: self.lost,
        }
    }
}
