//! Statements in SQL: with many rows, composed of several parts, or read into named columns.
//!
//! A statement that SeaORM's builders can express is built by them, from the [`entities`](super::entities).
//!
//! For PostgreSQL each column is an array parameter that the statement unnests, so its text is the same for one row and
//! for a thousand. For SQLite each value is a parameter: a text has room for a power of two of rows, and a limit says
//! how many are used. So each statement has only a few texts, and all of them stay prepared.

use std::{borrow::Cow, fmt::Write as _, sync::Arc};

use guildhall_core::{
    operation::{OperationId, Queue},
    time::UnixMs,
};
use sea_orm::{
    Condition, ConnectionTrait, DbBackend, DbErr, FromQueryResult, QueryResult, QueryTrait, Statement, TryGetable,
    Value,
    sea_query::{
        ArrayType, Expr, PostgresQueryBuilder, QueryBuilder as _, SelectStatement, SqlWriter as _, SqlWriterValues,
        SqliteQueryBuilder,
    },
};
use uuid::Uuid;

use super::{read::limit, write::signed};

/// Maximum number of rows in one statement on SQLite; more rows use several statements. This limits the size of
/// prepared statements, and the parameters of the widest rows stay far below the limit of the engine.
const MAX_SQLITE_ROWS: usize = 256;

/// Type of a column.
#[derive(Clone, Copy, Debug)]
pub(super) enum ColumnType {
    Number,
    Text,
    Uuid,
    Bytes,
}

impl ColumnType {
    fn array(self) -> (ArrayType, &'static str) {
        match self {
            Self::Number => (ArrayType::BigInt, "bigint[]"),
            Self::Text => (ArrayType::String, "text[]"),
            Self::Uuid => (ArrayType::Uuid, "uuid[]"),
            Self::Bytes => (ArrayType::Bytes, "bytea[]"),
        }
    }

    /// Placeholder in an array for NULL.
    fn null_placeholder(self) -> Value {
        match self {
            Self::Number => Value::BigInt(Some(0)),
            Self::Text => Value::String(Some(String::new())),
            Self::Uuid => Value::Uuid(Some(Uuid::nil())),
            Self::Bytes => Value::Bytes(Some(Vec::new())),
        }
    }
}

/// Columns of the rows of a statement, by name and in order. The first column is never NULL.
#[derive(Clone, Copy, Debug)]
pub(super) struct Columns(pub(super) &'static [(&'static str, ColumnType)]);

/// [`Columns`] by name and type: `columns![op: Uuid, at: Number]`.
macro_rules! columns {
    ($($name:ident: $type:ident),+ $(,)?) => {
        $crate::store::rows::Columns(&[$((stringify!($name), $crate::store::rows::ColumnType::$type)),+])
    };
}
pub(super) use columns;

/// The values of a row, for [`Rows::push`].
macro_rules! row {
    ($($value:expr),+ $(,)?) => {
        &[$($crate::store::rows::RowValue::from($value)),+]
    };
}
pub(super) use row;

/// A value of a row.
#[derive(Clone, Copy, Debug)]
pub(super) enum RowValue<'a> {
    Number(i64),
    Text(&'a str),
    Uuid(Uuid),
    Bytes(&'a [u8]),
    Null,
}

impl<'a, T: Into<RowValue<'a>>> From<Option<T>> for RowValue<'a> {
    fn from(value: Option<T>) -> Self {
        value.map_or(Self::Null, Into::into)
    }
}

/// Conversions of types to values of rows.
macro_rules! row_values {
    ($($type:ty: |$value:ident| $converted:expr;)+) => {
        $(impl<'a> From<$type> for RowValue<'a> {
            fn from($value: $type) -> Self {
                $converted
            }
        })+
    };
}

row_values! {
    i64: |number| Self::Number(number);
    u32: |number| Self::Number(number.into());
    bool: |flag| Self::Number(flag.into());
    UnixMs: |time| Self::Number(signed(time.millis()));
    Queue: |queue| Self::Number(queue.number());
    Uuid: |uuid| Self::Uuid(uuid);
    OperationId: |id| Self::Uuid(id.uuid());
    &'a str: |text| Self::Text(text);
    &'a String: |text| Self::Text(text);
    &'a Arc<str>: |text| Self::Text(text);
    &'a [u8; 32]: |bytes| Self::Bytes(bytes);
}

