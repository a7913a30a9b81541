//! Manual control of breakers, and queries.

use std::time::Duration;

use actix::{Context, Handler, Message, MessageResult};
use guildhall_core::breaker::{BreakerKey, BreakerSnapshot, ForceError, TooManyKeys};
use guildhall_core::heavy_hitters::HeavyHitter;
use guildhall_core::spending::{Consumer, Measure};

use super::CircuitBreaker;

/// Opens a breaker until it is reset.
#[derive(Message)]
#[rtype(result = "Result<(), TooManyKeys>")]
pub struct ForceOpen(
    /// The breaker.
    pub BreakerKey,
);

/// Opens a breaker for a time. After that it is probed, as after any cooldown.
#[derive(Message)]
#[rtype(result = "Result<(), ForceError>")]
pub struct ForceOpenFor {
    /// The breaker.
    pub key: BreakerKey,
    /// Minimum time in the open state.
    pub duration: Duration,
}

/// Checks whether a breaker could be forced open, for a time or until it is reset. Changes nothing.
#[derive(Message)]
#[rtype(result = "Result<(), ForceError>")]
pub struct CheckForceOpen {
    /// The breaker.
    pub key: BreakerKey,
    /// Time in the open state. `None`: until it is reset.
    pub duration: Option<Duration>,
}

/// Closes a breaker, whatever opened it.
#[derive(Message)]
#[rtype(result = "()")]
pub struct ResetBreaker(
    /// The breaker.
    pub BreakerKey,
);

/// Forgets that a webhook does not exist. Returns how many of its tokens were remembered.
#[derive(Message)]
#[rtype(result = "usize")]
pub struct ClearWebhook(
    /// Id of the webhook.
    pub u64,
);

/// Requests the snapshot of one breaker. `None` if it is closed and has no failures.
#[derive(Message)]
#[rtype(result = "Option<BreakerSnapshot>")]
pub struct GetBreaker(
    /// The breaker.
    pub BreakerKey,
);

/// Requests the consumers with the most calls, or the most failed calls.
#[derive(Message)]
#[rtype(result = "TopSpenders")]
pub struct GetTopSpenders {
    /// What to sort by.
    pub by: Measure,
    /// Maximum number of entries.
    pub limit: usize,
}

/// Consumers with the highest counts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TopSpenders {
    /// Entries, the largest first.
    pub top: Vec<HeavyHitter<Consumer>>,
    /// Length of the counted period.
    pub period: Duration,
}

impl Handler<ForceOpen> for CircuitBreaker {
    type Result = Result<(), TooManyKeys>;

    fn handle(&mut self, ForceOpen(key): ForceOpen, ctx: &mut Context<Self>) -> Self::Result {
        self.step(ctx, |this, now| match this.breakers.force(&key, now) {
            Ok(effects) => (Ok(()), effects),
            Err(full) => (Err(full), Vec::new()),
        })
    }
}

impl Handler<ForceOpenFor> for CircuitBreaker {
    type Result = Result<(), ForceError>;

    fn handle(&mut self, ForceOpenFor { key, duration }: ForceOpenFor, ctx: &mut Context<Self>) -> Self::Result {
        self.step(ctx, |this, now| match this.breakers.force_for(&key, duration, now) {
            Ok(effects) => (Ok(()), effects),
            Err(refused) => (Err(refused), Vec::new()),
        })
    }
}

impl Handler<CheckForceOpen> for CircuitBreaker {
    type Result = Result<(), ForceError>;

    fn handle(&mut self, CheckForceOpen { key, duration }: CheckForceOpen, _: &mut Context<Self>) -> Self::Result {
        self.breakers.may_force(&key, duration)
    }
}

impl Handler<ResetBreaker> for CircuitBreaker {
    type Result = ();

    fn handle(&mut self, ResetBreaker(key): ResetBreaker, ctx: &mut Context<Self>) {
        self.step(ctx, |this, now| ((), this.breakers.reset(&key, now)));
        // Even if it was closed here: it may be open elsewhere.
        self.notify_replicator();
    }
}

impl Handler<ClearWebhook> for CircuitBreaker {
    type Result = usize;

    fn handle(&mut self, ClearWebhook(id): ClearWebhook, ctx: &mut Context<Self>) -> Self::Result {
        self.step(ctx, |this, _| (this.breakers.clear_webhook(id), Vec::new()))
    }
}

impl Handler<GetBreaker> for CircuitBreaker {
    type Result = MessageResult<GetBreaker>;

    fn handle(&mut self, GetBreaker(key): GetBreaker, ctx: &mut Context<Self>) -> Self::Result {
        MessageResult(self.step(ctx, |this, now| (this.breakers.find_snapshot(&key, now), Vec::new())))
    }
}

