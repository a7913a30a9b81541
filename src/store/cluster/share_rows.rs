//! The table of shares: the statements of a [`LimitShare`](guildhall_core::limit::division::LimitShare).
//!
//! Most changes are in SQL, since they depend on the state of other rows.

use std::time::Duration;

use guildhall_core::limit::division::{MemberId, Renewal, ShareAction, ShareRow};
use sea_orm::{
    ColumnTrait as _, DatabaseTransaction, EntityTrait as _, QueryFilter as _,
    sea_query::{self, Expr},
};
use uuid::Uuid;

use super::division::{DivisionRequest, DivisionState};
use crate::store::sql;
use crate::store::{
    entities::limit_shares,
    error::EngineError,
    rows::{query, query_as, query_scalar},
    write::signed,
};

fn millis(duration: Duration) -> i64 {
    signed(u64::try_from(duration.as_millis()).unwrap_or(u64::MAX))
}

fn share(number: i64) -> u32 {
    u32::try_from(number.max(0)).unwrap_or(u32::MAX)
}

fn number(number: i64) -> u64 {
    number.max(0).unsigned_abs()
}

/// Renews the row of this process, or inserts one.
pub(super) async fn renew(
    on: &DatabaseTransaction,
    request: &DivisionRequest,
    own_id: Uuid,
    heartbeat: u64,
) -> Result<Renewal, EngineError> {
    let values = vec![request.scope.clone().into(), own_id.into(), signed(heartbeat).into()];
    if let Some(row) = query_as::<limit_shares::Model>(on, sql::share_rows::RENEW, values.clone()).await?.first() {
        return Ok(Renewal::Extended { share: share(row.share), turn: number(row.turn) });
    }
    let more = [request.lock_name.clone().into(), millis(request.config.hold()).into()];
    let turn = query_scalar(on, sql::share_rows::JOIN, values.into_iter().chain(more).collect()).await?;
    Ok(Renewal::Joined { turn: turn.map_or(1, number) })
}

/// Reads all rows of a limit.
pub(super) async fn read(
    on: &DatabaseTransaction,
    scope: &str,
    division: &DivisionState,
) -> Result<Vec<ShareRow>, EngineError> {
    let row = |row: limit_shares::Model| ShareRow {
        member: MemberId(row.instance.as_u128()),
        heartbeat: number(row.beat),
        turn: number(row.turn),
        share: share(row.share),
        hold: Duration::from_millis(number(row.hold_ms)),
        has_left: row.departed > 0,
        is_dead: !row.seat.is_empty() && division.is_dead(&row.seat),
    };
    let rows = limit_shares::Entity::find().filter(limit_shares::Column::Scope.eq(scope)).all(on).await?;
    Ok(rows.into_iter().map(row).collect())
}

/// Performs an action. Returns `false` if the table has changed since it was decided, or another process is reserving.
/// Does not change a row that has been renewed since: so a late action cannot undo a later one.
pub(super) async fn change(
    on: &DatabaseTransaction,
    request: &DivisionRequest,
    own_id: Uuid,
    heartbeat: u64,
    action: ShareAction,
) -> Result<bool, EngineError> {
    let own = vec![request.scope.clone().into(), own_id.into(), signed(heartbeat).into()];
    let changed = match action {
        ShareAction::Reserve { share } => {
            // A statement of its own: the next one then sees everything that was committed before the lock was free.
            let locked = query_scalar(on, sql::share_rows::LOCK, vec![request.scope.clone().into()]).await?;
            if !locked.unwrap_or(false) {
                return Ok(false);
            }
            let more = [i64::from(share).into(), i64::from(request.config.limit).into()];
            query(on, sql::share_rows::RESERVE, own.into_iter().chain(more).collect()).await?
        }
        ShareAction::Lower { share, turn } => {
            let more = [i64::from(share).into(), turn.map(signed).into()];
            query(on, sql::share_rows::LOWER, own.into_iter().chain(more).collect()).await?
        }
        ShareAction::Remove { member, heartbeat } => {
            let other = Uuid::from_u128(member.0);
            query(
                on,
                sql::share_rows::REMOVE,
                vec![request.scope.clone().into(), other.into(), signed(heartbeat).into()],
            )
            .await?
        }
    };
    Ok(!changed.is_empty())
}

/// Records that this process sends nothing more.
pub(super) async fn depart(
    on: &DatabaseTransaction,
    request: &DivisionRequest,
    own_id: Uuid,
    hold: Duration,
) -> Result<(), EngineError> {
    use limit_shares::Column::{Beat, Departed, HoldMs, Instance, Scope};
    limit_shares::Entity::update_many()
        .col_expr(Departed, Expr::value(1_i64))
        .col_expr(Beat, sea_query::ExprTrait::add(Beat.into_expr(), 1_i64))
        .col_expr(HoldMs, Expr::value(millis(hold)))
        .filter(Scope.eq(request.scope.as_str()))
        .filter(Instance.eq(own_id))
        .exec(on)
        .await?;
    Ok(())
}