impl From<RowValue<'_>> for Value {
    fn from(cell: RowValue<'_>) -> Self {
        match cell {
            RowValue::Number(number) => Self::BigInt(Some(number)),
            RowValue::Text(text) => Self::String(Some(without_nul(text))),
            RowValue::Uuid(uuid) => Self::Uuid(Some(uuid)),
            RowValue::Bytes(bytes) => Self::Bytes(Some(bytes.to_vec())),
            RowValue::Null => NULL,
        }
    }
}

/// NULL. Both engines accept it for any column.
const NULL: Value = Value::BigInt(None);

/// Rows for a statement, as a flat list of values.
#[derive(Clone, Debug)]
pub(super) struct Rows {
    cells: Vec<Value>,
}

impl Rows {
    pub(super) fn new() -> Self {
        Self { cells: Vec::new() }
    }

    /// Rows of one value each.
    pub(super) fn of<'a, T: Into<RowValue<'a>>>(cells: impl IntoIterator<Item = T>) -> Self {
        Self { cells: cells.into_iter().map(|cell| Value::from(cell.into())).collect() }
    }

    pub(super) fn push(&mut self, cells: &[RowValue<'_>]) {
        self.cells.extend(cells.iter().map(|cell| Value::from(*cell)));
    }

    pub(super) fn is_empty(&self) -> bool {
        self.cells.is_empty()
    }
}

/// A text that both engines can store. PostgreSQL cannot store NUL, so it is replaced by U+FFFD.
pub(super) fn without_nul(text: &str) -> String {
    if text.contains('\0') { text.replace('\0', "\u{fffd}") } else { text.to_owned() }
}

/// Runs a statement that takes rows, if there are any. `{v}` in it stands for the rows, under the name `v`. `after` are
/// its other parameters, from `$2` on. On SQLite many rows use several statements, so the result for one row must not
/// depend on others.
pub(super) async fn with_rows(
    on: &impl ConnectionTrait,
    sql: &str,
    shape: Columns,
    rows: Rows,
    after: Vec<Value>,
) -> Result<Vec<QueryResult>, DbErr> {
    let mut found = Vec::new();
    for statement in statements(on.get_database_backend(), sql, shape, rows, &after) {
        let more = on.query_all_raw(statement).await?;
        if found.is_empty() {
            found = more;
        } else {
            found.extend(more);
        }
    }
    Ok(found)
}

/// The statements that [`with_rows`] runs, in order.
pub(super) fn statements(
    engine: DbBackend,
    sql: &str,
    shape: Columns,
    rows: Rows,
    after: &[Value],
) -> impl Iterator<Item = Statement> {
    let width = shape.0.len();
    debug_assert!(rows.cells.len().is_multiple_of(width), "every row has all columns");
    let max_rows = match engine {
        DbBackend::Postgres => usize::MAX,
        _ => MAX_SQLITE_ROWS,
    };
    let mut cells = rows.cells.into_iter();
    std::iter::from_fn(move || {
        let count = (cells.len() / width).min(max_rows);
        let taken = (count > 0).then(|| cells.by_ref().take(count * width))?;
        Some(match engine {
            DbBackend::Postgres => by_column(sql, shape, taken, after),
            _ => by_row(sql, shape, taken, count, after),
        })
    })
}

/// For PostgreSQL. The arrays contain no NULLs; instead, a bit mask for each row says which of its columns are NULL.
fn by_column(sql: &str, shape: Columns, cells: impl Iterator<Item = Value>, after: &[Value]) -> Statement {
    let mut columns: Vec<Vec<Value>> = shape.0.iter().map(|_| Vec::new()).collect();
    let mut absent = Vec::new();
    let mut missing = 0;
    for (nth, cell) in cells.enumerate() {
        let column = nth % shape.0.len();
        let cell = if cell == NULL {
            missing |= 1_i64 << column;
            shape.0[column].1.null_placeholder()
        } else {
            cell
        };
        columns[column].push(cell);
        if column + 1 == shape.0.len() {
            absent.push(Value::BigInt(Some(missing)));
            missing = 0;
        }
    }
    let arrays = columns.into_iter().zip(shape.0).map(|(cells, (_, holds))| array(holds.array().0, cells));
    let mut arrays = arrays.chain([array(ArrayType::BigInt, absent)]);
    let values: Vec<Value> = arrays.next().into_iter().chain(after.iter().cloned()).chain(arrays).collect();
    Statement::from_sql_and_values(DbBackend::Postgres, sql.replace("{v}", &unnest_sql(shape, after.len())), values)
}

fn array(of: ArrayType, cells: Vec<Value>) -> Value {
    Value::Array(of, Some(Box::new(cells)))
}

/// The first column is `$1`; the others follow the statement's own parameters.
fn unnest_sql(shape: Columns, after: usize) -> String {
    let (mut picked, mut arrays, mut names) = (String::new(), String::new(), String::new());
    for (column, (name, column_type)) in shape.0.iter().enumerate() {
        let number = if column == 0 { 1 } else { 1 + after + column };
        let array = column_type.array().1;
        let written = match column {
            0 => write!(picked, "r.{name}"),
            _ => write!(picked, ", CASE WHEN r.absent & {} = 0 THEN r.{name} END AS {name}", 1_i64 << column),
        };
        written
            .and_then(|()| write!(arrays, "${number}::{array}, "))
            .and_then(|()| write!(names, "{name}, "))
            .expect("invariant: writing to a String cannot fail");
    }
    let last = 1 + after + shape.0.len();
    format!("(SELECT {picked} FROM UNNEST({arrays}${last}::bigint[]) AS r ({names}absent)) AS v")
}

/// For SQLite.
fn by_row(sql: &str, shape: Columns, cells: impl Iterator<Item = Value>, count: usize, after: &[Value]) -> Statement {
    let room = count.next_power_of_two();
    let cells_at_most = room * shape.0.len();
    let mut values: Vec<Value> = Vec::with_capacity(cells_at_most + 1 + after.len());
    values.extend(cells);
    values.resize(cells_at_most, NULL);
    values.push(Value::BigInt(i64::try_from(count).ok()));
    values.extend(after.iter().cloned());
    let listed = values_sql(shape, room);
    let sql = shift_parameters(sql, cells_at_most);
    let sql = or_fail(&sql);
    // A list that is used twice is written once, as a common table expression: its parameters have no numbers.
    let sql = match sql.matches("{v}").count() {
        0 | 1 => sql.replace("{v}", &format!("{listed} AS v")),
        _ => format!("WITH v AS {listed} {}", sql.replace("{v}", "v")),
    };
    Statement::from_sql_and_values(DbBackend::Sqlite, sql, values)
}

/// Room for this many rows, and a limit that says how many are used. The limit is a sum because SQLite prepares a
/// statement again when a limit that is a plain parameter has changed.
fn values_sql(shape: Columns, room: usize) -> String {
    let mut columns = String::new();
    for (column, (name, _)) in shape.0.iter().enumerate() {
        let comma = if column == 0 { "" } else { ", " };
        write!(columns, "{comma}column{} AS {name}", column + 1).expect("invariant: writing to a String cannot fail");
    }
    let row = format!("({}?),", "?,".repeat(shape.0.len() - 1));
    let rows = row.repeat(room);
    format!("(SELECT {columns} FROM (VALUES {}) LIMIT ${} + 0)", rows.trim_end_matches(','), room * shape.0.len() + 1)
}

/// Makes a statement that changes rows stop at the first violated constraint. By default SQLite would undo the rows
/// before it, and for that it stores a copy of every page that it changes; here the whole transaction is rolled back
/// anyway.
fn or_fail(sql: &str) -> Cow<'_, str> {
    for word in ["INSERT ", "UPDATE "] {
        if let Some(rest) = sql.strip_prefix(word) {
            return Cow::Owned(format!("{word}OR FAIL {rest}"));
        }
    }
    Cow::Borrowed(sql)
}

