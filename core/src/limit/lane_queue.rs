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
    use std::collections::HashMap;

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
        /// Whatever is inserted and removed, a call waits at most as many turns as it was told.
        #[test]
        fn no_call_waits_longer_than_its_place_says(
            steps in prop::collection::vec((0u8..4, 0u8..3), 1..200),
        ) {
            let mut queue = LaneQueue::default();
            let mut waiting: HashMap<u64, (CallerId, usize)> = HashMap::new();
            for (number, (action, caller)) in steps.into_iter().enumerate() {
                let caller = CallerId::of(&caller.to_string());
                match action {
                    // A new call of another caller may pass each waiting call once; so only pops are counted here, and
                    // nothing is inserted after the first.
                    0..=2 => {
                        waiting.insert(number as u64, (caller, queue.ahead(caller)));
                        queue.insert(caller, Ticket(number as u64));
                    }
                    _ => {
                        if let Some((ticket, (caller, _))) = waiting.iter().min().map(|(ticket, call)| (*ticket, *call)) {
                            queue.remove(caller, Ticket(ticket));
                            waiting.remove(&ticket);
                        }
                    }
                }
                prop_assert_eq!(queue.len(), waiting.len());
                prop_assert_eq!(queue.iter().count(), waiting.len());
            }
            let callers = waiting.values().map(|(caller, _)| *caller).collect::<std::collections::HashSet<_>>().len();
            let mut last: HashMap<CallerId, u64> = HashMap::new();
            let mut turns: HashMap<CallerId, usize> = HashMap::new();
            for (position, ticket) in drain(&mut queue).into_iter().enumerate() {
                let (caller, _) = waiting[&ticket];
                prop_assert!(last.insert(caller, ticket).is_none_or(|before| before < ticket), "in order");
                // In each round every caller has at most one turn.
                let turn = turns.entry(caller).or_default();
                prop_assert!(position < (*turn + 1) * callers);
                *turn += 1;
            }
        }
    }
}
