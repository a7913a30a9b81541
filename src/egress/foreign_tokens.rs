//! Tokens of other bots and of users, whose calls pass with limits of their own.

use std::{
    collections::HashMap,
    fmt, io,
    path::{Path, PathBuf},
    sync::{Mutex, PoisonError},
};

use http::HeaderValue;
use sha2::{Digest as _, Sha256};

use crate::discord::application_id;
use crate::settings::{SecretValue, parse_bot_token};

/// Maximum number of tokens that are remembered as accepted by Discord.
const MAX_ACCEPTED: usize = 1_024;

/// How a token is presented.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Scheme {
    /// That of a bot.
    Bot,
    /// That of a user, of OAuth2.
    Bearer,
}

impl Scheme {
    const fn name(self) -> &'static str {
        match self {
            Self::Bot => "Bot",
            Self::Bearer => "Bearer",
        }
    }
}

/// A token that is not the daemon's own.
#[derive(Clone, Debug)]
pub(super) struct ForeignToken {
    pub(super) fingerprint: u64,
    /// Marked as sensitive.
    pub(super) authorization: HeaderValue,
    /// Whether Discord has accepted it before. Otherwise anybody could have made it up.
    pub(super) is_accepted: bool,
}

/// A token of the settings.
struct ConfiguredToken {
    application: Option<u64>,
    fingerprint: u64,
    authorization: HeaderValue,
}

/// A file with a token cannot be used. The text contains no token.
#[derive(Debug, thiserror::Error)]
pub(crate) enum TokenFileError {
    /// It cannot be read.
    #[error("cannot read {path} (egress.bot_token_files): {error}")]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        error: io::Error,
    },
    /// Its content is not a token.
    #[error(
        "{0} (egress.bot_token_files) does not contain a bot token; write the token alone into it, without a leading `Bot `"
    )]
    NotAToken(PathBuf),
}

/// The tokens that calls may have besides the daemon's own.
pub(super) struct ForeignTokens {
    configured: Vec<ConfiguredToken>,
    /// Whether any other token is accepted, too.
    accepts_any: bool,
    accepted: Mutex<AcceptedTokens>,
}

impl fmt::Debug for ForeignTokens {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ForeignTokens").field("configured", &self.configured.len()).finish_non_exhaustive()
    }
}

/// Fingerprints of tokens that Discord has accepted, with the order of their last use.
#[derive(Debug, Default)]
struct AcceptedTokens {
    last_use: HashMap<u64, u64>,
    latest: u64,
}

impl AcceptedTokens {
    fn insert(&mut self, fingerprint: u64) {
        self.latest += 1;
        if self.last_use.len() >= MAX_ACCEPTED && !self.last_use.contains_key(&fingerprint) {
            let oldest = self.last_use.iter().min_by_key(|(_, used)| **used).map(|(fingerprint, _)| *fingerprint);
            if let Some(oldest) = oldest {
                self.last_use.remove(&oldest);
            }
        }
        self.last_use.insert(fingerprint, self.latest);
    }
}

impl ForeignTokens {
    /// Reads the tokens of the settings.
    pub(super) fn read(files: &[PathBuf], accepts_any: bool) -> Result<Self, TokenFileError> {
        let configured = files.iter().map(|path| read_token(path)).collect::<Result<_, _>>()?;
        Ok(Self { configured, accepts_any, accepted: Mutex::default() })
    }

    /// The token, if calls may have it.
    pub(super) fn find(&self, scheme: Scheme, token: &str) -> Option<ForeignToken> {
        let authorization = authorization(scheme, token)?;
        let fingerprint = fingerprint(&authorization);
        let is_configured = self.configured.iter().any(|configured| configured.fingerprint == fingerprint);
        if !is_configured && !self.accepts_any {
            return None;
        }
        let accepted = self.accepted.lock().unwrap_or_else(PoisonError::into_inner);
        let is_accepted = is_configured || accepted.last_use.contains_key(&fingerprint);
        Some(ForeignToken { fingerprint, authorization, is_accepted })
    }

    /// The token of an application, if the settings have it.
    pub(super) fn of_application(&self, application: u64) -> Option<ForeignToken> {
        let configured = self.configured.iter().find(|configured| configured.application == Some(application))?;
        let ConfiguredToken { fingerprint, authorization, .. } = configured;
        Some(ForeignToken { fingerprint: *fingerprint, authorization: authorization.clone(), is_accepted: true })
    }