/// Renumbers the statement's own parameters, `$2` and on, to follow this many values.
fn shift_parameters(sql: &str, cells: usize) -> Cow<'_, str> {
    if !sql.contains('$') {
        return Cow::Borrowed(sql);
    }
    let mut pieces = sql.split('$');
    let mut moved = pieces.next().unwrap_or_default().to_owned();
    for piece in pieces {
        let digits = piece.find(|letter: char| !letter.is_ascii_digit()).unwrap_or(piece.len());
        let number: usize = piece[..digits].parse().expect("invariant: a parameter has a number");
        write!(moved, "${}{}", number + cells, &piece[digits..]).expect("invariant: writing to a String cannot fail");
    }
    Cow::Owned(moved)
}

/// Like [`with_rows`], and reads the rows by the names of their columns.
pub(super) async fn with_rows_as<T: FromQueryResult>(
    on: &impl ConnectionTrait,
    sql: &str,
    shape: Columns,
    rows: Rows,
    after: Vec<Value>,
) -> Result<Vec<T>, DbErr> {
    with_rows(on, sql, shape, rows, after).await?.iter().map(|row| T::from_query_result(row, "")).collect()
}

/// Runs a statement and returns its rows.
pub(super) async fn query(on: &impl ConnectionTrait, sql: &str, values: Vec<Value>) -> Result<Vec<QueryResult>, DbErr> {
    on.query_all_raw(Statement::from_sql_and_values(on.get_database_backend(), sql, values)).await
}

