//! Errors of an engine, and how callers have to treat them.

use guildhall_actors::ports::StoreError;
use sea_orm::{DbErr, RuntimeErr, sqlx};

/// Reason why a job or a read failed.
#[derive(Debug)]
pub(super) enum EngineError {
    /// Error of the engine.
    Engine(DbErr),
    /// A row contains invalid data.
    Corrupt(String),
    /// Another process made the same change at the same time.
    Raced(&'static str),
}

impl From<DbErr> for EngineError {
    fn from(error: DbErr) -> Self {
        Self::Engine(error)
    }
}

/// Class of an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ErrorClass {
    /// The connection is lost.
    Lost,
    /// Another session holds a lock.
    Busy,
    /// The disk is full, or the store is read-only.
    Full,
    /// The engine rejected the statement; the request itself may be invalid.
    Refused,
    /// A conflict with another process: nothing was changed, and a retry can succeed.
    Raced,
    /// Stored data cannot be read.
    Corrupt,
}

impl ErrorClass {
    /// Short name, for metrics.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Lost => "lost",
            Self::Busy => "busy",
            Self::Full => "full",
            Self::Refused => "refused",
            Self::Raced => "raced",
            Self::Corrupt => "corrupt",
        }
    }
}

impl EngineError {
    pub(super) fn class(&self) -> ErrorClass {
        match self {
            Self::Corrupt(_) => ErrorClass::Corrupt,
            Self::Raced(_) => ErrorClass::Raced,
            Self::Engine(error) => classify_engine(error),
        }
    }

    /// Message of the engine.
    pub(super) fn message(&self) -> String {
        match self {
            Self::Corrupt(message) => message.clone(),
            Self::Raced(message) => (*message).to_owned(),
            Self::Engine(error) => cause(error).map_or_else(|| error.to_string(), ToString::to_string),
        }
    }

    /// The error that the caller gets.
    pub(super) fn to_store_error(&self) -> StoreError {
        let message = self.message();
        match self.class() {
            ErrorClass::Lost => {
                StoreError::Unavailable(format!("connection failed or lost ({message}); it reconnects automatically"))
            }
            ErrorClass::Busy => StoreError::Unavailable(format!(
                "it is busy ({message}); check whether another program holds a lock on it, or raise store.timeout_ms"
            )),
            ErrorClass::Full => StoreError::Unavailable(format!(
                "it cannot write ({message}); free disk space, or give this process write access"
            )),
            ErrorClass::Raced => {
                StoreError::Unavailable(format!("conflict with other processes ({message}); try again"))
            }
            ErrorClass::Refused => StoreError::Unavailable(format!("it refused the request ({message})")),
            ErrorClass::Corrupt => StoreError::Corrupt(message),
        }
    }
}

fn cause(error: &DbErr) -> Option<&sqlx::Error> {
    match error {
        DbErr::Conn(RuntimeErr::SqlxError(error))
        | DbErr::Exec(RuntimeErr::SqlxError(error))
        | DbErr::Query(RuntimeErr::SqlxError(error)) => Some(error),
        _ => None,
    }
}

fn classify_engine(error: &DbErr) -> ErrorClass {
    if let DbErr::ConnectionAcquire(_) = error {
        return ErrorClass::Lost;
    }
    match cause(error) {
        Some(sqlx::Error::Database(error)) => {
            let code = error.code().unwrap_or_default();
            match error.try_downcast_ref::<sqlx::postgres::PgDatabaseError>() {
                Some(_) => classify_postgres(&code),
                None => classify_sqlite(&code),
            }
        }
        Some(
            sqlx::Error::Io(_)
            | sqlx::Error::Tls(_)
            | sqlx::Error::Protocol(_)
            | sqlx::Error::PoolTimedOut
            | sqlx::Error::PoolClosed
            | sqlx::Error::WorkerCrashed
            | sqlx::Error::Configuration(_),
        ) => ErrorClass::Lost,
        Some(sqlx::Error::ColumnDecode { .. } | sqlx::Error::Decode(_)) => ErrorClass::Corrupt,
        Some(_) => ErrorClass::Refused,
        None => match error {
            DbErr::Type(_) | DbErr::Json(_) | DbErr::TryIntoErr { .. } => ErrorClass::Corrupt,
            DbErr::Conn(_) => ErrorClass::Lost,
            _ => ErrorClass::Refused,
        },
    }
}

/// Classifies the five-character SQLSTATE of PostgreSQL.
fn classify_postgres(code: &str) -> ErrorClass {
    match code {
        "57014" | "55P03" => ErrorClass::Busy,
        // Serialization failure, deadlock, unique violation: a conflict between two processes.
        "40001" | "40P01" | "23505" => ErrorClass::Raced,
        "53100" | "53200" | "25006" => ErrorClass::Full,
        // The server has ended a session that was idle inside a transaction.
        "25P03" | "25P04" => ErrorClass::Lost,
        _ if code.starts_with("08") || code.starts_with("57P") || code.starts_with("53") => ErrorClass::Lost,
        _ if code.starts_with("28") || code.starts_with("3D") || code.starts_with("XX") => ErrorClass::Lost,
        _ => ErrorClass::Refused,
    }
}

/// Classifies the extended result code of SQLite.
fn classify_sqlite(code: &str) -> ErrorClass {
    match code.parse::<i32>().map(|code| code & 0xff) {
        Ok(5 | 6 | 9 | 15) => ErrorClass::Busy,
        Ok(8 | 13 | 23 | 3) => ErrorClass::Full,
        Ok(7 | 10 | 14) => ErrorClass::Lost,
        Ok(11 | 26) => ErrorClass::Corrupt,
        Ok(_) | Err(_) => ErrorClass::Refused,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn engine_codes_map_to_error_classes() {
        // SQLITE_BUSY, SQLITE_BUSY_SNAPSHOT, SQLITE_FULL, SQLITE_IOERR_WRITE, SQLITE_CONSTRAINT_UNIQUE, SQLITE_CORRUPT.
        let sqlite = ["5", "517", "13", "778", "2067", "11"].map(classify_sqlite);
        use ErrorClass::{Busy, Corrupt, Full, Lost, Raced, Refused};
        assert_eq!(sqlite, [Busy, Busy, Full, Lost, Refused, Corrupt]);
        // Statement timeout, disk full, shutdown, unknown user, unique violation, unknown column, session idle inside a
        // transaction.
        let postgres = ["57014", "53100", "57P01", "28000", "23505", "42703", "25P03"].map(classify_postgres);
        assert_eq!(postgres, [Busy, Full, Lost, Lost, Raced, Refused, Lost]);
    }

    #[test]
    fn errors_say_what_to_do() {
        let lost = EngineError::Engine(DbErr::Conn(RuntimeErr::SqlxError(sqlx::Error::PoolTimedOut.into())));
        assert!(lost.to_store_error().to_string().contains("reconnects"), "{:?}", lost.to_store_error());
        let corrupt = EngineError::Corrupt("operation 1 has no kind".to_owned());
        assert_eq!(corrupt.to_store_error(), StoreError::Corrupt("operation 1 has no kind".to_owned()));
    }
}
