//! Guilds of channels and webhooks.

use std::time::Duration;

use guildhall_core::{operation::payload::Location, time::UnixMs};
use sea_orm::DatabaseTransaction;

use super::{EngineError, WriteJob, WriteTx, guild_number, signed};
use crate::store::rows::{Columns, Rows, columns, query, with_rows};

/// How long a guild is stored. It does not change; but many channels are deleted by then, and another lookup is cheap.
const RETENTION: Duration = Duration::from_secs(30 * 24 * 60 * 60);
/// Maximum number of rows that one sweep removes.
const SWEEP: i64 = 500;

/// Stores the guild of a channel or webhook.
pub(in crate::store) struct StoreLocation {
    pub(in crate::store) location: Location,
    pub(in crate::store) guild: Option<u64>,
}

impl WriteJob for StoreLocation {
    type Output = ();

    async fn run(&self, tx: &mut WriteTx<'_>) -> Result<(), EngineError> {
        const UPSERT: &str = "INSERT INTO channel_guilds (kind, id, guild_id, seen_at) VALUES ($1, $2, $3, $4)
            ON CONFLICT (kind, id) DO UPDATE SET guild_id = excluded.guild_id, seen_at = excluded.seen_at";
        let (kind, id) = (self.location.type_name(), self.location.id().cast_signed());
        let values = vec![kind.into(), id.into(), guild_number(self.guild).into(), tx.context.now().into()];
        query(tx.on, UPSERT, values).await?;
        Ok(())
    }
}

/// Removes channels that were deleted.
pub(super) async fn forget(on: &DatabaseTransaction, channels: &[u64]) -> Result<(), EngineError> {
    const GONE: Columns = columns![its_id: Number];
    const FORGET: &str = "DELETE FROM channel_guilds WHERE kind = 'channel' AND id IN (SELECT its_id FROM {v})";
    let rows = Rows::of(channels.iter().map(|id| id.cast_signed()));
    with_rows(on, FORGET, GONE, rows, Vec::new()).await?;
    Ok(())
}

/// Removes old rows, in a small batch.
pub(super) async fn sweep(on: &DatabaseTransaction, now: UnixMs) -> Result<(), EngineError> {
    const OLD: &str = "DELETE FROM channel_guilds WHERE (kind, id) IN
        (SELECT kind, id FROM channel_guilds WHERE seen_at <= $1 ORDER BY seen_at LIMIT $2 + 0)";
    query(on, OLD, vec![signed(now.before(RETENTION).millis()).into(), SWEEP.into()]).await?;
    Ok(())
}
