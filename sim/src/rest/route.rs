//! Routes: a method, a template, its authentication, and its handler.

use http::Method;
use serde::Serialize;

use super::call::{Call, Reply};
use super::error::ApiError;
use crate::id::Snowflake;
use crate::world::World;

/// Handler of a route: changes the world and returns a reply. It adds events for the gateway to the world's dispatches.
pub(crate) type Handler = fn(&mut World, &Call<'_>) -> Result<Reply, ApiError>;

/// One REST route.
#[derive(Debug, Serialize)]
pub(crate) struct Route {
    #[serde(serialize_with = "method_name")]
    pub(crate) method: Method,
    /// The path below the version, with parameters in braces, named as Discord does.
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

/// Authentication of a route.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Auth {
    /// A bot, by its token.
    Bot,
    /// No token needed.
    Open,
    /// The interaction's own token, which is in the path. Exempt from the global limit.
    InteractionToken,
}

/// The parameters of a path, in the order of its template.
#[derive(Clone, Debug, Default)]
pub(crate) struct Params<'a> {
    values: Vec<(&'static str, &'a str)>,
}

impl<'a> Params<'a> {
    /// The text of a parameter; empty if the template has none of that name.
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

/// Matches `path` (below the version) with a template; `None` if it does not match.
pub(crate) fn match_template<'a>(template: &'static str, path: &'a str) -> Option<Params<'a>> {
    // Most templates fail here, before anything is allocated.
    let literal = |part: &str| !part.starts_with('{');
    let mut shape = path.split('/');
    if !template.split('/').all(|expected| shape.next().is_some_and(|part| !literal(expected) || expected == part))
        || shape.next().is_some()
    {
        return None;
    }
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
    Some(params)
}

/// Finds the route of a call. Literal parts take precedence over parameters, because the table lists them first.
pub(crate) fn find<'a>(
    table: &'static [Route],
    method: &Method,
    path: &'a str,
) -> Result<(&'static Route, Params<'a>), ApiError> {
    let mut path_exists = false;
    for route in table {
        if route.method == *method {
            if let Some(params) = match_template(route.template, path) {
                return Ok((route, params));
            }
        } else if !path_exists {
            path_exists = match_template(route.template, path).is_some();
        }
    }
    Err(if path_exists { ApiError::METHOD_NOT_ALLOWED } else { ApiError::NO_SUCH_ROUTE })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn path_matches_a_template_of_its_length_and_literals() {
        let template = "/guilds/{guild.id}/roles/{role.id}";
        let params = match_template(template, "/guilds/1/roles/2").unwrap();
        assert_eq!((params.text("guild.id"), params.id("role.id").unwrap()), ("1", Snowflake::new(2)));
        for path in ["/guilds/1/roles", "/guilds/1/roles/2/3", "/guilds/1/channels/2", "/guilds//roles/2"] {
            assert!(match_template(template, path).is_none(), "{path}");
        }
    }

    #[test]
    fn invalid_id_is_an_invalid_form() {
        let params = match_template("/guilds/{guild.id}", "/guilds/abc").unwrap();
        assert_eq!(params.id("guild.id").unwrap_err().code, 50035);
    }
}
