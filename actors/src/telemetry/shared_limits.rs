//! What is told of limits that processes share.

use guildhall_core::limit::shared::SharingMode;
use guildhall_core::response::Credential;
use metrics::{counter, gauge};
use tracing::{info, warn};

use super::{InternalEvent, Metric};

/// How this process stands to those it shares a limit with: 1 for what it is, 0 for what it is not.
pub const MODE: &str = "guildhall_shared_limit_mode";
/// Processes that share a limit, those that are cut off included, as last heard.
pub const MEMBERS: &str = "guildhall_shared_limit_members";
/// What this process may use by itself when it cannot reach the others.
pub const SHARE: &str = "guildhall_shared_limit_share";
/// Questions to what the processes share, by whether there was an answer.
pub const CALLS: &str = "guildhall_shared_limit_calls_total";

/// What this process may use of a limit that the processes of a store divide.
pub const LIMIT_SHARE: &str = "guildhall_limit_share";

/// All of them.
pub(super) const METRICS: &[Metric] = &[
    Metric::gauge(MODE, &["limit", "mode"], "How this process stands to those it shares a limit with."),
    Metric::gauge(MEMBERS, &["limit"], "Processes that share a limit."),
    Metric::gauge(SHARE, &["limit"], "What this process may use by itself when it cannot reach the others."),
    Metric::gauge(
        LIMIT_SHARE,
        &[],
        "Calls in any window that this process may make of a limit divided among processes.",
    ),
    Metric::counter(CALLS, &["result"], "Questions to what the processes share."),
];

/// Whose limit it is, as a label.
fn label(credential: Credential) -> &'static str {
    match credential {
        Credential::Application(_) => "bot",
        Credential::Anonymous => "anonymous",
    }
}

/// A process stands differently to the others than before.
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
            // How it begins is no news.
            _ if is_new => {}
            SharingMode::Unreached | SharingMode::Joining | SharingMode::Shared => {
                info!(limit, from, to = name, members, share, "the limit is shared");
            }
            SharingMode::Waiting | SharingMode::Share | SharingMode::Closed => {
                warn!(limit, from, to = name, members, share, "the others cannot be reached");
            }
            SharingMode::Open => {
                warn!(
                    limit,
                    from,
                    to = name,
                    members,
                    share,
                    "the others cannot be reached, and the limit may be passed"
                );
            }
        }
        for mode in SharingMode::ALL {
            gauge!(MODE, "limit" => limit, "mode" => mode.name()).set(f64::from(u8::from(mode == to)));
        }
    }
}

/// How many share the limit, or what this process may use by itself, has changed.
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

/// A question was answered, or was not.
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
