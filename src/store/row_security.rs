//! Callers with a tenant are kept to its rows by PostgreSQL itself, whatever a query forgets to ask for.
//!
//! ```text
//!  engine, operator ──▶ the owner of the tables ─────────────────────────────────────────────▶ every row
//!  a tenant's key ────▶ BEGIN; SET LOCAL ROLE guildhall_api; SET LOCAL guildhall.tenant = … ──▶ that tenant's rows
//! ```
//!
//! Both settings end with their transaction, so nothing is left behind in a connection that others use, PgBouncer's among
//! them. A transaction of that role which names no tenant sees nothing.

use sea_orm::{ConnectionTrait as _, DatabaseConnection, DatabaseTransaction, DbBackend, DbErr, TransactionTrait as _};

use super::{OpenError, connect, events::RowSecurityChecked, let_go, rows::query};
use crate::{
    events::emit,
    settings::{RowSecurityMode, StoreSettings as Settings},
};

/// The tables whose rows are somebody's.
pub(super) const TENANTED: [&str; 11] = [
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

/// What the API's role may do. It needs no more for what is done as it, and so it has no more: keys, for one, are the
/// operator's business.
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
    // Whether everything is paused is for everybody to see.
    ("switches", &["SELECT"]),
    // And so is how far back changes can be followed.
    ("marks", &["SELECT"]),
];

/// How often it is tried to give the role what it lacks: other processes may be at it, too.
const TRIES: u32 = 3;

/// How a transaction becomes a tenant's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct TenantRole {
    /// The API's role and the engine's own, as PostgreSQL writes them.
    role: String,
    engine: String,
}

impl TenantRole {
    /// What a transaction is told so that it sees this tenant's rows alone.
    pub(super) fn confine(&self, tenant: &str) -> String {
        format!("SET LOCAL ROLE {}; SET LOCAL guildhall.tenant = {}", self.role, literal(tenant))
    }

    /// What it is told so that it is the engine's again.
    fn lift(&self) -> String {
        format!("SET LOCAL ROLE {}; SET LOCAL guildhall.tenant = ''", self.engine)
    }
}

/// For whom something is written, in a transaction that others have a part in.
#[derive(Clone, Copy, Debug)]
pub(super) struct TenantScope<'a>(Option<(&'a TenantRole, &'a str)>);

impl<'a> TenantScope<'a> {
    /// Of a tenant, if there is one and the engine can tell its rows.
    pub(super) fn of(security: Option<&'a TenantRole>, tenant: Option<&'a str>) -> Self {
        Self(security.zip(tenant))
    }

    /// From here on the transaction is the tenant's.
    pub(super) async fn begin(self, on: &DatabaseTransaction) -> Result<(), DbErr> {
        match self.0 {
            Some((security, tenant)) => on.execute_unprepared(&security.confine(tenant)).await.map(drop),
            None => Ok(()),
        }
    }

    /// And from here on the engine's again. If something goes wrong in between, the whole transaction is undone.
    pub(super) async fn end(self, on: &DatabaseTransaction) -> Result<(), DbErr> {
        match self.0 {
            Some((security, _)) => on.execute_unprepared(&security.lift()).await.map(drop),
            None => Ok(()),
        }
    }
}

/// Whether a store is asked to give the role what it lacks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RepairMode {
    Yes,
    No,
}

/// Finds out whether PostgreSQL keeps tenants apart, and sees to it if it may.
pub(super) async fn prepare(settings: &Settings, mend: RepairMode) -> Result<Option<TenantRole>, OpenError> {
    let on = connect::direct(settings).await.map_err(OpenError::engine)?;
    if on.get_database_backend() != DbBackend::Postgres {
        let_go(on).await;
        return Ok(None);
    }
    let stood = stand(&on, settings, mend).await;
    let_go(on).await;
    let (security, lack) = stood?;
    match (settings.row_security.mode, lack) {
        (RowSecurityMode::Required, Some(why)) => Err(OpenError::RowSecurity(why)),
        (RowSecurityMode::Off, _) => {
            emit(RowSecurityChecked { role: None, why: "store.row_security is off" });
            Ok(None)
        }
        (RowSecurityMode::Auto, Some(why)) => {
            emit(RowSecurityChecked { role: None, why: &why });
            Ok(None)
        }
        (RowSecurityMode::Auto | RowSecurityMode::Required, None) => {
            emit(RowSecurityChecked { role: Some(&settings.row_security.role), why: "" });
            Ok(Some(security))
        }
    }
}

