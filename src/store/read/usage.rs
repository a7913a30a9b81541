//! Usage of the store, by caller and tenant.

use guildhall_actors::ports::{FileUsage, ScopeUsage, StoreUsage};
use guildhall_core::usage::{Usage, UsageLimits, UsageScope};
use sea_orm::{
    ColumnTrait as _, ConnectionTrait, EntityTrait as _, FromQueryResult, QueryFilter as _, QueryOrder as _,
    QuerySelect as _,
};

use super::sum;
use crate::store::{
    entities::usage,
    error::EngineError,
    rows::first_rows,
    write::{FileCapacity, measure_file, used},
};

/// Maximum number of scopes in a result.
const MAX_SCOPES: usize = 10_000;

pub(in crate::store) async fn usage(
    on: &impl ConnectionTrait,
    limits: UsageLimits,
    max_bytes: u64,
    scopes: Option<Vec<UsageScope>>,
) -> Result<StoreUsage, EngineError> {
    let found = match scopes {
        Some(scopes) => usage_of(on, scopes).await?,
        None => all_usage(on).await?,
    };
    let scopes = found.into_iter().map(|(scope, used)| ScopeUsage { limit: limits.of(&scope), scope, used });
    let file = match max_bytes {
        0 => None,
        max => {
            let used = measure_file(on).await?;
            Some(FileUsage { used, accepts_until: FileCapacity::for_operations(max), max_bytes: max })
        }
    };
    Ok(StoreUsage { scopes: scopes.collect(), file })
}

async fn usage_of(on: &impl ConnectionTrait, scopes: Vec<UsageScope>) -> Result<Vec<(UsageScope, Usage)>, EngineError> {
    let names: Vec<String> = scopes.iter().map(ToString::to_string).collect();
    let mut found = used(on, names.iter().map(String::as_str)).await?;
    let each = |scope: UsageScope| {
        let used = found.remove(&scope).unwrap_or_default();
        (scope, used)
    };
    Ok(scopes.into_iter().map(each).collect())
}

#[derive(FromQueryResult)]
struct UsageRow {
    scope: String,
    operations: i64,
    bytes: i64,
}

async fn all_usage(on: &impl ConnectionTrait) -> Result<Vec<(UsageScope, Usage)>, EngineError> {
    use usage::Column::{Bytes, Operations, Scope};
    let select = usage::Entity::find()
        .select_only()
        .column(Scope)
        .column_as(sum(Operations.into_expr()), "operations")
        .column_as(sum(Bytes.into_expr()), "bytes")
        .filter(Scope.not_like("audit:%"))
        .group_by(Scope)
        .order_by_asc(Scope);
    let select = first_rows(on.get_database_backend(), &select, MAX_SCOPES);
    let mut found = Vec::new();
    for UsageRow { scope, operations, bytes } in UsageRow::find_by_statement(select).all(on).await? {
        let usage = Usage { operations, bytes };
        found.extend(UsageScope::read(&scope).filter(|_| !usage.is_zero()).map(|scope| (scope, usage)));
    }
    Ok(found)
}
