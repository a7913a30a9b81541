//! The part of a divided limit that runs in a process.

use std::collections::HashMap;
use std::time::Duration;

use serde::Serialize;

use super::config::DivisionConfig;
use crate::time::Timestamp;

/// Id of a process among those of a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MemberId(pub u128);

/// One row of the table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShareRow {
    /// The process.
    pub member: MemberId,
    /// Changes with every renewal.
    pub heartbeat: u64,
    /// The order in which processes get tokens when there are not enough; the lowest is first.
    pub turn: u64,
    /// How much of the limit the process has reserved.
    pub share: u32,
    /// How long the row is valid without a renewal.
    pub hold: Duration,
    /// Whether the process has left.
    pub has_left: bool,
    /// Whether the process is certainly dead.
    pub is_dead: bool,
}

/// The result of a renewal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Renewal {
    /// The row existed.
    Extended {
        /// Its reserved share.
        share: u32,
        /// Its position in the order.
        turn: u64,
    },
    /// There was no row; a new one was inserted, with nothing reserved.
    Joined {
        /// Its position in the order.
        turn: u64,
    },
}

/// An action in the store. One at a time; its result is passed to [`LimitShare::on_done`] or [`LimitShare::on_failed`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ShareAction {
    /// Reserve a share, unless the sum over all rows would exceed the limit.
    Reserve {
        /// The new share.
        share: u32,
    },
    /// Lower the share, and optionally move to the end of the order.
    Lower {
        /// The new share.
        share: u32,
        /// The new position in the order.
        turn: Option<u64>,
    },
    /// Remove the row of a process that no longer sends, if the row is unchanged.
    Remove {
        /// The process.
        member: MemberId,
        /// The heartbeat of the row when it was read.
        heartbeat: u64,
    },
}

/// What the limiter may use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Allowance {
    /// Calls per window.
    pub share: u32,
    /// Processes that divide the limit.
    pub members: u32,
    /// Increases with every change, so that the limiter can report which allowance it has applied.
    pub version: u64,
}

/// Report of the limiter about an allowance.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ShareUsage {
    /// The allowance that it has applied.
    pub version: u64,
    /// Whether no more tokens are in use than it allows.
    pub is_within: bool,
}

/// A row of another process, and when its current heartbeat was first seen.
#[derive(Clone, Copy, Debug)]
struct ObservedRow {
    heartbeat: u64,
    since: Timestamp,
    dead_since: Option<Timestamp>,
}

/// State of a divided limit, for the API.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct DivisionView {
    /// Processes that divide the limit.
    pub members: u32,
    /// The share of this process.
    pub share: u32,
}

impl From<Allowance> for DivisionView {
    fn from(Allowance { share, members, .. }: Allowance) -> Self {
        Self { members, share }
    }
}

/// The part of a divided limit that runs in a process. It has no clock and does no I/O.
#[derive(Debug)]
pub struct LimitShare {
    config: DivisionConfig,
    id: MemberId,
    is_member: bool,
    /// Lower bound of the share in its row.
    reserved: u32,
    turn: u64,
    /// Whether the outcome of an action is unknown. The next renewal resolves it.
    is_uncertain: bool,
    allowance: Allowance,
    usage: ShareUsage,
    /// Whether more tokens may be in use than are reserved, because the row was lost.
    is_exposed: bool,
    lease_until: Timestamp,
    rows: Vec<ShareRow>,
    observed_rows: HashMap<MemberId, ObservedRow>,
    /// Since when it has had a token.
    held_since: Timestamp,
    retry_at: Timestamp,
}

impl LimitShare {
    /// Creates the state of a process that has no row yet, and therefore may send nothing.
    #[must_use]
    pub fn new(config: DivisionConfig, id: MemberId) -> Self {
        Self {
            config,
            id,
            is_member: false,
            reserved: 0,
            turn: 0,
            is_uncertain: false,
            allowance: Allowance { share: 0, members: 0, version: 1 },
            usage: ShareUsage::default(),
            is_exposed: true,
            lease_until: Timestamp::ZERO,
            rows: Vec::new(),
            observed_rows: HashMap::new(),
            held_since: Timestamp::ZERO,
            retry_at: Timestamp::ZERO,
        }
    }

