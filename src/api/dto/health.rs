//! Health of the daemon.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Whether the daemon is alive.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub(crate) struct Live {
    pub(crate) live: bool,
}

/// Whether the daemon has started.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub(crate) struct Started {
    pub(crate) started: bool,
}
