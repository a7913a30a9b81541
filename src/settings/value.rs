//! Parses values into the types of settings.

use std::{net::SocketAddr, path::PathBuf};

use guildhall_core::budget::BudgetLimits;
use tracing_subscriber::EnvFilter;
use twilight_model::gateway::Intents;
use url::Url;

use super::{
    budgets::{self, NamedBudget, NamedBudgetError},
    gateway::{ShardRange, ShardRangeError},
    network::{IpNetwork, IpNetworkError},
    public_key::{PublicKey, PublicKeyError},
    redis_url::{RedisUrl, RedisUrlError},
    schema::{Key, Kind, nearest_of},
    secret::SecretValue,
    source::Raw,
    store_url::{StoreUrl, StoreUrlError},
    telemetry,
};

/// A validated value.
#[derive(Clone, Debug)]
pub(crate) enum Value {
    Secret(SecretValue),
    RedisUrl(RedisUrl),
    StoreUrl(StoreUrl),
    Headers(Vec<(String, SecretValue)>),
    Text(String),
    Url(Option<Url>),
    Integer(u64),
    Bool(bool),
    Path(Option<PathBuf>),
    Intents(Intents),
    ShardRange(Option<ShardRange>),
    Address(SocketAddr),
    Networks(Vec<IpNetwork>),
    PublicKey(Option<PublicKey>),
    Budgets(Vec<NamedBudget>),
    BudgetLimits(Option<BudgetLimits>),
}

impl Value {
    /// Whether another value is the same, including secrets.
    pub(crate) fn equals(&self, other: &Self) -> bool {
        let exposed =
            |tokens: Vec<SecretValue>| tokens.iter().map(|token| token.expose().to_owned()).collect::<Vec<_>>();
        let secrets = |value: &Self| match value {
            Self::Secret(secret) => exposed(vec![secret.clone()]),
            Self::Headers(headers) => {
                headers.iter().flat_map(|(name, value)| [name.clone(), value.expose().to_owned()]).collect()
            }
            Self::RedisUrl(url) => exposed([&url.username, &url.password].into_iter().flatten().cloned().collect()),
            Self::StoreUrl(url) => exposed(url.secrets().into_iter().collect()),
            Self::Text(_)
            | Self::Url(_)
            | Self::Integer(_)
            | Self::Bool(_)
            | Self::Path(_)
            | Self::Intents(_)
            | Self::ShardRange(_)
            | Self::Address(_)
            | Self::Networks(_)
            | Self::PublicKey(_)
            | Self::Budgets(_)
            | Self::BudgetLimits(_) => Vec::new(),
        };
        self.to_redacted_json() == other.to_redacted_json() && secrets(self) == secrets(other)
    }

    /// Returns the value as `config check` displays it, with secrets redacted.
    pub(crate) fn to_redacted_json(&self) -> serde_json::Value {
        match self {
            Self::Secret(_) | Self::Headers(_) => "(redacted)".into(),
            Self::RedisUrl(url) => url.to_string().into(),
            Self::StoreUrl(url) => url.to_string().into(),
            Self::Text(text) => text.as_str().into(),
            Self::Url(url) => url.as_ref().map_or("", |url| url_text(url)).into(),
            Self::Integer(number) => (*number).into(),
            Self::Bool(truth) => (*truth).into(),
            Self::Path(path) => path.as_ref().map_or(String::new(), |path| path.display().to_string()).into(),
            Self::Intents(intents) => intent_names(*intents).into(),
            Self::ShardRange(range) => range.map_or_else(String::new, |range| range.to_string()).into(),
            Self::Address(address) => address.to_string().into(),
            Self::Networks(networks) => networks.iter().map(ToString::to_string).collect::<Vec<_>>().into(),
            Self::PublicKey(key) => key.map_or_else(String::new, |key| key.to_string()).into(),
            Self::Budgets(budgets) => budgets.iter().map(ToString::to_string).collect::<Vec<_>>().into(),
            Self::BudgetLimits(limits) => limits.map_or_else(String::new, budgets::format_limits).into(),
        }
    }
}

/// Returns a URL without a trailing slash, since paths are appended to it.
pub(crate) fn url_text(url: &Url) -> &str {
    url.as_str().trim_end_matches('/')
}

/// Returns the names of intents, as the settings write them.
pub(crate) fn intent_names(intents: Intents) -> Vec<String> {
    intents.iter_names().map(|(name, _)| name.to_lowercase()).collect()
}

