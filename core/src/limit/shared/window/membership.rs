//! Seats: who the members are, and what each may use when it cannot reach the others.
//!
//! A *claim* is the share that a member may think it has: what it was told, or, until it has said that it heard of less, what
//! it was told before. The claims of all members together are never more than the limit.

use std::collections::BTreeMap;

#[derive(Clone, Debug)]
pub(super) struct MemberRecord {
    life: u64,
    claim: u32,
    limit: u32,
    /// When it joined.
    since: u64,
}

/// All members.
#[derive(Clone, Debug, Default)]
pub(super) struct Membership {
    all: BTreeMap<String, MemberRecord>,
    /// Those in touch, and when they last were.
    live: BTreeMap<String, u64>,
    /// Those that are detached, and when they are forgotten.
    away: BTreeMap<String, u64>,
}

impl Membership {
    pub(super) fn life(&self, member: &str) -> Option<u64> {
        self.all.get(member).map(|seat| seat.life)
    }

    pub(super) fn is_live(&self, member: &str, life: u64) -> bool {
        self.live.contains_key(member) && self.life(member) == Some(life)
    }

    pub(super) fn live(&self) -> u32 {
        count(self.live.len())
    }

    pub(super) fn members(&self) -> u32 {
        count(self.all.len())
    }

    #[cfg(test)]
    pub(super) fn names(&self) -> Vec<String> {
        self.all.keys().cloned().collect()
    }

    pub(super) fn see(&mut self, member: &str, now: u64) {
        self.live.insert(member.to_owned(), now);
    }

    /// Makes a seat for a member that has none.
    pub(super) fn take(&mut self, member: &str, life: u64, claim: u32, limit: u32, now: u64) {
        self.all.insert(member.to_owned(), MemberRecord { life, claim, limit, since: now });
        self.see(member, now);
    }

    /// A detached member is in touch again.
    pub(super) fn attach(&mut self, member: &str, now: u64) {
        self.away.remove(member);
        self.see(member, now);
    }

    pub(super) fn remove(&mut self, member: &str) -> bool {
        self.live.remove(member);
        self.away.remove(member);
        self.all.remove(member).is_some()
    }

    /// Detaches those last seen before `since`: each with its claim, the longest silent first.
    pub(super) fn detach_silent(&mut self, since: u64, until: u64) -> Vec<(String, u32)> {
        let mut silent: Vec<(u64, String)> =
            self.live.iter().filter(|(_, seen)| **seen < since).map(|(member, seen)| (*seen, member.clone())).collect();
        silent.sort_unstable();
        let mut detached = Vec::new();
        for (_, member) in silent {
            self.live.remove(&member);
            let claim = self.claim(&member);
            self.away.insert(member.clone(), until);
            detached.push((member, claim));
        }
        detached
    }

    /// Forgets those that were away for too long; whether there were any.
    pub(super) fn forget(&mut self, now: u64) -> bool {
        let gone: Vec<String> =
            self.away.iter().filter(|(_, until)| **until <= now).map(|(member, _)| member.clone()).collect();
        gone.iter().for_each(|member| {
            self.remove(member);
        });
        !gone.is_empty()
    }

    pub(super) fn least_limit(&self) -> Option<u32> {
        self.live.keys().filter_map(|member| self.all.get(member)).map(|seat| seat.limit).min()
    }

    pub(super) fn claim(&self, member: &str) -> u32 {
        self.all.get(member).map_or(0, |seat| seat.claim)
    }

    pub(super) fn claimed(&self) -> u32 {
        self.all.values().map(|seat| seat.claim).sum()
    }

    pub(super) fn claimed_away(&self) -> u32 {
        self.away.keys().map(|member| self.claim(member)).sum()
    }

    /// Whether there are members that have not been here since it joined, and so do not know of it. Those that are detached
    /// would have come by `known` if the clock had only jumped.
    pub(super) fn is_strange(&self, member: &str, known: u64) -> bool {
        let oldest = self.live.values().min().copied().unwrap_or(0);
        let is_young = |seat: &MemberRecord| seat.since > known && !self.away.is_empty();
        self.all.get(member).is_some_and(|seat| oldest < seat.since || is_young(seat))
    }

    /// What a member should have, as far as others leave it.
    pub(super) fn fair_share(&self, member: &str, limit: u32, known: u64) -> u32 {
        let Some(seat) = self.all.get(member) else { return 0 };
        let (live, away) = (self.live().max(1), self.claimed_away());
        let fair = limit.saturating_sub(away) / live;
        let others = self.claimed() - seat.claim;
        // What cannot be divided goes to whoever asks once all have the rest: so that nothing is left that nobody has.
        let is_over = others.saturating_sub(away) >= fair * (live - 1);
        let room = (fair + u32::from(is_over)).min(limit.saturating_sub(others));
        // If Redis forgot everything now, nobody would miss it.
        if self.is_strange(member, known) { room.min(seat.claim) } else { room }
    }

    /// Notes what a member is told now. Until it says so, it may not have heard that it was less.
    pub(super) fn tell(&mut self, member: &str, held: u32, share: u32) {
        if let Some(seat) = self.all.get_mut(member) {
            seat.claim = held.min(seat.claim).max(share);
        }
    }
}

fn count(number: usize) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}
