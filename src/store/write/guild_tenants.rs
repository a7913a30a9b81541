//! The queues of operations that are about to be accepted.

use std::{
    collections::{BTreeSet, HashMap},
    sync::Arc,
};

use guildhall_actors::access::default_tenant;
use guildhall_actors::ports::NewOperation;
use guildhall_core::operation::{Queue, QueueKey};
use sea_orm::DatabaseTransaction;

use super::EngineError;
use crate::store::rows::{Rows, with_rows};
use crate::store::sql;

/// Tenants of guilds whose operations are in other queues than the guild's own.
#[derive(Debug, Default)]
pub(super) struct GuildTenants(HashMap<u64, Arc<str>>);

impl GuildTenants {
    /// Reads the tenants that these operations need: none, if all are in their guild's queue.
    pub(super) async fn of(on: &DatabaseTransaction, operations: &[&NewOperation]) -> Result<Self, EngineError> {
        let mut guilds = BTreeSet::new();
        for operation in operations {
            match operation.queue {
                QueueKey::Keyed { .. } => guilds.extend(operation.guild),
                QueueKey::Guild(_) | QueueKey::Existing(_) => {}
            }
        }
        let mut tenants = Self::default();
        let rows = Rows::of(guilds.into_iter().map(u64::cast_signed));
        for row in with_rows(on, sql::guild_tenants::TENANTS, super::QUEUE_NUMBERS, rows, Vec::new()).await? {
            let (guild, tenant): (i64, String) = (row.try_get("", "queue")?, row.try_get("", "tenant")?);
            tenants.0.insert(guild.cast_unsigned(), Arc::from(tenant));
        }
        Ok(tenants)
    }

    /// Tenant of a guild. A guild without one belongs to the default tenant.
    pub(super) fn tenant(&self, guild: u64) -> Arc<str> {
        self.0.get(&guild).map_or_else(default_tenant, Arc::clone)
    }

    /// The queue of an operation. An operation without a tenant belongs to its guild's tenant.
    pub(super) fn queue(&self, operation: &NewOperation) -> Queue {
        match operation.queue.fixed() {
            Some(queue) => queue,
            None if !operation.tenant.is_empty() => operation.queue.queue(&operation.tenant),
            None => {
                let tenant = operation.guild.map_or_else(default_tenant, |guild| self.tenant(guild));
                operation.queue.queue(&tenant)
            }
        }
    }
}
