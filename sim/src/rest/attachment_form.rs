//! The field `attachments` of a message, together with the files of the call.

use super::call::{Call, Upload};
use super::error::ApiError;
use super::form::{Field, Form};
use crate::id::Snowflake;
use crate::world::World;
use crate::world::attachment::{MAX_ATTACHMENTS, NewAttachment};
use crate::world::message::Message;

/// The field as it was sent.
#[derive(Debug)]
pub(super) struct AttachmentsForm(Field<Vec<AttachmentForm>>);

/// One of its entries: an attachment to keep, by its id, or a file of the call, by its number.
#[derive(Clone, Debug)]
struct AttachmentForm {
    id: Snowflake,
    filename: Option<String>,
    description: Option<String>,
}

/// The attachments that a message has after the form is applied.
pub(super) struct AttachmentPlan {
    /// Those that stay, each with its new description if one is given.
    kept: Vec<(Snowflake, Option<String>)>,
    new: Vec<NewAttachment>,
}

impl AttachmentsForm {
    /// Reads the field; errors are added to the form.
    pub(super) fn read(form: &mut Form<'_>) -> Self {
        Self(form.list("attachments", MAX_ATTACHMENTS).map(|given| {
            let entries = given.iter().enumerate().filter_map(|(index, entry)| {
                form.nested(&format!("attachments.{index}"), entry, |form| {
                    let id = form.snowflake("id");
                    let id = form.required("id", id)?;
                    let filename = form.string("filename", 1..=1_024).value().map(str::to_owned);
                    let description = form.string("description", 0..=1_024).value().map(str::to_owned);
                    Some(AttachmentForm { id, filename, description })
                })?
            });
            entries.collect()
        }))
    }

    /// Decides which attachments of the message stay, and which files are added to it.
    pub(super) fn plan(self, call: &Call<'_>, message: &Message) -> Result<AttachmentPlan, ApiError> {
        // Without the field, an edit adds files and keeps all attachments.
        let keeps_all = matches!(self.0, Field::Absent);
        let entries = self.0.value().unwrap_or_default();
        let is_existing = |id: Snowflake| message.attachments.iter().any(|attachment| attachment.id == id);
        let files: Vec<(u64, &Upload)> =
            (0..).zip(&call.files).map(|(index, file)| (file_number(&file.field).unwrap_or(index), file)).collect();
        let is_uploaded = |id: Snowflake| files.iter().any(|(number, _)| *number == id.get());
        if let Some(index) = entries.iter().position(|entry| !is_existing(entry.id) && !is_uploaded(entry.id)) {
            let message = "The file of this attachment was not uploaded";
            return Err(ApiError::form(&format!("attachments.{index}"), "ATTACHMENT_NOT_FOUND", message));
        }
        let new = files.iter().map(|(number, file)| {
            let entry = entries.iter().find(|entry| entry.id.get() == *number);
            NewAttachment {
                filename: entry.and_then(|entry| entry.filename.clone()).unwrap_or_else(|| file.filename.clone()),
                content_type: file.content_type.clone(),
                description: entry.and_then(|entry| entry.description.clone()),
                content: file.content.clone(),
            }
        });
        let new = new.collect();
        let kept = if keeps_all {
            message.attachments.iter().map(|attachment| (attachment.id, None)).collect()
        } else {
            entries
                .into_iter()
                .filter(|entry| is_existing(entry.id))
                .map(|entry| (entry.id, entry.description))
                .collect()
        };
        let plan = AttachmentPlan { kept, new };
        if plan.count() > MAX_ATTACHMENTS { Err(ApiError::MAX_ATTACHMENTS) } else { Ok(plan) }
    }
}

impl AttachmentPlan {
    pub(super) fn count(&self) -> usize {
        self.kept.len() + self.new.len()
    }

    pub(super) fn apply(self, world: &mut World, message: &mut Message) {
        let is_kept = |id: Snowflake| self.kept.iter().any(|(kept, _)| *kept == id);
        for removed in message.attachments.extract_if(.., |attachment| !is_kept(attachment.id)) {
            world.remove_file(removed.id);
        }
        for (id, description) in self.kept {
            let kept = message.attachments.iter_mut().find(|attachment| attachment.id == id);
            if let (Some(attachment), Some(description)) = (kept, description) {
                attachment.description = Some(description);
            }
        }
        self.new.into_iter().for_each(|new| world.attach(message, new));
    }
}

/// The number in the name of a file's part: `files[2]`, or `file2`, as older clients write it.
fn file_number(field: &str) -> Option<u64> {
    let number = field.strip_prefix("files[").and_then(|rest| rest.strip_suffix(']'));
    number.or_else(|| field.strip_prefix("file"))?.parse().ok()
}
