//! Logs and metrics of limits that processes share.

use guildhall_core::limit::shared::SharingMode;
use guildhall_core::response::Credential;
use tracing::{info, warn};

use super::{counter, event, gauge, metrics};

metrics! {
    Shared {
        /// Mode in which this process shares a limit with others: 1 for the current mode.
        MODE = gauge "guildhall_shared_limit_mode" [limit, mode];
        /// Processes that share a limit.
        pub MEMBERS = gauge "guildhall_shared_limit_members" [limit];
        /// What this process may use alone while the others are unreachable.
        SHARE = gauge "guildhall_shared_limit_share" [limit];
        /// Calls in any window that this process may make under a limit divided among processes.
        LIMIT_SHARE = gauge "guildhall_limit_share";
        /// Calls to the window that processes share.
        CALLS = counter "guildhall_shared_limit_calls_total" [result];
    }
}

/// The credential of a limit as a label.
fn label(credential: Credential) -> &'static str {
    match credential {
        Credential::Application(_) => "bot",
        Credential::Anonymous => "anonymous",
        Credential::Token(_) => "token",
    }
}

event! {
    /// The sharing mode of a process has changed.
    pub(crate) struct SharedModeChanged {
        credential: Credential,
        from: SharingMode,
        to: SharingMode,
        members: u32,
        share: u32,
    }
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

event! {
    /// The number of members, or the share of this process, has changed.
    pub(crate) struct MembersCounted { credential: Credential, members: u32, share: u32 }
    let limit = label(credential);
    gauge!(MEMBERS, "limit" => limit).set(f64::from(members));
    gauge!(SHARE, "limit" => limit).set(f64::from(share));
}

event! {
    /// A call to the shared window finished, with or without a response.
    pub(crate) struct SharedCallEnded { answered: bool }
    counter!(CALLS, "result" => if answered { "answered" } else { "lost" }).increment(1);
}

event! {
    /// The token bucket has applied a share of a divided limit.
    pub(crate) struct ShareApplied { share: u32 }
    gauge!(LIMIT_SHARE).set(f64::from(share));
}
