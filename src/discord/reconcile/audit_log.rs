//! Searches the guild's audit log for the marker.

use guildhall_core::operation::{Failure, FailureClass};
use twilight_model::guild::audit_log::AuditLogEventType;

use crate::discord::executor::execution_context::ExecutionContext;
use crate::discord::executor::execution_error::ExecutionError;
use crate::discord::executor::model::AuditLogPage;

/// Maximum number of entries in one page of Discord.
const PAGE: u16 = 100;

/// Result of the search for an operation's marker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum MarkerSearch {
    /// The operation created this object.
    Made(u64),
    /// No entry has the marker, and the log is complete from before the intent until now.
    Nothing {
        /// The objects of these entries: other operations or other users created them.
        others: Vec<u64>,
    },
    /// The log gives no answer.
    Silent,
}

/// Searches the entries of this type for the marker, newest first, back to well before the intent. The search is not
/// limited to entries of the bot: a marker is unique, and an absence that depends on the right user id would be no
/// proof.
pub(crate) async fn trace(
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
        // A page that is merely short is not necessarily the last one.
        match entries.iter().map(|entry| entry.id).min() {
            Some(oldest) if oldest >= first => before = Some(oldest),
            Some(_) | None => return Ok(MarkerSearch::Nothing { others }),
        }
    }
    Ok(MarkerSearch::Silent)
}
