//! Finds out whether a call whose response was lost took effect. It changes nothing.
//!
//! ```text
//!  role, channel ──▶ marker in the audit log? ──yes──▶ Found
//!                       │ no entry has it, or the log cannot be read completely
//!                       ▼
//!                    list: name, type, parent, time, no owner, ──one──▶ Found   ──several──▶ Unclear
//!                          not created by others according to the log
//!                       │ none
//!                       ├── log not complete, and a channel that the bot may be unable to see ──▶ Unclear
//!                       └─────────────────────────────────────────────────────────────────────▶ Absent
//!
//!  message ──▶ scan since the intent: own, same text, no owner ──one──▶ Found  ──several, or only similar──▶ Unclear
//!                       └── none, and the history can be read ─▶ Absent
//!
//!  followup, POST request ──▶ Unclear: they cannot be told apart
//!  everything else ─────────▶ Absent: safe to repeat
//! ```
//!
//! - A created object is found even if it was deleted since: it was created once, and is not created again.
//! - An object is absent only if neither the audit log nor the list shows it. An object that the list shows and the log
//!   does not mention at all is taken for the operation's own: the log lags. One that the log attributes to others is
//!   not.
//! - Discord's audit log and listings may lag. The caller must wait first, at least for as long as a request may be in
//!   flight, so that what does not exist then will not appear later.
//! - Clocks differ. An object counts as created by an intent from [`crate::discord::executor::ExecutorConfig::clock_slack`] before it on.
//!   The marker, which is unambiguous, is searched for from much further back.
//! - Sending a message again is harmless for a few minutes, because its nonce is enforced; after that the scan is the
//!   proof.

pub(crate) mod audit_log;
pub(crate) mod messages;
pub(crate) mod objects;
pub(crate) mod visibility;

use guildhall_actors::ports::ReconcileResult;
use guildhall_core::operation::Payload;
use guildhall_core::operation::payload::Method;

pub(crate) use self::messages::verify_sent_and_pinned;
use self::objects::MatchPolicy;
use crate::discord::executor::execution_context::ExecutionContext;
use crate::discord::executor::execution_error::ExecutionError;

/// Searches for the effect of an earlier attempt.
pub(crate) async fn reconcile(context: &ExecutionContext<'_>) -> Result<ReconcileResult, ExecutionError> {
    match &context.work.payload {
        Payload::CreateRole(payload) => objects::find_role(context, &payload.role, payload.key.as_deref(), MatchPolicy::AsCreated).await,
        Payload::EnsureRole(payload) => objects::find_role(context, &payload.role, Some(&payload.key), MatchPolicy::of(payload.adopt)).await,
        Payload::CreateChannel(payload) => objects::find_channel(context, &payload.channel, payload.key.as_deref(), MatchPolicy::AsCreated).await,
        Payload::EnsureChannel(payload) => objects::find_channel(context, &payload.channel, Some(&payload.key), MatchPolicy::of(payload.adopt)).await,
        Payload::SendMessage(payload) => messages::reconcile_message(context, payload).await,
        Payload::EnsureMessage(payload) => messages::reconcile_ensured(context, payload).await,
        Payload::SendDm(payload) => messages::reconcile_dm(context, payload).await,
        Payload::SendFollowup(_) => Ok(ReconcileResult::Unclear(
            "the followup was sent without a response, and followups cannot be identified afterwards: check whether it \
             exists"
                .to_owned(),
        )),
        Payload::Request(payload) => Ok(match payload.method {
            Method::Post => ReconcileResult::Unclear(
                "the POST was sent without a response, and only you know what it creates: check whether it exists".to_owned(),
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
