//! Answers to interactions.

use std::fmt;

use super::{
    field_reader::FieldReader,
    message::{BodyRequirement, MessageBody},
    value::{boolean, id, token},
    write::FieldWriter,
};

/// Tells Discord that an interaction's answer is on its way.
#[derive(Clone, PartialEq, Eq)]
pub struct DeferReply {
    /// `interaction_id`.
    pub interaction: u64,
    /// `interaction_token`: a secret, never shown.
    pub token: String,
    /// `ephemeral`: only who asked sees the answer.
    pub ephemeral: bool,
    /// `update`: the answer changes the message that the component belongs to.
    pub update: bool,
}

/// Says something more in answer to an interaction.
#[derive(Clone, PartialEq)]
pub struct SendFollowup {
    /// `interaction_id`.
    pub interaction: u64,
    /// `interaction_token`: a secret, never shown.
    pub token: String,
    /// `ephemeral`: only who asked sees it.
    pub ephemeral: bool,
    /// What it says.
    pub body: MessageBody,
}

/// Changes the first answer to an interaction.
#[derive(Clone, PartialEq)]
pub struct EditOriginal {
    /// `interaction_id`.
    pub interaction: u64,
    /// `interaction_token`: a secret, never shown.
    pub token: String,
    /// What it says from now on.
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
            form.wrong("ephemeral", "must not stand with `update`: the message that changes is seen by whoever saw it");
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
        let body = MessageBody::from_form(form, BodyRequirement::Something);
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
