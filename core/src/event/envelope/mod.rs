//! The envelope of a frame: the fields needed for routing, found in one pass over the text. The rest stays text.
//!
//! ```text
//!  {"op":0,"t":"MESSAGE_CREATE","s":7,"d":{"guild_id":"1","author":{"id":"2",…},…}}
//!       └─ op     └─ t              └─ s  └─ its range, and the ids in it
//! ```
//!
//! Keys come in any order, and the last of duplicate keys counts, as for any JSON parser. The whole text is checked to
//! be JSON; but numbers that do not fit a float, and halves of surrogate pairs, are accepted in values that are not
//! read.

mod bytes;
mod cursor;
mod json_string;

use std::borrow::Cow;
use std::num::NonZeroU64;
use std::ops::Range;

use self::cursor::{Cursor, Scalar, SyntaxError};
pub use self::json_string::JsonString;

/// Why a text is not a valid frame. Does not contain any of its content.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// It is not JSON.
    #[error("invalid JSON: expected {expected} at byte {at}; skip the frame and check its sender")]
    Syntax {
        /// What was expected.
        expected: &'static str,
        /// Position in bytes.
        at: usize,
    },
    /// It is nested too deeply.
    #[error("nested more than 127 levels deep at byte {at}; skip the frame, it cannot be parsed")]
    TooDeep {
        /// Position in bytes.
        at: usize,
    },
    /// A field has the wrong type.
    #[error("`{field}` is not {expected} at byte {at}; skip the frame and check its sender")]
    WrongType {
        /// The field.
        field: &'static str,
        /// What was expected.
        expected: &'static str,
        /// Position in bytes.
        at: usize,
    },
    /// A required field is missing.
    #[error("`{field}` is missing; skip the frame and check its sender")]
    Missing {
        /// The field.
        field: &'static str,
    },
}

/// Ids and names in an event's payload, at all the positions that some type of event has. A value that is not an id, or
/// is 0, counts as missing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PayloadIds<'a> {
    /// `id`: its meaning depends on the event.
    pub id: Option<NonZeroU64>,
    /// `guild_id`.
    pub guild_id: Option<NonZeroU64>,
    /// `channel_id`.
    pub channel_id: Option<NonZeroU64>,
    /// `user_id`.
    pub user_id: Option<NonZeroU64>,
    /// `user.id`.
    pub user: Option<NonZeroU64>,
    /// `author.id`.
    pub author: Option<NonZeroU64>,
    /// `member.user.id`.
    pub member: Option<NonZeroU64>,
    /// `application_id`.
    pub application_id: Option<NonZeroU64>,
    /// `type`: a number; its meaning depends on the event.
    pub kind: Option<u64>,
    /// `token`.
    pub token: Option<JsonString<'a>>,
    /// `data.name`.
    pub name: Option<JsonString<'a>>,
    /// `data.custom_id`.
    pub custom_id: Option<JsonString<'a>>,
    /// `data.component_type`.
    pub component: Option<u64>,
}

impl<'a> PayloadIds<'a> {
    /// Scans a payload without a frame.
    pub fn scan(payload: &'a str) -> Result<Self, FrameError> {
        let mut scan = Scanner::new(payload);
        scan.scan_document(ObjectKind::Payload)?;
        Ok(scan.ids)
    }
}

/// Routing data of a frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Envelope<'a> {
    /// Opcode: 0 for an event.
    pub op: u8,
    /// Discord's name of the event type.
    pub t: Option<JsonString<'a>>,
    /// Sequence number in the session.
    pub s: Option<u64>,
    /// Range of the payload in the text.
    pub d: Option<Range<usize>>,
    /// Ids in the payload, if it is an object.
    pub ids: PayloadIds<'a>,
}

impl<'a> Envelope<'a> {
    /// Scans the text of a frame.
    ///
    /// # Errors
    ///
    /// When the text is not one JSON object; or `op` is not a number up to 255, `t` neither a string nor null, or `s`
    /// neither an integer nor null.
    pub fn scan(text: &'a str) -> Result<Self, FrameError> {
        let mut scan = Scanner::new(text);
        scan.scan_document(ObjectKind::Frame)?;
        let op = match scan.op {
            None => return Err(FrameError::Missing { field: "op" }),
            Some((Scalar::Number(op), at)) => {
                u8::try_from(op).map_err(|_| FrameError::WrongType { field: "op", expected: OPCODE, at })?
            }
            Some((Scalar::Null | Scalar::Text(_) | Scalar::Other, at)) => {
                return Err(FrameError::WrongType { field: "op", expected: OPCODE, at });
            }
        };
        let t = match scan.t {
            None | Some((Scalar::Null, _)) => None,
            Some((Scalar::Text(t), _)) => Some(t),
            Some((Scalar::Number(_) | Scalar::Other, at)) => {
                return Err(FrameError::WrongType { field: "t", expected: "a string", at });
            }
        };
        let s = match scan.s {
            None | Some((Scalar::Null, _)) => None,
            Some((Scalar::Number(s), _)) => Some(s),
            Some((Scalar::Text(_) | Scalar::Other, at)) => {
                return Err(FrameError::WrongType { field: "s", expected: "a whole number", at });
            }
        };
        Ok(Self { op, t, s, d: scan.d, ids: scan.ids })
    }
}

