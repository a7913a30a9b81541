//! Which failed accesses to the store are logged: an outage concerns all parts that use it, and is logged once for all
//! of them.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
};

use guildhall_actors::clock::Clock;
use guildhall_core::failure_streak::FailureStreak;

use super::{
    error::{EngineError, ErrorClass},
    events::{StoreFailed, StoreRecovered},
};
use crate::events::emit;

/// An access to the store that can fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum StoreAccess {
    /// The connection for writes.
    Connect,
    /// Writes.
    Write,
    /// Reads.
    Read,
    /// The lease of this process.
    Heartbeat,
    /// The share of a limit.
    Share,
    /// Notifications of the other processes.
    Listen,
    /// Taking a named lease.
    AcquireLease,
    /// Renewing a named lease.
    RenewLease,
    /// Releasing a named lease.
    ReleaseLease,
}

impl StoreAccess {
    /// Name in metrics and logs.
    const fn name(self) -> &'static str {
        match self {
            Self::Connect => "connect",
            Self::Write => "write",
            Self::Read => "read",
            Self::Heartbeat => "heartbeat",
            Self::Share => "share",
            Self::Listen => "listen",
            Self::AcquireLease => "lease_acquire",
            Self::RenewLease => "lease_renew",
            Self::ReleaseLease => "lease_release",
        }
    }

    /// Whether a success of `other` shows that this access works again.
    fn works_with(self, other: Self) -> bool {
        match self {
            Self::Connect | Self::Write => matches!(other, Self::Connect | Self::Write),
            Self::AcquireLease | Self::RenewLease | Self::ReleaseLease => {
                matches!(other, Self::AcquireLease | Self::RenewLease | Self::ReleaseLease)
            }
            // Shares are changed only if they have to be; the heartbeat uses the same connection.
            Self::Heartbeat | Self::Share => other == Self::Heartbeat,
            Self::Read | Self::Listen => other == self,
        }
    }
}

/// The failures of one store.
#[derive(Debug)]
pub(super) struct StoreFailures {
    clock: Clock,
    state: Mutex<State>,
    /// Spares successes the lock while nothing fails.
    is_out: AtomicBool,
}

#[derive(Debug, Default)]
struct State {
    /// The outage: failures that concern every access.
    outage: FailureStreak,
    /// What has failed in it, and has not succeeded since.
    out: BTreeSet<StoreAccess>,
    /// Other failures, by access and class. Each concerns some requests only.
    others: BTreeMap<(StoreAccess, &'static str), FailureStreak>,
}

impl Default for StoreFailures {
    fn default() -> Self {
        Self { clock: Clock::start(), state: Mutex::default(), is_out: AtomicBool::new(false) }
    }
}

impl StoreFailures {
    /// Reports a failed access.
    pub(super) fn on_failure(&self, access: StoreAccess, error: &EngineError) {
        let message = error.to_store_error().to_string();
        match error.class() {
            class @ (ErrorClass::Lost | ErrorClass::Busy | ErrorClass::Full) => {
                self.on_outage(access, class.name(), &message);
            }
            class @ (ErrorClass::Refused | ErrorClass::Raced | ErrorClass::Corrupt) => {
                self.on_isolated(access, class.name(), &message);
            }
        }
    }

    /// Reports a failed access that shows that the store is out of reach.
    pub(super) fn on_outage(&self, access: StoreAccess, class: &'static str, message: &str) {
        let summary = {
            let mut state = self.state();
            state.out.insert(access);
            self.is_out.store(true, Ordering::Release);
            state.outage.on_failure(self.clock.now())
        };
        emit(StoreFailed { action: access.name(), class, message, summary });
    }

    /// Reports a failed access that says nothing about others.
    pub(super) fn on_isolated(&self, access: StoreAccess, class: &'static str, message: &str) {
        let summary = {
            let mut state = self.state();
            state.others.entry((access, class)).or_default().on_isolated_failure(self.clock.now())
        };
        emit(StoreFailed { action: access.name(), class, message, summary });
    }

    /// Reports a successful access. The outage ends with that of the last access that had failed.
    pub(super) fn on_success(&self, access: StoreAccess) {
        if !self.is_out.load(Ordering::Acquire) {
            return;
        }
        let recovery = {
            let mut state = self.state();
            state.out.retain(|failed| !failed.works_with(access));
            if !state.out.is_empty() {
                return;
            }
            self.is_out.store(false, Ordering::Release);
            state.outage.on_success(self.clock.now())
        };
        if let Some(recovery) = recovery {
            emit(StoreRecovered { recovery });
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_out(failures: &StoreFailures) -> bool {
        failures.state().outage.is_failing()
    }

    #[test]
    fn outage_ends_when_all_that_failed_works_again() {
        let failures = StoreFailures::default();
        for access in [StoreAccess::Connect, StoreAccess::Read, StoreAccess::Share] {
            failures.on_outage(access, "lost", "connection refused");
        }
        failures.on_success(StoreAccess::Write);
        failures.on_success(StoreAccess::Read);
        assert!(is_out(&failures));
        failures.on_success(StoreAccess::Heartbeat);
        assert!(!is_out(&failures));
    }

    #[test]
    fn a_rejected_request_is_no_outage() {
        let failures = StoreFailures::default();
        failures.on_failure(StoreAccess::Write, &EngineError::Raced("two processes wrote the same queue"));
        assert!(!is_out(&failures));
        assert_eq!(failures.state().others.len(), 1);
    }
}
