//! Logs and metrics of identify requests.

use std::time::Duration;

use guildhall_core::failure_streak::FailureSummary;
use guildhall_core::time::millis;
use tracing::{debug, error, warn};

use crate::events::{InternalEvent, counter};
use crate::metrics::GATEWAY_IDENTIFIES;

/// Result of a shard's request to identify.
pub(super) enum IdentifyDecided<'a> {
    /// Permitted and counted.
    Granted { shard: u32 },
    /// The daily session starts are used up.
    Spent { shard: u32, retry_in: Duration, summary: Option<FailureSummary> },
    /// Session starts cannot be counted.
    Uncounted { shard: u32, error: &'a str, retry_in: Duration, summary: Option<FailureSummary> },
}

impl InternalEvent for IdentifyDecided<'_> {
    fn emit(self) {
        let result = match self {
            Self::Granted { shard } => {
                debug!(shard, "shard may identify");
                "granted"
            }
            Self::Spent { shard, retry_in: again_in, summary } => {
                if let Some(summary) = summary {
                    let (failures, failing_for_s) = summary.repeated();
                    error!(
                        shard,
                        again_in_ms = millis(again_in),
                        failures,
                        failing_for_s,
                        "daily session starts used up; one more would make Discord reset the token, so the shard waits; \
                     find out what starts so many sessions"
                    );
                }
                "spent"
            }
            Self::Uncounted { shard, error, retry_in: again_in, summary } => {
                if let Some(summary) = summary {
                    let ((failures, failing_for_s), again_in_ms) = (summary.repeated(), millis(again_in));
                    warn!(
                        shard,
                        error, again_in_ms, failures, failing_for_s, "cannot count session starts; the shard waits"
                    );
                }
                "uncounted"
            }
        };
        counter!(GATEWAY_IDENTIFIES, "result" => result).increment(1);
    }
}
