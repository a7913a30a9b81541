//! State of a member, for the API.

use serde::Serialize;

use super::{Member, State};
use crate::limit::shared::config::LimitFallback;
use crate::time::Timestamp;

crate::named_enum! {
    /// State of a process in the shared limit.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
    #[serde(rename_all = "snake_case")]
    pub enum SharingMode {
        /// It has not reached Redis since it started, and sends nothing.
        Unreached = "unreached",
        /// It can reach Redis and becomes a member.
        Joining = "joining",
        /// It shares the limit with the other members.
        Shared = "shared",
        /// It cannot reach Redis, and waits until it may use its share.
        Waiting = "waiting",
        /// It cannot reach Redis, and uses its share.
        Share = "share",
        /// It cannot reach Redis, and sends nothing.
        Closed = "closed",
        /// It cannot reach Redis, and uses the whole limit.
        Open = "open",
    }
}

/// A member at one moment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct MemberView {
    /// Member id.
    pub member: String,
    /// State of the process in the shared limit.
    pub mode: SharingMode,
    /// What it does without Redis.
    pub on_loss: LimitFallback,
    /// Calls per window that it may make while it cannot reach Redis.
    pub share: u32,
    /// Last known number of members, including detached ones.
    pub members: u32,
    /// Last known number of members that can reach Redis.
    pub live: u32,
    /// Last known number of tokens that these members may use together.
    pub pool: u32,
    /// Booked slots.
    pub booked: usize,
    /// Calls without a response.
    pub in_flight: usize,
    /// The epoch; empty before the first one.
    pub epoch: String,
    /// Number of calls to Redis.
    pub redis_calls: u64,
    /// Number of calls to Redis that were lost.
    pub redis_lost: u64,
}

impl Member {
    /// State of the process in the shared limit.
    #[must_use]
    pub fn mode(&self, now: Timestamp) -> SharingMode {
        match self.state {
            State::Left => SharingMode::Closed,
            State::Joined => SharingMode::Shared,
            State::Joining => SharingMode::Joining,
            State::Disconnected => match (self.config.on_loss, self.fallback_limit()) {
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

    /// The last known number of members, and the share of this one.
    #[must_use]
    pub const fn members_and_share(&self) -> (u32, u32) {
        (self.members, self.share)
    }

    /// The current state of the member.
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
            in_flight: self.in_flight.len(),
            epoch: self.epoch.clone(),
            redis_calls: self.calls,
            redis_lost: self.lost,
        }
    }
}
