//! Descriptions of payloads, from which the API's schemas are built.

use serde_json::Value;

/// An object.
#[derive(Clone, Debug, PartialEq)]
pub struct ObjectType {
    /// Name of its type.
    pub name: &'static str,
    /// What it is.
    pub description: &'static str,
    /// Its fields.
    pub fields: Vec<FieldType>,
    /// Fields of which it has exactly one, each with a title for the objects that have it.
    pub alternatives: Vec<(&'static str, FieldType)>,
    /// Fields of which it has at least one.
    pub any_of: &'static [&'static str],
}

/// A field of an object.
#[derive(Clone, Debug, PartialEq)]
pub struct FieldType {
    /// Its name.
    pub name: &'static str,
    /// What it is; may be empty.
    pub description: &'static str,
    /// Its values.
    pub values: ValueType,
    /// Whether it may be omitted.
    pub presence: Presence,
}

/// Whether a field may be omitted.
#[derive(Clone, Debug, PartialEq)]
pub enum Presence {
    /// It must be there.
    Required,
    /// It may be omitted.
    Optional,
    /// If it is omitted, it has this value.
    Default(Value),
}

/// Values of a field or a list.
#[derive(Clone, Debug, PartialEq)]
pub enum ValueType {
    /// A string.
    Text(TextType),
    /// The id of an operation.
    OperationId,
    /// A whole number.
    Integer {
        /// The least.
        min: u64,
        /// The greatest.
        max: u64,
    },
    /// `true` or `false`.
    Boolean,
    /// One of these strings.
    Choice(Vec<&'static str>),
    /// A list.
    List {
        /// Minimum length.
        min: usize,
        /// Maximum length.
        max: usize,
        /// Its items.
        items: Box<Self>,
    },
    /// An object with no other fields.
    Object(ObjectType),
    /// An id, or an object in its place.
    IdOr {
        /// The id.
        id: TextType,
        /// The object.
        object: ObjectType,
    },
    /// A value that is passed to Discord as it is, and in which only some parts are checked.
    Passed {
        /// Name of its type.
        name: &'static str,
        /// What it is.
        description: &'static str,
        /// What is checked.
        part: &'static PassedPart,
    },
    /// Any object.
    AnyObject,
    /// Any JSON.
    Anything,
}

/// A string.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TextType {
    /// Name of the type, if it has one.
    pub name: Option<&'static str>,
    /// What it is; may be empty.
    pub description: &'static str,
    /// Minimum and maximum number of characters.
    pub length: Option<(usize, usize)>,
    /// A regular expression that it matches.
    pub pattern: Option<&'static str>,
    /// An example.
    pub example: Option<&'static str>,
}

/// A part of an object of Discord that is checked. It may be omitted or null, wherever it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PassedPart {
    /// A string of at most so many characters.
    Text(usize),
    /// An object with these and other fields.
    Object(&'static [(&'static str, Self)]),
    /// A list of at most so many items.
    List(usize, &'static Self),
}

impl ObjectType {
    pub(super) fn new(name: &'static str, description: &'static str) -> Self {
        Self { name, description: description.trim_start(), fields: Vec::new(), alternatives: Vec::new(), any_of: &[] }
    }
}

impl TextType {
    /// Any string.
    pub(super) const ANY: Self = Self { name: None, description: "", length: None, pattern: None, example: None };
}

/// Regular expressions of strings. They agree with the functions that read these strings.
pub mod patterns {
    /// A Discord id, in digits: as a number, JavaScript would lose its last ones.
    pub const ID: &str = "^(?:[1-9][0-9]{0,17}|[1-3][0-9]{18})$";
    /// A key of a managed object.
    pub const KEY: &str = "^[A-Za-z0-9_.:/-]+$";
    /// A name that Discord does not trim.
    pub const NAME: &str = "^\\S(?:[\\s\\S]*\\S)?$";
    /// Permissions, as Discord writes them.
    pub const PERMISSIONS: &str = "^(?:0|[1-9][0-9]{0,18})$";
    /// An interaction token, which becomes part of a path.
    pub const TOKEN: &str = "^[!\"$&-.0->@-\\[\\]-~]+$";
    /// A path below the API's version, with its query.
    pub const PATH: &str = "^/[!\"$-~]+$";
}
