//! Statements of `write/file_capacity.rs`.

/// In SQL: functions of SQLite.
pub(in crate::store) const USED: &str = "SELECT (c.page_count - f.freelist_count) * s.page_size
    FROM pragma_page_count() c, pragma_freelist_count() f, pragma_page_size() s";
