//! What callers share: places for calls, and memory for bodies.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
};

/// A bounded amount that callers share.
///
/// A caller may take as much as it leaves free: alone half of it, the next one half of the rest. What is given back goes
/// first to those that hold little, so that callers that always want more end with the same.
#[derive(Debug)]
pub(super) struct FairPool {
    max: usize,
    max_per_caller: usize,
    /// Is notified of the amount in use, in order.
    on_change: fn(usize),
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    used: usize,
    /// Only callers that hold something.
    callers: HashMap<Arc<str>, usize>,
}

/// What a caller holds, until this is dropped.
#[derive(Debug)]
pub(super) struct Share {
    pool: Arc<FairPool>,
    caller: Arc<str>,
    amount: usize,
}

/// Why a caller gets no more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NoRoom {
    /// Nothing is left.
    All,
    /// The caller holds its share.
    Caller,
}

impl FairPool {
    pub(super) fn new(max: usize, max_per_caller: usize, on_change: fn(usize)) -> Arc<Self> {
        Arc::new(Self { max, max_per_caller, on_change, state: Mutex::default() })
    }

    /// Takes an amount for a caller.
    pub(super) fn take(self: &Arc<Self>, caller: &Arc<str>, amount: usize) -> Result<Share, NoRoom> {
        self.add(caller, amount)?;
        Ok(Share { pool: Arc::clone(self), caller: Arc::clone(caller), amount })
    }

    fn add(&self, caller: &Arc<str>, amount: usize) -> Result<(), NoRoom> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let free = self.max.saturating_sub(state.used);
        if amount > free {
            return Err(NoRoom::All);
        }
        let held = state.callers.get(caller).copied().unwrap_or(0).saturating_add(amount);
        if held > self.max_per_caller.min(free) {
            return Err(NoRoom::Caller);
        }
        state.used += amount;
        if held > 0 {
            state.callers.insert(Arc::clone(caller), held);
        }
        (self.on_change)(state.used);
        Ok(())
    }

    fn remove(&self, caller: &Arc<str>, amount: usize) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.used -= amount;
        (self.on_change)(state.used);
        if let Some(held) = state.callers.get_mut(caller) {
            *held -= amount;
            if *held == 0 {
                state.callers.remove(caller);
            }
        }
    }
}

impl Share {
    /// Takes more for the same caller. After an error it holds what it held before.
    pub(super) fn grow(&mut self, amount: usize) -> Result<(), NoRoom> {
        self.pool.add(&self.caller, amount)?;
        self.amount += amount;
        Ok(())
    }

    /// Takes more, or gives back a part, so that it is this amount.
    pub(super) fn resize(&mut self, amount: usize) -> Result<(), NoRoom> {
        if amount > self.amount {
            return self.grow(amount - self.amount);
        }
        self.pool.remove(&self.caller, self.amount - amount);
        self.amount = amount;
        Ok(())
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.pool.remove(&self.caller, self.amount);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn pool(max: usize, max_per_caller: usize) -> Arc<FairPool> {
        FairPool::new(max, max_per_caller, |_| ())
    }

    fn fill(pool: &Arc<FairPool>, caller: &str) -> (Vec<Share>, NoRoom) {
        let (caller, mut shares) = (Arc::from(caller), Vec::new());
        loop {
            match pool.take(&caller, 1) {
                Ok(share) => shares.push(share),
                Err(full) => return (shares, full),
            }
        }
    }

    #[test]
    fn each_caller_can_hold_as_much_as_is_left() {
        let pool = pool(100, 1_000);
        let (first, full) = fill(&pool, "first");
        assert_eq!((first.len(), full), (50, NoRoom::Caller));
        let (second, full) = fill(&pool, "second");
        assert_eq!((second.len(), full), (25, NoRoom::Caller));
        // The first gives back what it took alone, and both end with the same.
        drop(first);
        let (first, _) = fill(&pool, "first");
        assert_eq!(first.len(), 38);
        drop((first, second));
        assert_eq!(pool.state.lock().unwrap().callers.len(), 0, "a caller that holds nothing is forgotten");
    }

    #[test]
    fn caller_is_limited_by_its_own_maximum_as_well() {
        let pool = pool(100, 3);
        assert_eq!(fill(&pool, "one").0.len(), 3);
        let small = self::pool(1, 1);
        let (held, full) = fill(&small, "one");
        assert_eq!((held.len(), full), (1, NoRoom::All));
    }

    #[test]
    fn share_grows_and_shrinks_within_the_bounds() {
        let pool = pool(100, 100);
        let mut share = pool.take(&Arc::from("one"), 10).unwrap();
        share.grow(40).unwrap();
        assert_eq!(share.grow(1), Err(NoRoom::Caller));
        share.resize(20).unwrap();
        share.resize(50).unwrap();
        assert_eq!(share.resize(51), Err(NoRoom::Caller));
        drop(share);
        assert_eq!(pool.state.lock().unwrap().used, 0);
    }

    proptest! {
        #[test]
        fn four_greedy_callers_leave_something(takes in proptest::collection::vec((0_usize..4, 1_usize..20), 0..200)) {
            let pool = pool(1_000, 1_000);
            let shares: Vec<_> =
                takes.iter().filter_map(|(caller, amount)| pool.take(&caller.to_string().into(), *amount).ok()).collect();
            prop_assert!(pool.take(&Arc::from("another"), 1).is_ok());
            drop(shares);
            let state = pool.state.lock().unwrap();
            prop_assert_eq!((state.used, state.callers.len()), (0, 0));
        }
    }
}
