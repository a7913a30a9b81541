//! The marker in the guild's audit log.

use guildhall_core::operation::{Failure, FailureClass};
use twilight_model::guild::audit_log::AuditLogEventType;

use super::super::execution_context::ExecutionContext;
use super::super::execution_error::ExecutionError;
use super::super::model::AuditLogPage;

/// The most entries that Discord gives at once.
const PAGE: u16 = 100;

/// What the audit log says of an operation's marker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum MarkerSearch {
    /// It made this.
    Made(u64),
    /// No entry has the marker, and the log is whole from before the intent to now.
    Nothing {
        /// The objects of these entries: other operations, or other users, made them.
        others: Vec<u64>,
    },
    /// The log does not tell.
    Silent,
}

/// Looks for the marker among the entries of this type, the newest first, back to well before the intent. It does not ask
/// for those of the bot alone: a marker is nobody else's, and an absence that rests on a wrong user would be no proof.
pub(super) async fn trace(
    errand: &ExecutionContext<'_>,
    action: AuditLogEventType,
) -> Result<MarkerSearch, ExecutionError> {
    let config = errand.config();
    if errand.now().since(errand.work.intent_at) > config.log_kept {
        return Ok(MarkerSearch::Silent);
    }
    let (first, tag) = (errand.lowest_id(config.log_reach), errand.work.marker.tag());
    let guild = errand.guild()?;
    let (mut before, mut others) = (None, Vec::new());
    for _ in 0..config.most_pages {
        let mut page = errand.builders().audit_log(guild).action_type(action).limit(PAGE);
        if let Some(before) = before {
            page = page.before(before);
        }
        let entries = match errand.look::<AuditLogPage>(page).await {
            Ok(log) => log.audit_log_entries,
            Err(ExecutionError::Failed(Failure { class: FailureClass::Forbidden, .. })) => {
                return Ok(MarkerSearch::Silent);
            }
            Err(stop) => return Err(stop),
        };
        let marked = entries.iter().find(|entry| entry.reason.as_ref().is_some_and(|reason| reason.contains(&tag)));
        if let Some(made) = marked.and_then(|entry| entry.target_id) {
            return Ok(MarkerSearch::Made(made));
        }
        others.extend(entries.iter().filter_map(|entry| entry.target_id));
        // A page that is merely short need not be the last one.
        match entries.iter().map(|entry| entry.id).min() {
            Some(oldest) if oldest >= first => before = Some(oldest),
            Some(_) | None => return Ok(MarkerSearch::Nothing { others }),
        }
    }
    Ok(MarkerSearch::Silent)
}
