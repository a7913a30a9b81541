//! Payloads of each kind of operation. A `Payload` is always valid.
//!
//! ```text
//!  JSON ──Payload::parse──▶ Payload ──objects──▶ what it reads and writes, for the order in its guild
//!              │               └─────resolve──▶ Payload with ids only, for Discord
//!              └─▶ every invalid field, by name
//! ```
//!
//! Each payload is declared once, with [`record!`](record::record): its type, how it is read and written, and what the
//! schemas of the API say about it.

mod channel;
pub(crate) mod field_reader;
mod format;
mod interaction;
mod interaction_target;
pub(crate) mod location;
mod message;
mod misc;
mod objects;
mod overwrite;
mod parse;
mod path;
mod record;
mod reference;
mod references;
mod rich_content;
mod role;
mod schema;
pub(crate) mod validation;
pub(crate) mod value;
mod write;

#[cfg(test)]
mod tests;

pub use channel::{ChannelType, CreateChannel, DeleteChannel, EnsureChannel, NewChannel};
pub use interaction::{DeferReply, EditOriginal, InteractionToken, SendFollowup};
pub use interaction_target::InteractionTarget;
pub use location::{Location, LocationError};
pub use message::{DeleteMessage, EditMessage, EnsureMessage, MessageBody, SendDm, SendMessage};
pub use misc::{Method, Read, Reorder, ReorderPosition, ReorderTarget, Request};
pub use objects::{Object, Objects};
pub use overwrite::{Overwrite, OverwriteMode, OverwriteTarget, ReplaceOverwrites, UpdatePermissions};
pub use rich_content::MentionType;
pub use role::{AssignRole, CreateRole, DeleteRole, EnsureRole, NewRole, RemoveRole, SetMemberRoles};
pub use schema::{FieldType, ObjectType, PassedPart, Presence, TextType, ValueType, patterns};
pub use validation::{FieldError, InvalidPayload, NullHandling};

use self::{field_reader::FieldReader, record::Record as _, write::FieldWriter};
use super::{OperationKind, QueueKey, Repeatability, kind::operation_kinds};

macro_rules! define_payload {
    ($($kind:ident $name:literal $needs_guild:literal $nulls:ident $repeatability:ident,)+) => {
        /// An operation's payload.
        #[derive(Clone, Debug, PartialEq)]
        pub enum Payload {
            $(
                #[doc = concat!("Of `", $name, "`.")]
                $kind($kind),
            )+
        }

        impl Payload {
            /// Kind of the operation.
            #[must_use]
            pub const fn kind(&self) -> OperationKind {
                match self {
                    $(Self::$kind(_) => OperationKind::$kind,)+
                }
            }

            /// Describes the payloads of a kind.
            #[must_use]
            pub fn describe(kind: OperationKind) -> ObjectType {
                match kind {
                    $(OperationKind::$kind => $kind::describe(),)+
                }
            }

            fn read(kind: OperationKind, form: &mut FieldReader<'_, '_>) -> Option<Self> {
                match kind {
                    $(OperationKind::$kind => $kind::read(form).map(Self::$kind),)+
                }
            }

            fn write(&self, fields: &mut FieldWriter<'_>) {
                match self {
                    $(Self::$kind(payload) => payload.write(fields),)+
                }
            }
        }
    };
}
operation_kinds!(define_payload);

impl Payload {
    /// What a second send would do.
    #[must_use]
    pub const fn repeatability(&self) -> Repeatability {
        if let Self::Request(request) = self {
            match request.method {
                Method::Get | Method::Put | Method::Patch | Method::Delete => Repeatability::Idempotent,
                Method::Post => Repeatability::Once,
            }
        } else {
            self.kind().repeatability()
        }
    }

    /// Whether it only reads, so that no attempt has an effect.
    #[must_use]
    pub const fn only_reads(&self) -> bool {
        matches!(self, Self::Read(_) | Self::Request(Request { method: Method::Get, .. }))
    }

    /// Its queue, if it was submitted for this guild, or for none.
    #[must_use]
    pub fn queue(&self, guild: Option<u64>) -> QueueKey {
        match self {
            Self::DeferReply(DeferReply { interaction, .. })
            | Self::SendFollowup(SendFollowup { interaction, .. })
            | Self::EditOriginal(EditOriginal { interaction, .. }) => QueueKey::interaction(*interaction),
            // Messages to a user keep their order, whichever guild they come from.
            Self::SendDm(SendDm { user, .. }) => QueueKey::user(*user),
            Self::Request(Request { user, .. }) => match (guild, user) {
                (Some(guild), _) => QueueKey::Guild(guild),
                (None, Some(user)) => QueueKey::user(*user),
                (None, None) => QueueKey::application(),
            },
            Self::CreateRole(_)
            | Self::DeleteRole(_)
            | Self::AssignRole(_)
            | Self::RemoveRole(_)
            | Self::CreateChannel(_)
            | Self::DeleteChannel(_)
            | Self::UpdatePermissions(_)
            | Self::SetMemberRoles(_)
            | Self::EnsureRole(_)
            | Self::EnsureChannel(_)
            | Self::ReplaceOverwrites(_)
            | Self::Reorder(_)
            | Self::EnsureMessage(_)
            | Self::SendMessage(_)
            | Self::EditMessage(_)
            | Self::DeleteMessage(_)
            | Self::Read(_) => guild.map_or_else(QueueKey::application, QueueKey::Guild),
        }
    }
}
