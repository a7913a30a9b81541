//! What each kind of operation takes.
//!
//! `Payload::parse` of `guildhall-core` decides; this tells. That both say the same is what `tests.rs` is for: it breaks
//! every bound that stands here, and sees what the other one says.

mod channels;
mod messages;
mod rest;
mod roles;

#[cfg(test)]
mod tests;

use guildhall_core::operation::OperationKind;
use serde_json::{Value, json};
use utoipa::openapi::{Ref, schema::ObjectBuilder};

use super::{
    common::{AN_OPERATION, snowflake},
    schema::{Describe, Field, SchemaRef, closed, either, formatted_as, may, must, named, null, or_null, text},
};

/// What there is to say of a kind.
pub(super) struct PayloadDoc {
    /// What it does.
    pub(super) does: &'static str,
    /// Its payload.
    pub(super) shape: ObjectBuilder,
    /// Payloads that it takes, each with what it is for.
    pub(super) examples: Vec<(&'static str, Value)>,
}

/// What there is to say of a kind.
pub(super) fn of(kind: OperationKind) -> PayloadDoc {
    match kind {
        OperationKind::CreateRole => roles::create(),
        OperationKind::EnsureRole => roles::ensure(),
        OperationKind::DeleteRole => roles::delete(),
        OperationKind::AssignRole => roles::assign(),
        OperationKind::RemoveRole => roles::remove(),
        OperationKind::SetMemberRoles => roles::set(),
        OperationKind::CreateChannel => channels::create(),
        OperationKind::EnsureChannel => channels::ensure(),
        OperationKind::DeleteChannel => channels::delete(),
        OperationKind::UpdatePermissions => channels::update_permissions(),
        OperationKind::ReplaceOverwrites => channels::replace_overwrites(),
        OperationKind::Reorder => channels::reorder(),
        OperationKind::SendMessage => messages::send(),
        OperationKind::EnsureMessage => messages::ensure(),
        OperationKind::EditMessage => messages::edit(),
        OperationKind::DeleteMessage => messages::delete(),
        OperationKind::SendDm => messages::send_dm(),
        OperationKind::DeferReply => rest::defer_reply(),
        OperationKind::SendFollowup => rest::send_followup(),
        OperationKind::EditOriginal => rest::edit_original(),
        OperationKind::Read => rest::read(),
        OperationKind::Request => rest::request(),
    }
}

/// What a kind's schemas are called: `CreateRole`.
pub(super) fn title(kind: OperationKind) -> String {
    let capital = |word: &str| word.get(..1).map_or_else(String::new, str::to_uppercase) + word.get(1..).unwrap_or("");
    kind.name().split('_').map(capital).collect()
}

/// Every schema of these files, by its name.
pub(super) fn schemas() -> Vec<(String, SchemaRef)> {
    let parts = [Nulls::NotSaid, Nulls::Refused].into_iter().flat_map(|nulls| {
        [
            (nulls.title("Reference"), reference_shape(nulls)),
            (nulls.title("Overwrite"), channels::overwrite(nulls)),
            (nulls.title("AllowedMentions"), messages::allowed_mentions(nulls).into()),
        ]
    });
    let payloads = OperationKind::ALL.map(|kind| {
        let PayloadDoc { does, shape, examples } = of(kind);
        let examples = examples.into_iter().map(|(_, example)| example);
        (format!("{}Payload", title(kind)), shape.says(does).examples(examples).into())
    });
    parts.chain([("Embed".to_owned(), messages::embed().into())]).chain(payloads).collect()
}

/// What `null` means in a kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Nulls {
    /// The same as leaving a field out.
    NotSaid,
    /// It could mean two things where what is left out stays as it is, and so is refused.
    Refused,
}

impl Nulls {
    /// A field that may be left out.
    fn may(self, name: &'static str, shape: impl Into<SchemaRef>) -> Field {
        match self {
            Self::NotSaid => may(name, or_null(shape)),
            Self::Refused => may(name, shape),
        }
    }

    /// A field that must not say anything, because another one does.
    fn not(self, name: &'static str) -> Option<Field> {
        match self {
            Self::NotSaid => Some(may(name, null())),
            Self::Refused => None,
        }
    }

    /// What something with such fields is called.
    fn title(self, base: &str) -> String {
        match self {
            Self::NotSaid => base.to_owned(),
            Self::Refused => format!("Strict{base}"),
        }
    }

    /// An object of Discord: its id, or what is known of it before it exists.
    fn reference(self) -> Ref {
        named(&self.title("Reference"))
    }
}

fn reference_shape(nulls: Nulls) -> SchemaRef {
    let key = must("key", named("ManagedKey").says("The key under which this guild's objects are managed."));
    let made = must("operation", formatted_as("uuid").says("What this operation of the guild makes."));
    let by_key = closed([key].into_iter().chain(nulls.not("operation"))).title(Some("By its key"));
    let by_operation = closed([made].into_iter().chain(nulls.not("key"))).title(Some("By what makes it"));
    either([snowflake().into(), by_key.into(), by_operation.into()])
        .says("A role, a channel or a message: its id, `{\"key\": \"…\"}` or `{\"operation\": \"…\"}`.")
        .examples([json!("1571715189416398850"), json!({"key": "mods"}), json!({"operation": AN_OPERATION})])
        .into()
}

/// Permissions, as Discord writes them.
fn permissions() -> ObjectBuilder {
    text().pattern(Some(PERMISSIONS)).says("Permissions: one number, as a string of digits.").examples(["1024"])
}

const PERMISSIONS: &str = "^(?:0|[1-9][0-9]{0,18})$";
/// A name that Discord leaves as it is.
const NAME: &str = "^\\S(?:[\\s\\S]*\\S)?$";
