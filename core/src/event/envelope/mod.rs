//! The envelope of a frame: what is needed to know whose it is, found in one pass over its text. The rest stays text.
//!
//! ```text
//!  {"op":0,"t":"MESSAGE_CREATE","s":7,"d":{"guild_id":"1","author":{"id":"2",…},…}}
//!       └─ op     └─ t              └─ s  └─ where it lies, and the ids in it
//! ```
//!
//! Keys come in any order, and of those that are there twice the last one counts, as for any reader of JSON. All of the
//! text is checked to be JSON; but numbers that no float can hold, and halves of surrogate pairs, pass where nobody has
//! asked for them.

mod bytes;
mod cursor;
mod json_string;

use std::num::NonZeroU64;
use std::ops::Range;

use self::cursor::{Cursor, Scalar, SyntaxError};
pub use self::json_string::JsonString;

/// Why a text is no frame. Nothing of what it holds is said.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// It is not JSON.
    #[error("this is no JSON: {expected} was expected at byte {at}; skip it, and compare what sends it")]
    Syntax {
        /// What should have been there.
        expected: &'static str,
        /// Where.
        at: usize,
    },
    /// Its values lie too deep within each other.
    #[error("values lie deeper than 127 within each other at byte {at}; skip it: nothing could read it")]
    TooDeep {
        /// Where.
        at: usize,
    },
    /// Something is of another kind than it should be.
    #[error("`{field}` is not {expected} at byte {at}; skip it, and compare what sends it")]
    Wrong {
        /// What.
        field: &'static str,
        /// What it should be.
        expected: &'static str,
        /// Where.
        at: usize,
    },
    /// Something is missing without which nothing can be done with it.
    #[error("`{field}` is missing; skip it, and compare what sends it")]
    Missing {
        /// What.
        field: &'static str,
    },
}

/// The ids and names in an event's payload, each where some kind of event has it. What is there, but is no id, is not
/// there; neither is 0, which is nobody's.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PayloadIds<'a> {
    /// `id`: of what, depends on the event.
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
    /// `type`: a number; of what, depends on the event.
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
    /// Those of a payload that comes without a frame around it.
    ///
    /// # Errors
    ///
    /// When the text is not one JSON object.
    pub fn scan(payload: &'a str) -> Result<Self, FrameError> {
        let mut scan = Scanner::new(payload);
        scan.whole(ObjectKind::Payload)?;
        Ok(scan.ids)
    }
}

/// What there is to know of a frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Envelope<'a> {
    /// What kind of frame it is: 0 for an event.
    pub op: u8,
    /// What Discord calls the event.
    pub t: Option<JsonString<'a>>,
    /// Its number in the session.
    pub s: Option<u64>,
    /// Where in the text its payload is.
    pub d: Option<Range<usize>>,
    /// What the payload names, if it is an object.
    pub ids: PayloadIds<'a>,
}

impl<'a> Envelope<'a> {
    /// Finds it in the text of a frame.
    ///
    /// # Errors
    ///
    /// When the text is not one JSON object; or `op` is not a number up to 255, `t` neither a string nor null, or `s`
    /// neither a whole number nor null.
    pub fn scan(text: &'a str) -> Result<Self, FrameError> {
        let mut scan = Scanner::new(text);
        scan.whole(ObjectKind::Frame)?;
        let op = match scan.op {
            None => return Err(FrameError::Missing { field: "op" }),
            Some((Scalar::Number(op), at)) => {
                u8::try_from(op).map_err(|_| FrameError::Wrong { field: "op", expected: OPCODE, at })?
            }
            Some((Scalar::Null | Scalar::Text(_) | Scalar::Other, at)) => {
                return Err(FrameError::Wrong { field: "op", expected: OPCODE, at });
            }
        };
        let t = match scan.t {
            None | Some((Scalar::Null, _)) => None,
            Some((Scalar::Text(t), _)) => Some(t),
            Some((Scalar::Number(_) | Scalar::Other, at)) => {
                return Err(FrameError::Wrong { field: "t", expected: "a string", at });
            }
        };
        let s = match scan.s {
            None | Some((Scalar::Null, _)) => None,
            Some((Scalar::Number(s), _)) => Some(s),
            Some((Scalar::Text(_) | Scalar::Other, at)) => {
                return Err(FrameError::Wrong { field: "s", expected: "a whole number", at });
            }
        };
        Ok(Self { op, t, s, d: scan.d, ids: scan.ids })
    }
}

