//! Limits how often shards identify, over all processes of a bot.

use std::time::Duration;

use guildhall_actors::ports::{IdentifyDecision, IdentifyRequest};
use sea_orm::{ActiveValue::Set, EntityTrait as _};

use super::{EngineError, RunOrder, WriteJob, WriteTx, queues, signed};
use crate::store::sql;
use crate::store::{
    entities::identifies,
    rows::{query, query_scalar},
};

/// Period of the identify budget, in milliseconds.
const DAY: i64 = 24 * 60 * 60 * 1_000;

/// Decides whether a shard may identify, and counts it if so.
impl WriteJob for IdentifyRequest {
    type Output = IdentifyDecision;

    const ORDER: RunOrder = RunOrder::Last;

    async fn run(&self, WriteTx { on, .. }: &mut WriteTx<'_>) -> Result<IdentifyDecision, EngineError> {
        queues::lock_exclusive(on, "identifies").await?;
        let (bucket, now) = (i64::from(self.bucket), signed(self.now.millis()));
        let Some(newer) = self.daily_limit.checked_sub(1) else { return Ok(IdentifyDecision::Exhausted(millis(DAY))) };
        let budget = vec![(now - DAY).into(), i64::from(newer).into()];
        if let Some(at) = query_scalar::<i64>(*on, sql::identify::LAST_OF_BUDGET, budget).await? {
            return Ok(IdentifyDecision::Exhausted(millis((at + DAY - now).min(DAY))));
        }
        let spacing = i64::try_from(self.spacing.as_micros().div_ceil(1_000)).unwrap_or(DAY).min(DAY);
        let near = vec![bucket.into(), (now - spacing).into(), (now + spacing).into()];
        if let Some(at) = query_scalar::<i64>(*on, sql::identify::LAST_OF_BUCKET, near).await? {
            return Ok(IdentifyDecision::Wait(millis(at + spacing - now)));
        }
        let counted = identifies::ActiveModel { bucket: Set(bucket), at: Set(now), ..Default::default() };
        identifies::Entity::insert(counted).exec_without_returning(*on).await?;
        query(*on, sql::identify::FORGET, vec![(now - 2 * DAY).into()]).await?;
        Ok(IdentifyDecision::Allowed)
    }
}

fn millis(millis: i64) -> Duration {
    Duration::from_millis(u64::try_from(millis).unwrap_or(0))
}
