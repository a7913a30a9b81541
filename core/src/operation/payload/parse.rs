//! Converts JSON to payloads and back.

use serde_json::Value;

use super::{
    AssignRole, CreateChannel, CreateRole, DeferReply, DeleteChannel, DeleteMessage, DeleteRole, EditMessage,
    EditOriginal, EnsureChannel, EnsureMessage, EnsureRole, InvalidPayload, Payload, Read, RemoveRole, Reorder,
    ReplaceOverwrites, Request, SendDm, SendFollowup, SendMessage, SetMemberRoles, UpdatePermissions,
    field_reader::{FieldReader, object},
    validation::{ErrorCollector, NullHandling},
    write,
};
use crate::operation::OperationKind;

/// Maximum length of a payload, as written by [`Payload::to_json`].
const MAX_PAYLOAD_BYTES: usize = 64 * 1024;
/// Maximum nesting depth of objects and lists.
const MAX_DEPTH: usize = 32;

impl Payload {
    /// Reads the payload of an operation that is submitted for this guild, or for none.
    ///
    /// # Errors
    ///
    /// When it is invalid: lists every invalid field, not only the first. A payload that is nested too deeply is not
    /// examined further.
    pub fn parse(kind: OperationKind, value: &Value, guild: Option<u64>) -> Result<Self, InvalidPayload> {
        let mut findings = ErrorCollector::new(null_handling(kind));
        let too_large = || format!("must be at most {MAX_PAYLOAD_BYTES} bytes of JSON");
        match SizeCheck::of(value) {
            SizeCheck::TooDeep => {
                findings.top().invalid::<()>(format!("must not be nested more than {MAX_DEPTH} levels deep"));
                return Err(findings.into_invalid());
            }
            SizeCheck::TooLarge => {
                findings.top().invalid::<()>(too_large());
            }
            SizeCheck::Fits => {}
        }
        if guild.is_none() && needs_guild(kind) {
            findings.top().invalid::<()>(format!("of `{}` needs a guild: submit it for one", kind.name()));
        }
        let read = object(value, &mut findings.top(), |form| Self::from_form(kind, form, guild));
        match read {
            Some(payload) if findings.is_empty() => {
                if payload.to_json().len() <= MAX_PAYLOAD_BYTES {
                    return Ok(payload);
                }
                findings.top().invalid::<()>(too_large());
            }
            Some(_) => {}
            None => debug_assert!(!findings.is_empty(), "a payload that is not read has errors"),
        }
        Err(findings.into_invalid())
    }

    fn from_form(kind: OperationKind, form: &mut FieldReader<'_, '_>, guild: Option<u64>) -> Option<Self> {
        match kind {
            OperationKind::CreateRole => CreateRole::from_form(form).map(Self::CreateRole),
            OperationKind::DeleteRole => DeleteRole::from_form(form).map(Self::DeleteRole),
            OperationKind::AssignRole => AssignRole::from_form(form).map(Self::AssignRole),
            OperationKind::RemoveRole => RemoveRole::from_form(form).map(Self::RemoveRole),
            OperationKind::CreateChannel => CreateChannel::from_form(form).map(Self::CreateChannel),
            OperationKind::DeleteChannel => DeleteChannel::from_form(form).map(Self::DeleteChannel),
            OperationKind::UpdatePermissions => UpdatePermissions::from_form(form).map(Self::UpdatePermissions),
            OperationKind::SetMemberRoles => SetMemberRoles::from_form(form).map(Self::SetMemberRoles),
            OperationKind::EnsureRole => EnsureRole::from_form(form).map(Self::EnsureRole),
            OperationKind::EnsureChannel => EnsureChannel::from_form(form).map(Self::EnsureChannel),
            OperationKind::ReplaceOverwrites => ReplaceOverwrites::from_form(form).map(Self::ReplaceOverwrites),
            OperationKind::Reorder => Reorder::from_form(form).map(Self::Reorder),
            OperationKind::EnsureMessage => EnsureMessage::from_form(form).map(Self::EnsureMessage),
            OperationKind::SendMessage => SendMessage::from_form(form).map(Self::SendMessage),
            OperationKind::EditMessage => EditMessage::from_form(form).map(Self::EditMessage),
            OperationKind::DeleteMessage => DeleteMessage::from_form(form).map(Self::DeleteMessage),
            OperationKind::SendDm => SendDm::from_form(form).map(Self::SendDm),
            OperationKind::DeferReply => DeferReply::from_form(form).map(Self::DeferReply),
            OperationKind::SendFollowup => SendFollowup::from_form(form).map(Self::SendFollowup),
            OperationKind::EditOriginal => EditOriginal::from_form(form).map(Self::EditOriginal),
            OperationKind::Read => Read::from_form(form).map(Self::Read),
            OperationKind::Request => Request::from_form(form, guild).map(Self::Request),
        }
    }

