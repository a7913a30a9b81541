//! Erasing what is stored about a user or a guild.

use std::collections::BTreeMap;

use super::AuditRecord;
use crate::ports::StoreFuture;

/// Subject whose data is erased.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DataSubject {
    /// A Discord user.
    User(u64),
    /// A guild.
    Guild(u64),
}

impl DataSubject {
    /// Id of the user or guild.
    #[must_use]
    pub const fn id(self) -> u64 {
        match self {
            Self::User(id) | Self::Guild(id) => id,
        }
    }

    /// Whether a text contains the id as a whole number, not as a part of a longer one.
    #[must_use]
    pub fn is_in(self, text: &str) -> bool {
        let id = self.id().to_string();
        text.match_indices(&id).any(|(start, found)| {
            let before = text[..start].bytes().next_back();
            let after = text[start + found.len()..].bytes().next();
            !before.is_some_and(|byte| byte.is_ascii_digit()) && !after.is_some_and(|byte| byte.is_ascii_digit())
        })
    }
}

/// Where an erasure continues: a table, and the last row of it that was examined.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ErasureCursor {
    /// Index of the table.
    pub table: usize,
    /// Key of the last examined row; empty at the start of a table.
    pub after: String,
}

/// Result of one step of an erasure.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ErasureStep {
    /// Number of deleted rows, by category.
    pub removed: BTreeMap<&'static str, u64>,
    /// Number of rows that mention the subject and stay, by category.
    pub retained: BTreeMap<&'static str, u64>,
    /// Where to continue. `None` when every table was examined.
    pub next: Option<ErasureCursor>,
}

/// Erases stored data.
pub trait ErasureStore: Send + Sync {
    /// Examines the next rows of one table and deletes those about the subject: a bounded number in one transaction.
    /// The audit record is written in the same transaction.
    fn erase(
        &self,
        subject: DataSubject,
        from: ErasureCursor,
        record: Option<AuditRecord>,
    ) -> StoreFuture<'_, ErasureStep>;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn id_is_found_only_as_a_whole_number() {
        let user = DataSubject::User(123);
        for text in ["123", "\"123\"", "<@123>", "{\"user_id\":\"123\",\"x\":1}", "9123 123"] {
            assert!(user.is_in(text), "{text}");
        }
        for text in ["", "1234", "0123", "12", "é9123é", "1231"] {
            assert!(!user.is_in(text), "{text}");
        }
        assert!(user.is_in("é123é"));
    }
}
