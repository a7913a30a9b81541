//! Kinds of settings: how a value is written, displayed and described.

use std::{fmt::Display, net::SocketAddr, ops::RangeInclusive, path::PathBuf, str::FromStr, time::Duration};

use serde_json::Value as Json;
use url::Url;

use super::{secret::SecretValue, source::Raw};

/// A kind of setting.
pub(crate) trait Kind: Sync {
    /// What it is parsed into.
    type Value;

    fn parse(&self, raw: &Raw) -> Result<Self::Value, ValueError>;

    /// Returns the value as `config check` displays it, with secrets redacted.
    fn display(&self, value: &Self::Value) -> Json;

    /// Describes the permitted values.
    fn allowed(&self) -> String;

    /// Whether it is a secret, which also has a `*_file` form that names a file to read it from.
    fn is_secret(&self) -> bool {
        false
    }

    /// Returns the parts of a value that no log line may contain.
    fn secrets(&self, _: &Self::Value) -> Vec<SecretValue> {
        Vec::new()
    }
}

/// Why a value is not permitted.
pub(crate) enum ValueError {
    /// An error with a description of its own.
    Message(String),
    /// The value is not permitted; the message quotes it unless it may be secret.
    NotAllowed,
}

/// A valid value as `config check` displays it, and its secret parts.
pub(crate) type Checked = (Json, Vec<SecretValue>);

/// A kind of any value.
pub(crate) trait AnyKind: Sync {
    /// Validates a value. The error describes the problem and the permitted values, and never contains a secret.
    fn check(&self, raw: &Raw) -> Result<Checked, String>;

    fn allowed(&self) -> String;

    fn is_secret(&self) -> bool;
}

impl<K: Kind> AnyKind for K {
    fn check(&self, raw: &Raw) -> Result<Checked, String> {
        let message = match self.parse(raw) {
            Ok(value) => return Ok((self.display(&value), self.secrets(&value))),
            Err(ValueError::Message(details)) => details,
            Err(ValueError::NotAllowed) => match raw.quote() {
                Some(text) if !Kind::is_secret(self) => format!("cannot be {text}"),
                Some(_) | None => "has an invalid value".to_owned(),
            },
        };
        Err(format!("{message}; allowed: {}", Kind::allowed(self)))
    }

    fn allowed(&self) -> String {
        Kind::allowed(self)
    }

    fn is_secret(&self) -> bool {
        Kind::is_secret(self)
    }
}

/// Converts the value of a kind to the type of a field.
pub(crate) trait FromValue<V> {
    fn from_value(value: V) -> Self;
}

impl<T> FromValue<T> for T {
    fn from_value(value: T) -> Self {
        value
    }
}

/// A setting that may have no value.
impl<T> FromValue<T> for Option<T> {
    fn from_value(value: T) -> Self {
        Some(value)
    }
}

/// A setting in milliseconds.
impl FromValue<u64> for Duration {
    fn from_value(value: u64) -> Self {
        Self::from_millis(value)
    }
}

/// A limit, where 0 means that there is none.
impl FromValue<u64> for Option<u32> {
    fn from_value(value: u64) -> Self {
        (value > 0).then(|| u32::from_value(value))
    }
}

macro_rules! narrow {
    ($($Type:ty)*) => {
        $(impl FromValue<u64> for $Type {
            fn from_value(value: u64) -> Self {
                value.try_into().expect("invariant: the declared bounds fit the type")
            }
        })*
    };
}
narrow!(u16 u32 usize);

/// A whole number in this range.
pub(crate) struct Integer(pub(crate) RangeInclusive<u64>);

impl Kind for Integer {
    type Value = u64;

    fn parse(&self, raw: &Raw) -> Result<u64, ValueError> {
        let number = match raw {
            Raw::Text(text) => text.expose().trim().parse().ok(),
            Raw::Integer(number) => u64::try_from(*number).ok(),
            Raw::String(_) | Raw::Bool(_) | Raw::List(_) | Raw::Other(_) => None,
        };
        number.filter(|number| self.0.contains(number)).ok_or(ValueError::NotAllowed)
    }

