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
    pub change: breaker::RemoteChange,
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
    const fn of(state: SharedBreakerState) -> Self {
        match state {
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
    pub fn parse(text: &[u8]) -> Result<Self, PubSubParseError> {
        match serde_json::from_slice(text).map_err(|_| PubSubParseError)? {
            WireMessage::Breaker(wire) => {
                let remaining = wire.ms;
                wire.into_record(remaining).map(Self::Breaker)
            }
            WireMessage::Block(block) => Ok(Self::Block(block)),
        }
    }
}

impl BreakerRecord {
    /// Parses a stored record, at `now_ms` by the server's clock.
    pub(super) fn parse(text: &[u8], now_ms: u64) -> Result<Self, PubSubParseError> {
        match serde_json::from_slice(text).map_err(|_| PubSubParseError)? {
            WireMessage::Breaker(wire) => {
                let remaining = wire.until_ms.saturating_sub(now_ms);
                wire.into_record(remaining)
            }
            WireMessage::Block(_) => Err(PubSubParseError),
        }
    }
}

impl WireRecord {
    fn into_record(self, remaining_ms: u64) -> Result<BreakerRecord, PubSubParseError> {
        let key: BreakerKey = self.key.parse().map_err(|_| PubSubParseError)?;
        let state = match self.state {
            WireState::Closed => SharedBreakerState::Closed,
            WireState::Open => SharedBreakerState::Open { remaining: Duration::from_millis(remaining_ms) },
            WireState::ForcedOpen => SharedBreakerState::ForcedOpen,
        };
        let status = BreakerStatus { shared_key: SharedBreakerKey { key, token: self.token }, state, reason: self.why };
        let version = self.version.parse().map_err(|_| PubSubParseError)?;
        Ok(BreakerRecord { change: breaker::RemoteChange { status, version }, group: self.group, by: self.by })
    }
}

/// A record in the form that `publish.lua` takes.
pub(super) struct ScriptRecord {
    /// Field of the hash that it is stored in.
    pub(super) field_name: String,
    /// Start of the record: JSON without the last brace.
    pub(super) head: String,
    pub(super) state: &'static str,
    pub(super) reason: &'static str,
    pub(super) remaining_ms: u64,
}

/// Builds the record to publish. A ban applies to an address, so its record concerns only processes behind that
/// address.
pub(super) fn to_script_record(status: &BreakerStatus, ip_group: &str, by: &str) -> ScriptRecord {
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
    let BreakerStatus { shared_key: SharedBreakerKey { key, token }, state: stand, reason } = status;
    let group = (*key == BreakerKey::Address).then_some(ip_group);
    let token = token.as_deref();
    let state = WireState::of(*stand);
    let head = Head { kind: "breaker", key, token, group, state, why: *reason, by };
    let mut head = serde_json::to_string(&head).expect("invariant: text can be written as JSON");
    head.truncate(head.len() - 1);
    let field = field_name(&status.shared_key, ip_group);
    let remaining_ms = match stand {
        SharedBreakerState::Open { remaining } => u64::try_from(remaining.as_millis()).unwrap_or(u64::MAX).min(MAX_MS),
        SharedBreakerState::Closed | SharedBreakerState::ForcedOpen => 0,
    };
    ScriptRecord { field_name: field, head, state: state.name(), reason: reason.name(), remaining_ms }
}

/// Name of a breaker's field in Redis, among those of an application.
pub(super) fn field_name(breaker_key: &SharedBreakerKey, ip_group: &str) -> String {
    let SharedBreakerKey { key, token } = breaker_key;
    let group = (*key == BreakerKey::Address).then_some(ip_group);
    match group.or(token.as_deref()) {
        Some(suffix) => format!("{key}|{suffix}"),
        None => key.to_string(),
    }
}

/// The script computes with doubles: below this, no sum with the current time is rounded.
const MAX_MS: u64 = 1 << 50;

#[cfg(test)]
mod tests {
    use guildhall_core::response::Credential;
    use guildhall_core::route::RouteKey;

    use super::*;

    const BOT: Credential = Credential::Application(42);

    fn status(key: BreakerKey, token: Option<&str>, state: SharedBreakerState, reason: BreakerReason) -> BreakerStatus {
        BreakerStatus { shared_key: SharedBreakerKey { key, token: token.map(str::to_owned) }, state, reason }
    }

    /// The record that the script stores.
    fn stored_text(record: &ScriptRecord, version: u64, now_ms: u64) -> String {
        let ScriptRecord { head, remaining_ms, .. } = record;
        let until = now_ms + remaining_ms;
        format!(r#"{head},"version":"{version}","ms":{remaining_ms},"until_ms":{until}}}"#)
    }

    #[test]
    fn records_round_trip() {
        let open = SharedBreakerState::Open { remaining: Duration::from_millis(1_500) };
        for (status, field) in [
            (status(BreakerKey::Address, None, open, BreakerReason::Blocked), "discord|home"),
            (
                status(
                    BreakerKey::Discord(BOT),
                    Some("ab12"),
                    SharedBreakerState::ForcedOpen,
                    BreakerReason::Unauthorized,
                ),
                "discord:42|ab12",
            ),
            (
                status(
                    BreakerKey::Route(BOT, RouteKey::new("GET /x \"y\"")),
                    None,
                    SharedBreakerState::Closed,
                    BreakerReason::ProbesSucceeded,
                ),
                "discord:42/GET /x \"y\"",
            ),
            (
                status(
                    BreakerKey::Target("crm|1".to_owned()),
                    None,
                    SharedBreakerState::ForcedOpen,
                    BreakerReason::Forced,
                ),
                "target:crm|1",
            ),
        ] {
            let script_record = to_script_record(&status, "home", "me");
            assert_eq!(script_record.field_name, field);
            let text = stored_text(&script_record, 1 << 52, 1_000);
            let group = (status.shared_key.key == BreakerKey::Address).then(|| "home".to_owned());
            let record = BreakerRecord {
                change: breaker::RemoteChange { status: status.clone(), version: 1 << 52 },
                group,
                by: "me".to_owned(),
            };
            assert_eq!(PubSubMessage::parse(text.as_bytes()), Ok(PubSubMessage::Breaker(record.clone())));
            assert_eq!(BreakerRecord::parse(text.as_bytes(), 1_000), Ok(record));
        }
    }

    #[test]
    fn record_is_open_for_the_remaining_time() {
        let remaining = Duration::from_secs(2);
        let record = to_script_record(
            &status(BreakerKey::Address, None, SharedBreakerState::Open { remaining }, BreakerReason::Blocked),
            "home",
            "me",
        );
        let text = stored_text(&record, 1, 1_000);
        let state_at = |now| BreakerRecord::parse(text.as_bytes(), now).unwrap().change.status.state;
        assert_eq!(state_at(2_500), SharedBreakerState::Open { remaining: Duration::from_millis(500) });
        assert_eq!(state_at(9_000), SharedBreakerState::Open { remaining: Duration::ZERO });
    }

    #[test]
    fn blocks_are_parsed() {
        let text = br#"{"kind":"block","scope":"bot","ms":1234,"by":"7-1"}"#;
        let block = RateLimitBlock { scope: "bot".to_owned(), ms: 1_234, by: "7-1".to_owned() };
        assert_eq!(PubSubMessage::parse(text), Ok(PubSubMessage::Block(block)));
        assert_eq!(BreakerRecord::parse(text, 0), Err(PubSubParseError));
    }

    #[test]
    fn malformed_messages_are_rejected() {
        let record = to_script_record(
            &status(BreakerKey::Address, None, SharedBreakerState::Closed, BreakerReason::Reset),
            "home",
            "me",
        );
        let good = stored_text(&record, 1, 1);
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
            assert_eq!(PubSubMessage::parse(text.as_bytes()), Err(PubSubParseError), "{text}");
        }
    }
}
