//! Statements of `admin_key.rs`.

/// In SQL for its condition: one statement, so that exactly one of several starting processes succeeds.
/// In SQL: a conditional upsert, or one that returns what is stored.
pub(in crate::store) const CLAIM: &str =
    "INSERT INTO generated_admin_key (id, digest, host, file, instance, created_at)
    VALUES (1, $1, $2, $3, $4, $5) ON CONFLICT (id) DO UPDATE SET
        digest = excluded.digest,
        host = excluded.host,
        file = excluded.file,
        instance = excluded.instance,
        created_at = CASE WHEN generated_admin_key.digest = excluded.digest
            THEN generated_admin_key.created_at ELSE excluded.created_at END
    WHERE $6 = 1 OR (generated_admin_key.host = excluded.host AND generated_admin_key.file = excluded.file)";
