//! Assignment of queues to processes. Every process computes the same result, and few queues move when a process joins
//! or leaves.
//!
//! Queues are divided into slots by their numbers, and each slot belongs to the process with the highest score for it.

use uuid::Uuid;

/// Number of slots. Much greater than the number of processes, so that each has about the same number of slots.
pub(in crate::store) const SLOTS: usize = 1_024;

/// SQL expression for the slot of a queue. Discord's IDs differ by time above bit 22; IDs that people choose differ in
/// the low bits.
pub(in crate::store) const SLOT: &str = "(((queue >> 22) # queue) & 1023)::int";

/// The slot of a queue. Computes the same as [`SLOT`].
pub(in crate::store) fn slot(queue: i64) -> usize {
    usize::try_from(((queue >> 22) ^ queue) & 1_023).unwrap_or(0)
}

/// The slots of one process as a bit set. The first slot is the lowest bit of the first byte, as PostgreSQL counts
/// them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::store) struct Slots([u8; SLOTS / 8]);

impl Slots {
    /// All slots, for a process that is alone.
    pub(in crate::store) const ALL: Self = Self([u8::MAX; SLOTS / 8]);
    /// No slots, for a process that is leaving or not ready yet.
    pub(in crate::store) const NONE: Self = Self([0; SLOTS / 8]);

    /// The slots of one process among these processes.
    pub(in crate::store) fn of(own_id: Uuid, all: &[Uuid]) -> Self {
        let mut slots = Self::NONE;
        for slot in 0..SLOTS {
            let best = all.iter().copied().max_by_key(|id| (score(slot, *id), *id));
            if best == Some(own_id) {
                slots.0[slot / 8] |= 1 << (slot % 8);
            }
        }
        slots
    }

    pub(in crate::store) fn has(&self, queue: i64) -> bool {
        let slot = slot(queue);
        self.0[slot / 8] & (1 << (slot % 8)) != 0
    }

    pub(in crate::store) fn bytes(&self) -> Vec<u8> {
        self.0.to_vec()
    }
}

/// Score of a process for a slot. Must never change: processes of two versions have to agree.
fn score(slot: usize, id: Uuid) -> u64 {
    let (high, low) = id.as_u64_pair();
    let mut mixed = high ^ low.rotate_left(32) ^ (slot as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    for (shift, factor) in [(30, 0xbf58_476d_1ce4_e5b9), (27, 0x94d0_49bb_1331_11eb_u64)] {
        mixed = (mixed ^ (mixed >> shift)).wrapping_mul(factor);
    }
    mixed ^ (mixed >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ids(count: u128) -> Vec<Uuid> {
        (1..=count).map(|n| Uuid::from_u128(n.wrapping_mul(0x1234_5678_9abc_def0_0fed_cba9_8765_4321))).collect()
    }

    #[test]
    fn every_queue_belongs_to_exactly_one_process() {
        let all = ids(5);
        let slots: Vec<Slots> = all.iter().map(|id| Slots::of(*id, &all)).collect();
        for queue in [0, 1, -7, 1_300_000_000_000_000_000, i64::MIN, i64::MAX] {
            assert_eq!(slots.iter().filter(|slots| slots.has(queue)).count(), 1, "{queue}");
        }
        assert!(Slots::ALL.has(-5) && !Slots::NONE.has(-5));
    }

    #[test]
    fn processes_have_about_as_many_queues_each() {
        let all = ids(4);
        for first in [1_300_000_000_000_000_000_i64, 1] {
            for id in &all {
                let slots = Slots::of(*id, &all);
                let own = (first..first + 10_000).filter(|queue| slots.has(*queue)).count();
                assert!((2_000..3_000).contains(&own), "{own} of 10,000");
            }
        }
    }

    #[test]
    fn only_queues_of_a_leaving_process_move() {
        let before = ids(4);
        let after = &before[..3];
        for id in after {
            let (old, new) = (Slots::of(*id, &before), Slots::of(*id, after));
            assert!((0..5_000).all(|queue| !old.has(queue) || new.has(queue)));
        }
    }
}