    /// The row was renewed: this process may send until `until`.
    pub fn on_renewed(&mut self, renewal: Renewal, until: Timestamp, now: Timestamp) {
        let (share, turn) = match renewal {
            Renewal::Extended { share, turn } => (share, turn),
            Renewal::Joined { turn } => {
                self.rows.clear();
                self.observed_rows.clear();
                self.is_exposed = true;
                (0, turn)
            }
        };
        // The row was lost, and the renewal that inserted a new one got no response.
        self.is_exposed |= share < self.reserved;
        self.is_member = true;
        self.is_uncertain = false;
        self.lease_until = until;
        self.set_reserved(share, turn, now);
    }

    /// All rows of the table were read.
    pub fn on_rows(&mut self, rows: Vec<ShareRow>, now: Timestamp) {
        self.observed_rows.retain(|member, _| rows.iter().any(|row| row.member == *member));
        for row in rows.iter().filter(|row| row.member != self.id) {
            let new = ObservedRow { heartbeat: row.heartbeat, since: now, dead_since: None };
            let observed = self.observed_rows.entry(row.member).or_insert(new);
            if observed.heartbeat != row.heartbeat {
                *observed = new;
            }
            if row.is_dead {
                observed.dead_since.get_or_insert(now);
            }
        }
        self.rows = rows;
        self.update_allowance(now);
    }

    /// The limiter has applied an allowance, or its tokens have returned.
    pub fn on_usage(&mut self, usage: ShareUsage) {
        self.usage = usage;
        if self.is_within() {
            self.is_exposed = false;
        }
    }

    /// What the limiter may use.
    #[must_use]
    pub const fn allowance(&self) -> Allowance {
        self.allowance
    }

    /// Until when this process may send; `None` if it may not.
    #[must_use]
    pub fn sends_until(&self) -> Option<Timestamp> {
        (self.is_member && !self.is_exposed).then_some(self.lease_until)
    }

    /// The next action in the store.
    pub fn next_action(&mut self, now: Timestamp) -> Option<ShareAction> {
        if !self.is_member || self.is_uncertain {
            return None;
        }
        self.update_allowance(now);
        let removable = self.rows.iter().find(|row| self.removable_at(row).is_some_and(|then| then <= now));
        if let Some(row) = removable {
            return Some(ShareAction::Remove { member: row.member, heartbeat: row.heartbeat });
        }
        let (target, turn) = self.target(now);
        if target < self.reserved {
            return self.is_within().then_some(ShareAction::Lower { share: target, turn });
        }
        let taken = self.others().fold(0_u32, |sum, row| sum.saturating_add(row.share));
        let share = target.min(self.config.limit.saturating_sub(taken));
        (share > self.reserved && now >= self.retry_at).then_some(ShareAction::Reserve { share })
    }

    /// An action was committed.
    pub fn on_done(&mut self, action: ShareAction, now: Timestamp) {
        match action {
            ShareAction::Reserve { share } => self.set_reserved(share, self.turn, now),
            ShareAction::Lower { share, turn } => self.set_reserved(share, turn.unwrap_or(self.turn), now),
            ShareAction::Remove { member, .. } => {
                self.rows.retain(|row| row.member != member);
                self.observed_rows.remove(&member);
                self.update_allowance(now);
            }
        }
    }

    /// The table has changed since it was read, or another process is changing it: the action had no effect. The table
    /// should be read again.
    pub fn on_refused(&mut self, action: ShareAction, now: Timestamp) {
        match action {
            ShareAction::Reserve { .. } => self.retry_at = now + self.config.retry_after,
            ShareAction::Lower { .. } => self.is_uncertain = true,
            ShareAction::Remove { member, .. } => {
                // It was renewed, or another process has removed it.
                if let Some(observed) = self.observed_rows.get_mut(&member) {
                    (observed.since, observed.dead_since) = (now, None);
                }
            }
        }
    }

