//! Placeholders: the parts in braces of a [`Template`].

use serde_json::Value;

use super::body::event_id;
use super::template::{PlaceholderScope, StateValues, Template, TemplateError, TypeKnowledge};
use super::view::{DataPath, EventView};
use crate::operation::payload::{
    field_reader::{nearest, quoted_list},
    validation::truncated,
};

/// A placeholder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Placeholder {
    /// The text between the braces, without the question mark.
    text: String,
    source: Source,
    optional: bool,
}

/// Source of its value.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Source {
    Envelope(Field),
    Data(DataPath),
    State { key: Template, path: DataPath },
}

/// Fields of an event that need no parsing of the payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Field {
    User,
    Guild,
    Channel,
    Interaction,
    InteractionToken,
    Id,
    Type,
    Shard,
}

const FIELDS: [(&str, Field); 8] = [
    ("user_id", Field::User),
    ("guild_id", Field::Guild),
    ("channel_id", Field::Channel),
    ("interaction_id", Field::Interaction),
    ("interaction_token", Field::InteractionToken),
    ("event_id", Field::Id),
    ("event_type", Field::Type),
    ("shard_id", Field::Shard),
];

impl Placeholder {
    /// Parses the text between braces.
    pub(super) fn parse(between: &str, names: PlaceholderScope<'_>) -> Result<Self, String> {
        let (inner, optional) = match between.strip_suffix('?') {
            Some(inner) => (inner, true),
            None => (between, false),
        };
        let source = if let Some(path) = inner.strip_prefix("data.") {
            let path = DataPath::parse(path).filter(|_| !path.contains(['{', '}', ' ']));
            Source::Data(path.ok_or_else(|| {
                format!(
                    "contains `{{{}}}`, which is not a valid path; use `{{data.user.username}}`",
                    truncated(between)
                )
            })?)
        } else if let Some(needed) = inner.strip_prefix("state.") {
            Self::parse_state(needed, names)?
        } else {
            match FIELDS.iter().find(|(name, _)| *name == inner) {
                Some((_, field)) => Source::Envelope(*field),
                None => return Err(unknown_placeholder(inner)),
            }
        };
        Ok(Self { text: inner.to_owned(), source, optional })
    }

    fn parse_state(needed: &str, names: PlaceholderScope<'_>) -> Result<Source, String> {
        let PlaceholderScope::EventAndState(needs) = names else {
            return Err("must not use `state`, because stored values are not loaded yet at this point".to_owned());
        };
        // The longest match, since one key may be a prefix of another.
        let found = needs
            .iter()
            .filter_map(|key| Some((key, needed.strip_prefix(key.as_str())?)))
            .filter(|(_, rest)| rest.is_empty() || rest.starts_with('.'))
            .max_by_key(|(key, _)| key.len());
        let Some((key, rest)) = found else {
            let hint = format!("add it to `needs`: needs = [\"{}\"]", truncated(needed));
            return Err(format!("uses `state.{}`, which is not loaded; {hint}", truncated(needed)));
        };
        let path = match rest.strip_prefix('.') {
            None => DataPath::root(),
            Some(path) => {
                DataPath::parse(path).ok_or_else(|| format!("has an invalid path after `state.{}`", truncated(key)))?
            }
        };
        Ok(Source::State { key: Template::parse(key, PlaceholderScope::Event)?, path })
    }

    /// Its value in an event.
    pub(super) fn value(&self, view: &EventView<'_>, state: &StateValues) -> Result<Value, TemplateError> {
        let event = view.event();
        let id = |id: Option<u64>| id.map(|id| Value::String(id.to_string()));
        let found = match &self.source {
            Source::Envelope(field) => match field {
                Field::User => id(event.user),
                Field::Guild => id(event.guild),
                Field::Channel => id(event.channel),
                Field::Interaction => id(event.interaction.as_ref().map(|interaction| interaction.id)),
                Field::InteractionToken => {
                    event.interaction.as_ref().map(|interaction| Value::String(interaction.token.clone()))
                }
                Field::Id => Some(Value::String(event_id(&event.origin))),
                Field::Type => Some(Value::String(event.name.as_str().to_owned())),
                Field::Shard => Some(Value::from(event.origin.shard)),
            },
            Source::Data(path) => match view.data() {
                Some(data) => path.find(data).cloned(),
                None => return Err(TemplateError::NotJson { placeholder: self.text.clone() }),
            },
            Source::State { key, path } => {
                state.get(&key.key(view, state)?).and_then(|value| path.find(value)).cloned()
            }
        };
        match found {
            Some(value) => Ok(value),
            None if self.optional => Ok(Value::Null),
            None => Err(TemplateError::Missing { placeholder: self.text.clone() }),
        }
    }

    /// Whether the type of its value is known without an event.
    pub(super) const fn type_knowledge(&self) -> TypeKnowledge {
        match &self.source {
            Source::Envelope(_) if !self.optional => TypeKnowledge::Kind,
            Source::Envelope(_) | Source::Data(_) | Source::State { .. } => TypeKnowledge::Nothing,
        }
    }

    /// Whether its value is a number.
    pub(super) const fn is_number(&self) -> bool {
        matches!(self.source, Source::Envelope(Field::Shard))
    }

    /// A sample value. Ids differ, so that two of them in a list are not duplicates.
    pub(super) const fn sample(&self) -> &'static str {
        match &self.source {
            Source::Envelope(Field::User) => "1000000000000000001",
            Source::Envelope(Field::Guild) => "1000000000000000002",
            Source::Envelope(Field::Channel) => "1000000000000000003",
            Source::Envelope(Field::Interaction) => "1000000000000000004",
            Source::Envelope(Field::InteractionToken) => "token",
            Source::Envelope(Field::Id) => "session-1",
            Source::Envelope(Field::Type) => "member.join",
            Source::Envelope(Field::Shard) => "0",
            Source::Data(_) | Source::State { .. } => "1",
        }
    }
}

fn unknown_placeholder(name: &str) -> String {
    let names = FIELDS.iter().map(|(name, _)| *name);
    let hint = match nearest(name, names.clone().chain(["data.", "state."])) {
        Some(meant) => format!("did you mean `{{{meant}}}`?"),
        None => format!("known names are {}, `data.…` and `state.…`", quoted_list(names)),
    };
    format!("contains the unknown placeholder `{{{}}}`; {hint} (Write `{{{{` for a literal brace.)", truncated(name))
}
