//! The target of a request: the path of Discord's API, and the version that it is for.

use guildhall_actors::gate::ApiVersion;
use http::{Method, Uri};

/// Versions that can be requested.
const VERSIONS: [u8; 2] = [9, 10];

/// Where a request goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Target {
    pub(super) version: ApiVersion,
    /// Path below the version, with the query.
    pub(super) path: String,
}

/// A request is not for Discord's API.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum TargetError {
    /// It requests a tunnel.
    #[error(
        "CONNECT is not supported: this is not an HTTP proxy. Set the base URL of your library to this address instead, \
         such as http://127.0.0.1:8081/api, and remove the proxy setting"
    )]
    Tunnel,
    /// It names another server.
    #[error(
        "the request names a server: this is not an HTTP proxy. Set the base URL of your library to this address instead, \
         such as http://127.0.0.1:8081/api, and remove the proxy setting"
    )]
    AbsoluteForm,
    /// Its path is not one of the API.
    #[error("the path must start with /api/v10/, /api/v9/ or /api/, as at discord.com")]
    Elsewhere,
    /// It is for a version that is not supported.
    #[error("this version of the API is not supported; use /api/v10/ or /api/v9/")]
    Version,
}

impl Target {
    /// Reads the target of a request as it was received. The path itself is validated with the call.
    pub(super) fn read(method: &Method, uri: &Uri) -> Result<Self, TargetError> {
        if *method == Method::CONNECT {
            return Err(TargetError::Tunnel);
        }
        if uri.scheme().is_some() || uri.authority().is_some() {
            return Err(TargetError::AbsoluteForm);
        }
        let given = uri.path_and_query().map_or("", http::uri::PathAndQuery::as_str);
        let below = given.strip_prefix("/api/").ok_or(TargetError::Elsewhere)?;
        let (first, rest) = below.split_once('/').unwrap_or((below, ""));
        match first.strip_prefix('v').filter(|digits| is_number(digits)) {
            Some(digits) => {
                let number = digits.parse().ok().filter(|number| VERSIONS.contains(number) && !digits.starts_with('0'));
                let version = ApiVersion::Number(number.ok_or(TargetError::Version)?);
                Ok(Self { version, path: format!("/{rest}") })
            }
            None => Ok(Self { version: ApiVersion::Unversioned, path: format!("/{below}") }),
        }
    }
}

fn is_number(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}

/// Whether the token in a path permits the call: a webhook with its token, or a response to an interaction.
pub(super) fn has_own_token(path: &str) -> bool {
    let path = path.split_once('?').map_or(path, |(path, _)| path);
    let segments: Vec<&str> = path.split('/').skip(1).collect();
    match segments.as_slice() {
        ["webhooks", id, token, ..] | ["interactions", id, token, "callback"] => is_number(id) && !token.is_empty(),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(uri: &str) -> Result<(ApiVersion, String), TargetError> {
        Target::read(&Method::GET, &uri.parse().unwrap()).map(|target| (target.version, target.path))
    }

    #[test]
    fn version_and_path_are_separated() {
        for (uri, version, path) in [
            ("/api/v10/users/@me", ApiVersion::Number(10), "/users/@me"),
            ("/api/v9/guilds/1?with_counts=true", ApiVersion::Number(9), "/guilds/1?with_counts=true"),
            ("/api/users/@me", ApiVersion::Unversioned, "/users/@me"),
            ("/api/voice/regions", ApiVersion::Unversioned, "/voice/regions"),
            ("/api/v10", ApiVersion::Number(10), "/"),
            ("/api/v10//guilds", ApiVersion::Number(10), "//guilds"),
            ("/api/V10/guilds", ApiVersion::Unversioned, "/V10/guilds"),
        ] {
            assert_eq!(read(uri), Ok((version, path.to_owned())), "{uri}");
        }
    }

    #[test]
    fn what_is_not_the_api_is_refused_with_advice() {
        for uri in ["/", "/api", "/users/@me", "//api/v10/users", "/%61pi/v10/users", "/API/v10/users", "*"] {
            assert_eq!(read(uri), Err(TargetError::Elsewhere), "{uri}");
        }
        for uri in ["/api/v8/users/@me", "/api/v010/users/@me", "/api/v99999999999/users"] {
            assert_eq!(read(uri), Err(TargetError::Version), "{uri}");
        }
        assert_eq!(read("http://discord.com/api/v10/users/@me"), Err(TargetError::AbsoluteForm));
        let tunnel = Target::read(&Method::CONNECT, &"discord.com:443".parse().unwrap());
        assert_eq!(tunnel, Err(TargetError::Tunnel));
        assert!(TargetError::Tunnel.to_string().contains("base URL"));
    }

    #[test]
    fn token_in_the_path_is_recognized_only_in_its_place() {
        for (path, expected) in [
            ("/webhooks/1/token", true),
            ("/webhooks/1/token/messages/@original?thread_id=1", true),
            ("/interactions/1/token/callback", true),
            ("/interactions/1/token", false),
            ("/webhooks/1", false),
            ("/webhooks/1?x=/token", false),
            ("/webhooks/me/token", false),
            ("/channels/1/webhooks", false),
            ("/x/webhooks/1/token", false),
        ] {
            assert_eq!(has_own_token(path), expected, "{path}");
        }
    }
}