    fn display(&self, value: &u64) -> Json {
        (*value).into()
    }

    fn allowed(&self) -> String {
        format!("a whole number from {} to {}", self.0.start(), self.0.end())
    }
}

/// `true` or `false`.
pub(crate) struct Bool;

impl Kind for Bool {
    type Value = bool;

    fn parse(&self, raw: &Raw) -> Result<bool, ValueError> {
        match raw {
            Raw::Bool(truth) => Ok(*truth),
            Raw::Text(text) => text.expose().parse().map_err(|_| ValueError::NotAllowed),
            Raw::String(_) | Raw::Integer(_) | Raw::List(_) | Raw::Other(_) => Err(ValueError::NotAllowed),
        }
    }

    fn display(&self, value: &bool) -> Json {
        (*value).into()
    }

    fn allowed(&self) -> String {
        "true or false".to_owned()
    }
}

/// One of these words.
pub(crate) struct Choice<T: 'static>(pub(crate) &'static [(&'static str, T)]);

impl<T: Copy + PartialEq + Sync> Kind for Choice<T> {
    type Value = T;

    fn parse(&self, raw: &Raw) -> Result<T, ValueError> {
        let chosen = raw.text().and_then(|text| self.0.iter().find(|(word, _)| *word == text));
        chosen.map(|(_, value)| *value).ok_or(ValueError::NotAllowed)
    }

    fn display(&self, value: &T) -> Json {
        self.0.iter().find(|(_, choice)| choice == value).map(|(word, _)| *word).into()
    }

    fn allowed(&self) -> String {
        let words: Vec<_> = self.0.iter().map(|(word, _)| *word).collect();
        words.split_last().map_or_else(String::new, |(last, others)| format!("{} or {last}", others.join(", ")))
    }
}

/// A text that a function parses.
pub(crate) struct Text<T> {
    pub(crate) parse: fn(&str) -> Result<T, ValueError>,
    pub(crate) display: fn(&T) -> String,
    pub(crate) allowed: &'static str,
    /// Returns the secret parts; `None` if the kind is not secret.
    pub(crate) secrets: Option<fn(&T) -> Vec<SecretValue>>,
}

impl<T: Display> Text<T> {
    pub(crate) const fn new(parse: fn(&str) -> Result<T, ValueError>, allowed: &'static str) -> Self {
        Self { parse, display: T::to_string, allowed, secrets: None }
    }
}

impl<T> Kind for Text<T> {
    type Value = T;

    fn parse(&self, raw: &Raw) -> Result<T, ValueError> {
        (self.parse)(raw.text().ok_or(ValueError::NotAllowed)?)
    }

    fn display(&self, value: &T) -> Json {
        (self.display)(value).into()
    }

    fn allowed(&self) -> String {
        self.allowed.to_owned()
    }

    fn is_secret(&self) -> bool {
        self.secrets.is_some()
    }

    fn secrets(&self, value: &T) -> Vec<SecretValue> {
        self.secrets.map(|secrets| secrets(value)).unwrap_or_default()
    }
}

/// The same kind, where the empty text means "none".
pub(crate) struct Optional<K>(pub(crate) K);

impl<K: Kind> Kind for Optional<K> {
    type Value = Option<K::Value>;

    fn parse(&self, raw: &Raw) -> Result<Option<K::Value>, ValueError> {
        match raw.text() {
            Some(text) if text.trim().is_empty() => Ok(None),
            Some(_) | None => self.0.parse(raw).map(Some),
        }
    }

    fn display(&self, value: &Option<K::Value>) -> Json {
        value.as_ref().map_or_else(|| "".into(), |value| self.0.display(value))
    }

    fn allowed(&self) -> String {
        format!("{}, or empty", self.0.allowed())
    }
}

/// A list of texts that a function parses; separated by commas in the environment.
pub(crate) struct List<T> {
    pub(crate) parse: fn(&[&str]) -> Result<T, ValueError>,
    pub(crate) display: fn(&T) -> Vec<String>,
    pub(crate) allowed: &'static str,
}

impl<T> Kind for List<T> {
    type Value = T;

    fn parse(&self, raw: &Raw) -> Result<T, ValueError> {
        let items: Vec<_> = match raw {
            Raw::List(items) => items.iter().map(String::as_str).collect(),
            Raw::Text(text) => text.expose().split(',').map(str::trim).filter(|item| !item.is_empty()).collect(),
            Raw::String(_) | Raw::Integer(_) | Raw::Bool(_) | Raw::Other(_) => return Err(ValueError::NotAllowed),
        };
        (self.parse)(&items)
    }

    fn display(&self, value: &T) -> Json {
        (self.display)(value).into()
    }

    fn allowed(&self) -> String {
        self.allowed.to_owned()
    }
}

/// A short name, of characters without a special meaning in URLs, paths or keys.
pub(crate) const NAME: Text<String> = Text::new(name, "1 to 64 letters, digits, `.`, `_` and `-`");

/// A URL of an HTTP server, without a trailing slash, since paths are appended to it.
pub(crate) const HTTP_URL: Text<String> = Text::new(
    |text| url(text, ["https", "http"]),
    "an http or https URL without user name, password, query or fragment",
);

/// A secret without a special form.
pub(crate) const fn secret(
    parse: fn(&str) -> Result<SecretValue, ValueError>,
    allowed: &'static str,
) -> Text<SecretValue> {
    Text { parse, display: |_| "(redacted)".to_owned(), allowed, secrets: Some(|secret| vec![secret.clone()]) }
}

/// The path of a file or folder.
pub(crate) const fn path(allowed: &'static str) -> Optional<Text<PathBuf>> {
    let parse = |text: &str| Ok(PathBuf::from(text));
    Optional(Text { parse, display: |path| path.display().to_string(), allowed, secrets: None })
}

/// A numeric IP address and a port.
pub(crate) const fn address(allowed: &'static str) -> Text<SocketAddr> {
    Text::new(|text| text.parse().map_err(|_| ValueError::NotAllowed), allowed)
}

/// Parses a text whose errors describe themselves.
pub(crate) fn from_text<T: FromStr<Err: Display>>(text: &str) -> Result<T, ValueError> {
    text.parse().map_err(|error: T::Err| ValueError::Message(error.to_string()))
}

pub(crate) fn token(text: &str) -> Result<SecretValue, ValueError> {
    if text.is_empty() {
        return Err(ValueError::Message("is empty".to_owned()));
    }
    if text.starts_with("Bot ") {
        return Err(ValueError::Message("starts with `Bot `, which is added where it is needed".to_owned()));
    }
    // Plain characters only, so that a token is the same in JSON, in `Debug` output and on the wire: the redaction of
    // logs depends on it.
    if text.chars().all(is_plain) { Ok(SecretValue::new(text)) } else { Err(ValueError::NotAllowed) }
}

fn name(text: &str) -> Result<String, ValueError> {
    let fits = (1..=64).contains(&text.len()) && text.chars().all(is_plain);
    if fits { Ok(text.to_owned()) } else { Err(ValueError::NotAllowed) }
}

fn is_plain(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-')
}

/// Parses an absolute URL with one of these schemes.
pub(crate) fn url(text: &str, schemes: [&str; 2]) -> Result<String, ValueError> {
    let url = Url::parse(text).map_err(|_| ValueError::NotAllowed)?;
    if !url.username().is_empty() || url.password().is_some() {
        return Err(ValueError::Message("contains a user name or password".to_owned()));
    }
    let fits = schemes.contains(&url.scheme()) && url.has_host() && url.query().is_none() && url.fragment().is_none();
    if fits { Ok(url.as_str().trim_end_matches('/').to_owned()) } else { Err(ValueError::NotAllowed) }
}