    /// Discord has answered a call with this token.
    pub(super) fn on_response(&self, fingerprint: u64, is_accepted: bool) {
        let mut accepted = self.accepted.lock().unwrap_or_else(PoisonError::into_inner);
        if is_accepted {
            accepted.insert(fingerprint);
        } else {
            accepted.last_use.remove(&fingerprint);
        }
    }
}

fn read_token(path: &Path) -> Result<ConfiguredToken, TokenFileError> {
    let text =
        std::fs::read_to_string(path).map_err(|error| TokenFileError::Unreadable { path: path.to_owned(), error })?;
    let not_a_token = || TokenFileError::NotAToken(path.to_owned());
    let token: SecretValue = parse_bot_token(text.trim()).ok_or_else(not_a_token)?;
    let authorization = authorization(Scheme::Bot, token.expose()).ok_or_else(not_a_token)?;
    let fingerprint = fingerprint(&authorization);
    Ok(ConfiguredToken { application: application_id(&token), fingerprint, authorization })
}

fn authorization(scheme: Scheme, token: &str) -> Option<HeaderValue> {
    let is_token = !token.is_empty() && token.bytes().all(|byte| byte.is_ascii_graphic());
    let mut header = is_token.then(|| HeaderValue::from_str(&format!("{} {token}", scheme.name())).ok())??;
    header.set_sensitive(true);
    Some(header)
}

/// The same in every process, so that the limits of a token survive a restart. Tokens are long and random: it reveals
/// nothing of them.
fn fingerprint(authorization: &HeaderValue) -> u64 {
    let digest = Sha256::digest(authorization.as_bytes());
    digest.iter().take(8).fold(0, |number, byte| number << 8 | u64::from(*byte))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TOKEN: &str = "MTIzNDU2Nzg5MDEyMzQ1Njc4.abc.def";

    #[test]
    fn only_configured_tokens_pass_unless_all_do() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("token");
        std::fs::write(&file, format!("{TOKEN}\n")).unwrap();
        let some = ForeignTokens::read(std::slice::from_ref(&file), false).unwrap();
        let found = some.find(Scheme::Bot, TOKEN).unwrap();
        assert!(found.is_accepted && found.authorization.is_sensitive());
        assert_eq!(found.authorization, format!("Bot {TOKEN}"));
        assert!(some.find(Scheme::Bearer, TOKEN).is_none() && some.find(Scheme::Bot, "another").is_none());
        let named = some.of_application(123_456_789_012_345_678).unwrap();
        assert_eq!(named.fingerprint, found.fingerprint);
        assert!(some.of_application(1).is_none());
        assert!(!format!("{some:?} {found:?}").contains("abc"));
        let any = ForeignTokens::read(&[], true).unwrap();
        let (bot, user) = (any.find(Scheme::Bot, TOKEN).unwrap(), any.find(Scheme::Bearer, TOKEN).unwrap());
        assert_eq!(bot.fingerprint, found.fingerprint, "the same in every process");
        assert_ne!(bot.fingerprint, user.fingerprint);
        assert!(!bot.is_accepted && any.find(Scheme::Bot, "two words").is_none());
    }

    #[test]
    fn token_is_accepted_while_discord_accepts_it() {
        let any = ForeignTokens::read(&[], true).unwrap();
        let is_accepted = || any.find(Scheme::Bearer, TOKEN).unwrap().is_accepted;
        let fingerprint = any.find(Scheme::Bearer, TOKEN).unwrap().fingerprint;
        any.on_response(fingerprint, true);
        assert!(is_accepted());
        any.on_response(fingerprint, false);
        assert!(!is_accepted());
        any.on_response(fingerprint, true);
        (0..MAX_ACCEPTED as u64).for_each(|other| any.on_response(other, true));
        assert!(!is_accepted(), "the least recently used one is forgotten");
        assert_eq!(any.accepted.lock().unwrap().last_use.len(), MAX_ACCEPTED);
    }

    #[test]
    fn unusable_token_file_is_named_without_its_content() {
        let folder = tempfile::tempdir().unwrap();
        let missing = folder.path().join("missing");
        let error = ForeignTokens::read(std::slice::from_ref(&missing), false).unwrap_err().to_string();
        assert!(error.contains("missing") && error.contains("egress.bot_token_files"), "{error}");
        for content in ["", "Bot secret-token", "two words"] {
            std::fs::write(&missing, content).unwrap();
            let error = ForeignTokens::read(std::slice::from_ref(&missing), false).unwrap_err().to_string();
            assert!(error.contains("without a leading") && !error.contains("secret"), "{error}");
        }
    }
}
