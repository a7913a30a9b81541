//! The URL of the store. It is parsed here, so that errors in it are reported together with all others.

use std::{fmt, path::PathBuf, str::FromStr};

use percent_encoding::percent_decode_str;
use sea_orm::sqlx::postgres::PgConnectOptions;
use url::Url;

use super::secret::SecretValue;

/// The URL of the store: `sqlite:PATH`, or `postgres://[user[:password]@]host[:port]/database[?sslmode=…]`.
///
/// Its `Display` and `Debug` output never contains a password.
#[derive(Clone, Debug)]
pub enum StoreUrl {
    /// An SQLite file, alone or with further files that are created on demand.
    Sqlite(PathBuf),
    /// A PostgreSQL database.
    Postgres {
        /// The whole URL.
        url: SecretValue,
        /// The URL without login and parameters, for display.
        displayed: String,
    },
}

impl StoreUrl {
    /// Name of the engine.
    pub(crate) const fn engine(&self) -> &'static str {
        match self {
            Self::Sqlite(_) => "sqlite",
            Self::Postgres { .. } => "postgresql",
        }
    }
}

/// Error in the URL of a store. It never contains a part of the URL, since any part may belong to the password.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StoreUrlError {
    /// The scheme is unknown.
    #[error("does not start with sqlite:, postgres:// or postgresql://")]
    Scheme,
    /// The database is in memory, so its data would be lost at the end of the process.
    #[error(
        "names a database in memory, which would lose every accepted operation when the process ends; name a file, \
         such as sqlite:data/guildhall.db"
    )]
    Memory,
    /// The path of the SQLite file is missing.
    #[error("does not name a file; write sqlite:data/guildhall.db")]
    NoFile,
    /// It has parameters, which would be taken for a part of the path.
    #[error("has a ?, which is not permitted after sqlite:; the URL cannot set how the file is opened")]
    Parameters,
    /// It is not a valid PostgreSQL URL.
    #[error(
        "is not a valid PostgreSQL URL; write postgres://user:password@host:5432/database, and in a user or password / \
         as %2F, @ as %40, : as %3A, ? as %3F, # as %23 and % as %25"
    )]
    Postgres,
    /// The database is missing.
    #[error("does not name a database; write postgres://user:password@host:5432/database")]
    NoDatabase,
}

impl FromStr for StoreUrl {
    type Err = StoreUrlError;

    fn from_str(text: &str) -> Result<Self, StoreUrlError> {
        if let Some(rest) = text.strip_prefix("sqlite:") {
            return sqlite(rest.strip_prefix("//").unwrap_or(rest));
        }
        if !text.starts_with("postgres://") && !text.starts_with("postgresql://") {
            return Err(StoreUrlError::Scheme);
        }
        postgres(text)
    }
}

fn sqlite(path: &str) -> Result<StoreUrl, StoreUrlError> {
    match path {
        "" => Err(StoreUrlError::NoFile),
        _ if path.starts_with(":memory:") || path.contains("mode=memory") => Err(StoreUrlError::Memory),
        _ if path.contains('?') => Err(StoreUrlError::Parameters),
        _ => Ok(StoreUrl::Sqlite(PathBuf::from(path))),
    }
}

fn postgres(text: &str) -> Result<StoreUrl, StoreUrlError> {
    let url = Url::parse(text).map_err(|_| StoreUrlError::Postgres)?;
    let options: PgConnectOptions = text.parse().map_err(|_| StoreUrlError::Postgres)?;
    if options.get_database().is_none_or(str::is_empty) {
        return Err(StoreUrlError::NoDatabase);
    }
    let mut displayed = url;
    let login = !displayed.username().is_empty() || displayed.password().is_some();
    displayed.set_query(None);
    displayed.set_fragment(None);
    // Neither can fail if there is a host; without a host, there is no login to hide.
    let _ = (displayed.set_username(""), displayed.set_password(None));
    let displayed = if login { displayed.as_str().replacen("://", "://(redacted)@", 1) } else { displayed.to_string() };
    Ok(StoreUrl::Postgres { url: SecretValue::new(text), displayed })
}

impl StoreUrl {
    /// Returns the parts of it that no log line may contain.
    pub(super) fn secrets(&self) -> Vec<SecretValue> {
        let Self::Postgres { url, .. } = self else { return Vec::new() };
        let parsed = Url::parse(url.expose()).ok();
        let encoded = parsed.as_ref().and_then(Url::password).map(ToOwned::to_owned);
        let decoded = encoded.as_deref().map(|text| percent_decode_str(text).decode_utf8_lossy().into_owned());
        [encoded, decoded].into_iter().flatten().filter(|text| !text.is_empty()).map(SecretValue::new).collect()
    }
}

impl fmt::Display for StoreUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Sqlite(path) => write!(f, "sqlite:{}", path.display()),
            Self::Postgres { displayed: shown, .. } => f.write_str(shown),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error_of(text: &str) -> StoreUrlError {
        text.parse::<StoreUrl>().expect_err("this URL is invalid")
    }

    #[test]
    fn a_file_is_named_with_and_without_slashes() {
        for text in ["sqlite:data/guildhall.db", "sqlite://data/guildhall.db"] {
            assert_eq!(text.parse::<StoreUrl>().unwrap().to_string(), "sqlite:data/guildhall.db");
        }
        assert_eq!("sqlite:///var/g.db".parse::<StoreUrl>().unwrap().to_string(), "sqlite:/var/g.db");
    }

    #[test]
    fn invalid_urls_are_rejected() {
        for memory in ["sqlite::memory:", "sqlite://:memory:", "sqlite:file:x?mode=memory"] {
            assert_eq!(error_of(memory), StoreUrlError::Memory);
        }
        assert_eq!(error_of("sqlite:"), StoreUrlError::NoFile);
        assert_eq!(error_of("sqlite:a.db?mode=ro"), StoreUrlError::Parameters);
        assert_eq!(error_of("mysql://localhost/x"), StoreUrlError::Scheme);
        assert_eq!(error_of("postgres://localhost:port/x"), StoreUrlError::Postgres);
        assert_eq!(error_of("postgres://localhost/x?sslmode=perhaps"), StoreUrlError::Postgres);
        assert_eq!(error_of("postgres://localhost"), StoreUrlError::NoDatabase);
    }

    #[test]
    fn password_is_redacted_in_both_encodings() {
        let url: StoreUrl = "postgres://me:hunter%2F2@db:6000/guildhall?sslmode=require".parse().unwrap();
        assert_eq!(url.to_string(), "postgres://(redacted)@db:6000/guildhall");
        assert!(!format!("{url:?}").contains("hunter"));
        let secrets: Vec<_> = url.secrets().iter().map(|secret| secret.expose().to_owned()).collect();
        assert_eq!(secrets, ["hunter%2F2", "hunter/2"]);
    }
}
