//! The budget of invalid requests that all processes behind an address share.

use std::time::Duration;

use ::redis::Value;
use actix::Addr;
use guildhall_actors::circuit_breaker::{AskLedger, CircuitBreaker, LeaveLedger, LedgerSynced};
use guildhall_core::invalid::{Ask, InvalidConfig, Synced};
use tokio::time::{sleep, timeout};

use super::{
    Keys, Lost, Reason, Redis, Script,
    events::RedisRefused,
    state::{Bell, Gone, StateConfig, send},
};
use crate::events::emit;

/// How often the keeper is asked at most.
const GAP: Duration = Duration::from_millis(100);

pub(super) struct SharedLedger {
    redis: Redis,
    breaker: Addr<CircuitBreaker>,
    script: Script,
    keys: [String; 1],
    process: String,
    invalid: InvalidConfig,
    heartbeat: Duration,
    /// How often it was asked.
    number: u64,
}

impl SharedLedger {
    pub(super) fn new(redis: Redis, breaker: Addr<CircuitBreaker>, keys: &Keys, config: &StateConfig) -> Self {
        Self {
            redis,
            breaker,
            script: Script::new("ledger", include_str!("ledger.lua")),
            keys: [keys.of(&format!("invalid:{}", config.ip_group))],
            process: config.process.clone(),
            invalid: config.invalid,
            heartbeat: config.heartbeat,
            number: 0,
        }
    }

    /// Ends with the actor.
    pub(super) async fn run(&mut self, bell: &Bell) {
        loop {
            // Rung or not: who is silent for too long is taken for lost.
            let _ = timeout(self.heartbeat, bell.counted.notified()).await;
            if let Err(Gone) = self.sync().await {
                return;
            }
            sleep(GAP.min(self.heartbeat)).await;
        }
    }

    async fn sync(&mut self) -> Result<(), Gone> {
        let Some(ask) = send(&self.breaker, AskLedger).await? else { return Ok(()) };
        // Lost, it is asked again soon; whatever came of the question, the ledger keeps to what it said.
        if let Ok(Some(synced)) = self.ask("sync", ask).await {
            send(&self.breaker, LedgerSynced(synced)).await?;
        }
        Ok(())
    }

    /// Gives back what was lent.
    pub(super) async fn leave(&mut self) {
        if let Ok(Some(ask)) = send(&self.breaker, LeaveLedger).await {
            // Unheard, it is held for a while, and then given to the others.
            drop(self.ask("leave", ask).await);
        }
    }

    /// Nothing if the question came too late, or there are too many to ask.
    async fn ask(&mut self, how: &str, ask: Ask) -> Result<Option<Synced>, Lost> {
        self.number += 1;
        let window = u64::try_from(self.invalid.window.as_millis()).unwrap_or(u64::MAX);
        let args = |server: &str| {
            let numbers = [
                self.number,
                ask.counted,
                ask.unacknowledged,
                ask.in_flight.into(),
                ask.ceiling,
                ask.total.into(),
                ask.holders.into(),
                self.invalid.limit.into(),
                window,
            ];
            let mut args = vec![how.as_bytes().to_vec(), self.process.as_bytes().to_vec()];
            args.extend(numbers.iter().map(|number| number.to_string().into_bytes()));
            args.push(server.as_bytes().to_vec());
            args
        };
        let answer = self.redis.run(&self.script, &self.keys, args).await?;
        match read(&answer, ask) {
            Some(synced) => Ok(Some(synced)),
            None if matches!(&answer, Value::Array(parts) if parts.is_empty()) => Ok(None),
            None => {
                let why = Reason::Error;
                let says = "the script's answer cannot be read; do all processes run the same version?";
                emit(RedisRefused { script: self.script.name(), why, says });
                Err(Lost { why })
            }
        }
    }
}

/// What an answer of the script means.
fn read(answer: &Value, ask: Ask) -> Option<Synced> {
    let Value::Array(parts) = answer else { return None };
    let numbers = parts.iter().map(|part| match part {
        Value::Int(number) => u64::try_from(*number).ok(),
        _ => None,
    });
    let numbers: Vec<u64> = numbers.collect::<Option<_>>()?;
    let [ceiling, members, holders, elsewhere, slots @ ..] = numbers.as_slice() else { return None };
    let (slots, rest) = slots.as_chunks::<2>();
    let slots = slots.iter().map(|[leaves, count]| Some((Duration::from_millis(*leaves), u32::try_from(*count).ok()?)));
    rest.is_empty().then_some(())?;
    Some(Synced {
        asked: ask.asked,
        acknowledged: ask.counted,
        ceiling: *ceiling,
        slots: slots.collect::<Option<_>>()?,
        members: u32::try_from(*members).ok()?,
        holders: u32::try_from(*holders).ok()?,
        elsewhere: u32::try_from(*elsewhere).ok()?,
    })
}

#[cfg(test)]
mod tests {
    use guildhall_core::time::Timestamp;

    use super::*;

    const ASK: Ask =
        Ask { asked: Timestamp::ZERO, counted: 7, unacknowledged: 1, in_flight: 0, ceiling: 9, total: 6, holders: 2 };

    fn answer(numbers: &[i64]) -> Value {
        Value::Array(numbers.iter().copied().map(Value::Int).collect())
    }

    #[test]
    fn an_answer_of_the_keeper_is_read() {
        let synced = read(&answer(&[57, 2, 3, 4, 1_000, 5, 2_000, 2]), ASK).unwrap();
        assert_eq!((synced.acknowledged, synced.ceiling), (7, 57));
        assert_eq!((synced.members, synced.holders, synced.elsewhere), (2, 3, 4));
        assert_eq!(synced.slots, [(Duration::from_secs(1), 5), (Duration::from_secs(2), 2)]);
    }

    #[test]
    fn anything_else_is_none() {
        let text = Value::Array(vec![Value::BulkString(b"1".to_vec()); 4]);
        for other in
            [answer(&[]), answer(&[1, 1, 1]), answer(&[1, 1, 1, 1, 5]), answer(&[-1, 1, 1, 1]), text, Value::Nil]
        {
            assert_eq!(read(&other, ASK), None, "{other:?}");
        }
    }
}
