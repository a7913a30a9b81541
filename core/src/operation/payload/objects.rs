//! What an operation reads and writes. An operation may pass another only if the result is the same.

use super::{
    CreateChannel, CreateRole, EnsureChannel, EnsureMessage, EnsureRole, Method, NewChannel, Overwrite,
    OverwriteTarget, Payload, SendMessage,
};
use crate::operation::{ManagedKind, OperationId, Reference};

/// An object that an operation reads or writes.
///
/// One object has several names: its id, its key, and the operations that created or ensured it. Which names belong
/// together is unknown until they are resolved, and may change until then. So two names *may be one object* unless it
/// is certain that they are not: waiting without need only costs time, but passing a conflicting operation is an error.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Object {
    /// An existing object, by its id.
    Id(ManagedKind, u64),
    /// An object that may exist already, by its key.
    Key(ManagedKind, String),
    /// An object that may exist already, as created or ensured by this operation.
    OfOperation(ManagedKind, OperationId),
    /// The object that this operation will create: its id is unknown, and only this operation names it.
    New(ManagedKind, OperationId),
    /// An object that will be created, by its future key.
    NewKey(ManagedKind, String),
    /// All objects of the kind in a guild.
    All(ManagedKind, u64),
    /// A member of the guild, with their roles.
    Member(u64),
    /// The members that have a role.
    Holders(Reference),
    /// The direct messages to a user.
    DirectMessages(u64),
    /// The responses to an interaction.
    Interaction(u64),
    /// Everything.
    Everything,
}

impl Object {
    /// The object of a reference.
    fn from_reference(kind: ManagedKind, reference: &Reference) -> Self {
        match reference {
            Reference::Id(id) => Self::Id(kind, *id),
            Reference::Key(key) => Self::Key(kind, key.clone()),
            Reference::Operation(id) => Self::OfOperation(kind, *id),
        }
    }

    /// Its kind, if references can name it.
    const fn kind(&self) -> Option<ManagedKind> {
        match self {
            Self::Id(kind, _)
            | Self::Key(kind, _)
            | Self::OfOperation(kind, _)
            | Self::New(kind, _)
            | Self::NewKey(kind, _)
            | Self::All(kind, _) => Some(*kind),
            Self::Member(_) | Self::Holders(_) | Self::DirectMessages(_) | Self::Interaction(_) | Self::Everything => {
                None
            }
        }
    }

    /// Whether the two may be the same object, or one may contain the other.
    ///
    /// - Two ids, two keys: only if they are equal, since an object has one key.
    /// - An id and a key, an id and an operation's object, a key and an operation's object, the objects of two
    ///   operations (both may have ensured the same one): always, within a kind.
    /// - An object that will be created: only with a reference to that operation or to its future key. It has no id
    ///   before it exists, and any object of an earlier operation is a different one.
    #[must_use]
    pub fn may_overlap(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Everything, _) | (_, Self::Everything) => true,
            (Self::Holders(one), Self::Holders(other)) => Self::from_reference(ManagedKind::Role, one)
                .may_overlap(&Self::from_reference(ManagedKind::Role, other)),
            (one, other) if one == other => true,
            (one, other) if one.kind().is_none() || one.kind() != other.kind() => false,
            (Self::All(..), _) | (_, Self::All(..)) => true,
            (Self::Key(_, one), Self::NewKey(_, other)) | (Self::NewKey(_, one), Self::Key(_, other)) => one == other,
            (Self::OfOperation(_, one), Self::New(_, other)) | (Self::New(_, one), Self::OfOperation(_, other)) => {
                one == other
            }
            (Self::Id(..), Self::Key(..) | Self::OfOperation(..))
            | (Self::Key(..), Self::Id(..) | Self::OfOperation(..))
            | (Self::OfOperation(..), Self::Id(..) | Self::Key(..) | Self::OfOperation(..)) => true,
            // Not equal, because the equality case is above.
            (one, other) => {
                debug_assert_ne!(one, other);
                false
            }
        }
    }
}

/// What an operation reads and writes.
///
/// Within a queue, an operation may pass a parked one, and those that wait behind it, if its objects conflict with none
/// of theirs. Room within Discord's quotas (250 roles, 500 channels) is not an object: an operation that frees some
/// does not hold back one that takes some.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Objects {
    /// Objects that must not change, or the operation would have a different meaning.
    pub reads: Vec<Object>,
    /// Objects that it changes.
    pub writes: Vec<Object>,
}

impl Objects {
    /// Whether the order of the two matters: one may write what the other one reads or writes.
    #[must_use]
    pub fn meets(&self, other: &Self) -> bool {
        let meet =
            |some: &[Object], others: &[Object]| some.iter().any(|one| others.iter().any(|it| one.may_overlap(it)));
        meet(&self.writes, &other.writes) || meet(&self.writes, &other.reads) || meet(&self.reads, &other.writes)
    }

    fn read(&mut self, kind: ManagedKind, reference: &Reference) {
        self.reads.push(Object::from_reference(kind, reference));
    }

    fn write(&mut self, kind: ManagedKind, reference: &Reference) {
        self.writes.push(Object::from_reference(kind, reference));
    }

    /// Creates a new object.
    fn create(&mut self, kind: ManagedKind, own: OperationId, key: Option<&String>) {
        self.writes.push(Object::New(kind, own));
        self.writes.extend(key.map(|key| Object::NewKey(kind, key.clone())));
    }

    /// Creates an object, or changes the one with its key.
    fn ensure(&mut self, kind: ManagedKind, own: OperationId, key: &str) {
        self.writes.extend([Object::New(kind, own), Object::Key(kind, key.to_owned())]);
    }

