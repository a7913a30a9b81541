//! Routes: a method, a template, who may call it, and the handler behind it.

use http::Method;
use serde::Serialize;

use super::call::{Call, Reply};
use super::error::ApiError;
use crate::id::Snowflake;
use crate::world::World;

/// What serves a route: it changes the world and answers. What the gateway should hear of, it adds to the world's outbox.
pub(crate) type Handler = fn(&mut World, &Call<'_>) -> Result<Reply, ApiError>;

/// One REST route.
#[derive(Debug, Serialize)]
pub(crate) struct Route {
    #[serde(serialize_with = "method_name")]
    pub(crate) method: Method,
    /// The path below the version, with parameters in braces and Discord's names for them.
    #[serde(rename = "path")]
    pub(crate) template: &'static str,
    #[serde(skip)]
    pub(crate) auth: Auth,
    #[serde(skip)]
    pub(crate) handler: Handler,
}

fn method_name<S: serde::Serializer>(method: &Method, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(method.as_str())
}

/// Who may call a route.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Auth {
    /// A bot, by its token.
    Bot,
    /// Anybody: no token is asked for.
    Open,
    /// Whoever holds the interaction's own token, which is in the path. Not bound by the global limit.
    InteractionToken,
}

/// The parameters of a path, in the order of its template.
#[derive(Clone, Debug, Default)]
pub(crate) struct Params<'a> {
    values: Vec<(&'static str, &'a str)>,
}

impl<'a> Params<'a> {
    /// A parameter's text; empty if the template has none of that name.
    pub(crate) fn text(&self, name: &str) -> &'a str {
        self.values.iter().find(|(key, _)| *key == name).map_or("", |(_, value)| value)
    }

    /// A parameter that must be a snowflake.
    pub(crate) fn id(&self, name: &str) -> Result<Snowflake, ApiError> {
        let text = self.text(name);
        text.parse().map_err(|_| {
            let field = name.replace('.', "_");
            ApiError::form(&field, "NUMBER_TYPE_COERCE", &format!("Value \"{text}\" is not snowflake."))
        })
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (&'static str, &'a str)> + '_ {
        self.values.iter().copied()
    }
}

/// Matches `path` (below the version) with a template; `None` if it does not fit.
pub(crate) fn match_template<'a>(template: &'static str, path: &'a str) -> Option<Params<'a>> {
    let mut params = Params::default();
    let mut parts = path.split('/');
    for expected in template.split('/') {
        let part = parts.next()?;
        match expected.strip_prefix('{').and_then(|name| name.strip_suffix('}')) {
            Some(name) if !part.is_empty() => params.values.push((name, part)),
            None if expected == part => {}
            _ => return None,
        }
    }
    parts.next().is_none().then_some(params)
}

/// Finds the route for a call. Literal parts win over parameters, since the table lists them first.
pub(crate) fn find<'a>(
    table: &'static [Route],
    method: &Method,
    path: &'a str,
) -> Result<(&'static Route, Params<'a>), ApiError> {
    let mut known_path = false;
    for route in table {
        if route.method == *method || !known_path {
            if let Some(params) = match_template(route.template, path) {
                if route.method == *method {
                    return Ok((route, params));
                }
                known_path = true;
            }
        }
    }
    Err(if known_path { ApiError::METHOD_NOT_ALLOWED } else { ApiError::NO_SUCH_ROUTE })
}
