//! What there is to say about the store.

use std::time::Duration;

use metrics::{counter, gauge, histogram};
use tracing::{info, warn};

use crate::{
    events::InternalEvent,
    metrics::{STORE_BATCH_REQUESTS, STORE_BATCH_SECONDS, STORE_BATCHES, STORE_ERRORS, STORE_UP},
};

/// The store is open: this process may write.
pub(super) struct StoreAttached<'a> {
    pub(super) place: &'a str,
    pub(super) epoch: i64,
    /// How many queues an earlier process had left behind.
    pub(super) freed: u64,
}

impl InternalEvent for StoreAttached<'_> {
    fn emit(self) {
        info!(store = self.place, epoch = self.epoch, freed = self.freed, "the store is open");
        gauge!(STORE_UP).set(1);
    }
}

/// A batch of writes was committed.
pub(super) struct BatchCommitted {
    pub(super) requests: usize,
    pub(super) took: Duration,
}

impl InternalEvent for BatchCommitted {
    fn emit(self) {
        counter!(STORE_BATCHES).increment(1);
        #[expect(clippy::cast_precision_loss, reason = "a batch is small")]
        histogram!(STORE_BATCH_REQUESTS).record(self.requests as f64);
        histogram!(STORE_BATCH_SECONDS).record(self.took);
    }
}

/// A batch of writes, a read or a connection failed.
pub(super) struct StoreFailed<'a> {
    /// What was tried.
    pub(super) what: &'static str,
    /// A short word for why.
    pub(super) why: &'static str,
    /// Why, for people.
    pub(super) says: &'a str,
}

impl InternalEvent for StoreFailed<'_> {
    fn emit(self) {
        warn!(what = self.what, why = self.why, error = self.says, "the store failed");
        counter!(STORE_ERRORS, "what" => self.what, "why" => self.why).increment(1);
        if self.why == "lost" && self.what != "read" {
            gauge!(STORE_UP).set(0);
        }
    }
}
