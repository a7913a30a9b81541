//! PostgreSQL row-level security: callers with a tenant see only its rows, even if a query omits the condition.
//!
//! ```text
//!  engine, operator ──▶ the owner of the tables ─────────────────────────────────────────────▶ every row
//!  a tenant's key ────▶ BEGIN; SET LOCAL ROLE guildhall_api; SET LOCAL guildhall.tenant = … ──▶ that tenant's rows
//! ```
//!
//! Both settings end with their transaction, so no later user of the connection inherits them, behind PgBouncer too. A
//! transaction with that role and without a tenant sees no rows.

use sea_orm::{
    ConnectionTrait as _, DatabaseConnection, DatabaseTransaction, DbBackend, DbErr, FromQueryResult,
    TransactionTrait as _,
};

use super::{OpenError, close_connection, connect, events::RowSecurityChecked, rows::query_as};
use crate::{
    events::emit,
    settings::{RowSecurityMode, StoreSettings as Settings},
};

/// Tables whose rows belong to a tenant.
pub(super) const TENANT_TABLES: [&str; 11] = [
    "operations",
    "dead_letters",
    "guild_queues",
    "audit",
    "api_keys",
    "operation_attempts",
    "intents",
    "operation_refs",
    "idempotency",
    "managed_objects",
    "channel_guilds",
];

/// Privileges of the API's role. It has only those that its statements need; keys, for example, are managed by the
/// operator.
pub(super) const GRANTS: [(&str, &[&str]); 12] = [
    ("operations", &["SELECT", "INSERT", "UPDATE"]),
    ("dead_letters", &["SELECT", "UPDATE", "DELETE"]),
    ("guild_queues", &["SELECT", "INSERT", "UPDATE"]),
    ("audit", &["SELECT"]),
    ("operation_attempts", &["SELECT"]),
    ("intents", &["SELECT"]),
    ("operation_refs", &["SELECT", "INSERT"]),
    ("idempotency", &["SELECT", "INSERT"]),
    ("managed_objects", &["SELECT"]),
    ("channel_guilds", &["SELECT"]),
    // Every tenant may see whether everything is paused.
    ("switches", &["SELECT"]),
    // Every tenant may see how far back changes can be followed.
    ("marks", &["SELECT"]),
];

/// Number of attempts to grant missing privileges: other processes may do the same at the same time.
const REPAIR_ATTEMPTS: u32 = 3;

/// Switches a transaction to the view of a tenant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct TenantRole {
    /// The API's role and the engine's own role, as quoted identifiers.
    role: String,
    engine: String,
}

impl TenantRole {
    /// SQL that limits a transaction to the rows of this tenant.
    pub(super) fn confine(&self, tenant: &str) -> String {
        format!("SET LOCAL ROLE {}; SET LOCAL guildhall.tenant = {}", self.role, literal(tenant))
    }

    /// SQL that makes a transaction the engine's again.
    fn reset(&self) -> String {
        format!("SET LOCAL ROLE {}; SET LOCAL guildhall.tenant = ''", self.engine)
    }
}

/// Tenant of a write, in a transaction that is shared with other writes.
#[derive(Clone, Copy, Debug)]
pub(super) struct TenantScope<'a>(Option<(&'a TenantRole, &'a str)>);

impl<'a> TenantScope<'a> {
    /// The scope of a tenant. Has no effect without a tenant or without row-level security.
    pub(super) fn of(security: Option<&'a TenantRole>, tenant: Option<&'a str>) -> Self {
        Self(security.zip(tenant))
    }

    /// From here on the transaction is limited to the tenant.
    pub(super) async fn begin(self, on: &DatabaseTransaction) -> Result<(), DbErr> {
        match self.0 {
            Some((security, tenant)) => on.execute_unprepared(&security.confine(tenant)).await.map(drop),
            None => Ok(()),
        }
    }

    /// From here on the transaction is the engine's again. If an error occurs in between, the whole transaction is
    /// rolled back.
    pub(super) async fn end(self, on: &DatabaseTransaction) -> Result<(), DbErr> {
        match self.0 {
            Some((security, _)) => on.execute_unprepared(&security.reset()).await.map(drop),
            None => Ok(()),
        }
    }
}

/// Whether to create a missing role and grant missing privileges.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RepairMode {
    Yes,
    No,
}

