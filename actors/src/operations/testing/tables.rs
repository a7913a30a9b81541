//! What a store in memory keeps.

use std::collections::{BTreeMap, HashMap, HashSet};

use guildhall_core::operation::{ManagedKind, OperationId, Queue};
use guildhall_core::time::UnixMs;

use crate::operations::{Attempt, Change, Claim, Fence, Intent, Recorded, Stored};

#[derive(Clone, Debug)]
pub(in crate::operations) struct Row {
    pub(in crate::operations) stored: Stored,
    pub(in crate::operations) result: Option<String>,
    pub(in crate::operations) made: Option<u64>,
    pub(in crate::operations) attempts: Vec<Attempt>,
}

/// A guild's object of this kind with this key.
type Key = (Option<u64>, ManagedKind, String);

#[derive(Debug, Default)]
pub(super) struct Standing {
    pub(super) next_seq: u64,
    pub(super) owner: Option<u32>,
    pub(super) fence: u64,
    pub(super) paused: bool,
}

#[derive(Debug, Default)]
pub(super) struct Tables {
    pub(super) rows: BTreeMap<OperationId, Row>,
    /// What is not done.
    pub(super) lines: BTreeMap<Queue, BTreeMap<u64, OperationId>>,
    pub(super) queues: BTreeMap<Queue, Standing>,
    pub(super) bindings: HashMap<Key, (u64, Option<u64>)>,
    pub(super) all_paused: bool,
    pub(super) commits: u64,
    /// The claims that somebody knows of.
    pub(super) told: HashSet<(Queue, u64)>,
}

impl Tables {
    pub(super) fn due(&self, queue: Queue) -> Option<UnixMs> {
        let line = self.lines.get(&queue)?;
        line.values().map(|id| self.rows[id].stored.operation.eligible_at).min()
    }

    pub(super) fn is_free(&self, queue: Queue) -> bool {
        self.queues.get(&queue).is_some_and(|standing| standing.owner.is_none() && !standing.paused)
    }

    pub(super) fn claim(&mut self, queue: Queue, owner: u32) -> Option<Claim> {
        let paused = self.all_paused;
        let standing = self.queues.entry(queue).or_default();
        if standing.owner.is_some() {
            return None;
        }
        standing.owner = Some(owner);
        standing.fence += 1;
        Some(Claim { queue, fence: Fence(standing.fence), paused: standing.paused || paused })
    }

    /// What was taken for an answer that got lost goes back.
    pub(super) fn give_untold_back(&mut self, owner: u32) {
        for (queue, standing) in &mut self.queues {
            if standing.owner == Some(owner) && !self.told.contains(&(*queue, standing.fence)) {
                (standing.owner, standing.fence) = (None, standing.fence + 1);
            }
        }
    }

    pub(super) fn record(&mut self, change: &Change) -> Recorded {
        if self.queues.get(&change.queue).map(|standing| standing.fence) != Some(change.fence.0) {
            return Recorded::Fenced;
        }
        let Some(row) = self.rows.get_mut(&change.id) else { return Recorded::Gone };
        if row.stored.state.is_final() {
            return Recorded::Gone;
        }
        let stored = &mut row.stored;
        // Told again, since the answer got lost, it is no step.
        assert!(stored.state == change.state || stored.state.to(change.state).is_ok(), "{:?} {change:?}", stored.state);
        (stored.state, stored.attempts, stored.delays) = (change.state, change.attempts, change.delays);
        (stored.parked, stored.error, stored.operation.eligible_at) =
            (change.parked, change.error.clone(), change.eligible_at);
        match change.intent {
            Intent::Keep => {}
            Intent::Open(at) => stored.intent = Some(at),
            Intent::Close => stored.intent = None,
        }
        stored.intent = stored.intent.filter(|_| !change.state.is_final());
        let seq = stored.seq;
        row.result = change.result.clone();
        row.made = change.made;
        row.attempts.extend(change.attempt.clone());
        for binding in &change.bind {
            let key = (change.guild, binding.kind, binding.key.clone());
            self.bindings.insert(key, (binding.discord_id, binding.channel));
        }
        if change.state.is_final() {
            self.lines.entry(change.queue).or_default().remove(&seq);
        }
        Recorded::Done
    }
}
