//! Messages on an application's `news` channel, and the format of breaker records.

use std::time::Duration;

use guildhall_core::breaker::{self, BreakerKey, BreakerReason, BreakerStatus, SharedBreakerKey, SharedBreakerState};
use serde::{Deserialize, Serialize};

/// A message that a process published.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PubSubMessage {
    /// A breaker changed.
    Breaker(BreakerRecord),
    /// Discord requires a pause.
    Block(RateLimitBlock),
}

/// A pause that Discord required of a process.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct RateLimitBlock {
    /// Name of the credential's window.
    pub scope: String,
    /// Duration in milliseconds.
    pub ms: u64,
    /// The member that received it.
    pub by: String,
}

/// The last replicated state of a breaker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BreakerRecord {
    /// The change.
    pub news: breaker::RemoteChange,
    /// The processes that it applies to: those that reach Discord from the same address. `None`: all.
    pub group: Option<String>,
    /// The process that published it.
    pub by: String,
}

/// Text that is not a valid message, or is of a kind that only a later version knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("invalid message; check that all processes run the same version")]
pub struct PubSubParseError;

#[derive(Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
enum WireMessage {
    Breaker(WireRecord),
    Block(RateLimitBlock),
}

#[derive(Deserialize)]
struct WireRecord {
    key: String,
    token: Option<String>,
    group: Option<String>,
    state: WireState,
    why: BreakerReason,
    by: String,
    /// As text, because not every reader handles such numbers exactly.
    version: String,
    /// How long it was open when it was published, and until when by the server's clock.
    ms: u64,
    until_ms: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum WireState {
    Closed,
    Open,
    ForcedOpen,
}

impl WireState {
    const fn of(stand: SharedBreakerState) -> Self {
        match stand {
            SharedBreakerState::Closed => Self::Closed,
            SharedBreakerState::Open { .. } => Self::Open,
            SharedBreakerState::ForcedOpen => Self::ForcedOpen,
        }
    }

    const fn name(self) -> &'static str {
        match self {
            Self::Closed => "closed",
            Self::Open => "open",
            Self::ForcedOpen => "forced_open",
        }
    }
}

impl PubSubMessage {
    /// Parses a message that was just published.
    ///
    /// # Errors
    ///
    /// When it is not a valid message.
    pub fn read(text: &[u8]) -> Result<Self, PubSubParseError> {
        match serde_json::from_slice(text).map_err(|_| PubSubParseError)? {
            WireMessage::Breaker(wire) => {
                let remaining = wire.ms;
                wire.record(remaining).map(Self::Breaker)
            }
            WireMessage::Block(block) => Ok(Self::Block(block)),
        }
    }
}

impl BreakerRecord {
    /// Parses a stored record, at `now_ms` by the server's clock.
    pub(super) fn read(text: &[u8], now_ms: u64) -> Result<Self, PubSubParseError> {
        match serde_json::from_slice(text).map_err(|_| PubSubParseError)? {
            WireMessage::Breaker(wire) => {
                let remaining = wire.until_ms.saturating_sub(now_ms);
                wire.record(remaining)
            }
            WireMessage::Block(_) => Err(PubSubParseError),
        }
    }
}

impl WireRecord {
    fn record(self, remaining_ms: u64) -> Result<BreakerRecord, PubSubParseError> {
        let key: BreakerKey = self.key.parse().map_err(|_| PubSubParseError)?;
        let stand = match self.state {
            WireState::Closed => SharedBreakerState::Closed,
            WireState::Open => SharedBreakerState::Open { remaining: Duration::from_millis(remaining_ms) },
            WireState::ForcedOpen => SharedBreakerState::ForcedOpen,
        };
        let word = BreakerStatus { matter: SharedBreakerKey { key, token: self.token }, stand, why: self.why };
        let version = self.version.parse().map_err(|_| PubSubParseError)?;
        Ok(BreakerRecord { news: breaker::RemoteChange { word, version }, group: self.group, by: self.by })
    }
}

/// A record in the form that `tell.lua` takes.
pub(super) struct ScriptRecord {
    /// Field of the hash that it is stored in.
    pub(super) field: String,
    /// Start of the record: JSON without the last brace.
    pub(super) head: String,
    pub(super) state: &'static str,
    pub(super) why: &'static str,
    pub(super) remaining_ms: u64,
}

/// Builds the record to publish. A ban applies to an address, so its record concerns only processes behind that
/// address.
pub(super) fn write(word: &BreakerStatus, ip_group: &str, by: &str) -> ScriptRecord {
    #[derive(Serialize)]
    struct Head<'a> {
        kind: &'static str,
        key: &'a BreakerKey,
        token: Option<&'a str>,
        group: Option<&'a str>,
        state: WireState,
        why: BreakerReason,
        by: &'a str,
    }
    let BreakerStatus { matter: SharedBreakerKey { key, token }, stand, why } = word;
    let group = (*key == BreakerKey::Address).then_some(ip_group);
    let token = token.as_deref();
    let state = WireState::of(*stand);
    let head = Head { kind: "breaker", key, token, group, state, why: *why, by };
    let mut head = serde_json::to_string(&head).expect("invariant: text can be written as JSON");
    head.truncate(head.len() - 1);
    let field = field(&word.matter, ip_group);
    let remaining_ms = match stand {
        SharedBreakerState::Open { remaining } => u64::try_from(remaining.as_millis()).unwrap_or(u64::MAX).min(MOST_MS),
        SharedBreakerState::Closed | SharedBreakerState::ForcedOpen => 0,
    };
    ScriptRecord { field, head, state: state.name(), why: why.name(), remaining_ms }
}

