//! Tenants: PostgreSQL shows a tenant only its own rows. Also stores the guilds of channels.
//!
//! Each table has two policies. `engine` lets the owner of the tables see everything. `tenants` applies to all others:
//! they see the rows of the tenant that the transaction has set, and no rows if it has set none.

use crate::Step;

pub(crate) const STEP: Step = Step { name: "0009_tenants", up: UP, down: DOWN };

const UP: &[&str] = &[
    // Guild of a channel or a webhook; 0 means none. Neither ever moves to another guild.
    "CREATE TABLE channel_guilds (
        kind TEXT NOT NULL,
        id BIGINT NOT NULL,
        guild_id BIGINT NOT NULL,
        seen_at BIGINT NOT NULL,
        PRIMARY KEY (kind, id)
    )",
    "CREATE INDEX channel_guilds_seen ON channel_guilds (seen_at)",
    // Guilds whose channels an operation may name: 0 all, 1 those of its tenant, 2 its own guild only.
    "ALTER TABLE operations ADD COLUMN bounds BIGINT NOT NULL DEFAULT 0",
    "ALTER TABLE dead_letters ADD COLUMN bounds BIGINT NOT NULL DEFAULT 0",
    // The tenant of the transaction is looked up once for each statement, not once for each row.
    "{postgres}CREATE POLICY tenants ON operations
        USING (tenant = (SELECT current_setting('guildhall.tenant', true)))",
    "{postgres}CREATE POLICY tenants ON dead_letters
        USING (tenant = (SELECT current_setting('guildhall.tenant', true)))",
    "{postgres}CREATE POLICY tenants ON guild_queues
        USING (tenant = (SELECT current_setting('guildhall.tenant', true)))",
    "{postgres}CREATE POLICY tenants ON audit
        USING (tenant = (SELECT current_setting('guildhall.tenant', true)))",
    "{postgres}CREATE POLICY tenants ON api_keys
        USING (tenant = (SELECT current_setting('guildhall.tenant', true)))",
    // A tenant that sees an operation sees its related rows: the policy of `operations` also applies to these
    // subqueries.
    "{postgres}CREATE POLICY tenants ON operation_attempts
        USING (EXISTS (SELECT 1 FROM operations o WHERE o.id = operation_id))",
    "{postgres}CREATE POLICY tenants ON intents
        USING (EXISTS (SELECT 1 FROM operations o WHERE o.id = operation_id))",
    "{postgres}CREATE POLICY tenants ON operation_refs
        USING (EXISTS (SELECT 1 FROM operations o WHERE o.id = operation_id))",
    "{postgres}CREATE POLICY tenants ON idempotency
        USING (EXISTS (SELECT 1 FROM operations o WHERE o.id = operation_id))",
    // A tenant that sees a guild sees its objects.
    "{postgres}CREATE POLICY tenants ON managed_objects
        USING (EXISTS (SELECT 1 FROM guild_queues q WHERE q.queue = guild_id))",
    "{postgres}CREATE POLICY tenants ON channel_guilds
        USING (EXISTS (SELECT 1 FROM guild_queues q WHERE q.queue = guild_id))",
    "{postgres}DO $$
    DECLARE
        named TEXT;
        owner NAME;
    BEGIN
        FOREACH named IN ARRAY ARRAY['operations', 'dead_letters', 'guild_queues', 'audit', 'api_keys',
            'operation_attempts', 'intents', 'operation_refs', 'idempotency', 'managed_objects', 'channel_guilds']
        LOOP
            SELECT pg_get_userbyid(c.relowner) INTO owner FROM pg_class c WHERE c.oid = to_regclass(quote_ident(named));
            EXECUTE format('CREATE POLICY engine ON %I TO %I USING (true) WITH CHECK (true)', named, owner);
            EXECUTE format('ALTER TABLE %I ENABLE ROW LEVEL SECURITY', named);
            EXECUTE format('ALTER TABLE %I FORCE ROW LEVEL SECURITY', named);
        END LOOP;
    END $$",
];

const DOWN: &[&str] = &[
    "{postgres}DO $$
    DECLARE named TEXT;
    BEGIN
        FOREACH named IN ARRAY ARRAY['operations', 'dead_letters', 'guild_queues', 'audit', 'api_keys',
            'operation_attempts', 'intents', 'operation_refs', 'idempotency', 'managed_objects', 'channel_guilds']
        LOOP
            EXECUTE format('ALTER TABLE %I NO FORCE ROW LEVEL SECURITY', named);
            EXECUTE format('ALTER TABLE %I DISABLE ROW LEVEL SECURITY', named);
            EXECUTE format('DROP POLICY engine ON %I', named);
            EXECUTE format('DROP POLICY tenants ON %I', named);
        END LOOP;
    END $$",
    "ALTER TABLE dead_letters DROP COLUMN bounds",
    "ALTER TABLE operations DROP COLUMN bounds",
    "DROP TABLE channel_guilds",
];
