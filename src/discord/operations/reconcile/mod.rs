//! Finding out whether something was done whose answer was lost. Nothing is changed by it.
//!
//! ```text
//!  role, channel ──▶ marker in the audit log? ──yes──▶ Found
//!                       │ no entry has it, or the log cannot be read, or not all of it
//!                       ▼
//!                    list: name, type, parent, time, no owner, ──one──▶ Found   ──several──▶ Unclear
//!                          not made by others as the log says
//!                       │ none
//!                       ├── log not whole, and a channel that the bot might not see ──▶ Unclear
//!                       └─────────────────────────────────────────────────────────────▶ Absent
//!
//!  message ──▶ scan since the intent: own, same text, nobody's ──one──▶ Found  ──several, or merely alike──▶ Unclear
//!                       └── none, and the history can be read ─▶ Absent
//!
//!  followup, POST request ──▶ Unclear: nothing could tell them apart
//!  everything else ─────────▶ Absent: doing it again does no harm
//! ```
//!
//! - What was made is found even if it was deleted since: it was made once, and is not made again.
//! - An object is absent only if neither the audit log nor the list shows it. An object that the list shows and the log
//!   does not mention at all is taken for the operation's own: the log lags. One that the log ascribes to others is not.
//! - Discord's audit log and listings may lag behind what was done. Whoever asks has to wait first, at least for as long as
//!   a request may be under way, so that what is not there then will not come.
//! - Clocks differ. An object counts as made by an intent from [`super::PerformConfig::clock_slack`] before it on. The
//!   marker, which cannot be mistaken, is looked for from much further back.
//! - Sending a message again is harmless for a few minutes, since its nonce is enforced; after that the scan is the proof.

mod audit_log;
mod messages;
mod objects;
mod visibility;

use guildhall_actors::ports::ReconcileResult;
use guildhall_core::operation::Payload;
use guildhall_core::operation::payload::Method;

pub(super) use self::messages::{ExpectedMessage, ScanResult, sent_and_pinned};
use self::objects::MatchPolicy;
use super::execution_context::ExecutionContext;
use super::execution_error::ExecutionError;

/// Looks for what an earlier try may have done.
pub(super) async fn reconcile(errand: &ExecutionContext<'_>) -> Result<ReconcileResult, ExecutionError> {
    match &errand.work.payload {
        Payload::CreateRole(payload) => objects::role(errand, &payload.role, payload.key.as_deref(), MatchPolicy::Taken).await,
        Payload::EnsureRole(payload) => objects::role(errand, &payload.role, Some(&payload.key), MatchPolicy::of(payload.adopt)).await,
        Payload::CreateChannel(payload) => objects::channel(errand, &payload.channel, payload.key.as_deref(), MatchPolicy::Taken).await,
        Payload::EnsureChannel(payload) => objects::channel(errand, &payload.channel, Some(&payload.key), MatchPolicy::of(payload.adopt)).await,
        Payload::SendMessage(payload) => messages::sent(errand, payload).await,
        Payload::EnsureMessage(payload) => messages::ensured(errand, payload).await,
        Payload::SendDm(payload) => messages::sent_to_user(errand, payload).await,
        Payload::SendFollowup(_) => Ok(ReconcileResult::Unclear(
            "the followup was sent and not answered, and Discord does not tell followups apart: look whether it is there"
                .to_owned(),
        )),
        Payload::Request(payload) => Ok(match payload.method {
            Method::Post => ReconcileResult::Unclear(
                "the POST was sent and not answered, and only you know what it makes: look whether that is there".to_owned(),
            ),
            Method::Get | Method::Put | Method::Patch | Method::Delete => ReconcileResult::Absent,
        }),
        Payload::DeleteRole(_)
        | Payload::AssignRole(_)
        | Payload::RemoveRole(_)
        | Payload::DeleteChannel(_)
        | Payload::UpdatePermissions(_)
        | Payload::SetMemberRoles(_)
        | Payload::ReplaceOverwrites(_)
        | Payload::Reorder(_)
        | Payload::EditMessage(_)
        | Payload::DeleteMessage(_)
        | Payload::DeferReply(_)
        | Payload::EditOriginal(_)
        | Payload::Read(_) => Ok(ReconcileResult::Absent),
    }
}
