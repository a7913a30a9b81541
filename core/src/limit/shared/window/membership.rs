//! Membership: the members, and the share that each may use while it cannot reach Redis.
//!
//! A *claim* is the largest share that a member may assume: its current share or, until it has confirmed a lower one,
//! its previous share. The sum of all claims never exceeds the limit.

use std::collections::BTreeMap;

#[derive(Clone, Debug)]
pub(super) struct MemberRecord {
    incarnation: u64,
    claim: u32,
    limit: u32,
    /// When it joined.
    since: u64,
}

/// All members.
#[derive(Clone, Debug, Default)]
pub(super) struct Membership {
    all: BTreeMap<String, MemberRecord>,
    /// Attached members, and the time of their last call.
    live: BTreeMap<String, u64>,
    /// Detached members, and when they are removed.
    detached: BTreeMap<String, u64>,
}

impl Membership {
    pub(super) fn incarnation(&self, member: &str) -> Option<u64> {
        self.all.get(member).map(|member_record| member_record.incarnation)
    }

    pub(super) fn is_live(&self, member: &str, incarnation: u64) -> bool {
        self.live.contains_key(member) && self.incarnation(member) == Some(incarnation)
    }

    pub(super) fn live(&self) -> u32 {
        count(self.live.len())
    }

    pub(super) fn members(&self) -> u32 {
        count(self.all.len())
    }

    #[cfg(test)]
    pub(super) fn ids(&self) -> Vec<String> {
        self.all.keys().cloned().collect()
    }

    pub(super) fn touch(&mut self, member: &str, now: u64) {
        self.live.insert(member.to_owned(), now);
    }

    /// Adds a new member.
    pub(super) fn add(&mut self, member: &str, incarnation: u64, claim: u32, limit: u32, now: u64) {
        self.all.insert(member.to_owned(), MemberRecord { incarnation, claim, limit, since: now });
        self.touch(member, now);
    }

    /// Attaches a detached member.
    pub(super) fn attach(&mut self, member: &str, now: u64) {
        self.detached.remove(member);
        self.touch(member, now);
    }

    pub(super) fn remove(&mut self, member: &str) -> bool {
        self.live.remove(member);
        self.detached.remove(member);
        self.all.remove(member).is_some()
    }

    /// Detaches members whose last call was before `since`. Returns each with its claim, the one that was silent
    /// longest first.
    pub(super) fn detach_silent(&mut self, since: u64, until: u64) -> Vec<(String, u32)> {
        let mut silent: Vec<(u64, String)> =
            self.live.iter().filter(|(_, seen)| **seen < since).map(|(member, seen)| (*seen, member.clone())).collect();
        silent.sort_unstable();
        let mut detached = Vec::new();
        for (_, member) in silent {
            self.live.remove(&member);
            let claim = self.claim(&member);
            self.detached.insert(member.clone(), until);
            detached.push((member, claim));
        }
        detached
    }

    /// Removes members that were detached for too long; returns whether there were any.
    pub(super) fn remove_expired(&mut self, now: u64) -> bool {
        let gone: Vec<String> =
            self.detached.iter().filter(|(_, until)| **until <= now).map(|(member, _)| member.clone()).collect();
        gone.iter().for_each(|member| {
            self.remove(member);
        });
        !gone.is_empty()
    }

    pub(super) fn min_limit(&self) -> Option<u32> {
        self.live.keys().filter_map(|member| self.all.get(member)).map(|member_record| member_record.limit).min()
    }

    pub(super) fn claim(&self, member: &str) -> u32 {
        self.all.get(member).map_or(0, |member_record| member_record.claim)
    }

    pub(super) fn claimed(&self) -> u32 {
        self.all.values().map(|member_record| member_record.claim).sum()
    }

    pub(super) fn claimed_detached(&self) -> u32 {
        self.detached.keys().map(|member| self.claim(member)).sum()
    }

    /// Whether some members have made no call since this one joined, and therefore do not know of it. A detached member
    /// would have called by `known` if only the clock had jumped.
    pub(super) fn is_unknown_to_others(&self, member: &str, known_since: u64) -> bool {
        let oldest = self.live.values().min().copied().unwrap_or(0);
        let is_young = |member_record: &MemberRecord| member_record.since > known_since && !self.detached.is_empty();
        self.all.get(member).is_some_and(|member_record| oldest < member_record.since || is_young(member_record))
    }

    /// The fair share of a member, as far as the claims of the others permit.
    pub(super) fn fair_share(&self, member: &str, limit: u32, known_since: u64) -> u32 {
        let Some(member_record) = self.all.get(member) else { return 0 };
        let (live, away) = (self.live().max(1), self.claimed_detached());
        let fair = limit.saturating_sub(away) / live;
        let others = self.claimed() - member_record.claim;
        // The remainder of the division is given to the next caller once all others have their fair share, so that no
        // part of the limit stays unused.
        let is_over = others.saturating_sub(away) >= fair * (live - 1);
        let room = (fair + u32::from(is_over)).min(limit.saturating_sub(others));
        // If Redis lost its data now, the other members would not know of this share.
        if self.is_unknown_to_others(member, known_since) { room.min(member_record.claim) } else { room }
    }

    /// Records the share that a member is given. Until the member confirms a lower share, its claim stays at the
    /// previous one.
    pub(super) fn record_share(&mut self, member: &str, held: u32, share: u32) {
        if let Some(member_record) = self.all.get_mut(member) {
            member_record.claim = held.min(member_record.claim).max(share);
        }
    }
}

fn count(number: usize) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}
