//! Calls to upstreams other than Discord.

use std::future::Future;
use std::time::Duration;

use actix::Addr;
use guildhall_core::breaker::{BreakerKey, CallResult};
use guildhall_core::response::ResponseClass;
use tokio::time::{Instant, timeout};

use super::{AdmitTarget, CircuitBreaker};

/// Why a call to another upstream brought nothing.
#[derive(Debug, thiserror::Error)]
pub enum CallError<E> {
    /// It was not made.
    #[error("not called, {key}: {reason}")]
    Open {
        /// How long to wait before it may be; nothing if waiting does not help.
        retry_after: Option<Duration>,
        /// The reason, for metrics: a short word.
        reason: &'static str,
        /// What refused it.
        key: String,
    },
    /// It may have been made, and no answer came in time.
    #[error("no answer in time")]
    TimedOut,
    /// It failed.
    #[error("the call failed")]
    Failed(#[source] E),
}

impl CircuitBreaker {
    /// Makes a call to the upstream `target`, if its breaker lets it out. The call is `future`, which does nothing before
    /// that; its error counts against the upstream, so what the upstream is not to blame for (a 404) is no error of it.
    ///
    /// # Errors
    ///
    /// Fails if the breaker is open, if the call takes longer than `limit`, or if it fails itself.
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
        let ended = timeout(limit, future).await;
        let result = match &ended {
            Ok(Ok(_)) => CallResult::Answered(ResponseClass::Success),
            Ok(Err(_)) => CallResult::Broken,
            Err(_) => CallResult::TimedOut,
        };
        pass.report(result, began.elapsed());
        match ended {
            Ok(answer) => answer.map_err(CallError::Failed),
            Err(_) => Err(CallError::TimedOut),
        }
    }
}
