//! Storage usage: the bytes of each row, and their sums by caller and tenant.

use crate::Step;

pub(crate) const STEP: Step = Step { name: "0015_usage", up: UP, down: DOWN };

const UP: &[&str] = &[
    // The size of a row is stored with it, so that exactly this is subtracted when the row is removed.
    "ALTER TABLE operations ADD COLUMN bytes BIGINT NOT NULL DEFAULT 0",
    "ALTER TABLE dead_letters ADD COLUMN bytes BIGINT NOT NULL DEFAULT 0",
    "ALTER TABLE idempotency ADD COLUMN bytes BIGINT NOT NULL DEFAULT 0",
    // A key outlives its operation, so it stores its tenant itself.
    "ALTER TABLE idempotency ADD COLUMN tenant TEXT NOT NULL DEFAULT ''",
    "{sqlite}UPDATE operations SET bytes = 1024 + LENGTH(CAST(payload AS BLOB))
        + LENGTH(CAST(COALESCE(reason, '') AS BLOB)) + LENGTH(CAST(COALESCE(result, '') AS BLOB))",
    "{postgres}UPDATE operations SET bytes = 1024 + OCTET_LENGTH(payload)
        + OCTET_LENGTH(COALESCE(reason, '')) + OCTET_LENGTH(COALESCE(result, ''))",
    "{sqlite}UPDATE dead_letters SET bytes = 512 + LENGTH(CAST(payload AS BLOB))
        + LENGTH(CAST(COALESCE(reason, '') AS BLOB)) + LENGTH(CAST(error AS BLOB))",
    "{postgres}UPDATE dead_letters SET bytes = 512 + OCTET_LENGTH(payload)
        + OCTET_LENGTH(COALESCE(reason, '')) + OCTET_LENGTH(error)",
    "{sqlite}UPDATE idempotency SET bytes = 256 + LENGTH(CAST(key AS BLOB)) + LENGTH(CAST(COALESCE(result, '') AS BLOB)),
        tenant = COALESCE((SELECT o.tenant FROM operations o WHERE o.id = idempotency.operation_id), '')",
    "{postgres}UPDATE idempotency SET bytes = 256 + OCTET_LENGTH(key) + OCTET_LENGTH(COALESCE(result, '')),
        tenant = COALESCE((SELECT o.tenant FROM operations o WHERE o.id = idempotency.operation_id), '')",
    // Each process changes rows of its own, so that no two wait for each other; the usage is their sum. The rows of
    // processes that have ended are merged into those of instance 0.
    "CREATE TABLE usage (
        scope TEXT NOT NULL,
        instance {uuid} NOT NULL,
        operations BIGINT NOT NULL,
        bytes BIGINT NOT NULL,
        PRIMARY KEY (scope, instance)
    ) {by_key}",
    "INSERT INTO usage (scope, instance, operations, bytes)
        SELECT scope, {no_uuid}, SUM(operations), SUM(bytes) FROM (
            SELECT CASE WHEN caller = 'admin' OR caller LIKE 'handler:%' THEN 'operator:' || caller
                ELSE 'key:' || caller END AS scope,
                CASE WHEN finished_at IS NULL THEN 1 ELSE 0 END AS operations, bytes FROM operations WHERE caller <> ''
            UNION ALL SELECT 'tenant:' || tenant, CASE WHEN finished_at IS NULL THEN 1 ELSE 0 END, bytes
                FROM operations WHERE caller <> 'admin' AND caller NOT LIKE 'handler:%' AND tenant <> ''
            UNION ALL SELECT CASE WHEN caller = 'admin' OR caller LIKE 'handler:%' THEN 'operator:' || caller
                ELSE 'key:' || caller END, 0, bytes FROM dead_letters WHERE caller <> ''
            UNION ALL SELECT 'tenant:' || tenant, 0, bytes
                FROM dead_letters WHERE caller <> 'admin' AND caller NOT LIKE 'handler:%' AND tenant <> ''
            UNION ALL SELECT CASE WHEN scope = 'admin' OR scope LIKE 'handler:%' THEN 'operator:' || scope
                ELSE 'key:' || scope END, 0, bytes FROM idempotency WHERE scope <> ''
            UNION ALL SELECT 'tenant:' || tenant, 0, bytes
                FROM idempotency WHERE scope <> 'admin' AND scope NOT LIKE 'handler:%' AND tenant <> ''
            UNION ALL SELECT 'audit:' || api_key, 1, 0 FROM audit
        ) AS counted GROUP BY scope",
];

const DOWN: &[&str] = &[
    "DROP TABLE usage",
    "ALTER TABLE idempotency DROP COLUMN tenant",
    "ALTER TABLE idempotency DROP COLUMN bytes",
    "ALTER TABLE dead_letters DROP COLUMN bytes",
    "ALTER TABLE operations DROP COLUMN bytes",
];
