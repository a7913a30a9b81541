//! Who makes a call.

use std::{
    fmt,
    net::{IpAddr, Ipv4Addr},
    sync::Arc,
};

use guildhall_actors::access::{Caller, default_tenant};
use guildhall_core::{access::Bounds, invalid::Submitter, response::Credential};
use http::{HeaderMap, HeaderValue, StatusCode, header};

use super::answer::OwnAnswer;
use super::foreign_tokens::{ForeignToken, ForeignTokens, Scheme};
use super::target::has_own_token;
use crate::api::app_state::AppState;
use crate::api::keyring;
use crate::discord::rest::Authorization;

/// Prefix of keys.
const KEY_PREFIX: &str = "gh_";

/// Kind of a caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CallerKind {
    /// It has a key.
    Key,
    /// It has the bot token.
    Bot,
    /// It has the token of another bot or of a user.
    Token,
    /// It has none of these; the token in the path permits its call.
    Anonymous,
}

impl CallerKind {
    /// Name in metrics.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Key => "key",
            Self::Bot => "bot",
            Self::Token => "token",
            Self::Anonymous => "anonymous",
        }
    }
}

/// The caller of a call.
#[derive(Debug)]
pub(super) struct Identity {
    pub(super) kind: CallerKind,
    /// What it may do; `None` for a caller that Discord itself judges: by the bot token, or by the token in the path.
    pub(super) restricted: Option<Caller>,
    /// Credential to use at Discord.
    pub(super) credential: Credential,
    /// Header of a call with a token that is not the daemon's own.
    pub(super) authorization: Option<HeaderValue>,
    /// Who is charged for invalid requests.
    pub(super) submitter: Submitter,
    /// Its name, by which its calls in progress are counted.
    pub(super) name: Arc<str>,
}

/// Identifies callers.
pub(super) struct Credentials {
    pub(super) app: AppState,
    pub(super) authorization: Authorization,
    pub(super) bot: Credential,
    /// Tokens of other bots and of users.
    pub(super) foreign: ForeignTokens,
    /// Whether calls may have neither key nor bot token.
    pub(super) allow_anonymous: bool,
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Credentials").field("bot", &self.bot).finish_non_exhaustive()
    }
}

impl Credentials {
    /// Identifies the caller of a request.
    pub(super) async fn identify(
        &self,
        headers: &HeaderMap,
        path: &str,
        peer: IpAddr,
        request: &Arc<str>,
    ) -> Result<Identity, OwnAnswer> {
        let mut given = headers.get_all(header::AUTHORIZATION).iter();
        let authorization = match (given.next(), given.next()) {
            (Some(_), Some(_)) => {
                return Err(OwnAnswer::bad_request(
                    "authorization",
                    "the request has more than one Authorization header",
                ));
            }
            (first, _) => first,
        };
        let presented = authorization.and_then(presented_token);
        if let Some((scheme, token)) = presented {
            // The same text as a token of OAuth2 is another credential.
            if scheme == Scheme::Bot && self.is_bot_token(token) {
                return Ok(Identity {
                    kind: CallerKind::Bot,
                    restricted: None,
                    credential: self.bot,
                    authorization: None,
                    submitter: Submitter::default(),
                    name: Arc::from("bot"),
                });
            }
            let caller = self.app.authenticate(token, Arc::clone(request), peer).await;
            if let Ok(caller) = caller.map_err(|problem| OwnAnswer::of_problem(&problem))? {
                return Ok(self.keyed(caller));
            }
        }
        let is_wrong_key = presented.is_some_and(|(_, token)| token.starts_with(KEY_PREFIX));
        if has_own_token(path) && !is_wrong_key {
            return self.anonymous(peer);
        }
        let foreign = presented.filter(|_| !is_wrong_key);
        if let Some(token) = foreign.and_then(|(scheme, token)| self.foreign.find(scheme, token)) {
            return Ok(token_identity(token, peer));
        }
        if let Some(decision) = self.app.control.policies.on_failed(peer) {
            decision.delay().map_err(|problem| OwnAnswer::of_problem(&problem))?;
        }
        Err(OwnAnswer::unauthorized(match authorization {
            None => {
                "401: Unauthorized (Guildhall: the call has no Authorization header; send `Bot` and a key or the bot token)"
            }
            Some(_) if is_wrong_key => "401: Unauthorized (Guildhall: the key is unknown, expired or revoked)",
            Some(_) => {
                "401: Unauthorized (Guildhall: this is neither a key nor the bot token of this process; other tokens need \
                 egress.foreign_tokens)"
            }
        }))
    }

