//! Whose a row is: PostgreSQL shows a tenant its own rows alone, and which guild a channel belongs to is kept.
//!
//! There are two policies a table. `engine` lets whoever owns the tables see everything. `tenants` holds for everybody else:
//! rows of the tenant that the transaction has named, and without a name none at all.

use crate::Step;

pub(crate) const STEP: Step = Step { name: "0009_tenants", up: UP, down: DOWN };

const UP: &[&str] = &[
    // Which guild a channel or a webhook belongs to; 0 is none. Neither ever moves to another guild.
    "CREATE TABLE channel_guilds (
        kind TEXT NOT NULL,
        id BIGINT NOT NULL,
        guild_id BIGINT NOT NULL,
        seen_at BIGINT NOT NULL,
        PRIMARY KEY (kind, id)
    )",
    "CREATE INDEX channel_guilds_seen ON channel_guilds (seen_at)",
    // Which guilds' channels an operation may name: 0 all, 1 those of its tenant, 2 that of its own guild.
    "ALTER TABLE operations ADD COLUMN bounds BIGINT NOT NULL DEFAULT 0",
    "ALTER TABLE dead_letters ADD COLUMN bounds BIGINT NOT NULL DEFAULT 0",
    // What the transaction has named is looked up once a statement, not once a row.
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
    // Whoever sees the operation sees what there is about it: the policy of `operations` holds in here, too.
    "{postgres}CREATE POLICY tenants ON operation_attempts
        USING (EXISTS (SELECT 1 FROM operations o WHERE o.id = operation_id))",
    "{postgres}CREATE POLICY tenants ON intents
        USING (EXISTS (SELECT 1 FROM operations o WHERE o.id = operation_id))",
    "{postgres}CREATE POLICY tenants ON operation_refs
        USING (EXISTS (SELECT 1 FROM operations o WHERE o.id = operation_id))",
    "{postgres}CREATE POLICY tenants ON idempotency
        USING (EXISTS (SELECT 1 FROM operations o WHERE o.id = operation_id))",
    // And whoever sees the guild, what is in it.
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
