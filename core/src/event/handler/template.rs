//! Texts with placeholders: `Welcome, {data.user.username}!`
//!
//! A placeholder stands for a JSON value. A text that is nothing but one placeholder becomes that value; anywhere else
//! the value becomes text within a string. Nothing is ever pasted into JSON, so that no event can write more of an
//! operation than the string that it stands in.

use std::collections::BTreeMap;

use serde_json::Value;

use super::body::event_id;
use super::view::{Path, View};
use crate::operation::payload::{
    form::{listed, nearest},
    invalid::shown,
};

/// Stored values by their keys.
pub(super) type State = BTreeMap<String, Value>;

/// Why a handler cannot do with an event what it should.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TemplateProblem {
    /// A placeholder stands for nothing here.
    #[error(
        "`{{{placeholder}}}` stands for nothing in this event: write `{{{placeholder}?}}` if it may be missing, or add \
         a condition to `when`"
    )]
    Missing {
        /// What stands between the braces.
        placeholder: String,
    },
    /// The event's payload cannot be read.
    #[error("`{{{placeholder}}}` cannot be looked up: the event's payload is not JSON")]
    NotJson {
        /// What stands between the braces.
        placeholder: String,
    },
    /// A key of state or of a cooldown is of no use.
    #[error("the key `{pattern}` becomes one of {length} bytes here: keys have 1 to {most}")]
    Key {
        /// As it was written.
        pattern: String,
        /// How long it became.
        length: usize,
        /// How long it may be.
        most: usize,
    },
}

/// What placeholders may name.
#[derive(Clone, Copy, Debug)]
pub(super) enum Names<'a> {
    /// The event alone.
    Event,
    /// Also these stored values, as `needs` writes them.
    EventAndState(&'a [String]),
}

/// A text with placeholders.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Template {
    text: String,
    parts: Vec<Part>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Part {
    Text(String),
    Hole(Hole),
}

/// A placeholder.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Hole {
    /// What stands between the braces, without the question mark.
    shown: String,
    source: Source,
    optional: bool,
}

/// Where its value comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Source {
    Envelope(Field),
    Data(Path),
    State { key: Template, path: Path },
}

/// What is known of an event before its payload is looked at.
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

impl Template {
    /// Reads a text.
    ///
    /// # Errors
    ///
    /// When a brace is left over or a placeholder names nothing that there is; says what to write instead.
    pub(super) fn parse(text: &str, names: Names<'_>) -> Result<Self, String> {
        let mut parts = Vec::new();
        let mut plain = String::new();
        let mut rest = text;
        while let Some(at) = rest.find(['{', '}']) {
            plain.push_str(&rest[..at]);
            rest = &rest[at..];
            if let Some(after) = rest.strip_prefix("{{") {
                plain.push('{');
                rest = after;
            } else if let Some(after) = rest.strip_prefix("}}") {
                plain.push('}');
                rest = after;
            } else if let Some(after) = rest.strip_prefix('{') {
                let end = closing(after).ok_or("has a `{` that is not closed; write `{{` for one that means itself")?;
                if !plain.is_empty() {
                    parts.push(Part::Text(std::mem::take(&mut plain)));
                }
                parts.push(Part::Hole(Hole::parse(&after[..end], names)?));
                rest = &after[end + 1..];
            } else {
                return Err("has a `}` that closes nothing; write `}}` for one that means itself".to_owned());
            }
        }
        plain.push_str(rest);
        if !plain.is_empty() {
            parts.push(Part::Text(plain));
        }
        Ok(Self { text: text.to_owned(), parts })
    }

    /// As it was written.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// Whether it is the same for every event: then it is this text.
    pub(super) fn fixed(&self) -> Option<String> {
        match self.parts.as_slice() {
            [] => Some(String::new()),
            [Part::Text(text)] => Some(text.clone()),
            [Part::Hole(_) | Part::Text(_), ..] => None,
        }
    }

    /// What it becomes for an event: the value itself if it is nothing but a placeholder.
    pub(super) fn value(&self, view: &View<'_>, state: &State) -> Result<Value, TemplateProblem> {
        match self.parts.as_slice() {
            [Part::Hole(hole)] => hole.value(view, state),
            parts => text(parts, view, state).map(Value::String),
        }
    }

    /// What it becomes for an event, as text.
    pub(super) fn text(&self, view: &View<'_>, state: &State) -> Result<String, TemplateProblem> {
        text(&self.parts, view, state)
    }

    /// What it becomes for an event, as a key.
    pub(super) fn key(&self, view: &View<'_>, state: &State) -> Result<String, TemplateProblem> {
        let key = self.text(view, state)?;
        if (1..=KEY_LONGEST).contains(&key.len()) {
            return Ok(key);
        }
        Err(TemplateProblem::Key { pattern: shown(&self.text), length: key.len(), most: KEY_LONGEST })
    }

