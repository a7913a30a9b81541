//! Calls to upstreams other than Discord.

use std::future::Future;
use std::time::Duration;

use actix::Addr;
use guildhall_core::breaker::{BreakerKey, CallResult};
use guildhall_core::response::ResponseClass;
use tokio::time::{Instant, timeout};

use super::{AdmitTarget, CircuitBreaker};

/// Error of a call to another upstream.
#[derive(Debug, thiserror::Error)]
pub enum CallError<E> {
    /// The call was not made.
    #[error("call rejected by {key}: {reason}")]
    Open {
        /// Time until the call may succeed. `None` if waiting does not help.
        retry_after: Option<Duration>,
        /// Short reason, for metrics.
        reason: &'static str,
        /// The breaker that rejected it.
        key: String,
    },
    /// No response arrived in time. The call may have had an effect.
    #[error("the call timed out")]
    TimedOut,
    /// The call failed.
    #[error("the call failed")]
    Failed(#[source] E),
}

impl CircuitBreaker {
    /// Makes a call to the upstream `target`, if its breaker admits it. The call is `future`, which must do nothing
    /// before it is polled. Its error counts against the upstream: return errors that are not the upstream's fault (a
    /// 404) as `Ok`.
    ///
    /// # Errors
    ///
    /// Fails if the breaker is open, if the call takes longer than `limit`, or if the call itself fails.
    pub async fn call<T, E>(
        breaker: &Addr<Self>,
        target: &str,
        limit: Duration,
        future: impl Future<Output = Result<T, E>>,
    ) -> Result<T, CallError<E>> {
        let pass = match breaker.send(AdmitTarget { name: target.to_owned() }).await {
            Ok(Ok(pass)) => pass,
            Ok(Err((refused, retry_after))) => {
                return Err(CallError::Open { retry_after, reason: refused.reason, key: refused.key });
            }
            Err(_) => {
                let key = BreakerKey::Target(target.to_owned()).to_string();
                return Err(CallError::Open { retry_after: None, reason: "shutting_down", key });
            }
        };
        let began = Instant::now();
        let outcome = timeout(limit, future).await;
        let result = match &outcome {
            Ok(Ok(_)) => CallResult::Answered(ResponseClass::Success),
            Ok(Err(_)) => CallResult::Broken,
            Err(_) => CallResult::TimedOut,
        };
        pass.report(result, began.elapsed());
        match outcome {
            Ok(response) => response.map_err(CallError::Failed),
            Err(_) => Err(CallError::TimedOut),
        }
    }
}
