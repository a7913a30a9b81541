//! Guilds of channels and webhooks.

use std::time::Duration;

use guildhall_core::{operation::payload::Location, time::UnixMs};
use sea_orm::{
    ActiveValue::Set,
    ColumnTrait as _, DatabaseTransaction, EntityTrait as _, QueryFilter as _, QueryOrder as _, QuerySelect as _,
    QueryTrait as _,
    sea_query::{Expr, ExprTrait as _, OnConflict},
};

use super::{EngineError, WriteJob, WriteTx, guild_number, signed};
use crate::store::sql;
use crate::store::{
    entities::channel_guilds::{self, Column},
    rows::{Columns, Rows, columns, with_rows},
};

/// How long a guild is stored. It does not change; but many channels are deleted by then, and another lookup is cheap.
const RETENTION: Duration = Duration::from_secs(30 * 24 * 60 * 60);
/// Maximum number of rows that one sweep removes.
const SWEEP: u64 = 500;

/// Stores the guild of a channel or webhook.
pub(in crate::store) struct StoreLocation {
    pub(in crate::store) location: Location,
    pub(in crate::store) guild: Option<u64>,
}

impl WriteJob for StoreLocation {
    type Output = ();

    async fn run(&self, tx: &mut WriteTx<'_>) -> Result<(), EngineError> {
        let row = channel_guilds::ActiveModel {
            kind: Set(self.location.type_name().to_owned()),
            id: Set(self.location.id().cast_signed()),
            guild_id: Set(guild_number(self.guild)),
            seen_at: Set(tx.context.now()),
        };
        let replace = OnConflict::columns([Column::Kind, Column::Id])
            .update_columns([Column::GuildId, Column::SeenAt])
            .to_owned();
        channel_guilds::Entity::insert(row).on_conflict(replace).exec_without_returning(tx.on).await?;
        Ok(())
    }
}

/// Removes channels that were deleted.
pub(super) async fn forget(on: &DatabaseTransaction, channels: &[u64]) -> Result<(), EngineError> {
    const GONE: Columns = columns![its_id: Number];
    let rows = Rows::of(channels.iter().map(|id| id.cast_signed()));
    with_rows(on, sql::locations::FORGET, GONE, rows, Vec::new()).await?;
    Ok(())
}

/// Removes old rows, in a small batch.
pub(super) async fn sweep(on: &DatabaseTransaction, now: UnixMs) -> Result<(), EngineError> {
    let key = [Column::Kind, Column::Id];
    let oldest = channel_guilds::Entity::find()
        .select_only()
        .columns(key)
        .filter(Column::SeenAt.lte(signed(now.before(RETENTION).millis())))
        .order_by_asc(Column::SeenAt)
        .limit(SWEEP);
    let is_old = Expr::tuple(key.map(sea_orm::ColumnTrait::into_expr)).in_subquery(oldest.into_query());
    channel_guilds::Entity::delete_many().filter(is_old).exec(on).await?;
    Ok(())
}
