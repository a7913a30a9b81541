//! Limits how often shards identify, over all processes of a bot.

use std::time::Duration;

use guildhall_actors::ports::{IdentifyDecision, IdentifyRequest};

use super::{EngineError, RunOrder, WriteJob, WriteTx, queues, signed};
use crate::store::rows::{query, query_scalar};

/// Period of the identify budget, in milliseconds.
const DAY: i64 = 24 * 60 * 60 * 1_000;

/// The last identify of a bucket. Times further ahead come from a wrong clock.
pub(in crate::store) const LAST_OF_BUCKET: &str = "SELECT at FROM identifies WHERE bucket = $1 AND at > $2 AND at <= $3
    ORDER BY at DESC LIMIT 1";

/// The identify that used up the daily budget, counted from the last.
pub(in crate::store) const LAST_OF_BUDGET: &str =
    "SELECT at FROM identifies WHERE at > $1 ORDER BY at DESC LIMIT 1 OFFSET $2 + 0";

/// Removes rows after twice the period: the clock of the removing process may be ahead.
pub(in crate::store) const FORGET: &str =
    "DELETE FROM identifies WHERE id IN (SELECT id FROM identifies WHERE at <= $1 ORDER BY at LIMIT 500)";

/// Decides whether a shard may identify, and counts it if so.
impl WriteJob for IdentifyRequest {
    type Output = IdentifyDecision;

    const ORDER: RunOrder = RunOrder::Last;

    async fn run(&self, WriteTx { on, .. }: &mut WriteTx<'_>) -> Result<IdentifyDecision, EngineError> {
        const COUNT: &str = "INSERT INTO identifies (bucket, at) VALUES ($1, $2)";
        queues::lock_exclusive(on, "identifies").await?;
        let (bucket, now) = (i64::from(self.bucket), signed(self.now.millis()));
        let Some(newer) = self.daily_limit.checked_sub(1) else { return Ok(IdentifyDecision::Exhausted(millis(DAY))) };
        let budget = vec![(now - DAY).into(), i64::from(newer).into()];
        if let Some(at) = query_scalar::<i64>(*on, LAST_OF_BUDGET, budget).await? {
            return Ok(IdentifyDecision::Exhausted(millis((at + DAY - now).min(DAY))));
        }
        let spacing = i64::try_from(self.spacing.as_micros().div_ceil(1_000)).unwrap_or(DAY).min(DAY);
        let near = vec![bucket.into(), (now - spacing).into(), (now + spacing).into()];
        if let Some(at) = query_scalar::<i64>(*on, LAST_OF_BUCKET, near).await? {
            return Ok(IdentifyDecision::Wait(millis(at + spacing - now)));
        }
        query(*on, COUNT, vec![bucket.into(), now.into()]).await?;
        query(*on, FORGET, vec![(now - 2 * DAY).into()]).await?;
        Ok(IdentifyDecision::Allowed)
    }
}

fn millis(millis: i64) -> Duration {
    Duration::from_millis(u64::try_from(millis).unwrap_or(0))
}