/// Validates a value of a setting. The error describes the problem and the permitted values, and never contains a
/// secret.
pub(crate) fn check(key: &Key, raw: &Raw) -> Result<Value, String> {
    parse(key.kind, raw).map_err(|message| {
        let message = match message {
            ValueError::Message(details) => details,
            ValueError::NotAllowed => match quote(raw) {
                Some(text) if !key.is_secret() => format!("cannot be {text}"),
                Some(_) | None => "has an invalid value".to_owned(),
            },
        };
        format!("{message}; allowed: {}", key.allowed)
    })
}

enum ValueError {
    /// An error with a description of its own.
    Message(String),
    /// The value is not permitted; the message quotes it unless it may be secret.
    NotAllowed,
}

/// Formats a value for an error message; `None` if it might contain a password.
fn quote(raw: &Raw) -> Option<String> {
    let text = match raw {
        Raw::Text(text) | Raw::String(text) if text.contains('@') => return None,
        Raw::Text(text) | Raw::String(text) => format!("{text:?}"),
        Raw::Integer(number) => number.to_string(),
        Raw::Bool(truth) => truth.to_string(),
        Raw::List(items) => format!("{items:?}"),
        Raw::Other(what) => (*what).to_owned(),
    };
    Some(text)
}

fn parse(kind: Kind, raw: &Raw) -> Result<Value, ValueError> {
    match (kind, raw) {
        (Kind::Secret, Raw::Text(text) | Raw::String(text)) => secret(text).map(Value::Secret),
        (Kind::RedisUrl, Raw::Text(text) | Raw::String(text)) => redis_url(text).map(Value::RedisUrl),
        (Kind::StoreUrl, Raw::Text(text) | Raw::String(text)) => store_url(text).map(Value::StoreUrl),
        (Kind::Headers, Raw::Text(text) | Raw::String(text)) => {
            telemetry::parse_headers(text).map(Value::Headers).map_err(ValueError::Message)
        }
        (Kind::Url { schemes, optional }, Raw::Text(text) | Raw::String(text)) => {
            if text.is_empty() && optional {
                Ok(Value::Url(None))
            } else {
                url(text, schemes).map(Value::Url)
            }
        }
        (Kind::Integer { min, max }, Raw::Text(_) | Raw::Integer(_)) => {
            let number = match raw {
                Raw::Text(text) => text.trim().parse().ok(),
                Raw::Integer(number) => u64::try_from(*number).ok(),
                _ => None,
            };
            number.filter(|number| (min..=max).contains(number)).map(Value::Integer).ok_or(ValueError::NotAllowed)
        }
        (Kind::Bool, Raw::Bool(truth)) => Ok(Value::Bool(*truth)),
        (Kind::Bool, Raw::Text(text)) => text.parse().map(Value::Bool).map_err(|_| ValueError::NotAllowed),
        (Kind::Choice(words), Raw::Text(text) | Raw::String(text)) => {
            if words.contains(&text.as_str()) {
                Ok(Value::Text(text.clone()))
            } else {
                Err(ValueError::NotAllowed)
            }
        }
        (Kind::Name, Raw::Text(text) | Raw::String(text)) => name(text).map(Value::Text),
        (Kind::Path, Raw::Text(text) | Raw::String(text)) => {
            Ok(Value::Path((!text.is_empty()).then(|| PathBuf::from(text))))
        }
        (Kind::Intents, Raw::List(names)) => intents(names.iter().map(String::as_str)),
        (Kind::Intents, Raw::Text(text)) => intents(text.split(',').map(str::trim).filter(|name| !name.is_empty())),
        (Kind::ShardRange, Raw::Text(text) | Raw::String(text)) => shard_range(text).map(Value::ShardRange),
        (Kind::Line { max_chars: most }, Raw::Text(text) | Raw::String(text)) => line(text, most).map(Value::Text),
        (Kind::Address, Raw::Text(text) | Raw::String(text)) => {
            text.parse().map(Value::Address).map_err(|_| ValueError::NotAllowed)
        }
        (Kind::Networks, Raw::List(networks)) => all_networks(networks.iter().map(String::as_str)),
        (Kind::Networks, Raw::Text(text)) => all_networks(text.split(',').filter(|text| !text.trim().is_empty())),
        (Kind::PublicKey, Raw::Text(text) | Raw::String(text)) => public_key(text).map(Value::PublicKey),
        (Kind::Budgets, Raw::List(named)) => named_budgets(named.iter().map(String::as_str)),
        (Kind::Budgets, Raw::Text(text)) => {
            named_budgets(text.split(',').map(str::trim).filter(|named| !named.is_empty()))
        }
        (Kind::BudgetLimits, Raw::Text(text) | Raw::String(text)) => budget_limits(text).map(Value::BudgetLimits),
        (Kind::Filter, Raw::Text(text) | Raw::String(text)) => filter(text),
        (
            Kind::Secret
            | Kind::RedisUrl
            | Kind::StoreUrl
            | Kind::Headers
            | Kind::Url { .. }
            | Kind::Integer { .. }
            | Kind::Bool
            | Kind::Choice(_)
            | Kind::Name
            | Kind::Path
            | Kind::Intents
            | Kind::ShardRange
            | Kind::Line { .. }
            | Kind::Address
            | Kind::Networks
            | Kind::PublicKey
            | Kind::Budgets
            | Kind::BudgetLimits
            | Kind::Filter,
            _,
        ) => Err(ValueError::NotAllowed),
    }
}

