//! Erasing what is stored about a user or a guild.

use std::collections::BTreeMap;

use super::AuditRecord;
use crate::ports::StoreFuture;

/// Whose data is erased.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DataSubject {
    /// A Discord user.
    User(u64),
    /// A guild.
    Guild(u64),
}

impl DataSubject {
    /// Its id.
    #[must_use]
    pub const fn id(self) -> u64 {
        match self {
            Self::User(id) | Self::Guild(id) => id,
        }
    }

    /// Whether a text contains its id: as a number of its own, not as a part of a longer one.
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
    /// Which table, counted from 0.
    pub table: usize,
    /// The key of the last examined row; empty at the start of a table.
    pub after: String,
}

/// What one step of an erasure did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ErasureStep {
    /// How many rows were removed, by what they hold.
    pub removed: BTreeMap<&'static str, u64>,
    /// How many rows mention the subject and stay, by what they hold.
    pub kept: BTreeMap<&'static str, u64>,
    /// Where to continue; nothing once every table was examined.
    pub next: Option<ErasureCursor>,
}

/// Erases stored data.
pub trait ErasureStore: Send + Sync {
    /// Examines the next rows of one table and removes those about the subject: a bounded number in one transaction. The audit
    /// record is written with the step that carries it.
    fn erase(
        &self,
        subject: DataSubject,
        from: ErasureCursor,
        note: Option<AuditRecord>,
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
