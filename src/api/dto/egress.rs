//! Usage of the REST proxy.

use guildhall_core::egress_usage::{self, EgressMeasure as CoreMeasure, UsageRow};
use guildhall_core::time::UnixMs;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{EgressMeasure, Time};

/// The routes and callers that use the REST proxy most.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub(crate) struct EgressTop {
    /// Whether the REST proxy is enabled. If not, the lists are empty.
    pub(crate) enabled: bool,
    pub(crate) by: EgressMeasure,
    /// Start of the time that the numbers cover; `null` if the REST proxy is not enabled.
    pub(crate) since: Option<Time>,
    /// Routes, the highest first.
    pub(crate) routes: Vec<EgressUsageRow>,
    /// Callers, the highest first.
    pub(crate) callers: Vec<EgressUsageRow>,
}

/// The calls of a route or of a caller through the REST proxy.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub(crate) struct EgressUsageRow {
    /// Method and path of a route. For a caller the id of its key, `bot` for the bot token, or `address:` and an address
    /// for calls without either; `token-…` and a fingerprint for tokens of others.
    pub(crate) name: String,
    pub(crate) calls: u64,
    /// Milliseconds that the calls were delayed: by the wait for a permit, by checks and by their bodies.
    pub(crate) waited_ms: u64,
    /// Calls that Guildhall answered itself.
    pub(crate) refused: u64,
    /// Calls that Discord answered with a status of 400 or more.
    pub(crate) errors: u64,
    /// Maximum overestimate of the number that the list is sorted by.
    pub(crate) over: u64,
}

impl EgressTop {
    pub(crate) fn new(by: CoreMeasure, top: &egress_usage::EgressTop, now: UnixMs) -> Self {
        Self {
            enabled: true,
            by: by.name().into(),
            since: Some(now.before(top.period).into()),
            routes: top.routes.iter().map(EgressUsageRow::new).collect(),
            callers: top.callers.iter().map(EgressUsageRow::new).collect(),
        }
    }

    /// The REST proxy is not enabled.
    pub(crate) fn disabled(by: CoreMeasure) -> Self {
        Self { enabled: false, by: by.name().into(), since: None, routes: Vec::new(), callers: Vec::new() }
    }
}

impl EgressUsageRow {
    fn new(row: &UsageRow<impl ToString>) -> Self {
        let UsageRow { ref key, calls, waited_ms, refused, errors, over } = *row;
        Self { name: key.to_string(), calls, waited_ms, refused, errors, over }
    }
}
