//! The table of shares: the statements of a [`LimitShare`](guildhall_core::limit::division::LimitShare).
//!
//! Changes are in SQL, since each depends on the state of other rows.

use std::time::Duration;

use guildhall_core::limit::division::{MemberId, Renewal, ShareAction, ShareRow};
use sea_orm::{ColumnTrait as _, DatabaseTransaction, EntityTrait as _, QueryFilter as _};
use uuid::Uuid;

use super::division::{DivisionRequest, DivisionState};
use crate::store::{
    entities::limit_shares,
    error::EngineError,
    rows::{query, query_as, query_scalar},
    write::signed,
};

/// Serializes reservations of one limit. Its holder delays only the growth of other shares: renewals do not need it.
const LOCK: &str =
    "SELECT pg_try_advisory_xact_lock(hashtextextended('guildhall limit ' || current_schema() || $1, 0))";

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
    const RENEW: &str = "UPDATE limit_shares SET beat = $3 WHERE scope = $1 AND instance = $2 RETURNING *";
    const JOIN: &str = "INSERT INTO limit_shares (scope, instance, beat, seat, hold_ms, share, departed, turn)
        SELECT $1, $2, $3, $4, $5, 0, 0, COALESCE(MAX(turn), 0) + 1 FROM limit_shares WHERE scope = $1 RETURNING turn";
    let values = vec![request.scope.clone().into(), own_id.into(), signed(heartbeat).into()];
    if let Some(row) = query_as::<limit_shares::Model>(on, RENEW, values.clone()).await?.first() {
        return Ok(Renewal::Extended { share: share(row.share), turn: number(row.turn) });
    }
    let more = [request.lock_name.clone().into(), millis(request.config.hold()).into()];
    let turn = query_scalar(on, JOIN, values.into_iter().chain(more).collect()).await?;
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
            let locked = query_scalar(on, LOCK, vec![request.scope.clone().into()]).await?;
            if !locked.unwrap_or(false) {
                return Ok(false);
            }
            const RESERVE: &str = "UPDATE limit_shares SET share = $4 WHERE scope = $1 AND instance = $2 AND beat = $3
                AND (SELECT COALESCE(SUM(o.share), 0) FROM limit_shares o WHERE o.scope = $1 AND o.instance <> $2) + $4 <= $5
                RETURNING share";
            let more = [i64::from(share).into(), i64::from(request.config.limit).into()];
            query(on, RESERVE, own.into_iter().chain(more).collect()).await?
        }
        ShareAction::Lower { share, turn } => {
            const LOWER: &str = "UPDATE limit_shares SET share = $4, turn = COALESCE($5, turn)
                WHERE scope = $1 AND instance = $2 AND beat = $3 RETURNING share";
            let more = [i64::from(share).into(), turn.map(signed).into()];
            query(on, LOWER, own.into_iter().chain(more).collect()).await?
        }
        ShareAction::Remove { member, heartbeat } => {
            // A row that is being renewed, perhaps by a frozen process, is skipped.
            const REMOVE: &str =
                "DELETE FROM limit_shares WHERE (scope, instance) IN (SELECT scope, instance FROM limit_shares
                WHERE scope = $1 AND instance = $2 AND beat = $3 FOR UPDATE SKIP LOCKED) RETURNING share";
            let other = Uuid::from_u128(member.0);
            query(on, REMOVE, vec![request.scope.clone().into(), other.into(), signed(heartbeat).into()]).await?
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
    const DEPART: &str =
        "UPDATE limit_shares SET departed = 1, beat = beat + 1, hold_ms = $3 WHERE scope = $1 AND instance = $2";
    let values = vec![request.scope.clone().into(), own_id.into(), millis(hold).into()];
    query(on, DEPART, values).await?;
    Ok(())
}
