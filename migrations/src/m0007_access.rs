//! API keys and the audit log.

use crate::Step;

pub(crate) const STEP: Step = Step { name: "0007_access", up: UP, down: DOWN };

const UP: &[&str] = &[
    // `scopes` are names, separated by spaces.
    "CREATE TABLE api_keys (
        id TEXT PRIMARY KEY,
        tenant TEXT NOT NULL,
        name TEXT NOT NULL,
        digest {bytes} NOT NULL,
        scopes TEXT NOT NULL,
        created_at BIGINT NOT NULL,
        expires_at BIGINT,
        revoked_at BIGINT,
        rotated_to TEXT
    )",
    "CREATE INDEX api_keys_newest ON api_keys (created_at, id)",
    "CREATE TABLE audit (
        place {counted},
        at BIGINT NOT NULL,
        tenant TEXT NOT NULL,
        api_key TEXT NOT NULL,
        action TEXT NOT NULL,
        guild_id BIGINT,
        target TEXT NOT NULL,
        detail TEXT NOT NULL,
        request TEXT NOT NULL
    )",
    "CREATE INDEX audit_guild ON audit (guild_id, place)",
    "CREATE INDEX audit_key ON audit (api_key, place)",
    "CREATE INDEX audit_at ON audit (at)",
];

const DOWN: &[&str] = &["DROP TABLE audit", "DROP TABLE api_keys"];