/// Name of a breaker's field in Redis, among those of an application.
pub(super) fn field(matter: &SharedBreakerKey, ip_group: &str) -> String {
    let SharedBreakerKey { key, token } = matter;
    let group = (*key == BreakerKey::Address).then_some(ip_group);
    match group.or(token.as_deref()) {
        Some(concerned) => format!("{key}|{concerned}"),
        None => key.to_string(),
    }
}

/// The script computes with doubles: below this, no sum with the current time is rounded.
const MOST_MS: u64 = 1 << 50;

#[cfg(test)]
mod tests {
    use guildhall_core::response::Credential;
    use guildhall_core::route::RouteKey;

    use super::*;

    const BOT: Credential = Credential::Application(42);

    fn word(key: BreakerKey, token: Option<&str>, stand: SharedBreakerState, why: BreakerReason) -> BreakerStatus {
        BreakerStatus { matter: SharedBreakerKey { key, token: token.map(str::to_owned) }, stand, why }
    }

    /// The record that the script stores.
    fn kept(told: &ScriptRecord, version: u64, now_ms: u64) -> String {
        let ScriptRecord { head, remaining_ms, .. } = told;
        let until = now_ms + remaining_ms;
        format!(r#"{head},"version":"{version}","ms":{remaining_ms},"until_ms":{until}}}"#)
    }

    #[test]
    fn what_is_written_is_read_back() {
        let open = SharedBreakerState::Open { remaining: Duration::from_millis(1_500) };
        for (word, field) in [
            (word(BreakerKey::Address, None, open, BreakerReason::Blocked), "discord|home"),
            (
                word(
                    BreakerKey::Discord(BOT),
                    Some("ab12"),
                    SharedBreakerState::ForcedOpen,
                    BreakerReason::Unauthorized,
                ),
                "discord:42|ab12",
            ),
            (
                word(
                    BreakerKey::Route(BOT, RouteKey::new("GET /x \"y\"")),
                    None,
                    SharedBreakerState::Closed,
                    BreakerReason::ProbesSucceeded,
                ),
                "discord:42/GET /x \"y\"",
            ),
            (
                word(
                    BreakerKey::Target("crm|1".to_owned()),
                    None,
                    SharedBreakerState::ForcedOpen,
                    BreakerReason::Forced,
                ),
                "target:crm|1",
            ),
        ] {
            let told = write(&word, "home", "me");
            assert_eq!(told.field, field);
            let text = kept(&told, 1 << 52, 1_000);
            let group = (word.matter.key == BreakerKey::Address).then(|| "home".to_owned());
            let record = BreakerRecord {
                news: breaker::RemoteChange { word: word.clone(), version: 1 << 52 },
                group,
                by: "me".to_owned(),
            };
            assert_eq!(PubSubMessage::read(text.as_bytes()), Ok(PubSubMessage::Breaker(record.clone())));
            assert_eq!(BreakerRecord::read(text.as_bytes(), 1_000), Ok(record));
        }
    }

    #[test]
    fn a_record_is_open_for_what_time_has_left_of_it() {
        let remaining = Duration::from_secs(2);
        let told = write(
            &word(BreakerKey::Address, None, SharedBreakerState::Open { remaining }, BreakerReason::Blocked),
            "home",
            "me",
        );
        let text = kept(&told, 1, 1_000);
        let left = |now| BreakerRecord::read(text.as_bytes(), now).unwrap().news.word.stand;
        assert_eq!(left(2_500), SharedBreakerState::Open { remaining: Duration::from_millis(500) });
        assert_eq!(left(9_000), SharedBreakerState::Open { remaining: Duration::ZERO });
    }

    #[test]
    fn a_block_is_read() {
        let text = br#"{"kind":"block","scope":"bot","ms":1234,"by":"7-1"}"#;
        let block = RateLimitBlock { scope: "bot".to_owned(), ms: 1_234, by: "7-1".to_owned() };
        assert_eq!(PubSubMessage::read(text), Ok(PubSubMessage::Block(block)));
        assert_eq!(BreakerRecord::read(text, 0), Err(PubSubParseError));
    }

    #[test]
    fn what_is_no_news_is_refused() {
        let told =
            write(&word(BreakerKey::Address, None, SharedBreakerState::Closed, BreakerReason::Reset), "home", "me");
        let good = kept(&told, 1, 1);
        for text in [
            "",
            "{}",
            "[1]",
            r#"{"kind":"weather"}"#,
            r#"{"kind":"block","scope":"bot"}"#,
            r#"{"kind":"breaker"}"#,
            &good.replace(r#""discord""#, r#""discords""#),
            &good.replace(r#""version":"1""#, r#""version":"x""#),
            &good.replace(r#""closed""#, r#""ajar""#),
            &good.replace(r#""reset""#, r#""whim""#),
        ] {
            assert_eq!(PubSubMessage::read(text.as_bytes()), Err(PubSubParseError), "{text}");
        }
    }
}
