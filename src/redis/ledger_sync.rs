//! The ledger of invalid requests that all processes behind an address share.

use std::time::Duration;

use ::redis::Value;
use actix::Addr;
use guildhall_actors::circuit_breaker::{CircuitBreaker, LeaveLedger, LedgerSynced, TakeLedgerRequest};
use guildhall_core::invalid::{Holder, InvalidConfig, LenderReply, LenderRequest};
use tokio::time::{sleep, timeout};

use super::{
    RedisCallError, RedisClient, RedisErrorReason, RedisKeys, Script,
    events::RedisCallRejected,
    shared_state::{ActorStopped, SharedStateConfig, StateNotifier, send},
};
use crate::events::emit;

/// Minimum time between two requests to the lender.
const MIN_INTERVAL: Duration = Duration::from_millis(100);

pub(super) struct LedgerSync {
    redis: RedisClient,
    breaker: Addr<CircuitBreaker>,
    script: Script,
    keys: [String; 4],
    process: String,
    invalid: InvalidConfig,
    heartbeat: Duration,
    /// Number of requests so far.
    number: u64,
}

impl LedgerSync {
    pub(super) fn new(
        redis: RedisClient,
        breaker: Addr<CircuitBreaker>,
        keys: &RedisKeys,
        config: &SharedStateConfig,
    ) -> Self {
        Self {
            redis,
            breaker,
            script: Script::new("ledger", include_str!("ledger.lua")),
            keys: ["", ":a", ":b", ":c"].map(|part| keys.of(&format!("invalid:{}{part}", config.ip_group))),
            process: config.process.clone(),
            invalid: config.invalid,
            heartbeat: config.heartbeat,
            number: 0,
        }
    }

    /// Ends with the actor.
    pub(super) async fn run(&mut self, notifier: &StateNotifier) {
        loop {
            // Notified or not: a process that is silent for too long counts as lost.
            let _ = timeout(self.heartbeat, notifier.counted.notified()).await;
            if let Err(ActorStopped) = self.sync().await {
                return;
            }
            sleep(MIN_INTERVAL.min(self.heartbeat)).await;
        }
    }

    async fn sync(&mut self) -> Result<(), ActorStopped> {
        let Some(request) = send(&self.breaker, TakeLedgerRequest).await? else { return Ok(()) };
        // After a failure it is retried soon. Whatever the outcome, the ledger stays consistent with what it reported.
        if let Ok(Some(synced)) = self.request("sync", request).await {
            send(&self.breaker, LedgerSynced(synced)).await?;
        }
        Ok(())
    }

    /// Returns what was lent.
    pub(super) async fn leave(&mut self) {
        if let Ok(Some(request)) = send(&self.breaker, LeaveLedger).await {
            // If the request is lost, the loan is held for a while and then given to the others.
            drop(self.request("leave", request).await);
        }
    }

    /// Sends a request to the lender. Returns `None` if it came too late, or if there are too many members.
    async fn request(&mut self, mode: &str, request: LenderRequest) -> Result<Option<LenderReply>, RedisCallError> {
        self.number += 1;
        let window = u64::try_from(self.invalid.window.as_millis()).unwrap_or(u64::MAX);
        let args = |server: &str| {
            let numbers = [
                self.number,
                request.counted,
                request.unacknowledged,
                request.in_flight.into(),
                request.ceiling,
                request.total.into(),
                request.holders.into(),
                self.invalid.limit.into(),
                window,
            ];
            let mut args = vec![mode.as_bytes().to_vec(), self.process.as_bytes().to_vec()];
            args.extend(numbers.iter().map(|number| number.to_string().into_bytes()));
            args.push(server.as_bytes().to_vec());
            args.extend(holders_args(&request).map(String::into_bytes));
            args
        };
        let response = self.redis.run(&self.script, &self.keys, args).await?;
        match parse_reply(&response, &request) {
            Some(synced) => Ok(Some(synced)),
            None if matches!(&response, Value::Array(parts) if parts.is_empty()) => Ok(None),
            None => {
                let reason = RedisErrorReason::Error;
                let message = "unexpected response of the script; check that all processes run the same version";
                emit(RedisCallRejected { script: self.script.name(), reason, message });
                Err(RedisCallError { reason })
            }
        }
    }
}

/// Script arguments about holders: numbers and names, each an argument of its own.
fn holders_args(request: &LenderRequest) -> impl Iterator<Item = String> {
    let of_holders = [request.cap, request.exposure, request.elsewhere_exposure].map(u64::from);
    let counts = of_holders.into_iter().chain([request.runs.len() as u64, request.large.len() as u64]);
    let runs = request.runs.iter().flat_map(|run| {
        let mut names: Vec<String> = run.owner.holders().map(|holder| holder.encode()).collect();
        names.resize(3, String::new());
        [run.start.to_string(), run.end.to_string()].into_iter().chain(names)
    });
    let large = request.large.iter().flat_map(|(holder, count)| [holder.encode(), count.to_string()]);
    counts.map(|count| count.to_string()).chain(runs).chain(large)
}

