//! Waiting calls of one lane of a wait queue: their callers take turns, and the calls of one caller are in order.

use std::collections::VecDeque;

use super::caller::CallerId;
use super::wait_queue::Ticket;

/// Waiting calls of one lane. A caller with many calls delays each call of another by one call only.
#[derive(Debug, Default)]
pub(super) struct LaneQueue {
    /// Callers in the order of their turns; none without calls.
    callers: VecDeque<(CallerId, VecDeque<Ticket>)>,
    len: usize,
}

impl LaneQueue {
    pub(super) fn is_empty(&self) -> bool {
        self.len == 0
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// The next call.
    pub(super) fn front(&self) -> Option<Ticket> {
        self.callers.front().and_then(|(_, tickets)| tickets.front().copied())
    }

    pub(super) fn insert(&mut self, caller: CallerId, ticket: Ticket) {
        self.len += 1;
        match self.callers.iter_mut().find(|(known, _)| *known == caller) {
            Some((_, tickets)) => {
                // Usually the newest ticket; one that moves here from another queue keeps its position in the order of
                // tickets.
                let index = tickets.partition_point(|other| *other < ticket);
                tickets.insert(index, ticket);
            }
            None => self.callers.push_back((caller, VecDeque::from([ticket]))),
        }
    }

    /// Removes the next call. Its caller has had its turn.
    pub(super) fn pop_front(&mut self) {
        if let Some((caller, mut tickets)) = self.callers.pop_front() {
            tickets.pop_front();
            self.len -= 1;
            if !tickets.is_empty() {
                self.callers.push_back((caller, tickets));
            }
        }
    }

    /// Removes a call that no longer waits.
    pub(super) fn remove(&mut self, caller: CallerId, ticket: Ticket) {
        let Some(index) = self.callers.iter().position(|(known, _)| *known == caller) else { return };
        let tickets = &mut self.callers[index].1;
        let before = tickets.len();
        tickets.retain(|other| *other != ticket);
        self.len -= before - tickets.len();
        if tickets.is_empty() {
            self.callers.remove(index);
        }
    }

    /// Number of calls before a new call of this caller.
    pub(super) fn ahead(&self, caller: CallerId) -> usize {
        let of_caller = |(known, tickets): &(CallerId, VecDeque<Ticket>)| (*known == caller).then_some(tickets.len());
        let own = self.callers.iter().find_map(of_caller).unwrap_or(0);
        let others = self.callers.iter().filter(|(known, _)| *known != caller);
        own + others.map(|(_, tickets)| tickets.len().min(own + 1)).sum::<usize>()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = Ticket> + '_ {
        self.callers.iter().flat_map(|(_, tickets)| tickets.iter().copied())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, HashMap, HashSet};

    use proptest::prelude::*;

    use super::*;

    fn drain(queue: &mut LaneQueue) -> Vec<u64> {
        std::iter::from_fn(|| {
            let front = queue.front()?;
            queue.pop_front();
            Some(front.0)
        })
        .collect()
    }

    #[test]
    fn callers_take_turns_and_their_calls_stay_in_order() {
        let mut queue = LaneQueue::default();
        let (busy, other) = (CallerId::of("busy"), CallerId::of("other"));
        (1..=4).for_each(|ticket| queue.insert(busy, Ticket(ticket)));
        assert_eq!((queue.ahead(busy), queue.ahead(other)), (4, 1));
        (5..=6).for_each(|ticket| queue.insert(other, Ticket(ticket)));
        assert_eq!((queue.ahead(busy), queue.ahead(other)), (6, 5));
        // It moved here from another queue.
        queue.insert(busy, Ticket(0));
        assert_eq!(drain(&mut queue), [0, 5, 1, 6, 2, 3, 4]);
        assert!(queue.is_empty());
    }

    proptest! {
        /// Whatever is inserted and removed: callers take turns, the calls of each are in order, and a new call comes no
        /// later than its place says.
        #[test]
        fn new_call_waits_at_most_as_long_as_its_place_says(
            steps in prop::collection::vec((0u8..4, 0u8..3), 1..200),
            caller in 0u8..4,
        ) {
            let named = |number: u8| CallerId::of(&number.to_string());
            let mut queue = LaneQueue::default();
            let mut waiting: BTreeMap<u64, CallerId> = BTreeMap::new();
            for (number, (action, caller)) in (0..).zip(steps) {
                if action < 3 {
                    waiting.insert(number, named(caller));
                    queue.insert(named(caller), Ticket(number));
                } else if let Some((ticket, caller)) = waiting.pop_first() {
                    queue.remove(caller, Ticket(ticket));
                }
                prop_assert_eq!((queue.len(), queue.iter().count()), (waiting.len(), waiting.len()));
            }
            let (place, new) = (queue.ahead(named(caller)), u64::MAX);
            queue.insert(named(caller), Ticket(new));
            waiting.insert(new, named(caller));
            let callers = waiting.values().collect::<HashSet<_>>().len();
            let (mut last, mut turns): (HashMap<CallerId, u64>, HashMap<CallerId, usize>) = Default::default();
            for (position, ticket) in drain(&mut queue).into_iter().enumerate() {
                let caller = waiting[&ticket];
                prop_assert!(last.insert(caller, ticket).is_none_or(|before| before < ticket), "in order");
                // In each round every caller has at most one turn.
                let turn = turns.entry(caller).or_default();
                prop_assert!(position < (*turn + 1) * callers);
                *turn += 1;
                prop_assert!(ticket != new || position <= place, "{position} after {place}");
            }
        }
    }
}
