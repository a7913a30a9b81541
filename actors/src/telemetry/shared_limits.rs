//! Logs and metrics of limits that processes share.

use guildhall_core::limit::shared::SharingMode;
use guildhall_core::response::Credential;
use metrics::{counter, gauge};
use tracing::{info, warn};

use super::{InternalEvent, Metric};

/// Sharing mode of this process: 1 for the current mode, 0 for the others.
pub const MODE: &str = "guildhall_shared_limit_mode";
/// Processes that share a limit, including unreachable ones, as last reported.
pub const MEMBERS: &str = "guildhall_shared_limit_members";
/// What this process may use alone while the others are unreachable.
pub const SHARE: &str = "guildhall_shared_limit_share";
/// Calls to the shared window, by whether there was a response.
pub const CALLS: &str = "guildhall_shared_limit_calls_total";

/// Share of this process in a limit that the processes of a store divide.
pub const LIMIT_SHARE: &str = "guildhall_limit_share";

/// All metrics of this module.
pub(super) const METRICS: &[Metric] = &[
    Metric::gauge(
        MODE,
        &["limit", "mode"],
        "Mode in which this process shares a limit with others: 1 for the current \
        mode.",
    ),
    Metric::gauge(MEMBERS, &["limit"], "Processes that share a limit."),
    Metric::gauge(SHARE, &["limit"], "What this process may use alone while the others are unreachable."),
    Metric::gauge(
        LIMIT_SHARE,
        &[],
        "Calls in any window that this process may make under a limit divided among processes.",
    ),
    Metric::counter(CALLS, &["result"], "Calls to the window that processes share."),
];

/// The credential of a limit as a label.
fn label(credential: Credential) -> &'static str {
    match credential {
        Credential::Application(_) => "bot",
        Credential::Anonymous => "anonymous",
    }
}

/// The sharing mode of a process has changed.
pub(crate) struct SharedModeChanged {
    pub(crate) credential: Credential,
    pub(crate) from: SharingMode,
    pub(crate) to: SharingMode,
    pub(crate) members: u32,
    pub(crate) share: u32,
}

impl InternalEvent for SharedModeChanged {
    fn emit(self) {
        let Self { credential, from, to, members, share } = self;
        let (limit, is_new, from, name) = (label(credential), from == to, from.name(), to.name());
        match to {
            // The initial mode is not reported.
            _ if is_new => {}
            SharingMode::Unreached | SharingMode::Joining | SharingMode::Shared => {
                info!(limit, from, to = name, members, share, "limit shared with other processes");
            }
            SharingMode::Waiting | SharingMode::Share | SharingMode::Closed => {
                warn!(limit, from, to = name, members, share, "other processes unreachable; limit no longer shared");
            }
            SharingMode::Open => {
                warn!(limit, from, to = name, members, share, "other processes unreachable; the limit may be exceeded");
            }
        }
        for mode in SharingMode::ALL {
            gauge!(MODE, "limit" => limit, "mode" => mode.name()).set(f64::from(u8::from(mode == to)));
        }
    }
}

/// The number of members, or the share of this process, has changed.
pub(crate) struct MembersCounted {
    pub(crate) credential: Credential,
    pub(crate) members: u32,
    pub(crate) share: u32,
}

impl InternalEvent for MembersCounted {
    fn emit(self) {
        let limit = label(self.credential);
        gauge!(MEMBERS, "limit" => limit).set(f64::from(self.members));
        gauge!(SHARE, "limit" => limit).set(f64::from(self.share));
    }
}

/// A call to the shared window finished, with or without a response.
pub(crate) struct SharedCallEnded {
    pub(crate) answered: bool,
}

impl InternalEvent for SharedCallEnded {
    fn emit(self) {
        counter!(CALLS, "result" => if self.answered { "answered" } else { "lost" }).increment(1);
    }
}

/// The token bucket has applied a share of a divided limit.
pub(crate) struct ShareApplied {
    pub(crate) share: u32,
}

impl InternalEvent for ShareApplied {
    fn emit(self) {
        gauge!(LIMIT_SHARE).set(f64::from(self.share));
    }
}