/// Parses a response of the script.
fn parse_reply(response: &Value, request: &LenderRequest) -> Option<LenderReply> {
    let Value::Array(parts) = response else { return None };
    let mut parts = LedgerResponse(parts.iter());
    let [ceiling, members, holders, elsewhere, exposure, elsewhere_exposure, floor] =
        [(); 7].map(|()| parts.number()).into_iter().collect::<Option<Vec<u64>>>()?.try_into().ok()?;
    let slots = parts.slots()?;
    let mut large = Vec::new();
    while let Some(name) = parts.0.next() {
        let name = match name {
            Value::BulkString(name) => std::str::from_utf8(name).ok()?,
            Value::SimpleString(name) => name,
            _ => return None,
        };
        large.push((Holder::decode(name)?, parts.slots()?));
    }
    Some(LenderReply {
        requested_at: request.requested_at,
        acknowledged: request.counted,
        ceiling,
        slots,
        members: u32::try_from(members).ok()?,
        holders: u32::try_from(holders).ok()?,
        in_flight_elsewhere: u32::try_from(elsewhere).ok()?,
        exposure: u32::try_from(exposure).ok()?,
        elsewhere_exposure: u32::try_from(elsewhere_exposure).ok()?,
        floor: u32::try_from(floor).ok()?,
        large,
    })
}

/// The unread parts of a response.
struct LedgerResponse<'a>(std::slice::Iter<'a, Value>);

impl LedgerResponse<'_> {
    fn number(&mut self) -> Option<u64> {
        match self.0.next()? {
            Value::Int(number) => u64::try_from(*number).ok(),
            _ => None,
        }
    }

    /// Counts by the time at which they expire, preceded by their number.
    fn slots(&mut self) -> Option<Vec<(Duration, u32)>> {
        let count = self.number()?;
        let slot = |_| Some((Duration::from_millis(self.number()?), u32::try_from(self.number()?).ok()?));
        (0..count).map(slot).collect()
    }
}

#[cfg(test)]
mod tests {
    use guildhall_core::invalid::{ChargeRun, Submitter};
    use guildhall_core::time::Timestamp;

    use super::*;

    fn lender_request() -> LenderRequest {
        let owner = Submitter::of(&"key".into(), &"acme".into()).in_guild(Some(7));
        LenderRequest {
            requested_at: Timestamp::ZERO,
            counted: 7,
            unacknowledged: 1,
            in_flight: 0,
            ceiling: 9,
            total: 6,
            holders: 2,
            cap: 25,
            exposure: 3,
            elsewhere_exposure: 4,
            runs: vec![ChargeRun { owner, start: 6, end: 7 }],
            large: vec![(Holder::Guild(7), 5)],
        }
    }

    fn response(numbers: &[i64]) -> Value {
        Value::Array(numbers.iter().copied().map(Value::Int).collect())
    }

    #[test]
    fn holders_are_sent_by_name() {
        let args: Vec<String> = holders_args(&lender_request()).collect();
        assert_eq!(args, ["25", "3", "4", "1", "1", "6", "7", "k:key", "t:acme", "g:7", "g:7", "5"]);
    }

    #[test]
    fn reply_of_the_lender_is_parsed() {
        let Value::Array(mut parts) = response(&[57, 2, 3, 4, 5, 6, 7, 2, 1_000, 5, 2_000, 2]) else { unreachable!() };
        parts.push(Value::BulkString(b"t:acme".to_vec()));
        parts.extend([1, 500, 9].map(Value::Int));
        let synced = parse_reply(&Value::Array(parts), &lender_request()).unwrap();
        assert_eq!((synced.acknowledged, synced.ceiling), (7, 57));
        assert_eq!((synced.members, synced.holders, synced.in_flight_elsewhere), (2, 3, 4));
        assert_eq!((synced.exposure, synced.elsewhere_exposure, synced.floor), (5, 6, 7));
        assert_eq!(synced.slots, [(Duration::from_secs(1), 5), (Duration::from_secs(2), 2)]);
        assert_eq!(synced.large, [(Holder::Tenant("acme".into()), vec![(Duration::from_millis(500), 9)])]);
    }

    #[test]
    fn malformed_replies_are_rejected() {
        let text = Value::Array(vec![Value::BulkString(b"1".to_vec()); 8]);
        let Value::Array(mut unknown) = response(&[1, 1, 1, 1, 1, 1, 1, 0]) else { unreachable!() };
        unknown.extend([Value::BulkString(b"x:1".to_vec()), Value::Int(0)]);
        for other in [
            response(&[]),
            response(&[1, 1, 1]),
            response(&[1, 1, 1, 1, 1, 1, 1, 1, 5]),
            response(&[-1, 1, 1, 1, 1, 1, 1, 0]),
            response(&[1, 1, 1, 1, 1, 1, 1, i64::MAX]),
            response(&[1, 1, 1, 1, 1, 1, 1, 0, 1]),
            Value::Array(unknown),
            text,
            Value::Nil,
        ] {
            assert_eq!(parse_reply(&other, &lender_request()), None, "{other:?}");
        }
    }
}
