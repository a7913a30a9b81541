//! Reads. They use several connections, independent of each other.

pub(super) mod access;
pub(super) mod changes;
pub(super) mod dead_letters;
pub(super) mod events;
pub(super) mod instances;
pub(super) mod interactions;
pub(super) mod locations;
pub(super) mod operations;
pub(super) mod resolve;
pub(super) mod spend;
pub(super) mod totals;
pub(super) mod usage;
mod wait_reasons;

/// Maximum number of rows that one read returns, whatever was requested.
pub(super) const MAX_ROWS: usize = 10_000;

/// A limit as an SQL value.
pub(super) fn limit(requested: usize) -> i64 {
    i64::try_from(requested.min(MAX_ROWS)).unwrap_or(i64::MAX)
}

/// Conditions with their values, added one by one.
#[derive(Debug, Default)]
pub(super) struct WhereClause {
    sql: String,
    values: Vec<sea_orm::Value>,
}

impl WhereClause {
    /// Conditions that follow others with these values.
    pub(super) fn after(values: Vec<sea_orm::Value>) -> Self {
        Self { sql: String::new(), values }
    }

    /// Adds a condition; `?` in it stands for the value.
    pub(super) fn and(&mut self, condition: &str, value: impl Into<sea_orm::Value>) {
        self.values.push(value.into());
        let parameter = format!("${}", self.values.len());
        self.sql.push_str(if self.sql.is_empty() { "WHERE " } else { " AND " });
        self.sql.push_str(&condition.replace('?', &parameter));
    }

    /// Adds a condition with two values, each with a `?` of its own.
    pub(super) fn and_pair(
        &mut self,
        condition: &str,
        one: impl Into<sea_orm::Value>,
        other: impl Into<sea_orm::Value>,
    ) {
        self.values.push(one.into());
        let half = condition.replacen('?', &format!("${}", self.values.len()), 1);
        self.and(&half, other);
    }

    /// Adds a condition without a value.
    pub(super) fn and_sql(&mut self, condition: &str) {
        self.sql.push_str(if self.sql.is_empty() { "WHERE " } else { " AND " });
        self.sql.push_str(condition);
    }

    /// Adds the condition that a column has one of these values.
    pub(super) fn and_in(&mut self, column: &str, ids: &[u64]) {
        match ids {
            // An empty list matches nothing.
            [] => self.and_sql("1 = 0"),
            [only] => self.and(&format!("{column} = ?"), only.cast_signed()),
            // Numbers need no parameters.
            many => {
                let many: Vec<_> = many.iter().map(ToString::to_string).collect();
                self.and_sql(&format!("{column} IN ({})", many.join(", ")));
            }
        }
    }

    /// The SQL after the tables, with an order and a limit; and the values. Here and elsewhere the limit is a sum,
    /// because SQLite prepares a statement again when a limit that is a plain parameter changes.
    pub(super) fn ordered(mut self, order: &str, requested: usize) -> (String, Vec<sea_orm::Value>) {
        self.values.push(limit(requested).into());
        (format!("{} ORDER BY {order} LIMIT ${} + 0", self.sql, self.values.len()), self.values)
    }
}
