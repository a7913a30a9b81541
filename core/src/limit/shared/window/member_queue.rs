//! The queue of members that requested a slot and must wait: the member that has waited longest gets the next slot.
//!
//! It only orders members. The tokens decide when a slot is free, so the limit does not depend on the queue.

use std::collections::BTreeMap;

/// Waiting members. Each is in the queue at most once, and is removed when its membership ends, so the queue is not
/// longer than the number of members.
#[derive(Clone, Debug, Default)]
pub(super) struct MemberQueue {
    /// Ticket of each member, assigned when it started to wait: the lowest is first.
    tickets: BTreeMap<String, u64>,
    /// When each member is due to request again.
    due: BTreeMap<String, u64>,
}

impl MemberQueue {
    /// Number of members ahead of this one.
    pub(super) fn ahead_of(&self, member: &str) -> usize {
        match self.tickets.get(member) {
            Some(own_ticket) => self.tickets.values().filter(|ticket| *ticket < own_ticket).count(),
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

    /// Sets when a waiting member is due to request again.
    pub(super) fn set_due(&mut self, member: &str, due: u64) {
        self.due.insert(member.to_owned(), due);
    }

    pub(super) fn remove(&mut self, member: &str) {
        self.tickets.remove(member);
        self.due.remove(member);
    }

    /// Removes members that were due before `since` and did not request: they need no slot any more, or are dead.
    pub(super) fn remove_late(&mut self, since: u64) {
        let late: Vec<String> =
            self.due.iter().filter(|(_, due)| **due < since).map(|(member, _)| member.clone()).collect();
        late.iter().for_each(|member| self.remove(member));
    }
}