    /// It is unknown whether an action was committed. The row should be renewed.
    pub fn on_failed(&mut self, action: ShareAction, now: Timestamp) {
        match action {
            ShareAction::Reserve { .. } => self.is_uncertain = true,
            ShareAction::Lower { share, .. } => {
                self.is_uncertain = true;
                self.reserved = self.reserved.min(share);
                self.update_allowance(now);
            }
            ShareAction::Remove { .. } => {}
        }
    }

    /// When [`LimitShare::next_action`] should be called again, if nothing else happens.
    #[must_use]
    pub fn next_wake(&self, now: Timestamp) -> Option<Timestamp> {
        let removals = self.rows.iter().filter_map(|row| self.removable_at(row));
        let rotation = (self.members() > self.config.limit).then(|| self.held_since + self.config.rotate_after);
        removals.chain(rotation).chain([self.retry_at]).filter(|then| *then > now).min()
    }

    fn members(&self) -> u32 {
        u32::try_from(self.rows.iter().filter(|row| !row.has_left).count()).unwrap_or(u32::MAX)
    }

    fn others(&self) -> impl Iterator<Item = &ShareRow> {
        self.rows.iter().filter(|row| row.member != self.id)
    }

    /// Whether the limiter has applied the current allowance, and its tokens in use fit into it.
    fn is_within(&self) -> bool {
        self.usage == ShareUsage { version: self.allowance.version, is_within: true }
    }

    /// When the row of another process may be removed, if it is not renewed.
    fn removable_at(&self, row: &ShareRow) -> Option<Timestamp> {
        let observed = self.observed_rows.get(&row.member)?;
        let silent = observed.since + row.hold;
        let dead = observed.dead_since.map(|since| since + self.config.hold_after_death());
        Some(dead.map_or(silent, |dead| dead.min(silent)))
    }

    fn set_reserved(&mut self, share: u32, turn: u64, now: Timestamp) {
        if share > 0 && self.reserved == 0 {
            self.held_since = now;
        }
        (self.reserved, self.turn) = (share, turn);
        if let Some(own_row) = self.rows.iter_mut().find(|row| row.member == self.id) {
            (own_row.share, own_row.turn) = (share, turn);
        }
        self.update_allowance(now);
    }

    /// Updates the allowance: the part of the reserved share that belongs to this process.
    fn update_allowance(&mut self, now: Timestamp) {
        let (share, members) = (self.reserved.min(self.target(now).0), self.members());
        if (share, members) != (self.allowance.share, self.allowance.members) {
            self.allowance = Allowance { share, members, version: self.allowance.version + 1 };
        }
    }

    /// The share that belongs to this process, and its new position in the order if it lets others go first.
    fn target(&self, now: Timestamp) -> (u32, Option<u64>) {
        let mut order: Vec<(u64, MemberId)> =
            self.rows.iter().filter(|row| !row.has_left).map(|row| (row.turn, row.member)).collect();
        order.sort_unstable();
        let Some(rank) = order.iter().position(|(_, member)| *member == self.id) else { return (self.reserved, None) };
        let (count, limit) = (order.len(), self.config.limit as usize);
        if count <= limit {
            let share = limit / count + usize::from(rank < limit % count);
            return (u32::try_from(share).unwrap_or(u32::MAX), None);
        }
        // More processes than tokens: each has one for a while, those that have waited longest first.
        let is_expired = self.reserved > 0 && now >= self.held_since + self.config.rotate_after;
        if is_expired && rank < count - limit {
            let last = order.last().map_or(0, |(turn, _)| *turn);
            return (0, Some(last + 1));
        }
        (u32::from(rank < limit), None)
    }
}