const OPCODE: &str = "a number from 0 to 255";

/// The objects that are looked into.
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

/// What is wanted of them.
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
    /// What a key is called that is wanted there.
    #[inline(always)]
    fn of(place: ObjectKind, key: &[u8]) -> Option<Self> {
        Some(match (place, key) {
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

    /// The same of a key that has escapes in it. Hardly any has.
    #[cold]
    #[inline(never)]
    fn of_escaped(place: ObjectKind, key: JsonString<'_>) -> Option<Self> {
        // A key that is no text is none of those that are wanted.
        key.text().and_then(|key| Self::of(place, key.as_bytes()))
    }
}

/// What was found up to the cursor. Each place is entered from the one it lies in, four deep at most.
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

    /// The text is one object, of this kind.
    fn whole(&mut self, place: ObjectKind) -> Result<(), FrameError> {
        let scanned = self.object(place).and_then(|()| self.cursor.end());
        scanned.map_err(|fault| fault.at(self.cursor.at()))
    }

    /// An object, and what is wanted of it.
    fn object(&mut self, place: ObjectKind) -> Result<(), SyntaxError> {
        // By a cursor of its own, which a compiler keeps in registers.
        let mut cursor = self.cursor;
        let scanned = self.fields(place, &mut cursor);
        self.cursor = cursor;
        scanned
    }

    #[inline(always)]
    fn fields(&mut self, place: ObjectKind, cursor: &mut Cursor<'a>) -> Result<(), SyntaxError> {
        let mut more = cursor.enter()?;
        while more {
            let key = cursor.key()?;
            let field = match cursor.unescaped(key) {
                Some(key) => Field::of(place, key),
                None => Field::of_escaped(place, cursor.word(key)),
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
            more = cursor.goes_on()?;
        }
        Ok(())
    }

    /// A value that is an object, or is of no interest.
    fn within(&mut self, place: ObjectKind) -> Result<(), SyntaxError> {
        if self.cursor.peek() == Some(b'{') { self.object(place) } else { self.cursor.skip() }
    }

    /// The value of a field that is wanted. What an earlier one of the same name has left is forgotten.
    fn field(&mut self, field: Field) -> Result<(), SyntaxError> {
        match field {
            Field::Op => self.op = Some(self.part()?),
            Field::T => self.t = Some(self.part()?),
            Field::S => self.s = Some(self.part()?),
            Field::D => {
                self.ids = PayloadIds::default();
                self.cursor.peek();
                let from = self.cursor.at();
                self.within(ObjectKind::Payload)?;
                self.d = Some(from..self.cursor.at());
            }
            Field::Id => self.ids.id = self.cursor.id()?,
            Field::GuildId => self.ids.guild_id = self.cursor.id()?,
            Field::ChannelId => self.ids.channel_id = self.cursor.id()?,
            Field::UserId => self.ids.user_id = self.cursor.id()?,
            Field::ApplicationId => self.ids.application_id = self.cursor.id()?,
            Field::Kind => self.ids.kind = self.number()?,
            Field::Token => self.ids.token = self.word()?,
            Field::User => {
                self.ids.user = None;
                self.within(ObjectKind::User)?;
            }
            Field::Author => {
                self.ids.author = None;
                self.within(ObjectKind::Author)?;
            }
            Field::Member => {
                self.ids.member = None;
                self.within(ObjectKind::Member)?;
            }
            Field::Data => {
                self.ids.name = None;
                self.ids.custom_id = None;
                self.ids.component = None;
                self.within(ObjectKind::Data)?;
            }
            Field::IdOfUser => self.ids.user = self.cursor.id()?,
            Field::IdOfAuthor => self.ids.author = self.cursor.id()?,
            Field::MemberUser => {
                self.ids.member = None;
                self.within(ObjectKind::MemberUser)?;
            }
            Field::IdOfMember => self.ids.member = self.cursor.id()?,
            Field::Name => self.ids.name = self.word()?,
            Field::CustomId => self.ids.custom_id = self.word()?,
            Field::Component => self.ids.component = self.number()?,
        }
        Ok(())
    }

    /// A value, and where it is.
    fn part(&mut self) -> Result<(Scalar<'a>, usize), SyntaxError> {
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

    fn word(&mut self) -> Result<Option<JsonString<'a>>, SyntaxError> {
        Ok(match self.cursor.scalar()? {
            Scalar::Text(word) => Some(word),
            Scalar::Number(_) | Scalar::Null | Scalar::Other => None,
        })
    }
}
