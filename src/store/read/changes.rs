//! Changes of operations.

use guildhall_actors::ports::{ChangePage, ChangedOperation, OperationFilter};
use guildhall_core::operation::{ChangeCursor, VisibleChanges};
use sea_orm::{
    ColumnTrait as _, Condition, ConnectionTrait, DbBackend, FromQueryResult, Statement,
    sea_query::{self, Expr},
};

use super::{limit, operations::conditions};
use crate::store::{
    entities::operations::Column::{Changed, Id},
    error::EngineError,
    operation_row::{self, DETAILS, DETAILS_JOINS},
    rows::{SqlText, query_as},
    write::{FORGOTTEN, signed},
};

/// What is visible at the time of a statement.
#[derive(FromQueryResult)]
struct Snapshot {
    /// The snapshot, on PostgreSQL.
    seen: Option<String>,
    /// The highest change, on SQLite.
    highest: Option<i64>,
    /// The highest change of the operations that were removed.
    forgotten: Option<i64>,
}

/// SQL for what is visible at the time of a statement: PostgreSQL's snapshot, and the highest change.
fn snapshot_sql(engine: DbBackend) -> String {
    let seen = match engine {
        DbBackend::Postgres => "pg_current_snapshot()::text AS seen, CAST(0 AS BIGINT) AS highest",
        _ => "NULL AS seen, (SELECT MAX(changed) FROM operations) AS highest",
    };
    format!("(SELECT {seen}, (SELECT at FROM marks WHERE name = '{FORGOTTEN}') AS forgotten) moment")
}

pub(in crate::store) async fn visible_changes(on: &impl ConnectionTrait) -> Result<VisibleChanges, EngineError> {
    let select = format!(
        "SELECT moment.seen, moment.highest, moment.forgotten FROM {}",
        snapshot_sql(on.get_database_backend())
    );
    let rows: Vec<Snapshot> = query_as(on, &select, Vec::new()).await?;
    let snapshot = rows.into_iter().next().ok_or_else(no_snapshot)?;
    Ok(snapshot.visible()?.0)
}

fn no_snapshot() -> EngineError {
    EngineError::Corrupt("the engine returned no snapshot".to_owned())
}

/// The statement that finds changes after a cursor. In SQL, because it reads what is visible and the changes at once.
///
/// Each of its pieces has as many rows as are requested in total: which of them come first is determined afterwards.
pub(in crate::store) fn select_changes(
    engine: DbBackend,
    from: &ChangeCursor,
    filter: &OperationFilter,
    max: usize,
) -> Statement {
    let (next, open, partial) = (from.next(), from.open(), from.partial());
    // If no change is open, and no other change was started, all later changes are in one piece.
    let started = partial.filter(|(change, _)| change + 1 == next);
    let mut pieces = vec![match started {
        Some((change, last)) => {
            let last = [Expr::from(signed(change)), Expr::from(last)];
            sea_query::ExprTrait::gt(Expr::tuple([Changed.into_expr(), Id.into_expr()]), Expr::tuple(last))
        }
        None => Changed.gte(signed(next)),
    }];
    if let Some((change, last)) = partial.filter(|_| started.is_none()) {
        pieces.push(sea_query::ExprTrait::and(Changed.eq(signed(change)), Id.gt(last)));
    }
    if !open.is_empty() {
        pieces.push(Changed.is_in(open.iter().map(|change| signed(*change))));
    }
    let mut sql = SqlText::new(engine);
    sql.push(&format!(
        "SELECT {}, moment.seen, moment.highest, moment.forgotten FROM {} LEFT JOIN (",
        *DETAILS,
        snapshot_sql(engine)
    ));
    for (nth, piece) in pieces.into_iter().enumerate() {
        // Operations that were copied from another server may have numbers that are not in use here yet.
        let in_use = (engine == DbBackend::Postgres)
            .then(|| Expr::cust("operations.changed < pg_snapshot_xmax(pg_current_snapshot())::text::bigint"));
        let condition = Condition::all().add(piece).add(conditions(filter)).add_option(in_use);
        sql.push(if nth == 0 { "" } else { " UNION ALL " });
        sql.push("SELECT * FROM (SELECT id FROM operations WHERE ").condition(condition);
        sql.push(" ORDER BY changed, id").limit(max).push(&format!(") piece{nth}"));
    }
    sql.push(&format!(") found ON 1 = 1 LEFT JOIN operations ON operations.id = found.id {DETAILS_JOINS}"));
    sql.finish()
}

