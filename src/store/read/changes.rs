//! Changes of operations.

use guildhall_actors::ports::{ChangePage, ChangedOperation, OperationFilter};
use guildhall_core::operation::{ChangeCursor, VisibleChanges};
use sea_orm::{ConnectionTrait, DbBackend, QueryResult, Value};

use super::{
    WhereClause, limit,
    operations::{JOINS, apply_filter},
};
use crate::store::{
    error::EngineError,
    operation_row::{self, AFTER_DETAILS, DETAILS, STORED},
    rows::query,
    write::{FORGOTTEN, signed},
};

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
    let rows = query(on, &select, Vec::new()).await?;
    let row = rows.first().ok_or_else(|| EngineError::Corrupt("the engine returned no snapshot".to_owned()))?;
    Ok(read_snapshot(row, 0)?.0)
}

/// The statement that finds changes after a cursor.
pub(in crate::store) fn follow_sql(
    engine: DbBackend,
    from: &ChangeCursor,
    filter: &OperationFilter,
    max: usize,
) -> (String, Vec<Value>) {
    let (next, open, partial) = (from.next(), from.open(), from.partial());
    // If no change is open, and no other change was started, all later changes are in one piece.
    let started = partial.filter(|(change, _)| change + 1 == next);
    let mut pieces = ChangesQuery { engine, filter, max, sql: Vec::new(), values: Vec::new() };
    pieces.add(|piece| match started {
        Some((change, last)) => piece.and_pair("(o.changed, o.id) > (?, ?)", signed(change), last),
        None => piece.and("o.changed >= ?", signed(next)),
    });
    if let Some((change, last)) = partial.filter(|_| started.is_none()) {
        pieces.add(|piece| piece.and_pair("o.changed = ? AND o.id > ?", signed(change), last));
    }
    if !open.is_empty() {
        let open: Vec<_> = open.iter().map(ToString::to_string).collect();
        pieces.add(|piece| piece.and_sql(&format!("o.changed IN ({})", open.join(", "))));
    }
    let ChangesQuery { sql, values, .. } = pieces;
    let found = sql.join(" UNION ALL ");
    let select = format!(
        "SELECT {STORED}, {DETAILS}, found.changed, moment.seen, moment.highest, moment.forgotten
        FROM {} LEFT JOIN ({found}) found ON 1 = 1 LEFT JOIN operations o ON o.id = found.id {JOINS}",
        snapshot_sql(engine)
    );
    (select, values)
}

/// Pieces of the later changes. Each has as many rows as are requested in total: which of them come first is determined
/// afterwards.
struct ChangesQuery<'a> {
    engine: DbBackend,
    filter: &'a OperationFilter,
    max: usize,
    sql: Vec<String>,
    values: Vec<Value>,
}

impl ChangesQuery<'_> {
    fn add(&mut self, which: impl FnOnce(&mut WhereClause)) {
        let mut piece = WhereClause::after(std::mem::take(&mut self.values));
        which(&mut piece);
        apply_filter(&mut piece, self.filter);
        if self.engine == DbBackend::Postgres {
            // Operations that were copied from another server may have numbers that are not in use here yet.
            piece.and_sql("o.changed < pg_snapshot_xmax(pg_current_snapshot())::text::bigint");
        }
        let (rest, values) = piece.ordered("o.changed, o.id", self.max);
        self.values = values;
        let found = format!("SELECT o.id, o.changed FROM operations o {rest}");
        self.sql.push(format!("SELECT * FROM ({found}) piece{}", self.sql.len()));
    }
}

pub(in crate::store) async fn follow(
    on: &impl ConnectionTrait,
    from: &ChangeCursor,
    filter: &OperationFilter,
    max: usize,
) -> Result<ChangePage, EngineError> {
    let (sql, values) = follow_sql(on.get_database_backend(), from, filter, max);
    let rows = query(on, &sql, values).await?;
    let first = rows.first().ok_or_else(|| EngineError::Corrupt("the engine returned no snapshot".to_owned()))?;
    // After the operation come the change, the snapshot, and the highest removed change.
    let (seen, forgotten) = read_snapshot(first, AFTER_DETAILS + 1)?;
    let mut changed = Vec::new();
    let mut found = 0;
    for row in &rows {
        if let Some(change) = row.try_get_by_index::<Option<i64>>(AFTER_DETAILS)? {
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

/// Reads the visible changes and the highest removed change, starting at this column.
fn read_snapshot(row: &QueryResult, from: usize) -> Result<(VisibleChanges, Option<u64>), EngineError> {
    let seen: Option<String> = row.try_get_by_index(from)?;
    let highest: Option<i64> = row.try_get_by_index(from + 1)?;
    let forgotten: Option<i64> = row.try_get_by_index(from + 2)?;
    let forgotten = forgotten.map(i64::unsigned_abs);
    let seen = match seen {
        Some(text) => parse_snapshot(&text)
            .ok_or_else(|| EngineError::Corrupt(format!("invalid PostgreSQL snapshot: {text:?}")))?,
        None => {
            let last = highest.map(i64::unsigned_abs).max(forgotten);
            VisibleChanges { next: last.map_or(0, |last| last + 1), ..VisibleChanges::default() }
        }
    };
    Ok((seen, forgotten))
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
            let (sql, values) = follow_sql(DbBackend::Sqlite, from, &OperationFilter::default(), 10);
            (sql.matches("UNION ALL").count() + 1, values.len())
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