    /// What it may become, to check whether that fits where it stands; and whether nobody knows what it will be.
    pub(super) fn sample(&self) -> (Value, Known) {
        let whole = matches!(self.parts.as_slice(), [Part::Hole(_)]);
        let mut known = Known::Kind;
        let mut sample = String::new();
        for part in &self.parts {
            match part {
                Part::Text(text) => sample.push_str(text),
                Part::Hole(hole) => {
                    if hole.optional || !matches!(hole.source, Source::Envelope(_)) {
                        known = Known::Nothing;
                    }
                    if whole && hole.source == Source::Envelope(Field::Shard) {
                        return (Value::from(0), known);
                    }
                    sample.push_str(hole.sample());
                }
            }
        }
        (Value::String(sample), known)
    }
}

/// The longest key of state, and of a cooldown.
pub(super) const KEY_LONGEST: usize = 255;

/// What is known of what a template will be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Known {
    /// What kind of value.
    Kind,
    /// Nothing: it is whatever the event holds.
    Nothing,
}

/// Where a placeholder ends: the brace that closes it, past those that stand within it.
fn closing(text: &str) -> Option<usize> {
    let mut open = 0_usize;
    for (at, byte) in text.bytes().enumerate() {
        match byte {
            b'{' => open += 1,
            b'}' if open == 0 => return Some(at),
            b'}' => open -= 1,
            _ => {}
        }
    }
    None
}

fn text(parts: &[Part], view: &View<'_>, state: &State) -> Result<String, TemplateProblem> {
    let mut out = String::new();
    for part in parts {
        match part {
            Part::Text(text) => out.push_str(text),
            Part::Hole(hole) => match hole.value(view, state)? {
                Value::Null => {}
                Value::String(text) => out.push_str(&text),
                value @ (Value::Bool(_) | Value::Number(_) | Value::Array(_) | Value::Object(_)) => {
                    out.push_str(&value.to_string());
                }
            },
        }
    }
    Ok(out)
}

impl Hole {
    fn parse(between: &str, names: Names<'_>) -> Result<Self, String> {
        let (inner, optional) = match between.strip_suffix('?') {
            Some(inner) => (inner, true),
            None => (between, false),
        };
        let source = if let Some(path) = inner.strip_prefix("data.") {
            let path = Path::parse(path).filter(|_| !path.contains(['{', '}', ' ']));
            Source::Data(path.ok_or_else(|| {
                format!("has `{{{}}}`, which is no path; write `{{data.user.username}}`", shown(between))
            })?)
        } else if let Some(needed) = inner.strip_prefix("state.") {
            Self::state(needed, names)?
        } else {
            match FIELDS.iter().find(|(name, _)| *name == inner) {
                Some((_, field)) => Source::Envelope(*field),
                None => return Err(unknown(inner)),
            }
        };
        Ok(Self { shown: inner.to_owned(), source, optional })
    }

    fn state(needed: &str, names: Names<'_>) -> Result<Source, String> {
        let Names::EventAndState(needs) = names else {
            return Err("must not name `state`, which is not looked up before it is known".to_owned());
        };
        // The longest, since one may begin like another.
        let found = needs
            .iter()
            .filter_map(|key| Some((key, needed.strip_prefix(key.as_str())?)))
            .filter(|(_, rest)| rest.is_empty() || rest.starts_with('.'))
            .max_by_key(|(key, _)| key.len());
        let Some((key, rest)) = found else {
            let hint = format!("write it into `needs`: needs = [\"{}\"]", shown(needed));
            return Err(format!("names `state.{}`, which is not looked up; {hint}", shown(needed)));
        };
        let path = match rest.strip_prefix('.') {
            None => Path::here(),
            Some(path) => Path::parse(path).ok_or_else(|| format!("has no path behind `state.{}`", shown(key)))?,
        };
        Ok(Source::State { key: Template::parse(key, Names::Event)?, path })
    }

    fn value(&self, view: &View<'_>, state: &State) -> Result<Value, TemplateProblem> {
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
                None => return Err(TemplateProblem::NotJson { placeholder: self.shown.clone() }),
            },
            Source::State { key, path } => {
                state.get(&key.key(view, state)?).and_then(|value| path.find(value)).cloned()
            }
        };
        match found {
            Some(value) => Ok(value),
            None if self.optional => Ok(Value::Null),
            None => Err(TemplateProblem::Missing { placeholder: self.shown.clone() }),
        }
    }

    /// What it may stand for. Ids differ, so that two of them in a list are not taken for one.
    const fn sample(&self) -> &'static str {
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

fn unknown(name: &str) -> String {
    let names = FIELDS.iter().map(|(name, _)| *name);
    let hint = match nearest(name, names.clone().chain(["data.", "state."])) {
        Some(meant) => format!("did you mean `{{{meant}}}`?"),
        None => format!("there are {}, `data.…` and `state.…`", listed(names)),
    };
    format!("has `{{{}}}`, which stands for nothing; {hint} (Write `{{{{` for a brace that means itself.)", shown(name))
}
