//! Heads of wait queues that are ready, of one lane of a domain: their callers take turns.

use std::collections::{BTreeSet, HashMap};

use super::caller::CallerId;
use super::wait_queue::{Ticket, WaitQueueId};

/// Fewer remembered turns than this are not pruned.
const MIN_TURNS: usize = 1_024;

/// Ready heads by caller. The caller whose last turn is longest ago is next, with its oldest head; a new caller is after
/// all that wait.
#[derive(Debug)]
pub(super) struct Turns {
    heads: HashMap<CallerId, BTreeSet<(Ticket, WaitQueueId)>>,
    /// Callers with heads, by their last turn.
    order: BTreeSet<(u64, CallerId)>,
    /// The last turn of each caller. A caller keeps its place while a head of it is replaced by the next.
    last: HashMap<CallerId, u64>,
    latest: u64,
    len: usize,
    prune_above: usize,
}

impl Turns {
    pub(super) fn new() -> Self {
        Self {
            heads: HashMap::new(),
            order: BTreeSet::new(),
            last: HashMap::new(),
            latest: 0,
            len: 0,
            prune_above: MIN_TURNS,
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.len == 0
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn insert(&mut self, caller: CallerId, ticket: Ticket, queue_id: WaitQueueId) {
        if !self.heads.contains_key(&caller) {
            let turn = match self.last.get(&caller) {
                Some(turn) => *turn,
                None => self.next_turn(caller),
            };
            self.order.insert((turn, caller));
        }
        self.len += usize::from(self.heads.entry(caller).or_default().insert((ticket, queue_id)));
    }

    pub(super) fn remove(&mut self, caller: CallerId, ticket: Ticket, queue_id: WaitQueueId) {
        let Some(heads) = self.heads.get_mut(&caller) else { return };
        self.len -= usize::from(heads.remove(&(ticket, queue_id)));
        if heads.is_empty() {
            self.heads.remove(&caller);
            if let Some(turn) = self.last.get(&caller) {
                self.order.remove(&(*turn, caller));
            }
        }
    }

    /// The next head.
    pub(super) fn first(&self) -> Option<(Ticket, WaitQueueId)> {
        let (_, caller) = self.order.first()?;
        self.heads.get(caller)?.first().copied()
    }

    /// A call of this caller was granted.
    pub(super) fn took(&mut self, caller: CallerId) {
        let Some(turn) = self.last.get(&caller).copied() else { return };
        let is_waiting = self.order.remove(&(turn, caller));
        let turn = self.next_turn(caller);
        if is_waiting {
            self.order.insert((turn, caller));
        }
    }

    /// Number of heads before a new one of this caller.
    pub(super) fn ahead(&self, caller: CallerId) -> usize {
        let own = self.heads.get(&caller).map_or(0, BTreeSet::len);
        let others = self.heads.iter().filter(|(other, _)| **other != caller);
        own + others.map(|(_, heads)| heads.len().min(own + 1)).sum::<usize>()
    }

    fn next_turn(&mut self, caller: CallerId) -> u64 {
        self.latest += 1;
        if self.last.len() >= self.prune_above {
            let heads = &self.heads;
            self.last.retain(|other, _| *other == caller || heads.contains_key(other));
            self.prune_above = MIN_TURNS.max(self.last.len() * 2);
        }
        self.last.insert(caller, self.latest);
        self.latest
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Grants the next head, whose queue has another call of the same caller with this ticket.
    fn grant(turns: &mut Turns, callers: &HashMap<u64, CallerId>, next: Option<u64>) -> u64 {
        let (ticket, queue_id) = turns.first().unwrap();
        let caller = callers[&ticket.0];
        turns.remove(caller, ticket, queue_id);
        turns.took(caller);
        if let Some(next) = next {
            turns.insert(caller, Ticket(next), queue_id);
        }
        ticket.0
    }

    #[test]
    fn caller_with_many_queues_has_one_turn_in_each_round() {
        let (busy, one, two) = (CallerId::of("busy"), CallerId::of("one"), CallerId::of("two"));
        let callers: HashMap<u64, CallerId> =
            (1..=100).map(|ticket| (ticket, busy)).chain([(101, one), (102, two), (103, one), (104, two)]).collect();
        let mut turns = Turns::new();
        (1..=100).for_each(|number| turns.insert(busy, Ticket(number), u32::try_from(number).unwrap()));
        turns.insert(one, Ticket(101), 500);
        turns.insert(two, Ticket(102), 501);
        assert_eq!((turns.len(), turns.ahead(one), turns.ahead(busy), turns.ahead(CallerId::NONE)), (102, 4, 102, 3));
        let granted: Vec<u64> =
            [None, Some(103), Some(104), None, None, None, None].map(|next| grant(&mut turns, &callers, next)).into();
        assert_eq!(granted, [1, 101, 102, 2, 103, 104, 3]);
    }

    #[test]
    fn caller_keeps_its_place_while_others_arrive_in_its_queue() {
        let (busy, one) = (CallerId::of("busy"), CallerId::of("one"));
        let callers = HashMap::from([(1, busy), (2, one), (3, busy)]);
        let mut turns = Turns::new();
        turns.insert(busy, Ticket(1), 1);
        turns.insert(one, Ticket(2), 2);
        assert_eq!(grant(&mut turns, &callers, Some(3)), 1);
        // The queue of the other is reviewed again and again.
        for _ in 0..3 {
            turns.remove(one, Ticket(2), 2);
            turns.insert(one, Ticket(2), 2);
        }
        assert_eq!(grant(&mut turns, &callers, None), 2);
    }

    #[test]
    fn remembered_turns_are_bounded() {
        let mut turns = Turns::new();
        for number in 0..10_000 {
            let caller = CallerId::of(&number.to_string());
            turns.insert(caller, Ticket(number), 1);
            turns.remove(caller, Ticket(number), 1);
        }
        assert!(turns.last.len() <= MIN_TURNS && turns.order.is_empty() && turns.is_empty());
    }
}
