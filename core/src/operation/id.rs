//! Operation ids.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use uuid::{Builder, Uuid};

/// Id of an operation: a version 7 UUID, so ids sort by creation time.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct OperationId(Uuid);

/// Text that is not an operation id.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not an operation id; expected a UUID such as 01890a5d-ac96-774b-bcce-b302099a8057")]
pub struct ParseOperationIdError(String);

impl OperationId {
    /// Creates an id. `random` must differ between ids created in the same millisecond.
    #[must_use]
    pub fn new(unix_ms: u64, random: [u8; 10]) -> Self {
        Self(Builder::from_unix_timestamp_millis(unix_ms, &random).into_uuid())
    }

    /// Returns the id as a UUID.
    #[must_use]
    pub const fn uuid(self) -> Uuid {
        self.0
    }

    /// Creates the id from a UUID.
    #[must_use]
    pub const fn from_uuid(uuid: Uuid) -> Self {
        Self(uuid)
    }
}

impl fmt::Display for OperationId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Debug for OperationId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl FromStr for OperationId {
    type Err = ParseOperationIdError;

    fn from_str(text: &str) -> Result<Self, ParseOperationIdError> {
        let truncated: String = text.chars().take(64).collect();
        Uuid::try_parse(text).map(Self).map_err(|_| ParseOperationIdError(truncated))
    }
}

impl Serialize for OperationId {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for OperationId {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn later_id_sorts_later_and_parses_back() {
        let (first, second) = (OperationId::new(1_000, [255; 10]), OperationId::new(1_001, [0; 10]));
        assert!(first < second);
        assert_eq!(first.to_string().parse::<OperationId>().unwrap(), first);
        assert!("gh_1".parse::<OperationId>().unwrap_err().to_string().contains("`gh_1`"));
    }
}