pub(in crate::store) async fn follow(
    on: &impl ConnectionTrait,
    from: &ChangeCursor,
    filter: &OperationFilter,
    max: usize,
) -> Result<ChangePage, EngineError> {
    let rows = on.query_all_raw(select_changes(on.get_database_backend(), from, filter, max)).await?;
    let first = rows.first().ok_or_else(no_snapshot)?;
    let (seen, forgotten) = Snapshot::from_query_result(first, "")?.visible()?;
    let mut changed = Vec::new();
    let mut found = 0;
    for row in &rows {
        // Without changes, the snapshot is alone in its row.
        if let Some(change) = row.try_get::<Option<i64>>("", "changed")? {
            found += 1;
            let details = operation_row::unless_corrupt(operation_row::details(row))?;
            changed.extend(details.map(|details| ChangedOperation { change: change.unsigned_abs(), details }));
        }
    }
    changed.sort_by_key(|one| from.order(one.change, one.details.stored.operation.id.uuid()));
    let max = usize::try_from(limit(max)).unwrap_or(max);
    // A page without readable operations ends here: it would be requested again and again.
    let mut more = found >= max && !changed.is_empty();
    changed.truncate(max);
    let seen = seen.bounded();
    if let Some(first) = changed.iter().position(|one| one.change >= seen.next && one.change >= from.next()) {
        // They follow more open changes than a cursor can hold, and have to wait for those.
        changed.truncate(first);
        more = false;
    }
    Ok(ChangePage { visible: seen, max_deleted: forgotten, changed, has_more: more })
}

impl Snapshot {
    /// The visible changes, and the highest removed change.
    fn visible(self) -> Result<(VisibleChanges, Option<u64>), EngineError> {
        let forgotten = self.forgotten.map(i64::unsigned_abs);
        let seen = match self.seen {
            Some(text) => parse_snapshot(&text)
                .ok_or_else(|| EngineError::Corrupt(format!("invalid PostgreSQL snapshot: {text:?}")))?,
            None => {
                let last = self.highest.map(i64::unsigned_abs).max(forgotten);
                VisibleChanges { next: last.map_or(0, |last| last + 1), ..VisibleChanges::default() }
            }
        };
        Ok((seen, forgotten))
    }
}

/// Reads `xmin:xmax:xip,xip`: all transactions below xmin have ended, none from xmax on, and of the others all except
/// these.
fn parse_snapshot(text: &str) -> Option<VisibleChanges> {
    let mut parts = text.split(':');
    let (_, next, open) = (parts.next()?, parts.next()?.parse().ok()?, parts.next()?);
    let open = open.split(',').filter(|open| !open.is_empty()).map(|open| open.parse().ok());
    Some(VisibleChanges { next, open: open.collect::<Option<_>>()? })
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;

    #[test]
    fn postgres_snapshot_is_parsed() {
        assert_eq!(parse_snapshot("10:10:"), Some(VisibleChanges { next: 10, ..VisibleChanges::default() }));
        assert_eq!(parse_snapshot("10:20:10,14,15"), Some(VisibleChanges { next: 20, open: [10, 14, 15].into() }));
        for invalid in ["", "10", "10:20", "10:x:", "10:20:1,x"] {
            assert_eq!(parse_snapshot(invalid), None, "{invalid}");
        }
    }

    #[test]
    fn changes_are_one_piece_unless_some_were_open() {
        let pieces = |from: &ChangeCursor| {
            let select = select_changes(DbBackend::Sqlite, from, &OperationFilter::default(), 10);
            (select.sql.matches("UNION ALL").count() + 1, select.values.map_or(0, |values| values.0.len()))
        };
        let mut from = ChangeCursor::at(VisibleChanges { next: 10, ..VisibleChanges::default() });
        assert_eq!(pieces(&from), (1, 2));
        from.on_delivered(&VisibleChanges { next: 20, ..VisibleChanges::default() }, 12, Uuid::nil());
        assert_eq!(pieces(&from), (1, 3));
        let mut from = ChangeCursor::at(VisibleChanges { next: 10, open: [5, 7].into() });
        assert_eq!(pieces(&from).0, 2);
        from.on_delivered(&VisibleChanges { next: 20, ..VisibleChanges::default() }, 5, Uuid::nil());
        assert_eq!(pieces(&from).0, 3, "5 was started, 7 was open, and there are changes after 10");
    }
}