    /// The payload as JSON: the same text for the same payload, whatever the order of its fields was, with defaults
    /// filled in where they are unambiguous.
    #[must_use]
    pub fn to_json(&self) -> String {
        let mut out = String::new();
        write::object(&mut out, |fields| match self {
            Self::CreateRole(payload) => payload.write(fields),
            Self::DeleteRole(payload) => payload.write(fields),
            Self::AssignRole(payload) => payload.write(fields),
            Self::RemoveRole(payload) => payload.write(fields),
            Self::CreateChannel(payload) => payload.write(fields),
            Self::DeleteChannel(payload) => payload.write(fields),
            Self::UpdatePermissions(payload) => payload.write(fields),
            Self::SetMemberRoles(payload) => payload.write(fields),
            Self::EnsureRole(payload) => payload.write(fields),
            Self::EnsureChannel(payload) => payload.write(fields),
            Self::ReplaceOverwrites(payload) => payload.write(fields),
            Self::Reorder(payload) => payload.write(fields),
            Self::EnsureMessage(payload) => payload.write(fields),
            Self::SendMessage(payload) => payload.write(fields),
            Self::EditMessage(payload) => payload.write(fields),
            Self::DeleteMessage(payload) => payload.write(fields),
            Self::SendDm(payload) => payload.write(fields),
            Self::DeferReply(payload) => payload.write(fields),
            Self::SendFollowup(payload) => payload.write(fields),
            Self::EditOriginal(payload) => payload.write(fields),
            Self::Read(payload) => payload.write(fields),
            Self::Request(payload) => payload.write(fields),
        });
        out
    }
}

/// How a kind treats `null`: where omitted fields stay unchanged, `null` is ambiguous.
const fn null_handling(kind: OperationKind) -> NullHandling {
    match kind {
        OperationKind::EnsureRole
        | OperationKind::EnsureChannel
        | OperationKind::EnsureMessage
        | OperationKind::EditMessage
        | OperationKind::EditOriginal => NullHandling::Rejected,
        OperationKind::CreateRole
        | OperationKind::DeleteRole
        | OperationKind::AssignRole
        | OperationKind::RemoveRole
        | OperationKind::CreateChannel
        | OperationKind::DeleteChannel
        | OperationKind::UpdatePermissions
        | OperationKind::SetMemberRoles
        | OperationKind::ReplaceOverwrites
        | OperationKind::Reorder
        | OperationKind::SendMessage
        | OperationKind::DeleteMessage
        | OperationKind::SendDm
        | OperationKind::DeferReply
        | OperationKind::SendFollowup
        | OperationKind::Read
        | OperationKind::Request => NullHandling::Omitted,
    }
}

/// Whether a kind needs a guild.
const fn needs_guild(kind: OperationKind) -> bool {
    match kind {
        OperationKind::CreateRole
        | OperationKind::DeleteRole
        | OperationKind::AssignRole
        | OperationKind::RemoveRole
        | OperationKind::CreateChannel
        | OperationKind::DeleteChannel
        | OperationKind::UpdatePermissions
        | OperationKind::SetMemberRoles
        | OperationKind::EnsureRole
        | OperationKind::EnsureChannel
        | OperationKind::ReplaceOverwrites
        | OperationKind::Reorder
        | OperationKind::EnsureMessage
        | OperationKind::SendMessage
        | OperationKind::EditMessage
        | OperationKind::DeleteMessage => true,
        OperationKind::SendDm
        | OperationKind::DeferReply
        | OperationKind::SendFollowup
        | OperationKind::EditOriginal
        | OperationKind::Read
        | OperationKind::Request => false,
    }
}

/// Whether a value is small enough to be examined.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SizeCheck {
    Fits,
    TooLarge,
    TooDeep,
}

impl SizeCheck {
    /// Iterates without recursion, so that no depth can exhaust the stack. The size is a lower bound.
    fn of(value: &Value) -> Self {
        let mut remaining = vec![(value, 1)];
        let mut size = 0;
        while let Some((value, depth)) = remaining.pop() {
            size += 1;
            match value {
                Value::Null | Value::Bool(_) | Value::Number(_) => {}
                Value::String(text) => size += text.len(),
                Value::Array(_) | Value::Object(_) if depth > MAX_DEPTH => return Self::TooDeep,
                Value::Array(items) => remaining.extend(items.iter().map(|item| (item, depth + 1))),
                Value::Object(map) => {
                    size += map.keys().map(String::len).sum::<usize>();
                    remaining.extend(map.values().map(|value| (value, depth + 1)));
                }
            }
        }
        if size > MAX_PAYLOAD_BYTES { Self::TooLarge } else { Self::Fits }
    }
}