impl Handler<GetTopSpenders> for CircuitBreaker {
    type Result = MessageResult<GetTopSpenders>;

    fn handle(&mut self, GetTopSpenders { by, limit }: GetTopSpenders, _: &mut Context<Self>) -> Self::Result {
        let now = self.clock.now();
        let (top, since) = self.spending.top(by, limit, now);
        MessageResult(TopSpenders { top, period: now.since(since) })
    }
}

#[cfg(test)]
mod tests {
    use actix::Actor as _;
    use guildhall_core::breaker::{BreakerConfig, CallInfo, CallResult};
    use guildhall_core::invalid::InvalidConfig;
    use guildhall_core::lane::Lane;
    use guildhall_core::response::{Credential, RateLimitScope, ResponseClass};
    use guildhall_core::route::{RouteKey, TopLevelId};
    use tokio::task::LocalSet;
    use tokio::time::sleep;

    use guildhall_core::invalid::Submitter;

    use super::super::Admit;
    use super::*;
    use crate::clock::Clock;

    const MINUTE: Duration = Duration::from_secs(60);

    fn call(guild: Option<u64>) -> CallInfo {
        CallInfo {
            credential: Credential::Application(42),
            route: RouteKey::new("GET /guilds/{id}/roles"),
            major: TopLevelId::of(1),
            lane: Lane::Operation,
            guild,
            submitter: Submitter::default(),
            may_probe: true,
        }
    }

    #[tokio::test(start_paused = true)]
    async fn calls_and_results_are_counted_by_consumer() {
        let test = async {
            let breaker =
                CircuitBreaker::new(Clock::start(), BreakerConfig::default(), InvalidConfig::default(), 1).start();
            let limited = ResponseClass::RateLimited { scope: RateLimitScope::User, retry_after: MINUTE };
            for (guild, class) in
                [(Some(7), ResponseClass::Success), (Some(7), limited), (None, ResponseClass::Forbidden)]
            {
                let pass = breaker.send(Admit(call(guild))).await.unwrap().unwrap();
                pass.report(CallResult::Answered(class), Duration::ZERO).attempt().await;
            }
            // A call that was never sent counts for no consumer.
            drop(breaker.send(Admit(call(Some(8)))).await.unwrap().unwrap());
            sleep(MINUTE).await;
            let mut counts = Vec::new();
            for by in Measure::ALL {
                let TopSpenders { top, period } = breaker.send(GetTopSpenders { by, limit: 5 }).await.unwrap();
                assert_eq!(period, MINUTE);
                counts.push(top.into_iter().map(|counted| (counted.key, counted.count)).collect::<Vec<_>>());
            }
            let (seven, own) = (Consumer::Guild(7), Consumer::Application);
            assert_eq!(counts, [vec![(seven, 2), (own, 1)], vec![(seven, 1)], vec![(seven, 1), (own, 1)]]);
        };
        LocalSet::new().run_until(test).await;
    }

    #[tokio::test(start_paused = true)]
    async fn breaker_forced_open_for_a_time_stays_open_for_it() {
        let test = async {
            let breaker =
                CircuitBreaker::new(Clock::start(), BreakerConfig::default(), InvalidConfig::default(), 1).start();
            let key = BreakerKey::Discord(Credential::Application(42));
            assert_eq!(breaker.send(GetBreaker(key.clone())).await.unwrap(), None);
            breaker.send(ForceOpenFor { key: key.clone(), duration: MINUTE }).await.unwrap().unwrap();
            sleep(MINUTE / 2).await;
            let seen = breaker.send(GetBreaker(key.clone())).await.unwrap().unwrap();
            assert_eq!((seen.state, seen.for_ms, seen.retry_after_ms), ("open", 30_000, Some(30_000)));
            assert!(breaker.send(Admit(call(None))).await.unwrap().is_err());
            sleep(MINUTE / 2).await;
            assert_eq!(breaker.send(GetBreaker(key.clone())).await.unwrap().unwrap().state, "half_open");
            breaker.send(ForceOpen(key.clone())).await.unwrap().unwrap();
            let again = ForceOpenFor { key: key.clone(), duration: MINUTE };
            assert_eq!(breaker.send(again).await.unwrap(), Err(ForceError::Forced));
            let check = CheckForceOpen { key: key.clone(), duration: Some(MINUTE) };
            assert_eq!(breaker.send(check).await.unwrap(), Err(ForceError::Forced));
            breaker.send(ResetBreaker(key)).await.unwrap();
            assert!(breaker.send(Admit(call(None))).await.unwrap().is_ok());
        };
        LocalSet::new().run_until(test).await;
    }
}