fn secret(text: &str) -> Result<SecretValue, ValueError> {
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

fn is_plain(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-')
}

fn redis_url(text: &str) -> Result<RedisUrl, ValueError> {
    if text.is_empty() {
        return Err(ValueError::Message("is empty".to_owned()));
    }
    text.parse().map_err(|error: RedisUrlError| ValueError::Message(error.to_string()))
}

fn store_url(text: &str) -> Result<StoreUrl, ValueError> {
    text.parse().map_err(|error: StoreUrlError| ValueError::Message(error.to_string()))
}

fn name(text: &str) -> Result<String, ValueError> {
    let fits = (1..=64).contains(&text.len()) && text.chars().all(is_plain);
    if fits { Ok(text.to_owned()) } else { Err(ValueError::NotAllowed) }
}

fn url(text: &str, schemes: &[&str]) -> Result<Option<Url>, ValueError> {
    let url = Url::parse(text).map_err(|_| ValueError::NotAllowed)?;
    let plain = url.username().is_empty() && url.password().is_none();
    if !plain {
        return Err(ValueError::Message("contains a user name or password".to_owned()));
    }
    let fits = schemes.contains(&url.scheme()) && url.has_host() && url.query().is_none() && url.fragment().is_none();
    if fits { Ok(Some(url)) } else { Err(ValueError::NotAllowed) }
}

fn intents<'a>(names: impl Iterator<Item = &'a str>) -> Result<Value, ValueError> {
    let mut all = Intents::empty();
    for name in names {
        let Some(intent) = Intents::from_name(&name.to_uppercase()) else {
            let guess = nearest_of(name, intent_names(Intents::all()).into_iter())
                .map_or_else(String::new, |near| format!(" (did you mean `{near}`?)"));
            return Err(ValueError::Message(format!("has {name:?}, which is not an intent{guess}")));
        };
        all |= intent;
    }
    Ok(Value::Intents(all))
}

fn shard_range(text: &str) -> Result<Option<ShardRange>, ValueError> {
    if text.trim().is_empty() {
        return Ok(None);
    }
    text.parse().map(Some).map_err(|error: ShardRangeError| ValueError::Message(error.to_string()))
}

fn all_networks<'a>(texts: impl Iterator<Item = &'a str>) -> Result<Value, ValueError> {
    let networks = texts.map(|text| text.trim().parse()).collect::<Result<_, IpNetworkError>>();
    networks.map(Value::Networks).map_err(|error| ValueError::Message(error.to_string()))
}

fn public_key(text: &str) -> Result<Option<PublicKey>, ValueError> {
    if text.trim().is_empty() {
        return Ok(None);
    }
    text.parse().map(Some).map_err(|error: PublicKeyError| ValueError::Message(error.to_string()))
}

fn named_budgets<'a>(texts: impl Iterator<Item = &'a str>) -> Result<Value, ValueError> {
    let mut all: Vec<NamedBudget> = Vec::new();
    for text in texts {
        let named: NamedBudget =
            text.parse().map_err(|error: NamedBudgetError| ValueError::Message(error.to_string()))?;
        if all.iter().any(|earlier| earlier.name == named.name) {
            return Err(ValueError::Message(format!("has the budget {:?} twice", named.name.as_str())));
        }
        all.push(named);
    }
    Ok(Value::Budgets(all))
}

fn budget_limits(text: &str) -> Result<Option<BudgetLimits>, ValueError> {
    if text.trim().is_empty() {
        return Ok(None);
    }
    budgets::parse_limits(text).map(Some).map_err(|error| ValueError::Message(error.to_string()))
}

fn line(text: &str, max_chars: usize) -> Result<String, ValueError> {
    let fits = text.chars().count() <= max_chars && !text.chars().any(char::is_control);
    if fits { Ok(text.to_owned()) } else { Err(ValueError::NotAllowed) }
}

fn filter(text: &str) -> Result<Value, ValueError> {
    let fits = !text.trim().is_empty() && EnvFilter::builder().with_regex(false).parse(text).is_ok();
    if fits { Ok(Value::Text(text.to_owned())) } else { Err(ValueError::NotAllowed) }
}