/// Finds the value of a field of an object, and stops there: a payload is checked when its frame is scanned.
fn find_value<'a>(payload: &'a str, key: &str) -> Option<Cursor<'a>> {
    let mut cursor = Cursor::new(payload);
    let mut more = cursor.enter().ok()?;
    while more {
        let name = cursor.key().ok()?;
        if cursor.unescaped(name) == Some(key.as_bytes()) {
            cursor.peek();
            return Some(cursor);
        }
        cursor.skip().ok()?;
        more = cursor.next_entry().ok()?;
    }
    None
}

/// The `name` of the object that a payload is.
pub(super) fn name_of(payload: &str) -> Option<Cow<'_, str>> {
    match find_value(payload, "name")?.scalar().ok()? {
        Scalar::Text(name) => name.text(),
        Scalar::Number(_) | Scalar::Null | Scalar::Other => None,
    }
}

/// Whether the guild of a deletion is only unavailable.
pub(super) fn is_unavailable(payload: &str) -> bool {
    find_value(payload, "unavailable").is_some_and(|value| payload[value.at()..].starts_with("true"))
}

const OPCODE: &str = "a number from 0 to 255";

/// Objects that are scanned.
#[derive(Clone, Copy, Debug)]
enum ObjectKind {
    Frame,
    Payload,
    User,
    Author,
    Member,
    MemberUser,
    Data,
}

/// Fields that are read.
#[derive(Clone, Copy, Debug)]
enum Field {
    Op,
    T,
    S,
    D,
    Id,
    GuildId,
    ChannelId,
    UserId,
    ApplicationId,
    Kind,
    Token,
    User,
    Author,
    Member,
    Data,
    IdOfUser,
    IdOfAuthor,
    MemberUser,
    IdOfMember,
    Name,
    CustomId,
    Component,
}

impl Field {
    /// The field of this key in this object, if it is needed.
    #[inline(always)]
    fn of(kind: ObjectKind, key: &[u8]) -> Option<Self> {
        Some(match (kind, key) {
            (ObjectKind::Frame, b"op") => Self::Op,
            (ObjectKind::Frame, b"t") => Self::T,
            (ObjectKind::Frame, b"s") => Self::S,
            (ObjectKind::Frame, b"d") => Self::D,
            (ObjectKind::Payload, b"id") => Self::Id,
            (ObjectKind::Payload, b"guild_id") => Self::GuildId,
            (ObjectKind::Payload, b"channel_id") => Self::ChannelId,
            (ObjectKind::Payload, b"user_id") => Self::UserId,
            (ObjectKind::Payload, b"application_id") => Self::ApplicationId,
            (ObjectKind::Payload, b"type") => Self::Kind,
            (ObjectKind::Payload, b"token") => Self::Token,
            (ObjectKind::Payload, b"user") => Self::User,
            (ObjectKind::Payload, b"author") => Self::Author,
            (ObjectKind::Payload, b"member") => Self::Member,
            (ObjectKind::Payload, b"data") => Self::Data,
            (ObjectKind::User, b"id") => Self::IdOfUser,
            (ObjectKind::Author, b"id") => Self::IdOfAuthor,
            (ObjectKind::Member, b"user") => Self::MemberUser,
            (ObjectKind::MemberUser, b"id") => Self::IdOfMember,
            (ObjectKind::Data, b"name") => Self::Name,
            (ObjectKind::Data, b"custom_id") => Self::CustomId,
            (ObjectKind::Data, b"component_type") => Self::Component,
            (_, _) => return None,
        })
    }

    /// The same for a key with escapes. Hardly any key has.
    #[cold]
    #[inline(never)]
    fn of_escaped(kind: ObjectKind, key: JsonString<'_>) -> Option<Self> {
        // A key that is not valid text is not needed.
        key.text().and_then(|key| Self::of(kind, key.as_bytes()))
    }
}

