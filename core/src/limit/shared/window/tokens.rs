//! Tokens: when each is free, and which member holds it.

use std::collections::{BTreeMap, BTreeSet};

/// The member that holds a token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct TokenHolder {
    pub(super) member: String,
    pub(super) booking: u64,
    /// Start of the slot.
    pub(super) at: u64,
}

/// All tokens.
#[derive(Clone, Debug, Default)]
pub(super) struct Tokens {
    by_time: BTreeSet<(u64, u64)>,
    times: BTreeMap<u64, u64>,
    holders: BTreeMap<u64, TokenHolder>,
    /// The last number assigned to a token, a booking or a ticket of the queue.
    last: u64,
}

impl Tokens {
    pub(super) fn len(&self) -> u32 {
        u32::try_from(self.times.len()).unwrap_or(u32::MAX)
    }

    /// Number of tokens that are free at `now`.
    pub(super) fn free(&self, now: u64) -> u32 {
        u32::try_from(self.by_time.range(..=(now, u64::MAX)).count()).unwrap_or(u32::MAX)
    }

    /// The token that is free first, and whether it is held.
    pub(super) fn first(&self) -> Option<(u64, u64, bool)> {
        self.by_time.first().map(|(free_at, token)| (*free_at, *token, self.holders.contains_key(token)))
    }

    /// When the token with `before` tokens ahead of it is free, and whether it is held.
    pub(super) fn nth(&self, before: usize) -> Option<(u64, bool)> {
        self.by_time.iter().nth(before).map(|(free_at, token)| (*free_at, self.holders.contains_key(token)))
    }

    /// A number that is unique in this epoch and higher than all earlier ones.
    pub(super) fn next_number(&mut self) -> u64 {
        self.last += 1;
        self.last
    }

    pub(super) fn time_of(&self, token: u64) -> u64 {
        self.times.get(&token).copied().unwrap_or(0)
    }

    /// A free token that no member holds.
    pub(super) fn find_idle(&self, now: u64) -> Option<u64> {
        self.first().filter(|(free_at, _, held)| *free_at <= now && !held).map(|(_, token, _)| token)
    }

    pub(super) fn add(&mut self, free_at: u64) -> u64 {
        let token = self.next_number();
        self.set_free_at(token, free_at);
        token
    }

    pub(super) fn set_free_at(&mut self, token: u64, free_at: u64) {
        if let Some(old) = self.times.insert(token, free_at) {
            self.by_time.remove(&(old, token));
        }
        self.by_time.insert((free_at, token));
    }

    /// Assigns a token to a member; returns the booking.
    pub(super) fn hold(&mut self, token: u64, member: &str, at: u64, free_at: u64) -> u64 {
        let booking = self.next_number();
        self.holders.insert(token, TokenHolder { member: member.to_owned(), booking, at });
        self.set_free_at(token, free_at);
        booking
    }

    /// Ends a booking if it is still the current one; returns the start of its slot.
    pub(super) fn release(&mut self, token: u64, member: &str, booking: u64) -> Option<u64> {
        let holder = self.holders.get(&token)?;
        if holder.member != member || holder.booking != booking {
            return None;
        }
        self.holders.remove(&token).map(|holder| holder.at)
    }

    /// Ends all bookings of a member; returns its tokens, the one that is free first at the start.
    pub(super) fn release_all(&mut self, member: &str, now: u64) -> Vec<u64> {
        let mut own_tokens = Vec::new();
        for token in self.held_by(member) {
            if let Some(holder) = self.holders.remove(&token) {
                let free_at = now.max(holder.at);
                self.set_free_at(token, free_at);
                own_tokens.push((free_at, token));
            }
        }
        own_tokens.sort_unstable();
        own_tokens.into_iter().map(|(_, token)| token).collect()
    }

    /// Tokens of a dead member are free no later than `free_at`, and have no owner until then.
    pub(super) fn free_held_by(&mut self, member: &str, free_at: u64) {
        for token in self.held_by(member) {
            if let Some(holder) = self.holders.get_mut(&token) {
                holder.member.clear();
            }
            if self.time_of(token) > free_at {
                self.set_free_at(token, free_at);
            }
        }
    }

    /// Removes at most `max` tokens that a member holds, down to `target`.
    pub(super) fn drop_held_by(&mut self, member: &str, max: u32, target: u32) {
        for token in self.held_by(member).into_iter().take(max as usize) {
            if self.len() > target {
                self.remove(token);
            }
        }
    }

    /// Tokens that no member holds are free no later than `free_at`.
    pub(super) fn free_unheld_by(&mut self, free_at: u64) {
        let late: Vec<u64> = self
            .by_time
            .range((free_at + 1, 0)..)
            .filter(|(_, token)| !self.holders.contains_key(token))
            .map(|(_, token)| *token)
            .collect();
        late.into_iter().for_each(|token| self.set_free_at(token, free_at));
    }

    /// No token is free before `free_at`.
    pub(super) fn free_not_before(&mut self, free_at: u64) {
        let early: Vec<u64> = self.by_time.range(..(free_at, 0)).map(|(_, token)| *token).collect();
        early.into_iter().for_each(|token| self.set_free_at(token, free_at));
    }

    /// Removes the tokens that are free first, or adds new ones, to reach `target`; returns the new ones.
    pub(super) fn resize(&mut self, target: u32, free_at: u64) -> Vec<u64> {
        while self.len() > target
            && let Some((_, token, _)) = self.first()
        {
            self.remove(token);
        }
        (self.len()..target).map(|_| self.add(free_at)).collect()
    }

    fn remove(&mut self, token: u64) {
        if let Some(free_at) = self.times.remove(&token) {
            self.by_time.remove(&(free_at, token));
        }
        self.holders.remove(&token);
    }

    fn held_by(&self, member: &str) -> Vec<u64> {
        self.holders.iter().filter(|(_, holder)| holder.member == member).map(|(token, _)| *token).collect()
    }
}
