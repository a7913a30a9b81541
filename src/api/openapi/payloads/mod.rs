//! The payload of each kind of operation.
//!
//! `Payload::parse` of `guildhall-core` decides what is valid; this describes it. `tests.rs` checks that both agree: it
//! violates every limit that is described here, and compares the result.

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
    schema::{
        Describe, Field, SchemaRef, closed, formatted_as, null, one_of, optional, or_null, required, schema_ref, text,
    },
};

/// The documentation of a kind.
pub(crate) struct PayloadDoc {
    /// What the kind does.
    pub(crate) description: &'static str,
    /// Its payload.
    pub(crate) shape: ObjectBuilder,
    /// Valid payloads, each with a summary.
    pub(crate) examples: Vec<(&'static str, Value)>,
}

/// The documentation of a kind.
pub(crate) fn payload_doc(kind: OperationKind) -> PayloadDoc {
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

/// The base name of a kind's schemas: `CreateRole`.
pub(crate) fn title(kind: OperationKind) -> String {
    let capital = |word: &str| word.get(..1).map_or_else(String::new, str::to_uppercase) + word.get(1..).unwrap_or("");
    kind.name().split('_').map(capital).collect()
}

/// All schemas of these files, by name.
pub(crate) fn schemas() -> Vec<(String, SchemaRef)> {
    let parts = [Nulls::Omitted, Nulls::Rejected].into_iter().flat_map(|nulls| {
        [
            (nulls.title("Reference"), reference_shape(nulls)),
            (nulls.title("Overwrite"), channels::overwrite(nulls)),
            (nulls.title("AllowedMentions"), messages::allowed_mentions(nulls).into()),
        ]
    });
    let payloads = OperationKind::ALL.map(|kind| {
        let PayloadDoc { description: does, shape, examples } = payload_doc(kind);
        let examples = examples.into_iter().map(|(_, example)| example);
        (format!("{}Payload", title(kind)), shape.describe(does).examples(examples).into())
    });
    parts.chain([("Embed".to_owned(), messages::embed().into())]).chain(payloads).collect()
}

/// What `null` means in a kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Nulls {
    /// The same as an omitted field.
    Omitted,
    /// Rejected, because it is ambiguous where omitted fields stay unchanged.
    Rejected,
}

impl Nulls {
    /// An optional field.
    fn optional(self, name: &'static str, shape: impl Into<SchemaRef>) -> Field {
        match self {
            Self::Omitted => optional(name, or_null(shape)),
            Self::Rejected => optional(name, shape),
        }
    }

    /// A field that must not have a value, because another one has.
    fn excluded(self, name: &'static str) -> Option<Field> {
        match self {
            Self::Omitted => Some(optional(name, null())),
            Self::Rejected => None,
        }
    }

    /// The name of a schema with such fields.
    fn title(self, base: &str) -> String {
        match self {
            Self::Omitted => base.to_owned(),
            Self::Rejected => format!("Strict{base}"),
        }
    }

    /// A reference to a Discord object: its id, or a name that it has before it exists.
    fn reference(self) -> Ref {
        schema_ref(&self.title("Reference"))
    }
}

fn reference_shape(nulls: Nulls) -> SchemaRef {
    let key = required("key", schema_ref("ManagedKey").describe("The key of a managed object of this guild."));
    let made =
        required("operation", formatted_as("uuid").describe("The object that this operation of the guild creates."));
    let by_key = closed([key].into_iter().chain(nulls.excluded("operation"))).title(Some("By key"));
    let by_operation = closed([made].into_iter().chain(nulls.excluded("key"))).title(Some(
        "By the operation that creates \
        it",
    ));
    one_of([snowflake().into(), by_key.into(), by_operation.into()])
        .describe("A role, a channel or a message: its id, `{\"key\": \"…\"}` or `{\"operation\": \"…\"}`.")
        .examples([json!("1571715189416398850"), json!({"key": "mods"}), json!({"operation": AN_OPERATION})])
        .into()
}

/// Permissions, as Discord writes them.
fn permissions() -> ObjectBuilder {
    text()
        .pattern(Some(PERMISSIONS))
        .describe("Permissions as a bit set: a number, as a string of digits.")
        .examples(["1024"])
}

const PERMISSIONS: &str = "^(?:0|[1-9][0-9]{0,18})$";
/// A name that Discord does not trim.
const NAME: &str = "^\\S(?:[\\s\\S]*\\S)?$";
