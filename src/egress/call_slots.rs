//! How many calls are in progress at once: in all, and of each caller.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
};

use super::events::CallsCounted;
use crate::events::emit;

/// Counts calls in progress.
#[derive(Debug)]
pub(super) struct CallSlots {
    max: usize,
    max_per_caller: usize,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    total: usize,
    /// Only callers with calls in progress.
    callers: HashMap<Arc<str>, usize>,
}

/// A call in progress, until this is dropped.
#[derive(Debug)]
pub(super) struct CallSlot {
    slots: Arc<CallSlots>,
    caller: Arc<str>,
}

/// There is no room for another call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum NoSlot {
    #[error("too many calls are in progress (egress.max_calls)")]
    All,
    #[error("too many calls of this caller are in progress (egress.max_calls_per_caller)")]
    Caller,
}

impl CallSlots {
    pub(super) fn new(max: usize, max_per_caller: usize) -> Arc<Self> {
        Arc::new(Self { max, max_per_caller, state: Mutex::default() })
    }

    /// Takes a slot for a call of this caller.
    pub(super) fn take(self: &Arc<Self>, caller: &Arc<str>) -> Result<CallSlot, NoSlot> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if state.total >= self.max {
            return Err(NoSlot::All);
        }
        match state.callers.get_mut(caller) {
            Some(count) if *count >= self.max_per_caller => return Err(NoSlot::Caller),
            Some(count) => *count += 1,
            None => drop(state.callers.insert(Arc::clone(caller), 1)),
        }
        state.total += 1;
        emit(CallsCounted { calls: state.total });
        Ok(CallSlot { slots: Arc::clone(self), caller: Arc::clone(caller) })
    }
}

impl Drop for CallSlot {
    fn drop(&mut self) {
        let mut state = self.slots.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.total -= 1;
        emit(CallsCounted { calls: state.total });
        if let Some(count) = state.callers.get_mut(&self.caller) {
            *count -= 1;
            if *count == 0 {
                state.callers.remove(&self.caller);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_caller_cannot_take_all_slots() {
        let slots = CallSlots::new(3, 2);
        let (one, other): (Arc<str>, Arc<str>) = (Arc::from("one"), Arc::from("other"));
        let first = slots.take(&one).unwrap();
        let _second = slots.take(&one).unwrap();
        assert_eq!(slots.take(&one).unwrap_err(), NoSlot::Caller);
        let third = slots.take(&other).unwrap();
        assert_eq!(slots.take(&other).unwrap_err(), NoSlot::All);
        drop((first, third));
        assert_eq!(slots.state.lock().unwrap().callers.len(), 1, "a caller without calls is forgotten");
        assert!(slots.take(&one).is_ok());
    }
}
