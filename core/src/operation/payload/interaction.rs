//! Responses to interactions.

use std::{fmt, ops::Deref};

use super::{
    field_reader::FieldReader,
    format::{BOOLEAN, ID, Plain, text},
    message::{MessageBody, has_change, has_content},
    record::{defaulted, flattened, optional, record, required},
    schema::{TextType, ValueType, patterns},
    value, write,
};

/// The token of an interaction. It is secret, and redacted in debug output.
#[derive(Clone, PartialEq, Eq)]
pub struct InteractionToken(String);

record! {
    /// Defers the response to an interaction.
    pub struct DeferReply {
        /// An interaction that this deployment has received in this guild within the last 15 minutes; others require a
        /// key with the scope `interactions:any`.
        interaction: u64 = required("interaction_id", ID),
        token: InteractionToken = required("interaction_token", TOKEN),
        /// Whether only the user of the interaction sees the response.
        ephemeral: bool = defaulted("ephemeral", BOOLEAN, false),
        /// The response edits the message of the component. Not with `ephemeral`.
        update: bool = defaulted("update", BOOLEAN, false),
    }
    check = reject_ephemeral_update;
}

record! {
    /// Sends another response to an interaction. If the outcome is unknown it is not sent again: `needs_review`.
    pub struct SendFollowup {
        /// An interaction that this deployment has received in this guild within the last 15 minutes; others require a
        /// key with the scope `interactions:any`.
        interaction: u64 = required("interaction_id", ID),
        token: InteractionToken = required("interaction_token", TOKEN),
        /// Whether only the user of the interaction sees the response.
        ephemeral: bool = defaulted("ephemeral", BOOLEAN, false),
        body: MessageBody = flattened().checked(has_content),
    }
}

record! {
    /// Edits the first response to an interaction.
    pub struct EditOriginal {
        /// An interaction that this deployment has received in this guild within the last 15 minutes; others require a
        /// key with the scope `interactions:any`.
        interaction: u64 = required("interaction_id", ID),
        token: InteractionToken = required("interaction_token", TOKEN),
        /// Edits only a response that is still deferred ("thinking…"). Any other response stays as it is, and the
        /// operation succeeds.
        only_if_deferred: bool = defaulted("only_if_deferred", BOOLEAN, false),
        /// Text that replaces a response that is still deferred if Discord rejects this message. The operation fails
        /// nevertheless.
        if_rejected: Option<String> = optional("if_rejected", text(1, 2000)),
        body: MessageBody = flattened().checked(has_change),
    }
}

const TOKEN: Plain<InteractionToken> = Plain {
    read: |value, at| value::token(value, at).map(InteractionToken),
    write: |out, token| write::text(out, token),
    describe: || {
        ValueType::Text(TextType {
            description: "The token of the interaction. It is secret, and redacted in responses.",
            length: Some((1, value::MAX_TOKEN_CHARS)),
            pattern: Some(patterns::TOKEN),
            ..TextType::ANY
        })
    },
};

fn reject_ephemeral_update(form: &mut FieldReader<'_, '_>) {
    let is_true = |name| form.valid(name).and_then(serde_json::Value::as_bool) == Some(true);
    if is_true("ephemeral") && is_true("update") {
        form.invalid(
            "ephemeral",
            "must not be combined with `update`: the updated message stays visible to everyone who could see it",
        );
    }
}

impl Deref for InteractionToken {
    type Target = str;

    fn deref(&self) -> &str {
        &self.0
    }
}

impl From<String> for InteractionToken {
    fn from(token: String) -> Self {
        Self(token)
    }
}

impl fmt::Debug for InteractionToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("InteractionToken(redacted)")
    }
}
