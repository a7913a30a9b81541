//! The table of shares: the statements of a [`LimitShare`](guildhall_core::limit::division::LimitShare).

use std::time::Duration;

use guildhall_core::limit::division::{MemberId, Renewal, ShareAction, ShareRow};
use sea_orm::{DatabaseTransaction, QueryResult};
use uuid::Uuid;

use super::division::{DivisionRequest, DivisionState};
use crate::store::{error::EngineError, rows::query, write::signed};

/// Serializes reservations of one limit. Its holder delays only the growth of other shares: renewals do not need it.
const LOCK: &str =
    "SELECT pg_try_advisory_xact_lock(hashtextextended('guildhall limit ' || current_schema() || $1, 0))";

fn millis(duration: Duration) -> i64 {
    signed(u64::try_from(duration.as_millis()).unwrap_or(u64::MAX))
}

fn number(row: &QueryResult, column: usize) -> Result<u64, EngineError> {
    Ok(row.try_get_by_index::<i64>(column)?.max(0).unsigned_abs())
}

fn share(row: &QueryResult, column: usize) -> Result<u32, EngineError> {
    Ok(u32::try_from(number(row, column)?).unwrap_or(u32::MAX))
}

/// Renews the row of this process, or inserts one.
pub(super) async fn renew(
    on: &DatabaseTransaction,
    request: &DivisionRequest,
    own_id: Uuid,
    heartbeat: u64,
) -> Result<Renewal, EngineError> {
    const RENEW: &str = "UPDATE limit_shares SET beat = $3 WHERE scope = $1 AND instance = $2 RETURNING share, turn";
    const JOIN: &str = "INSERT INTO limit_shares (scope, instance, beat, seat, hold_ms, share, departed, turn)
        SELECT $1, $2, $3, $4, $5, 0, 0, COALESCE(MAX(turn), 0) + 1 FROM limit_shares WHERE scope = $1 RETURNING turn";
    let values = vec![request.scope.clone().into(), own_id.into(), signed(heartbeat).into()];
    if let Some(row) = query(on, RENEW, values.clone()).await?.first() {
        return Ok(Renewal::Extended { share: share(row, 0)?, turn: number(row, 1)? });
    }
    let more = [request.lock_name.clone().into(), millis(request.config.hold()).into()];
    let rows = query(on, JOIN, values.into_iter().chain(more).collect()).await?;
    Ok(Renewal::Joined { turn: rows.first().map_or(Ok(1), |row| number(row, 0))? })
}

/// Reads all rows of a limit.
pub(super) async fn read(
    on: &DatabaseTransaction,
    scope: &str,
    division: &DivisionState,
) -> Result<Vec<ShareRow>, EngineError> {
    const READ: &str = "SELECT instance, beat, turn, share, hold_ms, departed, seat FROM limit_shares WHERE scope = $1";
    let mut rows = Vec::new();
    for row in query(on, READ, vec![scope.into()]).await? {
        let lock_name: String = row.try_get_by_index(6)?;
        rows.push(ShareRow {
            member: MemberId(row.try_get_by_index::<Uuid>(0)?.as_u128()),
            heartbeat: number(&row, 1)?,
            turn: number(&row, 2)?,
            share: share(&row, 3)?,
            hold: Duration::from_millis(number(&row, 4)?),
            has_left: number(&row, 5)? != 0,
            is_dead: !lock_name.is_empty() && division.is_dead(&lock_name),
        });
    }
    Ok(rows)
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
            let locked = query(on, LOCK, vec![request.scope.clone().into()]).await?;
            if !locked.first().map_or(Ok(false), |row| row.try_get_by_index(0))? {
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