/// Checks whether row-level security isolates tenants, and sets it up if that is permitted.
pub(super) async fn prepare(settings: &Settings, repair: RepairMode) -> Result<Option<TenantRole>, OpenError> {
    let on = connect::open_direct(settings).await.map_err(OpenError::engine)?;
    if on.get_database_backend() != DbBackend::Postgres {
        close_connection(on).await;
        return Ok(None);
    }
    let checked = check_and_repair(&on, settings, repair).await;
    close_connection(on).await;
    let (security, problem) = checked?;
    match (settings.row_security.mode, problem) {
        (RowSecurityMode::Required, Some(reason)) => Err(OpenError::RowSecurity(reason)),
        (RowSecurityMode::Off, _) => {
            emit(RowSecurityChecked { role: None, reason: "store.row_security is off" });
            Ok(None)
        }
        (RowSecurityMode::Auto, Some(reason)) => {
            emit(RowSecurityChecked { role: None, reason: &reason });
            Ok(None)
        }
        (RowSecurityMode::Auto | RowSecurityMode::Required, None) => {
            emit(RowSecurityChecked { role: Some(&settings.row_security.role), reason: "" });
            Ok(Some(security))
        }
    }
}

/// Whether row-level security isolates tenants.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RowSecurityStatus {
    /// The settings turn it off.
    Off,
    /// This role isolates them.
    On {
        /// The role.
        role: String,
    },
    /// It cannot be used as the tables and roles are now. The message says what to do.
    Unusable {
        /// Why it cannot be used.
        reason: String,
        /// Whether the settings require it, so that the daemon does not start.
        is_required: bool,
    },
}

/// Reads whether row-level security could isolate tenants. Changes nothing. `None` if the store is a file.
pub(super) async fn status(settings: &Settings) -> Result<Option<RowSecurityStatus>, OpenError> {
    let on = connect::open_direct(settings).await.map_err(OpenError::engine)?;
    if on.get_database_backend() != DbBackend::Postgres {
        close_connection(on).await;
        return Ok(None);
    }
    let mode = settings.row_security.mode;
    let checked = match mode {
        RowSecurityMode::Off => Ok(RowSecurityStatus::Off),
        RowSecurityMode::Auto | RowSecurityMode::Required => {
            check_and_repair(&on, settings, RepairMode::No).await.map(|(_, problem)| match problem {
                None => RowSecurityStatus::On { role: settings.row_security.role.clone() },
                Some(reason) => RowSecurityStatus::Unusable { reason, is_required: mode == RowSecurityMode::Required },
            })
        }
    };
    close_connection(on).await;
    checked.map(Some)
}

/// The role switch for tenants, and the reason why it cannot be used, if any.
async fn check_and_repair(
    on: &DatabaseConnection,
    settings: &Settings,
    repair: RepairMode,
) -> Result<(TenantRole, Option<String>), OpenError> {
    let role = &settings.row_security.role;
    let mut status = read_status(on, role).await.map_err(OpenError::engine)?;
    let mut failed = None;
    for _ in 0..REPAIR_ATTEMPTS {
        let steps = status.steps(settings.row_security.mode);
        if steps.is_empty() || repair == RepairMode::No {
            break;
        }
        failed = run_steps(on, &steps).await;
        status = read_status(on, role).await.map_err(OpenError::engine)?;
    }
    if let Some(owner) = status.foreign_owner() {
        return Err(OpenError::NotTheOwner { user: status.user.clone(), owner: owner.to_owned() });
    }
    let problem = status.problem(failed.as_deref());
    Ok((TenantRole { role: identifier(role), engine: identifier(&status.user) }, problem))
}

/// Access to a table with tenant rows, as PostgreSQL reports it.
#[derive(Debug, FromQueryResult)]
struct TableAccess {
    name: String,
    owner: String,
    /// Whether this process has the rights of the table's owner.
    has_owner_rights: bool,
    /// Whether the API's role has the rights of the owner as well.
    role_has_owner_rights: bool,
    /// Whether the policies are on, for the owner as well.
    is_forced: bool,
    /// Whether a policy lets this process see all rows.
    shows_all_rows: bool,
}

/// State of the role and of the tables.
#[derive(Debug)]
struct RoleStatus {
    role: String,
    user: String,
    schema: String,
    /// Whether this process bypasses all policies.
    bypasses_policies: bool,
    exists: bool,
    /// Whether the role bypasses all policies.
    role_bypasses_policies: bool,
    /// Whether this process may switch to the role.
    can_set_role: bool,
    /// Whether the role may use the schema.
    can_use_schema: bool,
    tables: Vec<TableAccess>,
    /// Privileges that the role lacks: a table and a privilege.
    missing: Vec<(String, String)>,
}

