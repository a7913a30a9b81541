//! Change sequence numbers.
//!
//! Every transaction has one, and every operation that it changes stores it: change feeds follow operations by these
//! numbers (`guildhall_core::operation::ChangeCursor`). PostgreSQL numbers its transactions itself, and tells readers
//! which of them have not ended. An SQLite file has one writer, so it counts: by the clock, so that the numbers also
//! increase after the file was replaced by an older copy.

use sea_orm::{ConnectionTrait, Value};

use super::EngineError;
use crate::store::rows::{query, query_scalar};
use crate::store::sql;

/// Placeholder for the number in a statement.
const PLACEHOLDER: &str = "{changed}";

/// SQL expression for the number of the present transaction; evaluated once for each statement.
const POSTGRES_TRANSACTION_ID: &str = "(SELECT pg_current_xact_id()::text::bigint)";

/// Name of the mark with the highest change of all operations that were removed.
pub(in crate::store) const FORGOTTEN: &str = "forgotten";

/// How the present transaction is numbered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::store) enum ChangeSeq {
    /// PostgreSQL's transaction ID.
    Postgres,
    /// This number.
    Counted(i64),
}

impl ChangeSeq {
    /// Replaces the placeholder in a statement, and adds the value that it needs. `before` is the number of parameters
    /// before `values`.
    pub(in crate::store) fn bind(self, sql: &str, mut values: Vec<Value>, before: usize) -> (String, Vec<Value>) {
        match self {
            Self::Postgres => (sql.replace(PLACEHOLDER, POSTGRES_TRANSACTION_ID), values),
            Self::Counted(number) => {
                values.push(number.into());
                (sql.replace(PLACEHOLDER, &format!("${}", before + values.len())), values)
            }
        }
    }

    /// The next number. `now` is in microseconds.
    pub(super) fn next(self, now: i64) -> Self {
        match self {
            Self::Postgres => Self::Postgres,
            Self::Counted(last) => Self::Counted(now.max(last + 1)),
        }
    }

    /// The last number of a file.
    pub(super) async fn of_file(on: &impl ConnectionTrait) -> Result<Self, EngineError> {
        let highest = query_scalar(on, sql::change_seq::HIGHEST, vec![FORGOTTEN.into()]).await?;
        Ok(Self::Counted(highest.unwrap_or(0)))
    }
}

/// Lowers the numbers of operations that are ahead of PostgreSQL's own: they were copied from another server, and
/// readers could not tell them from transactions that have not started. What was reported on the other server is
/// unknown here.
pub(super) async fn repair(on: &impl ConnectionTrait) -> Result<u64, EngineError> {
    query(on, sql::change_seq::LOWER_MARK, vec![FORGOTTEN.into()]).await?;
    if query(on, sql::change_seq::AHEAD, Vec::new()).await?.is_empty() {
        return Ok(0);
    }
    Ok(query(on, sql::change_seq::MEND, Vec::new()).await?.len() as u64)
}

/// Records that operations were removed, of which the highest change is this one.
pub(super) async fn record_removed(on: &impl ConnectionTrait, change: i64) -> Result<(), EngineError> {
    query(on, sql::change_seq::RAISE_MARK, vec![FORGOTTEN.into(), change.into()]).await?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_increase_when_the_clock_goes_back() {
        let first = ChangeSeq::Counted(100);
        assert_eq!(first.next(5), ChangeSeq::Counted(101));
        assert_eq!(first.next(5_000), ChangeSeq::Counted(5_000));
        assert_eq!(ChangeSeq::Postgres.next(5_000), ChangeSeq::Postgres);
    }

    #[test]
    fn statement_gets_the_number_or_an_expression() {
        let sql = "UPDATE o SET changed = {changed} WHERE id = $1";
        let (counted, values) = ChangeSeq::Counted(7).bind(sql, vec![1_i64.into()], 0);
        assert_eq!((counted.as_str(), values.len()), ("UPDATE o SET changed = $2 WHERE id = $1", 2));
        let (expression, values) = ChangeSeq::Postgres.bind(sql, vec![1_i64.into()], 0);
        assert!(expression.contains("pg_current_xact_id()") && values.len() == 1, "{expression}");
    }
}
