//! The queue of members that asked for a slot and must wait: a slot goes to the member that has waited longest.
//!
//! It orders members and nothing more. Which token is free when is up to the tokens, so the limit does not depend on it.

use std::collections::BTreeMap;

/// Members that wait. Each is in it at most once, and leaves it with its seat, so it is no longer than there are members.
#[derive(Clone, Debug, Default)]
pub(super) struct MemberQueue {
    /// The number that each drew when it began to wait: lower ones go first.
    tickets: BTreeMap<String, u64>,
    /// When each was asked to come back.
    due: BTreeMap<String, u64>,
}

impl MemberQueue {
    /// How many go before this member.
    pub(super) fn ahead_of(&self, member: &str) -> usize {
        match self.tickets.get(member) {
            Some(own) => self.tickets.values().filter(|ticket| *ticket < own).count(),
            None => self.tickets.len(),
        }
    }

    pub(super) fn contains(&self, member: &str) -> bool {
        self.tickets.contains_key(member)
    }

    /// Adds a member at the end.
    pub(super) fn push(&mut self, member: &str, ticket: u64) {
        self.tickets.insert(member.to_owned(), ticket);
    }

    /// A member that waits is expected at this time.
    pub(super) fn expect(&mut self, member: &str, due: u64) {
        self.due.insert(member.to_owned(), due);
    }

    pub(super) fn remove(&mut self, member: &str) {
        self.tickets.remove(member);
        self.due.remove(member);
    }

    /// Removes those that were expected before `since` and did not come: they need no slot any more, or are gone.
    pub(super) fn remove_late(&mut self, since: u64) {
        let late: Vec<String> =
            self.due.iter().filter(|(_, due)| **due < since).map(|(member, _)| member.clone()).collect();
        late.iter().for_each(|member| self.remove(member));
    }
}
