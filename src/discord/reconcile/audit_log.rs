//! Searches the guild's audit log for the marker.

use guildhall_core::operation::{Failure, FailureClass};
use twilight_model::guild::audit_log::AuditLogEventType;

use crate::discord::executor::execution_context::ExecutionContext;
use crate::discord::executor::execution_error::ExecutionError;
use crate::discord::executor::model::AuditLogPage;

/// Maximum number of entries in one page of Discord.
const PAGE_SIZE: u16 = 100;

/// Result of the search for an operation's marker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum MarkerSearch {
    /// The operation created this object.
    Found(u64),
    /// No entry has the marker, and the log is complete from before the intent until now.
    Absent {
        /// The objects of these entries: other operations or other users created them.
        others: Vec<u64>,
    },
    /// The log gives no answer.
    Unknown,
}

/// Searches the entries of this type for the marker, newest first, back to well before the intent. The search is not
/// limited to entries of the bot: a marker is unique, and an absence that depends on the right user id would be no
/// proof.
pub(crate) async fn find_marker(
    context: &ExecutionContext<'_>,
    action: AuditLogEventType,
) -> Result<MarkerSearch, ExecutionError> {
    let config = context.config();
    if context.now().since(context.work.intent_at) > config.log_retention {
        return Ok(MarkerSearch::Unknown);
    }
    let (first, tag) = (context.lowest_id(config.log_reach), context.work.marker.tag());
    let guild = context.guild()?;
    let (mut before, mut others) = (None, Vec::new());
    for _ in 0..config.max_pages {
        let mut page = context.builders().audit_log(guild).action_type(action).limit(PAGE_SIZE);
        if let Some(before) = before {
            page = page.before(before);
        }
        let entries = match context.fetch::<AuditLogPage>(page).await {
            Ok(log) => log.audit_log_entries,
            Err(ExecutionError::Failed(Failure { class: FailureClass::Forbidden, .. })) => {
                return Ok(MarkerSearch::Unknown);
            }
            Err(error) => return Err(error),
        };
        let marked = entries.iter().find(|entry| entry.reason.as_ref().is_some_and(|reason| reason.contains(&tag)));
        if let Some(made) = marked.and_then(|entry| entry.target_id) {
            return Ok(MarkerSearch::Found(made));
        }
        others.extend(entries.iter().filter_map(|entry| entry.target_id));
        // A page that is merely short is not necessarily the last one.
        match entries.iter().map(|entry| entry.id).min() {
            Some(oldest) if oldest >= first => before = Some(oldest),
            Some(_) | None => return Ok(MarkerSearch::Absent { others }),
        }
    }
    Ok(MarkerSearch::Unknown)
}