/// How transactions become a tenant's, and why they cannot if they cannot.
async fn stand(
    on: &DatabaseConnection,
    settings: &Settings,
    mend: RepairMode,
) -> Result<(TenantRole, Option<String>), OpenError> {
    let role = &settings.row_security.role;
    let mut seen = look(on, role).await.map_err(OpenError::engine)?;
    let mut failed = None;
    for _ in 0..TRIES {
        let steps = seen.steps(settings.row_security.mode);
        if steps.is_empty() || mend == RepairMode::No {
            break;
        }
        failed = carry_out(on, &steps).await;
        seen = look(on, role).await.map_err(OpenError::engine)?;
    }
    if let Some(owner) = seen.stranger() {
        return Err(OpenError::NotTheOwner { user: seen.user.clone(), owner: owner.to_owned() });
    }
    let lack = seen.lack(failed.as_deref());
    Ok((TenantRole { role: identifier(role), engine: identifier(&seen.user) }, lack))
}

/// What PostgreSQL says about a table of [`TENANTED`].
#[derive(Debug)]
struct TableAccess {
    name: String,
    owner: String,
    /// Whether this process has the rights of its owner.
    is_ours: bool,
    /// Whether the API's role has them, too.
    is_the_roles: bool,
    /// Whether its policies hold, for its owner as well.
    is_forced: bool,
    /// Whether they let this process see everything.
    lets_us: bool,
}

/// How things stand.
#[derive(Debug)]
struct RoleStatus {
    role: String,
    user: String,
    schema: String,
    /// Whether this process sees everything whatever policies say.
    sees_all: bool,
    is_there: bool,
    /// Whether the role sees everything whatever policies say.
    is_mighty: bool,
    /// Whether this process may become it.
    may_become: bool,
    /// Whether it may look into the schema.
    may_enter: bool,
    tables: Vec<TableAccess>,
    /// What it may not do and should: a table, and a privilege.
    missing: Vec<(String, String)>,
}

impl RoleStatus {
    /// Whose tables they are, if this process would not see what is in them.
    fn stranger(&self) -> Option<&str> {
        let hidden = |table: &&TableAccess| !self.sees_all && table.is_forced && !table.lets_us;
        self.tables.iter().find(hidden).map(|table| table.owner.as_str())
    }

    /// What would give the role what it lacks, and the owner the sight of its tables.
    fn steps(&self, mode: RowSecurityMode) -> Vec<String> {
        let hidden = self.tables.iter().filter(|table| !self.sees_all && table.is_ours && !table.lets_us);
        // The tables have been given to another owner since.
        let mut steps: Vec<String> = hidden
            .map(|table| format!("ALTER POLICY engine ON {} TO {}", identifier(&table.name), identifier(&table.owner)))
            .collect();
        if mode == RowSecurityMode::Off {
            return steps;
        }
        let role = identifier(&self.role);
        if !self.is_there {
            // Roles are the whole server's: another database of it may need the same one at the same moment.
            steps.push(format!(
                "DO $$ BEGIN CREATE ROLE {role} NOLOGIN; EXCEPTION WHEN duplicate_object OR unique_violation THEN NULL; END $$"
            ));
        }
        if !self.may_become {
            steps.push(format!("GRANT {role} TO CURRENT_USER"));
        }
        if !self.may_enter {
            steps.push(format!("GRANT USAGE ON SCHEMA {} TO {role}", identifier(&self.schema)));
        }
        let grants = self.missing.iter();
        steps.extend(grants.map(|(table, may)| format!("GRANT {may} ON {} TO {role}", identifier(table))));
        steps
    }