/// Scans an object. It recurses into nested objects, at most four levels deep.
#[derive(Debug)]
struct Scanner<'a> {
    cursor: Cursor<'a>,
    op: Option<(Scalar<'a>, usize)>,
    t: Option<(Scalar<'a>, usize)>,
    s: Option<(Scalar<'a>, usize)>,
    d: Option<Range<usize>>,
    ids: PayloadIds<'a>,
}

impl<'a> Scanner<'a> {
    fn new(text: &'a str) -> Self {
        Self { cursor: Cursor::new(text), op: None, t: None, s: None, d: None, ids: PayloadIds::default() }
    }

    /// Scans the whole text, which is one object of this kind.
    fn scan_document(&mut self, kind: ObjectKind) -> Result<(), FrameError> {
        let scanned = self.object(kind).and_then(|()| self.cursor.expect_end());
        scanned.map_err(|error| error.with_position(self.cursor.at()))
    }

    /// Scans an object and reads the needed fields.
    fn object(&mut self, kind: ObjectKind) -> Result<(), SyntaxError> {
        // Uses a cursor of its own, which the compiler keeps in registers.
        let mut cursor = self.cursor;
        let scanned = self.fields(kind, &mut cursor);
        self.cursor = cursor;
        scanned
    }

    #[inline(always)]
    fn fields(&mut self, kind: ObjectKind, cursor: &mut Cursor<'a>) -> Result<(), SyntaxError> {
        let mut more = cursor.enter()?;
        while more {
            let key = cursor.key()?;
            let field = match cursor.unescaped(key) {
                Some(key) => Field::of(kind, key),
                None => Field::of_escaped(kind, cursor.json_string(key)),
            };
            match field {
                None => cursor.skip()?,
                Some(field) => {
                    self.cursor = *cursor;
                    let read = self.field(field);
                    *cursor = self.cursor;
                    read?;
                }
            }
            more = cursor.next_entry()?;
        }
        Ok(())
    }

    /// Scans an object; skips any other value.
    fn object_or_skip(&mut self, kind: ObjectKind) -> Result<(), SyntaxError> {
        if self.cursor.peek() == Some(b'{') { self.object(kind) } else { self.cursor.skip() }
    }

    /// Reads the value of a needed field. It replaces the value of an earlier duplicate.
    fn field(&mut self, field: Field) -> Result<(), SyntaxError> {
        match field {
            Field::Op => self.op = Some(self.scalar_with_position()?),
            Field::T => self.t = Some(self.scalar_with_position()?),
            Field::S => self.s = Some(self.scalar_with_position()?),
            Field::D => {
                self.ids = PayloadIds::default();
                self.cursor.peek();
                let from = self.cursor.at();
                self.object_or_skip(ObjectKind::Payload)?;
                self.d = Some(from..self.cursor.at());
            }
            Field::Id => self.ids.id = self.cursor.id()?,
            Field::GuildId => self.ids.guild_id = self.cursor.id()?,
            Field::ChannelId => self.ids.channel_id = self.cursor.id()?,
            Field::UserId => self.ids.user_id = self.cursor.id()?,
            Field::ApplicationId => self.ids.application_id = self.cursor.id()?,
            Field::Kind => self.ids.kind = self.number()?,
            Field::Token => self.ids.token = self.read_string()?,
            Field::User => {
                self.ids.user = None;
                self.object_or_skip(ObjectKind::User)?;
            }
            Field::Author => {
                self.ids.author = None;
                self.object_or_skip(ObjectKind::Author)?;
            }
            Field::Member => {
                self.ids.member = None;
                self.object_or_skip(ObjectKind::Member)?;
            }
            Field::Data => {
                self.ids.name = None;
                self.ids.custom_id = None;
                self.ids.component = None;
                self.object_or_skip(ObjectKind::Data)?;
            }
            Field::IdOfUser => self.ids.user = self.cursor.id()?,
            Field::IdOfAuthor => self.ids.author = self.cursor.id()?,
            Field::MemberUser => {
                self.ids.member = None;
                self.object_or_skip(ObjectKind::MemberUser)?;
            }
            Field::IdOfMember => self.ids.member = self.cursor.id()?,
            Field::Name => self.ids.name = self.read_string()?,
            Field::CustomId => self.ids.custom_id = self.read_string()?,
            Field::Component => self.ids.component = self.number()?,
        }
        Ok(())
    }

    /// A value and its position.
    fn scalar_with_position(&mut self) -> Result<(Scalar<'a>, usize), SyntaxError> {
        self.cursor.peek();
        let at = self.cursor.at();
        Ok((self.cursor.scalar()?, at))
    }

    fn number(&mut self) -> Result<Option<u64>, SyntaxError> {
        Ok(match self.cursor.scalar()? {
            Scalar::Number(number) => Some(number),
            Scalar::Text(_) | Scalar::Null | Scalar::Other => None,
        })
    }

    fn read_string(&mut self) -> Result<Option<JsonString<'a>>, SyntaxError> {
        Ok(match self.cursor.scalar()? {
            Scalar::Text(word) => Some(word),
            Scalar::Number(_) | Scalar::Null | Scalar::Other => None,
        })
    }
}