impl RoleStatus {
    /// Owner of the tables, if their policies hide rows from this process.
    fn foreign_owner(&self) -> Option<&str> {
        let hidden = |table: &&TableAccess| !self.bypasses_policies && table.is_forced && !table.shows_all_rows;
        self.tables.iter().find(hidden).map(|table| table.owner.as_str())
    }

    /// Statements that grant the role what it lacks, and let the owner see the rows of its tables.
    fn steps(&self, mode: RowSecurityMode) -> Vec<String> {
        let hidden = self
            .tables
            .iter()
            .filter(|table| !self.bypasses_policies && table.has_owner_rights && !table.shows_all_rows);
        // The owner of these tables has changed since the policy was created.
        let mut steps: Vec<String> = hidden
            .map(|table| format!("ALTER POLICY engine ON {} TO {}", identifier(&table.name), identifier(&table.owner)))
            .collect();
        if mode == RowSecurityMode::Off {
            return steps;
        }
        let role = identifier(&self.role);
        if !self.exists {
            // Roles belong to the whole server: another database may need the same role at the same moment.
            steps.push(format!(
                "DO $$ BEGIN CREATE ROLE {role} NOLOGIN; EXCEPTION WHEN duplicate_object OR unique_violation THEN NULL; END $$"
            ));
        }
        if !self.can_set_role {
            steps.push(format!("GRANT {role} TO CURRENT_USER"));
        }
        if !self.can_use_schema {
            steps.push(format!("GRANT USAGE ON SCHEMA {} TO {role}", identifier(&self.schema)));
        }
        let grants = self.missing.iter();
        steps.extend(grants.map(|(table, may)| format!("GRANT {may} ON {} TO {role}", identifier(table))));
        steps
    }

    /// Why row-level security cannot isolate tenants, and what to do.
    fn problem(&self, failed: Option<&str>) -> Option<String> {
        let (name, role, user) = (&self.role, identifier(&self.role), identifier(&self.user));
        let failed = failed.map_or_else(String::new, |reason| format!(" ({reason})"));
        if !self.exists || !self.can_set_role {
            let verb = if self.exists { "may not switch to" } else { "may not create" };
            return Some(format!(
                "{} {verb} the role {name}{failed}; as a superuser run: CREATE ROLE {role} NOLOGIN; GRANT {role} TO \
                 {user}; then start again",
                self.user
            ));
        }
        if self.role_bypasses_policies {
            return Some(format!(
                "the role {name} bypasses row-level security; as a superuser run: ALTER ROLE {role} NOSUPERUSER \
                 NOBYPASSRLS; or set store.api_role to another role"
            ));
        }
        if let Some(table) = self.tables.iter().find(|table| table.role_has_owner_rights) {
            return Some(format!(
                "the role {name} has the rights of {}, the owner of the table {}; revoke them, or set store.api_role \
                 to another role",
                table.owner, table.name
            ));
        }
        if let Some(table) = self.tables.iter().find(|table| !table.is_forced) {
            let table = identifier(&table.name);
            return Some(format!(
                "row-level security is off for the table {table}; run: ALTER TABLE {table} ENABLE ROW LEVEL SECURITY; \
                 ALTER TABLE {table} FORCE ROW LEVEL SECURITY; then start again"
            ));
        }
        if !self.can_use_schema {
            let schema = identifier(&self.schema);
            return Some(format!(
                "the role {name} may not use the schema {schema}{failed}; as its owner run: GRANT USAGE ON SCHEMA \
                 {schema} TO {role}; then start again"
            ));
        }
        self.missing.first().map(|(table, may)| {
            format!(
                "the role {name} lacks {may} on the table {table}{failed}; run `guildhall migrate up` as the owner of the \
                 tables, then start again"
            )
        })
    }
}

/// Runs all statements. Returns the message of the first one that failed.
async fn run_steps(on: &DatabaseConnection, steps: &[String]) -> Option<String> {
    let mut failed = None;
    for step in steps {
        if let Err(error) = on.execute_unprepared(step).await {
            failed.get_or_insert(super::EngineError::Engine(error).message());
        }
    }
    failed
}