/// Runs a statement, and reads the rows by the names of their columns.
pub(super) async fn query_as<T: FromQueryResult>(
    on: &impl ConnectionTrait,
    sql: &str,
    values: Vec<Value>,
) -> Result<Vec<T>, DbErr> {
    T::find_by_statement(Statement::from_sql_and_values(on.get_database_backend(), sql, values)).all(on).await
}

/// Runs a statement, and reads the first column of its first row.
pub(super) async fn query_scalar<T: TryGetable>(
    on: &impl ConnectionTrait,
    sql: &str,
    values: Vec<Value>,
) -> Result<Option<T>, DbErr> {
    Ok(scalars(&query(on, sql, values).await?)?.into_iter().next())
}

/// The first column of each row.
pub(super) fn scalars<T: TryGetable>(rows: &[QueryResult]) -> Result<Vec<T>, DbErr> {
    rows.iter().map(|row| row.try_get_by_index(0)).collect()
}

/// The first rows of a select: as many as requested, within the limit of all reads.
pub(super) fn first_rows(
    engine: DbBackend,
    select: &impl QueryTrait<QueryStatement = SelectStatement>,
    requested: usize,
) -> Statement {
    let mut sql = SqlText::new(engine);
    sql.select(select.as_query()).limit(requested);
    sql.finish()
}

/// SQL that is composed of text and of parts that SeaORM's builders render, with the values of both.
#[derive(Debug)]
pub(super) struct SqlText {
    engine: DbBackend,
    sql: SqlWriterValues,
}

impl SqlText {
    pub(super) fn new(engine: DbBackend) -> Self {
        let (placeholder, numbered) = match engine {
            DbBackend::Postgres => PostgresQueryBuilder.placeholder(),
            _ => SqliteQueryBuilder.placeholder(),
        };
        Self { engine, sql: SqlWriterValues::new(placeholder, numbered) }
    }

    pub(super) fn push(&mut self, sql: &str) -> &mut Self {
        self.sql.write_str(sql).expect("invariant: writing to a String cannot fail");
        self
    }

    pub(super) fn value(&mut self, value: impl Into<Value>) -> &mut Self {
        self.sql.push_param(value.into(), &SqliteQueryBuilder);
        self
    }

    pub(super) fn condition(&mut self, condition: Condition) -> &mut Self {
        let condition = Expr::from(condition);
        match self.engine {
            DbBackend::Postgres => PostgresQueryBuilder.prepare_expr(&condition, &mut self.sql),
            _ => SqliteQueryBuilder.prepare_expr(&condition, &mut self.sql),
        }
        self
    }

    fn select(&mut self, select: &SelectStatement) -> &mut Self {
        match self.engine {
            DbBackend::Postgres => select.build_collect_into(PostgresQueryBuilder, &mut self.sql),
            _ => select.build_collect_into(SqliteQueryBuilder, &mut self.sql),
        }
        self
    }

