//! Responses to interactions.

use std::fmt;

use super::{
    field_reader::FieldReader,
    message::{BodyRequirement, MessageBody},
    value::{boolean, id, token},
    write::FieldWriter,
};

/// Acknowledges an interaction; the response follows.
#[derive(Clone, PartialEq, Eq)]
pub struct DeferReply {
    /// `interaction_id`.
    pub interaction: u64,
    /// `interaction_token`: a secret, redacted in debug output.
    pub token: String,
    /// `ephemeral`: only the user of the interaction sees the response.
    pub ephemeral: bool,
    /// `update`: the response changes the message that the component belongs to.
    pub update: bool,
}

/// Sends a followup message to an interaction.
#[derive(Clone, PartialEq)]
pub struct SendFollowup {
    /// `interaction_id`.
    pub interaction: u64,
    /// `interaction_token`: a secret, redacted in debug output.
    pub token: String,
    /// `ephemeral`: only the user of the interaction sees it.
    pub ephemeral: bool,
    /// Content of the message.
    pub body: MessageBody,
}

/// Edits the first response to an interaction.
#[derive(Clone, PartialEq)]
pub struct EditOriginal {
    /// `interaction_id`.
    pub interaction: u64,
    /// `interaction_token`: a secret, redacted in debug output.
    pub token: String,
    /// New content.
    pub body: MessageBody,
}

fn interaction(form: &mut FieldReader<'_, '_>) -> Option<(u64, String)> {
    let interaction = form.required("interaction_id", id);
    let token = form.required("interaction_token", token);
    Some((interaction?, token?))
}

fn write_interaction(fields: &mut FieldWriter<'_>, interaction: u64, token: &str) {
    fields.quoted("interaction_id", interaction);
    fields.text("interaction_token", token);
}

impl DeferReply {
    pub(super) fn from_form(form: &mut FieldReader<'_, '_>) -> Option<Self> {
        let interaction = interaction(form);
        let ephemeral = form.optional("ephemeral", boolean).unwrap_or(false);
        let update = form.optional("update", boolean).unwrap_or(false);
        if ephemeral && update {
            form.invalid(
                "ephemeral",
                "must not be combined with `update`: the updated message stays visible to everyone who could see it",
            );
        }
        let (interaction, token) = interaction?;
        Some(Self { interaction, token, ephemeral, update })
    }

    pub(super) fn write(&self, fields: &mut FieldWriter<'_>) {
        write_interaction(fields, self.interaction, &self.token);
        fields.plain("ephemeral", self.ephemeral);
        fields.plain("update", self.update);
    }
}

impl SendFollowup {
    pub(super) fn from_form(form: &mut FieldReader<'_, '_>) -> Option<Self> {
        let interaction = interaction(form);
        let ephemeral = form.optional("ephemeral", boolean).unwrap_or(false);
        let body = MessageBody::from_form(form, BodyRequirement::VisibleContent);
        let (interaction, token) = interaction?;
        Some(Self { interaction, token, ephemeral, body })
    }

    pub(super) fn write(&self, fields: &mut FieldWriter<'_>) {
        write_interaction(fields, self.interaction, &self.token);
        fields.plain("ephemeral", self.ephemeral);
        self.body.write(fields);
    }
}

impl EditOriginal {
    pub(super) fn from_form(form: &mut FieldReader<'_, '_>) -> Option<Self> {
        let interaction = interaction(form);
        let body = MessageBody::from_form(form, BodyRequirement::Change);
        let (interaction, token) = interaction?;
        Some(Self { interaction, token, body })
    }

    pub(super) fn write(&self, fields: &mut FieldWriter<'_>) {
        write_interaction(fields, self.interaction, &self.token);
        self.body.write(fields);
    }
}

impl fmt::Debug for DeferReply {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DeferReply")
            .field("interaction", &self.interaction)
            .field("ephemeral", &self.ephemeral)
            .field("update", &self.update)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for SendFollowup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SendFollowup")
            .field("interaction", &self.interaction)
            .field("ephemeral", &self.ephemeral)
            .field("body", &self.body)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for EditOriginal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EditOriginal")
            .field("interaction", &self.interaction)
            .field("body", &self.body)
            .finish_non_exhaustive()
    }
}