    /// Changes the roles of a member.
    fn assign_roles<'r>(&mut self, member: u64, roles: impl IntoIterator<Item = &'r Reference>) {
        self.writes.push(Object::Member(member));
        for role in roles {
            self.read(ManagedKind::Role, role);
            self.writes.push(Object::Holders(role.clone()));
        }
    }

    /// Changes permissions in an existing channel. The members of the role must stay the same meanwhile: if a role is
    /// denied access to a channel and then given to a member, the two must not be swapped.
    fn overwrite_permissions(&mut self, overwrites: &[Overwrite]) {
        for overwrite in overwrites {
            match &overwrite.target {
                OverwriteTarget::Role(role) => {
                    self.read(ManagedKind::Role, role);
                    self.reads.push(Object::Holders(role.clone()));
                }
                OverwriteTarget::Member(member) => self.reads.push(Object::Member(*member)),
            }
        }
    }

    /// Reads what a new channel refers to.
    fn read_channel_references(&mut self, channel: &NewChannel) {
        self.reads.extend(channel.parent.iter().map(|parent| Object::from_reference(ManagedKind::Channel, parent)));
        for overwrite in channel.overwrites.iter().flatten() {
            match &overwrite.target {
                OverwriteTarget::Role(role) => self.read(ManagedKind::Role, role),
                OverwriteTarget::Member(_) => {}
            }
        }
    }

    /// Reads all objects of a kind to find one to adopt.
    fn read_all(&mut self, kind: ManagedKind, guild: Option<u64>) {
        self.reads.push(all(kind, guild));
    }
}

fn all(kind: ManagedKind, guild: Option<u64>) -> Object {
    guild.map_or(Object::Everything, |guild| Object::All(kind, guild))
}

impl Payload {
    /// What the operation with this id reads and writes, submitted for this guild or for none.
    #[must_use]
    pub fn objects(&self, own: OperationId, guild: Option<u64>) -> Objects {
        const ROLE: ManagedKind = ManagedKind::Role;
        const CHANNEL: ManagedKind = ManagedKind::Channel;
        const MESSAGE: ManagedKind = ManagedKind::Message;
        let mut objects = Objects::default();
        match self {
            Self::CreateRole(CreateRole { key, .. }) => objects.create(ROLE, own, key.as_ref()),
            Self::EnsureRole(EnsureRole { key, adopt, .. }) => {
                objects.ensure(ROLE, own, key);
                if *adopt {
                    objects.read_all(ROLE, guild);
                }
            }
            Self::DeleteRole(payload) => objects.write(ROLE, &payload.role),
            Self::AssignRole(payload) => objects.assign_roles(payload.user, [&payload.role]),
            Self::RemoveRole(payload) => objects.assign_roles(payload.user, [&payload.role]),
            Self::SetMemberRoles(payload) => objects.assign_roles(payload.user, &payload.roles),
            Self::CreateChannel(CreateChannel { key, channel }) => {
                objects.create(CHANNEL, own, key.as_ref());
                objects.read_channel_references(channel);
            }
            Self::EnsureChannel(EnsureChannel { key, channel, adopt }) => {
                objects.ensure(CHANNEL, own, key);
                objects.read_channel_references(channel);
                objects.overwrite_permissions(channel.overwrites.as_deref().unwrap_or_default());
                if *adopt {
                    objects.read_all(CHANNEL, guild);
                }
            }
            Self::DeleteChannel(payload) => objects.write(CHANNEL, &payload.channel),
            Self::UpdatePermissions(payload) => {
                objects.write(CHANNEL, &payload.channel);
                objects.overwrite_permissions(&payload.overwrites);
            }
            Self::ReplaceOverwrites(payload) => {
                objects.write(CHANNEL, &payload.channel);
                objects.overwrite_permissions(&payload.overwrites);
            }
            // Moving one moves others. Parents are channels, so they are included.
            Self::Reorder(payload) => objects.writes.push(all(payload.what.kind(), guild)),
            // The messages of a channel have an order, so sending one changes the channel.
            Self::SendMessage(SendMessage { channel, key, reply_to, .. }) => {
                objects.create(MESSAGE, own, key.as_ref());
                objects.write(CHANNEL, channel);
                objects.reads.extend(reply_to.iter().map(|message| Object::from_reference(MESSAGE, message)));
            }
            Self::EnsureMessage(EnsureMessage { key, channel, .. }) => {
                objects.ensure(MESSAGE, own, key);
                objects.write(CHANNEL, channel);
            }
            Self::EditMessage(payload) => {
                objects.read(CHANNEL, &payload.channel);
                objects.write(MESSAGE, &payload.message);
            }
            Self::DeleteMessage(payload) => {
                objects.read(CHANNEL, &payload.channel);
                objects.write(MESSAGE, &payload.message);
            }
            Self::SendDm(payload) => objects.writes.push(Object::DirectMessages(payload.user)),
            Self::DeferReply(payload) => objects.writes.push(Object::Interaction(payload.interaction)),
            Self::SendFollowup(payload) => objects.writes.push(Object::Interaction(payload.interaction)),
            Self::EditOriginal(payload) => objects.writes.push(Object::Interaction(payload.interaction)),
            Self::Read(_) => objects.reads.push(Object::Everything),
            Self::Request(request) => match request.method {
                Method::Get => objects.reads.push(Object::Everything),
                Method::Post | Method::Put | Method::Patch | Method::Delete => objects.writes.push(Object::Everything),
            },
        }
        objects
    }
}
