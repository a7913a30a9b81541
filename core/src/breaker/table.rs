//! Table of breakers: bounded, with indexes of the times at which they change.

use std::collections::{BTreeSet, HashMap};

use crate::time::Timestamp;

use super::machine::{Breaker, Transition, TransitionContext};
use super::rng::Rng;
use super::{BreakerConfig, BreakerKey, BreakerKind, BreakerState};

#[derive(Debug)]
struct Entry {
    breaker: Breaker,
    /// Its positions in the indexes.
    wake: Option<Timestamp>,
    quiet: Option<Timestamp>,
}

/// All breakers.
#[derive(Debug)]
pub(super) struct BreakerTable {
    pub(super) config: BreakerConfig,
    rng: Rng,
    /// Number of permits issued.
    latest: u64,
    /// The latest generation of any removed breaker: a new one must not take older results.
    forgotten: u64,
    all: HashMap<BreakerKey, Entry>,
    /// Number of breakers that are never removed.
    permanent: usize,
    /// Breakers that change by time alone, by that time.
    wakes: BTreeSet<(Timestamp, BreakerKey)>,
    /// Closed breakers that can be removed, by their last failure, slow call or transition.
    quiet: BTreeSet<(Timestamp, BreakerKey)>,
    evicted: u64,
    unwatched: u64,
}

impl BreakerTable {
    pub(super) fn new(config: BreakerConfig, seed: u64) -> Self {
        Self {
            config,
            rng: Rng::new(seed),
            latest: 0,
            forgotten: 0,
            all: HashMap::new(),
            permanent: 0,
            wakes: BTreeSet::new(),
            quiet: BTreeSet::new(),
            evicted: 0,
            unwatched: 0,
        }
    }

    pub(super) fn get(&self, key: &BreakerKey) -> Option<&Breaker> {
        self.all.get(key).map(|entry| &entry.breaker)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&BreakerKey, &Breaker)> {
        self.all.iter().map(|(key, entry)| (key, &entry.breaker))
    }

    pub(super) fn len(&self) -> usize {
        self.all.len()
    }

    /// Number of breakers removed early because others needed the room.
    pub(super) const fn evicted(&self) -> u64 {
        self.evicted
    }

    /// How often a breaker was not created because there was no room.
    pub(super) const fn unwatched(&self) -> u64 {
        self.unwatched
    }

    /// Number of the next permit.
    pub(super) fn next_ticket(&mut self) -> u64 {
        self.latest += 1;
        self.latest
    }

    /// Whether a permit belongs to the breaker's current generation. Creates the breaker if it is needed from now on.
    pub(super) fn is_current(&mut self, key: &BreakerKey, ticket: u64, is_problem: bool, now: Timestamp) -> bool {
        if let Some(entry) = self.all.get(key) {
            return entry.breaker.is_current(ticket);
        }
        let is_needed = key.is_permanent() || (is_problem && ticket > self.forgotten);
        is_needed && self.ensure(key, now)
    }

    /// Whether the breaker exists, or there is room for it.
    pub(super) fn has_room(&self, key: &BreakerKey) -> bool {
        self.all.contains_key(key)
            || key.is_permanent()
            || self.all.len() - self.permanent < self.config.max_keys
            || !self.quiet.is_empty()
    }

    /// Creates a breaker if it does not exist and there is room for it.
    pub(super) fn ensure(&mut self, key: &BreakerKey, now: Timestamp) -> bool {
        if self.all.contains_key(key) {
            return true;
        }
        if !key.is_permanent() && self.all.len() - self.permanent >= self.config.max_keys {
            let Some((_, oldest)) = self.quiet.first().cloned() else {
                self.unwatched += 1;
                return false;
            };
            self.forget(&oldest);
            self.evicted += 1;
        }
        let generation = if key.is_permanent() { 0 } else { self.forgotten };
        self.permanent += usize::from(key.is_permanent());
        let entry = Entry { breaker: Breaker::new(generation, now), wake: None, quiet: None };
        self.all.insert(key.clone(), entry);
        self.change(key, now, |_, _| None);
        true
    }

    /// Applies a change to a breaker, and updates the indexes.
    pub(super) fn change(
        &mut self,
        key: &BreakerKey,
        now: Timestamp,
        act: impl FnOnce(&mut Breaker, TransitionContext<'_>) -> Option<Transition>,
    ) -> Option<Transition> {
        let entry = self.all.get_mut(key)?;
        let step = TransitionContext { config: &self.config, now, random: self.rng.next(), latest: self.latest };
        let change = act(&mut entry.breaker, step);
        let sends_probes = key.kind() != BreakerKind::Target;
        let wake = entry.breaker.next_wake(sends_probes, &self.config);
        update_index(&mut self.wakes, &mut entry.wake, wake, key);
        let quiet = (!key.is_permanent() && entry.breaker.state() == BreakerState::Closed)
            .then(|| entry.breaker.last_problem());
        update_index(&mut self.quiet, &mut entry.quiet, quiet, key);
        change
    }

    pub(super) fn next_wake(&self) -> Option<Timestamp> {
        let wake = self.wakes.first().map(|(at, _)| *at);
        let forget = self.quiet.first().map(|(troubled, _)| *troubled + self.config.reset_after);
        wake.into_iter().chain(forget).min()
    }

    /// Breakers that are due, the longest due first.
    pub(super) fn due(&self, now: Timestamp) -> Vec<BreakerKey> {
        self.wakes.iter().take_while(|(at, _)| *at <= now).map(|(_, key)| key.clone()).collect()
    }

    /// Removes breakers that were closed and quiet for long.
    pub(super) fn forget_quiet(&mut self, now: Timestamp) {
        while let Some((troubled, key)) = self.quiet.first()
            && *troubled + self.config.reset_after <= now
        {
            let key = key.clone();
            self.forget(&key);
        }
    }

    fn forget(&mut self, key: &BreakerKey) {
        if let Some(mut entry) = self.all.remove(key) {
            self.forgotten = self.forgotten.max(entry.breaker.generation());
            update_index(&mut self.wakes, &mut entry.wake, None, key);
            update_index(&mut self.quiet, &mut entry.quiet, None, key);
        }
    }
}

fn update_index(
    list: &mut BTreeSet<(Timestamp, BreakerKey)>,
    listed: &mut Option<Timestamp>,
    at: Option<Timestamp>,
    key: &BreakerKey,
) {
    if *listed == at {
        return;
    }
    if let Some(old) = listed.take() {
        list.remove(&(old, key.clone()));
    }
    if let Some(at) = at {
        list.insert((at, key.clone()));
        *listed = Some(at);
    }
}
