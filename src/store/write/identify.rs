//! Limits how often shards identify, over all processes of a bot.

use std::time::Duration;

use guildhall_actors::ports::{IdentifyDecision, IdentifyRequest};
use sea_orm::DatabaseTransaction;

use super::{EngineError, queues, signed};
use crate::store::rows::query;

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
pub(super) async fn decide(
    on: &DatabaseTransaction,
    request: IdentifyRequest,
) -> Result<IdentifyDecision, EngineError> {
    const COUNT: &str = "INSERT INTO identifies (bucket, at) VALUES ($1, $2)";
    queues::lock_exclusive(on, "identifies").await?;
    let (bucket, now) = (i64::from(request.bucket), signed(request.now.millis()));
    let Some(newer) = request.daily_limit.checked_sub(1) else { return Ok(IdentifyDecision::Exhausted(millis(DAY))) };
    let spent = query(on, LAST_OF_BUDGET, vec![(now - DAY).into(), i64::from(newer).into()]).await?;
    if let Some(row) = spent.first() {
        let at: i64 = row.try_get_by_index(0)?;
        return Ok(IdentifyDecision::Exhausted(millis((at + DAY - now).min(DAY))));
    }
    let spacing = i64::try_from(request.spacing.as_micros().div_ceil(1_000)).unwrap_or(DAY).min(DAY);
    let near = vec![bucket.into(), (now - spacing).into(), (now + spacing).into()];
    if let Some(row) = query(on, LAST_OF_BUCKET, near).await?.first() {
        let at: i64 = row.try_get_by_index(0)?;
        return Ok(IdentifyDecision::Wait(millis(at + spacing - now)));
    }
    query(on, COUNT, vec![bucket.into(), now.into()]).await?;
    query(on, FORGET, vec![(now - 2 * DAY).into()]).await?;
    Ok(IdentifyDecision::Allowed)
}

fn millis(millis: i64) -> Duration {
    Duration::from_millis(u64::try_from(millis).unwrap_or(0))
}
