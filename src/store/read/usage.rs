//! Usage of the store, by caller and tenant.

use guildhall_actors::ports::{FileUsage, ScopeUsage, StoreUsage};
use guildhall_core::usage::{Usage, UsageLimits, UsageScope};
use sea_orm::{ConnectionTrait, FromQueryResult};

use crate::store::{
    error::EngineError,
    rows::query_as,
    write::{FileCapacity, measure_file, used},
};

/// Maximum number of scopes in a result.
const MAX_SCOPES: i64 = 10_000;

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
    // PostgreSQL's sums have another type than their operands.
    const SELECT: &str =
        "SELECT scope, CAST(SUM(operations) AS BIGINT) AS operations, CAST(SUM(bytes) AS BIGINT) AS bytes
        FROM usage WHERE scope NOT LIKE 'audit:%' GROUP BY scope ORDER BY scope LIMIT $1 + 0";
    let mut found = Vec::new();
    for UsageRow { scope, operations, bytes } in query_as(on, SELECT, vec![MAX_SCOPES.into()]).await? {
        let usage = Usage { operations, bytes };
        found.extend(UsageScope::read(&scope).filter(|_| !usage.is_zero()).map(|scope| (scope, usage)));
    }
    Ok(found)
}
