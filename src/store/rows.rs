//! Many rows in one statement: they travel as one JSON parameter, and each engine unfolds them.
//!
//! So a statement's text does not depend on how many rows there are, and is prepared once.

use std::fmt::Write as _;

use sea_orm::{ConnectionTrait, DbBackend, DbErr, QueryResult, Statement, Value};
use uuid::Uuid;

/// What a column of such rows holds.
#[derive(Clone, Copy, Debug)]
pub(super) enum Holds {
    Number,
    Text,
    Uuid,
    Bytes,
}

/// The columns of rows that a statement takes, by name and in order.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shape(pub(super) &'static [(&'static str, Holds)]);

impl Shape {
    /// What stands after `FROM`: the rows of parameter `$1`, under the name `v`.
    pub(super) fn source(self, engine: DbBackend) -> String {
        let mut columns = String::new();
        for (place, (name, holds)) in self.0.iter().enumerate() {
            let comma = if place == 0 { "" } else { ", " };
            let value = match (engine, holds) {
                (DbBackend::Postgres, Holds::Number) => format!("(e->>{place})::bigint"),
                (DbBackend::Postgres, Holds::Text) => format!("e->>{place}"),
                (DbBackend::Postgres, Holds::Uuid) => format!("(e->>{place})::uuid"),
                (DbBackend::Postgres, Holds::Bytes) => format!("decode(e->>{place}, 'hex')"),
                (_, Holds::Number | Holds::Text) => format!("value->>{place}"),
                (_, Holds::Uuid | Holds::Bytes) => format!("unhex(value->>{place})"),
            };
            write!(columns, "{comma}{value} AS {name}").expect("invariant: writing to a String cannot fail");
        }
        match engine {
            DbBackend::Postgres => format!("(SELECT {columns} FROM jsonb_array_elements($1::jsonb) AS e) AS v"),
            _ => format!("(SELECT {columns} FROM json_each($1)) AS v"),
        }
    }
}

/// A value of a row.
#[derive(Clone, Copy, Debug)]
pub(super) enum Cell<'a> {
    Number(i64),
    Text(&'a str),
    Uuid(Uuid),
    Bytes(&'a [u8]),
    Null,
}

impl From<Option<i64>> for Cell<'_> {
    fn from(number: Option<i64>) -> Self {
        number.map_or(Self::Null, Self::Number)
    }
}

impl<'a> From<Option<&'a str>> for Cell<'a> {
    fn from(text: Option<&'a str>) -> Self {
        text.map_or(Self::Null, Self::Text)
    }
}

impl From<Option<Uuid>> for Cell<'_> {
    fn from(uuid: Option<Uuid>) -> Self {
        uuid.map_or(Self::Null, Self::Uuid)
    }
}

/// Rows on their way into a statement.
#[derive(Clone, Debug)]
pub(super) struct Rows {
    json: String,
    count: usize,
}

impl Rows {
    pub(super) fn new() -> Self {
        Self { json: String::from("["), count: 0 }
    }

    /// One row a cell.
    pub(super) fn of<'a>(cells: impl IntoIterator<Item = Cell<'a>>) -> Self {
        let mut rows = Self::new();
        cells.into_iter().for_each(|cell| rows.push(&[cell]));
        rows
    }

    pub(super) fn push(&mut self, cells: &[Cell<'_>]) {
        self.json.push_str(if self.count == 0 { "[" } else { ",[" });
        self.count += 1;
        for (place, cell) in cells.iter().enumerate() {
            if place > 0 {
                self.json.push(',');
            }
            self.cell(*cell);
        }
        self.json.push(']');
    }

    pub(super) fn is_empty(&self) -> bool {
        self.count == 0
    }

    fn cell(&mut self, cell: Cell<'_>) {
        let written = match cell {
            Cell::Number(number) => write!(self.json, "{number}"),
            Cell::Text(text) => {
                self.json.push_str(&json_text(text));
                Ok(())
            }
            Cell::Uuid(uuid) => write!(self.json, "\"{}\"", uuid.simple()),
            Cell::Bytes(bytes) => {
                self.json.push('"');
                bytes.iter().for_each(|byte| {
                    write!(self.json, "{byte:02x}").expect("invariant: writing to a String cannot fail");
                });
                self.json.push('"');
                Ok(())
            }
            Cell::Null => {
                self.json.push_str("null");
                Ok(())
            }
        };
        written.expect("invariant: writing to a String cannot fail");
    }

    fn value(mut self) -> Value {
        self.json.push(']');
        Value::from(self.json)
    }
}

/// A text as JSON. PostgreSQL keeps no NUL in a text, so it stands for itself no more than an unknown character does.
fn json_text(text: &str) -> String {
    let json = serde_json::to_string(text).expect("invariant: a text is JSON");
    if text.contains('\0') { json.replace("\\u0000", "\u{fffd}") } else { json }
}

/// A text as the engines keep it.
pub(super) fn kept(text: &str) -> String {
    text.replace('\0', "\u{fffd}")
}

/// Runs a statement that takes rows as `$1`; `after` are its other parameters. `{v}` stands for the rows.
pub(super) async fn with_rows(
    on: &impl ConnectionTrait,
    sql: &str,
    shape: Shape,
    rows: Rows,
    after: Vec<Value>,
) -> Result<Vec<QueryResult>, DbErr> {
    let engine = on.get_database_backend();
    let values = std::iter::once(rows.value()).chain(after);
    let sql = sql.replace("{v}", &shape.source(engine));
    on.query_all_raw(Statement::from_sql_and_values(engine, sql, values)).await
}

/// Runs a statement and gives its rows.
pub(super) async fn query(on: &impl ConnectionTrait, sql: &str, values: Vec<Value>) -> Result<Vec<QueryResult>, DbErr> {
    on.query_all_raw(Statement::from_sql_and_values(on.get_database_backend(), sql, values)).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_json_whatever_stands_in_them() {
        let mut rows = Rows::new();
        rows.push(&[
            Cell::Number(-5),
            Cell::Text("a\"\0b"),
            Cell::Null,
            Cell::Uuid(Uuid::nil()),
            Cell::Bytes(&[255, 1]),
        ]);
        rows.push(&[Cell::Number(i64::MAX)]);
        let Value::String(Some(json)) = rows.value() else { panic!("rows are a text") };
        let read: serde_json::Value = serde_json::from_str(&json).unwrap();
        let zeros = "0".repeat(32);
        assert_eq!(read, serde_json::json!([[-5, "a\"\u{fffd}b", null, zeros, "ff01"], [i64::MAX]]));
    }
}