    /// A limit. Here and elsewhere it is a sum, because SQLite prepares a statement again when a limit that is a plain
    /// parameter is bound.
    pub(super) fn limit(&mut self, requested: usize) -> &mut Self {
        self.push(" LIMIT ").value(limit(requested)).push(" + 0")
    }

    pub(super) fn finish(self) -> Statement {
        let (sql, values) = self.sql.into_parts();
        Statement::from_sql_and_values(self.engine, sql, values.0)
    }
}

#[cfg(test)]
mod tests {
    use guildhall_testkit::postgres::PostgresServer;
    use sea_orm::{Database, DatabaseConnection};

    use super::*;

    const SHAPE: Columns = Columns(&[
        ("n", ColumnType::Number),
        ("words", ColumnType::Text),
        ("name", ColumnType::Uuid),
        ("bytes", ColumnType::Bytes),
        ("size", ColumnType::Number),
    ]);

    type Row = (i64, Option<String>, Option<Uuid>, Option<Vec<u8>>, Option<i64>);

    #[derive(FromQueryResult)]
    struct TypedRow {
        n: i64,
        words: Option<String>,
        name: Option<Uuid>,
        bytes: Option<Vec<u8>>,
        size: Option<i64>,
        here: String,
        five: i64,
    }

    /// Every second, third, fourth and fifth row has a NULL; two rows contain the value that is the placeholder for
    /// NULL elsewhere.
    fn row(n: i64) -> Row {
        let uuid = if n == 7 { Uuid::nil() } else { Uuid::from_u128(u128::from(n.unsigned_abs()) << 64) };
        let size = if n == 11 { 0 } else { i64::MIN + n };
        (
            n,
            (n % 2 != 0).then(|| if n == 1 { String::new() } else { format!("{n}\0\"'{{NULL}},\\") }),
            (n % 3 != 0).then_some(uuid),
            (n % 4 != 0).then(|| vec![0, 255, n.to_le_bytes()[0]]),
            (n % 5 != 0).then_some(size),
        )
    }

    async fn check_round_trip(on: &DatabaseConnection, sql: &str, count: i64) {
        let mut rows = Rows::new();
        for (n, words, name, bytes, size) in (1..=count).map(row) {
            let bytes = bytes.as_deref().map_or(RowValue::Null, RowValue::Bytes);
            rows.push(&[RowValue::Number(n), words.as_deref().into(), name.into(), bytes, size.into()]);
        }
        let mut found: Vec<Row> = Vec::new();
        for row in with_rows_as::<TypedRow>(on, sql, SHAPE, rows, vec!["here".into(), 5_i64.into()]).await.unwrap() {
            assert_eq!((row.here.as_str(), row.five), ("here", 5));
            found.push((row.n, row.words, row.name, row.bytes, row.size));
        }
        found.sort();
        let expected = (1..=count).map(row).map(|(n, words, name, bytes, size)| {
            (n, words.map(|words| words.replace('\0', "\u{fffd}")), name, bytes, size)
        });
        assert_eq!(found, expected.collect::<Vec<_>>(), "{count} rows");
    }

    async fn check_all_sizes(on: &DatabaseConnection) {
        const ONCE: &str = "SELECT v.n, v.words, v.name, v.bytes, v.size, $2 AS here, $3 AS five FROM {v}";
        const TWICE: &str =
            "SELECT v.n, v.words, v.name, v.bytes, v.size, $2 AS here, $3 AS five FROM {v} WHERE v.n % 2 = 0
            UNION ALL SELECT v.n, v.words, v.name, v.bytes, v.size, $2 AS here, $3 AS five FROM {v} WHERE v.n % 2 = 1";
        for count in [0, 1, 2, 3, 5, 100, 255, 256, 257, 600] {
            check_round_trip(on, ONCE, count).await;
            check_round_trip(on, TWICE, count).await;
        }
    }

    #[tokio::test]
    async fn rows_reach_sqlite_as_they_are() {
        check_all_sizes(&Database::connect("sqlite::memory:").await.unwrap()).await;
    }

    #[tokio::test]
    async fn rows_reach_postgres_as_they_are() {
        let server = PostgresServer::start();
        check_all_sizes(&Database::connect(server.create_database().await).await.unwrap()).await;
    }
}
