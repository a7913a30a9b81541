//! The faults during the burst. Never a 429: the daemon has to avoid those.

use guildhall_sim::{Fault, FaultAction, Stage};

/// Responses are slow, some calls fail, and some connections are cut before or after the call took effect. Each fault
/// occurs once, a few calls apart from the others of its route, so that every run has the same number.
pub(crate) fn faults() -> Vec<Fault> {
    let (roles, channels) = ("POST /guilds/{guild.id}/roles", "POST /guilds/{guild.id}/channels");
    let messages = "POST /channels/{channel.id}/messages";
    let member_roles = "PUT /guilds/{guild.id}/members/{user.id}/roles/{role.id}";
    let status = |status| FaultAction::Status { status, code: 0 };
    let once =
        |route: &str, skip, action| Fault { route: route.to_owned(), action, probability: 1.0, count: Some(1), skip };
    let slow = FaultAction::Latency { fixed_ms: 10, jitter_ms: 40, at: Stage::Answer };
    vec![
        Fault { route: "*".to_owned(), action: slow, probability: 1.0, count: None, skip: 0 },
        once(roles, 7, FaultAction::DropAfter),
        once(roles, 21, status(500)),
        once(roles, 35, FaultAction::DropBefore),
        once(roles, 63, FaultAction::DropAfter),
        once(roles, 77, status(502)),
        once(roles, 91, FaultAction::DropAfter),
        once(channels, 4, FaultAction::DropAfter),
        once(channels, 12, status(503)),
        once(channels, 28, FaultAction::DropAfter),
        once(messages, 6, status(500)),
        once(messages, 16, FaultAction::DropAfter),
        once(messages, 40, FaultAction::DropAfter),
        once(member_roles, 5, status(504)),
        once(member_roles, 25, FaultAction::DropAfter),
    ]
}