    fn keyed(&self, caller: Caller) -> Identity {
        let tenant = caller.tenant.clone().unwrap_or_else(default_tenant);
        Identity {
            kind: CallerKind::Key,
            credential: self.bot,
            authorization: None,
            submitter: Submitter::of(&caller.key, &tenant),
            name: Arc::clone(&caller.key),
            restricted: Some(caller),
        }
    }

    fn anonymous(&self, peer: IpAddr) -> Result<Identity, OwnAnswer> {
        if !self.allow_anonymous {
            return Err(OwnAnswer::unauthorized(
                "401: Unauthorized (Guildhall: calls without a key are refused on this address; send one, or set \
                 egress.allow_anonymous)",
            ));
        }
        let name: Arc<str> = Arc::from(format!("address:{}", peer_owner(peer)));
        Ok(Identity {
            kind: CallerKind::Anonymous,
            restricted: None,
            credential: Credential::Anonymous,
            authorization: None,
            submitter: Submitter { key: Some(Arc::clone(&name)), tenant: None },
            name,
        })
    }

    /// Makes a call with the admin key one of another application of the settings.
    pub(super) fn select_application(&self, identity: Identity, application: u64) -> Result<Identity, OwnAnswer> {
        if Credential::Application(application) == self.bot {
            return Ok(identity);
        }
        if identity.restricted.as_ref().is_none_or(|caller| caller.bounds() != Bounds::Anywhere) {
            let message = "X-Guildhall-Application needs the admin key";
            return Err(OwnAnswer::new(StatusCode::FORBIDDEN, "forbidden", message));
        }
        let Some(ForeignToken { fingerprint, authorization, .. }) = self.foreign.of_application(application) else {
            let message = "X-Guildhall-Application: no file of egress.bot_token_files has a token of this application";
            return Err(OwnAnswer::bad_request("headers", message));
        };
        Ok(Identity { credential: Credential::Token(fingerprint), authorization: Some(authorization), ..identity })
    }

    fn is_bot_token(&self, presented: &str) -> bool {
        let own = self.authorization.header();
        let own = own.to_str().ok().and_then(|value| value.strip_prefix("Bot "));
        own.is_some_and(|own| keyring::constant_time_eq(&keyring::digest(own), &keyring::digest(presented)))
    }
}

/// The identity of a token that is not the daemon's own. Until Discord has accepted it, its invalid requests are charged
/// to the address, which could make up any number of tokens.
fn token_identity(token: ForeignToken, peer: IpAddr) -> Identity {
    let credential = Credential::Token(token.fingerprint);
    let name: Arc<str> = Arc::from(credential.to_string());
    let charged =
        if token.is_accepted { Arc::clone(&name) } else { Arc::from(format!("address:{}", peer_owner(peer))) };
    Identity {
        kind: CallerKind::Token,
        restricted: None,
        credential,
        authorization: Some(token.authorization),
        submitter: Submitter { key: Some(charged), tenant: None },
        name,
    }
}

/// The address that is charged: that of the peer, or the /64 of an IPv6 address.
fn peer_owner(peer: IpAddr) -> String {
    match peer.to_canonical() {
        IpAddr::V4(address) if address == Ipv4Addr::LOCALHOST => "loopback".to_owned(),
        IpAddr::V4(address) => address.to_string(),
        IpAddr::V6(address) if address.is_loopback() => "loopback".to_owned(),
        IpAddr::V6(address) => {
            let [first, second, third, fourth, ..] = address.segments();
            format!("{first:x}:{second:x}:{third:x}:{fourth:x}::/64")
        }
    }
}

/// The token of the header, and the scheme before it.
fn presented_token(value: &HeaderValue) -> Option<(Scheme, &str)> {
    let (scheme, token) = value.to_str().ok()?.split_once(' ')?;
    let scheme = match scheme {
        bot if bot.eq_ignore_ascii_case("bot") => Scheme::Bot,
        bearer if bearer.eq_ignore_ascii_case("bearer") => Scheme::Bearer,
        _ => return None,
    };
    Some((scheme, token.trim()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn token_is_taken_from_both_schemes() {
        for (value, token) in [
            ("Bot abc", Some((Scheme::Bot, "abc"))),
            ("bot  abc ", Some((Scheme::Bot, "abc"))),
            ("Bearer abc", Some((Scheme::Bearer, "abc"))),
            ("Basic abc", None),
            ("abc", None),
        ] {
            assert_eq!(presented_token(&HeaderValue::from_static(value)), token, "{value}");
        }
    }

    #[test]
    fn addresses_of_one_owner_are_charged_together() {
        for (address, owner) in [
            ("127.0.0.1", "loopback"),
            ("::1", "loopback"),
            ("::ffff:192.0.2.1", "192.0.2.1"),
            ("2001:db8:1:2:3::4", "2001:db8:1:2::/64"),
        ] {
            assert_eq!(peer_owner(address.parse().unwrap()), owner);
        }
    }
}