/// Read from PostgreSQL's catalogue, in its own SQL.
async fn read_status(on: &DatabaseConnection, role: &str) -> Result<RoleStatus, DbErr> {
    const SELECT_ROLES: &str = "SELECT current_user::text AS user, current_schema()::text AS schema,
        me.rolsuper OR me.rolbypassrls AS bypasses_policies, r.oid IS NOT NULL AS exists,
        COALESCE(r.rolsuper OR r.rolbypassrls, false) AS role_bypasses_policies,
        COALESCE(has_schema_privilege(r.oid, current_schema()::regnamespace::oid, 'USAGE'), false) AS can_use_schema
        FROM pg_roles me LEFT JOIN pg_roles r ON r.rolname = $1::name WHERE me.rolname = current_user";
    let name = || vec![role.into()];
    let found = query_as(on, SELECT_ROLES, name()).await?.into_iter().next();
    let row: RoleRow = found.ok_or_else(|| DbErr::RecordNotFound("PostgreSQL returned no current user".to_owned()))?;
    let missing: Vec<MissingPrivilege> = query_as(on, &missing_sql(), name()).await?;
    Ok(RoleStatus {
        role: role.to_owned(),
        user: row.user,
        schema: row.schema,
        bypasses_policies: row.bypasses_policies,
        exists: row.exists,
        role_bypasses_policies: row.role_bypasses_policies,
        can_set_role: row.exists && can_set_role(on, role).await?,
        can_use_schema: row.can_use_schema,
        tables: query_as(on, &tables_sql(), name()).await?,
        missing: missing.into_iter().map(|missing| (missing.its_table, missing.may)).collect(),
    })
}

#[derive(FromQueryResult)]
struct RoleRow {
    user: String,
    schema: String,
    bypasses_policies: bool,
    exists: bool,
    role_bypasses_policies: bool,
    can_use_schema: bool,
}

#[derive(FromQueryResult)]
struct MissingPrivilege {
    its_table: String,
    may: String,
}

/// Whether this process may switch to a role. PostgreSQL 16 reports memberships differently than earlier versions, so
/// this tries it.
async fn can_set_role(on: &DatabaseConnection, role: &str) -> Result<bool, DbErr> {
    let transaction = on.begin().await?;
    let became = transaction.execute_unprepared(&format!("SET LOCAL ROLE {}", identifier(role))).await;
    transaction.rollback().await?;
    Ok(became.is_ok())
}

fn tables_sql() -> String {
    let named: Vec<_> = TENANT_TABLES.iter().map(|table| format!("'{table}'::regclass")).collect();
    format!(
        "SELECT c.relname::text AS name, pg_get_userbyid(c.relowner)::text AS owner,
        pg_has_role(current_user, c.relowner, 'USAGE') AS has_owner_rights,
        COALESCE(pg_has_role(r.oid, c.relowner, 'USAGE'), false) AS role_has_owner_rights,
        c.relrowsecurity AND c.relforcerowsecurity AS is_forced,
        EXISTS (SELECT 1 FROM pg_policy p, unnest(p.polroles) AS to_role WHERE p.polrelid = c.oid AND p.polname = 'engine'
            AND (to_role = 0 OR pg_has_role(current_user, to_role, 'USAGE'))) AS shows_all_rows
        FROM pg_class c LEFT JOIN pg_roles r ON r.rolname = $1::name WHERE c.oid IN ({}) ORDER BY c.relname",
        named.join(", ")
    )
}

fn missing_sql() -> String {
    let each = GRANTS.iter().flat_map(|(table, may)| may.iter().map(move |may| format!("('{table}', '{may}')")));
    let each: Vec<_> = each.collect();
    format!(
        "SELECT g.its_table, g.may FROM (VALUES {}) AS g (its_table, may) LEFT JOIN pg_roles r ON r.rolname = $1::name
        WHERE NOT COALESCE(has_table_privilege(r.oid, g.its_table::regclass::oid, g.may), false)",
        each.join(", ")
    )
}

/// Quotes a PostgreSQL identifier.
fn identifier(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

/// Quotes a PostgreSQL string literal, independent of server settings.
fn literal(text: &str) -> String {
    let text = super::rows::without_nul(text);
    format!("E'{}'", text.replace('\\', "\\\\").replace('\'', "''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tenant_name_cannot_inject_sql() {
        let security = TenantRole { role: identifier("a\"b"), engine: identifier("owner") };
        assert_eq!(security.confine("acme"), "SET LOCAL ROLE \"a\"\"b\"; SET LOCAL guildhall.tenant = E'acme'");
        let injection = security.confine("a'; SET ROLE \"owner\"; --\\'");
        assert!(injection.ends_with(r#"= E'a''; SET ROLE "owner"; --\\'''"#), "{injection}");
        assert_eq!(security.reset(), "SET LOCAL ROLE \"owner\"; SET LOCAL guildhall.tenant = ''");
    }
}
