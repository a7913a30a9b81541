//! Checks whether the effect of an operation that will not be sent again is in place. It changes nothing.
//!
//! | kind | reads | in place if |
//! |---|---|---|
//! | `assign_role`, `remove_role`, `set_member_roles` | the member | it has the role, does not have it, has exactly these roles |
//! | `delete_role`, `delete_channel`, `delete_message` | the roles, the channel, the message | it is gone |
//! | `update_permissions`, `replace_overwrites` | the channel | it has these overwrites |
//! | `reorder` | the list | the objects are in this order |
//! | `edit_message`, `edit_original` | the message | it has this content |
//! | `ensure_…` | the object of its key | it is as requested; without one, as `create_…` and `send_message` |
//! | `create_…`, `send_message`, `send_dm` | see [`crate::discord::reconcile`] | it was created |
//! | `defer_reply` | the first response | it exists |
//! | `send_followup`, `request` that writes | | unknown: Discord has no record of it |
//! | `read`, `request` that reads | | never: it has no effect |

use guildhall_actors::ports::{ExecutionOutput, ReconcileResult};
use guildhall_core::operation::Payload;
use guildhall_core::operation::payload::{Method, Request};

use super::execution_context::ExecutionContext;
use super::execution_error::ExecutionError;
use super::{channels, interactions, messages, overwrites, reorder, roles};
use crate::discord::reconcile;

/// Checks whether the effect is in place.
pub(crate) async fn verify(context: &ExecutionContext<'_>) -> Result<ReconcileResult, ExecutionError> {
    match &context.work.payload {
        Payload::AssignRole(payload) => roles::verify_assigned(context, payload).await,
        Payload::RemoveRole(payload) => roles::verify_removed(context, payload).await,
        Payload::SetMemberRoles(payload) => roles::verify_set(context, payload).await,
        Payload::DeleteRole(payload) => roles::verify_deleted(context, payload).await,
        Payload::EnsureRole(payload) => roles::verify_ensured(context, payload).await,
        Payload::DeleteChannel(payload) => channels::verify_deleted(context, payload).await,
        Payload::EnsureChannel(payload) => channels::verify_ensured(context, payload).await,
        Payload::UpdatePermissions(payload) => overwrites::verify_updated(context, payload).await,
        Payload::ReplaceOverwrites(payload) => overwrites::verify_replaced(context, payload).await,
        Payload::Reorder(payload) => reorder::verify_reordered(context, payload).await,
        Payload::EditMessage(payload) => messages::verify_edited(context, payload).await,
        Payload::DeleteMessage(payload) => messages::verify_deleted(context, payload).await,
        Payload::EnsureMessage(payload) => messages::verify_ensured(context, payload).await,
        Payload::DeferReply(payload) => interactions::verify_deferred(context, payload).await,
        Payload::EditOriginal(payload) => interactions::verify_edited(context, payload).await,
        Payload::CreateRole(_)
        | Payload::CreateChannel(_)
        | Payload::SendMessage(_)
        | Payload::SendDm(_)
        | Payload::SendFollowup(_) => reconcile::reconcile(context).await,
        Payload::Read(_) | Payload::Request(Request { method: Method::Get, .. }) => Ok(ReconcileResult::Absent),
        Payload::Request(Request { method, .. }) => Ok(ReconcileResult::Unclear(format!(
            "the {} request was sent, but its outcome is unknown, and only its author knows what it changes: check \
             whether it took effect",
            method.name()
        ))),
    }
}

/// Returns `Found` if the effect is in place, else `Absent`.
pub(crate) fn found_if(in_place: bool, done: impl FnOnce() -> ExecutionOutput) -> ReconcileResult {
    if in_place { ReconcileResult::Found(done()) } else { ReconcileResult::Absent }
}
