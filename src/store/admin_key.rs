//! The generated admin key that all processes of a PostgreSQL store accept.

use guildhall_actors::ports::GeneratedAdminKey;
use sea_orm::{ConnectionTrait, EntityTrait as _};
use tokio::time::timeout;

use super::sql;
use super::{
    OpenError, close_connection, cluster::instance_name, connect, entities::generated_admin_key, error::EngineError,
    operation_row::time, rows::query, write,
};
use crate::{
    clock::{SystemTimeSource, TimeSource as _},
    settings::StoreSettings as Settings,
};

/// Name of this host.
pub(super) fn host_name() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

/// The generated admin key, if any.
pub(super) async fn read(on: &impl ConnectionTrait) -> Result<Option<GeneratedAdminKey>, EngineError> {
    let found = generated_admin_key::Entity::find_by_id(1).all(on).await?;
    let read = |row: generated_admin_key::Model| {
        let corrupt = |_| EngineError::Corrupt("the digest in generated_admin_key is invalid".to_owned());
        Ok(GeneratedAdminKey {
            digest: row.digest.try_into().map_err(corrupt)?,
            host: row.host,
            file: row.file,
            instance: row.instance,
            created_at: time(row.created_at),
        })
    };
    found.into_iter().next().map(read).transpose()
}

/// Which stored key a new one may replace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AdminKeyClaim {
    /// The first key stays. Only the file that it came from may replace it, which is how it is rotated.
    First,
    /// Any key.
    Replace,
}

/// Stores the digest of a key from a file of this host, if permitted. Returns the key that is accepted from now on.
///
/// # Errors
///
/// When the store cannot be reached.
pub async fn claim(
    settings: &Settings,
    digest: [u8; 32],
    file: &str,
    claim: AdminKeyClaim,
) -> Result<GeneratedAdminKey, OpenError> {
    let late = |_| OpenError::Lost(format!("no response within {} ms", settings.timeout.as_millis()));
    let on =
        timeout(settings.timeout, connect::open_direct(settings)).await.map_err(late)?.map_err(OpenError::engine)?;
    let own = GeneratedAdminKey {
        digest,
        host: host_name(),
        file: file.to_owned(),
        instance: instance_name(settings),
        created_at: SystemTimeSource.wall(),
    };
    let claimed = timeout(settings.timeout, claim_on(&on, &own, claim)).await;
    close_connection(on).await;
    claimed.map_err(late)?.map_err(OpenError::from_engine_error)
}

async fn claim_on(
    on: &impl ConnectionTrait,
    own: &GeneratedAdminKey,
    claim: AdminKeyClaim,
) -> Result<GeneratedAdminKey, EngineError> {
    let values = vec![
        own.digest.to_vec().into(),
        own.host.clone().into(),
        own.file.clone().into(),
        own.instance.clone().into(),
        write::signed(own.created_at.millis()).into(),
        i64::from(claim == AdminKeyClaim::Replace).into(),
    ];
    query(on, sql::admin_key::CLAIM, values).await?;
    let stored = read(on).await?;
    stored.ok_or_else(|| EngineError::Corrupt("generated_admin_key has no row".to_owned()))
}