    /// Why tenants cannot be kept apart, and what to do about it.
    fn lack(&self, failed: Option<&str>) -> Option<String> {
        let (name, role, user) = (&self.role, identifier(&self.role), identifier(&self.user));
        let failed = failed.map_or_else(String::new, |why| format!(" ({why})"));
        if !self.is_there || !self.may_become {
            let what = if self.is_there { "may not become" } else { "may not make" };
            return Some(format!(
                "{} {what} the role {name}{failed}; as a superuser run: CREATE ROLE {role} NOLOGIN; GRANT {role} TO {user}; \
                 then start again",
                self.user
            ));
        }
        if self.is_mighty {
            return Some(format!(
                "the role {name} sees every row whatever policies say; as a superuser run: ALTER ROLE {role} NOSUPERUSER \
                 NOBYPASSRLS; or name another with store.api_role"
            ));
        }
        if let Some(table) = self.tables.iter().find(|table| table.is_the_roles) {
            return Some(format!(
                "the role {name} has the rights of {}, who owns the table {}; take them from it, or name another with \
                 store.api_role",
                table.owner, table.name
            ));
        }
        if let Some(table) = self.tables.iter().find(|table| !table.is_forced) {
            let table = identifier(&table.name);
            return Some(format!(
                "somebody has turned row security off for the table {table}; run: ALTER TABLE {table} ENABLE ROW LEVEL \
                 SECURITY; ALTER TABLE {table} FORCE ROW LEVEL SECURITY; then start again"
            ));
        }
        if !self.may_enter {
            let schema = identifier(&self.schema);
            return Some(format!(
                "the role {name} may not look into the schema {schema}{failed}; as its owner run: GRANT USAGE ON SCHEMA \
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

/// Does all of it that can be done; why the first failed that did.
async fn carry_out(on: &DatabaseConnection, steps: &[String]) -> Option<String> {
    let mut failed = None;
    for step in steps {
        if let Err(error) = on.execute_unprepared(step).await {
            failed.get_or_insert(super::EngineError::Engine(error).says());
        }
    }
    failed
}

async fn look(on: &DatabaseConnection, role: &str) -> Result<RoleStatus, DbErr> {
    const WHO: &str =
        "SELECT current_user::text, current_schema()::text, me.rolsuper OR me.rolbypassrls, r.oid IS NOT NULL,
        COALESCE(r.rolsuper OR r.rolbypassrls, false),
        COALESCE(has_schema_privilege(r.oid, current_schema()::regnamespace::oid, 'USAGE'), false)
        FROM pg_roles me LEFT JOIN pg_roles r ON r.rolname = $1::name WHERE me.rolname = current_user";
    let name = || vec![role.into()];
    let rows = query(on, WHO, name()).await?;
    let row = rows.first().ok_or_else(|| DbErr::RecordNotFound("PostgreSQL does not say who this is".to_owned()))?;
    let is_there: bool = row.try_get_by_index(3)?;
    let mut seen = RoleStatus {
        role: role.to_owned(),
        user: row.try_get_by_index(0)?,
        schema: row.try_get_by_index(1)?,
        sees_all: row.try_get_by_index(2)?,
        is_there,
        is_mighty: row.try_get_by_index(4)?,
        may_become: is_there && may_become(on, role).await?,
        may_enter: row.try_get_by_index(5)?,
        tables: Vec::new(),
        missing: Vec::new(),
    };
    for row in query(on, &tables_sql(), name()).await? {
        seen.tables.push(TableAccess {
            name: row.try_get_by_index(0)?,
            owner: row.try_get_by_index(1)?,
            is_ours: row.try_get_by_index(2)?,
            is_the_roles: row.try_get_by_index(3)?,
            is_forced: row.try_get_by_index(4)?,
            lets_us: row.try_get_by_index(5)?,
        });
    }
    for row in query(on, &missing_sql(), name()).await? {
        seen.missing.push((row.try_get_by_index(0)?, row.try_get_by_index(1)?));
    }
    Ok(seen)
}

/// Whether this process may become a role. PostgreSQL 16 and those before it tell memberships in different words; all of them
/// tell by doing it.
async fn may_become(on: &DatabaseConnection, role: &str) -> Result<bool, DbErr> {
    let transaction = on.begin().await?;
    let became = transaction.execute_unprepared(&format!("SET LOCAL ROLE {}", identifier(role))).await;
    transaction.rollback().await?;
    Ok(became.is_ok())
}

fn tables_sql() -> String {
    let named: Vec<_> = TENANTED.iter().map(|table| format!("'{table}'::regclass")).collect();
    format!(
        "SELECT c.relname::text, pg_get_userbyid(c.relowner)::text, pg_has_role(current_user, c.relowner, 'USAGE'),
        COALESCE(pg_has_role(r.oid, c.relowner, 'USAGE'), false), c.relrowsecurity AND c.relforcerowsecurity,
        EXISTS (SELECT 1 FROM pg_policy p, unnest(p.polroles) AS to_role WHERE p.polrelid = c.oid AND p.polname = 'engine'
            AND (to_role = 0 OR pg_has_role(current_user, to_role, 'USAGE')))
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

/// A name as PostgreSQL takes it.
fn identifier(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

/// A text as PostgreSQL takes it, however it is set up.
fn literal(text: &str) -> String {
    let text = super::rows::kept(text);
    format!("E'{}'", text.replace('\\', "\\\\").replace('\'', "''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_tenant_can_say_more_than_its_name() {
        let security = TenantRole { role: identifier("a\"b"), engine: identifier("owner") };
        assert_eq!(security.confine("acme"), "SET LOCAL ROLE \"a\"\"b\"; SET LOCAL guildhall.tenant = E'acme'");
        let sly = security.confine("a'; SET ROLE \"owner\"; --\\'");
        assert!(sly.ends_with(r#"= E'a''; SET ROLE "owner"; --\\'''"#), "{sly}");
        assert_eq!(security.lift(), "SET LOCAL ROLE \"owner\"; SET LOCAL guildhall.tenant = ''");
    }
}
