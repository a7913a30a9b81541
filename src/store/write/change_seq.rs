//! The number of a change.
//!
//! Every transaction has one, and every operation that it touches keeps it: whoever follows the operations goes by these
//! numbers ([`guildhall_core::operation::Frontier`]). PostgreSQL numbers its transactions itself, and tells whoever reads
//! which of them have not ended. A file of SQLite has one writer, so it counts: by the clock, so that the numbers also go
//! on where a copy from yesterday was put in the place of the file.

use sea_orm::{ConnectionTrait, Value};

use super::EngineError;
use crate::store::rows::query;

/// What stands for the number in a statement.
const PLACE: &str = "{changed}";

/// The number of the present transaction, in PostgreSQL's words; found once a statement.
const OF_POSTGRES: &str = "(SELECT pg_current_xact_id()::text::bigint)";

/// The name of the mark that is the highest change of all operations that were removed.
pub(in crate::store) const FORGOTTEN: &str = "forgotten";

/// The highest change of all that are in the store, and of all that were.
const HIGHEST: &str = "SELECT MAX(COALESCE((SELECT MAX(changed) FROM operations), 0),
    COALESCE((SELECT at FROM marks WHERE name = $1), 0))";

/// How the present transaction is numbered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::store) enum ChangeSeq {
    /// As PostgreSQL does.
    Postgres,
    /// With this number.
    Counted(i64),
}

impl ChangeSeq {
    /// A statement with the number in its place; its values with what that needs. `before` values stand before these.
    pub(in crate::store) fn put(self, sql: &str, mut values: Vec<Value>, before: usize) -> (String, Vec<Value>) {
        match self {
            Self::Postgres => (sql.replace(PLACE, OF_POSTGRES), values),
            Self::Counted(number) => {
                values.push(number.into());
                (sql.replace(PLACE, &format!("${}", before + values.len())), values)
            }
        }
    }

    /// The number after this one. `now` is in microseconds.
    pub(super) fn next(self, now: i64) -> Self {
        match self {
            Self::Postgres => Self::Postgres,
            Self::Counted(last) => Self::Counted(now.max(last + 1)),
        }
    }

    /// Where a file's own numbers stand.
    pub(super) async fn of_file(on: &impl ConnectionTrait) -> Result<Self, EngineError> {
        let rows = query(on, HIGHEST, vec![FORGOTTEN.into()]).await?;
        Ok(Self::Counted(rows.first().map_or(Ok(0), |row| row.try_get_by_index(0))?))
    }
}

/// Takes the numbers of operations back that are ahead of PostgreSQL's own: they were copied from another server, and nobody
/// could tell them from what has not begun. What was told of there is not known here.
pub(super) async fn mend(on: &impl ConnectionTrait) -> Result<u64, EngineError> {
    const AHEAD: &str = "SELECT 1 FROM operations WHERE changed > (SELECT pg_current_xact_id()::text::bigint) LIMIT 1";
    const MEND: &str = "UPDATE operations SET changed = (SELECT pg_current_xact_id()::text::bigint)
        WHERE changed > (SELECT pg_current_xact_id()::text::bigint) RETURNING id";
    const MARK: &str = "UPDATE marks SET at = (SELECT pg_current_xact_id()::text::bigint)
        WHERE name = $1 AND at > (SELECT pg_current_xact_id()::text::bigint)";
    query(on, MARK, vec![FORGOTTEN.into()]).await?;
    if query(on, AHEAD, Vec::new()).await?.is_empty() {
        return Ok(0);
    }
    Ok(query(on, MEND, Vec::new()).await?.len() as u64)
}

/// Remembers that operations were removed, the last of which had this change.
pub(super) async fn forget(on: &impl ConnectionTrait, change: i64) -> Result<(), EngineError> {
    const MARK: &str = "INSERT INTO marks (name, at) VALUES ($1, $2) ON CONFLICT (name) DO UPDATE
        SET at = CASE WHEN excluded.at > marks.at THEN excluded.at ELSE marks.at END";
    query(on, MARK, vec![FORGOTTEN.into(), change.into()]).await?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_grow_whatever_the_clock_does() {
        let first = ChangeSeq::Counted(100);
        assert_eq!(first.next(5), ChangeSeq::Counted(101));
        assert_eq!(first.next(5_000), ChangeSeq::Counted(5_000));
        assert_eq!(ChangeSeq::Postgres.next(5_000), ChangeSeq::Postgres);
    }

    #[test]
    fn a_statement_gets_the_number_or_asks_for_it() {
        let sql = "UPDATE o SET changed = {changed} WHERE id = $1";
        let (counted, values) = ChangeSeq::Counted(7).put(sql, vec![1_i64.into()], 0);
        assert_eq!((counted.as_str(), values.len()), ("UPDATE o SET changed = $2 WHERE id = $1", 2));
        let (asks, values) = ChangeSeq::Postgres.put(sql, vec![1_i64.into()], 0);
        assert!(asks.contains("pg_current_xact_id()") && values.len() == 1, "{asks}");
    }
}
